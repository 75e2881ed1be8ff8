"""Many configurations at once: stacked where they share data, in parallel where they do not."""

import os
from collections.abc import Generator, Hashable, Iterable, Sequence
from contextlib import closing
from typing import Any, NamedTuple

import numpy as np

from fedsofim.clients.group import mapped
from fedsofim.config.schema import Config
from fedsofim.core.arrays import Array
from fedsofim.engines import stacked
from fedsofim.engines.cluster import Cluster, each_on_ray
from fedsofim.runs import personal_tests as personal
from fedsofim.runs.directory import Row
from fedsofim.runs.evaluation import judged, noise_norm
from fedsofim.runs.experiment import Experiment, prepare
from fedsofim.runs.scoring import Own, own_tests, score
from fedsofim.strategies.average import model_of
from fedsofim.strategies.rule import ServerState, for_raw
from fedsofim.studies.processes import ONE_THREAD, Jobs, each

# Heads in one stack: enough that the data's way through the cache is paid for many times over,
# few enough that a chunk's logits stay in it.
STACK = 64
# What a recorded round tells. The area under the curve and, for one model, the clients' accuracies
# are those after the last.
SCORES = (
    "accuracy",
    "loss",
    "balanced_accuracy",
    "auc",
    "calibration_error",
    "client_accuracy",
    "client_accuracy_worst_decile",
)


class Result(NamedTuple):
    """What one configuration gave.

    Attributes:
        number: its place among the configurations.
        curve: one row for each recorded round: its scores, the epsilon spent, and the norms of the
            aggregate and of the noise in it.
        predictions: the class of each test record after the last round.
        theta: the last parameters.
        partition: who held what.
    """

    number: int
    curve: list[Row]
    predictions: Array
    theta: Array
    partition: Row


def run_all(configs: Sequence[Config], *, every: int = 10, jobs: Jobs = None) -> Generator[Result]:
    """Run all configurations, and give each result as soon as it is there.

    Args:
        configs: what to run, on the local engine.
        every: rounds between recorded rounds; the last is always recorded.
        jobs: processes, by default one for each core; or a cluster's.
    """
    if isinstance(jobs, Cluster):
        yield from _run_on(jobs, configs, every)
        return
    jobs = jobs or os.cpu_count() or 1
    stacks = list(_stacks(configs, jobs))
    jobs = min(jobs, len(stacks)) or 1
    tasks = [([configs[i] for i in stack], stack, every) for stack in stacks]
    here = (_run_stack(*task) for task in tasks)
    with closing(here if jobs == 1 else each(_run_stack, tasks, jobs)) as results:
        for result in results:
            yield from result


def _run_on(cluster: Cluster, configs: Sequence[Config], every: int) -> Generator[Result]:
    """The same on a cluster; with as many jobs the stacks are the same, and so is every bit."""
    if not configs:
        return
    with cluster.joined(ONE_THREAD) as cpus:
        stacks = _stacks(configs, cluster.jobs or cpus)
        tasks = [([configs[i] for i in stack], stack, every) for stack in stacks]
        for result in each_on_ray(_run_stack, tasks):
            yield from result


def _stacks(configs: Sequence[Config], jobs: int) -> Iterable[list[int]]:
    """Indices of configurations that can be run together, with something for every process."""
    most = min(STACK, -(-len(configs) // jobs))
    groups: dict[Hashable, list[int]] = {}
    for i, config in enumerate(configs):
        groups.setdefault(stacked.stack_key(config), []).append(i)
    for indices in groups.values():
        parts = -(-len(indices) // most)
        for part in np.array_split(indices, parts):
            yield part.tolist()


_loaded: dict[Hashable, Experiment] = {}  # the last data this process worked on


def _load(config: Config) -> Experiment:
    kept = config.client.keeps_models
    source = (config.dataset, config.backbone, config.features, config.partition, config.seed)
    key = (source, config.model, config.transform, kept)
    if key not in _loaded:
        _loaded.clear()
        _loaded[key] = prepare(config)
    return _loaded[key]


def _run_stack(configs: Sequence[Config], indices: Sequence[int], every: int) -> list[Result]:
    first = configs[0]
    base = _load(first)._replace(config=first)
    experiments = [base._replace(config=c, plan=c.plan()) for c in configs]
    curves: list[list[Row]] = [[] for _ in configs]
    own = own_tests(base)

    def on_round(servers: list[ServerState], memory: Any, Gs: Array) -> None:
        t = servers[0].t
        if t % every and t != first.rounds:
            return
        models = _models(base, servers, memory)
        for curve, one, G, model in zip(curves, experiments, Gs, models, strict=True):
            curve.append(
                {
                    "round": t,
                    **_scores(one, model, own if t == first.rounds else None),
                    "epsilon": one.config.epsilon(t),
                    "gradient_norm": float(np.linalg.norm(G)),
                    "noise_norm": noise_norm(one, t - 1),
                }
            )

    with np.errstate(over="ignore", invalid="ignore"):  # a diverging setting is a result, too
        finals = stacked.run(experiments, on_round)
    return [
        Result(index, curve, base.test.predict(raw).astype(np.int16), raw, base.partition)
        for index, curve, raw in zip(indices, curves, map(model_of, finals), strict=True)
    ]


def _models(base: Experiment, servers: Sequence[ServerState], memory: Any) -> Iterable[Array]:
    """What each head of a stack is scored with: its model, or its clients' own."""
    if not base.own_tests:
        return [model_of(server) for server in servers]
    shared = servers[0].shared
    clients = mapped(base.clients, shared)
    thetas = np.stack([server.theta for server in servers])
    models = for_raw(base.config.client.personal(thetas, clients, memory), shared)
    return np.moveaxis(models, 1, 0)


def _scores(experiment: Experiment, models: Array, own: Own | None) -> Row:
    """The scores of one head of a stack; `own` is given after the last round, for all of them."""
    final = None if own is None else score(experiment, models, own)
    told: Row = final.summary() if final else {}
    if experiment.own_tests:
        mean = personal.summarise(personal.score(models, experiment.own_tests))
        worst = mean.pop("accuracy_worst_decile")
        told |= {"client_accuracy": mean["accuracy"], "client_accuracy_worst_decile": worst, **mean}
    else:
        told |= judged(experiment.test, models)
    return {name: told.get(name) for name in SCORES}
