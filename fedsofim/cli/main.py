"""The command line: finds the command, and tells what went wrong in one line.

A command is a module of this folder with its name. It has `main(arguments)` and, for the shell's
completion, `parser()`; it loads what it needs only when it runs.
"""

import os
import signal
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from io import TextIOWrapper
from typing import NoReturn

from fedsofim import __version__
from fedsofim.core.errors import ConfigError, Stopped, options
from fedsofim.core.signals import polite

COMMANDS = {  # in the order of the help page
    "run": "train; 'fedsofim run --help' lists all keys",
    "resume": "continue an interrupted run, or extend one",
    "sweep": "many configurations in one pass over the data",
    "tune": "choose a strategy's settings on held-out records",
    "reproduce": "the paper's tables and figures beside ours",
    "report": "compare runs, or a sweep, on one page",
    "watch": "the page of a run, a sweep or a deployment while it goes on",
    "theory": "the paper's bounds beside simulated runs",
    "calibrate": "the noise for a budget, the budget for a noise",
    "audit": "attack a run, and show what it gives away beside what it claims",
    "export": "a model as ONNX, for torch, for scikit-learn, or as safetensors",
    "predict": "labels and probabilities for features or images, as CSV",
    "show": "a run's table and what it spent",
    "data": "check a file of records; draft a table's schema",
    "features": "images to a file of features",
    "list": "the strategies, data sets, transforms … that there are",
    "ledger": "what an owner's records were charged for: show, verify, adopt",
    "app": "a thin Flower app that runs what is installed: to read, to sign, to share",
    "deploy": "real machines: server, register, client; rehearse: all on this one",
    "completion": "let the shell complete commands and keys: bash, zsh, fish",
}
LONGEST = 1500  # characters of a message: a file may hold anything, and a line may quote it
HIDDEN = ("complete",)  # what the shell calls
TRY = """Try:
  fedsofim run                                  train DP-FedSOFIM on embedded features: a second
  fedsofim run strategy=fedgd privacy.epsilon=1
  fedsofim list strategies"""


def usage() -> str:
    """The page that names the commands."""
    lines = [f"  {name:<12}{what}" for name, what in COMMANDS.items()]
    about = "Private federated learning that second-order methods make fast."
    closing = "'fedsofim COMMAND --help' tells more; 'fedsofim --version' what is installed."
    return "\n".join(["usage: fedsofim COMMAND [...]", "", about, "", *lines, "", TRY, "", closing])


def main() -> None:
    """Run a command; a user's mistake is one line and exit code 2."""
    for number in polite():
        signal.signal(number, signal.default_int_handler)  # a polite kill is a Ctrl-C
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="replace")  # not every terminal has our dots and lines
    try:
        dispatch(sys.argv[1:])
    except ConfigError as error:
        _fail(str(error), 2)
    except Stopped as stop:
        print(stop)
        sys.exit(130)
    except BrokenPipeError:  # whoever was reading has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:  # a full disk, a lost connection
        _fail(_told(error), 1)
    except MemoryError as error:
        _fail(f"there is not enough memory ({error})", 1)
    except KeyboardInterrupt:
        sys.exit(130)


def dispatch(arguments: Sequence[str]) -> None:
    """Do what the first argument names with the rest."""
    command, *rest = arguments or ["--help"]
    if command == "help" and rest:
        command, rest = rest[0], ["--help"]
    if command in ("--help", "-h", "help"):
        print(usage())
    elif command == "--version":
        kernel = "compiled kernel" if find_spec("fedsofim_kernel") else "no compiled kernel"
        print(f"fedsofim {__version__} ({kernel})")
    elif command in COMMANDS or command in HIDDEN:
        import_module(f"fedsofim.cli.{command}").main(rest)
    else:
        hint = options(COMMANDS, command)
        if "=" in command:
            hint = f"did you mean 'fedsofim run {' '.join(arguments)}'?"
        raise ConfigError(f"{command}: no such command; {hint}")


def line(message: str) -> str:
    """A message as one line, and not a page."""
    words = " ".join(message.split())
    return words if len(words) <= LONGEST else f"{words[:LONGEST]}…"


def _told(error: OSError) -> str:
    if error.filename:
        return f"{error.filename}: {error.strerror}"
    try:
        os.getcwd()
    except FileNotFoundError:
        return "the current folder is no longer there; change into another"
    return str(error)


def _fail(message: str, code: int) -> NoReturn:
    print(f"fedsofim: {line(message)}", file=sys.stderr)
    sys.exit(code)


if __name__ == "__main__":
    main()
