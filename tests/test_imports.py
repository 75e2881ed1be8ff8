"""Who may import whom, and what must not be loaded."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
OURS = {"fedsofim", "strategies", "clients", "data", "conf", "scripts", "tests"}
CORE_NAMES = ("config", "files", "head", "linalg", "privacy", "protocol", "records", "rng", "tree")
CORE = {f"fedsofim.{name}" for name in CORE_NAMES}
ROOMS = {"strategies", "clients", "data"}
HEAVY = {"torch", "torchvision", "opacus", "ray", "hydra", "omegaconf", "flwr", "rich"}


def modules():
    for package in ("fedsofim", *sorted(ROOMS)):
        for file in sorted((ROOT / package).rglob("*.py")):
            parts = file.relative_to(ROOT).with_suffix("").parts
            yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), file


MODULES = dict(modules())


def within(module, packages):
    return any(module == p or module.startswith(p + ".") for p in packages)


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


def own_imports(name):
    return {module for module in imports(name) if module.split(".")[0] in OURS} - {"fedsofim"}


@pytest.mark.parametrize("name", [name for name in MODULES if within(name, CORE)])
def test_the_core_and_privacy_know_nobody(name):
    assert {module for module in own_imports(name) if not within(module, CORE)} == set()


@pytest.mark.parametrize("name", [name for name in MODULES if within(name, ROOMS)])
def test_strategies_clients_and_data_know_the_core_and_themselves(name):
    room = name.split(".")[0]
    known = CORE | {room, "fedsofim.wire"}  # Flower's messages, for the plumbing
    assert {m for m in own_imports(name) if not within(m, known)} == set()


def test_privacy_does_not_depend_on_the_model():
    names = [name for name in MODULES if within(name, {"fedsofim.privacy"})]
    assert not any("fedsofim.head" in own_imports(name) for name in names)


def loaded_after(statement):
    code = f"import sys; {statement}; print(' '.join(sorted(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return {name.split(".")[0] for name in done.stdout.split()}


@pytest.mark.parametrize(
    "statement",
    [
        "import " + ", ".join(name for name in MODULES if within(name, CORE)),
        "import strategies",
        "import clients",
        "import data.datasets, data.partition",
        "import fedsofim.engines, fedsofim.experiment",
    ],
)
def test_the_mathematics_loads_nothing_heavy(statement):
    assert loaded_after(statement) & HEAVY == set()


def test_the_command_line_and_hydra_load_no_torch():
    statement = "import fedsofim.cli, fedsofim.compose, fedsofim.session"
    assert loaded_after(statement) & {"torch", "ray", "flwr", "opacus"} == set()
    assert loaded_after("import fedsofim.cli") & (HEAVY | {"numpy", "scipy"}) == set()
