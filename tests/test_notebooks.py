"""Every notebook in docs/ does what it shows."""

import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

DOCS = Path(__file__).resolve().parent.parent / "docs"
NOTEBOOKS = sorted(DOCS.glob("*.ipynb"))


@pytest.fixture
def executed(tmp_path, environment, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", environment["PYTHONPATH"])
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))

    def execute(file):
        notebook = nbformat.read(file, as_version=4)
        resources = {"metadata": {"path": str(tmp_path)}}
        return NotebookClient(notebook, timeout=120, resources=resources).execute()

    return execute


def texts(notebook):
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            yield output.get("text") or output.get("data", {}).get("text/plain", "")


@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)
def test_a_notebook_is_kept_without_its_outputs(file):
    notebook = nbformat.read(file, as_version=4)
    nbformat.validate(notebook)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            assert cell.outputs == []
            assert cell.execution_count is None


def test_the_first_steps_can_be_taken(executed, tmp_path):
    notebook = executed(DOCS / "first-steps.ipynb")
    told = "\n".join(texts(notebook))
    assert "<sofim on cifar10: 30 rounds, accuracy 0." in told
    assert "\rround 30 of 30: accuracy" in told  # the progress, on one line
    assert "'cat', 'dog', 'fox'" in told
    assert "rounds 21 to 30: 10 releases" in told
    assert "nothing is left of it after 30 rounds" in told
    images = [o for c in notebook.cells for o in c.get("outputs", []) if "image/png" in str(o)]
    assert len(images) == 1
    assert {p.name for p in tmp_path.iterdir()} <= {
        "ipython",
        "temporary",
    }  # nothing is written beside it


def test_a_table_of_ones_own(executed):
    told = "\n".join(texts(executed(DOCS / "your-table.ipynb")))
    assert "rounds, accuracy 0." in told
    private, plain = map(
        float, re.search(r"epsilon 1: ([\d.]+), .*privacy: ([\d.]+)", told).groups()
    )
    assert 0.75 < private < plain + 0.01
    assert re.search(r"^classes +as declared +ill, well$", told, re.MULTILINE)
    assert re.findall(r"^\d+,(\w+),", told, re.MULTILINE) == ["ill", "well"]


def test_images_of_ones_own(executed):
    pytest.importorskip("torch")
    told = "\n".join(texts(executed(DOCS / "your-images.ipynb")))
    assert "<sofim on folder: 15 rounds, accuracy " in told
    assert "water" in told
    assert "'card.md'" in told


def test_a_method_of_ones_own(executed):
    told = "\n".join(texts(executed(DOCS / "your-method.ipynb")))
    assert "True" in told  # without momentum it is DP-FedGD, bit for bit
    assert "momentun: no such key; did you mean strategy.momentum?" in told
    assert "momentum=1.5: must be at least 0 and below 1" in told


@pytest.mark.slow
def test_a_hospital_deployment(executed, monkeypatch):
    told = "\n".join(texts(executed(DOCS / "hospital.ipynb")))
    assert "noise_multiplier" in told
    assert "round 2 of 2" in told
    assert "epsilon" in told
    assert "'model.npz'" in told
