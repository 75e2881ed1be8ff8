"""`fedsofim tune`: settings for a strategy, chosen on held-out records."""

import time
from collections.abc import Sequence

from fedsofim.compose import EPSILONS
from fedsofim.config import require
from fedsofim.terminal import bar, console
from fedsofim.tune import HOLDOUT, Choice, tune, write_settings


def tune_all(arguments: Sequence[str]) -> None:
    """Search for every budget, and write what was chosen; for one named budget, show it only."""
    named = dict(argument.split("=", 1) for argument in arguments if "=" in argument)
    require(len(named) == len(arguments), "tune: give key=value pairs, as strategy=sofim")
    require("strategy" in named, "tune: name a strategy, as strategy=sofim")
    strategy, only = named.pop("strategy"), named.pop("privacy.epsilon", None)
    overrides = [f"{key}={value}" for key, value in named.items()]
    began = time.perf_counter()
    choices: dict[float, Choice] = {}
    with bar() as show:
        for epsilon in (float(only),) if only else EPSILONS:
            show(description=f"epsilon {epsilon:g}", completed=0)
            choices[epsilon] = choice = tune(
                strategy, epsilon, overrides, lambda d, n: show(completed=d, total=n)
            )
            shown = ", ".join(f"{k} {v:g}" for k, v in choice.settings.items())
            accuracy = f"{100 * choice.accuracy:.2f} % of the held-out records"
            console.print(f"epsilon {epsilon:g}: {shown} ({accuracy}; {choice.tried} tried)")
    if not only:
        path = write_settings(named.get("dataset", "cifar10"), strategy, choices)
        console.print(f"Written to {path}; use them with settings=tuned", soft_wrap=True)
    tried = sum(choice.tried for choice in choices.values())
    console.print(
        f"{tried} configurations in {time.perf_counter() - began:.1f} s. They were compared on "
        f"{HOLDOUT:.0%} of the private training records, without noise: this choice is not covered "
        "by the epsilon of a later run. Tune on public data, or charge for it, where that matters."
    )
