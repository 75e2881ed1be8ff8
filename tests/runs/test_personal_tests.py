"""Test sets of each client's own, scores on them, and the batches of local steps."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsofim.clients.personal import batch
from fedsofim.core.errors import ConfigError
from fedsofim.models import head
from fedsofim.reports import svg
from fedsofim.runs import personal_tests as personal


def labelled(labels, classes):
    x = np.arange(len(labels), dtype=np.float64)[:, None]
    return head.examples(x, np.asarray(labels), classes)


@given(
    st.lists(st.tuples(st.integers(0, 300), st.integers(0, 300)), min_size=2, max_size=12),
    st.integers(10, 1000),
)
def test_a_test_set_has_the_clients_proportions(pairs, limit):
    available, wanted = np.array(pairs).T
    usable = np.where(available > 0, wanted, 0)
    if not usable.any():
        with pytest.raises(ConfigError):
            personal.class_counts(available, wanted, limit)
        return
    counts = personal.class_counts(available, wanted, limit)
    assert (counts <= available).all()
    assert counts.sum() <= limit
    assert (counts[usable == 0] == 0).all()
    p = usable / usable.sum()
    total = min(limit, (available[p > 0] / p[p > 0]).min())
    assert (np.abs(counts - p * total) < 1 + 1e-6).all()


def test_test_sets_are_drawn_by_class_without_repetition():
    test = labelled(np.repeat([0, 1, 2], [50, 80, 20]), 3)
    holdings = np.array([[30, 10, 0], [0, 0, 7]])
    first, second = personal.own_test_sets(test, holdings, seed=3)
    np.testing.assert_array_equal(first.target.sum(axis=1), [50, 16, 0])
    np.testing.assert_array_equal(second.target.sum(axis=1), [0, 0, 20])
    assert len(set(first.x[0])) == first.size
    again = personal.own_test_sets(test, holdings, seed=3)[0]
    np.testing.assert_array_equal(again.x, first.x)
    other = personal.own_test_sets(test, holdings, seed=4)[0]
    assert not np.array_equal(other.x, first.x)


def test_each_client_is_scored_with_its_own_model_on_its_own_records():
    test = labelled([0, 0, 1, 1], 2)
    says_zero = np.array([[0.0, 5.0], [0.0, 0.0]])
    scores = personal.score(
        np.stack([says_zero, says_zero[::-1], says_zero]),
        [test, test, labelled([1, 1, 1, 0], 2)],
    )
    np.testing.assert_allclose(scores.accuracy, [0.5, 0.5, 0.25])
    row = personal.summarise(scores)
    assert row["accuracy"] == pytest.approx(1.25 / 3)
    assert row["accuracy_worst_decile"] == 0.25


@given(st.integers(1, 35))
def test_the_worst_decile_is_the_mean_of_the_worst_tenth(n):
    accuracy = np.random.default_rng(n).random(n)
    row = personal.summarise(personal.Scores(accuracy, accuracy))
    worst = sorted(accuracy)[: -(-n // 10)]
    assert row["accuracy_worst_decile"] == pytest.approx(np.mean(worst))


@given(size=st.integers(1, 60), batch_size=st.integers(1, 70), first=st.integers(0, 1000))
def test_a_pass_uses_every_record_once(size, batch_size, first):
    data = labelled([0] * size, 2)
    passes = -(-size // batch_size)
    parts = [batch(data, first + k, batch_size) for k in range(passes)]
    seen = np.concatenate([part.x[0] for part in parts])
    np.testing.assert_array_equal(np.sort(seen), np.arange(size))
    sizes = [part.size for part in parts]
    assert max(sizes) <= batch_size
    assert max(sizes) - min(sizes) <= 1
    assert batch(data, first, None).size == size


def test_a_strip_plot_has_a_dot_for_each_value_and_a_row_for_each_group():
    text = svg.strip_plot({"a<b": [1.0, 2.0], "c": [3.0, float("nan")]}, title="t", x="%")
    assert text.count("<circle") == 3
    assert "a&lt;b" in text
    assert svg.strip_plot({"a": []}, title="t", x="%") == ""
