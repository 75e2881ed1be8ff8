"""The keys of `flwr run --run-config`: short words for what is changed most, and `overrides`."""

import tomllib

import pytest
from flwr.app import Context, RecordDict
from flwr.common.config import flatten_dict, fuse_dicts, parse_config_args
from inprocess import InProcessGrid

from fedsofim.config.compose import CONF, compose
from fedsofim.config.overrides import names
from fedsofim.core.errors import ConfigError
from fedsofim.federation import server_app
from fedsofim.federation.run_config import OWN, SHORT, overrides_of
from fedsofim.runs.directory import RunDir


@pytest.fixture
def offered(root):
    project = tomllib.loads((root / "pyproject.toml").read_text())
    return flatten_dict(project["tool"]["flwr"]["app"]["config"])


@pytest.fixture
def run(offered, tmp_path):
    """What `flwr run --run-config TEXT` does, without its processes."""

    def main(text):
        given = fuse_dicts(offered, parse_config_args([text]))
        context = Context(1, 0, {}, RecordDict(), given)
        server_app.main(InProcessGrid.simulated(2), context)
        (place,) = tmp_path.glob("runs/*/*")
        return RunDir.open(place)

    return main


def test_by_default_nothing_is_said(offered):
    assert overrides_of(offered) == []
    assert len(offered.keys() - set(OWN)) == 10


def test_every_key_that_is_offered_stands_for_one_of_the_config(offered):
    groups = {file.name for file in CONF.iterdir()}
    known = {*names(compose([])), *groups}
    assert {SHORT.get(word, word) for word in offered.keys() - set(OWN)} <= known


def test_short_words_and_overrides_make_one_run(run, npz, tmp_path):
    place = run(
        f'strategy="fedgd" dataset="npz" path="{npz}" epsilon=2.0 delta=0.001 rounds=3 clients=4 '
        f'seed=7 output="{tmp_path}/runs" settings="published" '
        'overrides="strategy.lr=0.25 partition=iid"'
    )
    config = place.config()
    assert config["strategy"]["name"] == "fedgd"
    assert config["strategy"]["lr"] == 0.25
    assert config["privacy"]["epsilon"] == 2
    assert config["privacy"]["delta"] == 0.001
    assert config["partition"]["clients"] == 4
    assert config["partition"]["kind"] == "iid"
    assert (config["seed"], len(place.metrics())) == (7, 3)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('strategy="sofin"', "strategy=sofin: unknown; .* did you mean sofim"),
        ('dataset="pathmist"', "did you mean pathmnist"),
        ('settings="autp"', "settings=autp: unknown; choose one of auto, published, tuned"),
        ("epsilon=-1.0", "privacy.epsilon=-1.0: must be > 0"),
        ('epsilon="much"', "privacy.epsilon=much: must be a number"),
        ('overrides="epsilonn=1"', "epsilonn: no such key; did you mean privacy.epsilon"),
        ('epsilon=1.0 overrides="privacy.epsilon=2"', "privacy.epsilon is given twice"),
    ],
)
def test_a_mistake_is_one_line(run, text, told):
    with pytest.raises(ConfigError, match=told) as error:
        run(text)
    assert "\n" not in str(error.value)


def test_an_app_of_ones_own_may_have_other_keys():
    assert overrides_of({"privacy.trust": "aggregate", "aggregation": "size"}) == [
        "privacy.trust=aggregate",
        "aggregation=size",
    ]
    with pytest.raises(ConfigError, match=r"epsilom: no such key; did you mean privacy.epsilon"):
        compose(overrides_of({"epsilom": 1.0}))
    with pytest.raises(ConfigError, match=r"privacy.epsilon is given twice"):
        overrides_of({"epsilon": 1.0, "privacy.epsilon": 10.0})
