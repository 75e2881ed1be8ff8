"""`fedsofim calibrate`: the noise for a budget, and the budget for a noise."""

import json
from collections.abc import Sequence

from fedsofim.cli.keys import keyed
from fedsofim.core.arguments import Parser

ABOUT = """The noise that keeps a budget, with the keys of 'fedsofim run':
  fedsofim calibrate privacy.epsilon=10 privacy.delta=1e-5 rounds=70
The budget that a noise spends:
  fedsofim calibrate privacy.noise_multiplier=8.4 rounds=70"""


def parser() -> Parser:
    """Its options."""
    made = keyed("calibrate", ABOUT)
    made.add_argument("--json", action="store_true", help="as JSON, with all digits")
    return made


def main(arguments: Sequence[str]) -> None:
    """Print what a run would release, and what that costs."""
    chosen = parser().read(arguments)
    from fedsofim.config.compose import compose
    from fedsofim.config.schema import parse
    from fedsofim.runs.calibration import calibration

    config = parse(compose(chosen.overrides))
    row = calibration(config)._asdict()
    if chosen.json:
        return print(json.dumps(row))
    width = max(map(len, row))
    print("\n".join(f"{name:{width}}  {value:.6g}" for name, value in row.items()))
