"""How an owner says no: in full to its own log, and to the server in one of a few fixed texts."""

from enum import StrEnum

from fedsofim.core.errors import ConfigError


class Refusal(StrEnum):
    """All that a server is told; nothing here depends on records, on paths or on what is left."""

    BUDGET = "the owner's budget does not cover it"
    POLICY = "the owner's policy does not allow it"
    TERMS = "the run began on other terms; start a new one"
    ACCOUNT = "the owner's account is closed until its owner has looked at it"
    LOST = "what this client kept of the run is lost; start a new one"
    UNPROTECTED = "what this would send is not protected as the owner asks"
    BUSY = "this client is still at work on this run; ask again later"


class RefusedError(ConfigError):
    """A release that an owner does not make.

    Attributes:
        told: what the server hears; the message itself is for the owner.
    """

    def __init__(self, message: str, why: Refusal = Refusal.BUDGET, rule: str = "") -> None:
        super().__init__(message)
        self.told = f"{why} ({rule})" if rule else str(why)
