"""The paper's figures from measured runs, as PNG and SVG."""

from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from fedsofim.config.compose import EPSILONS
from fedsofim.core.errors import ConfigError
from fedsofim.studies.reproduce import Runs

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Curves = Mapping[tuple[float, str], Runs]


def convergence(curves: Curves, title: str, stem: Path) -> None:
    """Accuracy by round, a panel for each budget, with a band of one standard deviation."""
    plt = _pyplot()
    figure, axes = plt.subplots(1, len(EPSILONS), figsize=(16, 4), sharey=True)
    for axis, epsilon in zip(axes, EPSILONS, strict=True):
        for style, method in _styled(curves):
            runs = curves[epsilon, method]
            scores = [runs.at(t) for t in runs.accuracy]
            axis.plot(list(runs.accuracy), [s.mean for s in scores], label=method, **style)
            low, high = ([s.mean + sign * s.std for s in scores] for sign in (-1, 1))
            axis.fill_between(list(runs.accuracy), low, high, alpha=0.12, color=style["color"])
        axis.set(title=f"$\\varepsilon$ = {epsilon:g}", xlabel="round")
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("test accuracy, %")
    axes[-1].legend(loc="lower right", fontsize=8)
    _save(figure, title, stem)


def frontier(curves: Curves, title: str, stem: Path) -> None:
    """Accuracy after the last round against the budget."""
    plt = _pyplot()
    figure, axis = plt.subplots(figsize=(7, 4.5))
    for style, method in _styled(curves):
        scores = [curves[epsilon, method].at(70) for epsilon in EPSILONS]
        means, stds = [s.mean for s in scores], [s.std for s in scores]
        axis.errorbar(EPSILONS, means, stds, label=method, capsize=2, **style)
    axis.set(xscale="log", xlabel="$\\varepsilon$", ylabel="test accuracy at round 70, %")
    axis.set_xticks(EPSILONS, [f"{e:g}" for e in EPSILONS])
    axis.grid(alpha=0.3)
    axis.legend(fontsize=8)
    _save(figure, title, stem)


def _styled(curves: Curves) -> list[tuple[dict[str, Any], str]]:
    methods = list(dict.fromkeys(method for _, method in curves))
    last = len(methods) - 1  # ours, on top
    return [
        ({"color": f"C{i}", "linewidth": 2.4 if i == last else 1.2, "zorder": 2 + (i == last)}, m)
        for i, m in enumerate(methods)
    ]


def _save(figure: "Figure", title: str, stem: Path) -> None:
    figure.suptitle(title)
    figure.tight_layout()
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
