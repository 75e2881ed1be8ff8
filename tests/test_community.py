"""What stands around the code: workflows, issue forms, hooks and the citation agree with it."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml

from fedsofim import __version__

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
# What GitHub asks of a field of an issue form.
NEEDS = {"markdown": {"value"}, "textarea": {"label"}, "input": {"label"}}


def read(file):
    return yaml.safe_load(file.read_text())


def steps():
    for file in WORKFLOWS:
        for job in read(file)["jobs"].values():
            yield from ((file.name, job, step) for step in job["steps"])


def test_the_citation_is_of_this_version():
    cited = read(ROOT / "CITATION.cff")
    project = PROJECT["project"]
    assert cited["version"] == project["version"] == __version__
    assert cited["license"] == project["license"]
    assert {"cff-version", "message", "title", "authors"} <= cited.keys()
    for work in cited["references"]:
        assert {"type", "title", "authors", "year", "url"} <= work.keys()


def test_workflows_use_pinned_actions_and_no_more_rights_than_they_need():
    for name, _, step in steps():
        if "uses" in step:
            assert re.fullmatch(r"[\w-]+/[\w-]+@v\d[\d.]*", step["uses"]), (name, step)
    for file in WORKFLOWS:
        assert read(file)["permissions"] == {"contents": "read"}, file
        assert all("timeout-minutes" in job for job in read(file)["jobs"].values()), file


def test_workflows_run_what_there_is():
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M))
    ran = [step["run"] for _, _, step in steps() if "run" in step]
    for line in ran:
        assert set(re.findall(r"make ([\w-]+)", line)) <= targets, line
        for path in re.findall(r"tests/[\w/]+\.py", line):
            assert (ROOT / path).is_file(), path
    assert {"make lint", "make test"} <= set(ran)


def test_the_tested_pythons_are_those_that_wheels_are_built_for():
    tested = read(ROOT / ".github/workflows/ci.yml")["jobs"]["test"]["strategy"]["matrix"]["python"]
    built = PROJECT["tool"]["cibuildwheel"]["build"].split()
    assert built == [f"cp{version.replace('.', '')}-*" for version in tested]
    assert PROJECT["project"]["requires-python"] == f">={tested[0]}"


@pytest.mark.parametrize("file", FORMS, ids=lambda file: file.name)
def test_issue_forms_have_what_github_asks_for(file):
    form = read(file)
    if file.name == "config.yml":
        assert isinstance(form["blank_issues_enabled"], bool)
        return
    assert {"name", "description", "body"} <= form.keys()
    ids = [field["id"] for field in form["body"] if "id" in field]
    assert len(ids) == len(set(ids)) > 0
    for field in form["body"]:
        assert NEEDS[field["type"]] <= field["attributes"].keys(), field


def test_hooks_run_the_tools_of_the_pinned_set():
    local = read(ROOT / ".pre-commit-config.yaml")["repos"][0]["hooks"]
    pinned = (ROOT / "constraints.txt").read_text()
    for hook in local:
        (tool,) = re.findall(r"\.venv/bin/(\w+)", hook["entry"])
        assert f"\n{tool}==" in pinned


def test_nobody_is_invented():
    """No address that somebody might write to in vain."""
    pages = ("SECURITY.md", "CODE_OF_CONDUCT.md", "CITATION.cff")
    for file in (*(ROOT / page for page in pages), *FORMS, *WORKFLOWS):
        assert not re.search(r"[\w.]+@[\w-]+\.[a-z]{2,}", file.read_text()), file
