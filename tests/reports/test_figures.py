"""The measured figures: embedded CIFAR-10 features, 20 clients, 70 rounds, seeds 0 to 2."""

import functools
from dataclasses import replace

import numpy as np
import pytest

from fedsofim.config.compose import compose
from fedsofim.config.schema import parse
from fedsofim.engines import ENGINES
from fedsofim.runs.experiment import begin, prepare

# Test accuracy in % at round 70, at epsilon 0.5, 1, 5, 10.
MEASURED = {
    "strategy=fedgd": (62.9, 66.1, 67.4, 67.5),
    "strategy=sofim": (62.3, 66.7, 71.5, 72.3),
}
EPSILONS = (0.5, 1, 5, 10)
BASE = parse(compose([]))


@functools.cache
def prepared(config):
    """The clients of a seed, which all strategies and budgets share."""
    return prepare(config)


def accuracy(config):
    shared = prepared(replace(BASE, seed=config.seed))
    experiment = shared._replace(config=config, plan=config.plan())
    state = ENGINES["local"](experiment, begin(experiment), lambda state, G: False)
    return 100 * experiment.test.evaluate(state.server.theta)[0]


@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize("strategy", MEASURED)
def test_the_measured_figures_within_a_point(config_of, strategy, epsilon):
    # They were measured with the warm-up of the authors' code.
    warmup = ["strategy.warmup=10"] if (strategy, epsilon) == ("strategy=sofim", 0.5) else []
    config = config_of(strategy, f"privacy.epsilon={epsilon}", *warmup)
    ours = np.mean([accuracy(replace(config, seed=seed)) for seed in range(3)])
    assert ours == pytest.approx(MEASURED[strategy][EPSILONS.index(epsilon)], abs=1.0)


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_the_gradient_direction_trains_with_settings_of_its_own(config_of, epsilon):
    config = config_of("strategy.direction=gradient", f"privacy.epsilon={epsilon}")
    assert accuracy(config) >= 60


def test_shared_noise_costs_much_less_accuracy(config_of):
    shared = ["privacy.epsilon=0.5", "privacy.trust=aggregate", "aggregation=size"]
    settings = ["strategy.lr=0.8", "strategy.rho=0.5", "strategy.beta=0.9"]
    settings += ["strategy.bias_correction=false", "strategy.warmup=0"]
    assert accuracy(config_of(*shared, *settings)) == pytest.approx(70.3, abs=1.0)


def test_without_privacy_it_is_better_still(config_of):
    assert accuracy(config_of("privacy=none")) > accuracy(config_of("privacy.epsilon=5"))
