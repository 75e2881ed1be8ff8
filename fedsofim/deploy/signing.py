"""Signed code: a SuperNode that trusts some public keys runs only bundles that one of them signed.

Flower's SuperNode does the checking (`--trusted-entities`): it compares the signature with the
SHA-256 of the very bundle that it will run, before any of it is imported. But Flower's commands
sign only what is on its Hub: `flwr app review` fetches the bundle there and sends the signature
there, `flwr run .` sends a bundle without signatures, and a SuperLink asks the Hub for both. So
here the bundle is made and signed on this machine, and a small server on the loopback address gives
it to the SuperLink in the Hub's place. Nothing of the check itself is ours.
"""

import base64
import hashlib
import json
import threading
import time
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_ssh_private_key,
    load_ssh_public_key,
)

from fedsofim.core.errors import ConfigError, require

BUNDLE, SIGNATURES = "bundle.fab", "signatures.json"
# Where a SuperLink asks for bundles, by an environment variable of Flower's.
HUB = "FLWR_SUPERGRID_API_URL"


def key_id(public: Ed25519PublicKey) -> str:
    """A name for a key that follows from the key itself, in the form of Flower's."""
    raw = public.public_bytes(Encoding.Raw, PublicFormat.Raw)
    return f"fpk_{hashlib.sha256(raw).hexdigest()[:32]}"


def write_trusted(folder: Path, files: Sequence[Path]) -> Path:
    """Flower's list of trusted keys, from files of public keys, one on each line.

    A list without keys is refused: a SuperNode would take it for none, and run anything.
    """
    lines: dict[str, str] = {}
    for file in files:
        require(file.is_file(), f"{file}: there is no such file of public keys")
        for line in filter(str.strip, file.read_text().splitlines()):
            try:
                key = load_ssh_public_key(line.encode())
            except Exception:
                raise ConfigError(f"{file}: not a public key: {line[:40]!r}") from None
            if not isinstance(key, Ed25519PublicKey):
                raise ConfigError(f"{file}: signing keys are of the kind ssh-ed25519")
            text = key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()
            lines[key_id(key)] = text
    require(
        bool(lines), f"{', '.join(map(str, files))}: holds no public key, so anything would run"
    )
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    place = folder / "trusted.yaml"
    place.write_text("".join(f'{name}: "{text}"\n' for name, text in lines.items()))
    return place


def make_bundle(project: Path, folder: Path) -> Path:
    """The bundle that `flwr run` would send, as a file to read and to sign."""
    from flwr.cli.build import build_fab_from_disk

    folder.mkdir(parents=True, exist_ok=True)
    place = folder / BUNDLE
    place.write_bytes(build_fab_from_disk(project))
    (folder / SIGNATURES).unlink(missing_ok=True)
    return place


def read_key(file: Path) -> Ed25519PrivateKey:
    """A private key to sign with."""
    require(file.is_file(), f"{file}: there is no such key; 'fedsofim deploy key' makes one")
    try:
        key = load_ssh_private_key(file.read_bytes(), password=None)
    except (ValueError, TypeError):
        raise ConfigError(f"{file}: not a private key without a password") from None
    if not isinstance(key, Ed25519PrivateKey):
        raise ConfigError(f"{file}: signing keys are of the kind ssh-ed25519")
    return key


def sign(folder: Path, key_file: Path) -> str:
    """Sign the bundle in this folder, beside other signatures of it; returns the key's name."""
    place = folder / BUNDLE
    require(place.is_file(), f"{place}: there is no bundle")
    key = read_key(key_file)
    now = int(time.time())
    # The form is Flower's: eight bytes of time, then the digest of the bundle.
    signed = key.sign(now.to_bytes(8, "big") + hashlib.sha256(place.read_bytes()).digest())
    name = key_id(key.public_key())
    text = base64.urlsafe_b64encode(signed).rstrip(b"=").decode()
    mine = {"public_key_id": name, "signature": text, "signed_at": now}
    others = [each for each in signatures(folder) if each["public_key_id"] != name]
    (folder / SIGNATURES).write_text(json.dumps([*others, mine], indent=1) + "\n")
    return name


def signatures(folder: Path) -> list[dict[str, Any]]:
    """The signatures of the bundle in this folder."""
    file = folder / SIGNATURES
    return json.loads(file.read_text()) if file.is_file() else []


def app_name(folder: Path) -> str:
    """What `flwr run` calls the bundle in this folder: @publisher/name==version."""
    from flwr.common.config import get_fab_config, get_metadata_from_config

    config = get_fab_config((folder / BUNDLE).read_bytes())
    name, version = get_metadata_from_config(config)
    return f"@{name}=={version}"


class BundleServer:
    """Serves the signed bundle of a folder to the SuperLink on this machine, until the block ends.

    It is read anew each time, so a bundle can be exchanged while the server runs. Who can put
    another bundle here gains nothing: the SuperNodes check it.
    """

    def __init__(self, folder: Path) -> None:
        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                url = f"http://127.0.0.1:{self.server.server_port}/bundle"  # type: ignore[attr-defined]
                said = {"fab_url": url, "verifications": signatures(folder)}
                self._send(json.dumps(said).encode())

            def do_GET(self) -> None:
                self._send((folder / BUNDLE).read_bytes())

            def _send(self, body: bytes) -> None:
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                pass

        require(
            (folder / BUNDLE).is_file(), f"{folder}: no bundle; 'fedsofim deploy sign' makes it"
        )
        require(bool(signatures(folder)), f"{folder}: nobody has signed the bundle")
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)

    @property
    def variables(self) -> dict[str, str]:
        """What the SuperLink must be told, in its environment."""
        hosts = "127.0.0.1,localhost"
        url = f"http://127.0.0.1:{self._server.server_port}"
        return {HUB: url, "NO_PROXY": hosts, "no_proxy": hosts}

    def __enter__(self) -> "BundleServer":
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
