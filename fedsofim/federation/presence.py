"""Who is there, for people: a roster that writes down what it sees, for 'fedsofim watch'."""

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from fedsofim.core.files import write_whole
from fedsofim.federation.roster import Look, Nodes, Roster

STATUS = ".federation.json"


class SeenRoster(Roster):
    """A roster that keeps a file about who is connected, who refused, and why.

    It holds what owners said to the server about themselves, and nothing of their records.

    Args:
        file: where to write it.
        **terms: those of `Roster`.
    """

    def __init__(self, file: Path, **terms: Any) -> None:
        super().__init__(**terms)
        self._file, self._written = file, ""

    def _greet(self, look: Look, *, needed: bool = True) -> Look:
        after = super()._greet(look, needed=needed)
        if self.deployed:
            self._tell(self.seen(after))
        return after

    def seen(self, grid: Nodes) -> dict[str, Any]:
        """Who is connected, who refused and why, and what is wrong with other nodes."""
        here, refusing = sorted(self.here(grid)), self._refusing(grid)
        refused = {
            str(client): self.problems.get(node, "it refuses")
            for node, client in self.refused.items()
            if client in refusing
        }
        others = sorted({why for n, why in self.problems.items() if n not in self.refused})
        waiting = self.missing(grid) if len(here) < self.clients else ""
        return {
            "run": self.run,
            "clients": self.clients,
            "here": here,
            "refused": refused,
            "others": others,
            "waiting": waiting,
        }

    def _tell(self, status: Mapping[str, Any]) -> None:
        text = json.dumps(status)
        if text != self._written:
            with suppress(OSError):  # a run does not end because nobody can watch it
                self._file.parent.mkdir(parents=True, exist_ok=True)
                write_whole(self._file, text.encode())
                self._written = text
