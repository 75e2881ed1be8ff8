"""Nothing outlives its parent."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

CHILD = """
import os, sys, threading
from fedsofim.core.family import end_with_parent
end_with_parent()
open(sys.argv[1], "w").write(str(os.getpid()))
threading.Event().wait(60)
"""
PARENT = "import subprocess, sys; subprocess.Popen([sys.executable, *sys.argv[1:]]).wait()"


@pytest.mark.skipif(sys.platform != "linux", reason="Linux tells children of their parent's death")
@pytest.mark.parametrize(("name", "ends"), [("flwr-clientapp", True), ("anything", False)])
def test_a_task_of_flowers_ends_with_its_parent_and_nothing_else(tmp_path, name, ends):
    program, pid = tmp_path / name, tmp_path / "pid"
    program.write_text(CHILD)
    parent = subprocess.Popen([sys.executable, "-c", PARENT, str(program), str(pid)])
    deadline = time.monotonic() + 60
    while not (pid.exists() and pid.read_text()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    child = int(pid.read_text())
    parent.kill()
    parent.wait()
    time.sleep(1)
    stat = Path(f"/proc/{child}/stat")
    alive = stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"
    if alive:
        os.kill(child, 9)
    assert alive != ends
