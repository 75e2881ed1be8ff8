"""Many configurations at once: stacked where they share data, in parallel where they do not."""

import csv
import gzip
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from io import BytesIO, StringIO
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import numpy as np

from fedsofim.config.compose import compose_many, expand
from fedsofim.config.schema import Config, parse
from fedsofim.core.arrays import Array
from fedsofim.core.errors import ConfigError, require
from fedsofim.core.files import write_whole
from fedsofim.engines import stacked
from fedsofim.runs import personal_tests as personal
from fedsofim.runs.directory import Row, finite
from fedsofim.runs.evaluation import noise_norm
from fedsofim.runs.experiment import Experiment, prepare
from fedsofim.strategies.rule import ServerState

# Heads in one stack: enough that the data's way through the cache is paid for many times over,
# few enough that a chunk's logits stay in it.
STACK = 64


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


def run_all(
    configs: Sequence[Config], *, every: int = 10, jobs: int | None = None
) -> Iterator[Result]:
    """Run all configurations, and give each result as soon as it is there.

    Args:
        configs: what to run, on the local engine.
        every: rounds between recorded rounds; the last is always recorded.
        jobs: processes; by default one for each core.
    """
    jobs = jobs or os.cpu_count() or 1
    stacks = list(_stacks(configs, jobs))
    jobs = min(jobs, len(stacks)) or 1
    tasks = [([configs[i] for i in stack], stack, every) for stack in stacks]
    if jobs == 1:
        for task in tasks:
            yield from _run_stack(*task)
        return
    with single_threaded(jobs) as pool:
        pending: set[Future[list[Result]]] = {pool.submit(_run_stack, *task) for task in tasks}
        while pending:
            done, pending = wait(pending, return_when=FIRST_COMPLETED)
            for future in done:
                yield from future.result()


@contextmanager
def single_threaded(jobs: int) -> Iterator[ProcessPoolExecutor]:
    """Processes whose products use one thread: for independent work, that beats shared ones."""
    single = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    before = {name: os.environ.get(name) for name in single}
    os.environ.update(single)
    pool = ProcessPoolExecutor(jobs, mp_context=get_context("spawn"))
    try:
        yield pool
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
        for name, value in before.items():
            os.environ.pop(name, None) if value is None else os.environ.update({name: value})


def _stacks(configs: Sequence[Config], jobs: int) -> Iterable[list[int]]:
    """Indices of configurations that can be run together, with something for every process."""
    most = min(STACK, -(-len(configs) // jobs))
    groups: dict[Any, list[int]] = {}
    for i, config in enumerate(configs):
        groups.setdefault(stacked.stack_key(config), []).append(i)
    for indices in groups.values():
        parts = -(-len(indices) // most)
        for part in np.array_split(indices, parts):
            yield part.tolist()


_loaded: dict[Any, Experiment] = {}  # the last data this process worked on


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

    def on_round(servers: list[ServerState], memory: Any, Gs: Array) -> None:
        t = servers[0].t
        if t % every and t != first.rounds:
            return
        scores = _scores(base, [server.theta for server in servers], memory)
        for curve, one, G, (accuracy, loss) in zip(curves, experiments, Gs, scores, strict=True):
            curve.append(
                {
                    "round": t,
                    "accuracy": accuracy,
                    "loss": loss,
                    "epsilon": one.config.epsilon(t),
                    "gradient_norm": float(np.linalg.norm(G)),
                    "noise_norm": noise_norm(one, t - 1),
                }
            )

    with np.errstate(over="ignore", invalid="ignore"):  # a diverging setting is a result, too
        finals = stacked.run(experiments, on_round)
    return [
        Result(index, curve, base.test.predict(s.theta).astype(np.int16), s.theta, base.partition)
        for index, curve, s in zip(indices, curves, finals, strict=True)
    ]


def _scores(base: Experiment, thetas: Sequence[Array], memory: Any) -> list[tuple[float, float]]:
    """Accuracy and loss of each head of a stack; of the mean client where each has its own."""
    if not base.own_tests:
        return [base.test.evaluate(theta) for theta in thetas]
    models = base.config.client.personal(np.stack(thetas), base.clients, memory)
    means = (
        personal.summarise(personal.score(models[:, s], base.own_tests)) for s in range(len(thetas))
    )
    return [(mean["accuracy"], mean["loss"]) for mean in means]


def scene(config: Mapping[str, Any]) -> str:
    """The data and the division that a composed config names, in words."""
    partition = config["partition"]
    detail = f" {partition['alpha']}" if partition["kind"] == "dirichlet" else ""
    clients = f"{partition['clients']} clients"
    return f"{config['dataset']['name']}, {clients}, {partition['kind']}{detail}"


class Sweep(NamedTuple):
    """A sweep's directory: one line for each finished configuration, and tables made of them.

    Attributes:
        path: the directory.
        overrides: what was asked for, as `strategy.lr=0.1,0.3`.
        values: the composed config of each combination, in the order of `expand`.
    """

    path: Path
    overrides: list[str]
    values: list[dict[str, Any]]

    @classmethod
    def begin(cls, path: Path, overrides: Sequence[str]) -> "Sweep":
        """Make the directory, or continue what was begun there; mistakes come before any work."""
        sweep = cls(path, list(overrides), list(compose_many(expand(overrides))))
        for one in sweep.values:
            engine = parse(one).engine.name
            require(engine == "local", f"engine={engine}: a sweep needs engine=local")
        if (path / "sweep.json").is_file():
            begun = cls.open(path)
            require(
                begun.overrides == sweep.overrides,
                f"output.dir={path}: holds another sweep; name another directory",
            )
            require(
                begun.values == sweep.values,
                f"output.dir={path}: conf/ has changed since this sweep began; name another",
            )
            return sweep
        path.mkdir(parents=True, exist_ok=True)
        require(not any(path.iterdir()), f"output.dir={path}: is not empty, and no sweep")
        write_whole(path / "configs.json.gz", gzip.compress(json.dumps(sweep.values).encode()))
        write_whole(path / "sweep.json", json.dumps(sweep.overrides).encode())
        return sweep

    @classmethod
    def open(cls, path: Path) -> "Sweep":
        """A sweep that was begun, with the configs that it was begun with."""
        try:
            packed = (path / "configs.json.gz").read_bytes()
            overrides = json.loads((path / "sweep.json").read_text())
            return cls(path, overrides, json.loads(gzip.decompress(packed)))
        except (OSError, EOFError, ValueError) as error:
            raise ConfigError(f"{path}: a damaged sweep ({error})") from None

    def finished(self) -> dict[int, list[Row]]:
        """The curves of the configurations that are done, by index."""
        done = {}
        file = self.path / "results.jsonl"
        for line in file.read_text().splitlines() if file.is_file() else []:
            try:
                row = json.loads(line)
            except ValueError:
                continue  # cut short by a crash; it is run again
            done[row["index"]] = row["curve"]
        return done

    def partitions(self) -> dict[str, Row]:
        """Who held what in the first run of each scene."""
        file = self.path / "partitions.json"
        return json.loads(file.read_text()) if file.is_file() else {}

    def run(self, jobs: int | None, show: Callable[[int, int], None]) -> list[Row]:
        """Run what is not done yet, and give all rows; `show` is told how many of how many are."""
        configs = [parse(one) for one in self.values]
        scenes = [scene(one) for one in self.values]
        drawn = {where: configs[scenes.index(where)].seed for where in dict.fromkeys(scenes)}
        partitions = self.partitions()
        done = self.finished()
        todo = [i for i in range(len(configs)) if i not in done]
        show(len(done), len(configs))
        with open(self.path / "results.jsonl", "a+") as file:
            _end_line(file)
            for result in run_all([configs[i] for i in todo], jobs=jobs):
                index = todo[result.number]
                done[index] = [{k: finite(v) for k, v in row.items()} for row in result.curve]
                file.write(json.dumps({"index": index, "curve": done[index]}) + "\n")
                file.flush()
                where = scenes[index]
                if where not in partitions and configs[index].seed == drawn[where]:
                    partitions[where] = result.partition
                    write_whole(self.path / "partitions.json", json.dumps(partitions).encode())
                show(len(done), len(configs))
        rows = list(self._rows(done))
        self._write_tables(rows)
        return rows

    def _rows(self, done: Mapping[int, list[Row]]) -> Iterator[Row]:
        for index, overrides in enumerate(expand(self.overrides)):
            parts = (override.partition("=") for override in overrides)
            settings = {key: _number(value) for key, _, value in parts}
            for point in done[index]:
                yield {**settings, **point}

    def _write_tables(self, rows: Sequence[Row]) -> None:
        text = StringIO()
        writer = csv.DictWriter(text, rows[0])
        writer.writeheader()
        writer.writerows(rows)
        write_whole(self.path / "results.csv", text.getvalue().encode())
        try:
            import pyarrow
            import pyarrow.parquet
        except ImportError:
            return  # the extra 'tables' is not installed; the CSV holds the same
        buffer = BytesIO()
        columns = {name: _column([row[name] for row in rows]) for name in rows[0]}
        pyarrow.parquet.write_table(pyarrow.table(columns), buffer)
        write_whole(self.path / "results.parquet", buffer.getvalue())


def _end_line(file: TextIO) -> None:
    """Begin a line of its own after one that a crash cut short."""
    file.seek(0)
    written = file.read()
    if written and not written.endswith("\n"):
        file.write("\n")


def _number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


def _column(values: Sequence[Any]) -> list[Any]:
    """As they are, or all as text where some are text: a column has one type."""
    mixed = len({isinstance(value, str) for value in values}) > 1
    return [str(value) for value in values] if mixed else list(values)
