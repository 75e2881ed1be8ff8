"""A client that writes what it adds to a sum, before it is masked, into the folder TOLD names.

Python loads this by itself from PYTHONPATH, in every process of that client's SuperNode.
"""

import os
import sys
import uuid
from pathlib import Path


def _answer(app, message, context):
    """An honest answer, of which the test hears more than the server."""
    from fedsofim.clients.gradient import Gradient

    honest = Gradient.contribute

    def told(self, *given):
        added, state = honest(self, *given)
        (Path(os.environ["TOLD"]) / f"{uuid.uuid4()}.draft").write_bytes(added.tobytes())
        return added, state

    Gradient.contribute = told
    return HONEST(app, message, context)


if any("clientapp" in word for word in sys.orig_argv):
    from flwr.clientapp import ClientApp

    HONEST = ClientApp.__call__
    ClientApp.__call__ = _answer
