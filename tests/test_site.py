"""The documentation site builds without a warning, and loads nothing from elsewhere."""

import os
import re
import subprocess
import sys

import pytest
import yaml

pytest.importorskip("mkdocs")


class Loader(yaml.SafeLoader):
    """Reads mkdocs.yml, whose tags mean something to mkdocs alone."""


Loader.add_multi_constructor("", lambda loader, suffix, node: None)


@pytest.fixture(scope="module")
def site(root, tmp_path_factory):
    """The site, built as 'make docs' does, but for running the notebooks."""
    place = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(place)]
    env = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "DOCS_EXECUTE": "false"}
    done = subprocess.run(command, cwd=root, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return place


def pages_of(nav):
    for entry in nav:
        for target in entry.values():
            yield from pages_of(target) if isinstance(target, list) else [target]


def test_the_contents_name_every_page(root):
    nav = yaml.load((root / "mkdocs.yml").read_text(), Loader)["nav"]
    there = {f.name for f in (root / "docs").iterdir() if f.suffix in (".md", ".ipynb")}
    assert sorted(pages_of(nav)) == sorted(there)


@pytest.mark.slow
def test_pages_load_nothing_from_elsewhere(site):
    pages = list(site.rglob("*.html"))
    assert len(pages) > 15
    for page in pages:
        loaded = re.findall(
            r'<(?:script|link|img)[^>]+(?:src|href)="(https?:[^"]+)"', page.read_text()
        )
        assert [url for url in loaded if "canonical" not in url] == [], page.name


@pytest.mark.slow
def test_formulas_and_examples_are_set(site):
    formulas = (site / "formulas.html").read_text()
    assert formulas.count("<math") > 15
    assert "arithmatex" not in formulas
    reference = (site / "reference.html").read_text()
    assert "fedsofim.api.training.run" in reference
    assert "&gt;&gt;&gt;" in reference
    assert "<blockquote>\n<blockquote>" not in reference
