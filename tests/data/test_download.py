"""A download is whole and right, or it is not there; its failure says what to place where."""

import hashlib
import io
import re
import tarfile
import urllib.request

import pytest
from image_sets import write_npz

from fedsofim.core.errors import ConfigError
from fedsofim.data.catalog import locate
from fedsofim.data.datasets import DatasetConfig
from fedsofim.data.download import download
from fedsofim.data.recipe import HUB_WEIGHTS, BackboneConfig
from fedsofim.data.vision import optional, torchvision


@pytest.fixture
def served(tmp_path):
    file = tmp_path / "served.bin"
    file.write_bytes(bytes(range(256)) * 12_000)
    return file, hashlib.md5(file.read_bytes()).hexdigest()


def test_a_download_arrives_and_shows_its_progress(served, tmp_path):
    file, md5 = served
    seen = []
    target = tmp_path / "new" / "here.bin"
    download(file.as_uri(), target, f"md5:{md5}", lambda *progress: seen.append(progress))
    assert target.read_bytes() == file.read_bytes()
    assert len(seen) == 3
    assert seen[-1] == ("downloading here.bin", 3_072_000, 3_072_000)
    assert [p.name for p in target.parent.iterdir()] == ["here.bin"]


def failing(call, target):
    with pytest.raises(ConfigError) as error:
        call()
    told = str(error.value)
    assert "\n" not in told
    assert f"place {target.name}" in told
    assert str(target.parent) in told
    assert not target.exists()
    assert list(target.parent.glob(".*")) == []
    return told


def test_a_wrong_checksum_leaves_nothing(served, tmp_path):
    target = tmp_path / "to" / "here.bin"
    told = failing(lambda: download(served[0].as_uri(), target, "md5:0123"), target)
    assert f"its md5 is {served[1]}" in told


def test_no_such_file_is_told(tmp_path):
    target = tmp_path / "to" / "here.bin"
    failing(lambda: download((tmp_path / "no").as_uri(), target, "md5:0"), target)


class Answer(io.BytesIO):
    """An answer whose connection ends, or fails, early."""

    headers = {"Content-Length": "4000000"}  # noqa: RUF012
    error = None

    def read(self, size=-1):
        if not (content := super().read(size)) and self.error:
            raise self.error
        return content


@pytest.mark.parametrize("error", [None, TimeoutError("timed out"), ConnectionResetError("reset")])
def test_a_truncated_download_is_told_and_leaves_nothing(monkeypatch, tmp_path, error):
    answer = Answer(b"only the beginning")
    answer.error = error
    monkeypatch.setattr(urllib.request, "urlopen", lambda url, timeout: answer)
    target = tmp_path / "to" / "here.bin"
    told = failing(lambda: download("https://x.org/here.bin", target, "md5:0"), target)
    assert ("18 of 4000000 bytes" if error is None else str(error)) in told


def test_medmnist_is_downloaded_only_when_allowed(monkeypatch, tmp_path):
    file = write_npz(tmp_path / "away" / "bloodmnist.npz")
    info = optional("medmnist").INFO["bloodmnist"]
    monkeypatch.setitem(info, "url", file.as_uri())
    monkeypatch.setitem(info, "MD5", hashlib.md5(file.read_bytes()).hexdigest())
    with pytest.raises(ConfigError, match=r"dataset\.download=true"):
        locate(DatasetConfig(name="bloodmnist"), tmp_path / "cache")
    found = locate(DatasetConfig(name="bloodmnist", download=True), tmp_path / "cache")
    assert found.files == [tmp_path / "cache" / "images" / "bloodmnist.npz"]
    assert found.open().classes.count == 8
    assert "CC BY 4.0" in found.licence()


def test_a_truncated_medmnist_is_not_kept(monkeypatch, tmp_path):
    file = write_npz(tmp_path / "away" / "bloodmnist.npz")
    info = optional("medmnist").INFO["bloodmnist"]
    monkeypatch.setitem(info, "url", file.as_uri())
    monkeypatch.setitem(info, "MD5", hashlib.md5(file.read_bytes()).hexdigest())
    file.write_bytes(file.read_bytes()[:-1000])
    with pytest.raises(ConfigError, match=re.escape("bloodmnist.npz")):
        locate(DatasetConfig(name="bloodmnist", download=True), tmp_path)
    assert not (tmp_path / "images" / "bloodmnist.npz").exists()


def test_a_downloaded_cifar_is_unpacked_by_torchvision(monkeypatch, tmp_path):
    archive = tmp_path / "away.tar.gz"
    with tarfile.open(archive, "w:gz") as packed:
        for name in ("data_batch_1", "test_batch"):
            member = tarfile.TarInfo(f"cifar-10-batches-py/{name}")
            packed.addfile(member)
    dataset = torchvision("datasets").CIFAR10
    monkeypatch.setattr(dataset, "url", archive.as_uri())
    monkeypatch.setattr(dataset, "tgz_md5", hashlib.md5(archive.read_bytes()).hexdigest())
    empty = hashlib.md5(b"").hexdigest()
    monkeypatch.setattr(dataset, "train_list", [["data_batch_1", empty]])
    monkeypatch.setattr(dataset, "test_list", [["test_batch", empty]])
    config = DatasetConfig(name="cifar10", download=True)
    with pytest.raises(ConfigError, match="incomplete or damaged"):  # torchvision's reading
        locate(config, tmp_path).open()
    files = locate(config, tmp_path).files
    assert [f.name for f in files] == ["data_batch_1", "test_batch"]


def test_hub_weights_are_fetched_only_when_allowed_and_checked(monkeypatch, served, tmp_path):
    with pytest.raises(ConfigError, match=r"place cifar100_vgg16_bn-7d8c4031\.pt .* in "):
        BackboneConfig(name="vgg16", weights="hub").file(tmp_path)
    allowed = BackboneConfig(name="vgg16", weights="hub", download=True)
    monkeypatch.setitem(HUB_WEIGHTS, "vgg16", served[0].as_uri())
    with pytest.raises(ConfigError, match="failed"):
        allowed.file(tmp_path / "cache")
    sha = hashlib.sha256(served[0].read_bytes()).hexdigest()[:8]
    right = served[0].rename(tmp_path / f"cifar100_vgg16_bn-{sha}.pt")
    monkeypatch.setitem(HUB_WEIGHTS, "vgg16", right.as_uri())
    assert allowed.file(tmp_path / "cache").read_bytes() == right.read_bytes()
    monkeypatch.setattr(urllib.request, "urlopen", None)  # a second time needs no network
    assert allowed.file(tmp_path / "cache").is_file()
