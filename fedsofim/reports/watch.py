"""A run, a sweep or a deployment while it goes on: its page, served to this machine alone."""

import json
from collections.abc import Mapping
from hashlib import sha256
from html import escape
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from fedsofim.core.errors import ConfigError
from fedsofim.reports import compare, live, names, run_page
from fedsofim.reports.curves import is_sweep, read, search
from fedsofim.reports.page import POLICY, page, paragraph
from fedsofim.runs.directory import RunDir
from fedsofim.studies.sweep import Sweep

HOST = "127.0.0.1"
EVERY = 2000  # milliseconds between looks
STATUS = ".federation.json"  # who is connected, as a deployed server writes it beside its runs


class Watched:
    """What is watched: a run's directory, a sweep's, or the newest of a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def place(self) -> Path | None:
        """The directory that was written to last."""
        found = list(search(self.folder)) if self.folder.is_dir() else []
        return max(found, key=_changed, default=None)

    def status(self, place: Path | None) -> dict[str, Any] | None:
        """Who is connected to the server of this run, or of one that has not begun."""
        folders = [self.folder] if place is None else [place.parent, place.parent.parent]
        for file in (folder / STATUS for folder in folders):
            try:
                told: dict[str, Any] = json.loads(file.read_text())
                partition = json.loads((place / "partition.json").read_text()) if place else None
            except (OSError, ValueError):
                continue
            if partition is None or partition.get("run") == told.get("run"):
                return told
            if place and file.stat().st_mtime > _changed(place):
                return told  # the next one gathers
        return None

    def mark(self) -> str:
        """What changes whenever the page does, without making it."""
        place, seen = self.place(), []
        files = sorted(place.iterdir()) if place else []
        status = json.dumps(self.status(place), sort_keys=True)
        for file in files:
            seen.append(f"{file.name} {_time(file)}")
        return sha256("\n".join([str(place), status, *seen]).encode()).hexdigest()[:16]

    def html(self) -> str:
        """The page of now."""
        place = self.place()
        status = self.status(place)
        try:
            if place is None:
                return _waiting(self.folder, status)
            if is_sweep(place):
                return _sweep(place)
            return run_page.page_of(RunDir.open(place), every=EVERY, status=status)
        except (ConfigError, OSError, ValueError, KeyError) as error:
            told = f"{place} cannot be read at the moment: {error}"
            return page("fedsofim watch", paragraph(told), every=EVERY)


def _time(file: Path) -> int:
    try:
        return file.stat().st_mtime_ns
    except OSError:  # it has just been replaced
        return 0


def _changed(place: Path) -> float:
    files = ("metrics.jsonl", "results.jsonl", "sweep.json", "config.yaml")
    return max(_time(place / name) for name in files) / 1e9


def _waiting(folder: Path, status: Mapping[str, Any] | None) -> str:
    told = f"Nothing has been written to {folder} yet. This page shows it as soon as it is."
    head = f'<h1>Waiting for a run</h1><p class="lead" id="results">{escape(told)}</p>'
    return page("fedsofim watch", head + live.present(status), every=EVERY)


def _sweep(place: Path) -> str:
    """A sweep's page, with how far it is."""
    sweep = Sweep.open(place)
    done, total = len(sweep.finished()), len(sweep.values)
    told = [f"{done} of {total} configurations are done"]
    if 0 < done < total:
        began, last = _time(place / "sweep.json"), _time(place / "results.jsonl")
        left = (last - began) / 1e9 / done * (total - done)
        told.append(f"about {names.duration(left)} to go")
    bar = (
        f'<div class="live" role="status"><p><b>{escape(" · ".join(told))}</b></p>'
        f'<progress max="{total}" value="{done}">{done} of {total}</progress></div>'
    )
    if not done:
        return page("fedsofim watch", f"<h1>A sweep has begun</h1>{bar}", every=EVERY)
    return compare.page_of(read([place]), [place], top=bar if done < total else "", every=EVERY)


class _Handler(BaseHTTPRequestHandler):
    """Answers with the page, to whoever asks this machine for it under its own name."""

    server: "Server"

    def do_GET(self) -> None:
        names_ = {f"{host}:{self.server.server_port}" for host in (HOST, "localhost")}
        if self.headers.get("Host") not in names_:  # another site's name that points here
            return self._say(403, "fedsofim watch answers to 127.0.0.1 alone\n")
        if self.path != "/":
            return self._say(404, "there is one page: /\n")
        mark = f'"{self.server.watched.mark()}"'
        if self.headers.get("If-None-Match") == mark:
            return self._say(304, "")
        self._say(200, self.server.watched.html(), mark, "text/html")

    def _say(self, code: int, text: str, mark: str = "", kind: str = "text/plain") -> None:
        body = text.encode()
        self.send_response(code)
        headers = {
            "Content-Type": f"{kind}; charset=utf-8",
            "Content-Length": str(len(body)),
            "Content-Security-Policy": f"{POLICY}; frame-ancestors 'none'",
            "Cache-Control": "no-store",
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer",
            **({"ETag": mark} if mark else {}),
        }
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if code != 304:
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing of requests."""


class Server(ThreadingHTTPServer):
    """Serves the page on the loopback interface.

    Args:
        folder: what is watched.
        port: where; 0 for any that is free.
    """

    daemon_threads = True

    def __init__(self, folder: Path, port: int = 0) -> None:
        self.watched = Watched(folder)
        super().__init__((HOST, port), _Handler)

    @property
    def url(self) -> str:
        """Where the page is."""
        return f"http://{HOST}:{self.server_port}/"
