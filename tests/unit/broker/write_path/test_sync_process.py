"""The process that syncs: answers in order on the loop, survives what it must, ends with us."""

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


class Told:
    """What was told of each sync, in order."""

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


def submit(child, fd, told):
    """As a turn does."""
    assert child.is_there()
    child.submit(fd, told.done)


async def test_syncs_are_reported_on_the_loop_in_order(child, files):
    """Each sync is answered once, with what the system said of just that file."""
    file, pipe = files
    told = Told()
    for fd in (file, pipe, file):
        submit(child, fd, told)
    assert await told.wait(3) == [None, "log_poisoned", None]


async def test_it_is_started_when_it_is_needed(child, files):
    """And is one process from then on."""
    assert child.pid is None
    told = Told()
    submit(child, files[0], told)
    await told.wait(1)
    pid = child.pid
    submit(child, files[0], told)
    await told.wait(2)
    assert child.pid == pid


async def test_signals_for_the_broker_do_not_end_it(child, files):
    """Ctrl-C and a service manager reach all processes, and the last turn is still to be synced."""
    told = Told()
    submit(child, files[0], told)
    await told.wait(1)
    pid = child.pid
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        os.kill(pid, number)
    submit(child, files[0], told)
    assert await told.wait(2) == [None, None]
    assert child.pid == pid


async def test_what_a_killed_process_has_not_answered_has_failed(child, files):
    """Nobody knows what the disk has said; the next sync has a process again."""
    told = Told()
    submit(child, files[0], told)
    await told.wait(1)
    pid = child.pid
    os.kill(pid, signal.SIGSTOP)
    submit(child, files[0], told)
    submit(child, files[0], told)
    os.kill(pid, signal.SIGKILL)
    assert await told.wait(3) == [None, "unavailable", "unavailable"]
    submit(child, files[0], told)
    assert await told.wait(4) == [None, "unavailable", "unavailable", None]
    assert child.pid != pid


async def test_a_process_that_was_found_dead_is_replaced(child, files):
    """Whether its end is noticed before it is asked, or then."""
    told = Told()
    submit(child, files[0], told)
    await told.wait(1)
    os.kill(child.pid, signal.SIGKILL)
    async with asyncio.timeout(60):
        while child.pid is not None:  # noqa: ASYNC110  what is awaited is a callback of the loop
            await asyncio.sleep(0.001)
    submit(child, files[0], told)
    assert await told.wait(2) == [None, None]
    os.kill(child.pid, signal.SIGKILL)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # noqa: ASYNC222  the loop must not see
    submit(child, files[0], told)
    assert await told.wait(3) == [None, None, "unavailable"]
    submit(child, files[0], told)
    assert await told.wait(4) == [None, None, "unavailable", None]


async def test_a_process_that_cannot_be_started_is_not_there(child, files, monkeypatch, caplog):
    """It is said once, and tried again whenever it is wanted."""
    with monkeypatch.context() as patch:
        patch.setattr(sys, "executable", "/nowhere/python")
        assert not child.is_there()
        assert not child.is_there()
        assert child.pid is None
    assert len(caplog.messages) == 1
    assert "/nowhere/python" in caplog.messages[0]
    told = Told()
    submit(child, files[0], told)
    assert await told.wait(1) == [None]


async def test_closing_finishes_what_was_submitted(files):
    """And leaves no process behind."""
    child, told = SyncProcess(asyncio.get_running_loop()), Told()
    for _ in range(3):
        submit(child, files[0], told)
    pid = child.pid
    child.close()
    assert await told.wait(3) == [None, None, None]
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    child.close()


async def test_closing_behind_a_process_that_was_killed(files):
    """Who still waits is told."""
    child, told = SyncProcess(asyncio.get_running_loop()), Told()
    submit(child, files[0], told)
    os.kill(child.pid, signal.SIGSTOP)
    submit(child, files[0], told)
    os.kill(child.pid, signal.SIGKILL)
    child.close()
    assert (await told.wait(2))[-1] == "unavailable"


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
