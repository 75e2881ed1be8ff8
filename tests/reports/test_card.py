"""The model card, as Hugging Face's own library reads it."""

import json

import pytest
import yaml
from huggingface_hub import ModelCard

from fedsofim.reports.card import NAME


@pytest.fixture
def card(inside, tmp_path, small):
    """The card of a run with these overrides, as Hugging Face reads it."""

    def make(*overrides):
        done = inside("run", *small, "output.dir=mine", *overrides)
        assert done.returncode == 0, done
        return ModelCard.load(tmp_path / "mine" / NAME)

    return make


def test_it_tells_the_promise_the_data_the_method_and_the_score(card, tmp_path):
    made = card("privacy.epsilon=2")
    summary = json.loads((tmp_path / "mine" / "summary.json").read_text())
    (result,) = made.data.eval_results
    assert (result.metric_type, result.metric_value) == (
        "accuracy",
        pytest.approx(summary["accuracy"], abs=1e-6),
    )
    assert (result.dataset_name, result.task_type) == ("npz", "tabular-classification")
    assert made.data.library_name == "fedsofim"
    assert "differential-privacy" in made.data.tags
    for line in (
        "# DP-FedSOFIM on npz",
        "| epsilon | 2 |",
        "| delta | 1e-05 |",
        "| unit | one record of one client, over the whole run |",
        "| adjacency | replace-one: ",
        "| trust | server: ",
        "| clients | 4 (dirichlet) |",
        "at most 7.39 times as likely",
        "This was a simulation, with noise from a seed",
    ):
        assert line in made.content, line


def test_it_holds_nothing_that_no_epsilon_covers(card, tmp_path):
    seed = 918273645
    text = card(f"seed={seed}", "output.counts=true").content
    partition = json.loads((tmp_path / "mine" / "partition.json").read_text())
    counts = {str(count) for row in partition["counts"] for count in row}
    numbers = set(text.replace(",", " ").replace("|", " ").split())
    assert not {c for c in counts if int(c) > 9} & numbers
    for secret in (str(seed), str(tmp_path), partition["data_sha256"]):
        assert secret not in text


def test_no_score_on_private_records(card):
    held = card("dataset.holdout=0.2")
    assert held.data.eval_results is None
    assert "training records that were held out, which are private" in held.content


def test_no_score_of_personal_models(card):
    own = card("strategy=pfedsop")
    assert own.data.eval_results is None
    assert "each client has a model of its own" in own.content


def test_without_privacy_it_says_so(card):
    made = card("privacy=none")
    assert "**This run is not private" in made.content
    assert "# FedSOFIM on npz" in made.content
    assert "| promise | none |" in made.content
    assert "differential-privacy" not in made.data.tags


def test_doubts_are_told(card):
    text = card("privacy.delta=0.009", "privacy.trust=aggregate", "aggregation=size").content
    assert "Weak promise: privacy.delta=0.009 is above one over the number of records" in text
    assert "It holds only if secure aggregation hid each client's release" in text


def test_exact_noise_needs_no_word_about_a_seed(card):
    assert "with noise from a seed" not in card("privacy.noise=exact").content


def test_images_are_told_from_tables(inside, tmp_path):
    done = inside("run", "rounds=1", "partition.clients=3", "output.dir=mine")
    assert done.returncode == 0
    made = ModelCard.load(tmp_path / "mine" / NAME)
    assert made.data.pipeline_tag == "image-classification"
    assert "from a frozen resnet20 (own weights)" in made.content
    front = (tmp_path / "mine" / NAME).read_text().split("---\n")[1]
    assert yaml.safe_load(front)["model-index"][0]["name"] == "sofim-cifar10"
