"""A Python process ends cleanly whatever reads its threads are within when it exits."""

import subprocess
import sys

import pyarrow as pa
import pytest

import strandline
from strandline.testing import ProcessServer

RUNS = 4
"""How often each is tried: before there was a guard, 9 of 10 exits from stored reads aborted, and
1 of 5 from others.
"""
TIMEOUT_S = 60
CHILD = """
import asyncio, random, sys, threading, time
import strandline

client = strandline.connect(sys.argv[1])
left_open = []
begun = threading.Semaphore(0)

def stored():
    begun.release()
    while True:
        client.read("s").read_all()

def followed():
    drain(client.read("s", follow=True))

def waiting():
    drain(client.read("s", start="latest", follow=True))

def subscribed():
    drain(client.subscribe("s", start="earliest"))

def drain(reader):
    begun.release()
    for _ in reader:
        pass

def awaited():
    async def run():
        other = await strandline.connect_async(sys.argv[1])
        reader = await other.read("s", follow=True)
        begun.release()  # asyncio starts no call in a thread once Python exits
        async for _ in reader:
            pass
    asyncio.run(run())

def consumed():
    left_open.append(client.consumer(sys.argv[3], "s", start="earliest"))
    begun.release()
    while True:
        left_open[0].poll(1.0)

threads = 1 if sys.argv[2] == "consumed" else 8
for _ in range(threads):
    threading.Thread(target=globals()[sys.argv[2]], daemon=True).start()
for _ in range(threads):
    begun.acquire()
time.sleep(random.random() * 0.3)
"""


@pytest.fixture(scope="module")
def address():
    """A broker with a stream of some size."""
    with ProcessServer() as server, strandline.connect(server.flight) as client:
        client.create_stream("s", partitions=2)
        values = pa.table({"value": pa.array([b"x" * 1000] * 5000, pa.binary())})
        for partition in (0, 1):
            for _ in range(5):
                client.append_batch("s", values, partition=partition)
        yield server.flight


@pytest.mark.parametrize(
    "read", ["stored", "followed", "waiting", "subscribed", "awaited", "consumed"]
)
def test_threads_that_read_do_not_abort_the_interpreter_at_exit(address, read):
    """Each exit has code 0 and writes nothing to standard error."""
    for number in range(RUNS):
        done = subprocess.run(
            [sys.executable, "-c", CHILD, address, read, f"group{number}"],
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, ""), f"run {number}: {done.stderr}"
