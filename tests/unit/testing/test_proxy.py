"""The proxy for chaos tests: passing, holding and breaking connections."""

import asyncio

import pytest

from strandline.testing.proxy import TcpProxy


@pytest.fixture
async def echo():
    """A server that echoes; yields its port."""
    writers = set()

    async def serve(reader, writer):
        writers.add(writer)
        try:
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()
        except ConnectionError:
            pass  # a test broke it
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    yield server.sockets[0].getsockname()[1]
    server.close()
    for writer in writers:
        writer.transport.abort()


@pytest.fixture
async def proxy(echo):
    """A proxy in front of it."""
    async with TcpProxy("127.0.0.1", echo) as proxy:
        yield proxy


@pytest.fixture
async def streams(proxy):
    """A connection through the proxy."""
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    yield reader, writer
    writer.transport.abort()


async def is_silent(reader):
    """Whether nothing comes for a moment."""
    try:
        async with asyncio.timeout(0.05):
            await reader.read(1)
    except TimeoutError:
        return True
    return False


async def test_bytes_pass_both_ways(streams, proxy):
    """Bytes are echoed unchanged, and counted."""
    reader, writer = streams
    data = bytes(range(256)) * 1000
    writer.write(data)
    assert await reader.readexactly(len(data)) == data
    assert proxy.passed_bytes("to_target") == len(data)


async def test_the_end_of_a_stream_passes(streams):
    """A closed half is closed at the other side too, after the last bytes."""
    reader, writer = streams
    writer.write(b"last")
    writer.write_eof()
    assert await reader.read() == b"last"


@pytest.mark.parametrize("direction", ["to_target", "from_target"])
async def test_a_cut_holds_bytes_until_it_ends(streams, proxy, direction):
    """In a partitioned direction nothing passes; afterwards nothing is missing."""
    reader, writer = streams
    writer.write(b"1")
    assert await reader.readexactly(1) == b"1"
    other = "from_target" if direction == "to_target" else "to_target"
    proxy.cut(direction)
    before = proxy.passed_bytes(direction)
    writer.write(b"2")
    assert await is_silent(reader)
    assert proxy.passed_bytes(direction) == before
    assert proxy.passed_bytes(other) == (2 if other == "to_target" else 1)
    proxy.resume()
    assert await reader.readexactly(1) == b"2"


async def test_a_delay_is_felt(streams, proxy):
    """Bytes come later by the delay, and at once when it is over."""
    reader, writer = streams
    proxy.delay(0.05, "to_target")
    loop = asyncio.get_running_loop()
    start = loop.time()
    writer.write(b"1")
    await reader.readexactly(1)
    assert loop.time() - start >= 0.05
    assert proxy._paths["from_target"].delay_s == 0


async def test_broken_connections_end(streams, proxy):
    """Both ends see the end; a new connection works."""
    reader, writer = streams
    writer.write(b"1")
    await reader.readexactly(1)
    proxy.break_connections()
    with pytest.raises(ConnectionError):
        await reader.readexactly(1)
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    writer.write(b"2")
    assert await reader.readexactly(1) == b"2"
    assert proxy.connections_seen == 2
    writer.transport.abort()


async def test_a_stopped_proxy_can_return(proxy, streams):
    """Connections fail after a stop and work after a start, on the same port."""
    await proxy.stop()
    with pytest.raises(ConnectionError):
        await asyncio.open_connection("127.0.0.1", proxy.port)
    port = proxy.port
    await proxy.start()
    assert proxy.port == port
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"x")
    assert await reader.readexactly(1) == b"x"
    writer.transport.abort()


async def test_without_a_target_connections_end(proxy, echo):
    """A target that is away costs the connection, not the proxy."""
    proxy.target_port = 1
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
        await reader.readexactly(1)
    writer.transport.abort()
    proxy.target_port = echo
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    writer.write(b"x")
    assert await reader.readexactly(1) == b"x"
    writer.transport.abort()
