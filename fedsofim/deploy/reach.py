"""Whether a server can be reached, told in one line before anything is started."""

import errno
import socket
import ssl
from pathlib import Path
from typing import NamedTuple

from fedsofim.core.errors import ConfigError, require

SECONDS = 5.0  # that a server may take to answer
NOT_YET_VALID = 9  # OpenSSL's X509_V_ERR_CERT_NOT_YET_VALID


class Address(NamedTuple):
    """Where a server listens."""

    host: str
    port: int

    @classmethod
    def of(cls, text: str) -> "Address":
        """From `HOST:PORT`, or `[HOST]:PORT` for an address of IPv6."""
        host, colon, port = text.rpartition(":")
        good = bool(colon and host) and port.isdigit() and 0 < int(port) < 65536
        require(
            good and "/" not in host, f"--server {text}: must be HOST:PORT, as fl.example.org:9092"
        )
        return cls(host.strip("[]"), int(port))

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def why_not(address: Address, certificate: Path) -> str | None:
    """What keeps this server from being used now; `None` if nothing does.

    Raises:
        ConfigError: if waiting can't help.
    """
    trust = ssl.create_default_context(cafile=str(certificate))
    try:
        with socket.create_connection(address, SECONDS) as plain:
            plain.settimeout(SECONDS)
            with trust.wrap_socket(plain, server_hostname=address.host):
                return None
    except ssl.SSLCertVerificationError as error:
        if error.verify_code == NOT_YET_VALID:  # a device begins in 1970 until it has been told
            return f"{address}: by this machine's clock its certificate is not valid yet"
        raise ConfigError(
            f"{address}: its certificate does not fit {certificate} ({error.verify_message}); "
            "is it the server's own ca.crt, and was the server started with this --name?"
        ) from None
    except ssl.SSLEOFError:  # as by a proxy whose server is down
        return f"{address} closes the connection"
    except ssl.SSLError as error:
        raise ConfigError(f"{address}: does not speak TLS ({error.reason})") from None
    except socket.gaierror as error:
        if error.errno == socket.EAI_AGAIN:  # as long as this machine has no network
            return f"{address.host} can't be looked up"
        raise ConfigError(f"{address.host}: there is no host of this name") from None
    except OSError as error:
        return f"{address} does not answer ({error.strerror or 'no answer in time'})"


def require_free(host: str, port: int) -> None:
    """Refuse an address that can't be listened on."""
    require(0 < port < 65536, f"--port {port}: must be between 1 and 65535")
    try:
        family, *_, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family) as probe:
            # As Flower's servers do: a port whose last connections are still closing is free.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(place)
    except socket.gaierror:
        raise ConfigError(f"--host {host}: there is no host of this name") from None
    except OSError as error:
        raise ConfigError(_why_taken(host, port, error)) from None


def _why_taken(host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"--port {port}: another program listens there; stop it, or give another port"
    if error.errno == errno.EADDRNOTAVAIL:
        return f"--host {host}: not an address of this machine; 0.0.0.0 is all of them"
    return f"{host}:{port}: can't be listened on ({error.strerror})"


def listens(address: Address) -> bool:
    """Whether something listens there."""
    try:
        with socket.create_connection(address, 0.5):
            return True
    except OSError:
        return False
