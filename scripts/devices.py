"""Devices without records, many in one process: light stand-ins for SuperNodes.

    python scripts/devices.py 127.0.0.1:9092 server/ca.crt --first 0 --count 250 --spread 10

`bench_devices.py` starts a few of these. Each device makes a key, registers it, and then does what
Flower 1.41's SuperNode does (`flwr/supernode/start_client_internal.py`, `fleet_http_connection.py`,
`flwr/supercore/heartbeat.py`): it looks for a message every three seconds, tells that it is there
every seventeen to twenty-two, fetches a run's bundle once and a message's objects two at a time,
confirms, and sends a reply's objects. A reply comes `--think` seconds later, as the process would
that a SuperNode starts for each message. It is one that the server accepts: the device says that
it owns records, and releases noise of the shape of the model. Noise, not zeros: equal arrays would
be stored once.

With `--state` no device looks in vain: ten thousand that look are more than one SuperLink can
answer, and so a round of theirs can be seen all the same.

Prints a line of JSON every second: how many devices are there, and their calls by kind.
"""

import argparse
import asyncio
import json
import random
import resource
import sqlite3
import ssl
import time
from contextlib import closing
from pathlib import Path

import numpy as np
from fleet_calls import LONGEST_PAUSE, LOST, Caller, RefusedError, Tally
from flwr.app import Message
from flwr.app.message import remove_content_from_message
from flwr.common.constant import (
    HEARTBEAT_BASE_MULTIPLIER,
    HEARTBEAT_CALL_TIMEOUT,
    HEARTBEAT_DEFAULT_INTERVAL,
    HEARTBEAT_MAX_INTERVAL,
    HEARTBEAT_RANDOM_RANGE,
)
from flwr.common.serde import message_to_proto
from flwr.proto.control_pb2 import RegisterNodeRequest, RegisterNodeResponse
from flwr.proto.fab_pb2 import GetFabRequest, GetFabResponse
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    ActivateNodeResponse,
    PullMessagesRequest,
    PullMessagesResponse,
    PushMessagesRequest,
    PushMessagesResponse,
)
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest, SendNodeHeartbeatResponse
from flwr.proto.message_pb2 import (
    ConfirmMessageReceivedRequest,
    ConfirmMessageReceivedResponse,
    ObjectTree,
    PullObjectRequest,
    PullObjectResponse,
    PushObjectRequest,
    PushObjectResponse,
)
from flwr.proto.node_pb2 import Node
from flwr.proto.run_pb2 import GetRunRequest, GetRunResponse
from flwr.supercore.constant import PULL_BACKOFF_CAP, PULL_INITIAL_BACKOFF
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
)
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents

from fedsofim.federation.messages import HELLO, pack

LOOK, PROCESSED = 3.0, 0.5  # a SuperNode's pauses: for messages, and for its client's process
OBJECTS_AT_ONCE = 2
REGISTERED_AT_ONCE = 8
FLEET = "/v1/fleet/"


class Device:
    """One device.

    Args:
        caller: its side of the wire.
        client: its number among the run's clients.
        features: how many features it says that its records have.
        classes: and how many classes.
        think: seconds that its client's process takes for an answer.
        quiet: it is woken when there is a message, and tells twice an hour that it is there.
    """

    def __init__(
        self,
        caller: Caller,
        client: int,
        features: int,
        classes: int,
        think: float,
        quiet: bool,
    ) -> None:
        self.caller, self.client, self.think = caller, client, think
        self.features, self.classes = features, classes
        self.node, self.made, self.answered = Node(), 0, 0
        self._interval = HEARTBEAT_MAX_INTERVAL if quiet else HEARTBEAT_DEFAULT_INTERVAL
        self.called = asyncio.Event() if quiet else None
        self._runs: set[int] = set()
        self._noise = np.random.default_rng(client)
        self._two = asyncio.Semaphore(OBJECTS_AT_ONCE)

    async def register(self) -> None:
        """What the server's operator does with `fedsofim deploy register`."""
        request = RegisterNodeRequest(public_key=self.caller.key, name=f"device{self.client}")
        await self.caller.insist("/v1/control/register-node", request, RegisterNodeResponse)

    async def live(self, wait: float) -> None:
        """Connect after some seconds, and stay."""
        await asyncio.sleep(wait)
        request = ActivateNodeRequest(public_key=self.caller.key, heartbeat_interval=self._interval)
        told = await self.caller.insist(f"{FLEET}activate-node", request, ActivateNodeResponse)
        self.node = Node(node_id=told.node_id)
        await asyncio.gather(self._beat(), self._look())

    async def _beat(self) -> None:
        """Say every so often that it is there."""
        beat = SendNodeHeartbeatRequest(node=self.node, heartbeat_interval=self._interval)
        pause = 1.0
        while True:
            try:
                await self.caller.call(
                    f"{FLEET}send-node-heartbeat",
                    beat,
                    SendNodeHeartbeatResponse,
                    HEARTBEAT_CALL_TIMEOUT,
                )
            except (*LOST, RefusedError):
                await asyncio.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)
                continue
            pause = 1.0
            usual = self._interval - HEARTBEAT_CALL_TIMEOUT
            drawn = random.uniform(*HEARTBEAT_RANDOM_RANGE)
            await asyncio.sleep(usual * (HEARTBEAT_BASE_MULTIPLIER + drawn))

    async def _look(self) -> None:
        """Look for messages, and answer them one after the other."""
        while True:
            request = PullMessagesRequest(node=self.node)
            came = await self.caller.insist(f"{FLEET}pull-messages", request, PullMessagesResponse)
            if not came.messages_list:
                await self._pause()
                continue
            said = came.messages_list[0].metadata
            try:
                await self._answer(said.run_id, said.message_id, came.message_object_trees[0])
            except RefusedError as error:
                if error.status != 403:  # else the run has ended meanwhile
                    raise

    async def _pause(self) -> None:
        if self.called is None:
            await asyncio.sleep(LOOK)
            return
        await self.called.wait()
        self.called.clear()

    async def _answer(self, run: int, name: str, tree: ObjectTree) -> None:
        """Fetch a question, and send the reply."""
        caller, node = self.caller, self.node
        if run not in self._runs:
            known = await caller.insist(
                f"{FLEET}get-run", GetRunRequest(node=node, run_id=run), GetRunResponse
            )
            bundle = GetFabRequest(node=node, hash_str=known.run.fab_hash, run_id=run)
            await caller.insist(f"{FLEET}get-fab", bundle, GetFabResponse)
            self._runs.add(run)
        names = list(dict.fromkeys(part.object_id for part in iterate_object_tree(tree)))
        parts = await asyncio.gather(*(self._pull(run, part) for part in names))
        confirm = ConfirmMessageReceivedRequest(node=node, run_id=run, message_object_id=name)
        await caller.insist(
            f"{FLEET}confirm-message-received", confirm, ConfirmMessageReceivedResponse
        )
        question = inflate_object_from_contents(name, dict(zip(names, parts, strict=True)))
        assert isinstance(question, Message)
        question.metadata.__dict__["_message_id"] = name
        await asyncio.sleep(self.think + random.uniform(0, PROCESSED))
        await self._send(run, self.reply(question))

    async def _pull(self, run: int, name: str) -> bytes:
        """One object of a message, which may still be on its way to the SuperLink."""
        request = PullObjectRequest(node=self.node, run_id=run, object_id=name)
        pause = PULL_INITIAL_BACKOFF
        async with self._two:
            while True:
                came = await self.caller.insist(f"{FLEET}pull-object", request, PullObjectResponse)
                if came.object_available:
                    return came.object_content
                if not came.object_found:
                    raise RefusedError(404, b"an object is gone")
                await asyncio.sleep(pause * random.uniform(0.8, 1.2))
                pause = min(2 * pause, PULL_BACKOFF_CAP)

    def reply(self, question: Message) -> Message:
        """What an owner of records would say, as far as its server can tell."""
        asked = question.content["config"]
        if question.metadata.message_type == HELLO:
            said = {"owner": True, "client": self.client, "size": 100 + self.client % 50}
            said |= {"features": self.features, "classes": self.classes, "names": ""}
            return Message(pack({}, said), reply_to=question)
        shape = question.content["arrays"]["theta"].shape
        release = self._noise.normal(size=(1, *shape)).astype(np.float32)
        self.made += 1
        said = {"sizes": [100 + self.client % 50], "charged": float(self.made)}
        said |= {"round": asked["round"], "clients": [self.client]}
        return Message(pack({"release": release}, said), reply_to=question)

    async def _send(self, run: int, reply: Message) -> None:
        reply.metadata.__dict__["_message_id"] = reply.object_id
        objects, tree = get_all_nested_objects(reply), get_object_tree(reply)
        request = PushMessagesRequest(
            node=self.node,
            messages_list=[message_to_proto(remove_content_from_message(reply))],
            message_object_trees=[tree],
            clientapp_runtime_list=[self.think],
        )
        told = await self.caller.insist(f"{FLEET}push-messages", request, PushMessagesResponse)
        wanted = [
            PushObjectRequest(
                node=self.node,
                run_id=run,
                session_id=told.session_id,
                object_id=name,
                object_content=objects[name].deflate(),
            )
            for name in told.objects_to_push
        ]
        await asyncio.gather(*map(self._push, wanted))
        self.answered += 1

    async def _push(self, request: PushObjectRequest) -> None:
        async with self._two:
            await self.caller.insist(f"{FLEET}push-object", request, PushObjectResponse)


async def run(chosen: argparse.Namespace) -> None:
    """Register all devices, say so, and let them live until this process is ended."""
    host, _, port = chosen.server.rpartition(":")
    tally, tls = Tally(), ssl.create_default_context(cafile=chosen.certificate)
    same = (chosen.features, chosen.classes, chosen.think, bool(chosen.state))
    devices = [
        Device(Caller(host, int(port), tls, tally), i, *same)
        for i in range(chosen.first, chosen.first + chosen.count)
    ]
    few = asyncio.Semaphore(REGISTERED_AT_ONCE)

    async def registered(device: Device) -> None:
        async with few:
            await device.register()

    await asyncio.gather(*map(registered, devices))
    spread = random.Random(chosen.first)
    lives = [
        asyncio.create_task(device.live(spread.uniform(0, chosen.spread))) for device in devices
    ]
    while True:
        await asyncio.sleep(1)
        if chosen.state:
            call(devices, chosen.state)
        gone = [life for life in lives if life.done()]
        print(json.dumps(told(devices, tally, gone)), flush=True)


def call(devices: list[Device], state: Path) -> None:
    """Wake those for whom a message lies in the SuperLink's database."""
    waiting = "SELECT dst_node_id FROM message_ins WHERE delivered_at = ''"
    with closing(sqlite3.connect(f"file:{state}?mode=ro", uri=True)) as database:
        nodes = {node % 2**64 for (node,) in database.execute(waiting)}
    for device in devices:
        if device.called and device.node.node_id in nodes:
            device.called.set()


def told(
    devices: list[Device], tally: Tally, gone: list["asyncio.Task[None]"]
) -> dict[str, object]:
    """How it stands with the devices of this process."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    why = [life.exception() for life in gone if not life.cancelled()]
    return {
        "time": time.time(),
        "here": sum(device.node.node_id != 0 for device in devices),
        "gone": len(gone),
        "why": sorted({f"{type(error).__name__}: {error}" for error in why})[:3],
        "answered": sum(device.answered for device in devices),
        "cpu": used.ru_utime + used.ru_stime,
        "calls": dict(tally.calls),
        "seconds": dict(tally.seconds),
        "failed": dict(tally.failed),
    }


def main() -> None:
    """Devices, until this process is ended."""
    made = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    made.add_argument("server", help="HOST:PORT of the SuperLink")
    made.add_argument("certificate", help="of its authority")
    made.add_argument("--first", type=int, default=0, help="the first device's number")
    made.add_argument("--count", type=int, default=10, help="how many there are here")
    made.add_argument("--spread", type=float, default=3.0, help="seconds in which they come")
    made.add_argument("--think", type=float, default=2.0, help="seconds that an answer takes")
    made.add_argument("--state", type=Path, help="the SuperLink's database, to look in it instead")
    made.add_argument("--features", type=int, default=64)
    made.add_argument("--classes", type=int, default=10)
    asyncio.run(run(made.parse_args()))


if __name__ == "__main__":
    main()
