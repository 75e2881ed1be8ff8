"""A server that runs signed code on its clients, and something else on its own machine.

Python loads this by itself from PYTHONPATH, in every process of the SuperLink. What the clients
answered is written to the file that EVIL_LOG names.
"""

import json
import os
import sys
from pathlib import Path


def _requests(job):
    """What no owner may answer, by name: the arrays and the values of a question."""
    import numpy as np
    from flwr.app import Array

    theta = np.zeros((3, 7), np.float32)
    usual = {"job": json.dumps(job), "run": "ab", "round": 0, "clients": [0]}

    def other(**changes):
        changed = json.loads(json.dumps(job))
        for key, value in changes.items():
            room, name = key.split("__")
            changed[room][name] = value
        return {**usual, "job": json.dumps(changed)}

    huge = Array("float32", (1 << 40,), "numpy.ndarray", Array(theta).data)
    return {
        "a stack of heads": ({"theta": Array(np.zeros((2, 3, 7), np.float32))}, usual),
        "not a number": ({"theta": Array(theta * np.nan)}, usual),
        "four terabytes": ({"theta": huge}, usual),
        "a pickle": ({"theta": Array("float32", (3, 7), "numpy.ndarray", b"\x80\x04.")}, usual),
        "someone else": ({"theta": Array(theta)}, {**usual, "clients": [1]}),
        "another directory": ({"theta": Array(theta)}, {**usual, "run": "../../evil"}),
        "a round that is not": ({"theta": Array(theta)}, {**usual, "round": -7}),
        "part of the noise": (
            {"theta": Array(theta)},
            {**other(privacy__trust="aggregate"), "round": 0},
        ),
        "no noise": ({"theta": Array(theta)}, other(privacy__epsilon=float("inf"))),
        "more than the budget": ({"theta": Array(theta)}, other(privacy__epsilon=1000.0)),
        "no words": ({}, {}),
    }


def _attack(app, grid, context):
    """Ask the first node for everything, and write down what it says."""
    from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict

    from fedsofim.federation.messages import exchange

    said = {}
    job = json.loads(Path(os.environ["EVIL_JOB"]).read_text())
    (node,) = grid.get_node_ids()
    for name, (arrays, values) in _requests(job).items():
        content = RecordDict({"arrays": ArrayRecord(arrays), "config": ConfigRecord(values)})
        message = Message(content, node, "train")
        for reply in exchange(grid, [message], 60, singly=True):
            failed = reply.has_error()
            kept = {} if failed else dict(reply.content["config"])
            sent = [] if failed else list(reply.content["arrays"])
            said[name] = {"error": str(kept.get("error", "")), "failed": failed, "arrays": sent}
        Path(os.environ["EVIL_LOG"]).write_text(json.dumps(said))


if any("serverapp" in word for word in sys.orig_argv):
    from flwr.serverapp import ServerApp

    ServerApp.__call__ = _attack
