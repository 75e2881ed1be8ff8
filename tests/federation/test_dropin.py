"""A rule of ours in the place of Flower's `FedAvg`, with clients that know nothing of us."""

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.serverapp.exception import AggregationError
from flwr.serverapp.strategy import FedAvg
from flwr.supercore.task_identity import TaskIdentity

from fedsofim.core.errors import ConfigError
from fedsofim.federation import DPSCAFFOLD, DPFedAdam, DPFedGD, DPFedSOFIM
from fedsofim.strategies.rule import start, step

ROUNDS = 4
THETA = {"weight": np.array([[1.0, -2.0], [0.5, 3.0]]), "bias": np.array([0.1, 0.2])}
SIZES = (10, 30)


class Nodes:
    """Two nodes that answer with `reply(node, arrays)`, a mapping of arrays."""

    def __init__(self, reply):
        TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
        self.reply = reply

    def get_node_ids(self):
        return [11, 12]

    def send_and_receive(self, messages, timeout):
        return [self._answer(message) for message in messages]

    def _answer(self, message):
        node = message.metadata.dst_node_id - 11
        arrays = {n: a.numpy() for n, a in message.content["arrays"].items()}
        made = self.reply(node, arrays)
        if made is None:
            return Message(Error(code=2, reason="ill"), reply_to=message)
        record = ArrayRecord({n: Array(np.asarray(a)) for n, a in made.items()})
        metrics = MetricRecord({"num-examples": SIZES[node]})
        return Message(RecordDict({"arrays": record, "metrics": metrics}), reply_to=message)


def gradient(node, arrays):
    """Of a quadratic, so that it depends on what was sent."""
    return {name: (node + 1) * a + node for name, a in arrays.items()}


def parameters(node, arrays):
    g = gradient(node, arrays)
    return {name: a - 0.1 * g[name] for name, a in arrays.items()}


def delta(node, arrays):
    return {name: -0.1 * g for name, g in gradient(node, arrays).items()}


def record(theta=THETA):
    return ArrayRecord({name: Array(a) for name, a in theta.items()})


def trained(strategy, reply, theta=THETA):
    result = strategy.start(Nodes(reply), record(theta), num_rounds=ROUNDS)
    return {name: array.numpy() for name, array in result.arrays.items()}


SOFIM = {"lr": 0.5, "rho": 0.7, "beta": 0.6, "schedule": "linear", "fraction_evaluate": 0.0}


def test_a_gradient_step_of_one_is_flowers_fedavg():
    theirs = trained(FedAvg(fraction_evaluate=0.0), parameters)
    ours = trained(DPFedGD(lr=1.0, fraction_evaluate=0.0), parameters)
    for name in THETA:
        np.testing.assert_allclose(ours[name], theirs[name], rtol=1e-12)


def test_sofim_takes_the_papers_step():
    """Against the matrix itself, over all arrays as one vector."""
    theta, M = np.concatenate([a.ravel() for a in THETA.values()]), 0.0
    for t in range(ROUNDS):
        G = sum(n * ((k + 1) * theta + k) for k, n in enumerate(SIZES)) / sum(SIZES)
        M = 0.6 * M + 0.4 * G
        F = np.outer(M, M) + 0.7 * np.eye(theta.size)
        theta = theta - 0.5 * (1 - t / ROUNDS) * np.linalg.solve(F, M)
    ours = trained(DPFedSOFIM(**SOFIM, sends="gradient"), gradient)
    np.testing.assert_allclose(np.concatenate([a.ravel() for a in ours.values()]), theta)


def test_parameters_and_deltas_are_the_same_step():
    first = trained(DPFedSOFIM(**SOFIM), parameters)
    second = trained(DPFedSOFIM(**SOFIM, sends="delta"), delta)
    for name in THETA:
        np.testing.assert_allclose(first[name], second[name], rtol=1e-12)


def test_the_second_start_is_like_the_first():
    strategy = DPFedSOFIM(**SOFIM, sends="gradient")
    np.testing.assert_equal(trained(strategy, gradient), trained(strategy, gradient))


def test_other_rules_take_their_own_step():
    strategy = DPFedAdam(lr=0.1, beta1=0.9, beta2=0.99, tau=1e-3, sends="gradient")
    ours = trained(strategy, gradient)
    theta = np.concatenate([a.ravel() for a in THETA.values()])
    state = start(strategy.rule, theta)
    for _ in range(ROUNDS):
        G = sum(n * ((k + 1) * state.theta + k) for k, n in enumerate(SIZES)) / sum(SIZES)
        state = step(strategy.rule, state, G, ROUNDS)
    np.testing.assert_allclose(np.concatenate([a.ravel() for a in ours.values()]), state.theta)


def test_types_and_counters_stay():
    theta = {"w": np.float32([1, 2]), "count": np.array(3)}
    told = {"parameters": lambda n, a: {"w": a["w"] / 2, "count": a["count"] + 2}}
    told["gradient"] = lambda n, a: {"w": a["w"]}
    for sends, count in (("parameters", 3 + 2 * ROUNDS), ("gradient", 3)):
        after = trained(DPFedGD(lr=0.5, sends=sends), told[sends], theta)
        assert (after["w"].dtype, after["count"].dtype) == (np.float32, np.int64)
        assert after["count"] == count
        assert (after["w"] < theta["w"]).all()


def test_a_round_without_numbers_leaves_the_model():
    def ill(node, arrays):
        return {n: np.full_like(a, np.nan) for n, a in arrays.items()} if node else arrays

    strategy = DPFedSOFIM(**SOFIM, sends="gradient")
    strategy.configure_train(1, record(), ConfigRecord(), Nodes(ill))
    replies = Nodes(ill).send_and_receive(
        strategy.configure_train(1, record(), ConfigRecord(), Nodes(ill)), 1.0
    )
    assert strategy.aggregate_train(1, replies)[0] is None


def test_who_fails_is_left_out():
    def one(node, arrays):
        return gradient(node, arrays) if node == 0 else None

    after = trained(DPFedGD(lr=0.1, sends="gradient"), one)
    np.testing.assert_allclose(after["bias"], THETA["bias"] * 0.9**ROUNDS)


@pytest.mark.parametrize(
    ("reply", "told"),
    [
        (lambda node, arrays: {"weight": arrays["weight"]}, "other arrays: .'bias'"),
        (lambda node, arrays: {**arrays, "more": arrays["bias"]}, "other arrays: .'more'"),
        (lambda node, arrays: {**arrays, "bias": np.zeros(3)}, "bias: .3,. came, not .2,."),
    ],
)
def test_replies_about_another_model_are_refused(reply, told):
    with pytest.raises(AggregationError, match=told):
        trained(DPFedSOFIM(**SOFIM), reply)


def test_mistakes_are_told_in_one_line():
    with pytest.raises(ConfigError, match="betta: no such key; did you mean beta"):
        DPFedSOFIM(lr=1.0, rho=1.0, betta=0.9)
    with pytest.raises(ConfigError, match="rho: a value is missing"):
        DPFedSOFIM(lr=1.0, beta=0.9)
    with pytest.raises(ConfigError, match="sends=weights: choose one of parameters"):
        DPFedSOFIM(**SOFIM, sends="weights")
    with pytest.raises(ConfigError, match="its clients need more than the parameters"):
        DPSCAFFOLD(lr=1.0)
