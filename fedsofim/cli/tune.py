"""`fedsofim tune`: settings for a strategy, chosen on held-out records."""

import math
import time
from collections.abc import Sequence

from fedsofim.cli.keys import keyed, take
from fedsofim.cli.sweep import add_jobs, jobs_of, place, stopped
from fedsofim.core.arguments import Parser
from fedsofim.core.errors import require

ABOUT = """The paper's two-stage grid for a strategy (Table 2), for epsilon 0.5, 1, 5 and 10, on a
tenth of the training records that is held out, 50 rounds. The chosen settings are written to your
own folder ($FEDSOFIM_HOME, or fedsofim in the user's config folder), where 'settings=tuned' finds
them for the same data:
  fedsofim tune strategy=fedgd dataset=pathmnist
  fedsofim run strategy=fedgd dataset=pathmnist settings=tuned
  fedsofim tune strategy=sofim dataset=npz dataset.path=my.npz
With privacy.epsilon=E, that budget alone is searched; then, and with any key but those of the data
and the backbone, nothing is written. All that was tried is kept in output.dir=DIR; the same command
with the same output.dir continues what was interrupted."""


def parser() -> Parser:
    """Its options."""
    made = keyed("tune", ABOUT)
    add_jobs(made)
    return made


def main(arguments: Sequence[str]) -> None:
    """Search for every budget, and write what was chosen; unusual searches are only shown."""
    if not arguments:
        return parser().print_help()
    chosen = parser().read(arguments)
    jobs, overrides = jobs_of(chosen), list(chosen.overrides)
    path = place(take(overrides, "output.dir"), "tune")
    strategy, only = take(overrides, "strategy") or "", take(overrides, "privacy.epsilon")
    _check(strategy, overrides)
    from fedsofim.cli.terminal import bar, console, say_where
    from fedsofim.config.compose import EPSILONS
    from fedsofim.studies.tune import HOLDOUT, tune, write_settings

    epsilons, began = EPSILONS if only is None else (_positive(only),), time.perf_counter()
    say_where(path)
    try:
        with bar() as show:
            told = lambda stage, n, of: show(description=stage, completed=n, total=of)  # noqa: E731
            choices = tune(strategy, overrides, path, told, epsilons=epsilons, jobs=jobs)
    except KeyboardInterrupt:
        raise stopped("tune", arguments, path) from None
    for epsilon, choice in choices.items():
        shown = ", ".join(f"{k} {v:g}" for k, v in choice.settings.items())
        accuracy = f"{100 * choice.accuracy:.2f} % of the held-out records"
        console().print(f"epsilon {epsilon:g}: {shown} ({accuracy}; {choice.tried} tried)")
    special = [word for word in overrides if not word.startswith(("dataset", "backbone"))]
    special += [] if only is None else [f"privacy.epsilon={only}"]
    kept = f"With {', '.join(special)} they are not kept for settings=tuned; give them by name"
    if not special:
        kept = f"Written to {write_settings(overrides, strategy, choices)}; use settings=tuned"
    console().print(kept, soft_wrap=True)
    tried = sum(choice.tried for choice in choices.values())
    console().print(
        f"{tried} configurations in {time.perf_counter() - began:.1f} s. They were compared on "
        f"{HOLDOUT:.0%} of the private training records, without noise: this choice is not covered "
        "by the epsilon of a later run. Tune on public data, or charge for it, where that matters."
    )


def _check(strategy: str, overrides: Sequence[str]) -> None:
    """Tell mistakes before anything is made."""
    from fedsofim.config.compose import expand

    require(bool(strategy), "tune: name a strategy, as strategy=sofim")
    for word in overrides:
        require("=" in word, f"{word}: give key=value pairs, as strategy=sofim")
        key = word.partition("=")[0]
        require(key not in ("rounds", "seed", "dataset.holdout"), f"{key}: the search sets it")
    require(len(expand(overrides)) == 1, "tune: give one value for each key")


def _positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    require(0 < value < math.inf, f"privacy.epsilon={text}: give one number > 0, or leave it out")
    return value
