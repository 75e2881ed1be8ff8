"""Exported models, read by the tools that they are for, beside our own predictions."""

import importlib
import json
import sys

import joblib
import numpy as np
import pytest
import safetensors
import torch
from refusal import assert_refused

import fedsofim
from fedsofim.api import export
from fedsofim.core.errors import ConfigError

onnxruntime = pytest.importorskip("onnxruntime")
torch.set_num_threads(1)


@pytest.fixture(scope="module")
def history(tmp_path_factory):
    """A head for classes with names, trained on arrays."""
    rng = np.random.default_rng(0)
    y = np.arange(300) % 3
    X = np.eye(3, 5)[y] + 0.3 * rng.normal(size=(300, 5))
    names = np.array(["ape", "bee", "cat"])[y]
    data = X[:240], names[:240], X[240:], names[240:]
    out = tmp_path_factory.mktemp("run") / "mine"
    return fedsofim.run(data=data, clients=3, rounds=5, epsilon=5, output=out)


@pytest.fixture
def records(rng):
    return rng.normal(size=(20, 5)).astype(np.float32)


def test_onnxruntime_predicts_as_we_do(history, records):
    file = history.export("onnx")
    assert file == history.path / "model.onnx"
    session = onnxruntime.InferenceSession(file)
    (p,) = session.run(None, {"records": records})
    np.testing.assert_allclose(p, history.model.predict_proba(records), atol=1e-6)
    told = session.get_modelmeta().custom_metadata_map
    assert json.loads(told["classes"]) == ["ape", "bee", "cat"]
    assert float(told["epsilon"]) == pytest.approx(history.final_epsilon)
    assert (told["unit"], told["adjacency"], told["trust"]) == ("record", "replace-one", "server")
    assert not {"seed", "counts", "sizes"} & told.keys()


def test_scikit_learn_predicts_as_we_do(history, records):
    theirs = joblib.load(history.export("sklearn"))
    np.testing.assert_array_equal(theirs.predict(records), history.model.predict(records))
    ours = history.model.predict_proba(records)
    np.testing.assert_allclose(theirs.predict_proba(records), ours, atol=1e-6)


def test_scikit_learn_keeps_two_classes_as_one_difference(rng):
    X = rng.normal(size=(40, 2))
    run = fedsofim.run(data=(X, X[:, 0] > 0, X, X[:, 0] > 0), clients=2, rounds=3, privacy="none")
    theirs = run.model.to_sklearn()
    assert theirs.coef_.shape == (1, 2)
    np.testing.assert_allclose(theirs.predict_proba(X), run.model.predict_proba(X), atol=1e-6)


def test_torch_loads_a_linear_layer(history, records):
    layer = torch.nn.Linear(5, 3)
    layer.load_state_dict(torch.load(history.export("torch"), weights_only=True))
    with torch.no_grad():
        logits = layer(torch.from_numpy(records)).numpy()
    np.testing.assert_allclose(logits, history.model.decision_function(records), atol=1e-5)


def test_safetensors_hold_the_same_tensors_and_what_was_promised(history):
    with safetensors.safe_open(history.export("safetensors"), framework="np") as file:
        np.testing.assert_array_equal(file.get_tensor("weight"), history.model.coef_)
        np.testing.assert_array_equal(file.get_tensor("bias"), history.model.intercept_)
        assert float(file.metadata()["delta"]) == history.delta


def test_a_network_is_exported_as_well(rng, tmp_path):
    y = np.arange(60) % 3
    X = (rng.normal(size=(60, 3, 8, 8)) + y[:, None, None, None]).astype(np.float32)
    few = {"clients": 2, "rounds": 2, "privacy": "none"}
    model = {"name": "cnn", "blocks": 2, "width": 4}
    run = fedsofim.run(data=(X, y, X, y), model=model, output=tmp_path / "run", **few)
    session = onnxruntime.InferenceSession(run.export("onnx"))
    (p,) = session.run(None, {"records": X})
    np.testing.assert_allclose(p, run.model.predict_proba(X), atol=1e-5)
    network = run.config.checked.model.module((3, 8, 8), 3)
    network.load_state_dict(torch.load(run.export("torch"), weights_only=True))
    with torch.no_grad():
        theirs = network(torch.from_numpy(X)).numpy()
    np.testing.assert_allclose(theirs, run.model.decision_function(X), atol=1e-5)
    with safetensors.safe_open(run.export("safetensors"), framework="np") as file:
        assert sorted(file.keys()) == sorted(network.state_dict())
    with pytest.raises(ConfigError, match=r"model=cnn: is no linear head.*choose onnx"):
        run.export("sklearn")
    with pytest.raises(ConfigError, match="was trained on arrays as they were given"):
        run.export("onnx", images=True)


def test_one_clients_own_model(rng, tmp_path):
    y = np.arange(80) % 2
    X = rng.normal(size=(80, 3)) + y[:, None]
    run = fedsofim.run(
        data=(X, y, X, y), strategy="pfedsop", clients=2, rounds=2, output=tmp_path / "run"
    )
    with pytest.raises(ConfigError, match="every client has a model of its own"):
        run.export("safetensors")
    with pytest.raises(ConfigError, match="clients are 0 to 1"):
        run.export("safetensors", client=2)
    with safetensors.safe_open(run.export("safetensors", client=1), framework="np") as file:
        np.testing.assert_array_equal(file.get_tensor("weight"), run.personal[1].coef_)


def test_a_graph_that_differs_is_not_kept(history, tmp_path, monkeypatch):
    monkeypatch.setattr(export, "NEAR", 0.0)
    with pytest.raises(ConfigError, match="onnxruntime's probabilities differ from ours by"):
        history.export("onnx", tmp_path / "model.onnx")
    assert list(tmp_path.iterdir()) == []


def test_the_command(inside, history, tmp_path):
    done = inside("export", history.path, "--to", "safetensors", "--out", "head.safetensors")
    assert (done.returncode, done.stdout) == (0, "Written to head.safetensors\n")
    for words, told in (
        (["--to", "coreml"], "--to: coreml: unknown; choose one of onnx, torch"),
        ([], "--to"),
        (["--to", "torch", "--out", "head.bin"], "head.bin: must end in .pt"),
        (["--to", "torch", "--images"], "images: only for onnx"),
        (["--to", "onnx", "--images"], "which backbone made the features"),
        (["--to", "torch", "--client", "1"], "has one model for all"),
    ):
        assert_refused(inside("export", history.path, *words), told)
    assert [file.name for file in tmp_path.iterdir()] == ["head.safetensors"]


@pytest.mark.parametrize(
    ("to", "module"),
    [
        *[("onnx", name) for name in ("torch", "onnx", "onnxscript", "onnxruntime")],
        *[("torch", "torch"), ("safetensors", "safetensors.numpy")],
        *[("sklearn", "sklearn.linear_model"), ("sklearn", "joblib")],
    ],
)
def test_what_is_missing_is_told_in_a_line(inside, history, monkeypatch, to, module):
    real = importlib.import_module

    def without(name, *rest):
        if name == module:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return real(name, *rest)

    monkeypatch.setattr(importlib, "import_module", without)
    done = inside("export", history.path, "--to", to)
    assert_refused(done, f"needs {module}, which is not installed: pip install 'fedsofim[export]'")


def test_a_linear_head_needs_no_torch_for_safetensors(history, environment):
    import subprocess

    code = (
        "import sys; sys.modules['torch'] = None; import fedsofim; "
        f"fedsofim.load({str(history.path)!r}).export('safetensors')"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)
