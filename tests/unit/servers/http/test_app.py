"""The routes, over a real socket, with a broker of plain values behind them."""

import asyncio
import contextlib
import json
import socket

import pytest

from strandline.config import BrokerConfig
from strandline.errors import InvalidConfigError, NotLeaderError
from strandline.servers.http import HttpFrontEnd
from strandline.servers.http import server as http_server
from strandline.servers.http.server import CONNECTIONS_MAX
from strandline.telemetry import GroupSample


async def test_every_answer_forbids_scripts_of_others_and_caching(broker, fetch):
    """Pages, data and errors all have the safe headers."""
    for path in ("/", "/metrics", "/api/streams", "/nothing-here"):
        headers = (await fetch(path)).headers
        assert headers["content-security-policy"].startswith("default-src 'none'")
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["cache-control"] == "no-store"


async def test_metrics_are_prometheus_text_with_offsets(broker, fetch):
    """A scrape carries the counters and the offsets of every partition."""
    broker.add("orders", partitions=2, records=7)
    broker.telemetry.records_appended = 14
    answer = await fetch("/metrics")
    assert answer.status == 200
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert "strandline_records_appended_total 14.0" in answer.text
    expected = 'strandline_partition_high_watermark{partition="1",stream="orders"} 7.0'
    assert expected in answer.text
    assert "strandline_partitions 2.0" in answer.text
    assert "strandline_ready 1.0" in answer.text


async def test_metrics_say_how_far_behind_groups_are(broker, fetch):
    """By the partitions that are here: their lag, and for how long what is next has waited; a copy
    that knows less than the group has read is not ahead of it.
    """
    broker.add("orders", partitions=3, records=7)
    broker.held[0].partitions[2].remote_error = NotLeaderError("kept by other brokers")
    broker.clock.advance_ms(60_000)
    places = (("orders", 0, 4), ("orders", 1, 9), ("orders", 2, 1))
    broker.positions = [GroupSample("copy", *place) for place in places]
    lines = (await fetch("/metrics")).text.splitlines()
    found = [line for line in lines if line.startswith("strandline_group_") and "copy" in line]
    assert found == [
        'strandline_group_position{group="copy",partition="0",stream="orders"} 4.0',
        'strandline_group_position{group="copy",partition="1",stream="orders"} 9.0',
        'strandline_group_position{group="copy",partition="2",stream="orders"} 1.0',
        'strandline_group_lag_records{group="copy",partition="0",stream="orders"} 3.0',
        'strandline_group_lag_records{group="copy",partition="1",stream="orders"} 0.0',
        'strandline_group_oldest_unread_seconds{group="copy",partition="0",stream="orders"} 56.0',
        'strandline_group_oldest_unread_seconds{group="copy",partition="1",stream="orders"} 0.0',
    ]


async def test_readiness_says_why_not(broker, fetch):
    """Ready means that records can be stored and read; otherwise 503 names the reason."""
    answer = await fetch("/health/ready")
    assert (answer.status, answer.text) == (200, "ready\n")
    broker.why_not_ready = "2 of <5> copies"
    answer = await fetch("/health/ready")
    assert (answer.status, answer.text) == (503, "2 of <5> copies\n")
    assert (await fetch("/health/live")).status == 200
    assert "strandline_ready 0.0" in (await fetch("/metrics")).text


async def test_streams_as_json(broker, fetch):
    """The API gives settings and half-open offsets of each stream, sorted by name."""
    broker.add("b", partitions=2, records=5)
    broker.add("a")
    streams = json.loads((await fetch("/api/streams")).body)
    assert [stream["config"]["name"] for stream in streams] == ["a", "b"]
    assert streams[1]["partitions"][1] == {
        "partition": 1,
        "log_start_offset": 0,
        "high_watermark": 5,
        "log_end_offset": 5,
        "hidden_offsets": 0,
    }
    assert json.loads((await fetch("/api/streams/b")).body) == streams[1]


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nothing", 404),
        ("GET", "/api/streams/unknown", 404),
        ("GET", "/static/..%2f..%2fapp.py", 404),
        ("GET", "/static/console.py", 404),
        ("GET", "/%00%ff", 404),
        ("POST", "/", 405),
        ("DELETE", "/api/streams", 405),
    ],
)
async def test_a_wrong_request_gets_its_4xx(fetch, method, path, status):
    """Unknown paths and methods are rejected, and the listener continues."""
    assert (await fetch(path, method)).status == status
    assert (await fetch("/health/live")).status == 200


@pytest.mark.parametrize(
    "sent",
    [
        b"\x00" * 100,
        b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET / HTTP/1.1\r\nX: " + b"a" * 100_000,
        b"",
    ],
)
async def test_bytes_that_are_not_http_cost_only_their_sender(front_end, fetch, sent):
    """Garbage is answered with 400 or a closed connection; others are served."""
    reader, writer = await asyncio.open_connection("127.0.0.1", front_end.port)
    writer.write(sent)
    writer.write_eof()
    answer = await asyncio.wait_for(reader.read(), 10)
    assert not answer or answer.startswith(b"HTTP/1.1 4")
    writer.close()
    assert (await fetch("/health/live")).status == 200


async def test_a_taken_port_is_a_typed_error(broker):
    """Starting on a port in use names the address and the flag, and exits nothing."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        front_end = HttpFrontEnd(broker, BrokerConfig(http_port=port), lambda: 0)
        with pytest.raises(InvalidConfigError, match="--http-port"):
            await front_end.start()


async def test_an_address_that_is_not_ours_is_a_typed_error(broker):
    """A host that cannot be bound is an error with its name."""
    front_end = HttpFrontEnd(broker, BrokerConfig(host="192.0.2.1", http_port=0), lambda: 0)
    with pytest.raises(InvalidConfigError, match=r"192\.0\.2\.1"):
        await front_end.start()


async def test_stopping_does_not_wait_for_an_idle_client(front_end):
    """An open connection that sends nothing does not hold up a stop."""
    _, writer = await asyncio.open_connection("127.0.0.1", front_end.port)
    await asyncio.wait_for(front_end.stop(), 5)
    writer.close()


@pytest.mark.parametrize("sent", [b"", b"GET /metrics HTTP/1.1\r\nHost: x\r\nX-Slow: "])
async def test_silent_connections_keep_nobody_out(front_end, fetch, sent):
    """However many there are: the oldest ends when one more comes, and probes are answered."""
    held = []
    for _ in range(CONNECTIONS_MAX + 20):
        reader, writer = await asyncio.open_connection("127.0.0.1", front_end.port)
        writer.write(sent)
        held.append((reader, writer))
    for _ in range(3):
        assert (await fetch("/health/live")).status == 200
    assert await asyncio.wait_for(held[0][0].read(), 10) == b""
    for _, writer in held:
        writer.close()


async def test_who_was_just_answered_is_not_the_oldest(front_end):
    """A client that asks again and again on its connection keeps it among silent ones."""
    request = b"GET /health/live HTTP/1.1\r\nHost: x\r\n\r\n"
    reader, writer = await asyncio.open_connection("127.0.0.1", front_end.port)
    held = []
    for number in range(2 * CONNECTIONS_MAX):
        held.append(await asyncio.open_connection("127.0.0.1", front_end.port))
        if number % 50 == 0:
            writer.write(request)
            assert (await asyncio.wait_for(reader.readuntil(b"live\n"), 10)).startswith(
                b"HTTP/1.1 200"
            )
    for _, each in (*held, (reader, writer)):
        each.close()


@pytest.mark.parametrize(
    "header", ["Transfer-Encoding: chunked", "Content-Length: 99999999999", "Content-Length: 1"]
)
async def test_a_request_with_a_body_is_rejected_before_its_body_comes(front_end, header):
    """Only forms have one, and each tiny chunk of it would keep the loop busy."""
    reader, writer = await asyncio.open_connection("127.0.0.1", front_end.port)
    writer.write(f"GET /health/live HTTP/1.1\r\nHost: x\r\n{header}\r\n\r\n".encode())
    answer = await asyncio.wait_for(reader.read(), 10)
    assert answer.startswith(b"HTTP/1.1 400")
    assert b"without a body" in answer
    writer.close()


@pytest.mark.parametrize(
    "header", ["Transfer-Encoding: chunked", "Content-Length: 262145", "Content-Length: -1"]
)
async def test_a_form_is_sent_whole_and_is_small(front_end, header):
    """A form that announces too much, or chunks, is rejected before it comes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", front_end.port)
    writer.write(f"POST /login HTTP/1.1\r\nHost: x\r\n{header}\r\n\r\n".encode())
    answer = await asyncio.wait_for(reader.read(), 10)
    assert answer.startswith(b"HTTP/1.1 400")
    writer.close()


async def test_a_request_may_say_that_its_body_is_empty(front_end):
    """As some HTTP clients always do."""
    reader, writer = await asyncio.open_connection("127.0.0.1", front_end.port)
    writer.write(b"GET /health/live HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n")
    answer = await asyncio.wait_for(reader.readuntil(b"live\n"), 10)
    assert answer.startswith(b"HTTP/1.1 200")
    writer.close()


async def test_a_request_has_to_come_whole_in_time(front_end, monkeypatch):
    """A client that sends slowly is closed like one that sends nothing."""
    monkeypatch.setattr(http_server, "REQUEST_S", 0.2)
    reader, writer = await asyncio.open_connection("127.0.0.1", front_end.port)
    ended = asyncio.ensure_future(reader.read())
    for byte in b"GET / HTTP/1.1\r\nX-Slow: " + b"a" * 200:
        if ended.done():
            break
        with contextlib.suppress(ConnectionError):
            writer.write(bytes([byte]))
        await asyncio.sleep(0.01)
    with contextlib.suppress(ConnectionError):
        assert await asyncio.wait_for(ended, 10) == b""
    writer.close()


async def test_an_answer_has_to_be_taken_in_time(front_end, broker, monkeypatch):
    """A client that asks again and again without reading is dropped, and its answers with it."""
    monkeypatch.setattr(http_server, "ANSWER_S", 0.2)
    broker.add("orders", partitions=64, records=1)
    with socket.create_connection(("127.0.0.1", front_end.port)) as client:
        client.setblocking(False)
        request, was_cut = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n" * 50, False
        async with asyncio.timeout(30):
            while not was_cut:
                was_cut = not sends(client, request)
                await asyncio.sleep(0.01)
    assert was_cut


def sends(client, data):
    """Send what the socket accepts now; False if the connection is closed."""
    try:
        client.send(data)
    except BlockingIOError:
        return True
    except ConnectionError:
        return False
    return True


async def test_pipelined_requests_let_the_loop_run_between(front_end):
    """Forty connections with fifty requests each are all answered; others run meanwhile."""
    request, loop = b"GET /health/live HTTP/1.1\r\nHost: x\r\n\r\n" * 50, asyncio.get_running_loop()

    async def ask():
        reader, writer = await asyncio.open_connection("127.0.0.1", front_end.port)
        writer.write(request)
        for _ in range(50):
            await reader.readuntil(b"live\n")
        writer.close()

    asked = asyncio.gather(*(ask() for _ in range(40)))
    worst_s = 0.0
    while not asked.done():
        since_s = loop.time()
        await asyncio.sleep(0.001)
        worst_s = max(worst_s, loop.time() - since_s)
    await asked
    assert worst_s < 0.5
