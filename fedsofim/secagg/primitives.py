"""The cryptography that the protocol stands on; none of it is written here.

Key agreement (X25519), key derivation (HKDF), the stream (ChaCha20), the sealed envelope
(ChaCha20-Poly1305) and signatures are those of `cryptography`; Shamir's sharing in GF(2^128) is
PyCryptodome's, which also serves Flower. Flower's own wrapper is not used: it pads 16 bytes to 32,
and starts threads for two multiplications. What PyCryptodome does not do is done here: as many
shares as the threshold go into `combine`, and what comes out is compared with what was announced.
"""

import hashlib
import os
from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np
from Crypto.Protocol.SecretSharing import Shamir
from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_ssh_private_key,
    load_ssh_public_key,
)

from fedsofim.core.arrays import Array
from fedsofim.core.errors import ConfigError
from fedsofim.secagg.wire import digest

SEED, KEY, TAG = 16, 32, 16
SEALED = 16  # bytes that an envelope adds
ECDSA = ec.ECDSA(hashes.SHA256())
P256_ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551

# A client's long-term key: a SuperNode's, on a NIST curve, or an Ed25519 one.
PrivateKey = ec.EllipticCurvePrivateKey | Ed25519PrivateKey
PublicKey = ec.EllipticCurvePublicKey | Ed25519PublicKey


def load_key(text: bytes) -> PrivateKey:
    """A private key from an OpenSSH file without a password, as `fedsofim deploy keys` makes it."""
    key = load_ssh_private_key(text, password=None)
    if not isinstance(key, PrivateKey):
        raise ConfigError("a client's key must be of the kind ecdsa-sha2-nistp384 or ssh-ed25519")
    return key


def load_public(text: bytes) -> PublicKey:
    """A public key from a line of OpenSSH."""
    key = load_ssh_public_key(text)
    if not isinstance(key, PublicKey):
        raise ConfigError("a client's key must be of the kind ecdsa-sha2-nistp384 or ssh-ed25519")
    return key


def public_name(key: PublicKey) -> bytes:
    """One form of a public key, whatever the file it came from looked like."""
    return key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


@lru_cache(maxsize=4096)
def simulated_key(run: str, number: int) -> ec.EllipticCurvePrivateKey:
    """A key for a simulated client, the same in every process; whoever knows the run knows it."""
    secret = int.from_bytes(digest("simulated key", run.encode(), str(number).encode()), "big")
    return ec.derive_private_key(secret % (P256_ORDER - 1) + 1, ec.SECP256R1())


def sign(key: PrivateKey, message: bytes) -> bytes:
    """A signature with a client's long-term key."""
    return key.sign(message) if isinstance(key, Ed25519PrivateKey) else key.sign(message, ECDSA)


def signed(key: PublicKey, signature: bytes, message: bytes) -> bool:
    """Whether a signature is that of a client."""
    try:
        if isinstance(key, Ed25519PublicKey):
            key.verify(signature, message)
        else:
            key.verify(signature, message, ECDSA)
    except InvalidSignature:
        return False
    return True


def fresh(count: int) -> bytes:
    """Bytes that nobody can guess, from the operating system."""
    return os.urandom(count)


def derive(secret: bytes, label: str, context: bytes, count: int = 1) -> bytes:
    """A key of 32 bytes for one purpose, or more of them one after the other."""
    info = label.encode() + b"\0" + context
    return HKDF(hashes.SHA256(), count * KEY, salt=None, info=info).derive(secret)


def private_key(seed: bytes, context: bytes) -> X25519PrivateKey:
    """The X25519 key that follows from a seed."""
    return X25519PrivateKey.from_private_bytes(derive(seed, "x25519", context))


def public_bytes(key: X25519PrivateKey) -> bytes:
    """The public part."""
    return key.public_key().public_bytes_raw()


def agree(mine: X25519PrivateKey, theirs: bytes) -> bytes | None:
    """What two keys have in common; none with a key of small order, which has that with all."""
    try:
        return mine.exchange(X25519PublicKey.from_public_bytes(theirs))
    except ValueError:
        return None


def stream(key: bytes, length: int) -> Array:
    """`length` integers modulo 2^64 that look random to all who lack the key.

    A key is used for one stream only, so the nonce may be zero.
    """
    cipher = Cipher(algorithms.ChaCha20(key, bytes(16)), mode=None).encryptor()
    return np.frombuffer(cipher.update(bytes(8 * length)), "<u8")


def seal(key: bytes, content: bytes, about: bytes, number: int = 0) -> bytes:
    """An envelope that only the holder of the key can open or make; one of each number."""
    return ChaCha20Poly1305(key).encrypt(number.to_bytes(12, "little"), content, about)


def unseal(key: bytes, envelope: bytes, about: bytes) -> bytes | None:
    """What is in the envelope, or none if it was not made with this key for this purpose."""
    try:
        return ChaCha20Poly1305(key).decrypt(bytes(12), envelope, about)
    except InvalidTag:
        return None


def split_seed(seed: bytes, threshold: int, count: int) -> list[bytes]:
    """Shares of a seed, of which `threshold` give it back and fewer say nothing."""
    if threshold == 1:
        return [seed] * count
    return [share for _, share in Shamir.split(threshold, count, seed, ssss=False)]


def combine_seed(shares: Mapping[int, bytes], threshold: int) -> bytes:
    """The seed, from `threshold` or more shares by their place among all."""
    chosen: Sequence[tuple[int, bytes]] = sorted(shares.items())[:threshold]
    if threshold == 1:
        return chosen[0][1]
    return bytes(Shamir.combine([(place + 1, share) for place, share in chosen], ssss=False))


def tag(share: bytes) -> bytes:
    """What is announced of a share: it binds, and tells nothing of 128 random bits."""
    return hashlib.sha256(b"share\0" + share).digest()[:TAG]
