"""Clients that leave a copy of what they add to a sum, and a server that waits to be looked into.

Python loads this by itself from PYTHONPATH, in every process of the deployment. The copies, plain
and masked, go to the folder that WITNESS names. The ServerApp stops at two moments of each sum,
when the last masked vector has come and when the total is there, until somebody has looked.
"""

import itertools
import os
import sys
import time
from pathlib import Path

FOLDER = Path(os.environ["WITNESS"])
MASK = 3
COUNT = itertools.count()


def _leaving(app, message, context):
    """An honest answer, and a copy of what went into it."""
    from fedsofim.federation.sum_owner import SumOwner

    add, answer = SumOwner._added, SumOwner.answer

    def added(self, terms, request, received):
        plain = add(self, terms, request, received)
        (FOLDER / f"plain-{request.t}-{self.client.id}").write_bytes(plain.tobytes())
        return plain

    def answered(self, terms, request, question, received):
        reply = answer(self, terms, request, question, received)
        if reply[0] == MASK:  # the stage, a length of 4 bytes, and the vector
            size = int.from_bytes(reply[1:5], "little")
            place = FOLDER / f"masked-{request.t}-{self.client.id}"
            place.write_bytes(reply[5 : 5 + size])
        return reply

    SumOwner._added, SumOwner.answer = added, answered
    return HONEST(app, message, context)


def _waiting(app, grid, context):
    """An honest server, that stops to be looked into."""
    from fedsofim.secagg.server import Server

    take, close = Server.take, Server.close

    def taken(self, number, reply):
        if self.stage == MASK and self.waiting == {number}:
            _stop("masked")
        return take(self, number, reply)

    def closed(self):
        requests = close(self)
        if self.result is not None:
            _stop("total")
        return requests

    Server.take, Server.close = taken, closed
    return HONEST(app, grid, context)


def _stop(moment):
    place = FOLDER / f"{next(COUNT)}-{moment}.stop"
    place.touch()
    while place.exists():
        time.sleep(0.05)


if any("clientapp" in word for word in sys.orig_argv):
    from flwr.clientapp import ClientApp

    HONEST, ClientApp.__call__ = ClientApp.__call__, _leaving

if any("serverapp" in word for word in sys.orig_argv):
    from flwr.serverapp import ServerApp

    HONEST, ServerApp.__call__ = ServerApp.__call__, _waiting
