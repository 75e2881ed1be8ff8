"""Seconds a round beside Opacus, pfl-research and Flower with Opacus, on the same private job.

    python scripts/bench_peers.py [--rounds 20] [--clients 20] [--only opacus pfl ...]

The peers live in an environment of their own, build/peers, which sees the packages that are here
and adds what is missing; nothing here is changed. The job is in `peers.py`. Every peer has a
process of its own, in which our rounds are measured before and after its own, so that a ratio is of
times on one machine in one state. Medians over rounds, the first left out.

Before it is measured, a peer does two rounds without noise, which must end where the formulas say.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import venv
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import peers
from peers import Job, Result

ROOT = Path(__file__).resolve().parent.parent
HOME = ROOT / "build" / "peers"
PINNED = ("numpy", "scipy", "torch", "opacus", "flwr", "ray")  # what both have is the same
QUIET = ("privacy.noise_multiplier=0",)


class Peer(NamedTuple):
    """One row of the table.

    Attributes:
        run: the job, done.
        needs: what is installed for it.
        less: what it does less than ours.
        same: whether it ends, without noise, where the formulas say.
    """

    run: Callable[..., Result]
    needs: tuple[str, ...]
    less: str
    same: bool = True


OPACUS, PFL, FLOWER = ("torch", "opacus"), "pfl==0.6.0", ("flwr[simulation]", "torch", "opacus")
PEERS = {
    "opacus": Peer(
        lambda job, *_: peers.opacus(job),
        OPACUS,
        "no federation: a loop over clients, and a mean",
    ),
    "opacus-pooled": Peer(
        lambda job, *_: peers.opacus(job, pooled=True),
        OPACUS,
        "no clients: all records in one place, noise once a round",
        same=False,
    ),
    "pfl": Peer(
        lambda job, *_: peers.pfl(job),
        ("torch", PFL),
        "no clip of records: a client's update is clipped and noised as a whole",
        same=False,
    ),
    "pfl-opacus": Peer(
        lambda job, *_: peers.pfl(job, records=True),
        (*OPACUS, PFL),
        "the same, with Opacus in pfl's clients",
    ),
    "flower-opacus": Peer(
        peers.flower,
        FLOWER,
        "the same, in processes, by messages",
    ),
    "fedsofim-ray": Peer(
        lambda job, *_: peers.fedsofim(job, "ray"),
        ("flwr[simulation]",),
        "ours, in processes, by messages",
    ),
}


def main() -> None:
    """Install, measure and print; what was measured before Ctrl-C is printed, too."""
    options = arguments()
    if options.measure:
        print(json.dumps(measure(options.measure, options.clients, options.rounds)))
        return
    print("| | ms a round | ours, ms | over ours | what it does less |\n|---|---:|---:|---:|---|")
    python = environment()
    for name in options.only or PEERS:
        try:
            row = measured(python, name, options)
        except KeyboardInterrupt:
            raise SystemExit(f"\nstopped at {name}; what is above was measured") from None
        print(line(name, row), flush=True)


def arguments() -> argparse.Namespace:
    """What to measure."""
    first, *rest = (__doc__ or "").splitlines()
    parser = argparse.ArgumentParser(
        description=first,
        epilog="\n".join(rest),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rounds", type=int, default=20, help="of each (default: 20)")
    parser.add_argument("--clients", type=int, default=20, help="how many (default: 20)")
    parser.add_argument("--only", nargs="+", choices=list(PEERS), help="these peers alone")
    parser.add_argument("--timeout", type=float, default=900, help="seconds a peer may take (900)")
    parser.add_argument("--measure", choices=list(PEERS), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rounds < 3 or options.clients < 1:
        parser.error("at least 3 rounds, of which the first is not counted, and a client")
    return options


def environment() -> Path:
    """The peers' own environment, which sees the packages of this one behind its own."""
    python = HOME / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    if not python.exists():
        venv.create(HOME, with_pip=False)
    asked = "import sysconfig; print(sysconfig.get_path('purelib'))"
    packages = Path(subprocess.check_output([python, "-I", "-c", asked], text=True).strip())
    here = [place for place in sys.path if place.endswith("site-packages")]
    lines = [f"import site; site.addsitedir({place!r})" for place in here]
    (packages / "here.pth").write_text("\n".join([*lines, str(ROOT)]))
    pins = (ROOT / "constraints.txt").read_text().splitlines()
    kept = [pin for pin in pins if pin.split("==")[0] in PINNED]
    (HOME / "constraints.txt").write_text("\n".join(kept))
    return python


def measured(python: Path, name: str, options: argparse.Namespace) -> dict[str, Any]:
    """What a process of the peer's own found; or what went wrong, in a line."""
    install = ["-m", "pip", "install", "--quiet", "--constraint", str(HOME / "constraints.txt")]
    run = [__file__, "--measure", name]
    run += ["--rounds", str(options.rounds), "--clients", str(options.clients)]
    paths = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    variables = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
    done = None
    for what, command in (
        ("could not be installed", [*install, *PEERS[name].needs]),
        ("failed", run),
    ):
        try:
            done = subprocess.run(
                [str(python), *command],
                capture_output=True,
                text=True,
                env=variables,
                timeout=options.timeout,
            )
        except subprocess.TimeoutExpired:
            return {"fault": f"{what}: not done in {options.timeout:g} s"}
        if done.returncode:
            told = [said for said in done.stderr.splitlines() if said.strip()] or ["no word"]
            errors = [said for said in told if said.startswith("ERROR")] or told[-1:]
            return {"fault": f"{what}: {errors[0][:200]}"}
    assert done
    row: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return row


def measure(name: str, clients: int, rounds: int) -> dict[str, Any]:
    """Seconds of a peer's rounds and of ours, in this process."""
    peer = PEERS[name]
    check(peers.job(clients, 2, *QUIET), lambda job: peers.fedsofim(job))
    if peer.same:
        check(peers.job(clients, 2, *QUIET), lambda job: peer.run(job, *QUIET))
    job = peers.job(clients, rounds)
    ours = [s for _ in range(5) for s in peers.fedsofim(job)[0]]
    theirs = peer.run(job)[0]
    ours += [s for _ in range(5) for s in peers.fedsofim(job)[0]]
    return {"theirs": statistics.median(theirs), "ours": statistics.median(ours)}


def check(job: Job, run: Callable[[Job], Result]) -> None:
    """Refuse to measure what does not do the job."""
    off = float(np.abs(run(job)[1] - peers.expected(job)).max())
    if not off < 1e-4:
        raise SystemExit(f"it does another job: its parameters are off by {off:.2g}")


def line(name: str, row: dict[str, Any]) -> str:
    """A row of the table."""
    less = PEERS[name].less
    if "fault" in row:
        return f"| {name} | | | | {row['fault']} |"
    theirs, ours = 1e3 * row["theirs"], 1e3 * row["ours"]
    return f"| {name} | {theirs:.1f} | {ours:.2f} | {theirs / ours:.1f} x | {less} |"


if __name__ == "__main__":
    main()
