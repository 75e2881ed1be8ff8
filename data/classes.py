"""What classes are called: one list, in one order, for all who train together.

A label is a number, and a number says nothing: two owners who number their own folders may mean
different things by the same one. So names travel with labels, and where names are known a label
is what its name says.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedsofim.core.arrays import Array
from fedsofim.core.errors import ConfigError, require

# The array of a `.npz` file that holds the names, `(K,)`.
NAMES = "class_names"
LONGEST, MOST = 100, 10_000
MOST_NUMBERED = 1_000_000
# What would end a name where it is written: in a list, in quotes, in a client's settings.
FORBIDDEN = ",|\"'"


@dataclass(frozen=True)
class Classes:
    """How many classes there are, and what they are called if that is known."""

    count: int
    names: tuple[str, ...] = ()

    @classmethod
    def of(cls, given: object) -> "Classes":
        """From a number, or from a list of names.

        >>> Classes.of(["adipose", "tumour"])
        Classes(count=2, names=('adipose', 'tumour'))
        """
        if isinstance(given, int) and not isinstance(given, bool):
            require(given >= 2, f"classes={given}: at least two classes are needed")
            require(given <= MOST_NUMBERED, f"classes={given}: at most {MOST_NUMBERED:,}")
            return cls(given)
        if isinstance(given, str) or not isinstance(given, Sequence):
            raise ConfigError(f"classes={given}: give a number, or names as [adipose,tumour]")
        plain = all(isinstance(n, str | int | float) and not isinstance(n, bool) for n in given)
        require(plain, f"classes={list(given)}: names are texts; put quotes around true and false")
        names = checked_names([str(name) for name in given])
        return cls(len(names), names)

    @classmethod
    def written(cls, text: str, base: Path | None = None) -> "Classes":
        """From what a person writes: a number, names with commas between, or a file of names.

        Args:
            text: what was written; a file has one name in each line.
            base: what a relative path is relative to.

        >>> Classes.written("3"), Classes.written("no, yes")
        (Classes(count=3, names=()), Classes(count=2, names=('no', 'yes')))
        """
        if text.strip().isdecimal():
            return cls.of(int(text))
        file = (base or Path()) / Path(text).expanduser()
        if "," not in text:
            require(file.is_file(), f"classes={text}: not a number, no names a,b,c, and no file")
            try:
                lines = file.read_text("utf-8").splitlines()
            except (OSError, UnicodeError) as error:
                raise ConfigError(f"{file}: not a readable file of names ({error})") from None
            return cls.of([line.strip() for line in lines if line.strip()])
        return cls.of([name.strip() for name in text.split(",")])

    def __str__(self) -> str:
        return ", ".join(self.names) if self.names else str(self.count)

    def require_same(self, others: "Classes", whose: str, ours: str) -> None:
        """Refuse a list that is not this one; where only numbers are known, those are compared."""
        named = bool(self.names and others.names)
        same = self.names == others.names if named else self.count == others.count
        require(same, f"{whose} has the classes {others}, and {ours} has {self}")


def checked_names(names: Sequence[str]) -> tuple[str, ...]:
    """The names, if all of them can be told apart and be written anywhere."""
    require(2 <= len(names) <= MOST, f"classes: {len(names)} names; give 2 to {MOST:,}")
    for name in names:
        good = 0 < len(name) <= LONGEST and name.isprintable() and name == name.strip()
        require(
            good and not set(name) & set(FORBIDDEN),
            f"classes: {name[:LONGEST]!r} cannot be a name; it must be of 1 to {LONGEST} letters, "
            "without commas, bars and quotes",
        )
    twice = sorted({name for name in names if names.count(name) > 1})
    require(not twice, f"classes: {', '.join(twice)} is there twice")
    return tuple(names)


def names_in(arrays: Mapping[str, Array]) -> tuple[str, ...]:
    """The names that a `.npz` file gives its classes; none if it gives none."""
    if NAMES not in arrays:
        return ()
    names = arrays[NAMES]
    good = names.ndim == 1 and names.dtype.kind == "U"
    require(good, f"{NAMES} is {names.dtype} {names.shape}; it must be a list of texts")
    return checked_names(names.tolist())


def in_order(y: Array, own: Sequence[str], agreed: Sequence[str]) -> Array:
    """Labels that number the names `own`, as labels that number the names `agreed`.

    >>> in_order(np.array([0, 1, 1]), ("adipose", "tumour"), ("adipose", "debris", "tumour"))
    array([0, 2, 2])
    """
    if not own or not agreed or tuple(own) == tuple(agreed):
        return y
    unknown = [name for name in own if name not in agreed]
    require(
        not unknown,
        f"its classes are {', '.join(own)}; {', '.join(unknown)} is not among the agreed "
        f"{', '.join(agreed)}",
    )
    beyond = y[y >= len(own)]
    require(beyond.size == 0, f"has the label {beyond[:1]}, and names {len(own)} classes")
    return np.array([agreed.index(name) for name in own], np.intp)[y]


CIFAR10 = "airplane automobile bird cat deer dog frog horse ship truck"
ORGANS = (
    "bladder, femur-left, femur-right, heart, kidney-left, kidney-right, liver, lung-left, "
    "lung-right, pancreas, spleen"
)
FINDINGS = [
    "atelectasis",
    "cardiomegaly",
    "effusion",
    "infiltration",
    "mass",
    "nodule",
    "pneumonia",
    "pneumothorax",
    "consolidation",
    "edema",
    "emphysema",
    "fibrosis",
    "pleural",
    "hernia",
]
# What the makers of the sets call their classes, in their order (MedMNIST: Yang et al. 2023).
KNOWN = {
    "cifar10": tuple(CIFAR10.split()),
    "bloodmnist": (
        *("basophil", "eosinophil", "erythroblast", "immature granulocytes"),
        *("lymphocyte", "monocyte", "neutrophil", "platelet"),
    ),
    "breastmnist": ("malignant", "normal or benign"),
    "dermamnist": (
        *("actinic keratoses and intraepithelial carcinoma", "basal cell carcinoma"),
        *("benign keratosis-like lesions", "dermatofibroma", "melanoma", "melanocytic nevi"),
        "vascular lesions",
    ),
    "octmnist": ("choroidal neovascularization", "diabetic macular edema", "drusen", "normal"),
    **dict.fromkeys(("organamnist", "organcmnist", "organsmnist"), tuple(ORGANS.split(", "))),
    "pathmnist": (
        *("adipose", "background", "debris", "lymphocytes", "mucus", "smooth muscle"),
        *("normal colon mucosa", "cancer-associated stroma"),
        "colorectal adenocarcinoma epithelium",
    ),
    "retinamnist": ("0", "1", "2", "3", "4"),
    "pneumoniamnist": ("normal", "pneumonia"),
    "tissuemnist": (
        *("Collecting Duct or Connecting Tubule", "Distal Convoluted Tubule"),
        *("Glomerular endothelial cells", "Interstitial endothelial cells", "Leukocytes"),
        *("Podocytes", "Proximal Tubule Segments", "Thick Ascending Limb"),
    ),
}


def known_names(dataset: str, label: str | None) -> tuple[str, ...]:
    """What the classes of a set that has a name are called; none where that is not known.

    Args:
        dataset: the set.
        label: which of several labels is meant.
    """
    if dataset != "chestmnist":
        return KNOWN.get(dataset, ())
    if label == "any":
        return ("no finding", "any finding")
    one = FINDINGS[int(label)] if label is not None and label.isdecimal() else ""
    return (f"no {one}", one) if one else ()
