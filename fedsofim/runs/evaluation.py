"""What is measured of a run."""

import math

import numpy as np

from fedsofim.clients.group import mapped
from fedsofim.core.arrays import Array
from fedsofim.core.errors import require
from fedsofim.models.metrics import Metric
from fedsofim.models.records import Records
from fedsofim.models.scores import judge
from fedsofim.runs import personal_tests as personal
from fedsofim.runs.directory import Row, finite
from fedsofim.runs.experiment import Experiment, RunState
from fedsofim.strategies.aggregation import noise_gain as aggregated_noise
from fedsofim.strategies.average import model_of
from fedsofim.strategies.rule import for_raw


def measure(experiment: Experiment, state: RunState, G: Array | None, seconds: float) -> Row:
    """One row of the metrics; all from released values and the server's own test set.

    Epsilon is that of the releases on record, not of the config's plan.

    Where clients have models of their own, the scores are those of the mean client on its own test
    set, which only a simulation knows; a deployment does not score them.
    """
    config, theta, t = experiment.config, state.server.theta, state.server.t
    raw = model_of(state.server)
    scores: Row = {"accuracy": None, "loss": math.nan}
    if experiment.own_tests:
        scores = personal.summarise(personal_scores(experiment, state))
    elif experiment.test.size and not config.client.keeps_models:
        scores = judged(experiment.test, raw)
    row: Row = {
        "round": t,
        **scores,
        "loss": finite(scores["loss"]),
        "epsilon": finite(state.record.epsilon(config, experiment.plan)),
        "gradient_norm": None if G is None else finite(float(np.linalg.norm(G))),
        "noise_norm": noise_norm(experiment, t - 1),
        "theta_norm": finite(float(np.linalg.norm(theta))),
        "seconds": round(seconds, 6),
    }
    extra = extra_scores(experiment, state)
    taken = ", ".join(row.keys() & extra.keys())
    require(not taken, f"metric={config.metric.name}: {taken} is measured already; use other names")
    return row | extra


def judged(test: Records, theta: Array) -> Row:
    """What every round is told of the model on a test set."""
    seen = judge(test.logits(theta), test.labels)
    return {
        "accuracy": seen.accuracy,
        "loss": seen.loss,
        "balanced_accuracy": seen.balanced_accuracy,
        "calibration_error": finite(seen.calibration.error),
    }


def extra_scores(experiment: Experiment, state: RunState) -> Row:
    """What the metric of the user's choice says of the model, on the server's own test set."""
    config, test = experiment.config, experiment.test
    if type(config.metric) is Metric or not test.size or config.client.keeps_models:
        return {}
    scores = config.metric.measure(test.labels, test.predict(model_of(state.server)))
    return {name: finite(float(score)) for name, score in scores.items()}


def noise_norm(experiment: Experiment, t: int) -> float | None:
    """The norm that the noise in the aggregate of round `t` is expected to have, where it is known.

    Each of n clients adds noise of std s to its sum: the mean of the releases then carries
    s sqrt(sum 1/|D_i|^2) / n in each coordinate, the mean by size s sqrt(n) / sum |D_i|.
    """
    config, plan = experiment.config, experiment.plan
    gain = config.client.noise_gain
    known = config.aggregation in ("uniform", "size")
    if gain is None or not known or not experiment.clients or not plan.noise_multiplier:
        return None
    sizes = np.array([experiment.clients[i].data.size for i in config.schedule.present(t)])
    factor = aggregated_noise(sizes, config.aggregation)
    std = gain * plan.client_noise_multiplier * plan.clip
    return std * factor * math.sqrt(experiment.theta.size)


def personal_models(experiment: Experiment, state: RunState) -> Array:
    """The model of each client, where clients have models of their own."""
    program, server = experiment.config.client, state.server
    clients = mapped(experiment.clients, server.shared)
    return for_raw(program.personal(server.theta, clients, state.clients), server.shared)


def final_models(experiment: Experiment, state: RunState) -> Array:
    """What is scored in the end: the server's model, or each client's own where it has a test."""
    if experiment.own_tests:
        return personal_models(experiment, state)
    return model_of(state.server)


def personal_scores(experiment: Experiment, state: RunState) -> personal.Scores:
    """How well each client is served by its own model."""
    return personal.score(personal_models(experiment, state), experiment.own_tests)
