"""torchvision is importable beside any torch, and torch is not imported where it is not needed."""

import subprocess
import sys

import pytest

from fedsofim.core.errors import ConfigError
from fedsofim.data import vision


def python(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def test_torchvision_is_importable_and_operators_are_declared_only_where_that_fails():
    done = python(
        "try:\n    import torchvision; works = True\n"
        "except RuntimeError:\n    works = False\n"
        "import data.vision as vision\n"
        "first = vision.torchvision('datasets')\n"
        "assert vision.torchvision('datasets') is first\n"
        "import torchvision as plain\n"
        "assert plain.datasets is first\n"
        "print(first.CIFAR10.__name__, works, len(vision._declared))"
    )
    assert done.stdout.split() in (["CIFAR10", "True", "0"], ["CIFAR10", "False", "1"]), done.stderr


def test_another_failure_is_not_hidden(monkeypatch):
    def fail(name):
        raise RuntimeError("something else")

    monkeypatch.setattr(vision, "optional", fail)
    with pytest.raises(RuntimeError, match="something else"):
        vision.torchvision()


def test_a_missing_package_is_told_with_the_extra():
    with pytest.raises(ConfigError, match=r"nosuchmodule.*pip install 'fedsofim\[vision\]'"):
        vision.optional("nosuchmodule")


@pytest.mark.parametrize(
    "modules",
    [
        "fedsofim.data.datasets, fedsofim.data.partition",
        "fedsofim.data.features, fedsofim.data.recipe",
        "fedsofim.runs.session",
    ],
)
def test_features_are_used_without_torch(modules):
    done = python(
        f"import {modules}, sys\n"
        "print(*({'torch', 'torchvision', 'medmnist', 'PIL'} & set(sys.modules)))"
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []
