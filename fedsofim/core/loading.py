"""Objects that a user names: `package.module:Name`."""

import difflib
import importlib
import os
import sys

from fedsofim.core.errors import ConfigError


def load_object(text: str, where: str) -> object:
    """The object that `text` names, as `package.module:Name`.

    The current folder is searched as well, last: a file there hides no installed package.

    Args:
        text: the name.
        where: the key that it was given for, which begins every error message.
    """
    place, _, name = text.partition(":")
    told = f"{where}={text}"
    if not (name.isidentifier() and all(part.isidentifier() for part in place.split("."))):
        raise ConfigError(f"{told}: must be package.module:Name")
    if place == "__main__":
        raise ConfigError(f"{told}: other processes cannot import it; move it to a module")
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.append(os.getcwd())
    importlib.invalidate_caches()  # the file may be younger than this process
    try:
        module = importlib.import_module(place)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{place}.".startswith(f"{error.name}."):
            raise ConfigError(f"{told}: cannot be imported ({error})") from None
        raise ConfigError(
            f"{told}: there is no module {error.name}, neither in the current folder nor installed"
        ) from None
    except ConfigError as error:
        raise ConfigError(f"{told}: {error}") from None
    except Exception as error:  # a module of the user's can fail in any way
        kind = type(error).__name__
        raise ConfigError(f"{told}: cannot be imported ({kind}: {error})") from None
    if not hasattr(module, name):
        close = difflib.get_close_matches(name, vars(module), n=1)
        hint = f"; did you mean {close[0]}?" if close else ""
        raise ConfigError(f"{told}: {place} has no {name}{hint}")
    found: object = getattr(module, name)
    return found
