"""A deployment: a server with TLS, and clients that own their data."""

import argparse
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from fedsofim.core.arguments import Parser
from fedsofim.core.errors import ConfigError, require
from fedsofim.core.files import alone
from fedsofim.deploy.arguments import client_arguments
from fedsofim.deploy.programs import (
    client_command,
    ending_cleanly,
    environment,
    own_home,
    program,
    run_to_end,
    server_command,
)
from fedsofim.deploy.reach import Address, listens, require_free
from fedsofim.deploy.supervise import supervise

# The name under which 'flwr run' and 'flwr supernode' know the server.
NAME = "deployment"
# What Flower says when it does not register a key, and what that means.
REFUSALS = {
    "already in use": "the server has it already",
    "is unavailable": "the server does not answer; start it with 'fedsofim deploy server'",
    "not found in the Flower config": "its user has started no server on this machine; register "
    "where 'fedsofim deploy server' runs",
}
EVERYWHERE = ("0.0.0.0", "::")  # all addresses of a machine, and the name of none


def parser() -> Parser:
    """The commands and their options."""
    made = Parser(prog="fedsofim deploy", description=__doc__)
    commands = made.add_subparsers(dest="command", required=True)
    _server_arguments(commands.add_parser("server", help="certificates, and a server with TLS"))
    _register_arguments(commands.add_parser("register", help="let clients in, by public key"))
    _peers_arguments(commands.add_parser("peers", help="who the clients are, for each of them"))
    client = commands.add_parser("client", help="a client on its owner's data file")
    client_arguments(client)
    client.set_defaults(run=_client)
    _key_arguments(commands.add_parser("key", help="a key to sign code with"))
    _sign_arguments(commands.add_parser("sign", help="sign the code that clients will run"))
    _rehearse_arguments(commands.add_parser("rehearse", help="all of it on this machine"))
    return made


def main(arguments: Sequence[str]) -> None:
    """Run one of the commands."""
    made = parser()
    chosen, rest = made.parse_known_args(list(arguments) or ["--help"])
    made.chosen(chosen.command).refuse(rest)
    chosen.run(chosen)


def _server_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dir", type=Path, default=Path("server"), help="certificates and state")
    parser.add_argument("--host", default="127.0.0.1", help="the address to listen on")
    parser.add_argument("--port", type=int, default=9092)
    parser.add_argument(
        "--name",
        action="append",
        default=[],
        metavar="HOST",
        help="a name or address by which clients reach this machine; may be repeated",
    )
    parser.add_argument(
        "--signed",
        type=Path,
        metavar="FOLDER",
        help="the folder of 'fedsofim deploy sign': runs are started from its bundle",
    )
    parser.set_defaults(run=_server)


def _register_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("keys", nargs="+", type=Path, help="the clients' public keys, *.pub")
    parser.set_defaults(run=_register)


def _peers_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "keys", nargs="+", type=Path, help="all clients' public keys, *.pub, client 0's first"
    )
    parser.set_defaults(run=_peers)


def _key_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, help="the private key; FILE.pub is the public one")
    parser.set_defaults(run=_key)


def _sign_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--key", required=True, type=Path, help="a private key to sign with")
    parser.add_argument("--dir", type=Path, default=Path("signed"), help="bundle and signatures")
    parser.add_argument(
        "--build", action="store_true", help="make the bundle anew from the project's directory"
    )
    parser.add_argument(
        "--app", type=Path, metavar="DIR", help="make it from this app, as 'fedsofim app' writes it"
    )
    parser.set_defaults(run=_sign)


def _rehearse_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dir", type=Path, default=None, help="kept afterwards; else temporary")
    parser.add_argument("--clients", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--signed", action="store_true", help="sign the code, and let clients run no other"
    )
    parser.add_argument("overrides", nargs="*", help="as for 'fedsofim run'")
    parser.set_defaults(run=_rehearse)


def _server(chosen: argparse.Namespace) -> None:
    """Make the certificates if there are none, and start the SuperLink."""
    from fedsofim.deploy import signing
    from fedsofim.deploy.keys import check_names

    folder = chosen.dir.resolve()
    own = [] if chosen.host in EVERYWHERE else [chosen.host]
    names = list(dict.fromkeys([*chosen.name, *own]))
    check_names(chosen.name)
    address = Address(names[0] if names else "127.0.0.1", chosen.port)
    require_free(chosen.host, chosen.port)
    require_no_other(address, folder / "ca.crt")
    app = signing.app_name(chosen.signed) if chosen.signed else "."
    with ExitStack() as stack:
        stack.enter_context(ending_cleanly())
        bundles = {}
        if chosen.signed:
            shelf = stack.enter_context(signing.BundleServer(chosen.signed.resolve()))
            bundles = shelf.variables
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        stack.enter_context(alone(folder))
        prepare_server(folder, names)
        connect(str(address), folder / "ca.crt")
        print(
            f"Give every client {folder / 'ca.crt'}, and let it in with its public key:\n"
            f"  fedsofim deploy register client.pub\nThen train:\n  flwr run {app} {NAME} --stream",
            flush=True,
        )
        command = server_command(folder, chosen.host, chosen.port)
        sys.exit(run_to_end(command, environment(**bundles, **own_home(folder))))


def _key(chosen: argparse.Namespace) -> None:
    from fedsofim.deploy.keys import make_signing_key

    public = make_signing_key(chosen.file)
    print(f"Keep {chosen.file} to yourself; clients get {public} and name it with --trusted")


def _sign(chosen: argparse.Namespace) -> None:
    """Sign the bundle, which is made from the project's directory if there is none."""
    from fedsofim.deploy import signing
    from fedsofim.deploy.rehearsal import project_root

    folder = chosen.dir.resolve()
    signing.read_key(chosen.key)
    good = not chosen.app or (chosen.app / "pyproject.toml").is_file()
    require(good, f"--app {chosen.app}: not an app's folder, as 'fedsofim app' writes it")
    if chosen.build or chosen.app or not (folder / signing.BUNDLE).exists():
        signing.make_bundle(chosen.app or project_root(folder / "app"), folder)
    name = signing.sign(folder, chosen.key)
    print(
        f"{name} has signed {folder / signing.BUNDLE}: what it holds is what clients will run.\n"
        f"Start the server with it: fedsofim deploy server --signed {chosen.dir}\n"
        f"and train: flwr run {signing.app_name(folder)} {NAME} --stream"
    )


def prepare_server(folder: Path, names: Sequence[str]) -> None:
    """Certificates for a server that has these names beside localhost, unless it has them."""
    from fedsofim.deploy.keys import make_certificates, require_names

    if (folder / "server.key").exists():
        require_names(folder, names)
    else:
        make_certificates(folder, list(dict.fromkeys([*names, "localhost", "127.0.0.1"])))


def require_no_other(address: Address, certificate: Path) -> None:
    """Refuse to take the name that Flower's commands know a running server by."""
    from flwr.cli.flower_config import init_flwr_config, read_flower_config

    init_flwr_config()
    entry = read_flower_config()[0].get("superlink", {}).get(NAME, {})
    known, trusted = entry.get("address", ""), entry.get("root-certificates")
    if known and (known, trusted) != (str(address), str(certificate)):
        require(
            not _listens(known),
            f"flwr run … {NAME} is about a server at {known}, which is running; stop it first, "
            "or set FLWR_HOME to another folder for this one",
        )


def _listens(known: str) -> bool:
    """Whether something listens at an address that Flower's commands know."""
    try:
        return listens(Address.of(known))
    except ConfigError:  # which its user may have written in another form
        return False


def connect(address: str, certificate: Path) -> None:
    """Tell Flower's commands on this machine where the server is."""
    from flwr.cli.flower_config import init_flwr_config, write_superlink_connection
    from flwr.cli.typing import SuperLinkConnection

    init_flwr_config()
    write_superlink_connection(
        SuperLinkConnection(name=NAME, address=address, root_certificates=str(certificate))
    )


def _register(chosen: argparse.Namespace) -> None:
    for key in chosen.keys:
        register(key)


def _peers(chosen: argparse.Namespace) -> None:
    from fedsofim.federation.peers import numbered

    peers = numbered(chosen.keys)
    print(peers.text, end="")
    print(f"{len(peers.keys)} clients, digest {peers.digest[:16]}", file=sys.stderr)


def register(key: Path, variables: Mapping[str, str] | None = None, name: str = "") -> None:
    """Let the client with this public key in."""
    from fedsofim.federation.peers import check_public

    require(key.is_file(), f"{key}: there is no such file")
    check_public(key)
    command = [program("flwr"), "supernode", "register", str(key), NAME]
    done = subprocess.run(
        [*command, "--name", name or key.stem],
        env={**(variables or environment()), "COLUMNS": "1000"},
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    require(done.returncode == 0, f"{key}: could not be registered: {_why_not(done.stdout)}")
    print(f"{key}: registered", flush=True)


def _why_not(said: str) -> str:
    """Why Flower did not register a key, which it says in a box."""
    for words, told in REFUSALS.items():
        if words in said:
            return told
    return " ".join(re.sub(r"\x1b\[[0-9;]*m|[^\x20-\x7e]", " ", said).split())


def _client(chosen: argparse.Namespace) -> None:
    """Check all that was given, make the key if there is none, and keep a SuperNode running.

    What is wrong with the data is told here, to its owner; the server will not be told.
    """
    from fedsofim.data.inspection import inspect, shown
    from fedsofim.deploy.keys import check_certificate
    from fedsofim.deploy.signing import write_trusted
    from fedsofim.federation.node import Node

    folder = chosen.dir.resolve()
    node = Node(
        partition_id=chosen.id,
        data=str(chosen.data.resolve()),
        classes=chosen.classes.count,
        names="|".join(chosen.classes.names),
        state=str(folder),
        epsilon=chosen.epsilon,
        delta=chosen.delta,
        adjacency=chosen.adjacency,
        policy=str(chosen.policy.resolve()) if chosen.policy else "",
        peers=str(chosen.peers.resolve()) if chosen.peers else "",
        honest=chosen.honest,
    )
    check_certificate(chosen.ca)
    server = Address.of(chosen.server)
    require_free("127.0.0.1", chosen.port)
    found = inspect(chosen.data, chosen.classes)
    print(shown(found), flush=True)
    with ExitStack() as stack:
        known = folder.is_dir()  # a new one is made when all is found right
        if known:
            stack.enter_context(alone(folder))
        records = node.start()
        if not known:
            stack.enter_context(alone(folder))
        print(f"{len(records.y)} records with {records.features} features", flush=True)
        trusted = write_trusted(folder, chosen.trusted) if chosen.trusted else None
        key = prepare_client(folder)
        if (peers := node.check_peers()) is not None:
            told = f"Peers: {len(peers.keys)} clients, digest {peers.digest[:16]}"
            trust = f"{node.rules().honest} others are taken for honest"
            print(f"{told}: compare it with them. {trust}", flush=True)
        command = client_command(
            folder,
            server=chosen.server,
            certificate=chosen.ca,
            node=node.text(),
            port=chosen.port,
            trusted=trusted,
        )
        if trusted is None:
            print("Whatever code the server sends will run here; see --trusted", flush=True)
        print(f"Public key, for the server to register: {key}", flush=True)
        stack.enter_context(ending_cleanly())
        supervise(command, server, chosen.ca, key)


def prepare_client(folder: Path) -> Path:
    """A key pair for a client, unless the folder has one already; returns the public key's file."""
    from fedsofim.deploy.keys import make_key, public_of

    file = folder / "client"
    return public_of(file) if file.exists() else make_key(file)


def _rehearse(chosen: argparse.Namespace) -> None:
    from fedsofim.deploy.rehearsal import rehearse

    with ending_cleanly():
        rehearse(
            chosen.dir,
            clients=chosen.clients,
            rounds=chosen.rounds,
            overrides=chosen.overrides,
            signed=chosen.signed,
        )
