"""A deployed client starts a process for every message, so what it imports is what it costs."""

import subprocess
import sys

import pytest


def modules_after(statement: str) -> set[str]:
    script = f"import sys\n{statement}\nprint(*sorted(m.split('.')[0] for m in sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    return set(done.stdout.split())


def test_the_client_app_imports_no_torch_ray_or_hydra() -> None:
    found = modules_after("import fedsofim.federation.client_app")
    assert {"numpy", "flwr"} <= found
    assert not found & {"torch", "ray", "hydra", "omegaconf"}


@pytest.mark.parametrize(
    "statement",
    [
        "import fedsofim.strategies, fedsofim.clients, fedsofim.federation.replies",
        "import fedsofim.federation.quorum, fedsofim.federation.owner",
        "import fedsofim.privacy.ledger, fedsofim.privacy.exact, fedsofim.core.arrays",
        "import fedsofim.runs.session",
    ],
)
def test_without_flower_nobody_pays_for_it(statement: str) -> None:
    assert not modules_after(statement) & {"flwr", "ray", "torch"}


def test_a_server_loads_no_ledger_and_so_runs_where_there_are_no_file_locks() -> None:
    script = "import sys, fedsofim.federation.server_app\nprint(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    found = set(done.stdout.split())
    assert "fedsofim.federation.strategy" in found
    assert not found & {"fedsofim.privacy.ledger", "fedsofim.federation.owner"}
