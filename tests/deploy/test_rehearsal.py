"""What a rehearsal deals out and asks for."""

import os

import numpy as np
import pytest

from fedsofim.config.compose import compose
from fedsofim.config.schema import parse
from fedsofim.core.errors import ConfigError
from fedsofim.core.files import alone
from fedsofim.deploy.rehearsal import _at_once, deal_out, rehearse


def test_a_rehearsal_takes_the_settings_of_its_server(tmp_path, data_file):
    words = ["dataset=npz", f"dataset.path={data_file}", "partition.clients=2"]
    words += ["settings=published", "engine.timeout=5", "engine.min_clients=1"]
    files, _ = deal_out(tmp_path, words)
    sizes = [len(np.load(file)["y"]) for file in files]
    assert len(sizes) == 2
    assert min(sizes) > 0


def test_a_rehearsal_starts_no_more_processes_at_once_than_its_cpus_can(monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 3)
    config = parse(compose(["engine=flower", "settings=published", _at_once()]))
    assert config.engine.at_once == 12


def test_two_rehearsals_do_not_share_a_folder(tmp_path):
    with alone(tmp_path), pytest.raises(ConfigError, match="is at work there"):
        rehearse(tmp_path, clients=2, rounds=1, overrides=[])
    assert not list(tmp_path.glob("client*"))
