"""Configs: from Hydra's files and overrides to checked values."""
