"""Reading runs back, and the page that compares them."""

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser

import numpy as np
import pytest

from fedsofim.config.compose import compose
from fedsofim.core.errors import ConfigError
from fedsofim.reports import compare, curves
from fedsofim.runs.session import run as run_session
from fedsofim.studies.sweep import Sweep


def test_runs_are_told_apart_by_all_that_differs_but_the_seed(small, tmp_path):
    grid = ["seed=0,1", "dataset.holdout=0,0.3", "privacy.noise_multiplier=null,50"]
    Sweep.begin(tmp_path / "s", [*small, *grid]).run(1, lambda *_: None)
    found = curves.read([tmp_path / "s", tmp_path / "s"])  # given twice, read once
    assert len(found) == 8
    assert len({c.budget for c in found}) == 2  # z = 50 keeps less than 10
    assert len({c.setting for c in found}) == 2
    assert {c.label for c in found} == {"sofim"}


def test_labels_say_what_is_unusual_once(small, tmp_path):
    Sweep.begin(tmp_path / "s", [*small, "strategy.lr=0.1,0.2"]).run(1, lambda *_: None)
    run_session(compose([*small, "participation=0.5", "strategy.lr=0.1"]), tmp_path / "r")
    probes = tmp_path / "probes.npz"
    np.savez(probes, probe_x=np.random.default_rng(0).normal(size=(40, 5)).astype("f4"))
    kfc = ["transform=kfc", f"transform.probes={probes}", "strategy.lr=0.1"]
    run_session(compose([*small, *kfc]), tmp_path / "k")
    found = curves.read([tmp_path])  # all that is in it
    assert {c.label for c in found} == {
        "sofim, lr 0.1",
        "sofim, lr 0.2",
        "sofim, lr 0.1, participation 0.5",
        "sofim, transform kfc, lr 0.1",
    }


def test_an_unscored_run_is_no_curve_and_the_page_says_so(small, tmp_path):
    Sweep.begin(tmp_path / "s", small).run(1, lambda *_: None)
    run_session(compose(small), tmp_path / "r")
    (tmp_path / "r" / "metrics.jsonl").write_text('{"round": 1, "accuracy": null}\n')
    assert len(curves.read([tmp_path / "s", tmp_path / "r"])) == 1
    compare.write([tmp_path / "s", tmp_path / "r"], tmp_path / "page.html")
    told = (tmp_path / "page.html").read_text().split("no round was scored: ")[1].split("<")[0]
    assert told == str(tmp_path / "r")
    with pytest.raises(ConfigError, match="no round that was scored"):
        curves.read([tmp_path / "r"])


class Page(HTMLParser):
    """What a page contains."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.loads = [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.loads += [v for k, v in attributes if k in ("src", "href")]


def test_a_sweeps_page_is_self_contained_and_compares(small, tmp_path):
    overrides = [*small, "strategy=sofim,fedgd", "privacy.epsilon=1,10", "seed=0,1"]
    Sweep.begin(tmp_path / "s", overrides).run(1, lambda *_: None)
    compare.write([tmp_path / "s"], tmp_path / "page.html", counts=True)
    text = (tmp_path / "page.html").read_text()
    page = Page(text)
    assert page.loads == []
    assert "script" not in page.tags
    # For two budgets the accuracy and the noise, the frontier, and who holds what.
    assert text.count('role="img"') == 6
    assert page.tags.count("tbody") == 3  # accuracies and rounds, other scores, charges
    assert "balanced accuracy %" in text
    assert "8 runs, 2 settings" in text
    assert "fedsofim sweep" in text
    assert "Released and charged" in text
    assert len(text) < 100_000
    compare.write([tmp_path / "s"], tmp_path / "page.html")
    without = (tmp_path / "page.html").read_text()
    assert without.count('role="img"') == 5
    assert "Who holds what" not in without


@pytest.fixture
def chromium(tmp_path):
    """A browser without a window; gives what it wrote about a page, and the page after loading."""
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    if program is None:
        pytest.skip("no Chromium here")

    def look(text, *options):
        page = tmp_path / "looked-at.html"
        page.write_text(text)
        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr"]
        flags += [f"--user-data-dir={tmp_path / 'profile'}", *options]
        command = [program, *flags, f"file://{page}"]
        return subprocess.run(command, capture_output=True, text=True, timeout=120)

    return look


def test_chromium_draws_the_page_without_complaint(small, tmp_path, chromium):
    """Nothing on the console, every chart has its size, and nothing is wider than a phone."""
    Sweep.begin(tmp_path / "s", [*small, "strategy=sofim,fedgd", "seed=0,1"]).run(
        1, lambda *_: None
    )
    compare.write([tmp_path / "s"], tmp_path / "page.html", counts=True)
    text = (tmp_path / "page.html").read_text()
    probe = """<script>document.title = JSON.stringify({
        wide: document.documentElement.scrollWidth - document.documentElement.clientWidth,
        charts: [...document.querySelectorAll("svg[role=img]")].map(e => e.clientHeight),
        marks: [...document.querySelectorAll("svg g path + path")].map(e => e.getTotalLength()),
    }); console.error("the console is heard")</script>"""
    narrow = text.replace("<main>", '<main style="max-width:360px">') + probe
    shown = chromium(narrow, "--dump-dom", "--window-size=500,900")
    assert re.findall("CONSOLE.*", shown.stderr) == [
        line for line in re.findall("CONSOLE.*", shown.stderr) if "the console is heard" in line
    ]
    assert "the console is heard" in shown.stderr  # so a complaint would have been seen
    found = json.loads(re.search("<title>(.*?)</title>", shown.stdout).group(1))
    assert found["wide"] == 0
    assert len(found["charts"]) == text.count('role="img"') > 2
    assert min(found["charts"]) > 100
    assert min(found["marks"]) > 5
