"""Draw the way of `fedsofim run` through the code: docs/figures/walk.svg.

    python scripts/walk.py

tests/test_walk.py runs the program and sees to it that the picture is true.
"""

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import NamedTuple

OUT = Path(__file__).resolve().parent.parent / "docs" / "figures" / "walk.svg"


class Stop(NamedTuple):
    """A file on the way, the function that is called there first, and what happens."""

    file: str
    function: str
    what: str


WALK: dict[str, Sequence[Stop]] = {
    "what was asked": (
        Stop("fedsofim/cli/main.py", "main", "finds the command, tells errors in one line"),
        Stop("fedsofim/cli/run.py", "main", "reads the arguments"),
        Stop("fedsofim/config/compose.py", "compose_many", "overrides become plain values"),
        Stop("fedsofim/config/schema.py", "parse", "plain values become a checked Config"),
        Stop("fedsofim/config/checks.py", "check", "refuses parts that do not go together"),
        Stop("fedsofim/privacy/plan.py", "plan", "the noise that keeps the budget"),
    ),
    "made ready": (
        Stop("fedsofim/runs/session.py", "run", "trains into a directory; nothing is lost"),
        Stop("fedsofim/runs/experiment.py", "prepare", "data, clients, first parameters"),
        Stop("data/datasets.py", "load", "features and labels"),
        Stop("data/partition.py", "split", "who holds which record"),
        Stop("fedsofim/runs/directory.py", "create", "the run's directory, resumable at once"),
    ),
    "a round": (
        Stop("fedsofim/engines/local.py", "run", "broadcast, release, step; again"),
        Stop("fedsofim/engines/simulation.py", "round", "all clients of a round"),
        Stop("clients/gradient.py", "release", "what a client sends"),
        Stop("clients/program.py", "noisy_gradients", "clipped sum, noise, mean: Eq. (2)"),
        Stop("fedsofim/models/crowd.py", "gradient_sums", "sums of clipped gradients"),
        Stop("fedsofim/privacy/mechanism.py", "noisy_means", "the noise that hides a record"),
        Stop("strategies/aggregation.py", "result", "the clients' releases become G"),
        Stop("strategies/sofim.py", "update", "the server's rule: Algorithm 1"),
    ),
    "and after it": (Stop("fedsofim/runs/evaluation.py", "measure", "one row of the metrics"),),
}

WIDTH, BOX, GAP, TOP, SPACE = 300, 46, 10, 34, 14
STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#1b1f24}.head{font-weight:600;font-size:14px}"
    ".file{font-weight:600}.what{fill:#57606a;font-size:11px}"
    "rect{fill:#f6f8fa;stroke:#0072b2;stroke-width:1.2}path{stroke:#0072b2;fill:none}"
)


def picture(walk: dict[str, Sequence[Stop]]) -> str:
    """The walk as SVG: a column for each part of it, a box for each file."""
    tallest = max(len(stops) for stops in walk.values())
    width, height = len(walk) * (WIDTH + SPACE) + SPACE, TOP + tallest * (BOX + GAP) + GAP
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
        f'width="{width}" height="{height}" aria-label="The way of fedsofim run through the code">'
        f'<style>{STYLE}</style><rect width="{width}" height="{height}" style="fill:#fff;'
        'stroke:none"/>'
    ]
    number = 0
    for column, (name, stops) in enumerate(walk.items()):
        x = SPACE + column * (WIDTH + SPACE)
        out.append(f'<text x="{x}" y="22" class="head">{escape(name)}</text>')
        for row, stop in enumerate(stops):
            number += 1
            y = TOP + row * (BOX + GAP)
            if row:
                out.append(f'<path d="M{x + 20} {y - GAP}v{GAP}"/>')
            out.append(f'<rect x="{x}" y="{y}" width="{WIDTH}" height="{BOX}" rx="6"/>')
            told = f"{number} {stop.file.removeprefix('fedsofim/')}: {stop.function}"
            out.append(f'<text x="{x + 10}" y="{y + 19}" class="file">{escape(told)}</text>')
            out.append(f'<text x="{x + 10}" y="{y + 36}" class="what">{escape(stop.what)}</text>')
    return "".join(out) + "</svg>\n"


def main() -> None:
    """Write the picture."""
    OUT.write_text(picture(WALK))
    print(f"Written to {OUT}")


if __name__ == "__main__":
    main()
