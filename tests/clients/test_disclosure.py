"""What a client program discloses is stated by itself, or it is refused."""

import math
from dataclasses import dataclass, replace

import pytest

from fedsofim.clients import CLIENTS, Program
from fedsofim.clients.gradient import Gradient
from fedsofim.clients.steps import LocalSteps
from fedsofim.clients.tree import Tree
from fedsofim.config.checks import check, checked_disclosure
from fedsofim.core.errors import ConfigError
from fedsofim.privacy.disclosure import Disclosure

GOOD = {"shares_noise": True, "record_moves_others": False, "uses_part": False}


def stating(**changes):
    """A gradient client that states this."""

    @dataclass(frozen=True, kw_only=True)
    class Stated(Gradient):
        disclosure = Disclosure(**{"releases": lambda n: n, **GOOD, **changes})

    return Stated()


def test_every_kind_of_client_states_its_own():
    assert all("disclosure" in vars(kind) for kind in CLIENTS.values())


def test_a_class_without_one_is_refused_when_it_is_read():
    with pytest.raises(ConfigError, match="Silent: does not state its disclosure"):

        class Silent(Program):
            def release(self, *anything):
                return anything


@pytest.mark.parametrize("base", CLIENTS.values())
def test_one_that_overrides_and_inherits_unawares_is_refused(base):
    with pytest.raises(ConfigError, match="Twice: does not state its disclosure"):
        type("Twice", (base,), {"release": lambda self, *anything: anything})


def test_nor_may_it_come_from_a_mixin():
    class Mixin:
        disclosure = Disclosure(releases=lambda n: n, **GOOD)

    with pytest.raises(ConfigError, match="Mixed: does not state"):
        type("Mixed", (Mixin, Gradient), {})


def test_one_that_says_so_may_keep_its_bases():
    class Same(Gradient):
        @property
        def disclosure(self):
            return super().disclosure

    assert Same().disclosure.releases(7) == 7


@pytest.mark.parametrize("name", ["releases", *GOOD])
def test_nothing_has_a_default(name):
    values = {"releases": lambda n: n, **GOOD}
    del values[name]
    with pytest.raises(TypeError, match=name):
        Disclosure(**values)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"releases": 3}, "releases: must be a function"),
        ({"shares_noise": 1}, "shares_noise=1: must be true or false"),
        ({"uses_part": None}, "uses_part=None: must be true or false"),
    ],
)
def test_what_cannot_be_is_refused(changes, message):
    with pytest.raises(ConfigError, match=message):
        Disclosure(**{"releases": lambda n: n, **GOOD, **changes})


@pytest.mark.parametrize(
    ("releases", "message"),
    [
        (lambda n: n + 1, "releases: 1 before the first round"),
        (lambda n: -n, "releases: -1 after round 1"),
        (lambda n: min(n, 3) - max(0, n - 3), "releases: 2 after round 4, and 3 before it"),
        (lambda n: n * math.inf if n else 0, "releases: inf after round 1"),
        (lambda n: math.nan if n == 2 else n, "releases: nan after round 2"),
        (lambda n: max(0, n - 1), "none in the first"),
    ],
)
def test_a_count_that_cannot_be_one_is_refused(releases, message):
    with pytest.raises(ConfigError, match=f"client=Stated: {message}|client=Stated: .*{message}"):
        checked_disclosure(stating(releases=releases), 5)


@pytest.mark.parametrize(
    ("changes", "overrides", "message"),
    [
        ({"releases": lambda n: 0}, (), "does not go with strategy=sofim"),
        (
            {"shares_noise": False},
            ("privacy.trust=aggregate", "aggregation=size"),
            "acts on its own releases",
        ),
        ({"record_moves_others": True}, ("privacy.adjacency=add-remove",), "replace-one"),
        ({"uses_part": True}, (), "charged to all records"),
    ],
)
def test_the_config_goes_by_what_is_stated(config_of, changes, overrides, message):
    config = config_of("strategy=sofim", *overrides)
    check(replace(config, client=stating()))
    with pytest.raises(ConfigError, match=message):
        replace(config, client=stating(**changes))


def test_the_accountant_goes_by_what_is_stated(config_of):
    config = config_of("strategy=sofim", "rounds=9")
    dear = replace(config, client=stating(releases=lambda n: 4 * n))
    assert dear.plan().releases == 36
    assert dear.plan().noise_multiplier == pytest.approx(2 * config.plan().noise_multiplier)


def test_what_the_kinds_state():
    assert Gradient().disclosure.releases(70) == 70
    assert Gradient().disclosure.shares_noise
    assert LocalSteps(lr=0.1, steps=1).disclosure.shares_noise
    assert not LocalSteps(lr=0.1, steps=2).disclosure.shares_noise
    assert Tree(rounds=8, batches=2).disclosure.record_moves_others
    assert not Tree(rounds=8).disclosure.record_moves_others
