"""Logs for programs: with ``--log-format json`` every line on standard error is an event."""

import json
import os
import signal
import socket
import subprocess
import sys

import pytest
import trustme

from strandline.testing import ProcessServer

pytestmark = pytest.mark.slow
FIELDS = {"time", "level", "logger", "message"}
LEVELS = {"debug", "info", "warning", "error", "critical"}
SERVE = (sys.executable, "-m", "strandline.cli", "serve", "--log-format", "json")
FREE_PORTS = [f"--{name}-port=0" for name in ("nats", "ingest", "flight", "http")]


def events(lines):
    """The events of all lines, each with the fields that are documented."""
    found = [json.loads(line) for line in lines]
    for event in found:
        assert set(event) - {"trace"} == FIELDS
        assert event["level"] in LEVELS
        assert all(isinstance(value, str) for value in event.values())
    return found


@pytest.fixture
def server(tmp_path):
    """A broker with TLS and all listeners, which logs JSON."""
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    issued.private_key_and_cert_chain_pem.write_to_path(tmp_path / "broker.pem")
    authority.cert_pem.write_to_path(tmp_path / "authority.pem")
    tls = {name: str(tmp_path / "broker.pem") for name in ("certificate", "key")}
    tls["authority"] = str(tmp_path / "authority.pem")
    (tmp_path / "settings.yaml").write_text(json.dumps({"tls": tls}))
    arguments = ("--config", str(tmp_path / "settings.yaml"), "--log-format", "json")
    arguments += ("--log-level", "debug", "--grpc-port", "0", "--beam-port", "0")
    return ProcessServer(tmp_path / "data", arguments=arguments)


def speak_clear_text(port):
    """Connect without TLS, and be rejected."""
    with socket.create_connection(("127.0.0.1", port), timeout=30) as link:
        link.sendall(b"GET / HTTP/1.1\r\n\r\n")
        while link.recv(4096):
            pass


async def test_every_line_of_a_broker_is_an_event(server, kit):
    """From the first to the last, warnings too, and what gRPC writes past Python."""

    def told(words):
        return [event for event in events(list(server.errors)) if words in event["message"]]

    with server:
        await kit.until(lambda: told("ready, with pid"))
        speak_clear_text(server.ready["flight_port"])
        await kit.until(lambda: told("Handshake failed"))
        os.kill(kit.child_of(server.pid), signal.SIGKILL)
        await kit.until(lambda: told("nats-server was restarted"))
        assert server.stop() == 0
    [recovered, *_] = events(server.errors)
    assert recovered["message"].startswith("recovered 0 records")
    assert {event["logger"] for event in told("Handshake failed")} == {"stderr"}
    assert {event["level"] for event in told("nats-server was restarted")} == {"warning"}
    assert told("stopping after signal SIGTERM")
    assert events(server.errors)[-1]["message"] == "stopped"


def test_a_start_that_fails_says_why_as_an_event(tmp_path):
    """The last line has the error with its code; the exit code is that of an error."""
    with ProcessServer(tmp_path / "data"):
        second = subprocess.run(
            [*SERVE, "--data-dir", str(tmp_path / "data"), *FREE_PORTS],
            capture_output=True,
            check=False,
            text=True,
            timeout=60,
        )
    assert second.returncode == 1
    last = events(second.stderr.splitlines())[-1]
    assert last["level"] == "critical"
    assert "(data_dir_locked)" in last["message"]


def test_a_bug_is_one_event(tmp_path):
    """A traceback over many lines is one event; the exit code is 1 as usual."""
    code = (
        "import sys; from strandline.cli import main\n"
        "from strandline.process.wiring import BrokerApp\n"
        "BrokerApp.ready_line = lambda _: 1 / 0; sys.argv = ['strandline', *sys.argv[1:]]; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *SERVE[3:], "--data-dir", str(tmp_path), *FREE_PORTS],
        capture_output=True,
        check=False,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    last = events(done.stderr.splitlines())[-1]
    assert "ZeroDivisionError" in last["trace"]
