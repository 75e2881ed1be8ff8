"""The paper's figures from measured runs, as PNG and SVG."""

from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from fedsofim.config.compose import EPSILONS
from fedsofim.core.errors import ConfigError
from fedsofim.reports.tables import Score
from fedsofim.studies.reproduce import ABLATIONS, METHODS, ROUNDS, Runs, Theirs

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Curves = Mapping[tuple[float, str], Runs]


def convergence(curves: Curves, theirs: Theirs, title: str, stem: Path) -> None:
    """Accuracy by round, a panel for each budget; ours above, the paper's below."""
    plt = _pyplot()
    figure, axes = plt.subplots(2, len(EPSILONS), figsize=(16, 8), sharex=True, sharey=True)
    for (above, below), epsilon in zip(axes.T, EPSILONS, strict=True):
        for style, method in _styled(curves):
            runs = curves[epsilon, method]
            scores = [runs.at(t) for t in ROUNDS]
            above.plot(ROUNDS, [s.mean for s in scores], label=method, **style)
            low, high = ([s.mean + sign * s.std for s in scores] for sign in (-1, 1))
            above.fill_between(ROUNDS, low, high, alpha=0.12, color=style["color"])
            below.plot(ROUNDS, [theirs[epsilon, method, t] for t in ROUNDS], **style)
        above.set(title=f"$\\varepsilon$ = {epsilon:g}")
        below.set(xlabel="round", xticks=ROUNDS)
        for axis in (above, below):
            axis.grid(alpha=0.3)
    for row, whose in zip(axes, ("ours", "the paper's"), strict=True):
        row[0].set_ylabel(f"{whose}: test accuracy, %")
    lines, names = axes[0, 0].get_legend_handles_labels()
    figure.legend(lines, names, loc="lower center", ncols=len(names), fontsize=10)
    _save(figure, title, stem, room=0.05)


def ablation(
    ours: Mapping[tuple[str, float], Runs],
    theirs: Mapping[tuple[str, float], Score],
    title: str,
    stem: Path,
) -> None:
    """Accuracy at round 70 of SOFIM and what it is without its parts; ours left, the paper's."""
    plt = _pyplot()
    figure, axes = plt.subplots(1, 2, figsize=(11, 4.5), sharey=True)
    scores = ({key: runs.at(70) for key, runs in ours.items()}, theirs)
    for axis, shown, whose in zip(axes, scores, ("ours", "the paper's"), strict=True):
        for i, variant in enumerate(ABLATIONS):
            places = [k + 0.27 * (i - 1) for k in range(len(EPSILONS))]
            means = [shown[variant, e].mean for e in EPSILONS]
            stds = [shown[variant, e].std for e in EPSILONS]
            bars = axis.bar(places, means, 0.25, yerr=stds, capsize=2, label=variant)
            axis.bar_label(bars, fmt="%.1f", fontsize=7, padding=2)
        axis.set_xticks(range(len(EPSILONS)), [f"$\\varepsilon$ = {e:g}" for e in EPSILONS])
        axis.set(title=whose, ylim=(40, 80))
        axis.grid(axis="y", alpha=0.3)
    axes[0].set_ylabel("test accuracy at round 70, %")
    axes[0].legend(loc="upper left", fontsize=8, ncols=len(ABLATIONS))
    _save(figure, title, stem)


def frontier(curves: Curves, title: str, stem: Path) -> None:
    """Accuracy after the last round against the budget."""
    plt = _pyplot()
    figure, axis = plt.subplots(figsize=(8.5, 4.5))
    for style, method in _styled(curves):
        scores = [curves[epsilon, method].at(70) for epsilon in EPSILONS]
        means, stds = [s.mean for s in scores], [s.std for s in scores]
        axis.errorbar(EPSILONS, means, stds, label=method, capsize=2, **style)
    axis.set(xscale="log", xlabel="$\\varepsilon$", ylabel="test accuracy at round 70, %")
    axis.set_xticks(EPSILONS, [f"{e:g}" for e in EPSILONS])
    axis.grid(alpha=0.3)
    axis.legend(loc="center left", bbox_to_anchor=(1, 0.5), fontsize=8)  # over no line
    _save(figure, title, stem)


def _styled(curves: Curves) -> list[tuple[dict[str, Any], str]]:
    """How each method is drawn, in all figures alike; ours is on top."""
    shown = {method for _, method in curves}
    *others, ours = METHODS
    # Dashes, since some methods are the same as others, and lie on them.
    styles: dict[str, dict[str, Any]] = {
        m: {"color": f"C{i}", "linestyle": ("-", "--", "-.")[i % 3], "linewidth": 1.3, "zorder": 2}
        for i, m in enumerate(others)
    }
    styles[ours] = {"color": "black", "linewidth": 2.4, "zorder": 3}
    return [(style, method) for method, style in styles.items() if method in shown]


def _save(figure: "Figure", title: str, stem: Path, room: float = 0.0) -> None:
    """Write a figure, with some room below for a legend."""
    figure.suptitle(title)
    figure.tight_layout(rect=(0, room, 1, 1))
    for ending in ("png", "svg"):
        figure.savefig(stem.with_suffix(f".{ending}"), dpi=150)
    _pyplot().close(figure)


def _pyplot() -> ModuleType:
    try:
        import matplotlib
    except ImportError:
        raise ConfigError("figures need matplotlib: pip install 'fedsofim[figures]'") from None
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    return plt
