"""`fedsofim watch`: the page of a run, a sweep or a deployment while it goes on."""

from collections.abc import Sequence
from pathlib import Path

from fedsofim.core.arguments import Parser
from fedsofim.core.errors import ConfigError, require

ABOUT = """Serve the page of a run, a sweep or a deployment while it goes on: rounds, who is
connected, who refused and why, budget left, time to go. To this machine alone, until Ctrl-C:
  fedsofim watch                         what is newest in outputs, also if it begins later
  fedsofim watch outputs/2026-01-01/my-run"""


def parser() -> Parser:
    """Its options."""
    made = Parser(prog="fedsofim watch", description=ABOUT)
    made.add_argument(
        *("dir",), nargs="?", type=Path, default=Path("outputs"), metavar="DIR",
        help="a run's directory, a sweep's, or a folder of them (%(default)s)",
    )  # fmt: skip
    made.add_argument("--port", type=int, default=0, help="by default any that is free")
    made.add_argument("--open", action="store_true", help="open it in a browser")
    return made


def main(arguments: Sequence[str]) -> None:
    """Serve until it is interrupted."""
    chosen = parser().read(arguments)
    require(0 <= chosen.port < 2**16, f"--port {chosen.port}: must be from 0 to 65535")
    from fedsofim.reports.watch import Server

    try:
        server = Server(chosen.dir, chosen.port)
    except OSError as error:
        raise ConfigError(f"--port {chosen.port}: cannot be used ({error.strerror})") from None
    yet = "" if chosen.dir.exists() else ", which does not exist yet,"
    print(f"{chosen.dir}{yet} is shown at {server.url} until Ctrl-C", flush=True)
    if chosen.open:
        import webbrowser

        webbrowser.open(server.url)
    with server:
        server.serve_forever()
