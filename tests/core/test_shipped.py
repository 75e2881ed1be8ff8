"""Where the files are that come with the package."""

import sys
from pathlib import Path

import pytest

from fedsofim.core.shipped import editable_root, shipped


def test_what_setuptools_leaves_in_a_checkout_hides_no_installation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the checkout on the path, Flower's app bundle found no features of the package's."""
    before = editable_root()
    left = tmp_path / "fedsofim.egg-info"
    left.mkdir()
    (left / "PKG-INFO").write_text("Metadata-Version: 2.1\nName: fedsofim\nVersion: 0.1.0\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    assert editable_root() == before
    assert before is None or (before / "fedsofim").is_dir()
    assert shipped("data/embedded/cifar10-resnet20.npz").is_file()
