"""Differentially private federated learning with second-order methods."""

from pathlib import Path

__version__ = "0.1.0"

# In a checkout, and in Flower's app bundle, the rooms strategies/, clients/, data/ and conf/ stand
# beside this folder; in a wheel they are inside it.
if not (_here := Path(__file__).resolve().parent).joinpath("strategies").is_dir():
    __path__.append(str(_here.parent))
