"""`fedsofim tune`: settings for a strategy, chosen on held-out records."""

import math
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from fedsofim.cli.terminal import bar, console, say_where
from fedsofim.config.compose import EPSILONS, expand
from fedsofim.core.errors import require
from fedsofim.studies.tune import HOLDOUT, tune, write_settings


def tune_all(arguments: Sequence[str], directory: str | None, jobs: int | None) -> None:
    """Search for every budget, and write what was chosen; what is not the usual is only shown."""
    named = dict(argument.split("=", 1) for argument in arguments if "=" in argument)
    require(len(named) == len(arguments), "tune: give key=value pairs, as strategy=sofim")
    require("strategy" in named, "tune: name a strategy, as strategy=sofim")
    for key in ("rounds", "seed", "dataset.holdout"):
        require(key not in named, f"{key}: the search sets it")
    strategy, only = named.pop("strategy"), named.pop("privacy.epsilon", None)
    overrides = [f"{key}={value}" for key, value in named.items()]
    require(len(expand(overrides)) == 1, "tune: give one value for each key")
    epsilons = EPSILONS if only is None else (_positive(only),)
    now, began = datetime.now(), time.perf_counter()
    path = Path(directory or f"outputs/{now:%Y-%m-%d}/tune-{now:%H-%M-%S}")
    say_where(path)
    with bar() as show:
        choices = tune(
            strategy,
            overrides,
            path,
            lambda stage, done, total: show(description=stage, completed=done, total=total),
            epsilons=epsilons,
            jobs=jobs,
        )
    for epsilon, choice in choices.items():
        shown = ", ".join(f"{k} {v:g}" for k, v in choice.settings.items())
        accuracy = f"{100 * choice.accuracy:.2f} % of the held-out records"
        console().print(f"epsilon {epsilon:g}: {shown} ({accuracy}; {choice.tried} tried)")
    if named.keys() <= {"dataset"} and not only:
        written = write_settings(named.get("dataset", "cifar10"), strategy, choices)
        console().print(f"Written to {written}; use them with settings=tuned", soft_wrap=True)
    tried = sum(choice.tried for choice in choices.values())
    console().print(
        f"{tried} configurations in {time.perf_counter() - began:.1f} s. They were compared on "
        f"{HOLDOUT:.0%} of the private training records, without noise: this choice is not covered "
        "by the epsilon of a later run. Tune on public data, or charge for it, where that matters."
    )


def _positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    require(0 < value < math.inf, f"privacy.epsilon={text}: give one number > 0, or leave it out")
    return value
