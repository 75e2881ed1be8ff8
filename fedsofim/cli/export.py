"""`fedsofim export`: a run's model in the formats that other tools read."""

from collections.abc import Sequence
from pathlib import Path

from fedsofim.core.arguments import Parser

ABOUT = """A run's model for other tools (pip install 'fedsofim[export]'):
  onnx         a graph from records to probabilities; with --images from uint8 images
               (N, H, W, 3) of any size on, with preprocessing and backbone inside.
               It is compared with our own predictions by onnxruntime before it is kept
  torch        a state dict: weight and bias of a torch.nn.Linear, or those of a network
  safetensors  the same tensors; classes, epsilon and delta are in the metadata
  sklearn      a LogisticRegression, to be read with joblib.load
  fedsofim export outputs/2026-01-01/my-run --to onnx --images"""


def parser() -> Parser:
    """Its options."""
    made = Parser(prog="fedsofim export", description=ABOUT)
    made.add_argument("dir", type=Path, metavar="DIR", help="a run's directory")
    made.add_argument(
        *("--to",), required=True, choices=("onnx", "torch", "sklearn", "safetensors"),
        help="the format",
    )  # fmt: skip
    made.add_argument("--out", type=Path, metavar="FILE", help="by default model.* in DIR")
    made.add_argument(
        "--images", action="store_true", help="take images: the backbone and the head in one graph"
    )
    add_model(made)
    return made


def add_model(parser: Parser) -> None:
    """Options that say which model is meant."""
    parser.add_argument(
        "--client", type=int, metavar="N", help="whose model, where every client has its own"
    )
    parser.add_argument(
        "--weights", type=Path, metavar="FILE", help="the backbone's, if they are elsewhere now"
    )


def main(arguments: Sequence[str]) -> None:
    """Write the file, and say what it is."""
    if not arguments:
        return parser().print_help()
    chosen = parser().read(arguments)
    from fedsofim.api.export import export
    from fedsofim.api.training import load

    done = export(
        load(chosen.dir),
        chosen.to,
        chosen.out,
        images=chosen.images,
        client=chosen.client,
        weights=chosen.weights,
    )
    checked = ""
    if done.difference is not None:
        checked = f"; onnxruntime's probabilities differ from ours by at most {done.difference:.1g}"
    print(f"Written to {done.file}{checked}")
