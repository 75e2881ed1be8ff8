"""Where a simulated run stands to what the paper proves. NOT PRIVATE, as `runs/theory.py`."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from fedsofim.models.objective import Minimum
from fedsofim.runs.bounds import (
    Constants,
    Gamma,
    best_young,
    gamma,
    gap_bounds,
    stationarity_bounds,
    young_for,
)
from fedsofim.runs.directory import Row
from fedsofim.runs.theory import NOTE, Theory
from fedsofim.strategies.rule import Descent, ServerState

ALONG = "estimated: the largest along this run"
SOFIM, PLAIN = ("4.21", "4.29", "4.31"), ("4.26", "4.26 under PL", "4.31 for DP-FedGD")


class Track(NamedTuple):
    """A run as the theorems see it.

    Attributes:
        rows: what was measured, a row a round.
        gaps: F - F* before every round and after the last.
        k: the constants.
        how: what the rule's analysis needs to know.
    """

    rows: Sequence[Mapping[str, Any]]
    gaps: list[float]
    k: Constants
    how: Descent

    @property
    def etas(self) -> list[float]:
        """The learning rate of every round."""
        return [row["rate"] for row in self.rows]

    def squares(self, name: str) -> list[float]:
        """The square of a measured norm in every round."""
        return [row[name] ** 2 for row in self.rows]


def conclude(theory: Theory, rows: Sequence[Row], server: ServerState) -> Row:
    """The constants, the bounds, and where the run stands to them.

    Args:
        theory: of the run.
        rows: what it measured.
        server: the state after the last round.
    """
    config, how = theory.experiment.config, theory.experiment.config.strategy.descent
    out: Row = {"note": NOTE, "rounds": len(rows), "departures": [], "theorems": []}
    known = [value for row in rows for value in row.values()]
    if not rows or None in known:
        return out | {"departures": ["the run diverged, or its steps have no learning rate"]}
    objective = theory.objective(server)
    last, _ = objective.gradient(server.theta.astype(float))
    best = objective.minimise(server.theta)
    gaps = [row["objective"] - best.value for row in rows] + [last - best.value]
    k = _constants(theory, rows, server)
    mu, mu_pl = objective.strong_convexity, _pl(rows, gaps)
    out |= {"constants": _told(k, mu, mu_pl, best, config.strategy.l2), "gap": gaps}
    if how is None:
        return out | {"departures": [f"the paper proves nothing about {config.strategy_name}"]}
    track, names = Track(rows, gaps, k, how), SOFIM if how.coupled else PLAIN
    strong = _neighbourhood(track, names[0], "mu-strongly convex", mu)
    pl = _neighbourhood(track, names[1], "Polyak-Lojasiewicz along the run", mu_pl)
    away = [*how.departures]
    if config.participation < 1:
        away.append("clients are drawn: their absence is in the clipping bias (Proposition 4.19)")
    return out | {"departures": away, "theorems": [strong, pl, _stationarity(track, names[2])]}


def _constants(theory: Theory, rows: Sequence[Row], server: ServerState) -> Constants:
    config, clip = theory.experiment.config, theory.experiment.plan.clip
    largest = {
        name: max(row[name] for row in rows)
        for name in ("gradient_norm", "clip_bias", "noise_variance", "clipped_norm", "theta_norm")
    }
    bound = clip + config.strategy.l2 * largest["theta_norm"]
    return Constants(
        d=server.theta.size,
        L=theory.objective(server).smoothness(),
        G_max=largest["gradient_norm"],
        zeta_max=largest["clip_bias"],
        nu2=largest["noise_variance"],
        G_0=bound if math.isfinite(bound) else largest["clipped_norm"],
    )


def _pl(rows: Sequence[Row], gaps: Sequence[float]) -> float:
    """The largest constant with which Eq. (23) holds at all iterates of this run."""
    pairs = [(row["gradient_norm"], gap) for row, gap in zip(rows, gaps, strict=False)]
    return min((g**2 / (2 * gap) for g, gap in pairs if gap > 0), default=math.inf)


def _told(k: Constants, mu: float, mu_pl: float, best: Minimum, l2: float) -> Row:
    """Every constant, and how it came about."""
    bound = "computed: the clip" + (", plus l2 times the largest |theta|" if l2 else "")
    how = {
        "d": (k.d, "computed"),
        "L": (k.L, "computed: half the largest eigenvalue of the second moment, plus l2"),
        "mu": (mu, "computed: l2"),
        "mu_PL": (mu_pl, "estimated: the least |grad F|^2 / 2(F - F*) along this run"),
        "F_star": (best.value, f"computed: Newton's method, to about {best.decrement:.0e}"),
        "G_max": (k.G_max, ALONG),
        "zeta_max": (k.zeta_max, ALONG),
        "nu2": (k.nu2, "computed: Eq. (5), the largest of all rounds"),
        "G_0": (k.G_0, bound),
    }
    return {name: {"value": value, "how": what} for name, (value, what) in how.items()}


def _neighbourhood(track: Track, name: str, under: str, mu: float) -> Row:
    """Theorem 4.21, 4.26 or 4.29: the gap falls to a floor at a linear rate."""
    k, how, etas = track.k, track.how, track.etas
    young = young_for(k, how, etas[0])
    c = young.coefficient(how.rho)
    rates = [1 - 2 * mu * eta * c for eta in etas]
    row: Row = {"theorem": name, "under": under, "contraction": rates[0], "why_not": []}
    if not mu > 0:
        row["why_not"] = ["mu = 0: a softmax loss is not strongly convex; give strategy.l2"]
        return row
    if not all(0 < r < 1 for r in rates):
        row["why_not"] = [f"the learning rate is too large: r = {min(rates):.3g}, not in (0, 1)"]
        return row
    steps = [gamma(k, how, eta, young) for eta in etas]
    floor = steps[0].over(2 * mu * etas[0] * c)
    bound = list(gap_bounds(track.gaps[0], [step.total for step in steps], etas, mu, c))
    return row | {
        "floor": floor.total,
        "terms": floor._asdict(),
        "tau": list(young),
        "bound": bound,
        "path": _path(track, mu),
        "run": track.gaps,
        "run_over_bound": track.gaps[-1] / bound[-1],
        "run_over_floor": track.gaps[-1] / floor.total,
    }


def _path(track: Track, mu: float) -> list[float]:
    """The same recursion with what each round really had: |M_t|, zeta_t, xi_t and |G_t|.

    The proof's inequalities hold for every draw of the noise before an expectation is taken (its
    steps 1 to 6), so for the analysed rule this bounds this very run.
    """
    rho, etas, squares = track.how.rho, track.etas, track.squares
    none = [0.0] * len(etas)
    momentum = squares("momentum_norm") if track.how.coupled else none
    coupling = [g * m / rho**2 for g, m in zip(squares("gradient_norm"), momentum, strict=True)]
    bias, noise = ([v / (2 * rho**2) for v in squares(n)] for n in ("clip_bias", "noise_norm"))
    released = zip(etas, squares("aggregate_norm"), strict=True)
    curved = [track.k.L * eta * G / (2 * rho**2) for eta, G in released]

    def mean(values: Sequence[float]) -> float:
        return sum(values) / len(values)

    young = best_young(mean(coupling) + mean(curved), mean(bias), mean(noise), rho)
    terms = [
        eta * Gamma(m, b / young.tau1 if b else 0.0, x / young.tau2 if x else 0.0, q).total
        for eta, m, b, x, q in zip(etas, coupling, bias, noise, curved, strict=True)
    ]
    return list(gap_bounds(track.gaps[0], terms, etas, mu, young.coefficient(rho)))


def _stationarity(track: Track, name: str) -> Row:
    """Theorem 4.31: the mean squared gradient norm of the iterates, without convexity."""
    k, how, etas = track.k, track.how, track.etas
    young = young_for(k, how, etas[0])
    c = young.coefficient(how.rho)
    steps = [gamma(k, how, eta, young).total for eta in etas]
    bound = list(stationarity_bounds(track.gaps[0], steps, etas, c))
    run, total, weight = [], 0.0, 0.0
    for eta, square in zip(etas, track.squares("gradient_norm"), strict=True):
        total, weight = total + eta * square, weight + eta
        run.append(total / weight)
    return {
        "theorem": name,
        "under": "smooth, not convex",
        "why_not": [],
        "floor": steps[0] / (etas[0] * c),
        "terms": gamma(k, how, etas[0], young).over(etas[0] * c)._asdict(),
        "bound": bound,
        "run": run,
        "run_over_bound": run[-1] / bound[-1],
    }
