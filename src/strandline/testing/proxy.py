"""A TCP proxy on loopback that can cut, delay and break connections, for chaos tests of links.

Rules: the proxy never loses bytes of a connection, since TCP does not either: a cut holds them back
until ``resume``, and the sender blocks once the buffers are full. Each direction can be cut and
delayed separately, for one-way partitions. During a cut new connections are accepted, unlike in a
network that drops packets, but nothing passes; use ``break_connections`` or ``stop`` for an end
that both sides notice.
"""

import asyncio
import contextlib
import socket
import struct
from dataclasses import dataclass, field
from typing import Final, Literal, Self

CHUNK_BYTES: Final = 64 << 10
Direction = Literal["to_target", "from_target"]


@dataclass(slots=True)
class ProxyPath:
    """One direction of all connections through the proxy."""

    is_open: asyncio.Event = field(default_factory=asyncio.Event)
    delay_s: float = 0.0
    passed_bytes: int = 0


class TcpProxy:
    """Listens on a free loopback port and forwards bytes to ``host:port``; a context manager.

    Args:
        host: the host of the target.
        port: the port of the target; it may be changed, for later connections.
    """

    def __init__(self, host: str, port: int) -> None:
        self.target_host = host
        self.target_port = port
        self.port = 0
        self.connections_seen = 0
        self._paths: dict[Direction, ProxyPath] = {
            "to_target": ProxyPath(),
            "from_target": ProxyPath(),
        }
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.resume()

    async def start(self) -> Self:
        """Listen; after a ``stop``, on the same port."""
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def stop(self) -> None:
        """Stop listening, and reset open connections."""
        if self._server is not None:
            self._server.close()
            self._server = None
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    # Faults

    def cut(self, direction: Direction | None = None) -> None:
        """Hold bytes back, in one direction or in both."""
        for path in self._chosen(direction):
            path.is_open.clear()

    def resume(self, direction: Direction | None = None) -> None:
        """Let bytes pass again, first those that were held back."""
        for path in self._chosen(direction):
            path.is_open.set()

    def delay(self, seconds: float, direction: Direction | None = None) -> None:
        """Delay each read (of at most 64 KiB); 0 ends the delay."""
        for path in self._chosen(direction):
            path.delay_s = seconds

    def break_connections(self) -> None:
        """Reset every open connection, on both sides."""
        for writer in self._writers:
            sock = writer.get_extra_info("socket")
            if sock is None or sock.fileno() < 0:
                continue  # closed already, as uvloop reports it
            with contextlib.suppress(OSError):  # closed already, as asyncio reports it
                # With SO_LINGER 0 a close is a reset, even if there are unread bytes.
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()

    def passed_bytes(self, direction: Direction) -> int:
        """Return the number of bytes forwarded."""
        return self._paths[direction].passed_bytes

    def _chosen(self, direction: Direction | None) -> list[ProxyPath]:
        return [self._paths[direction]] if direction else list(self._paths.values())

    # Connections

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections_seen += 1
        task = asyncio.create_task(self._serve(reader, writer), name="tcp-proxy")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        opened = [writer]
        self._writers.add(writer)
        try:
            far_reader, far_writer = await asyncio.open_connection(
                self.target_host, self.target_port
            )
            opened.append(far_writer)
            self._writers.add(far_writer)
            async with asyncio.TaskGroup() as group:
                group.create_task(_pump(reader, far_writer, self._paths["to_target"]))
                group.create_task(_pump(far_reader, writer, self._paths["from_target"]))
        except* OSError:
            pass  # one side has closed: close the other one
        finally:
            for each in opened:
                self._writers.discard(each)
                each.transport.abort()


async def _pump(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, path: ProxyPath
) -> None:
    """Forward bytes, and the end of the stream, in one direction."""
    while data := await reader.read(CHUNK_BYTES):
        if path.delay_s:
            await asyncio.sleep(path.delay_s)
        await path.is_open.wait()
        if writer.is_closing():
            return
        writer.write(data)
        await writer.drain()
        path.passed_bytes += len(data)
    await path.is_open.wait()
    if not writer.is_closing():
        writer.write_eof()
