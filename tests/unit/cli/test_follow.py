"""``strandline read --follow`` and ``strandline dev`` while brokers die and return."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

import strandline
from strandline.cli.documents import ErrorDocument, schema_of
from strandline.testing import ProcessServer
from tests.kit.json_schemas import check_document
from tests.kit.processes import is_running
from tests.kit.waiting import until

CLI = (sys.executable, "-m", "strandline.cli")


def append(url, values):
    with strandline.connect(url) as client, client.producer("orders") as producer:
        for value in values:
            producer.append(value.encode(), key="table-7", headers=[("lang", b"en")])


@pytest.mark.parametrize("columns", [None, "offset,value"])
def test_follow_continues_after_a_restart_of_the_broker(columns):
    """Records of before and after come once each, in order; standard error says why it waits."""
    with ProcessServer() as broker:
        with strandline.connect(broker.flight) as client:
            client.create_stream("orders")
        append(broker.flight, ["one", "two"])
        command = (*CLI, "read", "orders", "--follow", "-o", "json", "-s", broker.flight)
        command += ("--columns", columns) if columns else ()
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as reading:
            found = [json.loads(reading.stdout.readline()) for _ in range(2)]
            broker.kill()
            broker.restart()
            append(broker.flight, ["three"])
            found.append(json.loads(reading.stdout.readline()))
            reading.send_signal(signal.SIGINT)
            _, errors = reading.communicate(timeout=60)
    assert [each["value"] for each in found] == ["one", "two", "three"]
    assert [each["offset"] for each in found] == [0, 1, 2]
    assert "reconnecting to read orders" in errors
    if columns is None:
        assert found[2]["headers"] == [["lang", "en"]]
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:]{8}\.\d{9}Z", found[2]["timestamp"])
    else:
        assert list(found[2]) == ["offset", "value"]


def test_follow_with_a_limit_ends_by_itself():
    """--limit counts records, whether they were there before or came later."""
    with ProcessServer() as broker:
        with strandline.connect(broker.flight) as client:
            client.create_stream("orders")
        append(broker.flight, ["one", "two", "three"])
        command = (*CLI, "read", "orders", "-f", "-n", "2", "--format", "raw", "-s", broker.flight)
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "one\ntwo\n"


def test_dev_says_what_to_export_and_which_broker_died(tmp_path):
    """The printed variables reach the brokers; a killed one is named with how to start it again;
    the other's log is there to its last line.
    """
    command = (*CLI, "dev", "--nodes", "2", "--port-base", "0", "--data-dir", str(tmp_path / "dev"))
    command += ("--log-level", "info")
    log = tmp_path / "log"
    with (
        log.open("w") as errors,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True) as dev,
    ):
        lines = [dev.stdout.readline() for _ in range(5)]
        pids = [int(found) for found in re.findall(r"pid (\d+)", "".join(lines))]
        exports = dict(re.findall(r"export (\w+)=(\S+)", "".join(lines)))
        assert exports["NATS_URL"].count("nats://127.0.0.1:") == 2
        status = subprocess.run(
            (*CLI, "stream", "list"),
            env={**os.environ, **exports},
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert status.returncode == 0, status.stderr
        os.kill(pids[1], signal.SIGKILL)
        died = dev.stdout.readline()
        assert "broker 2 was killed by SIGKILL; start it again with: strandline serve" in died
        assert died.strip().endswith("broker-2.yaml")
        dev.terminate()
        assert dev.wait(60) == 0, log.read_text()
    assert re.search(r"^broker 1: .*: stopped$", log.read_text(), re.MULTILINE)
    until(lambda: not is_running(pids[0]))


def test_dev_ends_with_an_error_when_no_broker_is_left(tmp_path):
    """In JSON each exit is an event; then the command fails."""
    command = (*CLI, "dev", "--nodes", "1", "--port-base", "0", "-o", "json")
    with subprocess.Popen(
        (*command, "--data-dir", str(tmp_path / "dev")),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as dev:
        ready = json.loads(dev.stdout.readline())
        os.kill(ready["pid"], signal.SIGKILL)
        exited = json.loads(dev.stdout.readline())
        assert (exited["event"], exited["broker"], exited["code"]) == ("exited", 1, -9)
        _, errors = dev.communicate(timeout=60)
        assert dev.returncode == 1
    assert "no broker is running any more" in errors
    for document in (ready, exited):
        check_document(document, schema_of("dev"))
    check_document(ready, schema_of("serve"))
    check_document(json.loads(errors.splitlines()[-1]), msgspec.json.schema(ErrorDocument))


def test_completion_offers_commands_and_can_be_loaded(tmp_path):
    """What Typer generates for bash names our command, and completes commands and flags."""
    environ = {**os.environ, "_STRANDLINE_COMPLETE": "complete_bash", "COMP_CWORD": "2"}
    script = Path(sys.executable).with_name("strandline")
    offered = subprocess.run(
        (script,),
        env={**environ, "COMP_WORDS": "strandline stream cr"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert offered.stdout.split() == ["create"]
    loaded = subprocess.run(
        ("bash", "-ec", f"source <({script} --show-completion bash); complete -p strandline"),
        capture_output=True,
        text=True,
        check=True,
    )
    assert "complete" in loaded.stdout


def test_completion_offers_the_streams_and_groups_of_the_broker():
    """Those of --server or the variable; without a broker nothing, and no error."""

    def offered(line, **more):
        words = {"COMP_WORDS": line, "COMP_CWORD": str(len(line.split(" ")) - 1)}
        done = subprocess.run(
            (Path(sys.executable).with_name("strandline"),),
            env={**os.environ, "_STRANDLINE_COMPLETE": "complete_bash", **words, **more},
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stderr == ""
        return done.stdout.split()

    with ProcessServer() as broker:
        with strandline.connect(broker.flight) as client:
            client.create_stream("orders")
            client.create_stream("payments")
            client.groups.commit("billing", {("orders", 0): 0})
        assert offered("strandline read o", STRANDLINE_SERVER=broker.flight) == ["orders"]
        assert offered(f"strandline stream info -s {broker.flight} pay") == ["payments"]
        assert offered("strandline group info b", STRANDLINE_SERVER=broker.flight) == ["billing"]
        address = broker.flight
    assert offered("strandline read o", STRANDLINE_SERVER=address) == []
