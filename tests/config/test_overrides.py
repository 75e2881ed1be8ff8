"""What is wrong with an override, in one line; and what is not an override's fault."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hydra.errors import ConfigCompositionException

from fedsofim.config.overrides import errors_in_one_line
from fedsofim.core.errors import ConfigError


@contextmanager
def cleaning_up() -> Iterator[None]:
    try:
        yield
    finally:
        raise AttributeError("half of it is not there")


def interrupted() -> None:
    """Ctrl-C as it comes from Hydra: the error of an error in cleaning up, without a word in it."""
    try:
        with cleaning_up():
            raise KeyboardInterrupt
    except AttributeError as error:
        raise ConfigCompositionException from error


def test_ctrl_c_while_a_config_is_composed_stays_ctrl_c() -> None:
    with pytest.raises(KeyboardInterrupt), errors_in_one_line([]):
        interrupted()


def test_other_errors_are_one_line() -> None:
    with pytest.raises(ConfigError, match=r"^two lines$"), errors_in_one_line([]):
        raise ConfigCompositionException("two\nlines")
