"""The command line."""

import json
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path

from fedsofim import __version__
from fedsofim.config.overrides import telling_config_errors as _telling_config_errors
from fedsofim.core.errors import ConfigError, require

USAGE = """usage: fedsofim COMMAND [...]

Private federated learning that second-order methods make fast.

  run [key=value ...]        train; 'fedsofim run --help' lists all keys
  resume DIR                 continue an interrupted run
  sweep [key=v1,v2 ...]      many configurations in one pass over the data
  tune strategy=S dataset=D  choose a strategy's settings on held-out records
  reproduce WHAT             the paper's tables and figures beside ours
  report DIR ...             compare runs, or a sweep, on one page; [--out FILE]
  calibrate [key=value ...]  the noise for a budget, the budget for a noise; [--json]
  audit [DIR | key=value ...]  what a run gives away, beside what it claims
  features [key=value ...]   images to a file of features
  deploy COMMAND             server, register, client: real machines; rehearse: all on this one

  --version, --help"""

CALIBRATE = """usage: fedsofim calibrate [key=value ...] [--json]

The noise that keeps a budget, with the keys of 'fedsofim run':
  fedsofim calibrate privacy.epsilon=10 privacy.delta=1e-5 rounds=70
The budget that a noise spends:
  fedsofim calibrate privacy.noise_multiplier=8.4 rounds=70"""

SWEEP = """usage: fedsofim sweep [key=v1,v2 ...] [--jobs N]

All combinations of the values, with the keys of 'fedsofim run'. Configurations that share their
data are trained together, in one pass over it a round:
  fedsofim sweep strategy.lr=0.1,0.3,1 strategy.rho=0.5,1,5 seed=0,1,2
Results go to output.dir=DIR as results.csv and results.parquet. The same command, given again with
the same output.dir, continues an interrupted sweep."""

TUNE = """usage: fedsofim tune strategy=S [dataset=D] [key=value ...] [--jobs N]

The paper's two-stage grid for a strategy (Table 2), for epsilon 0.5, 1, 5 and 10, on a tenth of the
training records that is held out, 50 rounds. The chosen settings are written to conf/chosen/tuned,
where 'settings=tuned' finds them:
  fedsofim tune strategy=fedgd dataset=pathmnist
  fedsofim run strategy=fedgd dataset=pathmnist settings=tuned
With privacy.epsilon=E, that budget alone is searched; then, and with any key but dataset, nothing
is written. All that was tried is kept in output.dir=DIR; the same command with the same output.dir
continues what was interrupted."""

REPRODUCE = """usage: fedsofim reproduce WHAT [--settings published|tuned] [--seeds 0,1,2]
                          [--out DIR]

WHAT is table3, table4, table8, table9 (accuracy), table10, table11 (ablations), table12 (rho),
mcnemar, partition, figures, or all; table5 and table6 with --features FILE, VGG-16's features.
Each is printed beside the paper's figures and written as CSV, LaTeX and Markdown,
figures as PNG and SVG, to DIR (outputs/reproduce). The same command continues what was
interrupted."""

REPORT = """usage: fedsofim report DIR ... [--out FILE] [--counts]

Compare runs and sweeps on one self-contained HTML page (report.html by default): accuracy by round
with bands over seeds, accuracy by epsilon, rounds to a target, what was released and what it cost.
DIR is a run's, a sweep's, or a folder of them. --counts shows who holds what as well: the
simulator's knowledge, which no epsilon covers."""

RESUME = """usage: fedsofim resume DIR

Continue an interrupted run to the result that it would have had without the interruption."""


def main() -> None:
    """Run a command; a user's mistake is one line and exit code 2."""
    _reporting(lambda: _main(sys.argv[1:]))


def _main(arguments: Sequence[str]) -> None:
    command, rest = (arguments[0], list(arguments[1:])) if arguments else ("--help", [])
    if command == "help" and rest and rest[0] in COMMANDS:
        COMMANDS[rest[0]](["--help"])
    elif command in ("--help", "-h", "help"):
        print(USAGE)
    elif command == "--version":
        kernel = "compiled kernel" if find_spec("fedsofim_kernel") else "no compiled kernel"
        print(f"fedsofim {__version__} ({kernel})")
    elif command in COMMANDS:
        COMMANDS[command](rest)
    else:
        raise ConfigError(f"{command}: no such command; choose one of {', '.join(COMMANDS)}")


def _run(arguments: list[str]) -> None:
    if {"--help", "-h"} & {*arguments}:
        from fedsofim.config.help import manual

        chosen = [a for a in arguments if not a.startswith("-")]
        return print(_telling_config_errors(lambda: manual(chosen), chosen))
    import hydra
    from hydra.core.hydra_config import HydraConfig
    from omegaconf import DictConfig

    from fedsofim.config.compose import CONF, make_absolute, plain

    def train(config: DictConfig) -> None:
        from fedsofim.runs.session import run

        values = _telling_config_errors(lambda: plain(config), arguments)
        output = values.get("output")
        make_absolute(values, Path.cwd())
        command = shlex.join(["fedsofim", "run", *HydraConfig.get().overrides.task])
        directory = output.get("dir") if output else None
        if directory and HydraConfig.get().mode == hydra.types.RunMode.MULTIRUN:
            path = Path(str(directory)) / str(HydraConfig.get().job.num)
            run(values, path, command=command)
        else:
            run(values, command=command)

    def job(config: DictConfig) -> None:
        _reporting(lambda: train(config))  # here, or Hydra would add a line of its own

    os.environ["HYDRA_FULL_ERROR"] = "1"  # exceptions come through to be told in one line
    sys.argv = ["fedsofim run", *arguments]
    with_config = hydra.main(config_path=str(CONF), config_name="config", version_base="1.3")
    _telling_config_errors(with_config(job), arguments)


def _sweep(arguments: list[str]) -> None:
    if "--help" in arguments or "-h" in arguments:
        return print(SWEEP)
    overrides, directory, jobs = _split(arguments)
    from fedsofim.cli.sweep import sweep

    _telling_config_errors(lambda: sweep(overrides, directory, jobs), overrides)


def _tune(arguments: list[str]) -> None:
    if not arguments or "--help" in arguments or "-h" in arguments:
        return print(TUNE)
    overrides, directory, jobs = _split(arguments)
    from fedsofim.cli.tune import tune_all

    _telling_config_errors(lambda: tune_all(overrides, directory, jobs), overrides)


def _split(arguments: list[str]) -> tuple[list[str], str | None, int | None]:
    """The overrides, the directory and the number of processes of a sweep."""
    jobs = _option(arguments, "--jobs")
    require(jobs is None or (jobs.isdigit() and int(jobs) > 0), f"--jobs {jobs}: a number >= 1")
    directories = [a.partition("=")[2] for a in arguments if a.startswith("output.dir=")]
    overrides = [a for a in arguments if not a.startswith("output.dir=")]
    return overrides, directories[-1] if directories else None, int(jobs) if jobs else None


def _reproduce(arguments: list[str]) -> None:
    if not arguments or "--help" in arguments or "-h" in arguments:
        return print(REPRODUCE)
    settings = _option(arguments, "--settings") or "published"
    directory = _option(arguments, "--out") or "outputs/reproduce"
    features = _option(arguments, "--features")
    seeds = (_option(arguments, "--seeds") or "0,1,2").split(",")
    require(all(s.isdigit() for s in seeds), f"--seeds {','.join(seeds)}: give numbers, as 0,1,2")
    require(len(arguments) == 1, f"reproduce: name one thing, not {' '.join(arguments)}")
    from fedsofim.cli.reproduce import reproduce

    _telling_config_errors(
        lambda: reproduce(
            arguments[0], Path(directory), settings, [int(s) for s in seeds], features
        ),
        [f"settings={settings}"],
    )


def _report(arguments: list[str]) -> None:
    if not arguments or "--help" in arguments or "-h" in arguments:
        return print(REPORT)
    out = Path(_option(arguments, "--out") or "report.html")
    counts = "--counts" in arguments
    paths = [Path(a) for a in arguments if a != "--counts"]
    from fedsofim.reports.compare import write

    _telling_config_errors(lambda: write(paths, out, counts=counts), [])
    print(f"Written to {out}")


def _option(arguments: list[str], name: str) -> str | None:
    """Take an option and its value out of the arguments."""
    if name not in arguments:
        return None
    place = arguments.index(name)
    require(place + 1 < len(arguments), f"{name}: a value is missing")
    value = arguments[place + 1]
    del arguments[place : place + 2]
    return value


def _resume(arguments: list[str]) -> None:
    if arguments in (["--help"], ["-h"]):
        return print(RESUME)
    require(len(arguments) == 1, "resume: name one run directory")
    from fedsofim.runs.session import resume

    resume(Path(arguments[0]))


def _calibrate(arguments: list[str]) -> None:
    if "--help" in arguments or "-h" in arguments:
        return print(CALIBRATE)
    from fedsofim.config.compose import compose
    from fedsofim.config.schema import parse

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


def _features(arguments: list[str]) -> None:
    from fedsofim.cli import features as features_command
    from fedsofim.config.compose import compose

    if "--help" in arguments or "-h" in arguments:
        return print(features_command.USAGE)
    out, overrides = features_command.split_arguments(arguments)
    features_command.features(_telling_config_errors(lambda: compose(overrides), overrides), out)


def _deploy(arguments: list[str]) -> None:
    from fedsofim.deploy.commands import main

    main(arguments)


def _audit(arguments: list[str]) -> None:
    from fedsofim.cli.audit import main

    main(arguments)


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
    "sweep": _sweep,
    "tune": _tune,
    "reproduce": _reproduce,
    "report": _report,
    "calibrate": _calibrate,
    "audit": _audit,
    "features": _features,
    "deploy": _deploy,
}

if __name__ == "__main__":
    main()
