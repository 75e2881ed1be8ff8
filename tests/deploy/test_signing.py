"""Signatures are those that Flower's SuperNode checks, and nothing else passes."""

import json
import urllib.request
from pathlib import Path

import pytest
import yaml
from flwr.supercore.fab import Fab
from flwr.supernode.start_client_internal import _verify_fab

from fedsofim.core.errors import ConfigError
from fedsofim.deploy import commands as deploy
from fedsofim.deploy import signing
from fedsofim.deploy.keys import make_key, make_signing_key

CODE = b"what clients will run"


@pytest.fixture
def signed(tmp_path: Path) -> Path:
    """A folder with a bundle that one key has signed."""
    folder = tmp_path / "signed"
    folder.mkdir()
    (folder / signing.BUNDLE).write_bytes(CODE)
    make_signing_key(tmp_path / "signer")
    signing.sign(folder, tmp_path / "signer")
    return folder


def trusted(tmp_path: Path, *names: str) -> dict[str, str]:
    file = signing.write_trusted(tmp_path / "client", [tmp_path / f"{name}.pub" for name in names])
    keys: dict[str, str] = yaml.safe_load(file.read_text())
    return keys


def verified(folder: Path, content: bytes, keys: dict[str, str]) -> bool:
    """What the SuperNode says, of what a SuperLink makes of a Hub's answer."""
    from flwr.superlink.servicer.control.control_handlers import _format_verification

    fab = Fab("", content, _format_verification(signing.signatures(folder)))
    return _verify_fab(fab, keys)


def test_flower_accepts_a_signature_for_no_other_code_or_key(tmp_path: Path, signed: Path) -> None:
    make_signing_key(tmp_path / "other")
    keys = trusted(tmp_path, "signer")
    assert verified(signed, CODE, keys)
    assert not verified(signed, CODE + b" ", keys)
    assert not verified(signed, CODE, trusted(tmp_path, "other"))
    assert verified(signed, CODE, trusted(tmp_path, "other", "signer"))


def test_a_signature_under_a_trusted_name_must_be_that_keys(tmp_path: Path, signed: Path) -> None:
    """A forger who takes over a trusted key's name still lacks the key."""
    make_signing_key(tmp_path / "forger")
    signing.sign(signed, tmp_path / "forger")
    (mine, forged) = signing.signatures(signed)
    forged["public_key_id"] = mine["public_key_id"]
    (signed / signing.SIGNATURES).write_text(json.dumps([forged]))
    assert not verified(signed, CODE, trusted(tmp_path, "signer"))


def test_several_may_sign_and_each_signs_once(tmp_path: Path, signed: Path) -> None:
    make_signing_key(tmp_path / "second")
    for name in ("second", "signer", "second"):
        signing.sign(signed, tmp_path / name)
    assert len(signing.signatures(signed)) == 2
    for name in ("signer", "second"):
        assert verified(signed, CODE, trusted(tmp_path, name))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "holds no public key, so anything would run"),
        ("\n \n", "holds no public key, so anything would run"),
        ("hello", "not a public key: 'hello'"),
        ("ssh-ed25519 AAAA", "not a public key"),
    ],
)
def test_what_is_no_key_is_not_trusted(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "keys.pub").write_text(text)
    with pytest.raises(ConfigError, match=message):
        signing.write_trusted(tmp_path / "client", [tmp_path / "keys.pub"])
    assert not (tmp_path / "client").exists()


def test_a_key_of_another_kind_is_told(tmp_path: Path, signed: Path) -> None:
    public = make_key(tmp_path / "node")
    with pytest.raises(ConfigError, match="ssh-ed25519"):
        signing.write_trusted(tmp_path, [public])
    with pytest.raises(ConfigError, match="ssh-ed25519"):
        signing.sign(signed, tmp_path / "node")
    with pytest.raises(ConfigError, match="there is no such file"):
        signing.write_trusted(tmp_path, [tmp_path / "absent.pub"])
    with pytest.raises(ConfigError, match="there is a key already"):
        make_signing_key(tmp_path / "signer")


def test_the_private_key_is_its_owners_alone(tmp_path: Path) -> None:
    make_signing_key(tmp_path / "signer")
    assert (tmp_path / "signer").stat().st_mode & 0o077 == 0


def test_the_server_hands_out_the_bundle_and_its_signatures(signed: Path) -> None:
    with signing.BundleServer(signed) as running:
        url = running.variables[signing.HUB]
        assert url.startswith("http://127.0.0.1:")
        asked = urllib.request.Request(f"{url}/hub/fetch-fab", data=b"{}")
        said = json.loads(urllib.request.urlopen(asked).read())
        assert said["verifications"] == signing.signatures(signed)
        assert urllib.request.urlopen(said["fab_url"]).read() == CODE


def test_an_unsigned_bundle_is_not_served(tmp_path: Path, signed: Path) -> None:
    (signed / signing.SIGNATURES).unlink()
    with pytest.raises(ConfigError, match="nobody has signed"):
        signing.BundleServer(signed)
    with pytest.raises(ConfigError, match="no bundle"):
        signing.BundleServer(tmp_path)


def test_a_mistake_is_told_before_a_bundle_is_made(tmp_path: Path) -> None:
    folder, app = tmp_path / "signed", tmp_path / "app"
    app.mkdir()
    make_signing_key(tmp_path / "me")
    for given, told in (
        (["--key", str(tmp_path / "absent")], "there is no such key"),
        (["--key", str(tmp_path / "me"), "--app", str(app)], "not an app's folder, as 'fedsofim a"),
    ):
        with pytest.raises(ConfigError, match=told):
            deploy.main(["sign", *given, "--dir", str(folder)])
    assert not folder.exists()


def test_the_commands_make_a_key_and_sign_the_project(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    key, folder = str(tmp_path / "me"), str(tmp_path / "signed")
    deploy.main(["key", key])
    deploy.main(["sign", "--key", key, "--dir", folder])
    told = capsys.readouterr().out
    assert "me.pub and name it with --trusted" in told
    assert "flwr run @fedsofim/fedsofim==" in told
    code = (tmp_path / "signed" / signing.BUNDLE).read_bytes()
    assert verified(tmp_path / "signed", code, trusted(tmp_path, "me"))
    deploy.main(["sign", "--key", key, "--dir", folder])
    assert (tmp_path / "signed" / signing.BUNDLE).read_bytes() == code  # signed again, not remade
