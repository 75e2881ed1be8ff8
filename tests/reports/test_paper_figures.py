"""The paper's figures have a panel for each budget, and the paper's values beside ours."""

import pytest

pytest.importorskip("matplotlib")

from fedsofim.config.compose import EPSILONS
from fedsofim.reports import figures
from fedsofim.reports.tables import Score
from fedsofim.studies.reproduce import ABLATIONS, METHODS, ROUNDS, Runs


@pytest.fixture
def drawn(monkeypatch):
    """The figures that are saved, kept open."""
    kept = []
    monkeypatch.setattr(figures, "_save", lambda figure, *rest, **more: kept.append(figure))
    yield kept
    for figure in kept:
        figures._pyplot().close(figure)


def test_curves_stand_above_the_papers(drawn, tmp_path):
    ours = {(e, m): Runs({t: [0.4, 0.5] for t in ROUNDS}, []) for e in EPSILONS for m in METHODS}
    theirs = {(e, m, t): 60.0 + t / 10 for e in EPSILONS for m in METHODS for t in ROUNDS}
    figures.convergence(ours, theirs, "title", tmp_path / "x")
    above, below = drawn[0].axes[: len(EPSILONS)], drawn[0].axes[len(EPSILONS) :]
    assert [axis.get_title() for axis in above] == [rf"$\varepsilon$ = {e:g}" for e in EPSILONS]
    for axis in above:
        assert {tuple(line.get_ydata()) for line in axis.lines} == {(45.0,) * len(ROUNDS)}
    for axis in below:
        assert [list(line.get_ydata()) for line in axis.lines] == [
            [60.0 + t / 10 for t in ROUNDS] for _ in METHODS
        ]
    shown = [text.get_text() for text in drawn[0].legends[0].get_texts()]
    assert shown == list(METHODS)


def test_bars_stand_beside_the_papers(drawn, tmp_path):
    keys = [(v, e) for v in ABLATIONS for e in EPSILONS]
    ours = {key: Runs({70: [0.5, 0.6]}, []) for key in keys}
    theirs = {key: Score(66.0, 1.0) for key in keys}
    figures.ablation(ours, theirs, "title", tmp_path / "x")
    for axis, height in zip(drawn[0].axes, (55.0, 66.0), strict=True):
        assert [p.get_height() for p in axis.patches] == pytest.approx([height] * len(keys))


def test_they_are_written_as_png_and_svg(tmp_path):
    ours = {(e, m): Runs({70: [0.4, 0.5]}, []) for e in EPSILONS for m in list(METHODS)[:2]}
    figures.frontier(ours, "title", tmp_path / "x")
    assert {f.name for f in tmp_path.iterdir()} == {"x.png", "x.svg"}
