"""Certificates and keys of a deployment, made with nothing but the `cryptography` package."""

import ipaddress
import os
import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    SSHPrivateKeyTypes,
    load_pem_private_key,
    load_ssh_private_key,
)
from cryptography.x509.oid import NameOID

from fedsofim.core.errors import ConfigError, require
from fedsofim.core.files import whole, write_whole

LIFETIME, SOON = timedelta(days=825), timedelta(days=60)
BEFORE = timedelta(hours=1)  # clocks differ
HOST = re.compile(r"[a-zA-Z0-9_-]{1,63}(\.[a-zA-Z0-9_-]{1,63})*")
ANEW = "give another --dir, whose ca.crt all clients must then get"
MEND = f"mend that, or {ANEW}"
ASK = "ask the server for its ca.crt"


def make_certificates(folder: Path, names: Sequence[str]) -> None:
    """Make a certificate authority and a server certificate for these host names and addresses.

    Leaves `ca.crt`, which every client gets, `server.pem` and `server.key`. The authority's own
    key is thrown away: nobody can issue another certificate that the clients would trust.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    authority, server = (ec.generate_private_key(ec.SECP384R1()) for _ in range(2))
    root = _certificate("fedsofim authority", authority, None, [])
    leaf = _certificate(names[0], server, (root, authority), names)
    write_whole(folder / "ca.crt", root.public_bytes(Encoding.PEM))
    write_whole(folder / "server.pem", leaf.public_bytes(Encoding.PEM))
    _write_secret(
        folder / "server.key",
        server.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
    )


def check_names(names: Sequence[str]) -> None:
    """Refuse what is neither a host's name nor its address, before anything is written."""
    for name in names:
        good = HOST.fullmatch(name) is not None and len(name) < 254
        good = good or (":" in name and isinstance(_alternative(name), x509.IPAddress))
        require(good, f"--name {name}: must be a host's name or address, as fl.example.org")


def require_names(folder: Path, names: Sequence[str]) -> None:
    """Refuse a folder whose server certificate lacks one of these names, or has ended.

    And one whose certificate or key can't be read, of which Flower tells in pages.
    """
    certificate = _read(folder / "server.pem", x509.load_pem_x509_certificate)
    _read(folder / "server.key", lambda text: load_pem_private_key(text, None))
    known = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    for name in names:
        require(
            _alternative(name) in known,
            f"{folder / 'server.pem'} was not made for {name}, so clients would refuse it; {ANEW}",
        )
    _require_time(folder / "server.pem", [certificate], ANEW)


def _read(file: Path, load: Callable[[bytes], Any]) -> Any:
    try:
        return load(file.read_bytes())
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "damaged"
        raise ConfigError(f"{file}: can't be read ({why}); {MEND}") from None


def _require_time(file: Path, found: Sequence[x509.Certificate], mend: str) -> None:
    """Refuse certificates that have ended, and tell of some that soon will."""
    end, now = min(each.not_valid_after_utc for each in found), datetime.now(UTC)
    require(now < end, f"{file} was valid until {end:%Y-%m-%d}; {mend}")
    if end - now < SOON:
        print(f"{file} is valid until {end:%Y-%m-%d}; before then, {mend}", flush=True)


def _certificate(
    name: str,
    key: ec.EllipticCurvePrivateKey,
    issuer: tuple[x509.Certificate, ec.EllipticCurvePrivateKey] | None,
    names: Sequence[str],
) -> x509.Certificate:
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])
    signer = issuer[1] if issuer else key
    now = datetime.now(UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer[0].subject if issuer else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BEFORE)
        .not_valid_after(now + LIFETIME)
        .add_extension(x509.BasicConstraints(ca=not issuer, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    if names:
        alternatives = x509.SubjectAlternativeName([_alternative(each) for each in names])
        builder = builder.add_extension(alternatives, critical=False)
    if issuer:
        identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer[1].public_key())
        builder = builder.add_extension(identifier, critical=False)
    return builder.sign(signer, hashes.SHA384())


def _alternative(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def check_certificate(file: Path) -> None:
    """Refuse a file that is not a certificate, or one that has ended."""
    require(file.is_file(), f"{file}: there is no such certificate; {ASK}")
    try:
        found = x509.load_pem_x509_certificates(file.read_bytes())
    except ValueError:
        raise ConfigError(f"{file}: not a certificate; {ASK}") from None
    _require_time(file, found, ASK)


def make_key(file: Path) -> Path:
    """Make a client's key pair, `file` and `file.pub`; the private part never leaves the machine.

    Returns:
        The public key's file.
    """
    return _write_pair(file, ec.generate_private_key(ec.SECP384R1()))


def make_signing_key(file: Path) -> Path:
    """Make a pair to sign bundles with, `file` and `file.pub`; see `signing`."""
    require(not file.exists(), f"{file}: there is a key already")
    return _write_pair(file, Ed25519PrivateKey.generate())


def _write_pair(file: Path, key: ec.EllipticCurvePrivateKey | Ed25519PrivateKey) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    public = _write_public(file, key)
    _write_secret(file, key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    return public  # the secret comes last: where it is, all is


def _write_public(file: Path, key: SSHPrivateKeyTypes) -> Path:
    public = file.with_suffix(".pub")
    text = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    write_whole(public, text + b"\n")
    return public


def public_of(file: Path) -> Path:
    """The public key's file of a pair that was made before; it is made anew if it is not there."""
    try:
        key = load_ssh_private_key(file.read_bytes(), password=None)
    except OSError as error:
        raise ConfigError(f"{file}: can't be read ({error.strerror})") from None
    except (ValueError, TypeError):
        raise ConfigError(
            f"{file}: not a private key; put back the one that the server knows, or remove it, and "
            "have a new one registered"
        ) from None
    return _write_public(file, key)


def _write_secret(file: Path, content: bytes) -> None:
    with whole(file) as draft:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(content)
