"""The way in from Python; `import fedsofim` shows the same names.

Nothing here ends the program or keeps state between calls: mistakes are a `ConfigError`, a stop
that was asked for is `Stopped`.
"""

from fedsofim.api.config import Config
from fedsofim.api.history import History
from fedsofim.api.model import Model
from fedsofim.api.studies import SweepResult, calibrate, sweep
from fedsofim.api.training import load, resume, run
from fedsofim.core.errors import ConfigError, Stopped
from fedsofim.runs.calibration import Calibration

__all__ = [
    "Calibration",
    "Config",
    "ConfigError",
    "History",
    "Model",
    "Stopped",
    "SweepResult",
    "calibrate",
    "load",
    "resume",
    "run",
    "sweep",
]
