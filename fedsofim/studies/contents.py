"""All tables and figures of the paper, and the command that makes each."""

from typing import NamedTuple


class Entry(NamedTuple):
    """One of the paper's tables or figures.

    Attributes:
        about: what it shows.
        command: what makes it, without `fedsofim`; empty if nothing does.
        why: where it has none, the reason.
    """

    about: str
    command: str = ""
    why: str = ""


PAPER = {
    "Table 1": Entry(
        "what each method releases, its privacy and its memory",
        why="words, not results; the memory that it claims is measured in reproduce table7",
    ),
    "Table 2": Entry("the grids of the search for settings", "tune strategy=sofim"),
    "Table 3": Entry("accuracy, CIFAR-10, ResNet-20", "reproduce table3"),
    "Table 4": Entry("accuracy, PathMNIST, ResNet-20", "reproduce table4"),
    "Table 5": Entry("accuracy, CIFAR-10, VGG-16", "reproduce table5"),
    "Table 6": Entry("accuracy, PathMNIST, VGG-16", "reproduce table6"),
    "Table 7": Entry("seconds a round, and memory", "reproduce table7"),
    "Table 8": Entry("accuracy, CIFAR-10, IID", "reproduce table8"),
    "Table 9": Entry("accuracy, PathMNIST, IID", "reproduce table9"),
    "Table 10": Entry("ablations, CIFAR-10", "reproduce table10"),
    "Table 11": Entry("ablations, PathMNIST", "reproduce table11"),
    "Table 12": Entry("sensitivity to rho", "reproduce table12"),
    "Table 13": Entry("who holds what, PathMNIST", "reproduce table13"),
    "Table 14": Entry("who holds what, CIFAR-10", "reproduce table14"),
    "Table 15": Entry("McNemar's test, CIFAR-10", "reproduce table15"),
    "Table 16": Entry("McNemar's test, PathMNIST", "reproduce table16"),
    "Figure 1": Entry("accuracy by round, CIFAR-10, ResNet-20", "reproduce figure1"),
    "Figure 2": Entry("accuracy by round, PathMNIST, ResNet-20", "reproduce figure2"),
    "Figure 3": Entry("accuracy by round, CIFAR-10, VGG-16", "reproduce figure3"),
    "Figure 4": Entry("accuracy by round, PathMNIST, VGG-16", "reproduce figure4"),
    "Figure 5": Entry("accuracy by round, CIFAR-10, IID", "reproduce figure5"),
    "Figure 6": Entry("accuracy by round, PathMNIST, IID", "reproduce figure6"),
    "Figure 7": Entry("ablations, CIFAR-10", "reproduce figure7"),
    "Figure 8": Entry("ablations, PathMNIST", "reproduce figure8"),
    "Section 5.3.1": Entry("rounds to 95 % of DP-FedGD's final accuracy", "reproduce rounds"),
}
# What else there is: accuracy against the budget, and what the text and the code disagree about.
OURS = {
    "frontier": Entry("accuracy at round 70 against epsilon", "reproduce frontier"),
    "choices": Entry("what text and code disagree about, and its worth", "reproduce choices"),
}


def makeable() -> tuple[str, ...]:
    """What `fedsofim reproduce` makes, by name."""
    commands = (entry.command for entry in (*PAPER.values(), *OURS.values()))
    return tuple(c.removeprefix("reproduce ") for c in commands if c.startswith("reproduce "))
