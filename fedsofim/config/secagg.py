"""The settings of secure aggregation, and what clients are asked to agree on."""

from dataclasses import dataclass

from fedsofim.core.errors import require
from fedsofim.privacy.sharing import Sharing
from fedsofim.secagg.graph import LOG2_FAILURE, Neighbours, log2_failure
from fedsofim.secagg.session import check


@dataclass(frozen=True, kw_only=True)
class SecAgg:
    """Secure aggregation, with `privacy.trust=aggregate`; nothing needs to be set.

    Attributes:
        threshold: the fewest clients whose sum can be seen; by default engine.min_clients, else all
            of a round. A lower one bears more clients that vanish, and all add more noise for it.
        colluders: how many clients may work for the server; the noise of the others suffices.
        neighbours: with how many others each client masks what it sends; by default all up to 32
            clients, then as few as are safe.
    """

    threshold: int | None = None
    colluders: int = 0
    neighbours: int | None = None

    def __post_init__(self) -> None:
        for name in ("threshold", "neighbours"):
            value = getattr(self, name)
            require(value is None or value >= 2, f"{name}={value}: must be at least 2")
        require(self.colluders >= 0, f"colluders={self.colluders}: must be >= 0")

    def shared(self, clients: int, min_clients: int | None = None) -> Sharing:
        """What is agreed for rounds of so many clients, of whom `min_clients` must answer."""
        require(
            clients > 1,
            "privacy.trust=aggregate: one client alone has nobody to share noise with; use "
            "trust=server",
        )
        threshold = self.threshold or min_clients or clients
        require(
            min_clients is None or min_clients >= threshold,
            f"engine.min_clients={min_clients}: no sum of fewer than secagg.threshold={threshold} "
            "clients can be seen",
        )
        recover, colluders = threshold < clients, self.colluders
        chosen = self._chosen(clients, colluders)
        window, quorum = check(clients, threshold, colluders, chosen, recover)
        return Sharing(
            clients=clients,
            threshold=threshold,
            colluders=colluders,
            window=window,
            quorum=quorum,
        )

    def _chosen(self, clients: int, colluders: int) -> Neighbours | None:
        """The neighbours that were asked for; `None` where all are, or nothing was said."""
        if self.neighbours is None or self.neighbours >= clients - 1:
            return None
        require(
            self.neighbours % 2 == 0,
            f"secagg.neighbours={self.neighbours}: as many on each side, so give an even number",
        )
        w = self.neighbours // 2
        safe = (q for q in range((w + 1) // 2, w + 1) if _safe(clients, colluders, w, q))
        return Neighbours(w, next(safe, w))


def _safe(clients: int, colluders: int, window: int, quorum: int) -> bool:
    return log2_failure(clients, colluders, window, quorum) <= LOG2_FAILURE
