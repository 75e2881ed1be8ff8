"""Flower's door to a client: a simulated one, or the owner of real records.

Which of the two it is, the node's own config says, never the server: a node whose config names
`data` is an owner.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Literal

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from clients import Client
from clients.account import check_ahead
from clients.base import DeployedClient, Fit, SimulatedClients
from clients.owner import Owner
from data.records import Records, open_records
from fedsofim.config import ConfigError, build, require
from fedsofim.experiment import divide, load_data
from fedsofim.linalg import Array
from fedsofim.privacy.ledger import Budget, Ledger, RefusedError
from fedsofim.privacy.plan import Plan
from fedsofim.protocol import SETUP
from fedsofim.rng import Purpose, stream
from fedsofim.run_config import Config, parse
from fedsofim.wire import pack, unpack

app = ClientApp()
Arrays = dict[str, Array]
Values = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Node:
    """What an owner decides, in its SuperNode's `--node-config`.

    Attributes:
        partition_id: its number among the clients, from 0.
        data: its `.npz` file.
        state: its own directory for the ledger and all that must last.
        epsilon: what it allows about one record, over all runs together.
        delta: of that budget.
        adjacency: of that budget.
        num_partitions: not used; Flower's examples set it.
    """

    partition_id: int
    data: str
    state: str
    epsilon: float
    delta: float
    adjacency: Literal["replace-one", "add-remove"] = "replace-one"
    num_partitions: int = 0

    def ledger(self) -> Ledger:
        """The owner's account."""
        budget = Budget(epsilon=self.epsilon, delta=self.delta, adjacency=self.adjacency)
        return Ledger(Path(self.state) / "ledger.jsonl", budget)

    def records(self) -> Records:
        """The owner's records."""
        return open_records(Path(self.data), Path(self.state))


@app.query()
def hello(message: Message, context: Context) -> Message:
    """Say who this node is."""
    return _answer(message, context, _hello)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Release what the server asks for, or say why not."""
    return _answer(message, context, _train)


def _answer(
    message: Message,
    context: Context,
    reply: Callable[[Arrays, Values, Node | None], tuple[Arrays, Values]],
) -> Message:
    """Reply; what is wrong is told to the server in one line, for people to read there."""
    try:
        node = _node(context.node_config)
        content = pack(*reply(*unpack(message.content), node))
    except ConfigError as error:
        client = int(context.node_config.get("partition-id", -1))
        refused = isinstance(error, RefusedError)
        content = pack({}, {"error": str(error), "refused": refused, "client": client})
    return Message(content, reply_to=message)


def _node(values: Mapping[str, Any]) -> Node | None:
    """The owner's settings; `None` for a node of a simulation."""
    if "data" not in values:
        require("num-partitions" in values, "node-config: names no data file")
        return None
    names = {key.replace("-", "_"): value for key, value in values.items()}
    return build(Node, names, "node-config")


def _hello(arrays: Arrays, values: Values, node: Node | None) -> tuple[Arrays, Values]:
    if node is None:
        return {}, {"owner": False}
    records = node.records()
    config = _agreed(values["job"])
    rounds = config.schedule.busiest(config.rounds)
    check_ahead(node.ledger(), config.client, config.plan(), run=values["run"], rounds=rounds)
    size, features = len(records.y), records.features
    return {}, {"owner": True, "client": node.partition_id, "size": size, "features": features}


def _train(arrays: Arrays, values: Values, node: Node | None) -> tuple[Arrays, Values]:
    if node is None:
        sent, _, said = _simulated(values).fit(
            list(arrays.values()), {**values, "names": list(arrays)}
        )
    else:
        sent, _, said = _deployed(arrays, values, node)
    names = said.pop("names")
    said |= {"round": values["round"], "clients": values["clients"]}
    return dict(zip(names, sent, strict=True)), said


def _simulated(values: Values) -> SimulatedClients:
    config, plan, clients = _simulation(values["job"])
    chosen = [clients[i] for i in values["clients"]]
    t = values["round"]
    key = (Purpose.SETUP_NOISE, 0) if t == SETUP else (Purpose.NOISE, t)
    noise = partial(stream, config.seed, *key)
    return SimulatedClients(config.client, plan, chosen, noise)


@lru_cache(maxsize=2)
def _simulation(job: str) -> tuple[Config, Plan, list[Client]]:
    """The clients of a simulation, made once in each process."""
    config = parse(json.loads(job))
    data = load_data(config)
    network = config.model.network(data.train_x.shape[1:], data.classes)
    parts = config.partition.split(data.train_y, data.classes, config.seed, data.client_id)
    return config, config.plan(), divide(network, data, parts)


def _deployed(arrays: Arrays, values: Values, node: Node) -> Fit:
    config = _agreed(values["job"])
    require(values["clients"] == [node.partition_id], "the server asks for someone else")
    t = values["round"]
    require(t == SETUP or 0 <= t < config.rounds, f"round {t}: there is none")
    records = node.records()
    theta = arrays.get("theta")
    require(t == SETUP or (theta is not None and theta.ndim == 2), "theta: there is no model")
    data = records.examples(int(records.y.max()) + 1 if theta is None else len(theta))
    owner = Owner(Client(node.partition_id, data), Path(node.state), node.ledger())
    client = DeployedClient(config.client, config.plan(), owner)
    return client.fit(list(arrays.values()), {**values, "names": list(arrays)})


def _agreed(job: str) -> Config:
    """The run that the server proposes, if it is one that an owner can take part in."""
    config = parse(json.loads(job))
    if config.privacy.trust != "server":
        raise RefusedError(
            "privacy.trust=aggregate: there is no secure aggregation here, the server would see "
            "a release that carries only a part of the noise"
        )
    return config
