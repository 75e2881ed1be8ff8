"""Every table and figure of the paper has a command, or a reason why it has none."""

from importlib import import_module

import numpy as np
import pytest

from fedsofim.cli import reproduce
from fedsofim.config.compose import compose
from fedsofim.config.schema import parse
from fedsofim.core.errors import ConfigError
from fedsofim.data.datasets import DatasetConfig, load
from fedsofim.data.partition import Partition, statistics
from fedsofim.data.published import published_counts
from fedsofim.reports.tables import paper
from fedsofim.studies import costs
from fedsofim.studies.choices import CHOICES
from fedsofim.studies.contents import OURS, PAPER, makeable
from fedsofim.studies.divisions import division_tables
from fedsofim.studies.paper import MAKERS
from fedsofim.studies.reproduce import METHODS, ROUNDS, cell, first_round, published

PUBLISHED = Partition(kind="published", clients=20)
# What the paper holds; counted in it, not in our own list.
THERE_ARE = [*(f"Table {i}" for i in range(1, 17)), *(f"Figure {i}" for i in range(1, 9))]


@pytest.mark.parametrize("name", THERE_ARE)
def test_it_has_a_command_or_a_reason(name):
    entry = PAPER[name]
    assert entry.about
    assert bool(entry.command) != bool(entry.why)
    if not entry.command:
        assert name == "Table 1"  # words only
        return
    command, *words = entry.command.split()
    import_module(f"fedsofim.cli.{command}").parser().read(words)
    if command == "reproduce":
        assert words == [name.lower().replace(" ", "")]
        assert words[0] in MAKERS


def test_nothing_is_made_that_has_no_name_and_nothing_named_that_is_not_made():
    assert set(makeable()) == set(MAKERS)
    assert [name for name in PAPER if name not in THERE_ARE] == ["Section 5.3.1"]
    assert not set(OURS) & set(PAPER)


@pytest.mark.parametrize("number", ["3", "4", "5", "6", "8", "9"])
def test_an_experiment_is_on_the_data_that_its_table_names(number):
    (about,) = {
        (r["dataset"], r["backbone"], r["partition"])
        for r in paper("accuracy")
        if r["table"] == number
    }
    config = parse(compose([f"experiment=table{number}"]))
    assert about == (config.dataset.name, config.backbone.name, config.partition.kind)
    assert config.rounds == ROUNDS[-1]


@pytest.mark.parametrize("name", ["cifar10", "pathmnist"])
def test_the_papers_counts_are_those_of_the_real_records(name):
    """Though its own total for PathMNIST, 96,844, is not: the columns add up to 89,996."""
    data = load(DatasetConfig(name=name))
    counts = published_counts(name)
    np.testing.assert_array_equal(counts.sum(axis=0), np.bincount(data.train_y))
    parts = PUBLISHED.split(data.train_y, data.classes, seed=3)
    known = statistics(parts, data.train_y, data.classes)
    np.testing.assert_array_equal(known["counts"], counts)
    text = {"cifar10": (891, 3498, 779.6), "pathmnist": (1045, 9986, 2526)}[name]
    assert (min(known["sizes"]), max(known["sizes"])) == text[:2]
    assert known["size_std"] == pytest.approx(text[2], abs=0.5)
    assert not np.array_equal(parts[0], PUBLISHED.split(data.train_y, data.classes, seed=4)[0])


def test_the_papers_counts_fit_no_other_data():
    with pytest.raises(ConfigError, match="of 20 clients"):
        PUBLISHED.split(np.arange(100) % 10, 10, seed=0)


def test_a_division_is_shown_beside_the_papers(tmp_path):
    counts, known = division_tables("13", [0, 1], tmp_path)
    assert len(counts.rows) == 20
    assert counts.rows[-1][-1].endswith("/ 1045")
    assert [row[0] for row in known.rows] == ["seed 0", "seed 1", "paper"]
    # Small clients, such as the paper's, do occur in our draws.
    smallest = min(int(row[1]) for row in known.rows[:-1])
    assert 800 <= smallest < 0.32 * 4500
    assert {f.name for f in tmp_path.iterdir()} == {"table13.svg", "table13-paper.svg"}


@pytest.mark.parametrize(
    ("table", "epsilon", "fedgd", "sofim"),
    [
        ("3", 5.0, "50", "10"),
        ("3", 10.0, "50", "10"),
        ("4", 5.0, "40", "10"),
        ("4", 10.0, "40", "10"),
    ],
)
def test_rounds_to_target_are_those_that_the_paper_tells(table, epsilon, fedgd, sofim):
    theirs = published(table)
    final = theirs[epsilon, "DP-FedGD", 70]
    for method, told in (("DP-FedGD", fedgd), ("DP-FedSOFIM", sofim)):
        assert first_round({t: theirs[epsilon, method, t] for t in ROUNDS}, final) == told


def test_costs_are_those_of_the_methods(small):
    """One client step, five and seven of them, a covariance, and control variates."""
    assert len(paper("runtime")) == 4 * 13
    words = [["strategy=fedgd"], ["strategy=scaffold", "client.steps=7"], ["strategy=fedfc"]]
    words += [["strategy=fedadam"]]
    configs = [parse(compose([*small, *more])) for more in words]
    fedgd, scaffold, fedfc, fedadam = costs.measure(configs, rounds=3)
    assert scaffold.seconds > 2 * fedgd.seconds
    assert fedfc.client > fedgd.client == fedadam.client
    assert scaffold.client > fedgd.client
    assert fedadam.server > 2 * fedgd.server
    assert fedgd.over(fedgd) == (1, 1, 1)
    assert costs.cpu()


@pytest.mark.parametrize("choice", CHOICES, ids=lambda choice: choice.place)
def test_both_readings_can_be_run_and_differ(choice):
    every = [(e, x) for e in choice.overrides for x in choice.experiments]
    for epsilon, experiment in every:
        other = choice.overrides[epsilon]
        both = [
            parse(compose(cell(experiment, choice.method, epsilon, *words.split())))
            for words in ("", other)
        ]
        assert both[0].text != both[1].text
        assert choice.method in METHODS


def test_all_makes_everything_that_has_a_name(tmp_path, monkeypatch):
    made = []
    makers = {name: lambda study, out, name=name: made.append(name) or [] for name in makeable()}
    monkeypatch.setattr("fedsofim.studies.paper.MAKERS", makers)
    reproduce.main(["all", "--out", str(tmp_path)])
    assert made == [*makeable()]
