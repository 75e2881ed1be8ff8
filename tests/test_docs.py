"""What the pages show exists: commands are accepted, and links and named files are there."""

import re
import shlex
import tomllib
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

import pytest
from flwr.common.config import parse_config_args

from fedsofim.cli.main import COMMANDS
from fedsofim.config.compose import compose
from fedsofim.config.schema import parse
from fedsofim.core.arguments import Parser
from fedsofim.core.errors import ConfigError
from fedsofim.federation import run_config

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
# Commands whose words are overrides of a run's config, and a key that is their own.
KEYED = {"run": "", "sweep": "output.dir", "calibrate": "", "audit": "", "features": "out"}
# Folders whose files a page names by path.
FOLDERS = "clients|conf|data|docs|examples|fedsofim|scripts|strategies|tests"


PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
KEYS = PROJECT["tool"]["flwr"]["app"]["config"].keys()


class Line(NamedTuple):
    """A command that a page shows, without `fedsofim`, and where."""

    page: str
    words: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.page}: {' '.join(self.words)}"


def commands(page: Path) -> list[Line]:
    """All commands of a page: in blocks, behind a prompt or not, and in the text."""
    text = page.read_text().replace("\\\n", " ")
    blocks = re.findall(r"^(?:    )?fedsofim (\S.*)$", text, re.M)
    inline = re.findall(r"`fedsofim ([^`]+)`", " ".join(text.split()))
    found = []
    for line in dict.fromkeys([*blocks, *inline]):
        words = shlex.split(line.partition(" > ")[0], comments=True)
        found.append(Line(page.name, tuple(words)))
    return found


def overrides_of(flower: str) -> list[str]:
    """The config that a `flwr run` is given; of `...` nothing is known."""
    match = re.search(r"--run-config '([^']*)'", flower)
    given = parse_config_args([match[1]]) if match and match[1] != "..." else {}
    assert given.keys() <= KEYS, f"{flower}: Flower would refuse a key"
    return run_config.overrides_of(given)


SHOWN = [line for page in PAGES for line in commands(page)]


def check(words: tuple[str, ...]) -> None:
    """Refuse a command that the program would refuse."""
    command, *rest = words
    if command == "--version":
        return
    assert command in COMMANDS, f"{command}: no such command"
    options = import_module(f"fedsofim.cli.{command}").parser()
    if command == "deploy" and rest:
        check_deploy(options, rest)
    elif rest and "--help" not in rest:
        chosen = options.read(rest)
        if command in KEYED and any("=" in word for word in chosen.overrides):
            check_config([o for o in chosen.overrides if o.split("=")[0] != KEYED[command]])


def check_deploy(options: Parser, rest: list[str]) -> None:
    """A command that is only named, or ends in `...`, need not be complete."""
    if rest[0] == "client" and "..." in rest:
        rest += ["--server", "host:1", "--ca", "ca.crt", "--id", "0", "--data", "x.npz"]
        rest += ["--classes", "2", "--epsilon", "1"]
    if len(rest) == 1 or rest[-1] == "--policy-example":
        with pytest.raises(SystemExit, match="0"):  # it prints; an unknown one is a ConfigError
            options.parse_args([*rest, "--help"])
    else:
        options.parse_args([word for word in rest if word != "..."])


def check_config(overrides: list[str]) -> None:
    """Compose each of the values once; what needs a file or a module of the user's is not built."""
    if any(re.search(r"=\w+:\w+", o) for o in overrides):
        return
    needs_file = any(o.split("=")[0].endswith((".path", ".root", ".probes")) for o in overrides)
    if needs_file and "settings=auto" in overrides:  # which looks into the file
        overrides = [o for o in overrides if not o.startswith("dataset")]
    names = [o.split("=")[0] for o in overrides]
    values = [o.split("=", 1)[1].split(",") for o in overrides]
    for row in range(max(map(len, values))):
        chosen = [f"{n}={v[row % len(v)]}" for n, v in zip(names, values, strict=True)]
        resolved = compose(chosen)
        if not needs_file:
            parse(resolved)


@pytest.mark.parametrize("line", SHOWN, ids=str)
def test_a_command_is_accepted(line):
    check(line.words)


def test_commands_are_found_and_bad_ones_are_not_accepted():
    assert len(SHOWN) > 40
    for bad in ("run strategy=nothing", "run rounds=0", "deploy clinet", "ledger show", "runn"):
        with pytest.raises((ConfigError, AssertionError)):
            check(tuple(bad.split()))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_configs_for_flower_compose(page):
    for line in re.findall(r"flwr run .*", page.read_text()):
        parse(compose(overrides_of(line)))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_and_named_files_exist(page):
    text = page.read_text()
    for target in re.findall(r"\]\((?!https?:)([^)]+)\)", text):
        file, _, anchor = target.partition("#")
        place = page.parent / file if file else page
        assert place.exists(), f"{page.name}: there is no {target}"
        if anchor:
            assert anchor in anchors(place), f"{page.name}: no heading {target}"
    for name in re.findall(rf"(?<![\w/.])(?:{FOLDERS})/[\w./-]+\.(?:py|c|md|ya?ml|pt|csv)\b", text):
        assert (ROOT / name).exists(), f"{page.name}: there is no {name}"
    for name in re.findall(r"`fedsofim((?:\.[a-z_]+)+)`", text):
        import_or_attribute("fedsofim" + name)


def anchors(page: Path) -> set[str]:
    """The names by which GitHub links to the headings of a page."""
    titles = re.findall(r"^#+ (.*)$", page.read_text(), re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def import_or_attribute(name: str) -> None:
    """Fail unless there is a module, or something in one, of this name."""
    try:
        import_module(name)
    except ModuleNotFoundError:
        module, _, attribute = name.rpartition(".")
        assert hasattr(import_module(module), attribute), f"there is no {name}"
