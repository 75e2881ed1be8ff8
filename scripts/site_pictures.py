"""The site's small pictures, from real runs on the embedded features.

python scripts/site_pictures.py            # all: accuracy against epsilon, and a curve a method
python scripts/site_pictures.py epsilon    # docs/figures/accuracy-epsilon.svg alone
"""

import math
import sys
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

import fedsofim
from fedsofim.strategies import STRATEGIES

FIGURES = Path(__file__).resolve().parent.parent / "docs" / "figures"
EPSILONS = (0.5, 1, 2, 5, 10)
COLOURS = ("#3f51b5", "#e65100", "#00796b", "#8d8d8d")
PERSONAL = ("pfedsop", "fedavg_finetune", "ditto", "alone")
Points = Sequence[tuple[float, float]]


def drawn(
    lines: Mapping[str, Points],
    *,
    title: str,
    across: str,
    ticks: Mapping[float, str],
    size: tuple[int, int] = (420, 220),
) -> str:
    """A chart as SVG: percentages from the least to the largest value, and a name at each line."""
    width, height = size
    left, right, top, bottom = 40, 118, 28, 36
    values = [y for points in lines.values() for _, y in points]
    low, high = 5 * math.floor(min(values) / 5), 5 * math.ceil(max(values) / 5)
    first, last = min(ticks), max(ticks)

    def at(x: float, y: float) -> tuple[float, float]:
        across = left + (x - first) / (last - first) * (width - left - right)
        return across, top + (high - y) / (high - low) * (height - top - bottom)

    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
        f'width="{width}" height="{height}" font-family="sans-serif" font-size="11" fill="#444">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{width}" height="{height}" rx="6" fill="#fff"/>',
        f'<text x="{left}" y="16" font-size="12" fill="#111">{escape(title)}</text>',
    ]
    step = max(5, 5 * math.ceil((high - low) / 25))
    for y in range(low, high + 1, step):
        here = at(first, y)[1]
        out.append(f'<path d="M{left} {here:.1f}H{width - right}" stroke="#e3e3e3"/>')
        out.append(f'<text x="{left - 5}" y="{here + 4:.1f}" text-anchor="end">{y} %</text>')
    for x, label in ticks.items():
        here = at(x, low)[0]
        out.append(f'<text x="{here:.1f}" y="{height - 20}" text-anchor="middle">{label}</text>')
    middle = (left + width - right) / 2
    out.append(f'<text x="{middle}" y="{height - 5}" text-anchor="middle">{escape(across)}</text>')
    free = -99.0
    ends = sorted(lines.items(), key=lambda line: -line[1][-1][1])
    for name, points in ends:
        colour = COLOURS[list(lines).index(name) % len(COLOURS)]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in (at(*point) for point in points))
        out.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        free = max(free + 13, at(*points[-1])[1] + 4)
        out.append(f'<text x="{width - right + 6}" y="{free:.1f}" fill="{colour}">{name}</text>')
    return "\n".join([*out, "</svg>", ""])


def accuracy(**words: object) -> float:
    """Test accuracy after the last round, in percent."""
    return 100 * float(fedsofim.run(**words).accuracy[-1])


def against_epsilon() -> None:
    """What epsilon costs, with no tuning at all."""
    lines = {}
    for dataset, name in (("pathmnist", "PathMNIST"), ("cifar10", "CIFAR-10")):
        for trust, more in (("server", {}), ("aggregate", {"aggregation": "size"})):
            told = {"dataset": dataset, "settings": "auto", "trust": trust, **more}
            points = [(math.log(e), accuracy(epsilon=e, **told)) for e in EPSILONS]
            lines[f"{name}, sums" if trust == "aggregate" else name] = points
            print(dataset, trust, [round(y, 2) for _, y in points], flush=True)
    picture = drawn(
        lines,
        title="What privacy costs: test accuracy, DP-FedSOFIM, nothing tuned",
        across="epsilon (less is more private); 'sums': only sums are seen",
        ticks={math.log(e): f"{e:g}" for e in EPSILONS},
        size=(640, 280),
    )
    (FIGURES / "accuracy-epsilon.svg").write_text(picture)


def of_methods(names: Sequence[str]) -> None:
    """The accuracy of each method by round beside DP-FedGD, at epsilon 5, as configured."""
    reference = _curve("fedgd")
    for name in names:
        lines = {name: _curve(name)}
        if name not in ("fedgd", *PERSONAL):
            lines["fedgd"] = reference
        whose = "own test records" if name in PERSONAL else "test accuracy"
        picture = drawn(
            lines,
            title=f"{name}, CIFAR-10, epsilon 5: {whose}",
            across="round",
            ticks={t: str(t) for t in (1, 20, 40, 70)},
        )
        (FIGURES / f"method-{name}.svg").write_text(picture)
        print(name, round(lines[name][-1][1], 2), flush=True)


def _curve(name: str) -> Points:
    history = fedsofim.run(strategy=name, epsilon=5, rounds=70)
    return [(t + 1, 100 * float(y)) for t, y in enumerate(history.accuracy)]


if __name__ == "__main__":
    # The references of personal models are in docs/pfedsop.svg.
    usual = [name for name in STRATEGIES if name not in ("fedavg_finetune", "ditto")]
    asked = sys.argv[1:] or ["epsilon", *usual]
    if "epsilon" in asked:
        against_epsilon()
    of_methods([name for name in asked if name != "epsilon"])
