"""What the tests share: small data, composed configs, and the program in a process of its own."""

import copy
import functools
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from smalldata import CLIENTS, write_records

from fedsofim.cli.main import main
from fedsofim.config.compose import compose
from fedsofim.config.schema import parse
from fedsofim.models import crowd, head_sums

ROOT = Path(__file__).resolve().parent.parent

settings.register_profile(
    "suite", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("suite")


@pytest.fixture(scope="session", autouse=True)
def no_users_state(tmp_path_factory):
    """What a fixture for many tests does is not done to the user's own ledgers, either."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDSOFIM_STATE", str(tmp_path_factory.getbasetemp() / "state" / "shared"))
        yield


@pytest.fixture(autouse=True)
def own_state(monkeypatch, tmp_path_factory):
    """No test touches the user's own ledgers, nor those of another test."""
    place = tmp_path_factory.getbasetemp() / "state" / uuid.uuid4().hex
    monkeypatch.setenv("FEDSOFIM_STATE", str(place))


@pytest.fixture
def rng():
    return np.random.default_rng(20)


@pytest.fixture(scope="session")
def root():
    return ROOT


@pytest.fixture(scope="session")
def config_of():
    """A checked config from Hydra overrides."""
    return functools.cache(lambda *overrides: parse(compose(overrides)))


@pytest.fixture
def environment():
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONPATH": path, "COLUMNS": "100"}


@pytest.fixture
def cli(tmp_path, environment):
    """Run the program in an empty directory; returns what `subprocess.run` does."""

    def run(*arguments, seconds=120):
        command = [sys.executable, "-m", "fedsofim", *map(str, arguments)]
        return subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=seconds
        )

    return run


@pytest.fixture
def inside(tmp_path, monkeypatch, capfd):
    """As `cli`, without the time that a new process takes."""

    def run(*arguments):
        with monkeypatch.context() as patch:
            patch.chdir(tmp_path)
            patch.setattr(sys, "argv", ["fedsofim", *map(str, arguments)])
            try:
                main()
                code = 0
            except SystemExit as ended:
                code = ended.code
        return subprocess.CompletedProcess(arguments, code, *capfd.readouterr())

    return run


@pytest.fixture
def start(tmp_path, environment):
    """Start the program and return its process, which does not outlive the test."""
    # A shell may start children with SIGINT ignored, and nohup with SIGHUP; a terminal does not.
    started = []

    def as_in_a_terminal():
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGHUP, signal.SIG_DFL)

    def run(*arguments):
        process = subprocess.Popen(
            [sys.executable, "-m", "fedsofim", *map(str, arguments)],
            cwd=tmp_path,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=as_in_a_terminal,
        )
        started.append(process)
        return process

    yield run
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture(params=["compiled", "large", "numpy"])
def way(request, monkeypatch):
    """In single precision: the compiled kernel, what it does for large heads, and NumPy."""
    if request.param == "numpy":
        monkeypatch.setattr(head_sums, "clipped_residuals", None)
        monkeypatch.setattr(crowd, "clipped_sums", None)
        monkeypatch.setattr(crowd, "transform_sums", None)
    elif head_sums.clipped_residuals is None:
        pytest.skip("installed without a compiler")
    elif request.param == "large":
        monkeypatch.setattr(crowd, "LARGE_HEAD", 0)


@pytest.fixture
def arrays(rng):
    """A learnable data set of 3 classes and 5 features, as an `.npz` holds it."""
    centres = rng.normal(size=(3, 5))

    def split(n):
        y = np.arange(n) % 3
        return (centres[y] + 0.5 * rng.normal(size=(n, 5))).astype(np.float32), y

    train_x, train_y = split(240)
    test_x, test_y = split(60)
    return {"train_x": train_x, "train_y": train_y, "test_x": test_x, "test_y": test_y}


@pytest.fixture
def npz(tmp_path, arrays):
    """The path of a small `.npz` file."""
    path = tmp_path / "small.npz"
    np.savez(path, **arrays)
    return path


@pytest.fixture
def small(npz):
    """Overrides of a run on small data that takes no time, as the paper runs it."""
    given = ["dataset=npz", f"dataset.path={npz}", "partition.clients=4", "rounds=6"]
    return [*given, "settings=published"]


@pytest.fixture(scope="session")
def data_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    for split, records in (("train", 400), ("test", 200)):
        write_records(folder / f"{split}.npz", records, seed=records, split=split)
    parts = [np.load(folder / f"{split}.npz") for split in ("train", "test")]
    np.savez(folder / "data.npz", **{name: part[name] for part in parts for name in part.files})
    return folder / "data.npz"


@functools.cache
def _composed(data_file: Path, overrides: tuple[str, ...]) -> dict[str, Any]:
    small = [f"partition.clients={CLIENTS}", "partition.min_size=20", "rounds=4"]
    return compose(
        ["dataset=npz", "settings=published", f"dataset.path={data_file}", *small, *overrides]
    )


@pytest.fixture
def values(data_file: Path, tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """Plain configs on the small data set; each has a run directory of its own."""
    made = iter(range(100))

    def make(*overrides: str) -> dict[str, Any]:
        given = copy.deepcopy(_composed(data_file, overrides))
        given["output"]["dir"] = str(tmp_path / f"run{next(made)}")
        return given

    return make
