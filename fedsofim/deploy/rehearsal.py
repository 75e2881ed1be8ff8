"""A deployment on one machine: the real programs, certificates and keys, on the loopback address.

What goes well here goes the same way on many machines, where each part is started by its owner.
"""

import os
import socket
import subprocess
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from fedsofim.config.compose import compose
from fedsofim.config.schema import parse
from fedsofim.core.errors import require
from fedsofim.core.files import alone
from fedsofim.core.shipped import editable_root
from fedsofim.data.classes import Classes
from fedsofim.deploy import commands as deploy
from fedsofim.deploy import programs, signing
from fedsofim.deploy.keys import make_signing_key
from fedsofim.deploy.reach import Address, listens
from fedsofim.deploy.thin_app import write_app
from fedsofim.federation.node import Node
from fedsofim.federation.peers import numbered
from fedsofim.runs.experiment import load_divided

START = 60.0  # seconds that the server may take to come up


def rehearse(
    folder: Path | None,
    *,
    clients: int,
    rounds: int,
    overrides: Sequence[str],
    signed: bool = False,
) -> None:
    """Deal the records out to files, start everything, train, and stop everything.

    Args:
        folder: where all of it is kept; a temporary directory without.
        clients: how many clients.
        rounds: how many rounds.
        overrides: as for `fedsofim run`; also for the run's config here.
        signed: whether clients run signed code only.
    """
    with ExitStack() as stack:
        if folder is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rehearsal-")))
        folder = folder.resolve()
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        stack.enter_context(alone(folder))
        project = project_root(folder / "app")
        settings = [f"partition.clients={clients}", f"rounds={rounds}", _at_once(), *overrides]
        files, classes = deal_out(folder, settings)
        federation = stack.enter_context(Federation(folder))
        if signed:
            federation.sign(project)
        federation.serve()
        for i in range(len(files)):
            federation.register(i)
        federation.pin(len(files))
        for i, file in enumerate(files):
            federation.start_client(i, file, classes)
        federation.train(project, settings)


def _at_once() -> str:
    """Ask no more clients at a time than this machine can start within Flower's thirty seconds."""
    return f"engine.at_once={4 * (os.cpu_count() or 1)}"


def project_root(app: Path) -> Path:
    """What `flwr run` makes its bundle from: the checkout, or else a thin app in `app`."""
    here = Path.cwd()
    found = (here / "fedsofim" / "federation" / "server_app.py").is_file()
    root = here if found else editable_root()
    return root or (app if app.is_dir() else write_app(app))


def deal_out(folder: Path, overrides: Sequence[str]) -> tuple[list[Path], Classes]:
    """Divide a data set as a simulation would, and write each client's records to its own file.

    Returns:
        The files, and the classes that there are.
    """
    config = parse(compose(["engine=flower", *overrides]))
    data, parts = load_divided(config)
    files = []
    for i, part in enumerate(parts):
        files.append(folder / f"client{i}" / "records.npz")
        files[-1].parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        np.savez(files[-1], x=data.train_x[part], y=data.train_y[part])
    return files, Classes(data.classes, data.names)


class Federation:
    """A server and its clients on this machine, stopped when the block ends."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.server: subprocess.Popen[bytes] | None = None
        self.nodes: dict[int, subprocess.Popen[bytes]] = {}
        self.trusted: Path | None = None
        self.peers: Path | None = None
        self.honest = 0
        self._shelf: signing.BundleServer | None = None
        # Homes of its own, so that nothing of the user's Flower set-up is touched, and the same
        # records can be rehearsed again.
        self.environment = programs.environment(
            FLWR_HOME=str(folder / "flwr"), FEDSOFIM_STATE=str(folder / "state")
        )

    def __enter__(self) -> "Federation":
        return self

    def __exit__(self, *_: object) -> None:
        programs.end(*self.nodes.values(), *([self.server] if self.server else []))
        if self._shelf is not None:
            self._shelf.__exit__()

    def sign(self, project: Path) -> Path:
        """Make a signing key and sign the project's code; clients from now on run no other."""
        key, place = self.folder / "signer", self.folder / "signed"
        public = make_signing_key(key)
        signing.make_bundle(project, place)
        signing.sign(place, key)
        self.trusted = signing.write_trusted(self.folder, [public])
        self._shelf = signing.BundleServer(place).__enter__()
        return place

    def serve(self) -> None:
        """Start the server, and wait until it listens."""
        place = self.folder / "server"
        deploy.prepare_server(place, [])
        self._write_home(place / "ca.crt")
        command = programs.server_command(place, "127.0.0.1", self.port)
        self.server = self.start(
            command, "server", **(self._shelf.variables if self._shelf else {})
        )
        deadline = time.monotonic() + START
        while not listens(Address("127.0.0.1", self.port)):
            log = self.folder / "server.log"
            require(self.server.poll() is None, f"the server ended; see {log}")
            require(time.monotonic() < deadline, f"the server does not come up; see {log}")
            time.sleep(0.2)

    def _write_home(self, certificate: Path) -> None:
        home = self.folder / "flwr"
        home.mkdir(parents=True, exist_ok=True)
        (home / "config.toml").write_text(
            f'[superlink]\ndefault = "{deploy.NAME}"\n\n[superlink.{deploy.NAME}]\n'
            f'address = "127.0.0.1:{self.port}"\nroot-certificates = "{certificate}"\n'
        )

    def start(
        self, command: Sequence[str], name: str, **variables: str
    ) -> "subprocess.Popen[bytes]":
        """Start one of the programs, with a log of its own."""
        with open(self.folder / f"{name}.log", "ab") as log:
            return programs.start(
                command,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**self.environment, **variables},
            )

    def register(self, client: int) -> None:
        """Make a client's key and let it in."""
        key = deploy.prepare_client(self.folder / f"client{client}")
        deploy.register(key, self.environment, name=f"client{client}")

    def pin(self, clients: int) -> None:
        """Let clients know each other by their keys, and take all others for honest."""
        keys = [self.folder / f"client{i}" / "client.pub" for i in range(clients)]
        self.peers, self.honest = self.folder / "peers", clients - 1
        self.peers.write_text(numbered(keys).text)

    def add_client(
        self, client: int, data: Path, classes: int | Classes, *, epsilon: float = 10.0
    ) -> None:
        """Register a client and start it."""
        self.register(client)
        self.start_client(client, data, classes, epsilon=epsilon)

    def start_client(
        self, client: int, data: Path, classes: int | Classes, *, epsilon: float = 10.0
    ) -> None:
        """Start a client that is registered."""
        known = Classes(classes) if isinstance(classes, int) else classes
        place = self.folder / f"client{client}"
        node = Node(
            partition_id=client,
            data=str(data),
            classes=known.count,
            names="|".join(known.names),
            state=str(place),
            epsilon=epsilon,
            delta=1e-5,
            peers=str(self.peers or ""),
            honest=self.honest,
        )
        command = programs.client_command(
            place,
            server=f"127.0.0.1:{self.port}",
            certificate=self.folder / "server" / "ca.crt",
            node=node.text(),
            port=free_port(),
            trusted=self.trusted,
        )
        self.nodes[client] = self.start(command, f"client{client}")

    def train(self, project: Path, overrides: Sequence[str]) -> None:
        """Start a run and show it until it ends."""
        app = signing.app_name(self.folder / "signed") if self._shelf else str(project)
        subprocess.run(self.run_command(app, overrides), check=True, env=self.environment)

    def run_command(self, app: Path | str, overrides: Sequence[str], resume: str = "") -> list[str]:
        """The command line of `flwr run`, for a project's directory or a signed bundle's name."""
        given = f'overrides="{" ".join(overrides)}" resume="{resume}"'
        return [
            *(programs.program("flwr"), "run", str(app), deploy.NAME, "--stream"),
            *("--run-config", given),
        ]


def free_port() -> int:
    """A port of the loopback address that nobody uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
