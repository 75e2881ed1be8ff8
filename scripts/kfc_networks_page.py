"""The page that scripts/kfc_networks.py writes: tables, curves, and what they say."""

import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedsofim.reports.svg import Point, line_chart, swatch

if TYPE_CHECKING:
    from kfc_networks import Run, Study

TITLES = {"CNN": "CNN, CIFAR-10", "MLP": "MLP, CIFAR-10", "text": "Text model, made-up texts"}


def write(study: "Study", docs: Path) -> None:
    """Write `kfc-networks.md`, around the text of `kfc_networks_page.md`, and its figures."""
    text = Path(__file__).with_suffix(".md").read_text()
    for model in TITLES:
        name = f"kfc-networks-{model.lower()}.svg"
        drawn = figure(study, model)
        if drawn:
            (docs / "figures" / name).write_text(drawn + "\n")
        picture = f"![{TITLES[model]}: accuracy by round](figures/{name})" if drawn else ""
        text = text.replace(f"<!-- {model} -->", "\n".join(table(study, model)))
        text = text.replace(f"<!-- {model} curves -->", picture)
        text = text.replace(f"<!-- {model} settings -->", "\n".join(settings(study, model)))
    (docs / "kfc-networks.md").write_text(text)
    print(f"Written to {docs / 'kfc-networks.md'}")


def cells(study: "Study", model: str) -> dict[tuple[str, int, float], list["Run"]]:
    """The finished runs of each cell."""
    from kfc_networks import SEEDS

    found: dict[tuple[str, int, float], list[Run]] = {}
    for seed in SEEDS:
        for run in study.finals(model, seed):
            if run in study.curves:
                found.setdefault((run.arm, run.clients, run.epsilon), []).append(run)
    return found


def table(study: "Study", model: str) -> Iterator[str]:
    """Accuracy after the last round, mean and standard deviation."""
    from kfc_networks import CLIENTS, EPSILONS, arms

    found = cells(study, model)
    if not found:
        yield f"**{TITLES[model]}:** not run yet."
        return
    where = [(c, e) for c in CLIENTS for e in EPSILONS]
    heads = [f"{'central' if c == 1 else f'{c} clients'}, eps {e}" for c, e in where]
    yield row(TITLES[model], *heads)
    yield row("---", *["---:"] * len(heads))
    for arm in arms(model):
        scores = [[study.accuracy(run) for run in found.get((arm, *w), [])] for w in where]
        yield row(arm, *map(cell, scores))


def cell(scores: list[float]) -> str:
    """Mean and standard deviation, in percent; how many seeds, if not all are there."""
    if not scores:
        return "–"
    told = f"{statistics.mean(scores):.1f}"
    told += f" ± {statistics.stdev(scores):.1f}" if len(scores) > 1 else ""
    return told if len(scores) == 3 else f"{told} ({len(scores)} of 3 seeds)"


def settings(study: "Study", model: str) -> Iterator[str]:
    """What was chosen: rate and clip, and the accuracy on held-out records."""
    from kfc_networks import arms

    tuned = study.place.size.tuned
    if not any(study.best(model, arm, e) for arm in arms(model) for e in tuned):
        yield f"**{TITLES[model]}:** not chosen yet."
        return
    yield row(TITLES[model], *(f"eps {e}" for e in tuned))
    yield row("---", *["---:"] * len(tuned))
    for arm in arms(model):
        chosen = [study.best(model, arm, e) for e in tuned]
        yield row(
            arm,
            *("–" if run is None else _setting(study, run) for run in chosen),
        )


def _setting(study: "Study", run: "Run") -> str:
    return f"{run.rate:.3g}, clip {run.clip:g} ({study.accuracy(run):.1f})"


def figure(study: "Study", model: str) -> str:
    """Accuracy by round at epsilon 3, one client and ten, with a legend: one SVG."""
    from kfc_networks import CLIENTS, arms

    found, panels, width, height = cells(study, model), [], 460, 300
    for i, clients in enumerate(CLIENTS):
        series = {
            arm: list(_line(study, found[arm, clients, 3]))
            for arm in arms(model)
            if (arm, clients, 3) in found
        }
        where = "one client" if clients == 1 else f"{clients} clients"
        chart = line_chart(
            series, title=f"{where}, epsilon 3, %", x="round", width=width, height=height
        )
        panels.append(f'<g transform="translate({i * width} 0)">{chart}</g>' if chart else "")
    if not any(panels):
        return ""
    legend = "".join(
        f'<g transform="translate({20 + 300 * (i % 3)} {height + 8 + 20 * (i // 3)})">{swatch(i)}'
        f'<text x="34" y="10" style="font:12px system-ui,sans-serif">{arm}</text></g>'
        for i, arm in enumerate(arms(model))
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {2 * width} {height + 52}" '
        f'width="{2 * width}" height="{height + 52}">{"".join(panels)}{legend}</svg>'
    )


def _line(study: "Study", runs: list["Run"]) -> Iterator[Point]:
    """Mean and standard deviation over seeds, by round."""
    curves = [study.curves[run] for run in runs]
    for points in zip(*curves, strict=True):
        scores = [100 * (p["accuracy"] or 0) for p in points]
        yield Point(points[0]["round"], float(np.mean(scores)), float(np.std(scores)))


def row(*entries: object) -> str:
    """A line of a table."""
    return f"| {' | '.join(map(str, entries))} |"
