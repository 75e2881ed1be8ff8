"""Signals: whose they are."""

import signal

import pytest

from fedsofim.runs.stopping import stop_requests


@pytest.fixture
def handlers():
    before = {s: signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("handlers")
def test_a_signal_is_a_wish_to_stop_after_the_round():
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    with stop_requests() as stop:
        signal.raise_signal(signal.SIGTERM)
        assert stop.requested
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


@pytest.mark.usefixtures("handlers")
def test_what_another_program_listens_to_stays_its_own():
    heard = []
    for number in (signal.SIGINT, signal.SIGTERM):  # as Flower's ServerApp does
        signal.signal(number, lambda number, frame: heard.append(number))
    with stop_requests() as stop:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGTERM)
    assert heard == [signal.SIGINT, signal.SIGTERM]
    assert not stop.requested
