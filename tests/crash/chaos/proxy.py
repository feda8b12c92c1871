"""A network that fails: a loopback TCP proxy before the server's socket, which delays, hangs and cuts.

Invariant: bytes are passed on whole and in order, or the connection is cut; nothing is changed or doubled. A cut is
a reset, as a client sees it whose server or route has gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal, Self
from urllib.parse import parse_qs, urlsplit, urlunsplit

Moment = Literal["before", "after"]

_BEGIN: Final = b"BEGIN\x00"
_COMMIT: Final = b"COMMIT\x00"
_ROLLBACK: Final = b"ROLLBACK\x00"
_EXECUTE_AND_SYNC: Final = b"E\0\0\0\t\0\0\0\0\0S\0\0\0\4"  # ends an implicit transaction of the extended protocol
_SYNC_AND_FLUSH: Final = b"S\0\0\0\4H\0\0\0\4"  # ends one whose statements came in a pipeline, in pieces before
_LARGE: Final = 600  # bytes: what ends in a Sync and is larger than this is a step, not a poll
_RESET: Final = struct.pack("ii", 1, 0)
_PIECE: Final = 65536


@dataclass(eq=False)
class _Pair:
    """One client's connection and its way to the server."""

    near: asyncio.StreamWriter
    far: asyncio.StreamWriter
    begun: bool = False  # a transaction in so many words, whose pipelines are no commits
    dying: bool = False  # its commit is with the server, whose answer will be kept back

    def commits(self, piece: bytes, smallest: int) -> bool:
        if piece.endswith(_SYNC_AND_FLUSH) and not self.begun:
            return True
        return _COMMIT in piece or (piece.endswith(_EXECUTE_AND_SYNC) and len(piece) > smallest)

    def cut(self) -> None:
        for writer in (self.near, self.far):
            ours: socket.socket | None = writer.get_extra_info("socket")
            with contextlib.suppress(OSError):
                if ours is not None and ours.family == socket.AF_INET:
                    ours.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            writer.transport.abort()


class Proxy:
    """The way from one process to the server at `url`, a URL with a folder of sockets or a host."""

    def __init__(self, url: str) -> None:
        self._target = url
        self._server: asyncio.Server | None = None
        self._pairs: set[_Pair] = set()
        self._serving: set[asyncio.Task[None]] = set()
        self._open = asyncio.Event()
        self._open.set()
        self._armed: list[tuple[Moment, int, Callable[[], None]]] = []
        self.delay = 0.0  # seconds for each piece, each way

    @property
    def url(self) -> str:
        """The server, by this way."""
        assert self._server is not None
        parts = urlsplit(self._target)
        host, port = self._server.sockets[0].getsockname()[:2]
        login = parts.netloc.rpartition("@")[0]
        return urlunsplit(parts._replace(netloc=f"{login}@{host}:{port}", query=""))

    @property
    def connections(self) -> int:
        return len(self._pairs)

    def cut(self) -> int:
        """Cut what is open; how many connections."""
        pairs = list(self._pairs)
        for pair in pairs:
            pair.cut()
        return len(pairs)

    def hang(self) -> None:
        """From now on nothing passes, either way, and nobody is told: a half-open network."""
        self._open.clear()

    def heal(self) -> None:
        """Cut whatever has hung, as a route does that has come back without its state, and let the next ones pass."""
        if not self._open.is_set():
            self.cut()
            self._open.set()

    async def cut_commit(self, moment: Moment, patience: float, *, smallest: int = _LARGE) -> bool:
        """Cut the connection of the next commit that comes by, before the server gets it or before its answer is
        passed on. False if none came within `patience` seconds. Of implicit transactions only those with more than
        `smallest` bytes count."""
        done = asyncio.Event()
        armed = (moment, smallest, done.set)
        self._armed.append(armed)
        try:
            async with asyncio.timeout(patience):
                await done.wait()
        except TimeoutError:
            if armed in self._armed:
                self._armed.remove(armed)
            return done.is_set()
        return True

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        self._open.set()
        while self._serving:
            self.cut()
            await asyncio.wait(self._serving, timeout=0.1)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(reader, writer))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await _connect(self._target)
        except OSError:
            writer.transport.abort()
            return
        pair = _Pair(writer, far_writer)
        self._pairs.add(pair)
        there = asyncio.create_task(self._pass_on(pair, reader, far_writer, there=True))
        back = asyncio.create_task(self._pass_on(pair, far_reader, writer, there=False))
        await asyncio.wait([there, back], return_when=asyncio.FIRST_COMPLETED)
        pair.cut()
        there.cancel()
        back.cancel()
        await asyncio.wait([there, back])
        self._pairs.discard(pair)

    async def _pass_on(
        self, pair: _Pair, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, there: bool
    ) -> None:
        with contextlib.suppress(OSError):
            while piece := await reader.read(_PIECE):
                await self._open.wait()
                if self.delay:
                    await asyncio.sleep(self.delay)
                if there:
                    pair.begun = _BEGIN in piece or (pair.begun and _COMMIT not in piece and _ROLLBACK not in piece)
                if not there and pair.dying:
                    return  # the server has committed, and nobody will hear of it
                if there and self._armed and pair.commits(piece, self._armed[0][1]):
                    moment, _, tell = self._armed.pop(0)
                    tell()
                    if moment == "before":
                        return
                    pair.dying = True
                writer.write(piece)
                await writer.drain()


async def _connect(url: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    parts = urlsplit(url)
    query = parse_qs(parts.query)
    if "host" in query:
        return await asyncio.open_unix_connection(f"{query['host'][0]}/.s.PGSQL.{query['port'][0]}")
    return await asyncio.open_connection(parts.hostname, parts.port or 5432)
