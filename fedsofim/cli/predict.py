"""`fedsofim predict`: labels and probabilities for records in a file, as CSV."""

import csv
import io
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fedsofim.cli.export import add_model
from fedsofim.core.arguments import Parser

if TYPE_CHECKING:
    from fedsofim.api.prediction import Predicted

ABOUT = """What a run's model says of records: one line for each, with its most likely label, that
label's probability, and the probability of every class. FILE is one of
  a .npz with an array x (N, F) of features, or images (N, H, W[, 3]) uint8; or test_x, test_images
  a .npy of either
  a .csv or .parquet, for a run on a table, with the columns of its schema
  an image, or a folder: all images below it
Images need the backbone that made the run's features, which is known for the embedded data sets,
for those that were made from images, and for files of 'fedsofim features'.
  fedsofim predict outputs/2026-01-01/my-run new.npz --out labels.csv"""


def parser() -> Parser:
    """Its options."""
    made = Parser(prog="fedsofim predict", description=ABOUT)
    made.add_argument("dir", type=Path, metavar="DIR", help="a run's directory")
    made.add_argument("file", type=Path, metavar="FILE", help="what to predict")
    made.add_argument("--out", type=Path, metavar="FILE", help="by default the CSV is printed")
    made.add_argument("--array", metavar="NAME", help="which array of a .npz")
    add_model(made)
    return made


def main(arguments: Sequence[str]) -> None:
    """Write the CSV; how many labels were right, where the file has them, is said on stderr."""
    if not arguments:
        return parser().print_help()
    chosen = parser().read(arguments)
    from rich.console import Console

    from fedsofim.api import prediction
    from fedsofim.api.training import load
    from fedsofim.cli.terminal import bar
    from fedsofim.core.files import write_whole

    history = load(chosen.dir)
    records = prediction.read(history, chosen.file, chosen.array)
    parts: list[prediction.Predicted] = []
    with bar(Console(stderr=True)) as show:
        how = {"client": chosen.client, "weights": chosen.weights}
        for part in prediction.predict(history, records, **how):
            parts.append(part)
            show(advance=len(part.names), description="records")
    text = table(parts, history.model.classes_.tolist())
    if chosen.out:
        write_whole(chosen.out, text.encode())
    else:
        print(text, end="")
    told = f"{sum(len(part.names) for part in parts):,} records"
    if records.labels is not None:
        share = prediction.accuracy(parts, records.labels, history.model.classes_)
        told += f", {100 * share:.2f} % with the label that the file tells"
    print(f"{told}; written to {chosen.out}" if chosen.out else told, file=sys.stderr)


def table(parts: "Sequence[Predicted]", classes: Sequence[object]) -> str:
    """Predictions as CSV, one line for each record."""
    out = io.StringIO()
    rows = csv.writer(out, lineterminator="\n")
    rows.writerow(["record", "label", "probability", *(f"p_{name}" for name in classes)])
    for names, labels, p in parts:
        for name, label, row in zip(names, labels.tolist(), p, strict=True):
            rows.writerow([name, label, f"{row.max():.6g}", *(f"{value:.6g}" for value in row)])
    return out.getvalue()
