"""A client program is tried before it meets real records: what it does must be what it states."""

from dataclasses import dataclass, replace

import numpy as np
import pytest

from fedsofim.clients.ditto import Ditto
from fedsofim.clients.gradient import Gradient
from fedsofim.clients.personal import plain_gradients
from fedsofim.clients.program import noisy_gradients
from fedsofim.clients.steps import LocalSteps
from fedsofim.config.trial import try_out
from fedsofim.core.errors import ConfigError
from fedsofim.privacy.disclosure import Disclosure
from fedsofim.strategies import STRATEGIES

STATED = Disclosure(
    releases=lambda n: n, shares_noise=False, record_moves_others=False, uses_part=False
)
TWICE = replace(STATED, releases=lambda n: 2 * n)


def program(release, stated=STATED):
    @dataclass(frozen=True, kw_only=True)
    class Own(Gradient):
        disclosure = stated

    Own.release = lambda self, *given: (release(*given), given[2])
    return Own()


def gradient(received, clients, state, plan, noise, draw=0):
    thetas = np.stack([received["theta"]] * len(clients))
    return noisy_gradients(thetas, clients, plan, noise, draw)


def twice(second):
    return lambda *given: gradient(*given) + gradient(*given, draw=second)


def turns(received, clients, state, plan, noise):
    """Half of the records, and always the same half."""
    halves = [client._replace(data=client.data.part(slice(0, 3))) for client in clients]
    return gradient(received, halves, state, plan, noise)


def with_noise(part, asks=True):
    """Gradients with a part of the noise, from a source that is asked for or not."""

    def release(received, clients, state, plan, noise):
        sums = []
        for i, D in clients:
            source = noise(i, 0) if asks else None
            S = D.gradient_sum(received["theta"], clip=plan.clip, exact=False)
            z = part * plan.client_noise_multiplier
            sums.append(S.value + (source.gaussian(S, z) if part else 0))
        return np.stack(sums)

    return release


def other_clip(received, clients, state, plan, noise):
    return gradient(received, clients, state, replace(plan, clip=2 * plan.clip), noise)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_program_of_ours_does_what_it_states(config_of, strategy):
    config = config_of(f"strategy={strategy}")
    try_out(config.client, config.strategy, config.plan(), config.client.disclosure, 70)


@pytest.mark.parametrize("good", [gradient, with_noise(1), turns, twice(1)])
def test_a_program_of_ones_own_that_does_what_it_states(config_of, good):
    own = program(good, TWICE)
    assert replace(config_of("strategy=fedgd"), client=own).plan().releases > 0


WRONG = {
    "more sums": (program(twice(1)), "takes part in 2 sums in 1 rounds, and the .* states 1 rel"),
    "one noise": (program(twice(0), TWICE), "draws the same noise twice"),
    "no noise": (program(with_noise(0, asks=False)), "takes 1 sums .* draws noise 0 times"),
    "noise that is not drawn": (program(with_noise(0)), "takes 1 sums .* draws noise 0 times"),
    "less noise": (program(with_noise(0.5)), "adds noise of .* times the clip, the plan says"),
    "other clip": (program(other_clip), "clips at 20.0, where the plan says 10"),
    "reads": (program(lambda r, clients, *_: clients[0].data.x), "reads records by x, and not"),
    "scores": (program(lambda r, c, *_: c[0].data.evaluate(r["theta"])), "reads records by eval"),
    "shape": (program(lambda *given: gradient(*given)[0]), r"shape \(2, 3\); .* \(2, 2, 3\)"),
    "nan": (program(lambda *given: gradient(*given) * np.nan), "not finite"),
    "fails": (program(lambda *given: 1 / 0), r"fails when it is tried \(ZeroDivisionError"),
}


@pytest.mark.parametrize("name", WRONG)
def test_one_that_does_other_than_it_states_is_refused(config_of, name):
    wrong, message = WRONG[name]
    with pytest.raises(ConfigError, match=f"client=Own: .*{message}|client=Own: {message}"):
        replace(config_of("strategy=fedgd"), client=wrong)
    free = config_of("strategy=fedgd", "privacy=none")
    assert replace(free, client=wrong).client is wrong  # nothing is promised that it could break


def test_a_program_with_more_steps_than_it_states_is_refused(config_of):
    @dataclass(frozen=True, kw_only=True)
    class Cheap(LocalSteps):
        disclosure = STATED

    with pytest.raises(ConfigError, match="takes part in 3 sums in 1 rounds"):
        replace(config_of("strategy=fedavg"), client=Cheap(lr=0.1, steps=3))


def test_a_program_that_sends_what_it_learnt_for_itself_is_refused(config_of):
    """Its own model costs nothing only as long as nothing that is sent depends on it."""
    own = {"lr": 0.1, "steps": 1, "own_lr": 0.1, "own_steps": 2, "pull": 0.1}

    @dataclass(frozen=True, kw_only=True)
    class Telling(Ditto):
        disclosure = STATED

        def release(self, received, clients, state, plan, noise):
            sent, after = super().release(received, clients, state, plan, noise)
            return sent + 1e-6 * state.theta, after

    @dataclass(frozen=True, kw_only=True)
    class Early(Ditto):
        disclosure = STATED

        def release(self, received, clients, state, plan, noise):
            plain_gradients(state.theta, clients, 0)
            return super().release(received, clients, state, plan, noise)

    @dataclass(frozen=True, kw_only=True)
    class Same(Ditto):
        disclosure = STATED

    for kind, message in ((Telling, "depends on train_own"), (Early, "clips at inf")):
        with pytest.raises(ConfigError, match=f"client={kind.__name__}: .*{message}"):
            replace(config_of("strategy=ditto"), client=kind(**own))
    replace(config_of("strategy=ditto"), client=Same(**own))
