"""A Flower grid without Flower's processes: messages go straight to the real ClientApp."""

from collections.abc import Callable, Iterable
from typing import Any
from uuid import uuid4

from flwr.app import Context, Error, Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from fedsofim.federation.client_app import app

# Given a question and its honest reply, what arrives: other replies, several, or none.
Tamper = Callable[[Message, Message], list[Message]]

# Flower makes no message without them.
TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1


class InProcessGrid(Grid):
    """Nodes with these configs, all in this process.

    Args:
        nodes: the config of each node; its id is not its place here, as in life.
        tamper: what happens to replies on their way.
    """

    def __init__(self, nodes: list[dict[str, Any]], tamper: Tamper | None = None) -> None:
        self.nodes = {1000 - 7 * k: config for k, config in enumerate(nodes)}
        self.tamper = tamper
        self.states = {node: RecordDict() for node in self.nodes}
        self.asked: list[Message] = []
        self._replies: list[Message] = []

    @classmethod
    def simulated(cls, nodes: int, tamper: Tamper | None = None) -> "InProcessGrid":
        configs = [{"partition-id": k, "num-partitions": nodes} for k in range(nodes)]
        return cls(configs, tamper)

    def get_node_ids(self) -> Iterable[int]:
        return list(self.nodes)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        ids = []
        for message in messages:
            message.metadata.__dict__["_message_id"] = str(uuid4())
            ids.append(message.metadata.message_id)
            self.asked.append(message)
            reply = self._answer(message)
            self._replies += self.tamper(message, reply) if self.tamper else [reply]
        return ids

    def _answer(self, message: Message) -> Message:
        node = message.metadata.dst_node_id
        context = Context(
            run_id=1,
            node_id=node,
            node_config=self.nodes[node],
            state=self.states.setdefault(node, RecordDict()),
            run_config={},
        )
        try:
            return app(message, context)
        except Exception as error:
            return Message(Error(code=2, reason=str(error)), reply_to=message)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        arrived, self._replies = self._replies, []
        return arrived

    def set_run(self, run: Run) -> None:
        raise NotImplementedError

    @property
    def run(self) -> Run:
        raise NotImplementedError

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        raise NotImplementedError

    def send_and_receive(self, *args: Any, **kwargs: Any) -> Iterable[Message]:
        raise NotImplementedError
