"""The paper's two-stage grid search (Table 2), on a held-out part of the training data."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from fedsofim.compose import CONF, EPSILONS, compose_many
from fedsofim.config import choose
from fedsofim.run_config import parse
from fedsofim.sweep import run_all

Grid = Mapping[str, Sequence[Any]]
HOLDOUT, ROUNDS = 0.1, 50


class Search(NamedTuple):
    """A coarse grid, and a fine one, over the settings of a strategy.

    Attributes:
        keys: where Hydra finds each setting.
        coarse: the values of each, first stage.
        fine: the values of each, second stage.
    """

    keys: Mapping[str, str]
    coarse: Grid
    fine: Grid


SEARCHES = {
    "fedgd": Search(
        {"lr": "strategy.lr"},
        {"lr": (1e-4, 1e-3, 0.01, 0.1, 1, 5, 10)},
        {"lr": (0.03, 0.05, 0.08, 0.1, 0.3)},
    ),
    "fedavg": Search(
        {"lr": "strategy.lr", "steps": "client.steps"},
        {"lr": (1e-3, 0.01, 0.1, 0.5, 1), "steps": (1, 3, 5, 10, 20)},
        {"lr": (0.3, 0.5, 0.6, 0.8, 1.0), "steps": (1, 2, 5, 7, 10)},
    ),
    "fedfc": Search(
        {"lr": "strategy.lr", "gamma": "strategy.gamma"},
        {"lr": (1e-4, 1e-3, 0.01, 0.1, 1, 5), "gamma": (0.01, 0.1, 1, 10, 100)},
        {"lr": (0.1, 0.15, 0.3, 0.4, 0.5, 2), "gamma": (0.5, 1, 2, 5, 10)},
    ),
    "scaffold": Search(
        {"lr": "strategy.lr", "client_lr": "client.lr", "steps": "client.steps"},
        {"lr": (0.01, 0.1, 0.5, 1, 5), "client_lr": (0.001, 0.01, 0.1, 0.5), "steps": (1, 5, 10)},
        {
            "lr": (0.3, 0.5, 0.7, 1, 2),
            "client_lr": (0.05, 0.1, 0.2, 0.3),
            "steps": (1, 3, 5, 7, 10),
        },
    ),
    "fedadam": Search(
        {"lr": "strategy.lr", "beta1": "strategy.beta1", "beta2": "strategy.beta2"}
        | {"tau": "strategy.tau"},
        {
            "lr": (1e-4, 1e-3, 0.01, 0.1, 1),
            "beta1": (0, 0.8, 0.9),
            "beta2": (0.8, 0.9, 0.999),
            "tau": (1e-5, 1e-3, 0.01, 0.1),
        },
        {
            "lr": (0.01, 0.02, 0.05, 0.1),
            "beta1": (0.8, 0.9, 0.95),
            "beta2": (0.8, 0.999, 0.9999),
            "tau": (1e-5, 0.01, 0.05, 0.1),
        },
    ),
    "fedyogi": Search(
        {"lr": "strategy.lr", "beta1": "strategy.beta1", "beta2": "strategy.beta2"}
        | {"tau": "strategy.tau"},
        {
            "lr": (1e-4, 1e-3, 0.01, 0.1, 1),
            "beta1": (0, 0.5, 0.9),
            "beta2": (0.5, 0.9, 0.999),
            "tau": (1e-5, 1e-3, 0.01, 0.1),
        },
        {
            "lr": (0.01, 0.02, 0.05, 0.1, 0.2),
            "beta1": (0.5, 0.9, 0.95),
            "beta2": (0.5, 0.9, 0.999),
            "tau": (1e-5, 0.01, 0.05, 0.1),
        },
    ),
    "ftrl": Search(
        {"lr": "strategy.lr"},
        # The paper's rates, 0.5 to 10, go with the noise it charges; honest noise wants less.
        {"lr": (0.01, 0.03, 0.1, 0.3, 0.5, 1, 3, 5, 7, 10)},
        {"lr": (0.03, 0.05, 0.08, 0.1, 0.2, 0.3)},
    ),
    "adafedprox": Search(
        {"lr": "strategy.lr", "client_lr": "client.lr", "mu": "strategy.mu"}
        | {"steps": "client.steps"},
        {
            "lr": (0.1, 0.3, 0.5, 1, 3),
            "client_lr": (0.001, 0.01, 0.05, 0.1, 0.5),
            "mu": (0.001, 0.01, 0.1, 0.5, 1),
            "steps": (1, 3, 5, 7),
        },
        {
            "lr": (0.5, 0.6, 0.8, 1.0, 1.5),
            "client_lr": (0.05, 0.1, 0.2, 0.3),
            "mu": (0.01, 0.05, 0.1, 0.2),
            "steps": (1, 3, 5),
        },
    ),
    "sofim": Search(
        {"lr": "strategy.lr", "rho": "strategy.rho", "beta": "strategy.beta"},
        {"lr": (1e-3, 0.01, 0.1, 1, 5), "rho": (0.01, 0.1, 1, 5, 10), "beta": (0.8, 0.9, 0.99)},
        {
            "lr": (0.1, 0.2, 0.5, 1, 3, 4),
            "rho": (0.5, 1, 5, 10, 20),
            "beta": (0.8, 0.85, 0.9, 0.95),
        },
    ),
}


class Choice(NamedTuple):
    """The best settings for one budget.

    Attributes:
        settings: by name.
        accuracy: on the held-out records.
        tried: how many configurations were compared.
    """

    settings: dict[str, Any]
    accuracy: float
    tried: int


def tune(
    strategy: str, epsilon: float, overrides: Sequence[str], progress: Callable[[int, int], None]
) -> Choice:
    """Search both grids of a strategy for one budget.

    Args:
        strategy: its name.
        epsilon: the budget.
        overrides: what else is fixed, such as the data set.
        progress: told how many configurations of how many are done.
    """
    search = choose(SEARCHES, strategy, "strategy")
    fixed = [f"strategy={strategy}", f"privacy.epsilon={epsilon:g}", *overrides]
    fixed += [f"rounds={ROUNDS}", f"dataset.holdout={HOLDOUT}", "seed=0"]
    grids = [
        dict(zip(grid, values, strict=True))
        for grid in (search.coarse, search.fine)
        for values in itertools.product(*grid.values())
    ]
    jobs = [[*fixed, *(f"{search.keys[k]}={v}" for k, v in point.items())] for point in grids]
    configs = [parse(values) for values in compose_many(jobs)]
    scores = {}
    for result in run_all(configs, every=ROUNDS):
        scores[result.number] = result.curve[-1]["accuracy"]
        progress(len(scores), len(jobs))
    best = max(scores, key=lambda number: (scores[number], -number))
    return Choice(grids[best], scores[best], len(grids))


def write_settings(dataset: str, strategy: str, choices: Mapping[float, Choice]) -> Path:
    """Write the chosen settings where `settings=tuned` finds them."""
    now = {name: [choices[e].settings[name] for e in EPSILONS] for name in SEARCHES[strategy].keys}
    settings = {"momentum": now} if strategy == "sofim" else now  # SOFIM's are kept by direction
    tried = choices[EPSILONS[0]].tried
    held = ", ".join(f"{100 * choices[e].accuracy:.2f}" for e in EPSILONS)
    text = (
        f"# Chosen by: fedsofim tune dataset={dataset} strategy={strategy}\n"
        f"# {tried} configurations for each of epsilon = {', '.join(f'{e:g}' for e in EPSILONS)},\n"
        f"# T = {ROUNDS}, seed 0; accuracy on the held-out tenth: {held} %\n"
    )
    path = CONF / "chosen" / "tuned" / f"{dataset}_{strategy}.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + yaml.safe_dump({"strategy": {"settings": settings}}, sort_keys=False))
    return path
