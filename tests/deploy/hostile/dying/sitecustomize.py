"""A client whose machine stops, as if the power were cut, when it is asked in a certain stage.

Python loads this by itself from PYTHONPATH, in every process of that client's SuperNode. DIES_IN
names the stage; the file that DIES_PID names holds the SuperNode's process.
"""

import os
import signal
import sys
from pathlib import Path


def _answer(app, message, context):
    """An honest answer, until the stage comes."""
    words = dict(message.content["config"]).get("words") or [b"\0"]
    if words[0][:1] == bytes([int(os.environ["DIES_IN"])]):
        os.kill(int(Path(os.environ["DIES_PID"]).read_text()), signal.SIGKILL)
        os._exit(1)
    return HONEST(app, message, context)


if any("clientapp" in word for word in sys.orig_argv):
    from flwr.clientapp import ClientApp

    HONEST = ClientApp.__call__
    ClientApp.__call__ = _answer
