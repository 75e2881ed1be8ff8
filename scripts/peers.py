"""One private federated job, as this project and as others do it; `bench_peers.py` compares them.

The job is DP-FedGD of a linear head on the embedded CIFAR-10 features: every client clips the
gradient of each of its records, adds them up, adds Gaussian noise, and divides by their number;
the server steps along the mean. The bias is a feature that is always 1, so that all have one matrix
of parameters. Nothing is evaluated. Each peer is a function from the job to the seconds of its
rounds, without the first, and to the parameters after the last.
"""

import functools
import logging
import os
import time
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from fedsofim.config.compose import compose
from fedsofim.config.schema import parse
from fedsofim.core.arrays import Array
from fedsofim.engines import ENGINES
from fedsofim.runs.experiment import Experiment, begin, prepare

Result = tuple[list[float], Array]


class Job(NamedTuple):
    """What is to be done.

    Attributes:
        experiment: the same, made ready for us.
        x: the features of each client, `(n, F+1)`, the last of them 1.
        y: their labels, `(n,)`.
        theta: initial parameters, `(K, F+1)`.
        lr: of the server's step.
        clip: the largest norm of one record's gradient.
        noise: the std of the noise on a client's sum, over `clip`.
        rounds: how many.
    """

    experiment: Experiment
    x: list[Array]
    y: list[Array]
    theta: Array
    lr: float
    clip: float
    noise: float
    rounds: int


def job(clients: int, rounds: int, *more: str) -> Job:
    """The job for so many clients; `more` are settings of a run."""
    given = ["strategy=fedgd", f"partition.clients={clients}", f"rounds={rounds}", *more]
    made = prepare(parse(compose(given)))
    data, plan, rule = [c.data for c in made.clients], made.plan, made.config.strategy
    x = [np.ascontiguousarray(D.x.T) for D in data]
    y = [D.labels for D in data]
    return Job(made, x, y, made.theta, rule.rate.lr, plan.clip, plan.noise_multiplier, rounds)


def expected(job: Job) -> Array:
    """The parameters after the last round without noise, in double precision, from the formulas."""
    theta = job.theta.astype(np.float64)
    for _ in range(job.rounds):
        means = []
        for x, y in zip(job.x, job.y, strict=True):
            z = np.exp(x @ theta.T)
            r = z / z.sum(axis=1, keepdims=True) - np.eye(len(theta))[y]
            norm = np.linalg.norm(r, axis=1) * np.linalg.norm(x, axis=1)
            means.append((r * np.minimum(1, job.clip / norm)[:, None]).T @ x / len(x))
        theta -= job.lr * np.mean(means, axis=0)
    return theta


class Marks:
    """The moments at which rounds ended."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def __call__(self, *_: object, **__: object) -> bool:
        self.times.append(time.perf_counter())
        return False

    @property
    def seconds(self) -> list[float]:
        """What each round took, without the first."""
        return np.diff(self.times).tolist()


def fedsofim(job: Job, engine: str = "local") -> Result:
    """Ours, in one process, or on Flower's Ray simulation."""
    marks = Marks()
    state = ENGINES[engine](job.experiment, begin(job.experiment), marks)
    return marks.seconds, state.server.theta


def opacus_release(job: Job, theta: Array) -> Callable[[Any, Any, Any], Any]:
    """A function from parameters and records, as tensors, to the noisy mean of Opacus."""
    import torch
    from opacus import GradSampleModule
    from opacus.optimizers import DPOptimizer

    warnings.filterwarnings("ignore", message="Full backward hook is firing")
    K, width = theta.shape
    module = GradSampleModule(torch.nn.Linear(width, K, bias=False), loss_reduction="sum")
    (weight,) = module.parameters()

    @functools.cache  # an optimizer for each size, made once
    def optimizer(size: int) -> Any:
        return DPOptimizer(
            torch.optim.SGD(module.parameters(), lr=1.0),
            noise_multiplier=job.noise,
            max_grad_norm=job.clip,
            expected_batch_size=size,
            loss_reduction="mean",
        )

    def release(theta: Any, x: Any, y: Any) -> Any:
        with torch.no_grad():
            weight.copy_(theta)
        own = optimizer(len(x))
        own.zero_grad()
        torch.nn.functional.cross_entropy(module(x), y, reduction="sum").backward()
        own.pre_step()  # clip, sum, add noise, divide by the number of records
        return weight.grad.clone()

    return release


def opacus(job: Job, pooled: bool = False) -> Result:
    """Opacus for each client in turn, and a mean; or `pooled`, for all records at once."""
    import torch

    x, y = ([torch.from_numpy(a) for a in arrays] for arrays in (job.x, job.y))
    if pooled:
        x, y = [torch.cat(x)], [torch.cat(y)]
    release, marks = opacus_release(job, job.theta), Marks()
    theta = torch.from_numpy(job.theta).clone()
    for _ in range(job.rounds):
        releases = [release(theta, *records) for records in zip(x, y, strict=True)]
        theta -= job.lr * torch.stack(releases).mean(dim=0)
        marks()
    return marks.seconds, theta.numpy()


def pfl(job: Job, records: bool = False) -> Result:
    """pfl-research as it is, clipping clients; or clipping `records`, with Opacus inside."""
    import torch
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.algorithm import FederatedAveraging, NNAlgorithmParams
    from pfl.callback.base import TrainingProcessCallback
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.sampling import get_user_sampler
    from pfl.hyperparam import NNTrainHyperParams
    from pfl.metrics import Metrics
    from pfl.model.pytorch import PyTorchModel
    from pfl.privacy import GaussianMechanism
    from pfl.stats import MappedVectorStatistics

    class Head(torch.nn.Linear):
        def loss(self, x: Any, y: Any) -> Any:
            return torch.nn.functional.cross_entropy(self(x), y)

        def metrics(self, x: Any, y: Any) -> dict[str, Any]:
            return {}

    class Clock(TrainingProcessCallback):
        def after_central_iteration(self, *_: Any, **__: Any) -> tuple[bool, Metrics]:
            return marks(), Metrics()

    class ByRecord(FederatedAveraging):
        def train_one_user(self, initial: Any, model: Any, user: Any, context: Any) -> Any:
            mean = release(initial["weight"], *user.raw_data)
            return MappedVectorStatistics({"weight": -job.lr * mean}), Metrics()

    marks, release, (K, width) = Marks(), opacus_release(job, job.theta), job.theta.shape
    head = Head(width, K, bias=False)
    with torch.no_grad():
        head.weight.copy_(torch.from_numpy(job.theta))
    users = {
        i: [torch.from_numpy(x), torch.from_numpy(y)]
        for i, (x, y) in enumerate(zip(job.x, job.y, strict=True))
    }
    data = FederatedDataset.from_slices(users, get_user_sampler("minimize_reuse", list(users)))
    noise = [] if records else [GaussianMechanism(job.lr * job.clip, job.noise)]
    central = torch.optim.SGD(head.parameters(), lr=1.0)
    logging.disable(logging.INFO)
    (ByRecord if records else FederatedAveraging)().run(
        NNAlgorithmParams(
            central_num_iterations=job.rounds,
            evaluation_frequency=job.rounds + 1,
            train_cohort_size=len(users),
            val_cohort_size=0,
        ),
        SimulatedBackend(training_data=data, val_data=data, postprocessors=noise),
        PyTorchModel(head, torch.optim.SGD, central),
        NNTrainHyperParams(local_batch_size=None, local_num_epochs=1, local_learning_rate=job.lr),
        callbacks=[Clock()],
    )
    return marks.seconds, head.weight.detach().numpy()


@functools.cache
def _in_this_process(clients: int, *more: str) -> tuple[Job, Any]:
    import torch

    mine = job(clients, 1, *more)
    torch.set_num_threads(1)  # Ray gives each client one CPU
    return mine, opacus_release(mine, mine.theta)


def flower(job: Job, *more: str) -> Result:
    """Flower's own FedAvg on its Ray simulation, with clients that use Opacus."""
    os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
    from flwr.app import Array as Sent
    from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp
    from flwr.serverapp.strategy import FedAvg
    from flwr.simulation import run_simulation

    from fedsofim.config.schema import Engine
    from fedsofim.engines.ray import backend_config, quiet

    clients, last, marks = len(job.x), [job.theta], Marks()
    client, server = ClientApp(), ServerApp()

    @client.train()
    def train(message: Message, context: Context) -> Message:
        import peers
        import torch

        mine, release = peers._in_this_process(clients, *more)
        i = int(context.node_config["partition-id"])
        theta = torch.tensor(message.content["arrays"]["theta"].numpy())
        theta -= mine.lr * release(theta, *map(torch.from_numpy, (mine.x[i], mine.y[i])))
        sent = ArrayRecord({"theta": Sent(theta.numpy())})
        content = RecordDict({"arrays": sent, "metrics": MetricRecord({"num-examples": 1})})
        return Message(content, reply_to=message)

    def evaluate(t: int, arrays: ArrayRecord) -> None:
        last[0] = arrays["theta"].numpy()
        marks()

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        while len(list(grid.get_node_ids())) < clients:
            time.sleep(0.1)
        first = ArrayRecord({"theta": Sent(job.theta)})
        strategy = FedAvg(fraction_evaluate=0.0, min_available_nodes=clients)
        strategy.start(grid, first, num_rounds=job.rounds, evaluate_fn=evaluate)

    with quiet():
        run_simulation(server, client, clients, backend_config=backend_config(Engine(name="ray")))
    return marks.seconds[1:], last[0]  # the first mark stands before the first round
