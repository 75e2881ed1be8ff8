"""The public penalty of Remark 4.4: the same for every engine, and a penalty indeed."""

import numpy as np
import pytest
from inprocess import InProcessGrid
from references import reference

from fedsofim.clients import CLIENTS
from fedsofim.config.compose import compose_many, expand
from fedsofim.config.schema import parse
from fedsofim.core.errors import ConfigError
from fedsofim.engines import stacked
from fedsofim.engines.flower import flower_engine
from fedsofim.engines.local import run
from fedsofim.runs.experiment import begin, prepare

torch = reference("torch")
PENALISED = ("sofim", "fedgd", "fedadam", "fedyogi", "fedfc")


def test_without_noise_and_clip_it_is_descent_on_the_penalised_loss(config_of, small):
    config = config_of(
        *small, "privacy=none", "strategy=fedgd", "strategy.lr=0.5", "strategy.l2=0.2"
    )
    experiment = prepare(config)
    theta = torch.tensor(experiment.theta, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.SGD([theta], lr=0.5, weight_decay=0.2)  # of torch, not ours
    for _ in range(6):
        optimizer.zero_grad()
        for _, data in experiment.clients:
            x, y = torch.from_numpy(data.x.T).double(), torch.from_numpy(data.target.argmax(0))
            (torch.nn.functional.cross_entropy(x @ theta.T, y) / 4).backward()
        optimizer.step()
    ours = run(experiment, begin(experiment), lambda *_: False).server.theta
    np.testing.assert_allclose(ours, theta.detach().numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("strategy", PENALISED)
def test_every_engine_adds_the_same_bits(config_of, small, strategy):
    config = config_of(*small, f"strategy={strategy}", "strategy.l2=0.3")
    experiment = prepare(config)
    local = run(experiment, begin(experiment), lambda *_: False).server.theta
    engine = flower_engine(InProcessGrid.simulated(2))
    flower = engine(experiment, begin(experiment), lambda *_, **__: False).server.theta
    np.testing.assert_array_equal(local, flower)
    plain = prepare(config_of(*small, f"strategy={strategy}"))
    assert not np.array_equal(local, run(plain, begin(plain), lambda *_: False).server.theta)


def test_a_stack_holds_several_penalties(small):
    combinations = expand([*small, "strategy=sofim", "strategy.l2=0,0.1,1"])
    configs = [parse(values) for values in compose_many(combinations)]
    assert len({stacked.stack_key(config) for config in configs}) == 1
    base = prepare(configs[0])
    experiments = [base._replace(config=c, plan=c.plan()) for c in configs]
    together = stacked.run(experiments, lambda *_: None)
    for experiment, state in zip(experiments, together, strict=True):
        alone = run(experiment, begin(experiment), lambda *_: False).server.theta
        np.testing.assert_allclose(state.theta, alone, rtol=2e-4, atol=2e-5)
    norms = [np.linalg.norm(state.theta) for state in together]
    assert norms[2] < norms[0]


def test_it_costs_no_privacy(config_of, small):
    with_it = config_of(*small, "strategy.l2=0.3")
    assert with_it.plan() == config_of(*small).plan()


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (["strategy.l2=-0.1"], "must be a finite number >= 0"),
        (["strategy.l2=0.1", "client=scaffold"], "does not go with|do not send one gradient"),
        (["strategy.l2=0.1", "client=steps"], "do not send one gradient"),
        (["strategy.l2=0.1", "transform=kfc"], "before the clip"),
        (["strategy=fedavg", "strategy.l2=0.1"], "no such key"),
    ],
)
def test_where_it_would_mean_something_else_it_is_refused(config_of, small, overrides, told):
    with pytest.raises(ConfigError, match=told):
        config_of(*small, *overrides)


def test_only_the_client_that_sends_one_gradient_says_so():
    assert [name for name, kind in CLIENTS.items() if kind.gradients] == ["gradient"]
