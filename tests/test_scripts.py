"""The scripts that the docs name as the source of their figures."""

import importlib.util
import sys
from pathlib import Path

import pytest

SCRIPTS = sorted((Path(__file__).resolve().parent.parent / "scripts").glob("*.py"))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_it_goes_with_the_code_it_measures(script, monkeypatch):
    monkeypatch.syspath_prepend(script.parent)
    spec = importlib.util.spec_from_file_location(f"script_{script.stem}", script)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)


def test_the_table_of_costs_can_still_be_made(monkeypatch, capsys):
    monkeypatch.syspath_prepend(SCRIPTS[0].parent)
    import method_costs

    monkeypatch.setattr(method_costs, "STRATEGIES", ["fedgd", "fedfc", "ridge"])
    method_costs.main()
    told = capsys.readouterr().out
    assert "| fedgd | 2,600 | 2,600 | 0 |" in told
    assert "| fedfc | 2,600 | 2,600 | 8,580 |" in told
    assert "| ridge | 19,500 | 0 | 11,176 |" in told
