"""What is imported is declared, and what is declared is imported."""

import ast
import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
# Distributions that are imported under another name.
NAMES = {"yaml": "pyyaml", "hydra": "hydra-core", "PIL": "pillow", "sklearn": "scikit-learn"}
NAMES |= {"Crypto": "pycryptodome", "griffe": "griffelib", "mkdocs": "mkdocs-material"}
NAMES |= {"mlflow": "mlflow-skinny"}
CALLS = ("optional", "find_spec", "importorskip", "reference")  # they import by name
OURS = {"fedsofim", "fedsofim_kernel"}
# Programs, plug-ins and stubs, which nothing imports.
TOOLS = {"ruff", "mypy", "types-pyyaml", "pytest-xdist", "ipykernel"}
TOOLS |= {"mkdocs-material", "mkdocstrings", "mkdocs-jupyter"}  # 'make docs'
TOOLS |= {"onnx", "onnxscript"}  # torch's exporter imports them
TOOLS |= {"alembic"}  # MLflow imports it for runs that are kept in a file
PACKAGE = ("fedsofim", "strategies", "clients", "data")


def distributions(requirements):
    return {re.match(r"[\w.-]+", r)[0].lower().replace("_", "-") for r in requirements}


BASE = distributions(PROJECT["project"]["dependencies"])
EXTRAS = {k: distributions(v) for k, v in PROJECT["project"]["optional-dependencies"].items()}
# What a user who asked for it installs with the package; the others are for its developers.
FOR_USERS = set().union(*(EXTRAS[name] for name in EXTRAS.keys() - {"test", "lint", "docs"}))


def named(node):
    """The modules that a line of code imports by name."""
    function = getattr(node, "func", None)
    called = getattr(function, "id", None) or getattr(function, "attr", "")
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        return [node.module]
    if isinstance(node, ast.Call) and called in CALLS:
        return [argument.value for argument in node.args[:1] if isinstance(argument, ast.Constant)]
    return ["torchvision"] if called == "torchvision" else []  # data/vision.py's own door


def imported(tree):
    """The distributions that a module imports, wherever it does."""
    for top in (name.partition(".")[0] for node in ast.walk(tree) for name in named(node)):
        if top not in sys.stdlib_module_names and top not in OURS:
            yield NAMES.get(top, top.lower().replace("_", "-"))


def used(*folders):
    files = {file for folder in folders for file in (ROOT / folder).rglob("*.py")}
    others = (f for f in files if f.relative_to(ROOT).parts[0] not in PACKAGE)
    beside = {file.stem.replace("_", "-") for file in others}  # tests and scripts import each other
    return {n for file in files for n in imported(ast.parse(file.read_text()))} - beside


def test_the_package_imports_what_it_declares():
    # flwr brings the first, flwr[simulation] the second; the third is imported when it calls us.
    elsewhere = {"grpc", "ray", "scikit-learn"}
    assert used(*PACKAGE) - elsewhere <= BASE | FOR_USERS


def test_what_loads_at_once_needs_no_extra():
    """Imports at the top of a module, except in those that only an extra's user loads."""
    for room in PACKAGE:
        for file in sorted((ROOT / room).rglob("*.py")):
            tree = ast.parse(file.read_text())
            tree.body = [n for n in tree.body if isinstance(n, ast.Import | ast.ImportFrom)]
            extra = {"torch"}  # networks and backbones
            extra |= {"opacus"} if file.name == "opacus_layers.py" else set()
            extra |= {"ray"} if file.name == "steady.py" else set()  # engines/ray.py alone loads it
            assert set(imported(tree)) - BASE <= extra, file


def test_tests_and_scripts_import_what_some_extra_brings():
    known = BASE | set().union(*EXTRAS.values())
    elsewhere = {"ray", "nosuchmodule", "pfl"}  # a test asks for the second; peers have their own
    assert used("tests", "scripts") - elsewhere <= known


def test_nothing_is_declared_that_is_not_used():
    everything = used(*PACKAGE, "tests", "scripts") | {"setuptools"}
    assert used(*PACKAGE) >= BASE
    assert set().union(*EXTRAS.values()) - TOOLS <= everything


def test_every_room_is_in_the_wheel():
    rooms = {f"fedsofim.{file.parent.name}" for file in (ROOT / "fedsofim").glob("*/__init__.py")}
    assert rooms <= set(PROJECT["tool"]["setuptools"]["packages"])


def test_the_tested_set_pins_every_dependency():
    pinned = distributions((ROOT / "constraints.txt").read_text().splitlines()[1:])
    declared = BASE | set().union(*EXTRAS.values())
    assert declared <= pinned
