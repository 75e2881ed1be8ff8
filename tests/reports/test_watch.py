"""A run under way, watched in a real browser, and what the server of its page refuses."""

import http.client
import json
import re
import threading

import pytest
from reports_browser import chromium, opened

from fedsofim.cli.watch import main as watch
from fedsofim.config.compose import compose
from fedsofim.core.errors import ConfigError
from fedsofim.reports import privacy
from fedsofim.reports.live import progress
from fedsofim.reports.run_page import Found
from fedsofim.reports.watch import STATUS, Server, Watched
from fedsofim.runs.directory import RunDir
from fedsofim.runs.observer import Observer
from fedsofim.runs.session import run as run_session
from fedsofim.studies.sweep import Sweep

browser = pytest.fixture(scope="module")(chromium)


class Held(Observer):
    """Stops a run after its third round until it is let go."""

    def __init__(self):
        self.there, self.go = threading.Event(), threading.Event()

    def round(self, row):
        if row["round"] == 3:
            self.there.set()
            assert self.go.wait(120)


@pytest.fixture
def serving(tmp_path):
    with Server(tmp_path / "outputs") as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def ask(server, path="/", **headers):
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=30)
    connection.request("GET", path, headers=headers)
    answer = connection.getresponse()
    return answer, answer.read().decode()


def test_a_run_is_seen_from_before_its_start_to_its_end(browser, serving, small, tmp_path):
    page, said = opened(browser, serving.url)
    page.get_by_role("heading", name="Waiting for a run").wait_for()
    values, held = compose([*small, "rounds=12"]), Held()
    place = tmp_path / "outputs" / "2026-01-01" / "mine"
    run = threading.Thread(target=run_session, args=(values, place), kwargs={"observer": held})
    run.start()
    try:
        assert held.there.wait(120)
        live = page.locator(".live")
        assert "Round 3 of 12" in serving.watched.html()
        live.get_by_text("Round 3 of 12").wait_for(timeout=100_000)
        assert "left" in live.text_content()
        assert "to go" in live.text_content()
        assert page.locator("progress").get_attribute("value") == "3"
        assert page.locator(".plot svg").count() >= 2
    finally:
        held.go.set()
        run.join()
    page.locator("#how-good-it-is").wait_for()
    page.locator(".live").wait_for(state="detached", timeout=100_000)
    assert "right, and every record" in page.locator("h1").text_content()
    assert said == []
    page.close()


def test_it_answers_this_machine_under_its_own_name_alone(serving):
    assert serving.server_address[0] == "127.0.0.1"
    answer, _ = ask(serving)
    assert answer.status == 200
    assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
    assert ask(serving, Host="evil.example")[0].status == 403  # a name that was pointed here
    assert ask(serving, "/config.yaml")[0].status == 404
    assert ask(serving, "/../etc/passwd")[0].status == 404
    again, empty = ask(serving, **{"If-None-Match": answer.headers["ETag"]})
    assert (again.status, empty) == (304, "")


def test_a_sweep_is_watched_and_who_refuses_is_told(small, tmp_path):
    sweep = Sweep.begin(tmp_path / "s", [*small, "seed=0,1"])
    assert "0 of 2 configurations" in Watched(tmp_path).html()
    sweep.run(1, lambda *_: None)
    assert "DP-FedSOFIM" in Watched(tmp_path).html()
    owned = tmp_path / "owned"
    owned.mkdir()
    reason = "its budget <b> does not cover the run"
    status = {"clients": 2, "here": [0], "refused": {"1": reason}, "waiting": "client 1"}
    (owned / STATUS).write_text(json.dumps(status))
    page = Watched(owned).html()
    assert "1 of 2 clients are connected" in page
    assert "its budget &lt;b&gt; does not cover the run" in page


def test_what_is_released_before_the_first_round_is_spent_and_named(small, tmp_path):
    """A run that stops in its first round has paid for its set-up."""

    class Stopping(Observer):
        def round(self, row):
            raise RuntimeError

    given = [*small[:-1], "settings=auto", "output.checkpoint_every=1"]
    with pytest.raises(RuntimeError):
        run_session(compose(given), tmp_path / "run", observer=Stopping())
    found = Found.read(RunDir.open(tmp_path / "run"))._replace(rows=[])
    spent = float(re.search(r"epsilon ([\d.e-]+) of", progress(found))[1])
    assert spent > 0
    table = privacy.charged(found)
    for name in ("norms", "mean", "covariance"):
        assert f"before round 1: {name}" in table


def test_a_port_that_is_taken_is_one_line(serving):
    with pytest.raises(ConfigError, match=f"--port {serving.server_port}: cannot be used"):
        watch(["--port", str(serving.server_port)])
