"""Reading runs back, and the page that compares them."""

import json
import re
from html.parser import HTMLParser
from math import erf, sqrt

import numpy as np
import pytest

from fedsofim.cli.report import main as cli_report
from fedsofim.config.compose import compose
from fedsofim.core.errors import ConfigError
from fedsofim.reports import audit, compare, curves, names, run_page
from fedsofim.reports.lines import lines
from fedsofim.reports.page import header
from fedsofim.reports.svg import Point
from fedsofim.reports.tables import Table
from fedsofim.runs.directory import RunDir
from fedsofim.runs.session import run as run_session
from fedsofim.studies.sweep import Sweep


def test_runs_are_told_apart_by_all_that_differs_but_the_seed(small, tmp_path):
    grid = ["seed=0,1", "dataset.holdout=0,0.3", "privacy.noise_multiplier=null,50"]
    Sweep.begin(tmp_path / "s", [*small, *grid]).run(1, lambda *_: None)
    found = curves.read([tmp_path / "s", tmp_path / "s"])  # given twice, read once
    assert len(found) == 8
    assert len({c.budget for c in found}) == 2  # z = 50 keeps less than 10
    assert len({c.setting for c in found}) == 2
    assert {c.label for c in found} == {"DP-FedSOFIM"}


def test_labels_say_what_is_unusual_once(small, tmp_path):
    Sweep.begin(tmp_path / "s", [*small, "strategy.lr=0.1,0.2"]).run(1, lambda *_: None)
    run_session(compose([*small, "participation=0.5", "strategy.lr=0.1"]), tmp_path / "r")
    probes = tmp_path / "probes.npz"
    np.savez(probes, probe_x=np.random.default_rng(0).normal(size=(40, 5)).astype("f4"))
    kfc = ["transform=kfc", f"transform.probes={probes}", "strategy.lr=0.1"]
    run_session(compose([*small, *kfc]), tmp_path / "k")
    found = curves.read([tmp_path])  # all that is in it
    assert {c.label for c in found} == {
        "DP-FedSOFIM, lr 0.1",
        "DP-FedSOFIM, lr 0.2",
        "DP-FedSOFIM, lr 0.1, participation 0.5",
        "DP-FedSOFIM, transform kfc, lr 0.1",
    }


def test_what_auto_chose_for_a_budget_sets_no_run_apart(small, tmp_path):
    """So that trust server and trust aggregate stand side by side, a row each, at all budgets."""
    grid = ["privacy.trust=server,aggregate", "aggregation=size", "privacy.epsilon=0.5,10"]
    auto = [*small[:-1], "settings=auto", *grid]
    Sweep.begin(tmp_path / "s", auto).run(1, lambda *_: None)
    found = curves.read([tmp_path / "s"])
    rows = {"DP-FedSOFIM, trust server", "DP-FedSOFIM, trust aggregate"}
    assert {(c.label, c.budget) for c in found} == {(row, e) for row in rows for e in (0.5, 10)}
    Sweep.begin(tmp_path / "h", [*auto, "strategy.lr=0.1"]).run(1, lambda *_: None)
    by_hand = {c.label for c in curves.read([tmp_path / "s", tmp_path / "h"])} - rows
    assert any("lr 0.1" in label for label in by_hand)


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
        self.loads += [v for k, v in attributes if k in ("src", "href") and v[0] != "#"]


def charts(text):
    """The charts of a page, by title."""
    found = re.findall(r'<script type="application/json" id="chart-\w+">(.*?)</script>', text)
    return {spec["title"]: spec for spec in map(json.loads, found)}


@pytest.fixture
def swept(small, tmp_path):
    grid = ["strategy=sofim,fedgd,fedavg", "privacy.epsilon=1,10", "seed=0,1"]
    Sweep.begin(tmp_path / "s", [*small, *grid]).run(1, lambda *_: None)
    return tmp_path / "s"


def test_a_sweeps_page_is_self_contained_and_leads_with_the_best(swept, tmp_path):
    compare.write([swept], tmp_path / "page.html", counts=True)
    text = (tmp_path / "page.html").read_text()
    page, drawn = Page(text), charts(text)
    assert page.loads == ["data:,"]  # an icon of nothing, so that browsers ask for none
    assert "DP-FedSOFIM" in text
    assert "sofim</th>" not in text
    answer = re.search("<h1>(.*?)</h1>", text)[1]
    finals = {}
    for curve in curves.read([swept]):
        if curve.budget == 1:
            finals.setdefault(curve.label, []).append(100 * curve.final)
    best = max(sum(values) / 2 for values in finals.values())
    assert f"{best:.1f} % at epsilon 1 (" in answer.replace("\u00a0", " ")
    assert text.index("Final accuracy") < text.index("data-chart")  # the answer comes first
    titles = {"What privacy costs: accuracy by epsilon", "Test accuracy by round, epsilon 1"}
    assert titles <= drawn.keys()
    assert any(title.startswith("Records by client and class") for title in drawn)
    assert "balanced %" in text
    assert "Released and charged" in text
    assert "fedsofim sweep" in text
    assert len(text) < 1_000_000
    compare.write([swept], tmp_path / "page.html")
    assert "Who holds what" not in (tmp_path / "page.html").read_text()


def test_lines_that_lie_on_each_other_are_told_and_take_turns():
    low, high = [Point(0, 1.0), Point(9, 50.0)], [Point(0, 2.0), Point(9, 60.0)]
    text = lines("T", {"a": low, "b": high, "c": low}, x="round", y="%")
    series = {s["name"]: s for s in charts(text)["T"]["series"]}
    assert "a and c lie on each other" in text
    assert series["a"]["dash"] == series["c"]["dash"] == "9 9"
    assert series["c"]["offset"] == -9
    assert "dash" not in series["b"]


def test_axes_zoom_in_where_the_first_rounds_would_squeeze_the_rest():
    steep = [Point(t, 70 - 60 / (1 + t) ** 2) for t in range(50)]
    assert charts(lines("T", {"a": steep}, x="round", y="%"))["T"]["from"] == pytest.approx(9.8)
    flat = [Point(t, float(t)) for t in range(50)]
    assert charts(lines("T", {"a": flat}, x="round", y="%"))["T"]["from"] is None


def test_a_page_of_outputs_with_dates_finds_the_runs_and_no_deployment_is_dealt_out(
    small, tmp_path
):
    run_session(compose(small), tmp_path / "outputs" / "2026-01-01" / "one")
    owned = run_session(compose(small), tmp_path / "outputs" / "2026-01-02" / "two").path
    partition = json.loads((owned / "partition.json").read_text())
    del partition["counts"]  # as a deployment leaves it
    (owned / "partition.json").write_text(json.dumps(partition))
    found = {curve.setting for curve in curves.read([tmp_path / "outputs"])}
    assert len(found) == 2
    assert any("each with its owner" in where for where in found)
    (owned / "report.html").write_text(run_page.page_of(RunDir.open(owned)))
    head = (owned / "report.html").read_text().split("<h2>")[0].split("</style>")[1]
    assert "deployment: records stayed with their owners" in head
    assert "dirichlet" not in head


def test_the_cost_of_privacy_is_told_from_the_runs_beside_and_never_with_exact_noise(
    small, tmp_path
):
    for name, more in {"free": ["privacy=none"], "gd": ["strategy=fedgd"], "mine": []}.items():
        run_session(compose([*small, *more]), tmp_path / name)
    exact = run_session(compose([*small, "privacy.noise=exact"]), tmp_path / "exact").path
    page = (tmp_path / "mine" / "report.html").read_text()
    assert "Cost of privacy" in page
    assert "Against DP-FedGD" in page
    covered = (exact / "report.html").read_text()  # what epsilon covers tells of no other run
    assert "Cost of privacy" not in covered
    assert "Against DP-FedGD" not in covered


def test_the_meaning_of_epsilon_is_the_error_of_the_best_test():
    mu = 1.0  # tells N(0, 1) from N(1, 1): right with probability Phi(1/2)
    right = 100 * (1 + erf(0.5 / sqrt(2))) / 2
    assert f"right at most {right:.1f} times in 100" in names.meaning(4.0, 1e-5, mu)


def test_class_names_are_used_where_they_are_known(small, tmp_path):
    place = run_session(compose(small), tmp_path / "r")
    partition = place.read_json("partition.json")
    named = ["adipose", "debris", "tumour"]
    place.write_json("partition.json", partition | {"classes": named})
    drawn = charts(run_page.page_of(place))
    assert drawn["Confusion matrix"]["rows"] == named
    assert [row[0] for row in drawn["Accuracy by class"]["rows"]] == named


def test_what_reproduce_wrote_has_a_page(tmp_path):
    title = "Table 3: test accuracy (%); 1 of 2 gaps within 5 points"
    header = ("eps", "method", "T=10", "paper", "T=20", "paper", "gap")
    others = [f"DP-Fed{letter}" for letter in "QWERTY"]  # in an order of their own
    rows = [
        ("1", "DP-FedGD", "60.00±0.10", "61.0", "65.00±0.20", "66.0", "+0.00"),
        *(("1", name, "60.0±0.1", "61.0", "65.0±0.2", "66.0", "+0.00") for name in others),
        ("1", "DP-FedSOFIM", "62.00±0.10", "63.0", "68.00±0.20", "70.0", "+3.00"),
    ]
    made = Table(title, header, rows)
    for ending, text in (("csv", made.csv()), ("tex", made.latex()), ("md", made.markdown())):
        (tmp_path / f"table3.{ending}").write_text(text)
    cli_report([str(tmp_path), "--out", str(tmp_path / "page.html")])
    page = (tmp_path / "page.html").read_text()
    assert "<h1>1 of 2 gaps to DP\u2011FedGD are within 5 points of the paper&#x27;s.</h1>" in page
    drawn = charts(page)["Table 3, epsilon 1: ours"]["series"]
    assert drawn[0]["points"][1][:2] == [20, 68.0]
    assert [line["name"] for line in drawn] == ["DP-FedSOFIM", "DP-FedGD", *others]
    assert charts(page)["Table 3, epsilon 1: the paper's"]["series"][0]["points"] == [
        [10, 63.0],
        [20, 70.0],
    ]


def test_an_audit_s_page_leads_with_what_was_proved():
    found = {"epsilon_claimed": 10.0, "epsilon_lower_bound": 5.42, "confidence": 0.95}
    row = {
        **{**found, "delta": 1e-5, "passed": True, "of": "simulation", "seconds": 75},
        "tests": [{**found, "test": "pair", "passed": True, "detail": "105 of 143"}],
        "not_applicable": {"reachability": "why"},
    }
    page = audit.page_of(row, "DP-FedSOFIM on CIFAR-10", "fedsofim audit").replace("\u00a0", " ")
    assert "The claim of epsilon 10 stands: the best of 1 attacks proves 5.42." in page
    assert charts(page)["Proved beside claimed"]["limit"] == 10
    assert charts(page)["Proved beside claimed"]["rows"] == [["A worst pair", 5.42, "105 of 143"]]
    refuted = {**row, "passed": False, "epsilon_lower_bound": 12.0}
    page = audit.page_of(refuted, "x", "y").replace("\u00a0", " ")
    assert "The claim is refuted: epsilon 12 is given away, 10 is promised." in page


def test_headings_break_neither_numbers_nor_names():
    made = header("k", "71.9 % at epsilon 10 (DP-FedSOFIM), for <b>", ["now", ""])
    assert "<h1>71.9\u00a0% at epsilon\u00a010 (DP\u2011FedSOFIM), for &lt;b&gt;</h1>" in made
    assert made.count("<li>") == 1
