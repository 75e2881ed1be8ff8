"""Keep a client's SuperNode running, and say plainly how it stands.

All that Flower's programs print goes to a file; the terminal shows what an operator can act on.
"""

import os
import re
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from fedsofim.deploy.programs import environment, own_home, run_to_end
from fedsofim.deploy.reach import Address, why_not

PAUSE = 10.0  # seconds between two attempts
LOG = 10_000_000  # bytes; a log that has more is put aside, in the place of the one before
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
ROUND = re.compile(r"\[RUN (\d+), ROUND (-?\d+)\]")
CONNECTED = "SuperNode ID"  # says Flower when a server has let it in
NOT_JOINED = "Exit Code: 305"  # it says before the reason, and then ends
# What Flower says on every start and with every message.
CHATTER = re.compile(r"\s*(INFO\s*:.*)?")


class Voice:
    """One line for what is new, a dot for what is still so."""

    def __init__(self, show: Callable[[str], object] | None = None) -> None:
        self._show = show or sys.stdout.write
        self._last, self._dots = "", False

    def say(self, text: str) -> None:
        """A line; or a dot behind it, if it was the last thing said."""
        if text == self._last:
            self._write(".")
            self._dots = True
            return
        self._write(f"\n{text}\n" if self._dots else f"{text}\n")
        self._last, self._dots = text, False

    def _write(self, text: str) -> None:
        self._show(text)
        sys.stdout.flush()


class Listener:
    """What a SuperNode prints, reduced to what its operator must know."""

    def __init__(self, voice: Voice, log: Path) -> None:
        self.voice, self.log = voice, log
        self.connected = self.refused = False
        self.problem = ""  # why it could not join, in Flower's words
        self._round, self._failed = "", False

    def hear(self, line: str) -> None:
        """Take one line of a SuperNode's output."""
        text = COLOUR.sub("", line).rstrip()
        self._keep(text)
        if found := ROUND.search(text):
            self._round = f"run {found[1]}, round {found[2]}"
        elif "Sent successfully" in text and self._round:
            self.voice.say(f"{self._round}: answered")
        elif CONNECTED in text:
            self.connected = True
            self.voice.say("Connected; waiting for runs")
        elif "[code: 200" in text:  # the server knows no such key, or it was given none
            self.refused = True
        elif "Connection attempt failed" in text:
            self.voice.say("The server does not answer; trying again")
        elif NOT_JOINED in text:
            self._failed = True
        elif not (self.refused or _routine(text)):
            if self._failed:
                self.problem = self.problem or text
            else:
                self.voice.say(text)

    def _keep(self, text: str) -> None:
        """Write a line to the log. A SuperNode that nobody hears stands still, full disk or not."""
        try:
            with open(self.log, "a", encoding="utf-8") as log:
                log.write(f"{text}\n")
                size = log.tell()
            if size > LOG:
                os.replace(self.log, _older(self.log))
        except OSError as error:
            self.voice.say(f"{self.log}: can't be written ({error.strerror})")


def _routine(text: str) -> bool:
    """Whether a line says nothing that an operator can act on."""
    routine = "Failed to initialize the connection", "could not establish", "more information"
    return CHATTER.fullmatch(text) is not None or any(words in text for words in routine)


def _older(log: Path) -> Path:
    return log.with_name(f"{log.name}.1")


def _why_refused(key: Path, log: Path) -> str:
    """What to wait for.

    Flower has one answer for a key that it does not know and for one that it takes for connected,
    as it does for a minute after a client was killed.
    """
    logs = [file for file in (_older(log), log) if file.exists()]
    if any(CONNECTED in file.read_text("utf-8", "replace") for file in logs):
        return (
            "Waiting to be let in again: for up to a minute the server takes the last connection "
            f"for alive; if it lasts, {key} is no longer registered there"
        )
    return f"Waiting to be registered: send {key} to the server"


def supervise(command: Sequence[str], address: Address, certificate: Path, key: Path) -> None:
    """Run the SuperNode until this process is told to end; start it again when it ends itself.

    Args:
        command: its command line.
        address: of the server.
        certificate: of the server's authority.
        key: the public key that the server must know.
    """
    voice, log = Voice(), key.with_name("supernode.log")
    while True:
        if problem := why_not(address, certificate):
            voice.say(f"Waiting for the server: {problem}")
        else:
            listener = Listener(voice, log)
            variables = environment(PYTHONUNBUFFERED="1", **own_home(key.parent))
            code = run_to_end(command, variables, listener.hear)
            if listener.refused:
                voice.say(_why_refused(key, log))
            elif listener.problem:
                told = f"{address} does not answer as 'fedsofim deploy server' does"
                voice.say(f"Waiting for the server: {told} ({listener.problem}); see {log}")
            elif code == 0:  # as when the server no longer knows the key
                voice.say("The server has ended the connection; trying again")
            else:
                voice.say(f"The SuperNode ended with code {code}; see {log}. Trying again")
        time.sleep(PAUSE)
