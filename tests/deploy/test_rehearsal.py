"""What a rehearsal deals out and asks for."""

import os

import numpy as np

from fedsofim.config.compose import compose
from fedsofim.config.schema import parse
from fedsofim.deploy.rehearsal import _at_once, deal_out


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
