"""Settings from Python are those of the command line, by the same names."""

import math

import numpy as np
import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import given
from hypothesis import strategies as st

from fedsofim import Config
from fedsofim.api.config import GROUPS, PLAIN, WORDS, Words, text
from fedsofim.config.compose import compose
from fedsofim.core.errors import ConfigError
from fedsofim.runs.record import dotted
from fedsofim.strategies import STRATEGIES


@pytest.mark.parametrize(
    ("config", "overrides"),
    [
        (Config(), []),
        (Config(strategy="fedgd", epsilon=1, rounds=3), ["strategy=fedgd", "privacy.epsilon=1",
                                                         "rounds=3"]),
        (Config({"strategy.lr": 0.3}), ["strategy.lr=0.3"]),
        (Config({"strategy": {"name": "fedadam", "lr": 0.3}}), ["strategy=fedadam",
                                                                "strategy.lr=0.3"]),
        (Config(privacy="none", clients=7), ["privacy=none", "partition.clients=7"]),
        (Config({"privacy": {"epsilon": math.inf}}), ["privacy.epsilon=inf"]),
        (Config(Config(rounds=3), seed=1), ["rounds=3", "seed=1"]),
        (Config({"rounds": 3}, rounds=5), ["rounds=5"]),
        (Config(rounds=np.int64(3), epsilon=np.float64(0.5)), ["rounds=3", "privacy.epsilon=0.5"]),
        (Config(engine="ray", **{"engine.cpus": 2}), ["engine=ray", "engine.cpus=2"]),
        (Config({"output": {"checkpoint_every": 3}}), ["output.checkpoint_every=3"]),
    ],
)  # fmt: skip
def test_the_same_names_give_the_same_config(config, overrides):
    assert config.values == compose(overrides)
    assert config == Config.of(compose(overrides))


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_key_can_be_given_and_read(strategy):
    config = Config(strategy=strategy)
    known = dict(dotted(config.values))
    for key, value in known.items():
        assert config[key] == value
    again = Config({key: value for key, value in known.items() if not key.endswith(".name")},
                   strategy=strategy)  # fmt: skip
    assert again == config


@pytest.mark.parametrize("strategy", ["sofim", "ftrl", "pfedsop"])
def test_a_config_that_was_read_can_be_changed(strategy):
    values = compose([f"strategy={strategy}", "partition=iid", "privacy.epsilon=3", "seed=4"])
    assert Config(Config.of(values)) == Config.of(values)
    assert Config(Config.of(values), seed=5)["seed"] == 5


def test_the_settings_that_were_tuned_can_be_asked_for():
    assert Config(settings="tuned").values == compose(["settings=tuned"])
    assert Config(settings="tuned") != Config()


def test_every_keyword_is_known_to_type_checkers():
    taken = {"output"}  # run() has a parameter of this name
    assert Words.__annotations__.keys() == {*WORDS, *PLAIN, *GROUPS} - taken


def test_short_words_stand_for_keys_that_exist():
    known = dict(dotted(Config().values))
    assert set(WORDS.values()) <= known.keys()
    assert {key.partition(".")[0] for key in known} <= {*PLAIN, *GROUPS}
    for word, key in WORDS.items():
        assert Config()[word] == known[key]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"epsilom": 1}, "epsilom: no such key; did you mean epsilon?"),
        ({"round": 1}, "round: no such key; did you mean rounds?"),
        ({"stratgy": "sofim"}, "stratgy: no such key; did you mean strategy?"),
        ({"strategy.lrr": 1}, "strategy.lrr: no such key; did you mean strategy.lr?"),
        ({"strategy": {"name": "sofim", "roh": 1}}, "did you mean strategy.rho?"),
        ({"zzzzz": 1}, "zzzzz: no such key; 'fedsofim run --help' has all"),
        ({"strategy": "sofimm"}, "strategy=sofimm: unknown; choose one of"),
        ({"epsilon": 0}, "privacy.epsilon=0.0: must be > 0"),
        ({"rounds": 1.5}, "rounds=1.5: must be a whole number"),
        ({"rounds": {1, 2}}, "not a number, a text, or a list"),
    ],
)
def test_mistakes_are_told_in_one_line(given, told):
    with pytest.raises(ConfigError) as error:
        Config(given)
    assert told in str(error.value)
    assert "\n" not in str(error.value)
    with pytest.raises(ConfigError, match=r"did you mean strategy\.lr"):
        Config()["strategy.lrr"]


@given(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(10**12), 10**12),
        st.floats(allow_nan=False),
        st.lists(st.integers(), max_size=3),
        st.text(st.characters(codec="utf-8", exclude_categories=["C"])),
        st.sampled_from(["null", "True", "1e5", "-inf", "12", "a b", "it's", "a\\", "a,b", "[1]"]),
    )
)
def test_values_survive_the_way_through_the_command_line(value):
    (override,) = OverridesParser.create().parse_overrides([f"key={text(value)}"])
    parsed = override.value()
    if isinstance(value, str):
        assert str(getattr(parsed, "text", parsed)) == value
    else:
        assert parsed == value
        assert type(parsed) is type(value)


def test_a_class_is_named_by_where_it_is():
    assert text(STRATEGIES["sofim"]) == "fedsofim.strategies.sofim:Sofim"
