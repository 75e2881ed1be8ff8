"""Sweeps, stacks, tuning and the pages made of them."""

import csv
import json
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser

import numpy as np
import pyarrow.parquet
import pytest
import yaml
from scipy.stats import chi2 as chi2_distribution

from fedsofim import compare, curves, tune
from fedsofim.compose import compose, compose_many, expand
from fedsofim.config import ConfigError
from fedsofim.engines import stacked
from fedsofim.engines.local import run
from fedsofim.experiment import begin, prepare
from fedsofim.metrics import measure
from fedsofim.reproduce import Lab, accuracy_table, mcnemar
from fedsofim.run_config import parse
from fedsofim.session import run as run_session
from fedsofim.sweep import Sweep, run_all
from fedsofim.tables import Table, paper
from strategies import STRATEGIES

CLASSES, FEATURES = 3, 6


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    rng = np.random.default_rng(0)
    centres = 2 * rng.standard_normal((CLASSES, FEATURES))

    def draw(n):
        y = rng.integers(0, CLASSES, n)
        return (centres[y] + rng.standard_normal((n, FEATURES))).astype(np.float32), y

    (train_x, train_y), (test_x, test_y) = draw(1500), draw(200)
    path = tmp_path_factory.mktemp("data") / "small.npz"
    np.savez(path, train_x=train_x, train_y=train_y, test_x=test_x, test_y=test_y)
    return ["dataset=npz", f"dataset.path={path}", "partition.clients=4", "rounds=6"]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_stack_gives_each_what_it_gets_alone(small, strategy):
    own = {"sofim": "strategy.rho=0.1,10", "adafedprox": "strategy.mu=0,0.5"}.get(
        strategy, "privacy.clip=1,5"
    )
    rates = [] if strategy == "alone" else ["strategy.lr=0.05,0.2"]  # its server takes no step
    combinations = expand([*small, f"strategy={strategy}", "privacy.epsilon=5,10", own, *rates])
    configs = [parse(values) for values in compose_many(combinations)]
    groups = {}
    for config in configs:
        groups.setdefault(stacked.stack_key(config), []).append(config)
    assert max(map(len, groups.values())) > 1
    for group in groups.values():
        base = prepare(group[0])
        experiments = [base._replace(config=c, plan=c.plan()) for c in group]
        together = stacked.run(experiments, lambda *_: None)
        for experiment, state in zip(experiments, together, strict=True):
            alone = run(experiment, begin(experiment), lambda *_: False).server
            np.testing.assert_allclose(state.theta, alone.theta, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("strategy", ["pfedsop", "fedavg_finetune", "alone"])
def test_a_stack_of_personal_models_is_scored_as_each_alone(small, strategy):
    overrides = [*small, f"strategy={strategy}", "participation=0.5", "privacy.epsilon=5,10"]
    settings = ["strategy.rho=0.5,2", "strategy.lr=0.3,1"] if strategy == "pfedsop" else []
    configs = [parse(values) for values in compose_many(expand([*overrides, *settings]))]
    for result in run_all(configs, jobs=1, every=3):
        experiment, rows = prepare(configs[result.number]), []
        run(
            experiment,
            begin(experiment),
            lambda state, G, e=experiment, rows=rows: rows.append(measure(e, state, G, 0.0)),
        )
        for row, alone in zip(result.curve, (rows[2], rows[5]), strict=True):
            assert row["accuracy"] == pytest.approx(alone["accuracy"], abs=0.01)
            assert row["epsilon"] == alone["epsilon"]
            assert row["gradient_norm"] == pytest.approx(alone["gradient_norm"], rel=1e-3)
            assert row["noise_norm"] == alone["noise_norm"]


def test_stacks_keep_apart_what_does_not_belong_together(small):
    key = lambda *o: stacked.stack_key(parse(compose([*small, *o])))  # noqa: E731
    assert key("strategy.lr=1") == key("strategy.lr=2") == key("strategy=fedgd")
    for other in ("seed=1", "rounds=5", "aggregation=size", "privacy=none", "partition.clients=3"):
        assert key(other) != key()
    assert key("participation=0.5") != key()
    assert key("backbone.weights=random") != key()
    assert key("features.precision=uint8") != key()


@pytest.mark.parametrize(
    "grid",
    [
        ["strategy=fedfc", "privacy=none"],
        ["transform=oracle", "transform.i_know_this_is_not_private=true", "privacy=none,dp"],
    ],
)
def test_a_stack_with_heads_without_noise(small, grid):
    for result in run_all([parse(v) for v in compose_many(expand([*small, *grid]))], jobs=1):
        experiment = prepare(parse(compose(expand([*small, *grid])[result.number])))
        alone = run(experiment, begin(experiment), lambda *_: False).server
        np.testing.assert_allclose(result.theta, alone.theta, rtol=2e-3, atol=2e-4)


def test_composing_many_equals_composing_each():
    combinations = expand(
        ["strategy=sofim,scaffold", "privacy.epsilon=0.5,5", "strategy.lr=0.3", "seed=0,1"]
    )
    assert len(combinations) == 8
    assert list(compose_many(combinations)) == [compose(o) for o in combinations]


def test_processes_give_what_one_gives(small):
    configs = [parse(v) for v in compose_many(expand([*small, "seed=0,1", "strategy.lr=0.1,1"]))]
    one = {r.number: r for r in run_all(configs, jobs=1)}
    two = {r.number: r for r in run_all(configs, jobs=2)}
    assert one.keys() == two.keys() == set(range(4))
    for number, result in one.items():
        np.testing.assert_allclose(result.theta, two[number].theta, rtol=1e-5, atol=1e-6)
        assert [row["round"] for row in result.curve] == [6]


def test_an_interrupted_sweep_continues_to_the_same_tables(small, tmp_path):
    overrides = [*small, "strategy.lr=0.1,0.2,0.3", "seed=0,1"]
    whole = Sweep(tmp_path / "whole", overrides).run(1, lambda *_: None)
    Sweep(tmp_path / "cut", overrides).run(1, lambda *_: None)
    results = tmp_path / "cut" / "results.jsonl"
    lines = results.read_text().splitlines()
    results.write_text("\n".join(lines[:2]) + "\n" + lines[2][:10])  # killed while writing
    for name in ("results.csv", "results.parquet"):
        (tmp_path / "cut" / name).unlink()
    shown = []
    rows = Sweep(tmp_path / "cut", overrides).run(1, lambda done, total: shown.append(done))
    assert shown[0] == 2  # what was done is not done again
    assert shown[-1] == 6
    strip = lambda row: {k: v for k, v in row.items() if k != "loss"}  # noqa: E731
    assert [strip(row) for row in rows] == [strip(row) for row in whole]
    table = list(csv.DictReader((tmp_path / "cut" / "results.csv").open()))
    parquet = pyarrow.parquet.read_table(tmp_path / "cut" / "results.parquet").to_pylist()
    assert [float(row["accuracy"]) for row in table] == [row["accuracy"] for row in parquet]


def test_a_directory_takes_one_sweep_only(small, tmp_path):
    Sweep(tmp_path / "s", [*small, "seed=0"])
    with pytest.raises(ConfigError, match="another sweep"):
        Sweep(tmp_path / "s", [*small, "seed=1"])
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "thesis.txt").write_text("mine")
    with pytest.raises(ConfigError, match="not empty"):
        Sweep(tmp_path / "x", [*small, "seed=1"])


def test_mcnemar_is_the_chi_square_test_with_continuity_correction():
    for n10, n01 in ((529, 700), (10, 3), (5, 5), (0, 0)):
        statistic, p = mcnemar(n10, n01)
        assert p == pytest.approx(chi2_distribution.sf(statistic, 1))
    for row in paper("mcnemar"):
        assert mcnemar(int(row["n10"]), int(row["n01"]))[0] == pytest.approx(
            float(row["chi2"]), abs=6e-3
        )


def test_a_line_that_was_cut_costs_that_result_only(small, tmp_path):
    overrides = [*small, "seed=0,1,2"]
    Sweep(tmp_path / "s", overrides).run(1, lambda *_: None)
    file = tmp_path / "s" / "results.jsonl"
    file.write_text(file.read_text()[:-40])
    Sweep(tmp_path / "s", overrides).run(1, lambda *_: None)
    assert set(Sweep.open(tmp_path / "s").finished()) == {0, 1, 2}


def test_a_mistake_leaves_no_directory(small, tmp_path):
    for wrong in ("strategy.lr=-1,1", "engine=ray", "seed=0,x"):
        with pytest.raises(ConfigError):
            Sweep(tmp_path / "s", [*small, wrong])
        assert not (tmp_path / "s").exists()


def test_a_column_of_numbers_and_words_can_be_written(small, tmp_path):
    Sweep(tmp_path / "s", [*small, "privacy.noise_multiplier=null,3"]).run(1, lambda *_: None)
    table = pyarrow.parquet.read_table(tmp_path / "s" / "results.parquet").to_pydict()
    assert table["privacy.noise_multiplier"] == ["null", "3.0"]


def test_runs_are_told_apart_by_all_that_differs_but_the_seed(small, tmp_path):
    grid = ["seed=0,1", "dataset.holdout=0,0.3", "privacy.noise_multiplier=null,50"]
    Sweep(tmp_path / "s", [*small, *grid]).run(1, lambda *_: None)
    found = curves.read([tmp_path / "s", tmp_path / "s"])  # given twice, read once
    assert len(found) == 8
    assert len({c.budget for c in found}) == 2  # z = 50 keeps less than 10
    assert len({c.scene for c in found}) == 2
    assert {c.label for c in found} == {"sofim"}


def test_an_unscored_run_is_no_curve(small, tmp_path):
    Sweep(tmp_path / "s", small).run(1, lambda *_: None)
    run_session(compose(small), tmp_path / "r")
    (tmp_path / "r" / "metrics.jsonl").write_text('{"round": 1, "accuracy": null}\n')
    assert len(curves.read([tmp_path / "s", tmp_path / "r"])) == 1
    with pytest.raises(ConfigError, match="no round that was scored"):
        curves.read([tmp_path / "r"])


def test_the_papers_tables_are_whole():
    rows = paper("accuracy")
    assert {r["table"] for r in rows} == {"3", "4", "5", "6", "8", "9"}
    assert sum(r["table"] == "3" for r in rows) == 9 * 4 * 7


def test_a_table_reads_back_from_csv_and_is_valid_latex():
    table = Table("t", ("a", "b"), [("1", "2.00±0.10"), ("x_y", "50 %")])
    assert list(csv.reader(table.csv().splitlines())) == [["a", "b"], *map(list, table.rows)]
    assert r"x\_y & 50 \%" in table.latex()
    assert r"2.00$\pm$0.10" in table.latex()
    assert "| x_y | 50 % |" in table.markdown()


def test_the_accuracy_table_shows_gaps_to_fedgd(tmp_path):
    """On two rounds of two seeds it has the paper's rows and the arithmetic of its own figures."""

    class Quick(Lab):
        def run(self, cells):
            runs = super().run([[*cell[1:], "rounds=70"] for cell in cells[:1]])
            return [runs[0] for _ in cells]

    lab = Quick(["partition.clients=2"], [0], lambda *_: None, tmp_path)
    table = accuracy_table(lab, "3")
    assert len(table.rows) == 36
    assert all(row[-3] == "+0.00" for row in table.rows)  # every method is given FedGD's runs
    sofim = next(r for r in table.rows if r[:2] == ("10", "DP-FedSOFIM"))
    assert sofim[-2:] == ("+4.46", "-4.46")


def test_work_that_was_interrupted_goes_on(small, tmp_path, monkeypatch):
    cells = [[*small, "strategy.lr=0.1"], [*small, "strategy.lr=1"]]
    whole = Lab([], [0, 1], lambda *_: None, tmp_path / "whole").run(cells)
    Lab([], [0], lambda *_: None, tmp_path / "cut").run(cells[:1])
    ran = []
    monkeypatch.setattr("fedsofim.reproduce.run_all", lambda c: (ran.extend(c), run_all(c))[1])
    again = Lab([], [0, 1], lambda *_: None, tmp_path / "cut").run(cells)
    assert len(ran) == 3
    for a, b in zip(whole, again, strict=True):
        assert a.accuracy == b.accuracy
        np.testing.assert_array_equal(a.predictions, b.predictions)


def test_tuning_chooses_the_best_and_conf_finds_it(small, tmp_path, monkeypatch):
    grid = {"lr": (1e-6, 0.3)}
    search = tune.Search({"lr": "strategy.lr"}, grid, {"lr": (0.1,)})
    monkeypatch.setitem(tune.SEARCHES, "fedgd", search)
    shown = []
    choices = tune.tune(
        "fedgd", small[:3], tmp_path / "t", lambda *told: shown.append(told), jobs=1
    )
    choice = choices[10.0]
    assert choices.keys() == set(tune.EPSILONS)
    assert choice.settings["lr"] > 1e-6
    assert choice.tried == 3
    assert shown[-1] == ("fine", 4, 4)
    again = tune.tune("fedgd", small[:3], tmp_path / "t", lambda *_: None, jobs=1)
    assert again == choices  # read back, and so an interrupted search goes on
    monkeypatch.setattr(tune, "CONF", tmp_path)
    path = tune.write_settings("small", "fedgd", dict.fromkeys(tune.EPSILONS, choice))
    written = yaml.safe_load(path.read_text())["strategy"]["settings"]
    assert written == {"lr": [choice.settings["lr"]] * len(tune.EPSILONS)}


def test_every_search_names_settings_that_its_strategy_has():
    assert set(tune.SEARCHES) <= set(STRATEGIES)
    for name, search in tune.SEARCHES.items():
        for grid in (search.coarse, search.fine):
            assert set(grid) == set(search.keys)
        overrides = [f"{key}={search.fine[k][0]}" for k, key in search.keys.items()]
        parse(compose([f"strategy={name}", *overrides]))


@pytest.mark.parametrize("dataset", ["cifar10", "pathmnist"])
@pytest.mark.parametrize("strategy", tune.SEARCHES)
def test_tuned_settings_are_shipped_and_used_when_asked_for(dataset, strategy):
    search = tune.SEARCHES[strategy]
    grid = {k: {*search.coarse[k], *search.fine[k]} for k in search.keys}
    text = (tune.CONF / "chosen" / "tuned" / f"{dataset}_{strategy}.yaml").read_text()
    shipped = yaml.safe_load(text)["strategy"]["settings"]
    for i, epsilon in enumerate(tune.EPSILONS):
        asked = [f"dataset={dataset}", f"strategy={strategy}", f"privacy.epsilon={epsilon:g}"]
        config = compose([*asked, "settings=tuned"])
        for name, key in search.keys.items():
            group, _, field = key.partition(".")
            value = config[group][field]
            assert value in grid[name]
            assert value == shipped.get("momentum", shipped)[name][i]


def test_tuned_settings_that_do_not_exist_are_not_made_up():
    with pytest.raises(ConfigError, match="dataset=cifar10 strategy=pfedsop"):
        compose(["strategy=pfedsop", "settings=tuned"])


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
    Sweep(tmp_path / "s", overrides).run(1, lambda *_: None)
    compare.write([tmp_path / "s"], tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    page = Page(text)
    assert page.loads == []
    assert "script" not in page.tags
    # For two budgets the accuracy and the noise, the frontier, and who holds what.
    assert text.count('role="img"') == 6
    assert page.tags.count("tbody") == 2
    assert "8 runs, 2 settings" in text
    assert "fedsofim sweep" in text
    assert "Released and charged" in text
    assert len(text) < 100_000


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
    Sweep(tmp_path / "s", [*small, "strategy=sofim,fedgd", "seed=0,1"]).run(1, lambda *_: None)
    compare.write([tmp_path / "s"], tmp_path / "page.html")
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


def test_the_command_line_sweeps_and_reports(small, tmp_path):
    def fedsofim(*arguments):
        return subprocess.run(
            [sys.executable, "-m", "fedsofim.cli", *arguments],
            capture_output=True,
            text=True,
            cwd=tmp_path,
        )

    done = fedsofim("sweep", *small, "strategy.lr=0.1,0.2", "output.dir=s")
    assert done.returncode == 0, done.stderr
    assert re.search(r"2 configurations in", done.stdout)
    assert len(list(csv.DictReader((tmp_path / "s" / "results.csv").open()))) == 2
    assert json.loads((tmp_path / "s" / "sweep.json").read_text())[-1] == "strategy.lr=0.1,0.2"
    assert fedsofim("report", "s").returncode == 0
    assert "<svg" in (tmp_path / "report.html").read_text()
    for wrong in (
        ("sweep", "nonsense.key=1,2"),
        ("reproduce", "table99"),
        ("tune", "strategy=nothing"),
        ("tune", "strategy=fedgd", "privacy.epsilon=abc"),
        ("tune", "strategy=fedgd", "rounds=5"),
        ("tune", "strategy=fedgd", "partition.alpha=0.1,1"),
        ("run", "dataset=owners", "dataset.classes=3"),
        ("report", "nowhere"),
        ("sweep", "--jobs", "many"),
    ):
        failed = fedsofim(*wrong)
        assert failed.returncode == 2, (wrong, failed.stderr)
        assert len(failed.stderr.strip().splitlines()) == 1
