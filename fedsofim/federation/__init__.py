"""Server and clients on Flower: messages, replies, and the owner's side.

For an app of your own: the methods as Flower strategies, and the clients as `NumPyClient`s. They
are loaded when they are asked for, so that nobody else pays for Flower.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedsofim.federation.clients import OwnerClient, SimulatedClient
    from fedsofim.federation.methods import (
        DPFTRL,
        DPSCAFFOLD,
        DPAdaFedProx,
        DPDitto,
        DPFedAdam,
        DPFedAvg,
        DPFedFC,
        DPFedGD,
        DPFedSOFIM,
        DPFedYogi,
        LocalTraining,
        PersonalizedSOP,
    )
    from fedsofim.federation.quorum import Quorum

__all__ = [
    "DPFTRL",
    "DPSCAFFOLD",
    "DPAdaFedProx",
    "DPDitto",
    "DPFedAdam",
    "DPFedAvg",
    "DPFedFC",
    "DPFedGD",
    "DPFedSOFIM",
    "DPFedYogi",
    "LocalTraining",
    "OwnerClient",
    "PersonalizedSOP",
    "Quorum",
    "SimulatedClient",
]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    room = {"Quorum": "quorum", "OwnerClient": "clients", "SimulatedClient": "clients"}
    return getattr(import_module(f"{__name__}.{room.get(name, 'methods')}"), name)
