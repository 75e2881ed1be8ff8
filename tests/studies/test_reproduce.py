"""The paper's tables, and settings that are searched for."""

import csv

import numpy as np
import pytest
import yaml
from scipy.stats import chi2 as chi2_distribution

from fedsofim.cli.tune import main as cli_tune
from fedsofim.config.compose import CONF, compose
from fedsofim.config.schema import parse
from fedsofim.core.errors import ConfigError
from fedsofim.reports.tables import Table, paper
from fedsofim.strategies import STRATEGIES
from fedsofim.studies import tune
from fedsofim.studies.reproduce import Study, accuracy_table
from fedsofim.studies.results import Results
from fedsofim.studies.significance import mcnemar, symbol
from fedsofim.studies.stacks import run_all


def test_mcnemar_is_the_chi_square_test_with_continuity_correction():
    for n10, n01 in ((529, 700), (10, 3), (5, 5), (0, 0)):
        statistic, p = mcnemar(n10, n01)
        assert p == pytest.approx(chi2_distribution.sf(statistic, 1))
    for row in paper("mcnemar"):
        assert mcnemar(int(row["n10"]), int(row["n01"]))[0] == pytest.approx(
            float(row["chi2"]), abs=6e-3
        )
        their_p = 0.0 if row["p"].startswith("<") else float(row["p"])
        assert (symbol(int(row["n10"]), int(row["n01"])) == "-") == (their_p >= 0.05)


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

    class Quick(Study):
        def run(self, cells):
            runs = super().run([[*cell[1:], "rounds=70"] for cell in cells[:1]])
            return [runs[0] for _ in cells]

    study = Quick(Results(tmp_path / "r.jsonl"), ["partition.clients=2"], [0])
    table = accuracy_table(study, "3")
    assert len(table.rows) == 36
    assert all(row[-4] == "+0.00" for row in table.rows)  # every method is given FedGD's runs
    sofim = next(r for r in table.rows if r[:2] == ("10", "DP-FedSOFIM"))
    assert sofim[-3:] == ("+4.46", "-4.46", "yes")
    scaffold = next(r for r in table.rows if r[:2] == ("0.5", "DP-SCAFFOLD"))
    assert scaffold[-2:] == ("+8.59", "NO")
    assert "33 of 36 gaps within 5 points" in table.title


def test_work_that_was_interrupted_goes_on(small, tmp_path, monkeypatch):
    cells = [[*small, "strategy.lr=0.1"], [*small, "strategy.lr=1"]]
    whole = Study(Results(tmp_path / "whole"), seeds=[0, 1]).run(cells)
    Study(Results(tmp_path / "cut"), seeds=[0]).run(cells[:1])
    ran = []

    def counted(configs, **how):
        ran.extend(configs)
        yield from run_all(configs, **how)

    monkeypatch.setattr("fedsofim.studies.results.run_all", counted)
    again = Study(Results(tmp_path / "cut"), seeds=[0, 1]).run(cells)
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
    monkeypatch.setenv("FEDSOFIM_HOME", str(tmp_path / "home"))
    path = tune.write_settings(small[:2], "fedgd", dict.fromkeys(tune.EPSILONS, choice))
    assert path.is_relative_to(tmp_path / "home")
    assert yaml.safe_load(path.read_text()) == {"lr": [choice.settings["lr"]] * 4}
    asked = ["strategy=fedgd", "settings=tuned", *small[:2]]
    assert compose(asked)["strategy"]["lr"] == choice.settings["lr"]


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
    shipped = yaml.safe_load((CONF / "chosen/tuned" / f"{dataset}_{strategy}.yaml").read_text())
    for i, epsilon in enumerate(tune.EPSILONS):
        asked = [f"dataset={dataset}", f"strategy={strategy}", f"privacy.epsilon={epsilon:g}"]
        config = compose([*asked, "settings=tuned"])
        for name, key in search.keys.items():
            group, _, field = key.partition(".")
            value = config[group][field]
            assert value in grid[name]
            assert value == shipped.get("momentum", shipped)[name][i]


def test_tuned_settings_that_do_not_exist_are_not_made_up():
    with pytest.raises(ConfigError, match="dataset=cifar10 backbone=resnet20 strategy=pfedsop"):
        compose(["strategy=pfedsop", "settings=tuned"])


@pytest.mark.parametrize("given", ["privacy.epsilon=5", "partition.clients=3"])
def test_tune_says_what_it_does_not_keep(small, tmp_path, monkeypatch, capsys, given):
    monkeypatch.chdir(tmp_path)
    choice = tune.Choice(settings={"lr": 0.2}, accuracy=0.7, tried=3)
    monkeypatch.setattr(tune, "tune", lambda *_, **__: {5.0: choice})
    cli_tune(["strategy=fedgd", *small[:2], given])
    assert f"With {given} they are not kept for settings=tuned" in capsys.readouterr().out
