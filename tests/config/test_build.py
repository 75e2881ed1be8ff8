from dataclasses import dataclass, field
from typing import Literal

import pytest

from fedsofim.config.build import build, settings_of
from fedsofim.core.errors import ConfigError, choose, require
from fedsofim.core.settings import Inline


@dataclass(frozen=True, kw_only=True)
class Thing:
    number: float
    whole: int = 3
    flag: bool = False
    text: str = ""
    maybe: int | None = None
    kind: Literal["a", "b"] = "a"

    def __post_init__(self):
        require(self.number > 0, f"number={self.number}: must be > 0")


def test_whole_numbers_become_what_is_asked_for():
    thing = build(Thing, {"number": 2, "whole": 5.0}, "thing")
    assert (thing.number, type(thing.number)) == (2.0, float)
    assert (thing.whole, type(thing.whole)) == (5, int)


def test_defaults_stay():
    assert build(Thing, {"number": 1.0}, "") == Thing(number=1.0)
    assert build(Thing, {"number": 1.0, "maybe": None}, "").maybe is None
    assert build(Thing, {"number": 1.0, "maybe": 4}, "").maybe == 4
    assert build(Thing, {"number": 1.0, "text": 12}, "").text == "12"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "thing.number: a value is missing"),
        ({"number": "ten"}, "thing.number=ten: must be a number"),
        ({"number": None}, "thing.number=None: must be a number"),
        ({"number": True}, "thing.number=True: must be a number"),
        ({"number": [1]}, "thing.number=[1]: must be a number"),
        ({"number": {"a": 1}}, "must be a number"),
        ({"number": 0}, "thing.number=0.0: must be > 0"),
        ({"number": float("nan")}, "thing.number=nan: must be > 0"),
        ({"number": 1, "whole": 1.5}, "thing.whole=1.5: must be a whole number"),
        ({"number": 1, "whole": float("inf")}, "must be a whole number"),
        ({"number": 1, "whole": float("nan")}, "must be a whole number"),
        ({"number": 1, "whole": True}, "thing.whole=True: must be a whole number"),
        ({"number": 1, "whole": "3"}, "must be a whole number"),
        ({"number": 1, "flag": 1}, "thing.flag=1: must be true or false"),
        ({"number": 1, "text": [1]}, "must be a text"),
        ({"number": 1, "maybe": "x"}, "must be a whole number"),
        ({"number": 1, "kind": "c"}, "thing.kind=c: choose one of a, b"),
        ({"number": 1, "kind": ["a"]}, "choose one of a, b"),
        ({"number": 1, "numbr": 1}, "thing.numbr: no such key; did you mean number?"),
        ({"number": 1, "zzz": 1}, "thing.zzz: no such key; the keys are number, whole"),
    ],
)
def test_a_mistake_is_told_with_its_place(values, message):
    with pytest.raises(ConfigError) as error:
        build(Thing, values, "thing")
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_at_the_top_there_is_no_place():
    with pytest.raises(ConfigError, match=r"^number=0\.0: must be > 0$"):
        build(Thing, {"number": 0}, "")


def test_choose_lists_the_valid_names():
    options = {"one": 1, "two": 2}
    assert choose(options, "two", "which") == 2
    for bad in ("three", None, ["one"], 1):
        with pytest.raises(ConfigError, match="choose one of one, two"):
            choose(options, bad, "which")


@dataclass(frozen=True)
class Pace(Inline):
    speed: float
    gear: int = 1

    def __post_init__(self):
        require(self.speed > 0, f"speed={self.speed}: must be > 0")


@dataclass(frozen=True, kw_only=True)
class Car:
    pace: Pace
    wheels: int = 4


def test_what_is_held_inline_has_its_keys_beside_the_others():
    assert list(settings_of(Car)) == ["speed", "gear", "wheels"]
    car = build(Car, {"speed": 3, "wheels": 3}, "car")
    assert car == Car(pace=Pace(3.0), wheels=3)
    assert type(car.pace.speed) is float


def test_what_is_held_inline_may_have_a_default():
    @dataclass(frozen=True, kw_only=True)
    class Van:
        pace: Pace = field(default_factory=lambda: Pace(2.0, 3))

    assert build(Van, {}, "") == Van()
    assert build(Van, {"gear": 5}, "") == Van(pace=Pace(2.0, 5))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "car.speed: a value is missing"),
        ({"speed": 0}, "car.speed=0.0: must be > 0"),
        ({"speed": "fast"}, "car.speed=fast: must be a number"),
        ({"speed": 1, "pace": 1}, "car.pace: no such key; the keys are speed, gear, wheels"),
        ({"speed": 1, "gears": 1}, "car.gears: no such key; did you mean gear?"),
    ],
)
def test_a_mistake_inline_is_told_with_its_place(values, message):
    with pytest.raises(ConfigError) as error:
        build(Car, values, "car")
    assert message in str(error.value)
