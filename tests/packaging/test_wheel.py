"""A wheel brings one name, and everything that this name needs."""

import json
import re

import pytest
import yaml

WHERE = """
import fedsofim, fedsofim.strategies, fedsofim.clients, fedsofim.data.datasets, fedsofim.conf
import json, sys
names = ("fedsofim", "fedsofim.strategies", "fedsofim.clients", "fedsofim.data", "fedsofim.conf")
print(json.dumps([list(sys.modules[name].__path__) for name in names]))
"""
SHIPPED = """
from pathlib import Path
from fedsofim.config.compose import CONF
from fedsofim.data.datasets import DatasetConfig
from fedsofim.data.recipe import BackboneConfig
from fedsofim.reports.tables import paper
import fedsofim
print(Path(fedsofim.__file__).parent.parent)
print(CONF.parent)
print(DatasetConfig(name="cifar10").embedded, BackboneConfig().file(Path()))
assert DatasetConfig(name="cifar10").file.is_file() and BackboneConfig().file(Path()).is_file()
assert len(paper("accuracy")) == 1400
"""


def ok(done):
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_it_installs_one_name_and_its_kernel(installed):
    found = {file.name.partition(".")[0].partition("-")[0] for file in installed.site.iterdir()}
    assert found - {"outer", "__pycache__"} <= {"fedsofim", "fedsofim_kernel"}
    assert (installed.site / "fedsofim" / "py.typed").is_file()
    paths = [path for (path,) in json.loads(ok(installed.run("python", "-c", WHERE)))]
    rooms = ("", "strategies", "clients", "data", "conf")
    assert paths == [str(installed.site / "fedsofim" / room) for room in rooms]


def test_it_trains_where_a_user_has_folders_of_the_same_names(installed):
    ok(installed.run("fedsofim", "run", "rounds=2", "partition.clients=3", "output.dir=mine"))
    assert (installed.work / "mine" / "summary.json").is_file()
    ok(installed.run("python", "-m", "fedsofim", "resume", "mine"))
    assert "sofim" in ok(installed.run("fedsofim", "list", "strategies"))
    tuned = ok(installed.run("fedsofim", "run", "settings=tuned", "--cfg", "job", "--resolve"))
    assert yaml.safe_load(tuned)["strategy"]["rho"] == 1


def test_without_ray_its_engine_is_refused_in_one_line(installed):
    code = "import sys; sys.modules['ray'] = None; from fedsofim.cli.main import main; main()"
    done = installed.run("python", "-c", code, "run", "engine=ray", "output.dir=none")
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line == "fedsofim: engine=ray: Ray is not installed: pip install 'fedsofim[ray]'"
    assert not (installed.work / "none").exists()


def test_a_bundle_finds_data_and_weights_in_the_installed_package(installed, bundle):
    """Flower's bundle brings the code that runs; what it lacks is with what is installed."""
    assert not list(bundle.rglob("*.npz")) + list(bundle.rglob("*.pt"))
    code, conf, found = ok(
        installed.run("python", "-c", SHIPPED, PYTHONPATH=str(bundle))
    ).splitlines()
    assert (code, conf) == (str(bundle), str(bundle))
    assert all(path.startswith(str(installed.site / "fedsofim")) for path in found.split())
    ok(installed.run("python", "-m", "fedsofim", "run", "rounds=1", PYTHONPATH=str(bundle)))


@pytest.mark.slow
def test_make_setup_prints_no_warnings_of_setuptools(in_place, root):
    lines = re.findall(
        r"^\t(.*) \$\(BIN\)/python -m pip .*--editable", (root / "Makefile").read_text(), re.M
    )
    (before,) = lines  # the one that 'make setup' and 'make dev' share
    assert in_place(**dict(word.split("=") for word in before.split())) == ""
