"""A client whose owner changed what runs on its machine: it answers each round in another bad way.

Python loads this by itself from PYTHONPATH, in every process of that client's SuperNode.
"""

import json
import os
import sys
from pathlib import Path

EVIL = "\x1b[31mBOO\nround 5 of 5: accuracy 99.99 %\n[bold red]<script>" + "x" * 5000


def _answer(app, message, context):
    """An honest answer, spoiled."""
    import numpy as np
    from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

    reply = HONEST(app, message, context)
    said = dict(reply.content["config"])
    if "round" not in said:
        return reply  # its hello is honest, else it would not be asked
    t = int(said["round"])
    shape = reply.content["arrays"]["release"].shape
    release = Array(np.zeros(shape, np.float32))
    if t == 0:
        release = Array("float32", shape, "numpy.ndarray", b"")
    elif t == 1:
        said["sizes"] = [10**18]
    elif t == 2:
        said["charged"] = 1e9
    elif t == 3:
        said["error"] = EVIL
    else:
        Array.deflate = _swollen
        release = Array("float32", shape, "numpy.ndarray", bytes(1 << 20))
    with Path(os.environ["EVIL_LOG"]).open("a") as log:
        log.write(f"{t}\n")
    content = {"arrays": ArrayRecord({"release": release}), "config": ConfigRecord(said)}
    return Message(RecordDict(content), reply_to=message)


def _swollen(array):
    """An array that says it is made of the same megabyte a hundred thousand times."""
    from flwr.supercore.inflatable.inflatable_object import add_header_to_object_body

    head = {"dtype": array.dtype, "shape": array.shape, "stype": array.stype}
    body = json.dumps({**head, "arraychunk_ids": [0] * 100_000}).encode()
    return add_header_to_object_body(object_body=body, obj=array)


if any("clientapp" in word for word in sys.orig_argv):
    from flwr.clientapp import ClientApp

    HONEST = ClientApp.__call__
    ClientApp.__call__ = _answer
