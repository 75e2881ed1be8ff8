"""Write docs/reproduction.md and its figures from what `fedsofim reproduce all` left.

    fedsofim reproduce all
    python scripts/reproduction_page.py outputs/reproduce

scripts/reproduction_page.md is the page with places to fill in, as `<<table3>>`.
"""

import csv
import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from fedsofim.studies.contents import PAPER

ROOT = Path(__file__).resolve().parent.parent
ACCURACIES = ("3", "4", "5", "6", "8", "9")
FIGURES = [*(f"figure{i}" for i in range(1, 9)), *(f"frontier-table{i}" for i in "3456")]
# The columns of a table that the page shows; all are in the files that the command writes.
SHOWN = {
    **{f"table{n}": (0, 1, 2, 3, 14, 15, 16, 17, 18, 19) for n in ACCURACIES},
    **{f"table{n}": (0, 1, 2, 5, 6, 7, 8, 9, 10, 13, 14) for n in ("15", "16")},
}


class Page:
    """The parts of the page, from the files of a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def rows(self, name: str) -> list[list[str]]:
        """A table's header and rows; empty if it was not made."""
        file = self.folder / f"{name}.csv"
        return list(csv.reader(file.open())) if file.is_file() else []

    def table(self, name: str) -> str:
        """A table as the page shows it."""
        rows = self.rows(name)
        if not rows:
            return f"Not measured yet: `fedsofim reproduce {name.partition('-')[0]}`."
        kept = SHOWN.get(name, range(len(rows[0])))
        header, *body = [[row[i] for i in kept] for row in rows]
        lines = [header, ["---:"] * len(header), *body]
        return "\n".join(f"| {' | '.join(line)} |" for line in lines)

    def title(self, name: str) -> str:
        """What the command says above a table."""
        file = self.folder / f"{name}.md"
        first = file.read_text().partition("\n")[0] if file.is_file() else ""
        return first.strip("*").partition(": ")[2]

    def verdict(self) -> str:
        """How many gaps reproduce, table by table."""
        out = ["| table | what | gaps within 5 points | beyond |", "|---:|---|---:|---|"]
        for number in ACCURACIES:
            body = self.rows(f"table{number}")[1:]
            near = sum(row[-1] == "yes" for row in body)
            far = [f"{row[1]} at {row[0]} ({row[-2]})" for row in body if row[-1] != "yes"]
            count = f"{near} of {len(body)}" if body else "not measured yet"
            about = PAPER[f"Table {number}"].about
            out.append(f"| {number} | {about} | {count} | {', '.join(far) or '-'} |")
        return "\n".join(out)

    def share(self) -> str:
        """How many of all cells reproduce, by backbone."""
        told = []
        for backbone, numbers in (("ResNet-20", "3489"), ("VGG-16", "56")):
            body = [row for n in numbers for row in self.rows(f"table{n}")[1:]]
            near = sum(row[-1] == "yes" for row in body)
            share = (
                f"{near} of {len(body)} ({100 * near / len(body):.0f} %)" if body else "none yet"
            )
            told.append(f"{backbone}: {share}")
        return "; ".join(told)

    def contents(self) -> str:
        """Every table and figure with its command."""
        lines = ["| in the paper | what | command |", "|---|---|---|"]
        for name, entry in PAPER.items():
            how = f"`fedsofim {entry.command}`" if entry.command else entry.why
            lines.append(f"| {name} | {entry.about} | {how} |")
        return "\n".join(lines)

    def figure(self, name: str) -> str:
        """A figure as the page shows it."""
        if not (self.folder / f"{name}.svg").is_file():
            return f"Not drawn yet: `fedsofim reproduce {name}`."
        title = f"Figure {name.removeprefix('figure')}"
        return f"![{title}: {PAPER[title].about}; ours and the paper's](figures/{name}.svg)"

    def fill(self, name: str) -> str:
        """What stands at a place of the page."""
        if name in ("verdict", "share", "contents"):
            return str(getattr(self, name)())
        if name.startswith("figure"):
            return self.figure(name)
        kind, _, of = name.partition(":")
        return self.title(of) if kind == "title" else self.table(name)


def main(arguments: Sequence[str]) -> None:
    """Write the page, and copy the figures that there are."""
    folder = Path(arguments[0])
    page = Page(folder)
    text = (ROOT / "scripts" / "reproduction_page.md").read_text()
    text = re.sub(r"<<([a-z0-9:-]+)>>", lambda place: page.fill(place[1]), text)
    (ROOT / "docs" / "reproduction.md").write_text(text)
    for name in FIGURES:
        file = folder / f"{name}.svg"
        if file.is_file():
            shutil.copyfile(file, ROOT / "docs" / "figures" / file.name)


if __name__ == "__main__":
    main(sys.argv[1:])
