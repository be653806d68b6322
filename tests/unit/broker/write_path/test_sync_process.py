"""The process that syncs: reports in order on the loop, survives signals, ends with the broker."""

import asyncio
import contextlib
import os
import select
import signal
import subprocess
import sys
import textwrap

import pytest

from strandline.broker.write_path.sync_process import SyncProcess


@pytest.fixture
async def child():
    made = SyncProcess(asyncio.get_running_loop())
    yield made
    made.close()


@pytest.fixture
def files(tmp_path):
    """Descriptors of a file, which can be synced, and of a pipe, which cannot."""
    reading, writing = os.pipe()
    with (tmp_path / "file").open("wb") as file, os.fdopen(reading), os.fdopen(writing, "wb"):
        yield file.fileno(), writing


class Outcomes:
    """The reported outcome of each sync, in order."""

    def __init__(self):
        self.codes = []
        self._news = asyncio.Event()

    def done(self, error, took_ms):
        asyncio.get_running_loop()
        assert took_ms >= 0
        self.codes.append(error.code if error else None)
        self._news.set()

    async def wait(self, count):
        async with asyncio.timeout(60):
            while len(self.codes) < count:
                await self._news.wait()
                self._news.clear()
        return self.codes


def submit(child, fd, outcomes):
    """Submit a sync as a group commit does."""
    assert child.is_there()
    child.submit(fd, outcomes.done)


async def test_syncs_are_reported_on_the_loop_in_order(child, files):
    """Each sync is reported once, with the system's error for that file."""
    file, pipe = files
    outcomes = Outcomes()
    for fd in (file, pipe, file):
        submit(child, fd, outcomes)
    assert await outcomes.wait(3) == [None, "log_poisoned", None]


async def test_it_is_started_when_it_is_needed(child, files):
    """And is one process from then on."""
    assert child.pid is None
    outcomes = Outcomes()
    submit(child, files[0], outcomes)
    await outcomes.wait(1)
    pid = child.pid
    submit(child, files[0], outcomes)
    await outcomes.wait(2)
    assert child.pid == pid


async def test_signals_for_the_broker_do_not_end_it(child, files):
    """Ctrl-C and a service manager reach all processes, and the last entry is not synced yet."""
    outcomes = Outcomes()
    submit(child, files[0], outcomes)
    await outcomes.wait(1)
    pid = child.pid
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        os.kill(pid, number)
    submit(child, files[0], outcomes)
    assert await outcomes.wait(2) == [None, None]
    assert child.pid == pid


async def test_what_a_killed_process_has_not_answered_has_failed(child, files):
    """The outcome on the disk is unknown; the next sync starts a process again."""
    outcomes = Outcomes()
    submit(child, files[0], outcomes)
    await outcomes.wait(1)
    pid = child.pid
    os.kill(pid, signal.SIGSTOP)
    submit(child, files[0], outcomes)
    submit(child, files[0], outcomes)
    os.kill(pid, signal.SIGKILL)
    assert await outcomes.wait(3) == [None, "unavailable", "unavailable"]
    submit(child, files[0], outcomes)
    assert await outcomes.wait(4) == [None, "unavailable", "unavailable", None]
    assert child.pid != pid


async def test_a_process_that_was_found_dead_is_replaced(child, files):
    """Whether its end is noticed before it is asked, or then."""
    outcomes = Outcomes()
    submit(child, files[0], outcomes)
    await outcomes.wait(1)
    os.kill(child.pid, signal.SIGKILL)
    async with asyncio.timeout(60):
        while child.pid is not None:  # noqa: ASYNC110  what is awaited is a callback of the loop
            await asyncio.sleep(0.001)
    submit(child, files[0], outcomes)
    assert await outcomes.wait(2) == [None, None]
    os.kill(child.pid, signal.SIGKILL)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # noqa: ASYNC222  the loop must not see
    submit(child, files[0], outcomes)
    assert await outcomes.wait(3) == [None, None, "unavailable"]
    submit(child, files[0], outcomes)
    assert await outcomes.wait(4) == [None, None, "unavailable", None]


async def test_a_process_that_cannot_be_started_is_not_there(child, files, monkeypatch, caplog):
    """It is said once, and tried again whenever it is wanted."""
    with monkeypatch.context() as patch:
        patch.setattr(sys, "executable", "/nowhere/python")
        assert not child.is_there()
        assert not child.is_there()
        assert child.pid is None
    assert len(caplog.messages) == 1
    assert "/nowhere/python" in caplog.messages[0]
    outcomes = Outcomes()
    submit(child, files[0], outcomes)
    assert await outcomes.wait(1) == [None]


async def test_closing_finishes_what_was_submitted(files):
    """And leaves no process behind."""
    child, outcomes = SyncProcess(asyncio.get_running_loop()), Outcomes()
    for _ in range(3):
        submit(child, files[0], outcomes)
    pid = child.pid
    child.close()
    assert await outcomes.wait(3) == [None, None, None]
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    child.close()


async def test_closing_behind_a_process_that_was_killed(files):
    """Waiting syncs are reported."""
    child, outcomes = SyncProcess(asyncio.get_running_loop()), Outcomes()
    submit(child, files[0], outcomes)
    os.kill(child.pid, signal.SIGSTOP)
    submit(child, files[0], outcomes)
    os.kill(child.pid, signal.SIGKILL)
    child.close()
    assert (await outcomes.wait(2))[-1] == "unavailable"


ABANDONS = """
    import asyncio, os, signal, sys
    from strandline.broker.write_path.sync_process import SyncProcess

    async def main():
        child = SyncProcess(asyncio.get_running_loop())
        synced = asyncio.get_running_loop().create_future()
        with open(sys.argv[1], "wb") as file:
            assert child.is_there()
            child.submit(file.fileno(), lambda error, _: synced.set_result(error))
            assert await synced is None
        print(child.pid, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)

    asyncio.run(main())
"""


def test_it_ends_with_the_broker(tmp_path):
    """However that ends."""
    words = [sys.executable, "-c", textwrap.dedent(ABANDONS), str(tmp_path / "file")]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == -signal.SIGKILL
    with contextlib.suppress(ProcessLookupError):  # it has ended already
        process = os.pidfd_open(int(done.stdout))
        watch = select.poll()  # `select.select` would not take the number if many files are open
        watch.register(process, select.POLLIN)
        assert watch.poll(60_000), "it goes on"
        os.close(process)
