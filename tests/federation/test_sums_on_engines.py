"""Clients that share their noise: the same run on every engine, from sums that were never apart."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from inprocess import InProcessGrid
from test_contract import same

from fedsofim.clients.alone import Alone
from fedsofim.clients.ditto import Ditto
from fedsofim.clients.finetune import FineTune
from fedsofim.clients.pfedsop import PFedSOP
from fedsofim.config.schema import parse
from fedsofim.core.errors import ConfigError
from fedsofim.engines.flower import flower_engine
from fedsofim.federation.messages import undecoded
from fedsofim.runs import session
from fedsofim.runs.experiment import prepare
from fedsofim.strategies import STRATEGIES

Values = Callable[..., dict[str, Any]]
TOGETHER = ("privacy.trust=aggregate", "aggregation=size", "seed=3")
# Methods whose clients act on their own releases, with the settings under which they do not.
ONE_STEP = {"fedavg", "adafedprox", "fedavg_finetune"}
NEVER = {"scaffold", "pfedsop", "alone"}
# As few vanish as are borne, or nobody; some in a round; a tree that spans rounds.
WAYS = {
    "sofim": ["secagg.threshold=4"],
    "fedgd": ["secagg.threshold=4", "participation=0.8", "secagg.threshold=3"],
    "ridge": ["transform.radius=4"],
    "fedfc": ["secagg.threshold=3", "transform=private", "transform.radius=4"],
}


def sharing(name: str) -> list[str]:
    steps = ["client.steps=1"] if name in ONE_STEP else []
    return [f"strategy={name}", *TOGETHER, *steps, *WAYS.get(name, [])]


@pytest.mark.parametrize("name", [name for name in STRATEGIES if name not in NEVER])
def test_flower_gives_the_local_run(name: str, values: Values) -> None:
    local = session.run(values(*sharing(name)))
    grid = InProcessGrid.simulated(2)
    flower = session.run(values(*sharing(name), "engine=flower"), engine=flower_engine(grid))
    same(local, flower)


@pytest.mark.parametrize("name", sorted(NEVER))
def test_who_acts_on_its_own_release_is_refused(name: str, values: Values) -> None:
    with pytest.raises(ConfigError, match=r"which the shared noise does not hide|needs aggreg"):
        parse(values(f"strategy={name}", *TOGETHER))


def test_everybody_or_nobody_is_one_exchange_a_round(values: Values) -> None:
    """The keys of a round travel with the masked numbers of the one before."""
    grid = InProcessGrid.simulated(1)
    session.run(values(*sharing("fedadam"), "engine=flower"), engine=flower_engine(grid))
    asked = [m for m in grid.asked if "words" in undecoded(m.content)[1]]
    assert len(asked) == 1 + 4  # the first keys, and four rounds


def test_where_some_may_vanish_it_is_three(values: Values) -> None:
    """The next round's shares come with the signatures and with the seeds, half of them each."""
    grid = InProcessGrid.simulated(1)
    given = values(*sharing("sofim"), "engine=flower")
    session.run(given, engine=flower_engine(grid))
    said = [undecoded(m.content)[1] for m in grid.asked]
    asked = [values["words"] for values in said if "words" in values]
    assert len(asked) == 2 + 3 * 4  # the first keys and shares, and four rounds
    kinds = [[words[:1] for words in questions] for questions in asked[5:8]]  # the second round
    mask, sign, unmask, share, advert = (bytes([stage]) for stage in (3, 4, 5, 2, 1))
    assert kinds == [
        [mask, advert] * 5,
        [sign, share, sign, b"", sign, share, sign, b"", sign, share],
        [unmask, b"", unmask, share, unmask, b"", unmask, share, unmask, b""],
    ]


def test_exact_noise_may_be_shared(values: Values) -> None:
    chosen = ["strategy=ftrl", *TOGETHER, "privacy.noise=exact"]
    for more in ({}, {"engine": flower_engine(InProcessGrid.simulated(2))}):
        given = [*chosen, "engine=flower"] if more else chosen
        place = session.run(values(*given), **more)
        assert np.load(place.path / "checkpoint.npz")["clients.nodes"].dtype == np.int64
        assert np.isfinite(np.load(place.path / "model.npz")["theta"]).all()


def test_the_threshold_decides_each_clients_part(values: Values) -> None:
    """Of five, three must be left and one may collude: each adds half of what is needed."""
    plain = parse(values("strategy=fedgd", *TOGETHER)).plan()
    config = parse(values("strategy=fedgd", *TOGETHER, "secagg.threshold=4", "secagg.colluders=2"))
    assert (plain.sharers, config.plan().sharers) == (5, 2)
    z = config.plan().noise_multiplier
    assert config.plan().client_noise_multiplier == pytest.approx(z / np.sqrt(2), rel=1e-12)
    assert config.plan().epsilon() == pytest.approx(10)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("secagg.threshold=6", "secagg.threshold=6: of 5 clients so many cannot be left"),
        ("secagg.threshold=2", "show two lists of survivors"),
        ("secagg.colluders=4", "must exceed secagg.colluders=4"),
        ("secagg.threshold=1", "threshold=1: must be at least 2"),
        ("engine=flower engine.min_clients=3 secagg.threshold=4", "no sum of fewer than"),
        ("partition.clients=1", "nobody to share noise with"),
        ("privacy.clip=inf privacy.epsilon=inf", "give a finite clip"),
        ("secagg.neighbours=3", "secagg.neighbours=3: as many on each side"),
    ],
)
def test_what_cannot_be_kept_is_refused(override: str, message: str, values: Values) -> None:
    with pytest.raises(ConfigError, match=message):
        parse(values("strategy=fedgd", *TOGETHER, *override.split()))


def test_a_program_that_does_not_say_what_it_adds_is_refused(values: Values) -> None:
    from fedsofim.clients.gradient import Gradient

    class Loud(Gradient):
        disclosure = Gradient.disclosure

        def release(self, *given: Any) -> Any:
            released, state = super().release(*given)
            return 2 * released, state

    assert Gradient().contributes
    assert not Loud().contributes
    with pytest.raises(ConfigError, match="Loud: does not say what it adds to a sum"):
        Loud().contribute({}, [], None, parse(values()).plan(), parse(values()).noise(0))


def test_who_sends_something_of_its_own_adds_nothing_that_its_base_would() -> None:
    """pFedSOP's and `alone`'s is no drift from the common model; Ditto's and FineTune's is."""
    own = {"lr": 0.1, "steps": 1}
    tune = {"tune_lr": 0.1, "tune_steps": 1}
    assert not PFedSOP(**own, **tune).contributes
    assert not Alone(**own).contributes
    assert FineTune(**own, **tune).contributes
    assert Ditto(**own, own_lr=0.1, own_steps=1, pull=1.0).contributes


def test_rounding_to_the_grid_changes_next_to_nothing(values: Values) -> None:
    """Fast sums on the grid, beside the sums of exact integers, and the floats of trust=server."""
    config = parse(values("strategy=fedgd", *TOGETHER, "privacy.noise_multiplier=0"))
    experiment = prepare(config)
    theta = experiment.theta + 0.1
    means = {}
    for exact in (False, True):
        data = [client.data for client in experiment.clients]
        sums = [D.gradient_sum(theta, config.privacy.clip, exact) for D in data]
        means[exact] = sum(S.value * S.unit for S in sums)
    added, _ = config.client.contribute(
        {"theta": theta}, experiment.clients, None, config.plan(), config.noise(0)
    )
    total = added.sum(axis=0) * experiment.test.unit(config.privacy.clip)
    np.testing.assert_allclose(total, means[False], atol=1e-4)
    np.testing.assert_allclose(total, means[True], rtol=1e-3, atol=1e-2)


JUNK = [
    None,
    7,
    "words",
    [],
    [1, 2],
    [b""],
    [b"\x01"],
    [b"\x03" + bytes(168)],
    [bytes(100_000)],
    [b"\x05" * 40] * 9,
]


@pytest.mark.parametrize("junk", JUNK, ids=lambda junk: repr(junk)[:20])
def test_a_client_that_answers_nonsense_is_left_out_and_named(junk: Any, values: Values) -> None:
    """One node plays client 4, and lies from the first stage on; four others are enough."""

    def lie(message: Any, reply: Any) -> list[Any]:
        said = undecoded(message.content)[1]
        if "words" in said and 4 in said["clients"]:
            config = reply.content["config"]
            config.pop("answers", None)
            if junk is not None:
                config["answers"] = junk
        return [reply]

    grid = InProcessGrid.simulated(5, lie)
    given = values(
        "strategy=fedgd", *TOGETHER, "secagg.threshold=3", "engine=flower", "engine.max_repeats=0"
    )
    place = session.run(given, engine=flower_engine(grid))
    rows = place.metrics()
    assert len(rows) == 4
    assert all([why[:8] for why in row["dropped"]] == ["client 4"] for row in rows)
