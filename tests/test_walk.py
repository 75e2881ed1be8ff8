"""The picture of the walk in CONTRIBUTING is true: a run visits these files, in this order."""

import importlib.util
import sys

import pytest

from fedsofim.cli.main import dispatch


@pytest.fixture
def walk(root):
    spec = importlib.util.spec_from_file_location("walk", root / "scripts" / "walk.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["walk"] = module  # where a NamedTuple looks for its names
    spec.loader.exec_module(module)
    yield module
    del sys.modules["walk"]


def test_a_run_takes_the_way_that_is_drawn(walk, root, small, tmp_path, capsys):
    stops = [stop for part in walk.WALK.values() for stop in part]
    assert len(stops) <= 20
    assert len({stop.file for stop in stops}) == len(stops)  # no file twice
    calls = []

    def seen(frame, event, argument):
        if event == "call":
            calls.append((frame.f_code.co_filename, frame.f_code.co_name))

    sys.setprofile(seen)
    try:
        dispatch(["run", *small, f"output.dir={tmp_path / 'run'}"])
    finally:
        sys.setprofile(None)
    # The command line was entered before: 'main' of cli/main.py calls dispatch.
    places = [calls.index((str(root / stop.file), stop.function)) for stop in stops[1:]]
    assert places == sorted(places)


def test_the_picture_is_that_of_the_walk(walk):
    assert walk.OUT.read_text() == walk.picture(walk.WALK)
