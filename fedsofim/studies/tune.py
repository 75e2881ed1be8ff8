"""The paper's two-stage grid search (Table 2), on a held-out part of the training data."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from fedsofim.config.chosen import own_file
from fedsofim.config.compose import EPSILONS, compose
from fedsofim.core.errors import choose, require
from fedsofim.core.files import write_whole
from fedsofim.studies.processes import Jobs
from fedsofim.studies.sweep import Sweep

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
    strategy: str,
    overrides: Sequence[str],
    path: Path,
    show: Callable[[str, int, int], None],
    epsilons: Sequence[float] = EPSILONS,
    jobs: Jobs = None,
) -> dict[float, Choice]:
    """Search both grids of a strategy, each a sweep of its own, for some budgets at once.

    Args:
        strategy: its name.
        overrides: what else is fixed, such as the data set.
        path: where the two sweeps are kept; they go on there if they were interrupted.
        show: told the stage, and how many of its configurations of how many are done.
        epsilons: the budgets.
        jobs: processes, by default one for each core; or a cluster's.
    """
    search = choose(SEARCHES, strategy, "strategy")
    tried: dict[float, list[tuple[float, dict[str, Any]]]] = {e: [] for e in epsilons}
    count = sum(math.prod(map(len, grid.values())) for grid in (search.coarse, search.fine))
    for stage, grid in (("coarse", search.coarse), ("fine", search.fine)):
        asked = [
            f"strategy={strategy}",
            *_published(overrides),
            *overrides,
            f"rounds={ROUNDS}",
            "seed=0",
        ]
        asked += [f"dataset.holdout={HOLDOUT}", f"privacy.epsilon={_listed(epsilons)}"]
        asked += [f"{search.keys[name]}={_listed(values)}" for name, values in grid.items()]
        for row in Sweep.begin(path / stage, asked).run(jobs, partial(show, stage)):
            if row["round"] == ROUNDS and row["loss"] is not None:  # it did not diverge
                settings = {
                    name: next(v for v in values if v == row[search.keys[name]])
                    for name, values in grid.items()
                }
                tried[row["privacy.epsilon"]].append((row["accuracy"], settings))
    choices = {}
    for epsilon, all_tried in tried.items():
        require(bool(all_tried), f"epsilon {epsilon:g}: every setting of the grids diverged")
        accuracy, settings = max(all_tried, key=lambda one: one[0])  # the first of the best
        choices[epsilon] = Choice(settings, accuracy, count)
    return choices


def _published(overrides: Sequence[str]) -> list[str]:
    """The grids are for records as they are, whatever the data's default is."""
    named = any(override.startswith("settings=") for override in overrides)
    return [] if named else ["settings=published"]


def _listed(values: Iterable[float]) -> str:
    return ",".join(map(repr, values))


def write_settings(
    overrides: Sequence[str], strategy: str, choices: Mapping[float, Choice]
) -> Path:
    """Write the chosen settings to the user's own folder, where `settings=tuned` finds them.

    Args:
        overrides: the data, and the backbone, that they were chosen on.
        strategy: its name.
        choices: for each of `EPSILONS`.
    """
    now = {name: [choices[e].settings[name] for e in EPSILONS] for name in SEARCHES[strategy].keys}
    settings = {"momentum": now} if strategy == "sofim" else now  # SOFIM's are kept by direction
    tried = choices[EPSILONS[0]].tried
    held = ", ".join(f"{100 * choices[e].accuracy:.2f}" for e in EPSILONS)
    text = (
        f"# Chosen by: fedsofim tune {' '.join([*overrides, f'strategy={strategy}'])}\n"
        f"# {tried} configurations for each of epsilon = {', '.join(f'{e:g}' for e in EPSILONS)},\n"
        f"# T = {ROUNDS}, seed 0; accuracy on the held-out tenth: {held} %\n"
    )
    path = own_file(compose([*_published(overrides), *overrides]), strategy)
    text += yaml.safe_dump(settings, sort_keys=False, default_flow_style=None)
    write_whole(path, text.encode())
    return path
