"""Differentially private federated learning with second-order methods."""

__version__ = "0.1.0"
