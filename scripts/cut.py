"""A proxy that hands bytes on, and can be cut: a network that fails, for `chaos_deployment.py`."""

import socket
import time
from contextlib import suppress
from threading import Thread


class Proxy:
    """Hands bytes on between a client and the server, until it is cut."""

    def __init__(self, target: int) -> None:
        self.target, self.cut = target, False
        self.door = socket.create_server(("127.0.0.1", 0))
        self.port = int(self.door.getsockname()[1])
        self.open: list[socket.socket] = []
        Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            near, _ = self.door.accept()
            if self.cut:
                near.close()
                continue
            try:
                far = socket.create_connection(("127.0.0.1", self.target))
            except OSError:
                near.close()
                continue
            self.open += [near, far]
            for pair in ((near, far), (far, near)):
                Thread(target=_pump, args=pair, daemon=True).start()

    def cut_for(self, seconds: float) -> None:
        """Close all connections, and take no new ones for a while."""
        self.cut = True
        for end in self.open:
            _close(end)
        self.open = []
        time.sleep(seconds)
        self.cut = False


def _pump(near: socket.socket, far: socket.socket) -> None:
    with suppress(OSError):
        while data := near.recv(65536):
            far.sendall(data)
    _close(near)
    _close(far)


def _close(end: socket.socket) -> None:
    with suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    end.close()
