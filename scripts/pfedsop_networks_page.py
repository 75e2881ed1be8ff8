"""What scripts/pfedsop_networks.py adds to the page on personal models: tables and curves."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from pfedsop_page import table_row

from fedsofim.core.arrays import Array

TITLES = {
    "pfedsop": "pFedSOP",
    "fedavg+0": "FedAvg",
    "fedavg+10": "FedAvg + 10 steps",
    "ditto": "Ditto",
    "alone": "local-only",
}

UNMEASURED = """## Networks

    python scripts/pfedsop_networks.py cifar10.npz

The paper's own experiments are deep. With `model=cnn|mlp|module` the four methods are the same
programs on a flat array of parameters, one network for every client. They are tested against torch,
and not measured yet: the command takes some ten minutes of one core, and writes this part."""


class Networks:
    """The numbers of all runs.

    Args:
        runs: as the script wrote them.
    """

    def __init__(self, runs: Sequence[Mapping[str, Any]]) -> None:
        self.runs = runs
        self.splits = list(dict.fromkeys(run["split"] for run in self.runs))
        self.seeds = sorted({run["seed"] for run in self.runs})
        curve = next(iter(self.runs[0]["curves"].values()))
        self.rounds = [int(t) for t in curve]

    def accuracies(self, split: str, name: str, t: int) -> Array:
        """Every client's accuracy in percent at a round, `(seeds, clients)`."""
        curves = [r["curves"].get(name) for r in self.runs if r["split"] == split]
        return 100 * np.array([curve[str(t)] for curve in curves if curve is not None])

    def means(self, split: str, name: str, t: int) -> Array:
        """The mean client's accuracy in percent at a round, `(seeds,)`."""
        return np.asarray(self.accuracies(split, name, t).mean(axis=1))

    def table(self) -> Iterator[str]:
        """Accuracy by round."""
        yield table_row("split", "method", *(f"round {t}" for t in self.rounds), "worst tenth")
        yield table_row("---", "---", *["---:"] * (len(self.rounds) + 1))
        for split in self.splits:
            last = {name: self.means(split, name, self.rounds[-1]) for name in TITLES}
            best = max(last, key=lambda name, last=last: float(last[name].mean()))
            for name, title in TITLES.items():
                *early, end = (self.means(split, name, t) for t in self.rounds)
                final = f"{end.mean():.1f}" + f" ± {end.std():.1f}" * (len(end) > 1)
                worst = worst_tenth(self.accuracies(split, name, self.rounds[-1]))
                final = f"**{final}**" if name == best else final
                yield table_row(
                    split, title, *(f"{e.mean():.1f}" for e in early), final, f"{worst:.1f}"
                )

    def gains(self) -> str:
        """How far each is above training alone, in each split, seed by seed."""
        parts = []
        for split in self.splits:
            t = self.rounds[-1]
            apart = {
                TITLES[name]: self.means(split, name, t) - self.means(split, "alone", t)
                for name in TITLES
                if name != "alone"
            }
            told = (f"{name} {span(d)}" for name, d in apart.items())
            parts.append(f"{split}: {', '.join(told)}.")
        seeds = ", from the worst to the best seed" * (len(self.seeds) > 1)
        return f"After the last round, in points above local-only{seeds}. {' '.join(parts)}"

    def cost(self) -> str:
        """How long it all took."""
        return f"{sum(run['cpu_seconds'] for run in self.runs) / 60:.0f} minutes of one core"

    def draw(self, file: Path) -> None:
        """The mean client's accuracy by round, a panel for each split, one curve a method."""
        import matplotlib

        matplotlib.use("Agg")
        matplotlib.rcParams["svg.hashsalt"] = "fedsofim"  # the same file for the same numbers
        import matplotlib.pyplot as plt

        figure, axes = plt.subplots(1, len(self.splits), figsize=(13, 4))
        for axis, split in zip(axes, self.splits, strict=True):
            for i, (name, title) in enumerate(TITLES.items()):
                scores = [self.means(split, name, t) for t in self.rounds]
                mean, std = (np.array([f(s) for s in scores]) for f in (np.mean, np.std))
                axis.plot(self.rounds, mean, marker="o", markersize=3, color=f"C{i}", label=title)
                axis.fill_between(self.rounds, mean - std, mean + std, color=f"C{i}", alpha=0.15)
            axis.set(title=split, xlabel="round", ylabel="accuracy of the mean client, %")
            axis.grid(alpha=0.3)
        axes[0].legend()
        figure.tight_layout()
        figure.savefig(file, metadata={"Date": None})
        plt.close(figure)


def span(values: Array) -> str:
    """The least and the largest, or the one that there is."""
    ends = dict.fromkeys((values.min(), values.max()))
    return " to ".join(f"{value:+.1f}" for value in ends)


def worst_tenth(accuracies: Array) -> float:
    """The mean of the worst tenth of the clients, over seeds."""
    ordered = np.sort(accuracies, axis=1)
    return float(ordered[:, : -(-ordered.shape[1] // 10)].mean())


def values(docs: Path) -> dict[str, str]:
    """The text that the page takes, with the picture drawn beside it."""
    text = Path(__file__).with_name("pfedsop_networks.md").read_text().rstrip()
    numbers = docs / "pfedsop_networks.json"
    if not numbers.is_file():
        return {"networks": UNMEASURED}
    networks = Networks(json.loads(numbers.read_text()))
    networks.draw(docs / "pfedsop_networks.svg")
    found = {
        "table": "\n".join(networks.table()),
        "gains": networks.gains(),
        "cost": networks.cost(),
        "seeds": told(networks.seeds),
        "parameters": f"{networks.runs[0]['parameters']:,}",
    }
    for name, value in found.items():
        text = text.replace(f"{{{name}}}", value)
    return {"networks": text}


def told(seeds: Sequence[int]) -> str:
    """How many seeds, in words."""
    return {1: "one seed", 2: "mean of two seeds", 3: "mean of three seeds"}[len(seeds)]
