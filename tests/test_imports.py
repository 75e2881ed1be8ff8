"""Who may import whom, and what must not be loaded."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
MATHS = {"core", "privacy", "secagg", "models", "transforms", "strategies", "clients", "data"}
# What each room may import, besides itself.
MAY = {
    "core": set(),
    "privacy": {"core"},
    "secagg": {"core", "privacy"},
    "models": {"core"},
    "transforms": {"core", "models", "strategies"},
    "strategies": {"core", "models"},
    "clients": {"core", "privacy", "models", "strategies"},
    "data": {"core", "models"},
    "config": MATHS,
    "runs": MATHS | {"config", "engines", "reports"},
    "engines": MATHS | {"config", "runs", "federation"},
    "federation": MATHS | {"config", "runs", "engines"},
    "reports": {"core", "data", "config", "runs", "studies"},
    "studies": MATHS | {"config", "runs", "engines", "reports"},
    "api": MATHS | {"config", "runs", "studies", "cli"},
    "deploy": MATHS | {"config", "federation", "runs"},
    "cli": MATHS
    | {"config", "runs", "engines", "federation", "reports", "studies", "deploy", "api"},
}
# Modules of the maths that bring torch, for networks and images.
BRING_TORCH = (
    "factory layers dense_layers small_layers opacus_layers fitting modules networks deep_records"
)
TORCH = {f"fedsofim.models.{name}" for name in BRING_TORCH.split()}
HEAVY = {"torch", "torchvision", "opacus", "ray", "hydra", "omegaconf", "flwr", "rich"}


def modules():
    for room in MAY:
        folder = ROOT / "fedsofim" / room
        for file in sorted((folder if folder.is_dir() else ROOT / room).rglob("*.py")):
            parts = file.relative_to(ROOT).with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            yield name if parts[0] == "fedsofim" else f"fedsofim.{name}", file


MODULES = dict(modules())


def imports(name):
    """The absolute names of all modules that a module imports, wherever it does."""
    for node in ast.walk(ast.parse(MODULES[name].read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name} has a relative import"
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                yield full if full in MODULES else node.module


def rooms(name):
    ours = {module for module in imports(name) if module.startswith("fedsofim.")}
    return {module.split(".")[1] for module in ours}


def test_every_folder_is_a_room():
    inside = {p.name for p in (ROOT / "fedsofim").iterdir() if p.is_dir() and p.name[0] not in "._"}
    assert inside | {"strategies", "clients", "data"} == set(MAY)


@pytest.mark.parametrize("name", MODULES)
def test_a_room_knows_only_those_it_stands_on(name):
    room = name.split(".")[1]
    assert rooms(name) - MAY[room] - {room} == set()


@pytest.mark.parametrize("name", MODULES)
def test_nothing_is_imported_by_a_name_that_is_not_installed(name):
    tops = {module.split(".")[0] for module in imports(name)}
    assert tops & {"strategies", "clients", "data", "conf", "tests", "scripts"} == set()


def loaded_after(statement):
    code = f"import sys; {statement}; print(' '.join(sorted(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return {name.split(".")[0] for name in done.stdout.split()}


MATHS_MODULES = [
    name for name in MODULES if name.split(".")[1] in MATHS - {"data"} and name not in TORCH
]


@pytest.mark.parametrize(
    "statement",
    [
        "import " + ", ".join(MATHS_MODULES),
        "import fedsofim.data.datasets, fedsofim.data.partition",
        "import fedsofim.engines, fedsofim.runs.experiment",
    ],
)
def test_the_mathematics_loads_nothing_heavy(statement):
    assert loaded_after(statement) & HEAVY == set()


def test_the_command_line_and_hydra_load_no_torch():
    statement = "import fedsofim.cli.main, fedsofim.config.compose, fedsofim.runs.session"
    assert loaded_after(statement) & {"torch", "ray", "flwr", "opacus"} == set()
    assert loaded_after("import fedsofim.cli.main") & (HEAVY | {"numpy", "scipy"}) == set()
