"""`fedsofim audit` as a person meets it."""

import json
import re

import pytest
from float_noise import FloatNoise

from fedsofim.config.schema import Config
from fedsofim.studies import audit


@pytest.fixture
def little(monkeypatch):
    """Audits that take no time."""
    size = audit.Size(sums=4000, least=100, most=200, releases=60, canaries=24)
    monkeypatch.setattr(audit.Size, "slower", lambda size: size._replace(sums=400, least=20))
    monkeypatch.setattr(audit, "QUICK", size)


@pytest.fixture
def float_device(monkeypatch):
    real = Config.noise

    def noise(config, t):
        exact = config.privacy.noise == "exact"
        return (lambda client, draw: FloatNoise()) if exact else real(config, t)

    monkeypatch.setattr(Config, "noise", noise)


def test_an_honest_config_passes(inside, small, little):
    done = inside("audit", *small, "--quick", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    row = json.loads(done.stdout)
    assert row["epsilon_claimed"] == pytest.approx(10)
    assert row["confidence"] == 0.95
    assert row["passed"]
    tests = {test["test"]: test for test in row["tests"]}
    assert tests.keys() == {"pair", "canaries"}
    for test in tests.values():
        assert 0 <= test["epsilon_lower_bound"] <= test["epsilon_claimed"]
        assert test["confidence"] == pytest.approx(0.975)
    assert row["epsilon_lower_bound"] == max(t["epsilon_lower_bound"] for t in tests.values())
    assert row["not_applicable"].keys() == {"reachability"}


def test_a_refuted_claim_is_one_line_and_exit_code_1(inside, small, little, float_device):
    done = inside("audit", *small, "--quick", "--device")
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("fedsofim: the claim is refuted: reachability shows epsilon >= ")
    assert "ABOVE THE CLAIM" in done.stdout
    assert "within the claim" in done.stdout


def test_a_finished_run_keeps_its_audit_and_shows_it(inside, small, little, float_device, tmp_path):
    inside("run", *small, "output.dir=mine")
    before = (tmp_path / "mine" / "report.html").read_text()
    assert inside("audit", "mine", "--quick").returncode == 0
    kept = json.loads((tmp_path / "mine" / "audit.json").read_text())
    assert kept["passed"]
    after = (tmp_path / "mine" / "report.html").read_text()
    assert "<h2>Audit</h2>" not in before
    assert "<h2>Audit</h2>" in after
    assert "An attack refutes" not in after
    without = re.sub(r'<section id="audit">.*?</section>', "", after)
    assert without.replace('<li><a href="#audit">Audit</a></li>', "") == before
    assert inside("audit", "mine", "--quick", "--device").returncode == 1
    assert "An attack refutes the claim" in (tmp_path / "mine" / "report.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("privacy=none", "promises nothing"),
        ("nowhere", "nowhere: not a run directory"),
        ("a b", "name one run directory"),
        ("--fast", "--fast: no such option; choose one of --help, --device, --quick, --json"),
        ("strategy=fedfoo", "strategy=fedfoo: unknown"),
    ],
)
def test_mistakes_are_one_line(inside, arguments, words):
    done = inside("audit", *arguments.split())
    assert done.returncode == 2
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert words in line


def test_help(inside):
    assert inside("audit", "--help").stdout.startswith("usage: fedsofim audit")
