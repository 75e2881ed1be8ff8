"""Scores and theory are the simulator's, whatever moves the arrays."""

import json

from inprocess import InProcessGrid

from fedsofim.config.compose import compose
from fedsofim.engines.flower import flower_engine
from fedsofim.runs import session


def test_flowers_simulation_measures_what_the_local_engine_does(small, tmp_path):
    overrides = [*small, "output.theory=true", "strategy.direction=gradient", "strategy.l2=0.1"]
    values = compose(overrides)
    local = session.run(values, tmp_path / "local").path
    grid = InProcessGrid.simulated(2)
    flower = session.run(values, tmp_path / "flower", engine=flower_engine(grid)).path
    ours, theirs = ((p / "theory.jsonl").read_text() for p in (local, flower))
    assert ours == theirs
    assert len(ours.splitlines()) == 6
    # Nothing of it is in what clients are asked for or send.
    assert not any("theory" in name for m in grid.asked for name in m.content)
    for name in ("theory.json", "scores.json", "clients.json"):
        told = [json.loads((p / name).read_text()) for p in (local, flower)]
        assert told[0] == told[1]
