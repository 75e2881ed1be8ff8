"""`fedsofim app`: an app that Flower accepts, small enough to be read."""

import re
import subprocess
import time
import tomllib

import numpy as np
import pytest
from flwr.cli.build import build_fab_from_disk
from flwr.common.config import get_fab_config, validate_config
from flwr.supercore.fab_format_version import normalize_and_validate_fab_format
from refusal import assert_refused

from fedsofim.config.compose import compose
from fedsofim.deploy import programs, rehearsal, signing
from fedsofim.deploy.reach import Address, listens
from fedsofim.deploy.rehearsal import free_port
from fedsofim.deploy.thin_app import FLOWER, PACKAGE, write_app
from fedsofim.federation.run_config import overrides_of, section
from fedsofim.runs import session

DEFAULTS = ["strategy=fedgd", "privacy.epsilon=2", "privacy.delta=1e-6", "strategy.lr=0.3"]


def test_flower_accepts_it_as_it_is(tmp_path):
    place = write_app(tmp_path / "My Hospital", DEFAULTS, publisher="me")
    config = tomllib.loads((place / "pyproject.toml").read_text())
    assert validate_config(config, project_dir=place) == (True, [], [])
    known = normalize_and_validate_fab_format(config)
    assert (known.fab_format_version, known.flwr_version_target) == (1, "1.41.0")
    bundle = build_fab_from_disk(place)
    assert len(bundle) < 6000
    assert get_fab_config(bundle)["project"]["name"] == "my-hospital"
    files = [file for file in place.rglob("*") if file.is_file()]
    assert sum(file.stat().st_size for file in files) < 8000
    assert all(file.read_text().isprintable() or "\n" in file.read_text() for file in files)


def test_its_defaults_are_what_was_asked_for(tmp_path):
    place = write_app(tmp_path / "app", DEFAULTS)
    config = tomllib.loads((place / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    assert (config["epsilon"], config["delta"]) == (2, 1e-6)
    assert compose(overrides_of(config)) == compose(DEFAULTS)


def test_the_project_and_the_app_offer_the_same_keys(root):
    text = (root / "pyproject.toml").read_text()
    assert section() in text
    assert f'"flwr{FLOWER}"' in text


def test_awkward_values_arrive(tmp_path):
    given = ["dataset=npz", "dataset.path='a b.npz'", "output.dir=null"]
    place = write_app(tmp_path / "app", given)
    config = tomllib.loads((place / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    assert sorted(overrides_of(config)) == sorted(given)


def test_mistakes(inside, tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").write_text("")
    assert_refused(inside("app"), "name one folder")
    assert_refused(inside("app", "full"), "is not empty")
    assert_refused(inside("app", "new", "strategy=sofin"), "did you mean sofim?")
    assert_refused(inside("app", "new", "epsilon=1"), "did you mean privacy.epsilon?")
    assert_refused(inside("app", "new", "--publisher", "a b"), "give one word")
    assert not (tmp_path / "new").exists()
    done = inside("app", "new", "privacy.epsilon=1")
    assert done.returncode == 0
    assert "flwr run new --stream" in done.stdout


def test_it_can_be_signed_and_rehearsed_without_a_checkout(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(rehearsal, "editable_root", lambda: None)
    place = rehearsal.project_root(tmp_path / "app")
    assert rehearsal.project_root(tmp_path / "app") == place == tmp_path / "app"
    signing.make_bundle(place, tmp_path / "signed")
    assert signing.app_name(tmp_path / "signed") == "@fedsofim/app==1.0.0"


@pytest.fixture
def flwr(tmp_path):
    """`flwr run` on a local SuperLink of our own, which ends with the test.

    Flower would start one by itself, and give up on a busy machine after 15 s.
    """
    port = free_port()
    environment = programs.environment(
        FLWR_HOME=str(tmp_path / "flwr"),
        FLWR_LOCAL_SUPERLINK_HTTP_API_PORT=str(port),
        RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO="0",
    )
    command = [programs.program("flower-superlink"), "--insecure", "--simulation"]
    command += ["--isolation", "subprocess", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--control-api-address", f"127.0.0.1:{free_port()}"]
    process = programs.start(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    deadline = time.monotonic() + 180
    while not listens(Address("127.0.0.1", port)):
        assert process.poll() is None, "the SuperLink ended"
        assert time.monotonic() < deadline, "the SuperLink does not come up"
        time.sleep(0.5)

    def run(*arguments):
        command = [programs.program("flwr"), "run", *map(str, arguments), "--stream"]
        done = subprocess.run(
            command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=500
        )
        return done.stdout + done.stderr

    yield run
    programs.end(process)


@pytest.mark.slow
def test_flwr_run_gives_the_local_run(flwr, tmp_path):
    place = write_app(tmp_path / "hospital", ["strategy=fedgd", "privacy.epsilon=2"])
    config = f'rounds=3 overrides="output.dir={tmp_path}/flwr-run engine.wait=400"'
    told = flwr(place, "--run-config", config)
    assert "round 3 of 3: accuracy" in told, told
    here = f"output.dir={tmp_path}/local"
    local = session.run(compose(["strategy=fedgd", "privacy.epsilon=2", "rounds=3", here]))
    ours, theirs = (np.load(p / "model.npz") for p in (local.path, tmp_path / "flwr-run"))
    np.testing.assert_array_equal(ours["theta"], theirs["theta"])
    assert "Invalid run configuration" in flwr(place, "--run-config", "epsilom=1.0")
    assert "did you mean sofim?" in flwr(place, "--run-config", 'strategy="sofin"')
    assert PACKAGE in (place / "pyproject.toml").read_text()


@pytest.mark.slow
def test_our_strategy_in_somebody_elses_app(flwr, root):
    """Clients that clip and noise with Opacus, and know nothing of us: examples/flower_torch."""
    pytest.importorskip("opacus")
    nodes = "num-supernodes=10 client-resources-num-cpus=1"
    told = flwr(root / "examples" / "flower_torch", "--federation-config", nodes)
    assert "epsilon 6.33 at delta 1e-05 for one record of a client" in told, told
    assert "that is up to the clients" in told
    last = re.findall(r"MetricRecord: \{'accuracy': ([\d.]+)", told)
    assert "[ROUND 30/30]" in told
    assert len(last) >= 30, told
    assert float(last[-1]) > 0.75  # chance is 0.1
