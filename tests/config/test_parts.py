"""Parts of the user's own: found by name, checked, and carried to every process."""

import json
import shutil
import sys
from dataclasses import dataclass, replace

import numpy as np
import pytest

from fedsofim.clients import CLIENTS
from fedsofim.clients.gradient import Gradient
from fedsofim.config import parts
from fedsofim.config.compose import compose, compose_many, expand
from fedsofim.config.schema import parse
from fedsofim.core.errors import ConfigError
from fedsofim.core.rate import Rate
from fedsofim.models.metrics import Metric
from fedsofim.strategies import STRATEGIES
from fedsofim.strategies.rule import Empty, Rule
from fedsofim.strategies.sofim import Sofim

HEADER = """
from dataclasses import dataclass
from typing import Literal, Optional
import numpy as np
from fedsofim.clients.gradient import Gradient
from fedsofim.core.errors import require
from fedsofim.core.rate import Rate
from fedsofim.models.metrics import Metric
from fedsofim.privacy.disclosure import Disclosure
from fedsofim.strategies.rule import Empty, Rule
"""
RULE = """
@dataclass(frozen=True, kw_only=True)
class Mine(Rule):
    '''A rule of my own.

    Attributes:
        power: how strong it is.
    '''
    rate: Rate
    power: float = 1.0
    way: Literal["up", "down"] = "down"
    limit: Optional[int] = None

    def __post_init__(self):
        require(self.power > 0, f"power={self.power}: must be > 0")

    def init(self, theta):
        return Empty()

    def update(self, buffers, G, t, rounds):
        return buffers, self.rate.at(t, rounds) * self.power * G
"""
DISCLOSED = "disclosure = Disclosure(releases=lambda n: n, shares_noise=True, "
DISCLOSED += "record_moves_others=False, uses_part=False)"


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Write a module of the user's into the folder from which the program is started."""
    monkeypatch.setattr(sys, "path", [*sys.path])

    def write(name, code, header=HEADER):
        (tmp_path / f"{name}.py").write_text(header + code)
        monkeypatch.chdir(tmp_path)
        monkeypatch.delitem(sys.modules, name, raising=False)
        return name

    return write


@pytest.fixture
def mine(module):
    return [f"strategy={module('mine_rule', RULE)}:Mine", "strategy.lr=0.5"]


EXAMPLES = ["strategy", "client", "dataset", "partition", "transform", "model", "metric"]


def test_there_is_a_short_example_of_each_kind(root):
    files = {file.stem: file for file in (root / "examples").glob("*.py")}
    assert set(files) == set(EXAMPLES) == set(parts.GROUPS)
    assert all(len(file.read_text().splitlines()) < 30 for file in files.values())


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_does_what_its_first_lines_say(name, root, cli, tmp_path, small):
    text = (root / "examples" / f"{name}.py").read_text()
    (command,) = (li.split()[1:] for li in text.splitlines() if li.startswith("fedsofim run"))
    shutil.copy(root / "examples" / f"{name}.py", tmp_path)
    here = [o for o in small if not any(c.startswith(o.partition("=")[0] + "=") for c in command)]
    here = here[2:] if name == "dataset" else here
    done = cli(*command, *here, "output.dir=out")
    assert done.returncode == 0, done.stderr
    assert len((tmp_path / "out" / "metrics.jsonl").read_text().splitlines()) == 6


def test_a_rule_of_ones_own_trains_as_the_projects_would(mine, small):
    ours, theirs = (parse(compose([*small, *o])) for o in (mine, ["strategy=fedgd"]))
    theirs = replace(theirs, strategy=replace(theirs.strategy, rate=Rate(0.5)))
    G = np.arange(6.0).reshape(2, 3)
    for config in (ours, theirs):
        assert type(config.client) is Gradient
        np.testing.assert_array_equal(config.strategy.update(Empty(), G, 0, 6)[1], 0.5 * G)
    assert ours.plan() == theirs.plan()
    assert ours.name == "Mine-npz-eps10-seed0"


def test_its_fields_are_keys_with_help(mine, inside):
    page = inside("run", *mine, "--help").stdout
    assert "strategy=mine_rule:Mine" in page
    assert "A rule of my own." in page
    assert "strategy.power=1.0" in page
    assert "how strong it is." in page
    assert "strategy.way=down" in page


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("strategy.power=0", "strategy.power=0.0: must be > 0"),
        ("strategy.power=big", "strategy.power=big: must be a number"),
        ("strategy.pwer=1", "strategy.pwer: no such key; did you mean strategy.power?"),
        ("strategy.way=left", "strategy.way=left: choose one of up, down"),
        ("strategy.limit=1.5", "strategy.limit=1.5: must be a whole number"),
        ("strategy.lr=0", "strategy.lr=0.0: must be a finite number > 0"),
    ],
)
def test_its_keys_are_checked(mine, inside, small, override, message):
    done = inside("run", *mine, *small, override)
    assert (done.returncode, done.stderr.strip()) == (2, f"fedsofim: {message}")


def test_a_key_without_a_default_must_be_given(mine, inside, small):
    done = inside("run", mine[0], *small)
    assert done.stderr.strip() == "fedsofim: strategy.lr: a value is missing"


CLASS = "@dataclass(frozen=True, kw_only=True)\nclass C"
WRONG = {
    "strategy=no.such:Rule": ("", "there is no module no"),
    "strategy=wrong_part:Missing": ("", "wrong_part has no Missing"),
    "strategy=wrong_part:Rul": ("", "did you mean Rule?"),
    "strategy=wrong_part:": ("", "must be package.module:Name"),
    "strategy=wrong_part:np": ("", "must be a class derived from fedsofim.strategies.rule.Rule"),
    "strategy=wrong_part:Gradient": ("", "must be a class derived from fedsofim.strategies"),
    "client=wrong_part:Rule": ("", "must be a class derived from fedsofim.clients.program"),
    "dataset=wrong_part:Rule": ("", "must be a class derived from fedsofim.data.own.Data"),
    "partition=wrong_part:Rule": ("", "fedsofim.data.partition.Division"),
    "transform=wrong_part:Rule": ("", "fedsofim.transforms.kfc.Transform"),
    "model=wrong_part:Rule": ("", "fedsofim.models.kinds.Model"),
    "metric=wrong_part:Rule": ("", "fedsofim.models.metrics.Metric"),
    "strategy=wrong_part:C": ("import nowhere_at_all", "cannot be imported (No module named"),
    "strategy=wrong_part:D": ("1 / 0", "cannot be imported (ZeroDivisionError: division by zero)"),
    "strategy=wrong_part:E": ("def (", "cannot be imported (SyntaxError"),
    "strategy=wrong_part:Rule": ("", "does not define init, update"),
    "client=wrong_part:C": (f"{CLASS}(Gradient): pass", "C: does not state its disclosure"),
    "client=wrong_part:D": (f"class D(Gradient):\n    a: int = 1\n    {DISCLOSED}", "@dataclass("),
    "metric=wrong_part:C": (f"{CLASS}(Metric):\n    a: dict = None", "a is of type"),
    "strategy=__main__:Mine": ("", "other processes cannot import it; move it to a module"),
    "metric=wrong_part:E": (f"{CLASS[:-1]}E(Metric):\n    name: str = 'a'", "name has a meaning"),
    "metric=wrong_part:D": ("class D(Metric):\n    a: int = 1", "must be a dataclass"),
}


@pytest.mark.parametrize("override", WRONG)
def test_what_is_wrong_with_it_is_told_in_one_line(module, inside, override):
    code, message = WRONG[override]
    module("wrong_part", code)
    done = inside("run", override)
    assert done.returncode == 2
    assert done.stderr.startswith("fedsofim: " + override)
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_name_that_nobody_knows_lists_those_that_are(inside):
    done = inside("run", "strategy=nobody")
    assert "strategy=nobody: unknown; choose one of adafedprox" in done.stderr


def test_a_file_here_hides_no_installed_module(module):
    module("json", "class Mine: pass", header="")
    with pytest.raises(ConfigError, match="json has no Mine"):
        parts.find("strategy", "json:Mine")


def test_a_client_of_ones_own_is_charged_for_what_it_states(module, small):
    dear = DISCLOSED.replace("lambda n: n", "lambda n: 4 * n")
    name = module("mine_client", f"{CLASS}(Gradient):\n    extra: int = 3\n    {dear}")
    config = parse(compose([*small, f"client={name}:C", "client.extra=5"]))
    assert config.client.extra == 5
    assert config.plan().releases == 24


def test_a_package_may_offer_parts_by_name(module, tmp_path, inside, small):
    module("mine_offered", RULE)
    folder = tmp_path / "offers-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: offers\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text("[fedsofim.strategies]\ntheirs = mine_offered:Mine\n")
    sys.path.append(str(tmp_path))
    config = parse(compose([*small, "strategy=theirs", "strategy.lr=0.5"]))
    assert type(config.strategy).__name__ == "Mine"
    assert json.loads(config.text)["strategy"]["name"] == "theirs"
    assert parse(json.loads(config.text)).strategy == config.strategy
    assert "strategy.power=1.0" in inside("run", "strategy=theirs", "--help").stdout


def test_a_sweep_takes_both_kinds(mine, small):
    grid = expand([*small, "strategy=mine_rule:Mine,fedgd", "strategy.lr=0.1,0.2"])
    configs = [parse(values) for values in compose_many(grid)]
    assert [c.strategy_name for c in configs] == ["mine_rule:Mine"] * 2 + ["fedgd"] * 2
    assert [c.strategy.rate.lr for c in configs] == [0.1, 0.2] * 2


@dataclass(frozen=True, kw_only=True)
class Handed(Rule):
    rate: Rate
    power: float = 2.0

    def init(self, theta):
        return Empty()

    def update(self, buffers, G, t, rounds):
        return buffers, G


def test_a_class_or_an_instance_may_be_handed_over(small):
    @dataclass(frozen=True, kw_only=True)
    class Local(Metric):
        share: float = 0.5

    values = compose(small)
    values["strategy"] = parts.section("strategy", Handed(rate=Rate(0.3, "linear"), power=3.0))
    values["metric"] = parts.section("metric", Local)
    config = parse(json.loads(json.dumps(values)))
    assert config.strategy == Handed(rate=Rate(0.3, "linear"), power=3.0)
    assert config.metric == Local()
    assert parts.section("strategy", Handed) == {
        "name": f"{Handed.__module__}:Handed",
        "lr": "???",
        "schedule": "constant",
        "power": 2.0,
        "l2": 0.0,  # every rule has it
    }
    ours = Sofim(rate=Rate(0.8), rho=0.5, beta=0.9)
    assert parts.section("strategy", ours)["name"] == "sofim"
    assert parts.section("client", Gradient) == {"name": "gradient"}
    with pytest.raises(ConfigError, match="must be a class derived from"):
        parts.section("client", Handed)


def test_the_conf_files_and_the_rules_name_the_same_clients():
    for name, rule in STRATEGIES.items():
        if name != "fedavg_finetune":  # FedAvg's rule, with another client
            assert type(parse(compose([f"strategy={name}"])).client) is CLIENTS[rule.client]


def test_a_metric_may_not_take_the_name_of_another(module, inside, small):
    code = f"{CLASS}(Metric):\n    def measure(self, labels, predicted): return {{'loss': 1.0}}"
    done = inside("run", f"metric={module('mine_metric', code)}:C", *small)
    assert done.returncode == 2
    assert "metric=C: loss is measured already" in done.stderr


def test_own_parts_are_listed_without_an_import():
    values = {"strategy": {"name": "nowhere:Rule"}, "partition": {"kind": "a.b:C"}, "model": None}
    assert list(parts.own_parts(values)) == ["partition=a.b:C", "strategy=nowhere:Rule"]


@pytest.mark.slow
def test_ray_carries_it(cli, tmp_path, module, small):
    overrides = [f"strategy={module('mine_ray', RULE)}:Mine", "strategy.lr=0.5", *small]
    for name in ("local", "ray"):
        # Ray's workers are niced: on a busy machine they take minutes to come up.
        done = cli("run", *overrides, f"engine={name}", f"output.dir={name}", seconds=600)
        assert done.returncode == 0, done.stderr
    local, ray = (np.load(tmp_path / name / "model.npz")["theta"] for name in ("local", "ray"))
    np.testing.assert_array_equal(local, ray)
