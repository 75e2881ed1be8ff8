"""Observers of a run while it trains: silent, plain text, or a terminal (`cli/terminal.py`)."""

import sys
from pathlib import Path
from typing import TextIO

from fedsofim.data.download import EXTRACTING
from fedsofim.runs.directory import Row
from fedsofim.runs.experiment import DEVICE, Experiment


class Observer:
    """An observer that shows nothing; the base of those that do."""

    def watch(self, what: str, done: int, total: int) -> None:
        """A download or an extraction has got so far; before `announce`."""

    def announce(self, experiment: Experiment, epsilon: float, done: int) -> None:
        """Training begins.

        Args:
            experiment: the run, made ready.
            epsilon: what it will have spent after its last round.
            done: rounds done already, in a run that is continued.
        """

    def round(self, row: Row) -> None:
        """A round is done."""

    def result(self, summary: Row, rows: list[Row], path: Path | None) -> None:
        """The run is finished, and written to `path`, if anywhere."""

    def close(self) -> None:
        """The last call, whether or not the run was finished."""


class Text(Observer):
    """Plain lines: for logs, and for notebooks, where one line tells the progress.

    Args:
        overwrite: whether the line of a round replaces the one before.
        out: where to; by default the standard output of the moment.
    """

    def __init__(self, *, overwrite: bool = False, out: TextIO | None = None) -> None:
        self._overwrite, self._out = overwrite, out
        self._rounds, self._width = 0, 0

    def say(self, line: str) -> None:
        """One line."""
        self.close()
        print(line, file=self._out or sys.stdout, flush=True)

    def watch(self, what: str, done: int, total: int) -> None:
        if self._overwrite:
            self._replace(f"{what}: {done:,} of {total:,}")
        elif what.startswith(EXTRACTING) and done == total:
            self.say(f"{what}: {total:,} done")

    def announce(self, experiment: Experiment, epsilon: float, done: int) -> None:
        self._rounds = experiment.config.rounds
        for line in announcement(experiment, epsilon):
            self.say(line)
        if done < self._rounds:
            self._tell(f"round {done + 1} of {self._rounds} …")

    def round(self, row: Row) -> None:
        t, often = row["round"], max(1, self._rounds // 7)
        if self._overwrite or t % often == 0 or t == self._rounds:
            self._tell(f"round {t} of {self._rounds}{score(row)}")

    def result(self, summary: Row, rows: list[Row], path: Path | None) -> None:
        for line in conclusion(summary, rows, path):
            self.say(line)

    def close(self) -> None:
        if self._width:
            print(file=self._out or sys.stdout, flush=True)
        self._width = 0

    def _tell(self, line: str) -> None:
        if self._overwrite:
            self._replace(line)
        else:
            self.say(line)

    def _replace(self, line: str) -> None:
        print(f"\r{line:<{self._width}}", end="", file=self._out or sys.stdout, flush=True)
        self._width = len(line)


# Words that begin a line, and call for attention.
ALARMS = ("NOT PRIVATE", "WEAK PROMISE", "DIVERGED")


def announcement(experiment: Experiment, epsilon: float) -> list[str]:
    """What is about to be run, and what it promises, in plain lines."""
    config, plan = experiment.config, experiment.plan
    n, size = config.partition.clients, config.schedule.size
    dealt = "each with its owner" if experiment.deployed else config.partition.name
    lines = [
        f"{config.strategy_name} on {config.dataset.name}: {n} clients ({dealt}), "
        f"{config.rounds} rounds, {experiment.theta.size} parameters"
    ]
    if experiment.made or not config.model.linear:
        features = f"; features were made on {experiment.made}" if experiment.made else ""
        lines.append(f"device: {DEVICE}{features}")
    if config.note:
        lines.append(config.note)
    if plan.releases == 0 and not plan.shares:
        return [*lines, "nothing is sent: epsilon 0 for every record, without noise"]
    if not config.private:
        why = "no noise is added"
        if config.transform.source == "private":
            why = f"transform={config.transform.name} reads private records, unprotected"
        return [*lines, f"NOT PRIVATE {why}: anything may leak."]
    if size < n:
        lines.append(
            f"{size} clients a round; a record is charged for at most "
            f"{config.schedule.busiest(config.rounds)} of the rounds, its client's"
        )
    sizes = experiment.partition.get("sizes", [])  # an owner that is not there yet has none
    doubt = config.privacy.doubt(sum(size or 0 for size in sizes))
    noise = (
        f"noise multiplier {plan.noise_multiplier:.4g}, std {plan.noise_std:.4g} on a sum clipped "
        f"at {plan.clip:g}"
    )
    if plan.releases == 0:
        noise = f"all of it for one release of each: {', '.join(s.name for s in config.stages)}"
    return [
        *lines,
        f"epsilon {epsilon:.6g} at delta {plan.delta:g} for one record "
        f"({config.privacy.adjacency}); {noise}; trust {config.privacy.trust}",
        *([f"WEAK PROMISE {doubt}"] if doubt else []),
    ]


def conclusion(summary: Row, rows: list[Row], path: Path | None) -> list[str]:
    """What was reached and spent, in plain lines."""
    lines, last = [], rows[-1]
    if "accuracy_std" in summary:
        lines.append(
            f"over {summary['clients']} clients, each with its own model and test set: accuracy "
            f"{100 * summary['accuracy']:.2f} ± {100 * summary['accuracy_std']:.2f} %, "
            f"worst decile {100 * summary['accuracy_worst_decile']:.2f} %"
        )
    if summary["epsilon"] is not None:
        lines.append(
            f"spent: epsilon {summary['epsilon']:.6g} at delta {summary['delta']:g}; "
            f"noise multiplier {summary['noise_multiplier']:.4g}, std {summary['noise_std']:.4g}"
        )
    if "phases" in summary:
        lines.append(f"extended: {summary['phases']}")
    if last["theta_norm"] is None or (last["accuracy"] is not None and last["loss"] is None):
        lines.append("DIVERGED lower strategy.lr, or ask for less privacy.")
    return [*lines, f"Written to {path}"] if path else lines


def score(row: Row) -> str:
    """What is known of a round beyond its number: nothing where there is no test set."""
    return "" if row["accuracy"] is None else f": accuracy {percent(row)} %"


def percent(row: Row) -> str:
    """The accuracy of a round, or a dash where there is no test set."""
    return "-" if row["accuracy"] is None else f"{100 * row['accuracy']:.2f}"
