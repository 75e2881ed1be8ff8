"""Owners who have pinned each other's keys, and a server's side of one session, word by word."""

import secrets
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Message
from inprocess import InProcessGrid
from smalldata import CLASSES, FEATURES, write_records

from fedsofim.config.schema import Config
from fedsofim.deploy.keys import make_key
from fedsofim.federation.messages import HELLO, RELEASE, pack, unpack
from fedsofim.federation.owner import Request, Terms
from fedsofim.federation.peers import numbered, read_peers
from fedsofim.federation.sessions import Question, pack_questions, session_of
from fedsofim.privacy.ledger import Ledger, opened
from fedsofim.secagg.server import Server
from fedsofim.secagg.state import pinned

THETA = np.zeros((CLASSES, FEATURES + 1), np.float32)


def make_owners(
    folder: Path, count: int, *, honest: int = 0, epsilon: float = 10.0, seed: int = 0
) -> list[Any]:
    """Owners with files, keys and a list of all keys; the configs of their nodes."""
    keys = [make_key(folder / f"owner{i}" / "client") for i in range(count)]
    (folder / "peers").write_text(numbered(keys).text)
    configs = []
    for i in range(count):
        place = folder / f"owner{i}"
        write_records(place / "records.npz", 60 + 10 * i, seed=seed + i)
        own = {"partition-id": i, "data": str(place / "records.npz"), "state": str(place)}
        budget = {"classes": CLASSES, "epsilon": epsilon, "delta": 1e-5}
        configs.append({**own, **budget, "peers": str(folder / "peers"), "honest": honest})
    return configs


def ledger_of(owner: dict[str, Any]) -> Ledger:
    return opened(Path(owner["state"]))


def charges_of(owner: dict[str, Any]) -> int:
    file = Path(owner["state"]) / "ledger.jsonl"
    return len(ledger_of(owner).charges()) if file.exists() else 0


def refused(said: dict[str, Any]) -> str:
    """What a client said no with."""
    return str(said.get("error", ""))


class Talk:
    """One session with owners, as a server speaks; each question can be changed on its way."""

    def __init__(
        self, owners: list[dict[str, Any]], config: Config, t: int = 0, run: str = "ab"
    ) -> None:
        self.grid, self.config, self.t, self.run = InProcessGrid(owners), config, t, run
        self.owners, self.theta = owners, THETA
        self.nodes = dict(enumerate(self.grid.nodes))
        peers = read_peers(Path(owners[0]["peers"]))
        assert config.sharing is not None
        sharing = replace(config.sharing, roster=peers.digest)
        self.terms = Terms(config.client, config.plan(), config.stages, sharing)
        self.name, length = secrets.token_hex(16), THETA.size
        if t < 0:
            length = config.stages[t].length(FEATURES, CLASSES)
        session = session_of(self.terms, Request(run, t, ""), self.name, length)
        keys = pinned({i: key.encode() for i, key in peers.keys.items()})
        self.server = Server(session, keys)
        self.requests = self.server.open(range(len(owners)))

    def message(self, i: int, words: bytes, **changes: Any) -> Message:
        """A question to one client; `changes` replace what it says."""
        said = {"job": self.config.text, "run": self.run, "round": self.t, "clients": [i]}
        said |= pack_questions([[Question(self.t, self.name, words)]])
        arrays = {"theta": self.theta} if self.t >= 0 else {}
        return Message(pack(arrays, {**said, **changes}), self.nodes[i], RELEASE)

    def ask(self, i: int, words: bytes | None = None, **changes: Any) -> dict[str, Any]:
        """What a client says to this stage's words, or to others."""
        given = self.requests[i] if words is None else words
        self.grid.push_messages([self.message(i, given, **changes)])
        (reply,) = self.grid.pull_messages([])
        return dict(unpack(reply.content)[1])

    def hello(self, i: int, job: str | None = None) -> dict[str, Any]:
        said = {"job": job or self.config.text, "run": self.run, "population": len(self.owners)}
        self.grid.push_messages([Message(pack({}, said), self.nodes[i], HELLO)])
        (reply,) = self.grid.pull_messages([])
        return dict(unpack(reply.content)[1])

    def stage(self, *silent: int) -> None:
        """Ask all but some, and go on to the next stage."""
        for i in [i for i in self.requests if i not in silent]:
            said = self.ask(i)
            assert not refused(said), said
            assert self.server.take(i, said["answers"][0]) is None
        self.requests = self.server.close()
