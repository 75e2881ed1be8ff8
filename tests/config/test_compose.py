"""Every file under `conf/` composes into a config that the program accepts."""

import math

import pytest

from fedsofim.clients import CLIENTS
from fedsofim.config.compose import CONF, compose, make_absolute
from fedsofim.config.schema import parse
from fedsofim.core.errors import ConfigError
from fedsofim.strategies import STRATEGIES

GROUPS = {
    folder.name: sorted(file.stem for file in folder.glob("*.yaml"))
    for folder in sorted(CONF.iterdir())
    if folder.is_dir() and any(folder.glob("*.yaml"))
}


def rule_of():
    """A strategy for each kind of client: one that needs more of the server goes with its own."""
    names = {kind: name for name, kind in CLIENTS.items()}
    kinds = {name: type(parse(compose([f"strategy={name}"])).client) for name in STRATEGIES}
    return {names[kind]: strategy for strategy, kind in kinds.items()}


RULE_OF = rule_of()


def overrides(group, option):
    rule = [f"strategy={RULE_OF[option]}"] if group == "client" else []
    needs = {
        "npz": ["dataset.path=some.npz"],
        "table": ["dataset.path=some.csv"],
        "hf": ["dataset.hub=some/set", "settings=published"],
        "folder": ["dataset.root=some"],
        "owners": ["dataset.classes=3"],
        "oracle": ["privacy=none"],
        "text": ["model.vocabulary=100"],
        "module": ["model.factory=some.module:make"],
        "table5": ["dataset.path=some.npz"],
        "table6": ["dataset.path=some.npz"],
        "natural": ["partition.clients=3"],  # else they are counted in the file
    }
    return [*rule, f"{group}={option}", *needs.get(option, [])]


@pytest.mark.parametrize(
    ("group", "option"), [(g, o) for g, names in GROUPS.items() for o in names]
)
def test_every_option_of_every_group(group, option):
    values = compose(overrides(group, option))
    parse(values)
    assert "settings" not in values["strategy"]
    assert "hydra" not in values


@pytest.mark.parametrize(
    ("strategy", "client"), [("fedgd", "alone"), ("fedavg", "alone"), ("alone", "gradient")]
)
def test_clients_and_servers_that_do_not_fit_are_refused(strategy, client):
    with pytest.raises(ConfigError, match="does not go with"):
        parse(compose([f"strategy={strategy}", f"client={client}"]))


def test_all_paths_are_made_absolute(tmp_path):
    (tmp_path / "w.pt").write_bytes(b"")
    asked = {"dataset": {"path": "a.npz", "root": None}, "features": {"cache": "c"}}
    asked |= {"backbone": {"weights": "w.pt"}, "transform": {"probes": "pink"}}
    make_absolute(asked, tmp_path)
    assert asked["dataset"] == {"path": str(tmp_path / "a.npz"), "root": None}
    assert asked["features"]["cache"] == str(tmp_path / "c")
    assert asked["backbone"]["weights"] == str(tmp_path / "w.pt")
    assert asked["transform"]["probes"] == "pink"  # a word, not a file


def test_every_name_has_a_file_and_every_file_a_name():
    assert set(GROUPS["strategy"]) == set(STRATEGIES)
    assert set(GROUPS["client"]) == set(CLIENTS)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("epsilon", [1e-6, 1.0, math.inf])
def test_every_strategy_has_settings_for_every_budget(strategy, epsilon):
    config = parse(compose([f"strategy={strategy}", f"privacy.epsilon={epsilon}"]))
    assert config.epsilon() <= epsilon


def test_a_composed_config_is_plain():
    def plain(value):
        if isinstance(value, dict):
            return all(isinstance(k, str) and plain(v) for k, v in value.items())
        return value is None or isinstance(value, str | int | float | bool)

    for strategy in STRATEGIES:
        assert plain(compose([f"strategy={strategy}"]))
