"""`fedsofim deploy client` checks all that it is given before it makes or starts anything."""

import errno
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.common.config import parse_config_args
from smalldata import CLASSES, write_records

from fedsofim.core.errors import ConfigError
from fedsofim.core.files import alone
from fedsofim.deploy import commands as deploy
from fedsofim.deploy import keys, programs
from fedsofim.deploy.keys import check_certificate, make_certificates, require_names
from fedsofim.deploy.reach import Address
from fedsofim.deploy.rehearsal import free_port
from fedsofim.federation import client_app
from fedsofim.federation.node import Node
from fedsofim.privacy.ledger import Charge
from fedsofim.privacy.policy import EXAMPLE, Policy

Client = Callable[..., list[list[str]]]


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Client:
    """Start a client; returns the commands that were run."""
    make_certificates(tmp_path / "server", ["localhost"])
    write_records(tmp_path / "features.npz", 40, seed=0)
    np.savez(tmp_path / "nan.npz", x=np.full((9, 4), np.nan, np.float32), y=np.arange(9) % 3)
    given = {
        "server": "localhost:9092",
        "ca": tmp_path / "server" / "ca.crt",
        "id": 0,
        "data": tmp_path / "features.npz",
        "classes": CLASSES,
        "epsilon": 10.0,
        "dir": tmp_path / "mine",
        "port": free_port(),
    }
    started: list[list[str]] = []
    monkeypatch.setattr(deploy, "supervise", lambda command, *_: started.append(command))

    def start(**changes: Any) -> list[list[str]]:
        options = [(f"--{name}", str(value)) for name, value in {**given, **changes}.items()]
        deploy.main(["client", *(word for option in options for word in option)])
        return started

    return start


def test_a_client_starts_with_what_its_owner_decided(client: Client, tmp_path: Path) -> None:
    (command,) = client(epsilon="inf", adjacency="add-remove")
    node = client_app._node(parse_config_args([command[command.index("--node-config") + 1]]))
    assert node is not None
    assert (node.classes, node.epsilon, node.adjacency) == (CLASSES, np.inf, "add-remove")
    assert len(node.records().y) == 40
    assert (tmp_path / "mine" / "client.pub").exists()


def test_a_client_declares_the_names_of_its_classes(client: Client, tmp_path: Path) -> None:
    (tmp_path / "names").write_text("fat\nsmooth muscle\ntumour\n")
    for given in ("fat,smooth muscle,tumour", str(tmp_path / "names")):
        command = client(classes=given, dir=tmp_path / "named")[-1]
        node = client_app._node(parse_config_args([command[command.index("--node-config") + 1]]))
        assert node is not None
        assert node.agreed().names == ("fat", "smooth muscle", "tumour")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"classes": "fat,fat,tumour"}, "fat is there twice"),
        ({"epsilon": -5}, "epsilon=-5.0: must be > 0"),
        ({"epsilon": "nan"}, "epsilon=nan: must be > 0"),
        ({"delta": 1.5}, "delta=1.5: must be between"),
        ({"id": -1}, "id=-1: clients are numbered from 0"),
        ({"classes": 1}, "classes=1: at least two"),
        ({"classes": 2}, "a label is 2, but there are 2 classes"),
        ({"data": "absent.npz"}, "absent.npz: there is no such data file"),
        ({"data": "nan.npz"}, "NaN or infinite features in 9 records"),
        ({"server": "localhost"}, "--server localhost: must be HOST:PORT"),
        ({"ca": "absent.crt"}, "absent.crt: there is no such certificate"),
        ({"ca": "features.npz"}, "features.npz: not a certificate"),
        ({"policy": "absent.toml"}, "absent.toml: not a readable TOML file"),
        ({"policy": "features.npz"}, "features.npz: not a readable TOML file"),
    ],
)
def test_mistakes_are_told_before_anything_is_made(
    client: Client, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    for name in changes.keys() & {"data", "ca", "policy"}:
        changes = {**changes, name: tmp_path / changes[name]}
    with pytest.raises(ConfigError, match=message):
        client(**changes)
    assert not (tmp_path / "mine").exists()


def test_two_clients_do_not_share_a_folder(client: Client, tmp_path: Path) -> None:
    """The second would remove what the first has unpacked and checked, under its feet."""
    client()
    with (
        alone(tmp_path / "mine"),
        pytest.raises(ConfigError, match=r"mine: process \d+ on .* is at work there"),
    ):
        client()


def test_a_client_keeps_its_folder_while_it_runs(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        with pytest.raises(ConfigError, match="is at work there"), alone(tmp_path / "mine"):
            pass

    monkeypatch.setattr(deploy, "supervise", refused)
    for _ in range(2):  # a new folder, and one that it has already
        client()


def test_a_full_disk_leaves_no_half_a_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    for number, make in enumerate(
        (
            lambda: keys.make_certificates(tmp_path / "server", ["localhost"]),
            lambda: keys.make_signing_key(tmp_path / "signer"),
            lambda: deploy.prepare_client(tmp_path / "client0"),
        )
    ):
        for written in range(3 if number == 0 else 2):
            with monkeypatch.context() as patch:
                calls = iter(range(written))
                patch.setattr(
                    os, "fsync", lambda *_, calls=calls: next(calls, None) is None and full()
                )
                with pytest.raises(OSError, match="No space"):
                    make()
        make()
    require_names(tmp_path / "server", ["localhost"])
    assert deploy.prepare_client(tmp_path / "client0").is_file()


def test_a_clients_key_is_checked_and_its_public_part_made_again(tmp_path: Path) -> None:
    public = deploy.prepare_client(tmp_path)
    text = public.read_text()
    public.unlink()
    assert deploy.prepare_client(tmp_path).read_text() == text
    (tmp_path / "client").write_text("")
    with pytest.raises(ConfigError, match="client: not a private key; put back"):
        deploy.prepare_client(tmp_path)


def test_a_file_may_have_any_name_but_for_quotes(client: Client, tmp_path: Path) -> None:
    data = tmp_path / r"a \b (2), c=d.npz"
    (tmp_path / "features.npz").rename(data)
    (command,) = client(data=data)
    node = client_app._node(parse_config_args([command[command.index("--node-config") + 1]]))
    assert node is not None
    assert node.data == str(data)
    with pytest.raises(ConfigError, match="has a line break or the like in its name"):
        client(data=data, dir=tmp_path / "two\nlines")


@pytest.mark.parametrize("name", ["server.pem", "server.key"])
def test_a_server_whose_files_are_damaged_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "flower"))
    folder = tmp_path / "server"
    make_certificates(folder, ["localhost"])
    (folder / name).write_text("-----BEGIN")
    with pytest.raises(
        ConfigError, match=rf"{name}: can't be read \(damaged\); mend that, or give"
    ):
        deploy.main(["server", "--dir", str(folder), "--port", str(free_port())])


def test_the_policy_goes_with_the_client(client: Client, tmp_path: Path) -> None:
    (tmp_path / "policy.toml").write_text("clip = 3.5")
    (command,) = client(policy=tmp_path / "policy.toml")
    node = client_app._node(parse_config_args([command[command.index("--node-config") + 1]]))
    assert node is not None
    assert node.rules() == Policy(clip=3.5)


def test_a_policy_to_start_from(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        deploy.main(["client", "--policy-example"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == EXAMPLE


def test_a_ledger_that_was_changed_is_named_at_the_start(client: Client, tmp_path: Path) -> None:
    """In the middle, too, which no single message looks at."""
    client()
    node = Node(
        partition_id=0,
        data=str(tmp_path / "features.npz"),
        classes=CLASSES,
        state=str(tmp_path / "mine"),
        epsilon=10.0,
        delta=1e-5,
    )
    ledger = node.ledger(node.records())
    for k in range(3):
        ledger.charge(
            Charge(
                run="a",
                round=k,
                terms="",
                adjacency="replace-one",
                sensitivity=1.0,
                std=100.0,
                count=1,
            )
        )
    client()
    text = ledger.path.read_text()
    ledger.path.write_text(text.replace('"round": 0', '"round": 9'))
    with pytest.raises(ConfigError, match="line 2 was changed after it was written"):
        client()
    with pytest.raises(ConfigError, match=r"have an account already, in .*mine"):
        client(dir=tmp_path / "other")


def test_a_server_on_a_used_port_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "flower"))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        with pytest.raises(ConfigError, match="another program listens there"):
            deploy.main(["server", "--dir", str(tmp_path / "server"), "--port", port])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["", "a b", "https://x.org", "x.org:9092", "ünï.org", "x" * 70])
def test_a_name_that_no_host_can_have_is_told_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "flower"))
    command = ["server", "--dir", str(tmp_path / "server"), "--port", str(free_port())]
    with pytest.raises(ConfigError, match="must be a host's name or address"):
        deploy.main([*command, "--name", name])
    assert list(tmp_path.iterdir()) == []
    keys.check_names(["fl.example.org", "fl_server", "10.0.0.1", "::1"])


def test_an_address_that_flowers_config_has_in_another_form_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "flower"))
    deploy.connect("[https://x.org]:9092", tmp_path / "ca.crt")
    deploy.require_no_other(Address("127.0.0.1", free_port()), tmp_path / "other.crt")


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("│ [code: 23] Public key already in use.   │", "the server has it already"),
        ("│ Connection to the SuperLink is unavailable. Please │", "does not answer; start it"),
        ("│ 'deployment' not found in the Flower configuration file │", "has started no server"),
        ("╭─ Error ─╮\n│ \x1b[91mSomething new. │\n╰──╯", "Something new.$"),
    ],
)
def test_why_a_key_was_not_registered_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, told: str
) -> None:
    key = keys.make_key(tmp_path / "client")
    done = subprocess.CompletedProcess([], 1, said)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: done)
    with pytest.raises(ConfigError, match=rf"client\.pub: could not be registered: .*{told}"):
        deploy.register(key)


def test_what_is_no_public_key_is_neither_registered_nor_a_peer(tmp_path: Path) -> None:
    (tmp_path / "text.pub").write_text("hello there\n")
    public = keys.make_key(tmp_path / "client")
    for file in (tmp_path / "text.pub", tmp_path / "client"):
        for command in ("register", "peers"):
            with pytest.raises(ConfigError, match=f"{file.name}: not a client's public key"):
                deploy.main([command, str(file)])
    with pytest.raises(ConfigError, match=r"client\.pub: this key is another client's, too"):
        deploy.main(["peers", str(public), str(public)])


def test_a_server_does_not_take_the_place_of_one_that_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "flower"))
    monkeypatch.setattr(deploy, "run_to_end", lambda *_: 0)
    with socket.create_server(("127.0.0.1", 0)) as other:
        deploy.connect(f"127.0.0.1:{other.getsockname()[1]}", tmp_path / "ca.crt")
        command = ["server", "--dir", str(tmp_path / "server"), "--port", str(free_port())]
        with pytest.raises(ConfigError, match="which is running; stop it first"):
            deploy.main(command)
    assert not (tmp_path / "server").exists()
    with pytest.raises(SystemExit):  # there it would run
        deploy.main(command)
    assert (tmp_path / "server" / "ca.crt").exists()


@pytest.mark.skipif(sys.platform != "linux", reason="Linux has 127.0.0.2, too")
def test_the_same_port_on_another_address_is_another_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "flower"))
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        deploy.connect(f"127.0.0.1:{port}", tmp_path / "ca.crt")
        before = (tmp_path / "flower" / "config.toml").read_bytes()
        for name in ([], ["--name", "127.0.0.1"]):
            command = ["server", "--dir", str(tmp_path / "server"), "--host", "127.0.0.2"]
            with pytest.raises(ConfigError, match="which is running; stop it first"):
                deploy.main([*command, "--port", str(port), *name])
    assert (tmp_path / "flower" / "config.toml").read_bytes() == before
    assert not (tmp_path / "server").exists()


def test_a_server_is_known_by_the_address_it_listens_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "flower"))
    monkeypatch.setattr(deploy, "run_to_end", lambda *_: 7)
    folder, port = tmp_path / "server", str(free_port())
    command = ["server", "--dir", str(folder), "--port", port]
    with pytest.raises(SystemExit) as ended:
        deploy.main([*command, "--host", "127.0.0.1"])
    assert ended.value.code == 7  # the SuperLink's own
    require_names(folder, ["localhost", "127.0.0.1"])
    with pytest.raises(ConfigError, match=r"was not made for fl\.example\.org"):
        deploy.main([*command, "--name", "fl.example.org"])
    with pytest.raises(ConfigError, match=r"was not made for 127\.0\.0\.2"):
        deploy.main([*command, "--host", "127.0.0.2"])
    with pytest.raises(SystemExit):
        deploy.main([*command, "--dir", str(tmp_path / "second"), "--host", "127.0.0.2"])
    assert f'"127.0.0.2:{port}"' in (tmp_path / "flower" / "config.toml").read_text()
    require_names(tmp_path / "second", ["127.0.0.2", "localhost"])


@pytest.mark.parametrize("days", [61, 59, 0])
def test_a_certificate_that_ends_is_told_before_and_refused_after(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    days: int,
) -> None:
    monkeypatch.setattr(keys, "LIFETIME", timedelta(days=days))
    make_certificates(tmp_path, ["localhost"])
    for check, file, mend in (
        (lambda: require_names(tmp_path, ["localhost"]), "server.pem", "give another --dir"),
        (lambda: check_certificate(tmp_path / "ca.crt"), "ca.crt", "ask the server"),
    ):
        if not days:
            with pytest.raises(ConfigError, match=rf"{file} was valid until 20.*; {mend}"):
                check()
            continue
        check()
        told = capsys.readouterr().out
        assert (f"{file} is valid until" in told and mend in told) if days == 59 else not told


def test_two_servers_do_not_share_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "flower"))
    command = ["server", "--dir", str(tmp_path), "--port", str(free_port())]
    with alone(tmp_path), pytest.raises(ConfigError, match="is at work there"):
        deploy.main(command)
    assert not (tmp_path / "ca.crt").exists()


def test_what_flower_unpacked_is_unpacked_anew(tmp_path: Path) -> None:
    half = tmp_path / "flower" / "apps" / "fedsofim.fedsofim" / "pyproject.toml"
    half.parent.mkdir(parents=True)
    half.touch()
    assert programs.own_home(tmp_path) == {"FLWR_HOME": str(tmp_path / "flower")}
    assert not half.parent.exists()


def test_flowers_programs_keep_their_bytecode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")  # as many containers have it
    assert "PYTHONDONTWRITEBYTECODE" not in programs.environment()


def test_flower_looks_for_tasks_often_unless_the_user_says_how_often(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name = "FLWR_SUPEREXEC_TASK_POLL_INTERVAL"
    monkeypatch.delenv(name, raising=False)
    assert float(programs.environment()[name]) < 1  # which is Flower's own
    monkeypatch.setenv(name, "7")
    assert programs.environment()[name] == "7"
