"""A trained model in the formats that other tools read.

>>> sorted(FORMATS)
['onnx', 'safetensors', 'sklearn', 'torch']
"""

import json
import math
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fedsofim import __version__
from fedsofim.api.images import backbone_of, preparation, require_pixels
from fedsofim.api.model import Model
from fedsofim.core.arrays import Array
from fedsofim.core.errors import choose, require
from fedsofim.core.files import whole
from fedsofim.data.vision import optional

if TYPE_CHECKING:
    from fedsofim.api.history import History

# How far another tool's probabilities may be from ours: both compute in single precision.
NEAR = 1e-4
TRIED = 7  # records, in the comparison


class Exported(NamedTuple):
    """A file that was written.

    Attributes:
        file: where it is.
        difference: the largest between a probability of onnxruntime's and ours, for ONNX.
    """

    file: Path
    difference: float | None = None


class Job(NamedTuple):
    """What is to be written.

    Attributes:
        history: the run.
        model: its model, or one client's.
        images: whether an ONNX graph is to take images.
        weights: the backbone's, if they are elsewhere now.
    """

    history: "History"
    model: Model
    images: bool
    weights: Path | None


def export(
    history: "History",
    to: str,
    out: str | Path | None = None,
    *,
    images: bool = False,
    client: int | None = None,
    weights: str | Path | None = None,
) -> Exported:
    """Write a run's model for another tool.

    Args:
        history: the run.
        to: `onnx`, a graph that gives probabilities; `torch`, a state dict; `sklearn`, a pickled
            `LogisticRegression`; `safetensors`, the same tensors as `torch`.
        out: the file; by default `model` with the format's ending, in the run's directory.
        images: for ONNX: whether the graph takes uint8 images `(N, H, W, 3)`, with preprocessing
            and backbone inside, where it is known which backbone made the run's features.
        client: whose model, where every client has one of its own.
        weights: the backbone's, if they are elsewhere now.
    """
    suffix, write = choose(FORMATS, to, "to")
    require(not images or to == "onnx", f"images: only for onnx; {to} holds the trained part alone")
    require(out is not None or history.path is not None, "out: name a file; this run has no folder")
    file = Path(out) if out is not None else Path(str(history.path)) / f"model{suffix}"
    require(file.suffix == suffix, f"{file}: must end in {suffix}")
    given = None if weights is None else Path(weights)
    job = Job(history, model_for(history, client), images, given)
    with whole(file) as draft:
        difference = write(job, draft)
    return Exported(file, difference)


def model_for(history: "History", client: int | None) -> Model:
    """The run's model, or a client's own."""
    own, name = history.personal, history.config["strategy.name"]
    if client is None:
        keeps = history.config.checked.client.keeps_models
        require(not keeps, f"strategy={name}: every client has a model of its own; say which one's")
        return history.model
    require(bool(own), f"client={client}: strategy={name} has one model for all")
    require(0 <= client < len(own), f"client={client}: clients are 0 to {len(own) - 1}")
    return own[client]


def about(job: Job) -> dict[str, str]:
    """What a file says of itself: nothing that no epsilon covers."""
    history, private = job.history, math.isfinite(job.history.final_epsilon)
    promise = {"epsilon": f"{history.final_epsilon:.6g}", "delta": f"{history.delta:g}"}
    promise |= {key: history.config[f"privacy.{key}"] for key in ("adjacency", "trust")}
    return {
        "made_by": f"fedsofim {__version__}",
        "classes": json.dumps(job.model.classes_.tolist()),
        "strategy": str(history.config["strategy.name"]),
        "dataset": str(history.config["dataset.name"]),
        "private": str(private).lower(),
        **({"unit": "record", **promise} if private else {}),
    }


def _tensors(job: Job) -> dict[str, Array]:
    """The parameters by the names that torch has for them; a linear head needs no torch here."""
    if job.model.kind.linear:
        parts = {"weight": job.model.coef_, "bias": job.model.intercept_}
        return {k: np.ascontiguousarray(v, np.float32) for k, v in parts.items()}
    return {k: v.numpy() for k, v in job.model.to_torch().state_dict().items()}


def _safetensors(job: Job, file: Path) -> None:
    library = optional("safetensors.numpy", "--to safetensors needs", "export")
    file.write_bytes(library.save(_tensors(job), metadata=about(job)))


def _torch(job: Job, file: Path) -> None:
    torch = optional("torch", "--to torch needs", "export")
    torch.save(job.model.to_torch().state_dict(), file)


def _sklearn(job: Job, file: Path) -> None:
    made = job.model.to_sklearn()
    optional("joblib", "--to sklearn needs", "export").dump(made, file)


def _onnx(job: Job, file: Path) -> float:
    """Write the graph, and compare what onnxruntime makes of it with our own predictions."""
    for name in ("torch", "onnx", "onnxscript", "onnxruntime"):
        optional(name, "--to onnx needs", "export")
    program = _graph(job)
    program.model.metadata_props.update(about(job))
    program.save(file, external_data=False)
    difference = _difference(job, file)
    require(difference < NEAR, f"onnxruntime's probabilities differ from ours by {difference:.2g}")
    return difference


def _graph(job: Job) -> Any:
    """The model as torch's ONNX exporter gives it."""
    import torch

    from fedsofim.api import graph

    config, free = job.history.config.checked, torch.export.Dim
    backbone = None
    if job.images and job.model.kind.linear:
        backbone = backbone_of(config, job.weights)
    elif job.images:
        require_pixels(config)
    module = graph.whole(job.model.to_torch(), images=job.images, backbone=backbone)
    sizes: Mapping[int, Any] = {0: free("records")}
    if backbone is not None:
        sizes = {**sizes, 1: free("height"), 2: free("width")}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter's own, about its own insides
        return torch.onnx.export(
            module,
            (torch.from_numpy(_some(job)),),
            dynamo=True,
            verbose=False,
            input_names=["images" if job.images else "records"],
            output_names=["probabilities"],
            dynamic_shapes=(sizes,),
        )


def _some(job: Job) -> Array:
    """Random inputs: images of a size that must be changed, where the graph changes it."""
    rng, shape = np.random.default_rng(0), job.model.shape
    if not job.images:
        return rng.normal(size=(TRIED, *shape)).astype(np.float32)
    size = (40, 36) if job.model.kind.linear else shape[1:]
    return rng.integers(0, 256, (TRIED, *size, 3)).astype(np.uint8)


def _difference(job: Job, file: Path) -> float:
    import onnxruntime

    x, name = _some(job), "images" if job.images else "records"
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    (theirs,) = session.run(["probabilities"], {name: x})
    ready = preparation(job.history.config.checked, job.weights)(x) if job.images else x
    return float(np.abs(theirs - job.model.predict_proba(ready)).max())


class Format(NamedTuple):
    """A format: how its files end, and what writes one."""

    suffix: str
    write: Callable[[Job, Path], float | None]


FORMATS: dict[str, Format] = {
    "onnx": Format(".onnx", _onnx),
    "torch": Format(".pt", _torch),
    "sklearn": Format(".joblib", _sklearn),
    "safetensors": Format(".safetensors", _safetensors),
}
