"""Differentially private federated learning with second-order methods.

    import fedsofim
    history = fedsofim.run(strategy="sofim", data=(X, y, X_test, y_test), epsilon=1, rounds=70)

The names in `__all__` are loaded when they are first used, so that the import takes no time.
"""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedsofim.api import (
        Calibration,
        Config,
        ConfigError,
        History,
        Model,
        Stopped,
        SweepResult,
        calibrate,
        load,
        resume,
        run,
        sweep,
    )
else:

    def __getattr__(name: str) -> object:
        if name not in __all__:
            raise AttributeError(f"module 'fedsofim' has no attribute {name!r}")
        from fedsofim import api

        return getattr(api, name)

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})


__version__ = "0.1.0"
__all__ = [
    "Calibration",
    "Config",
    "ConfigError",
    "History",
    "Model",
    "Stopped",
    "SweepResult",
    "__version__",
    "calibrate",
    "load",
    "resume",
    "run",
    "sweep",
]

# In a checkout, and in Flower's app bundle, the rooms strategies/, clients/, data/ and conf/ stand
# beside this folder; in a wheel they are inside it.
if not (_here := Path(__file__).resolve().parent).joinpath("strategies").is_dir():
    __path__.append(str(_here.parent))
