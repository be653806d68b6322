"""Third-party clients of Liftbridge against a broker started like Liftbridge.

The suite of gufo_liftbridge comes in its source distribution, python-liftbridge 0.0.7 wants an old
protobuf: both are fetched from the package index, once, and kept beside the virtual environment.
Without the index, and without what was kept, these tests are skipped and say so.
"""

import os
import re
import signal
import subprocess
import sys
import tarfile
import threading
from pathlib import Path

import pytest

from strandline.process.ports import free_ports

GUFO = "gufo_liftbridge==0.2.0"
OLD_CLIENT = "python-liftbridge==0.0.7"
OF_ITS_TIME = ("protobuf==3.20.3", "setuptools==80.9.0")
KEPT = Path(sys.prefix) / "fetched-for-tests"
LAUNCHER = Path(sys.executable).with_name("strandline-liftbridge")
OTHER_PORTS = {
    "STRANDLINE_NATS__PORT": "0",
    "STRANDLINE_NATS__INGEST_PORT": "0",
    "STRANDLINE_FLIGHT_PORT": "0",
    "STRANDLINE_HTTP_PORT": "-1",
}

# gufo's tests ask for a fixture that its source distribution lacks; the launcher is its own.
# Only its patience is longer: a machine that does other things takes more than 10 s to start one.
PLUGIN = """
import asyncio
import os
import pytest
from gufo.liftbridge.client import LiftbridgeClient
from gufo.liftbridge.liftbridge import Liftbridge

class Patient(Liftbridge):
    def _wait(self):
        async def ready():
            async with LiftbridgeClient([self._broker]) as client:
                await client.get_metadata()

        asyncio.run(asyncio.wait_for(ready(), 60.0))

@pytest.fixture(scope="session")
def liftbridge():
    running = Patient(path=os.environ["LAUNCHER"], broker=os.environ["BROKER"])
    try:
        with running:
            yield running
    finally:
        running._stop()  # also what did not start in time
"""
ATTEMPTS = 3
"""The suite gives each of its tests 3 to 20 s, whatever else the machine does."""

OLD_PROGRAM = """
import sys
from python_liftbridge import Lift, Message, Stream, ErrStreamExists

client = Lift(ip_address=sys.argv[1], timeout=20)
stream = Stream(subject="old", name="old-stream")
client.create_stream(stream)
try:
    client.create_stream(stream)
except ErrStreamExists:
    print("exists")
for n in range(5):
    client.publish(Message(value=f"v{n}", stream="old-stream", key="k").ack_policy_all())
client.publish_to_subject(Message(value="v5", subject="old"))
print(len(client.fetch_metadata().brokers))
stream.start_at_earliest_received()
for message in client.subscribe(stream):
    print(message.value, message.offset, message.key, message.stream)  # it keeps the subject there
    if message.value == b"v5":
        break
"""


def pip(*arguments):
    """Run pip; skip the test if the package index cannot be asked."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    if done.returncode:
        pytest.skip(f"the package index did not give {arguments[-1]}: {done.stderr[-300:]}")


@pytest.fixture(scope="module")
def gufo(tmp_path_factory):
    """The unpacked source distribution of gufo_liftbridge."""
    name = f"{GUFO.replace('==', '-')}.tar.gz"
    if not (KEPT / name).exists():
        pip("download", "--no-deps", "--no-binary", ":all:", "--dest", str(KEPT), GUFO)
    directory = tmp_path_factory.mktemp("gufo")
    with tarfile.open(KEPT / name) as archive:
        archive.extractall(directory, filter="data")
    return directory / name.removesuffix(".tar.gz")


@pytest.fixture(scope="module")
def old_client():
    """A directory with python-liftbridge and the protobuf of its time."""
    directory = KEPT / "python-liftbridge"
    if not (directory / "pkg_resources").exists():
        pip("install", "--no-deps", "--target", str(directory), *OF_ITS_TIME, OLD_CLIENT)
    return directory


@pytest.fixture
def broker(tmp_path):
    """A broker started with Liftbridge's flags; its address."""
    (port,) = free_ports(1)
    flags = ("--port", str(port), "-d", str(tmp_path / "data"), "-e", "--raft-bootstrap-seed")
    process = subprocess.Popen(
        [LAUNCHER, *flags, "--output", "json"],
        env={**os.environ, **OTHER_PORTS},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline(), "it did not start"
    rest = threading.Thread(target=process.stdout.read, daemon=True)
    rest.start()
    yield f"127.0.0.1:{port}"
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 0
    rest.join(30)
    process.stdout.close()


def run_suite(gufo, directory):
    """Run the tests that need a broker, and those of compression, in a process of their own."""
    (port,) = free_ports(1)
    command = [sys.executable, "-m", "pytest", "-p", "liftbridge_fixture", "-p", "no:cacheprovider"]
    suites = [str(gufo / "tests" / name) for name in ("test_client.py", "test_compressor.py")]
    return subprocess.run(
        [*command, "-q", "-c", os.devnull, "--rootdir", str(gufo), *suites],
        cwd=directory,
        env={
            **os.environ,
            **OTHER_PORTS,
            "PYTHONPATH": os.pathsep.join((str(directory), str(gufo / "src"))),
            "LAUNCHER": str(LAUNCHER),
            "BROKER": f"127.0.0.1:{port}",
        },
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )


@pytest.mark.timeout(600)
def test_the_suite_of_gufo_liftbridge_passes(gufo, tmp_path):
    """Its tests, as they are, on a broker that its own launcher starts with its own settings."""
    (tmp_path / "liftbridge_fixture.py").write_text(PLUGIN)
    for _ in range(ATTEMPTS):
        done = run_suite(gufo, tmp_path)
        if done.returncode == 0:
            break
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    found = re.search(r"(\d+) passed", done.stdout)
    assert found, done.stdout
    assert int(found.group(1)) >= 18
    assert "skipped" not in done.stdout


@pytest.mark.timeout(400)
def test_python_liftbridge_publishes_and_reads(old_client, broker):
    """The oldest Python client: unary publishes, a subject, metadata by its old name, reading."""
    done = subprocess.run(
        [sys.executable, "-c", OLD_PROGRAM, broker],
        env={
            **os.environ,
            "PYTHONPATH": str(old_client),
            "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": "python",
        },
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    exists, _, handshake, *messages = done.stdout.splitlines()
    assert exists == "exists"
    assert handshake.startswith("b'' 0 b'' ")
    assert messages == [
        *(f"b'v{n}' {n} b'k' old" for n in range(5)),
        "b'v5' 5 b'' old",
    ]
