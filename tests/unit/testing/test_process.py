"""The broker in a process of its own: killed, restarted on the same ports, and its last words."""

import socket

import pytest

import strandline
from strandline.errors import StrandlineError
from strandline.process.ports import free_ports
from strandline.testing import ProcessServer

pytestmark = pytest.mark.slow


def test_it_survives_its_own_death(tmp_path):
    """After kill -9 and a restart it has the same ports and acked records; SIGTERM exits with 0."""
    with ProcessServer(tmp_path) as server:
        ports = {name: port for name, port in server.ready.items() if name.endswith("_port")}
        assert server.ready["pid"] == server.pid
        with strandline.connect(server.flight) as client:
            client.create_stream("s")
            client.append("s", b"v")
        server.kill()
        assert not server.is_running
        server.restart()
        assert {name: server.ready[name] for name in ports} == ports
        with strandline.connect(server.flight) as client:
            assert client.read("s").read_all()["value"].to_pylist() == [b"v"]
        assert server.nats_url.startswith("nats://")
        assert server.ingest_url.startswith("nats://")
        assert server.http_url.startswith("http://")
        assert server.stop() == 0
    assert tmp_path.exists()


def test_a_failed_start_says_why(tmp_path):
    """Its standard error is in the message."""
    with ProcessServer(tmp_path) as server, pytest.raises(StrandlineError, match="data"):
        ProcessServer(tmp_path, arguments=("--host", "127.0.0.1")).start()
    assert not server.is_running


def test_a_port_that_somebody_took_first_is_no_failure(tmp_path, monkeypatch):
    """Others draw ports, too, and may listen before the broker does; then it gets new ones."""
    drawn = free_ports(4)
    monkeypatch.setattr("strandline.testing.process.free_ports", lambda _: drawn)
    server = ProcessServer(tmp_path)
    monkeypatch.undo()
    with socket.create_server(("127.0.0.1", drawn[1])), server:
        ports = {name: port for name, port in server.ready.items() if name.endswith("_port")}
        assert not set(drawn).intersection(ports.values())
        server.restart()
        assert ports.items() <= server.ready.items()
