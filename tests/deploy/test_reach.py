"""What keeps a server from being reached, or a port from being used, is told in one line."""

import socket
import ssl
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from threading import Thread

import pytest

from fedsofim.core.errors import ConfigError
from fedsofim.deploy import keys
from fedsofim.deploy.keys import make_certificates
from fedsofim.deploy.reach import Address, listens, require_free, why_not


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as made:
        yield made


@pytest.fixture
def server(tmp_path: Path, listener: socket.socket) -> Address:
    """A server with TLS, whose certificate is for 127.0.0.1; it answers twice."""
    make_certificates(tmp_path / "server", ["127.0.0.1"])
    return serve(listener, tmp_path / "server")


def serve(listener: socket.socket, folder: Path) -> Address:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "server.pem", folder / "server.key")

    def answer() -> None:
        try:
            for _ in range(2):
                with context.wrap_socket(listener.accept()[0], server_side=True):
                    pass
        except OSError:
            pass  # the client hung up

    Thread(target=answer, daemon=True).start()
    return Address("127.0.0.1", listener.getsockname()[1])


@pytest.mark.parametrize("text", ["host", "host:", ":9092", "host:0", "host:70000", "https://a:1"])
def test_an_address_needs_a_port(text: str) -> None:
    with pytest.raises(ConfigError, match=r": must be HOST:PORT, as fl\.example\.org:9092$"):
        Address.of(text)


def test_addresses_are_read() -> None:
    assert Address.of("fl.example.org:9092") == ("fl.example.org", 9092)
    assert Address.of("[::1]:80") == ("::1", 80)
    assert str(Address("::1", 80)) == "[::1]:80"


def test_a_good_server_has_no_problem(server: Address, tmp_path: Path) -> None:
    assert why_not(server, tmp_path / "server" / "ca.crt") is None


def test_another_authority_is_refused_for_good(server: Address, tmp_path: Path) -> None:
    make_certificates(tmp_path / "other", ["127.0.0.1"])
    with pytest.raises(ConfigError, match=r"its certificate does not fit .*other.ca\.crt"):
        why_not(server, tmp_path / "other" / "ca.crt")


def test_a_name_that_the_certificate_lacks_is_refused(server: Address, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="started with this --name"):
        why_not(Address("localhost", server.port), tmp_path / "server" / "ca.crt")


def test_a_server_that_is_not_there_yet_can_be_waited_for(tmp_path: Path) -> None:
    make_certificates(tmp_path, ["127.0.0.1"])
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    assert "does not answer (Connection refused)" in str(
        why_not(Address("127.0.0.1", port), tmp_path / "ca.crt")
    )


def test_a_proxy_whose_server_is_down_can_be_waited_for(
    listener: socket.socket, tmp_path: Path
) -> None:
    make_certificates(tmp_path, ["127.0.0.1"])

    def hang_up() -> None:
        with listener.accept()[0] as near:
            near.recv(1 << 16)  # else the unread hello would reset the connection

    Thread(target=hang_up, daemon=True).start()
    told = why_not(Address("127.0.0.1", listener.getsockname()[1]), tmp_path / "ca.crt")
    assert "closes the connection" in str(told)


def test_a_server_without_tls_is_refused_for_good(listener: socket.socket, tmp_path: Path) -> None:
    make_certificates(tmp_path, ["127.0.0.1"])

    def speak_plainly() -> None:
        with listener.accept()[0] as near:
            near.recv(1 << 16)
            near.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    Thread(target=speak_plainly, daemon=True).start()
    with pytest.raises(ConfigError, match="does not speak TLS"):
        why_not(Address("127.0.0.1", listener.getsockname()[1]), tmp_path / "ca.crt")


def test_a_host_without_a_name_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: object) -> None:
        raise socket.gaierror(-2, "Name or service not known")

    make_certificates(tmp_path, ["127.0.0.1"])
    monkeypatch.setattr(socket, "create_connection", unknown)
    with pytest.raises(ConfigError, match=r"absent: there is no host of this name"):
        why_not(Address("absent", 9092), tmp_path / "ca.crt")


def test_a_machine_without_a_network_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def not_now(*_: object) -> None:
        raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")

    make_certificates(tmp_path, ["127.0.0.1"])
    monkeypatch.setattr(socket, "create_connection", not_now)
    told = why_not(Address("fl.example.org", 9092), tmp_path / "ca.crt")
    assert told == "fl.example.org can't be looked up"


def test_a_clock_that_is_not_set_yet_is_waited_for(
    listener: socket.socket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keys, "BEFORE", timedelta(days=-1))  # valid from tomorrow
    make_certificates(tmp_path / "server", ["127.0.0.1"])
    address = serve(listener, tmp_path / "server")
    assert "is not valid yet" in str(why_not(address, tmp_path / "server" / "ca.crt"))


def test_nothing_listens_where_there_is_no_host() -> None:
    assert not listens(Address("absent.invalid", 9092))


def test_a_port_in_use_is_named(listener: socket.socket) -> None:
    port = listener.getsockname()[1]
    assert listens(Address("127.0.0.1", port))
    with pytest.raises(ConfigError, match=f"--port {port}: another program listens there"):
        require_free("127.0.0.1", port)


def test_an_address_of_another_machine_is_named() -> None:
    with pytest.raises(ConfigError, match=r"--host 192\.0\.2\.1: not an address of this machine"):
        require_free("192.0.2.1", 9092)
