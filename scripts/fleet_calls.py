"""Calls of Flower's Fleet API as a SuperNode makes them, without threads: for `devices.py`.

A SuperNode is a process with a few threads, and ten thousand of them need ten thousand machines.
Here each is a few coroutines. The words on the wire are a SuperNode's: protobuf over HTTP/1.1 and
TLS, with its headers, its patience, and connections that are kept for five seconds. Only a
signature, which a SuperNode makes for every call, serves for a minute: the SuperLink checks every
call all the same, and its CPU is what is measured.
"""

import asyncio
import base64
import ssl
import time
from collections import Counter
from typing import Any, TypeVar

from flwr.common.constant import TIMESTAMP_HEADER
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER
from flwr.supercore.date import now
from flwr.supercore.primitives.asymmetric import (
    generate_key_pairs,
    public_key_to_bytes,
    sign_message,
)
from flwr.supercore.protobuf.constants import PROTOBUF_MEDIA_TYPE
from flwr.supercore.runtime_version_compatibility import RuntimeVersionMetadata

KEPT, SIGNED = 5.0, 60.0  # seconds that a connection is kept idle, and that a signature serves
PATIENCE, LONGEST_PAUSE = 30.0, 20.0  # a SuperNode's for one call, and between two attempts
UNAVAILABLE = {502, 503, 504}
# What a lost connection, or one that was not made, looks like here.
LOST = (OSError, EOFError, TimeoutError, asyncio.TimeoutError, asyncio.IncompleteReadError)
T = TypeVar("T")


class RefusedError(Exception):
    """An answer that is not one; `status` is HTTP's."""

    def __init__(self, status: int, body: bytes) -> None:
        super().__init__(f"{status}: {body[:200].decode('utf-8', 'replace')}")
        self.status = status


class Tally:
    """What was asked by all devices of a process, and how it went."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.seconds: Counter[str] = Counter()  # from the first byte sent to the last received
        self.failed: Counter[str] = Counter()


class Line:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer, self.used = reader, writer, time.monotonic()

    async def exchange(self, request: bytes) -> tuple[int, bytes]:
        """Send a request and read the answer: its status and its body."""
        self.writer.write(request)
        await self.writer.drain()
        head = (await self.reader.readuntil(b"\r\n\r\n")).lower()
        body = await self.reader.readexactly(_length(head))
        self.used = time.monotonic()
        return int(head.split(b" ", 2)[1]), body

    def close(self) -> None:
        self.writer.transport.abort()


def _length(head: bytes) -> int:
    for line in head.split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return int(line.partition(b":")[2])
    raise EOFError("an answer of unknown length")


class Caller:
    """One device's side of the wire.

    Args:
        host: of the SuperLink.
        port: of the SuperLink.
        tls: what its certificate is checked with.
        tally: where calls are counted.
    """

    def __init__(self, host: str, port: int, tls: ssl.SSLContext, tally: Tally) -> None:
        self.host, self.port, self.tls, self.tally = host, port, tls, tally
        self.private, public = generate_key_pairs()
        self.key = public_key_to_bytes(public)
        self._idle: list[Line] = []
        self._signed, self._until = "", 0.0
        known = RuntimeVersionMetadata.from_local_component("SuperNode").as_metadata()
        self._always = "".join(f"{name}: {value}\r\n" for name, value in known)

    async def call(self, path: str, request: Any, kind: type[T], seconds: float = PATIENCE) -> T:
        """One attempt."""
        body = request.SerializeToString(deterministic=True)
        began = time.monotonic()
        try:
            status, answer = await asyncio.wait_for(self._exchange(path, body), seconds)
        except LOST:
            self.tally.failed[path] += 1
            raise
        self.tally.calls[path] += 1
        self.tally.seconds[path] += time.monotonic() - began
        if status != 200:
            self.tally.failed[path] += 1
            raise RefusedError(status, answer)
        return kind.FromString(answer)

    async def insist(self, path: str, request: Any, kind: type[T]) -> T:
        """Attempts until one comes through, ever further apart, as a SuperNode makes them."""
        pause = 1.0
        while True:
            try:
                return await self.call(path, request, kind)
            except LOST:
                pass
            except RefusedError as error:
                if error.status not in UNAVAILABLE:
                    raise
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    async def _exchange(self, path: str, body: bytes) -> tuple[int, bytes]:
        line = await self._line()
        try:
            answer = await line.exchange(self._head(path, len(body)) + body)
        except BaseException:
            line.close()
            raise
        self._idle.append(line)
        return answer

    async def _line(self) -> Line:
        """A connection that was used lately, or a new one."""
        while self._idle:
            line = self._idle.pop()
            if time.monotonic() - line.used < KEPT and not line.reader.at_eof():
                return line
            line.close()
        return Line(*await asyncio.open_connection(self.host, self.port, ssl=self.tls))

    def _head(self, path: str, length: int) -> bytes:
        return (
            f"POST {path} HTTP/1.1\r\nhost: {self.host}:{self.port}\r\n"
            f"connection: keep-alive\r\naccept: {PROTOBUF_MEDIA_TYPE}\r\n"
            f"content-type: {PROTOBUF_MEDIA_TYPE}\r\n{self._always}{self._signature()}"
            f"content-length: {length}\r\n\r\n"
        ).encode("ascii")

    def _signature(self) -> str:
        """The headers that say who calls."""
        if time.monotonic() > self._until:
            stamp = now().isoformat()
            signature = sign_message(self.private, stamp.encode("ascii"))
            self._signed = (
                f"{FLEET_HTTP_PUBLIC_KEY_HEADER}: {base64.b64encode(self.key).decode()}\r\n"
                f"{TIMESTAMP_HEADER}: {stamp}\r\n"
                f"{FLEET_HTTP_SIGNATURE_HEADER}: {base64.b64encode(signature).decode()}\r\n"
            )
            self._until = time.monotonic() + SIGNED
        return self._signed
