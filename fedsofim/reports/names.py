"""What methods, data sets and classes are called for people, and what a promise means to them."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from fedsofim.core.shipped import described

DATA = {
    **{"cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "octmnist": "OCTMNIST"},
    **{f"{part.lower()}mnist": f"{part}MNIST" for part in ("Path", "Chest", "Derma", "Pneumonia")},
    **{f"{part.lower()}mnist": f"{part}MNIST" for part in ("Retina", "Breast", "Blood", "Tissue")},
    **{f"organ{part.lower()}mnist": f"Organ{part}MNIST" for part in "ACS"},
    "owners": "the owners' data",
    **dict.fromkeys(("npz", "arrays"), "own data"),
    "folder": "own images",
    "table": "own table",
}
ENGINES = {"local": "one process", "ray": "Ray", "flower": "Flower"}
DIVISIONS = {
    "dirichlet": "Dirichlet",
    "iid": "dealt out at random",
    "classes": "a few classes each",
    "natural": "as the data say",
    "published": "as in the paper",
}


def method(strategy: str, private: bool = True) -> str:
    """What a strategy is called: DP-FedSOFIM, and without privacy FedSOFIM.

    >>> method("sofim"), method("sofim", private=False), method("my.module:Mine")
    ('DP-FedSOFIM', 'FedSOFIM', 'Mine')
    """
    name, colon, _ = described("strategy", strategy).partition(":")
    if not colon:
        return strategy.rpartition(":")[2]
    return name if private else name.removeprefix("DP-")


def data(name: str) -> str:
    """What a data set is called."""
    return DATA.get(name, name.rpartition(":")[2])


def division(kind: str) -> str:
    """How records were dealt out, in words; what follows the kind's name stays.

    >>> division("dirichlet 0.5"), division("my.module:Halves")
    ('Dirichlet 0.5', 'Halves')
    """
    name, _, rest = kind.partition(" ")
    return f"{DIVISIONS.get(name, name.rpartition(':')[2])} {rest}".strip()


def where(setting: str) -> str:
    """The data and the division of runs, as a heading.

    >>> where("cifar10, 20 clients, dirichlet 0.5, holdout 0.2")
    'CIFAR-10, 20 clients, Dirichlet 0.5, holdout 0.2'
    """
    name, *rest = setting.split(", ")
    return ", ".join([data(name), *rest[:1], *map(division, rest[1:2]), *rest[2:]])


def small(value: float) -> str:
    """A small number as people write it.

    >>> small(1e-5), small(0.001)
    ('1e-5', '0.001')
    """
    return f"{value:g}".replace("e-0", "e-")


def classes(count: int, *sources: Any) -> list[str]:
    """The names of the classes, where one of the sources has as many as there are; else numbers.

    >>> classes(2, None, {"names": ["benign", "malignant"]}), classes(2, {"classes": 2})
    (['benign', 'malignant'], ['0', '1'])
    """
    for source in sources:
        for key in ("names", "class_names", "classes"):
            found = source.get(key) if isinstance(source, Mapping) else None
            if not isinstance(found, Sequence) or isinstance(found, str) or len(found) != count:
                continue
            if all(isinstance(row, Mapping) and "name" in row for row in found):
                found = [row["name"] for row in found]
            if all(isinstance(name, str | int) for name in found):
                return [str(name) for name in found]
    return [str(k) for k in range(count)]


def meaning(epsilon: float | None, delta: float | None, mu: float) -> str:
    r"""What epsilon means, in one sentence that needs no formula.

    The best test between two neighbours under $\mu$-GDP is right with probability $\Phi(\mu/2)$
    (Dong, Roth & Su 2022), and all releases of a run are together exactly that.
    """
    if epsilon is None:
        return "Nothing protects the records: whoever sees the model may learn anything about them."
    if epsilon == 0:
        return "Nothing leaves a client, so nothing can be learnt about its records."
    right = 100 * guess(mu)
    return (
        f"Epsilon {epsilon:.3g} (delta {small(delta or 0)}) means: someone who knows everything "
        "except one record, and must tell which of two possible records was used, is right at most "
        f"{right:.{1 if right < 99 else 2}f} times in 100; tossing a coin gives 50."
    )


def guess(mu: float) -> float:
    """How often the best attacker tells two neighbours apart, from 1/2 to 1.

    >>> guess(0.0), round(guess(1.0), 3)
    (0.5, 0.691)
    """
    return 0.5 * (1 + math.erf(mu / 2 / math.sqrt(2)))


def budget(epsilon: float | None) -> str:
    """A heading for runs of one budget."""
    if epsilon == 0:
        return "nothing sent"
    return "not private" if epsilon is None else f"epsilon {epsilon:g}"


def percent(value: float | None, digits: int = 1) -> str:
    """A part of one in percent, or a dash."""
    return "–" if value is None or not math.isfinite(value) else f"{100 * value:.{digits}f}"


def duration(seconds: float) -> str:
    """A time that people read.

    >>> duration(0.64), duration(75), duration(7300)
    ('0.6 s', '1 min 15 s', '2 h 2 min')
    """
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes} min"
