"""The wrapped primitives are what they are called, by published vectors and other libraries."""

import hmac
from itertools import combinations

import numpy as np
import pytest
from Crypto.Cipher import ChaCha20, ChaCha20_Poly1305
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from fedsofim.core.errors import ConfigError
from fedsofim.secagg import primitives as crypto


def test_key_agreement_is_that_of_rfc_7748():
    alice = bytes.fromhex("77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a")
    bob = bytes.fromhex("de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f")
    common = bytes.fromhex("4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742")
    key = X25519PrivateKey.from_private_bytes(alice)
    assert crypto.agree(key, bob) == common
    assert crypto.public_bytes(key).hex().startswith("8520f0098930a754748b7ddcb43ef75a0dbf3a0d2638")


@pytest.mark.parametrize("order", [0, 1])
def test_keys_of_small_order_agree_with_nobody(order):
    assert crypto.agree(X25519PrivateKey.generate(), order.to_bytes(32, "little")) is None


def test_the_stream_is_that_of_rfc_8439():
    """Its first vector: key, nonce and counter zero."""
    block = (
        "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
        "da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586"
    )
    assert crypto.stream(bytes(32), 8).tobytes().hex() == block


def test_stream_and_envelope_are_those_of_another_library():
    key = crypto.fresh(32)
    other = ChaCha20.new(key=key, nonce=bytes(12)).encrypt(bytes(80_000))
    assert crypto.stream(key, 10_000).tobytes() == other
    sealing = ChaCha20_Poly1305.new(key=key, nonce=bytes(12))
    sealing.update(b"about")
    assert crypto.seal(key, b"content", b"about") == b"".join(
        sealing.encrypt_and_digest(b"content")
    )
    second = ChaCha20_Poly1305.new(key=key, nonce=b"\1" + bytes(11))
    assert crypto.seal(key, b"", b"", 1) == second.digest()


def hkdf(secret, info, length):
    """RFC 5869 in its own words, with SHA-256 and no salt."""
    key, out, block = hmac.digest(bytes(32), secret, "sha256"), b"", b""
    for i in range(1, -(-length // 32) + 1):
        block = hmac.digest(key, block + info + bytes([i]), "sha256")
        out += block
    return out[:length]


def test_derived_keys_are_those_of_rfc_5869():
    vector = "8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d9d201395faa4b61a96c8"
    assert hkdf(b"\x0b" * 22, b"", 42).hex() == vector
    assert crypto.derive(b"secret", "mask", b"here") == hkdf(b"secret", b"mask\0here", 32)
    assert crypto.derive(b"secret", "seal", b"here", 2) == hkdf(b"secret", b"seal\0here", 64)


def test_an_envelope_opens_only_as_it_was_sealed():
    key, other = crypto.fresh(32), crypto.fresh(32)
    envelope = crypto.seal(key, b"content", b"about")
    assert crypto.unseal(key, envelope, b"about") == b"content"
    changed = bytes([envelope[0] ^ 1]) + envelope[1:]
    for wrong in [
        (other, envelope, b"about"),
        (key, envelope, b""),
        (key, changed, b"about"),
        (key, b"", b""),
    ]:
        assert crypto.unseal(*wrong) is None


@pytest.mark.parametrize(("threshold", "count"), [(1, 3), (2, 2), (3, 5), (5, 6)])
def test_enough_shares_give_the_seed_and_fewer_do_not(threshold, count):
    seed = crypto.fresh(16)
    shares = dict(enumerate(crypto.split_seed(seed, threshold, count)))
    for chosen in combinations(range(count), threshold):
        assert crypto.combine_seed({i: shares[i] for i in chosen}, threshold) == seed
    assert crypto.combine_seed(shares, threshold) == seed  # more than enough are no harm
    if threshold > 1:
        few = {i: shares[i] for i in range(threshold - 1)}
        assert crypto.combine_seed(few, threshold - 1) != seed


def test_shares_of_the_same_seed_differ_every_time():
    seed = crypto.fresh(16)
    many = [share for _ in range(20) for share in crypto.split_seed(seed, 3, 5)]
    assert len(set(many)) == 100


KEYS = [
    ec.generate_private_key(ec.SECP384R1()),
    ec.generate_private_key(ec.SECP256R1()),
    Ed25519PrivateKey.generate(),
]


@pytest.mark.parametrize("key", KEYS, ids=["P-384", "P-256", "Ed25519"])
def test_signatures_of_every_kind_of_key(key):
    text = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    line = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    signature, public = crypto.sign(crypto.load_key(text), b"words"), crypto.load_public(line)
    assert crypto.signed(public, signature, b"words")
    assert not crypto.signed(public, signature, b"other words")
    assert not crypto.signed(public, b"", b"words")
    assert not crypto.signed(public, b"\xff" * len(signature), b"words")
    others = [other.public_key() for other in KEYS if other is not key]
    assert not any(crypto.signed(other, signature, b"words") for other in others)


def test_other_kinds_of_keys_are_refused():
    from cryptography.hazmat.primitives.asymmetric import rsa

    key = rsa.generate_private_key(65537, 1024)
    with pytest.raises(ConfigError, match="a client's key"):
        crypto.load_key(key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    with pytest.raises(ConfigError, match="a client's key"):
        crypto.load_public(key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH))


def test_streams_differ_where_keys_do():
    one, other = crypto.stream(b"a" * 32, 100), crypto.stream(b"b" * 32, 100)
    assert not np.any(one == other)
