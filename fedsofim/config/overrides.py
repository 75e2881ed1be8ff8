"""What is wrong with a Hydra override, in one line."""

import difflib
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedsofim.core.errors import ConfigError, options, require


@contextmanager
def errors_in_one_line(overrides: Sequence[str]) -> Iterator[None]:
    """Turn Hydra's errors about overrides into errors of one line."""
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    try:
        yield
    except (HydraException, OmegaConfBaseException) as error:
        if _interrupted(error):
            raise KeyboardInterrupt from None
        raise ConfigError(_in_one_line(str(error), overrides)) from None


def listed(overrides: Sequence[str]) -> list[str]:
    """The overrides, with the commas of `track=` as one value rather than a choice of several.

    >>> listed(["seed=0,1", "track=tensorboard,wandb"])
    ['seed=0,1', "track='tensorboard,wandb'"]
    >>> listed(["track=null"])
    ['track=null']
    """
    for given in overrides:  # as of a shell's variable that is not set
        require(not given.startswith("="), f"{given}: has no key; give key=value, as in rounds=5")
    plain = re.compile(r"track=[\w.:]+(,[\w.:]+)+")
    return [f"track='{given[6:]}'" if plain.fullmatch(given) else given for given in overrides]


def _interrupted(error: BaseException | None) -> bool:
    """Whether Ctrl-C is behind an error: OmegaConf fails in cleaning up, and Hydra reports that."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error is not None


def _in_one_line(told: str, overrides: Sequence[str]) -> str:
    if match := re.search(r"Could not find '(.+)/(.+)'\s+Available options in .*:", told):
        known = told[match.end() :].partition("Config search path")[0].split()
        return f"{match[1]}={match[2]}: unknown; {options(known, match[2])}"
    if match := re.match(r"Could not override '(.+)'\.", told):
        found = meant(match[1], overrides)
        hint = f"did you mean {' or '.join(found)}?" if found else "'fedsofim run --help' has all"
        return f"{match[1]}: no such key; {hint}"
    if match := re.match(r"Ambiguous value for argument '(.+)'", told):
        return f"{match[1]}: several values; try --multirun, or 'fedsofim sweep'"
    if "override_grammar" in told and (wrong := [o for o in overrides if not _assigns(o)]):
        return f"{wrong[0]}: give a value, as in {_example(wrong[0], overrides)}"
    if "override_grammar" in told and (wrong := [o for o in overrides if not _readable(o)]):
        return f"{wrong[0]}: has characters with a meaning of their own; write {_quoted(wrong[0])}"
    lines = told.partition("Config search path")[0].splitlines()
    return " ".join(li for li in lines if not re.match(r"\s*(full_key|object_type)", li))


def _assigns(override: str) -> bool:
    """Whether it has the form of a key and a value.

    >>> [_assigns(given) for given in ("rounds=5", "~track", "rounds", "rounds =5")]
    [True, True, False, False]
    """
    return re.match(r"~|[+]*[\w.@/:-]+=", override) is not None


def _readable(override: str) -> bool:
    """Whether Hydra can make sense of it."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    try:
        OverridesParser.create().parse_override(override)
    except HydraException:
        return False
    return True


def _quoted(override: str) -> str:
    """What to write in a shell, so that a value is taken as it is.

    >>> print(_quoted("dataset.path=my data (2).npz"), _quoted("output.dir=it's"))
    'dataset.path="my data (2).npz"' 'output.dir="it'"'"'s"'
    """
    key, _, value = override.partition("=")
    if value.startswith("~/"):  # which a shell leaves to us, and nobody would expand in quotes
        value = str(Path(value).expanduser())
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return shlex.quote(f'{key}="{escaped}"')


def _example(override: str, overrides: Sequence[str]) -> str:
    key = override.partition("=")[0].strip()
    others = [given for given in overrides if given != override]
    return f"{(meant(key, others) or ['rounds'])[0]}=5"


def meant(key: str, overrides: Sequence[str] = ()) -> list[str]:
    """The existing keys that were probably meant by one that does not exist.

    Args:
        key: what was written, such as `epsilon`.
        overrides: the others, which choose the groups whose keys there are.
    """
    from fedsofim.config.compose import compose

    groups = [o for o in overrides if re.match(r"\w+=[\w.:-]+$", o) and not o.startswith(f"{key}=")]
    try:
        return nearest(key, names(compose(groups)))
    except Exception:  # something else is wrong as well
        return []


def instead_of(option: str) -> str:
    """What to write for an option such as `--rounds=5`, where keys are given without dashes."""
    key, equals, value = option.lstrip("-").partition("=")
    found = meant(key.replace("-", "_"))
    return f"did you mean {found[0]}{equals}{value}?" if found else ""


def names(values: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """All keys of a config, with dots."""
    for name, value in values.items():
        yield prefix + name
        if isinstance(value, dict):
            yield from names(value, f"{prefix}{name}.")


def nearest(key: str, known: Iterable[str]) -> list[str]:
    """The known keys that `key` most likely stands for; empty if none is near.

    >>> keys = ["rounds", "privacy.epsilon", "strategy.lr", "client.lr", "partition.clients"]
    >>> nearest("epsilon", keys), nearest("eps", keys), nearest("strategy.learning_rate", keys)
    (['privacy.epsilon'], ['privacy.epsilon'], ['strategy.lr'])
    >>> nearest("lr", keys), nearest("round", keys), nearest("unheard.of", keys)
    (['strategy.lr', 'client.lr'], ['rounds'], [])
    """
    known = list(known)
    group, _, last = key.rpartition(".")
    short = "".join(word[0] for word in last.split("_") if word) if "_" in last else last
    inside = [k for k in known if k.startswith(f"{group}.")] if group else known
    tails = {k: k.rpartition(".")[2] for k in inside}
    ways = (
        [k for k in inside if tails[k] == last],
        difflib.get_close_matches(key, known, n=1, cutoff=0.75),
        [k for k in inside if tails[k] == short],
        [k for k in inside if len(last) > 1 and tails[k].startswith(last)],
        difflib.get_close_matches(last, set(tails.values()), n=1, cutoff=0.75),
    )
    *exact, close = ways
    by_tail = [k for k in inside if tails[k] in close]
    return next((way for way in (*exact, by_tail) if way), [])
