"""How clients share the noise: whose parts any sum carries that can be seen at all."""

from dataclasses import dataclass

from fedsofim.core.errors import require


@dataclass(frozen=True, kw_only=True)
class SecAgg:
    """Secure aggregation, with `privacy.trust=aggregate`; nothing needs to be set.

    Attributes:
        threshold: the fewest clients whose sum can be seen; by default engine.min_clients, else all
            of a round. Fewer bear more that vanish, and every client then adds more noise.
        colluders: how many clients may work for the server; the others' noise suffices without
            theirs.
        neighbours: with how many others each client masks what it sends; by default all up to 32
            clients, and then as many as keep any group safe but for one chance in 2^40.
    """

    threshold: int | None = None
    colluders: int = 0
    neighbours: int | None = None

    def __post_init__(self) -> None:
        for name in ("threshold", "neighbours"):
            value = getattr(self, name)
            require(value is None or value >= 2, f"{name}={value}: must be at least 2")
        require(self.colluders >= 0, f"colluders={self.colluders}: must be >= 0")

    def shared(self, clients: int, min_clients: int | None = None) -> "Sharing":
        """What is agreed for rounds of so many clients, of whom `min_clients` must answer."""
        threshold = self.threshold or min_clients or clients
        require(
            threshold <= clients,
            f"secagg.threshold={threshold}: a round has only {clients} clients",
        )
        require(
            min_clients is None or min_clients >= threshold,
            f"engine.min_clients={min_clients}: no sum of fewer than secagg.threshold={threshold} "
            "clients can be seen",
        )
        require(
            2 * threshold > clients + self.colluders,
            f"secagg.threshold={threshold}: a server could ask two groups of {clients} clients, "
            f"{self.colluders} of them its own, for two sums, whose difference shows single "
            f"clients; use at least {(clients + self.colluders) // 2 + 1}",
        )
        require(
            threshold > self.colluders,
            f"secagg.colluders={self.colluders}: at least one honest client must be in a sum; use "
            f"at most {threshold - 1}",
        )
        return Sharing(
            clients=clients,
            threshold=threshold,
            colluders=self.colluders,
            neighbours=self.neighbours,
        )


@dataclass(frozen=True, kw_only=True)
class Sharing:
    """What all clients of a run agree on before any of them adds to a sum.

    Attributes:
        clients: how many take part in a round.
        threshold: the fewest whose sum can be seen.
        colluders: how many of them may work for the server.
        neighbours: with how many others each masks; `None` for the protocol's own choice.
    """

    clients: int
    threshold: int
    colluders: int = 0
    neighbours: int | None = None

    @property
    def sharers(self) -> int:
        """The fewest honest clients in a sum that can be seen; their noise adds up to all of it."""
        return self.threshold - self.colluders

    def honest(self, others: int, population: int) -> int:
        """The fewest honest clients in a sum, by what one of them assumes; at least itself.

        The worst server keeps all that work for it, and lets honest ones vanish down to the
        threshold. More than the run itself counts on does not count.

        Args:
            others: how many other clients are honest, as this one assumes.
            population: how many clients there are.

        >>> Sharing(clients=5, threshold=5).honest(4, 5), Sharing(clients=5, threshold=4).honest(3, 5)
        (5, 3)
        >>> Sharing(clients=5, threshold=5).honest(0, 5)
        1
        """
        dishonest = population - 1 - min(others, population - 1)
        return max(1, min(self.sharers, self.threshold - dishonest))
