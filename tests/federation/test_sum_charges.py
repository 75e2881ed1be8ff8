"""What an owner's ledger says of sums, against the noise that was drawn and SciPy's Gaussian."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message
from scipy import optimize, stats
from smalldata import FEATURES
from sumowners import THETA, Talk, ledger_of, make_owners

from fedsofim.config.schema import Config, parse
from fedsofim.federation.client_app import _node
from fedsofim.federation.messages import RELEASE, pack, unpack
from fedsofim.models.head import Examples
from fedsofim.privacy import exact

ROUNDS = 3
P = np.eye(FEATURES + 1, dtype=np.float32)


class Mapped(Talk):
    """A session whose server sends the map that a stage reads."""

    def message(self, i: int, words: bytes, **changes: Any) -> Message:
        plain = super().message(i, words, **changes)
        arrays, said = unpack(plain.content)
        reads = self.t < 0 and self.config.stages[self.t].reads
        return Message(pack({**arrays, "P": P} if reads else arrays, said), self.nodes[i], RELEASE)


def epsilon(mu: float, delta: float) -> float:
    def excess(e: float) -> float:
        below, above = stats.norm.logcdf([-e / mu + mu / 2, -e / mu - mu / 2])
        return float(np.exp(below) - np.exp(e + above) - delta)

    return float(optimize.brentq(excess, 0, 1e4))


def bound_of(config: Config, records: Examples, t: int) -> float:
    """How far replacing a record moves the first numbers of a sum, in the units of their noise."""
    if t >= 0:
        return 2 * float(records.gradient_sum(THETA, config.privacy.clip, True).bound)
    stage = config.stages[t]
    first, *_ = stage.summed(records.part(slice(0)), True)
    return stage.unit_sensitivity("replace-one") * float(first.bound)


@pytest.mark.parametrize(
    ("threshold", "colluders", "honest", "counted"),
    [(5, 0, 4, 5), (5, 0, 2, 3), (4, 1, 3, 3), (4, 1, 4, 3), (4, 0, 3, 1), (5, 1, 0, 1)],
)
@pytest.mark.parametrize("strategy", ["fedgd", "ftrl"])
def test_the_ledger_is_right_about_the_noise_that_was_drawn(
    strategy: str,
    threshold: int,
    colluders: int,
    honest: int,
    counted: int,
    tmp_path: Path,
    values: Callable[..., dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`counted` clients' noise is in any sum that can be seen, by what this owner assumes."""
    drawn, draw = list[float](), exact.discrete_gaussian

    def spying(count: int, std: float) -> Any:
        drawn.append(std)
        return draw(count, std)

    monkeypatch.setattr(exact, "discrete_gaussian", spying)
    config = parse(
        values(
            *(f"strategy={strategy}", f"rounds={ROUNDS}", "partition.clients=5"),
            *("privacy.trust=aggregate", "aggregation=size", "privacy.epsilon=3"),
            *(f"secagg.threshold={threshold}", f"secagg.colluders={colluders}"),
            *("transform=private", "transform.radius=4"),
        )
    )
    owners = make_owners(tmp_path, 5, honest=honest, epsilon=1e4)
    records = _node(owners[0]).records().examples()
    leaves = {"fedgd": [1, 1, 1], "ftrl": [1, 2, 1]}[strategy]  # that a round's noise is for
    spent = 0.0
    for t in range(-len(config.stages), ROUNDS):
        talk = Mapped(owners, config, t=t)
        drawn.clear()
        for _ in range(3 if threshold < 5 else 2):
            talk.stage()
        times = leaves[t] if t >= 0 else 1
        spent += (times * bound_of(config, records, t) / drawn[0]) ** 2 / counted
    assert ledger_of(owners[0]).epsilon() == pytest.approx(epsilon(math.sqrt(spent), 1e-5))
