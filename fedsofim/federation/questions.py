"""The questions of a round, and for whom each of them asks."""

from flwr.app import Message


class Questions(list[tuple[Message, list[int]]]):
    """Messages and their clients, in the order in which they are sent."""

    def __init__(self) -> None:
        super().__init__()
        self._names: dict[str, list[int]] = {}
        self._named = 0

    def asked_by(self, name: str) -> list[int] | None:
        """For whom the message of this name asks; it has a name once it is sent.

        Each is looked at once, however many replies come between two that are sent.
        """
        while name not in self._names and self._named < len(self):
            message, clients = self[self._named]
            if not message.metadata.message_id:
                break
            self._names[message.metadata.message_id] = clients
            self._named += 1
        return self._names.get(name)
