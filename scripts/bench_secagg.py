"""What secure aggregation costs: bytes and CPU time of a client and of the server, by stage.

    python scripts/bench_secagg.py [--clients 10 100 1000] [--length 650] [--curve p256]

All clients of a session run one after the other in this process, each from its state as bytes, as
in a deployment. A tenth may collude, four fifths must be left, and with `--gone` that part of them
vanishes in the mask stage. Times are CPU seconds of this process, so other work on the machine
hardly changes them.
"""

import argparse
import time
from collections import defaultdict

import numpy as np
from cryptography.hazmat.primitives.asymmetric import ec

from fedsofim.secagg import primitives
from fedsofim.secagg.client import answer
from fedsofim.secagg.server import Server
from fedsofim.secagg.session import Policy, Session, check, default_threshold
from fedsofim.secagg.stages import Stage
from fedsofim.secagg.state import Member

CURVES = {"p256": ec.SECP256R1(), "p384": ec.SECP384R1()}


def measure(clients: int, length: int, curve: str, gone: float, recover: bool) -> dict[str, float]:
    """One session: seconds and bytes a client by stage, and the server's seconds."""
    c = clients // 10
    t = default_threshold(clients, c)
    session = Session(b"bench", length, t, c, *check(clients, t, c, recover=recover), recover)
    private = {i: ec.generate_private_key(CURVES[curve]) for i in range(clients)}
    keys: dict[int, primitives.PublicKey] = {i: key.public_key() for i, key in private.items()}
    x = np.arange(length)
    absent = set(range(round(gone * clients)))
    states, seconds, sizes = dict.fromkeys(keys, b""), defaultdict(float), defaultdict(float)
    server, clock = Server(session, keys), time.process_time
    begin = clock()
    asked = server.open(keys)
    seconds["server"] += clock() - begin
    while asked:
        stage, replies = server.stage, {}
        here = asked.keys() - (absent if stage >= Stage.MASK else set())
        for i in here:
            member = Member(i, private[i], keys, Policy(t, c), session)
            begin = clock()
            states[i], replies[i] = answer(states[i], asked[i], member, lambda: x)
            seconds[stage.name] += (clock() - begin) / len(here)
            sizes["in"] += len(asked[i]) / len(here)
            sizes["out"] += len(replies[i]) / len(here)
        begin = clock()
        for i, reply in replies.items():
            fault = server.take(i, reply)
            assert fault is None, fault
        asked = server.close()
        seconds["server"] += clock() - begin
    assert server.result is not None
    assert np.array_equal(server.result.total, x * (clients - len(absent)))
    k = 2 * session.window or clients - 1
    return {"neighbours": k, **seconds, **sizes}


def main() -> None:
    """Print a row for each number of clients, with and without recovery."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--clients", type=int, nargs="+", default=[10, 20, 100, 1000])
    parser.add_argument("--length", type=int, default=650)
    parser.add_argument("--curve", choices=list(CURVES), default="p256")
    parser.add_argument("--gone", type=float, default=0.0)
    given = parser.parse_args()
    names = [stage.name for stage in Stage]
    print(
        "| clients | neighbours | KB in | KB out | " + " | ".join(f"{n} ms" for n in names), end=""
    )
    print(" | a client, ms | server, ms |\n|" + "---:|" * (len(names) + 6))
    for recover in (True, False) if not given.gone else (True,):
        for n in given.clients:
            row = measure(n, given.length, given.curve, given.gone, recover)
            ms = [1e3 * row.get(name, 0.0) for name in names]
            cells = [f"{n:,}", f"{row['neighbours']}", f"{row['in'] / 1e3:.1f}"]
            cells += [f"{row['out'] / 1e3:.1f}", *(f"{value:.1f}" if value else "" for value in ms)]
            cells += [f"{sum(ms):.1f}", f"{1e3 * row['server']:.0f}"]
            print("| " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
