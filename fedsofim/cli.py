"""The command line."""

import difflib
import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from fedsofim import __version__
from fedsofim.config import ConfigError, require

USAGE = """usage: fedsofim COMMAND [...]

Private federated learning that second-order methods make fast.

  run [key=value ...]        train; 'fedsofim run --help' lists all keys
  resume DIR                 continue an interrupted run
  calibrate [key=value ...]  the noise for a budget, the budget for a noise; [--json]

  --version, --help"""

CALIBRATE = """usage: fedsofim calibrate [key=value ...] [--json]

The noise that keeps a budget, with the keys of 'fedsofim run':
  fedsofim calibrate privacy.epsilon=10 privacy.delta=1e-5 rounds=70
The budget that a noise spends:
  fedsofim calibrate privacy.noise_multiplier=8.4 rounds=70"""

RESUME = """usage: fedsofim resume DIR

Continue an interrupted run to the result that it would have had without the interruption."""


def main() -> None:
    """Run a command; a user's mistake is one line and exit code 2."""
    _reporting(lambda: _main(sys.argv[1:]))


def _main(arguments: Sequence[str]) -> None:
    command, rest = (arguments[0], list(arguments[1:])) if arguments else ("--help", [])
    if command in ("--help", "-h", "help"):
        print(USAGE)
    elif command == "--version":
        print(f"fedsofim {__version__}")
    elif command in COMMANDS:
        COMMANDS[command](rest)
    else:
        raise ConfigError(f"{command}: no such command; choose one of {', '.join(COMMANDS)}")


def _run(arguments: list[str]) -> None:
    import hydra
    from hydra.core.hydra_config import HydraConfig
    from omegaconf import DictConfig

    from fedsofim.compose import CONF, plain

    def train(config: DictConfig) -> None:
        from fedsofim.session import run

        values = _telling_config_errors(lambda: plain(config), arguments)
        dataset, output = values.get("dataset"), values.get("output")
        if dataset and dataset.get("path"):
            dataset["path"] = str(Path(str(dataset["path"])).resolve())
        directory = output.get("dir") if output else None
        if directory and HydraConfig.get().mode == hydra.types.RunMode.MULTIRUN:
            run(values, Path(str(directory)) / str(HydraConfig.get().job.num))
        else:
            run(values)

    def job(config: DictConfig) -> None:
        _reporting(lambda: train(config))  # here, or Hydra would add a line of its own

    os.environ["HYDRA_FULL_ERROR"] = "1"  # exceptions come through to be told in one line
    sys.argv = ["fedsofim run", *arguments]
    with_config = hydra.main(config_path=str(CONF), config_name="config", version_base="1.3")
    _telling_config_errors(with_config(job), arguments)


def _resume(arguments: list[str]) -> None:
    if arguments in (["--help"], ["-h"]):
        return print(RESUME)
    require(len(arguments) == 1, "resume: name one run directory")
    from fedsofim.session import resume

    resume(Path(arguments[0]))


def _calibrate(arguments: list[str]) -> None:
    if "--help" in arguments or "-h" in arguments:
        return print(CALIBRATE)
    from fedsofim.compose import compose
    from fedsofim.experiment import parse

    overrides = [argument for argument in arguments if argument != "--json"]
    config = parse(_telling_config_errors(lambda: compose(overrides), overrides))
    plan = config.plan()
    require(config.private, "privacy.epsilon=inf: a run without privacy needs no noise")
    row = {
        "epsilon": plan.epsilon(),
        "delta": plan.delta,
        "releases": plan.releases,
        "noise_multiplier": plan.noise_multiplier,
        "noise_std": plan.noise_std,
        "mu": plan.mu(),
        "client_noise_std": plan.client_noise_multiplier * plan.clip,
    }
    if "--json" in arguments:
        print(json.dumps(row))
    else:
        width = max(map(len, row))
        print("\n".join(f"{name:{width}}  {value:.6g}" for name, value in row.items()))


def _telling_config_errors(call: Callable[[], Any], overrides: Sequence[str]) -> Any:
    """Call, and tell what Hydra finds wrong with an override in one line."""
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    try:
        return call()
    except (HydraException, OmegaConfBaseException) as error:
        told = str(error)
    if match := re.search(r"Could not find '(.+)/(.+)'\s+Available options in .*:", told):
        options = told[match.end() :].partition("Config search path")[0].split()
        raise ConfigError(f"{match[1]}={match[2]}: unknown; choose one of {', '.join(options)}")
    if match := re.match(r"Could not override '(.+)'\.", told):
        raise ConfigError(_no_such_key(match[1], overrides))
    lines = told.partition("Config search path")[0].splitlines()
    raise ConfigError(
        " ".join(li for li in lines if not re.match(r"\s*(full_key|object_type)", li))
    )


def _no_such_key(key: str, overrides: Sequence[str]) -> str:
    from fedsofim.compose import compose

    def names(values: dict[str, Any], prefix: str = "") -> Iterator[str]:
        for name, value in values.items():
            yield prefix + name
            if isinstance(value, dict):
                yield from names(value, f"{prefix}{name}.")

    groups = [o for o in overrides if re.match(r"\w+=\w+$", o) and not o.startswith(f"{key}=")]
    try:
        close = difflib.get_close_matches(key, names(compose(groups)), n=1, cutoff=0.75)
    except Exception:  # something else is wrong as well
        close = []
    return f"{key}: no such key; " + (
        f"did you mean {close[0]}?" if close else "'fedsofim run --help' lists them"
    )


def _reporting(call: Callable[[], None]) -> None:
    """Call, and end the program with one line, and no traceback, where the world is to blame."""
    try:
        call()
    except ConfigError as error:
        _fail(str(error), 2)
    except OSError as error:  # a full disk, a lost connection
        _fail(str(error), 1)
    except KeyboardInterrupt:
        sys.exit(130)


def _fail(message: str, code: int) -> None:
    print(f"fedsofim: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(code)


COMMANDS: dict[str, Callable[[list[str]], None]] = {
    "run": _run,
    "resume": _resume,
    "calibrate": _calibrate,
}

if __name__ == "__main__":
    main()
