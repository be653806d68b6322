"""Reads of a log for a backup: what is committed, of the log that was asked for."""

from types import SimpleNamespace

import pytest

from strandline.api.backup import ReadLogRequest
from strandline.errors import CorruptBatchError, UnknownStreamError
from strandline.servers.flight import backup


class Log:
    """A log of offsets 5 to 19 that notes what was read."""

    log_start_offset, log_end_offset = 5, 20

    def __init__(self, error=None):
        self.reads = []
        self._error = error

    def read_dense(self, start, bytes_max, *, below):
        self.reads.append((start, bytes_max, below))
        if self._error is not None:
            raise self._error
        return SimpleNamespace(buffer=b"batches")


@pytest.fixture
def ask(monkeypatch):
    """Ask for a piece of a log, and return the answer."""
    monkeypatch.setattr(backup, "know_end", lambda *_, led: None)

    def ask(log, *, reported=None, **request):
        partition = SimpleNamespace(
            name="orders/0",
            log=log,
            log_id=7,
            high_watermark=15,
            committed=SimpleNamespace(report_corruption=(reported or []).append),
        )
        stream = SimpleNamespace(partition=lambda _: partition)
        broker = SimpleNamespace(check_metadata=lambda: None, stream=lambda _: stream)
        given = {"stream": "orders", "partition": 0, "log_id": 7, "bytes_max": 100} | request
        [found] = backup._read_log(SimpleNamespace(broker=broker), ReadLogRequest(**given))
        return found

    return ask


@pytest.mark.parametrize(
    ("offset", "bytes_max", "reads"),
    [
        (0, 100, [(5, 100, 15)]),
        (5, 100, [(5, 100, 15)]),
        (14, 100, [(14, 100, 15)]),
        (15, 100, []),
        (19, 100, []),
        (6, 0, []),
    ],
)
def test_only_what_is_committed_is_read(ask, offset, bytes_max, reads):
    """From the start of the log on; nothing at its end, or if only the offsets are wanted."""
    log = Log()
    found = ask(log, offset=offset, bytes_max=bytes_max)
    assert log.reads == reads
    assert found.batches == (b"batches" if reads else b"")
    assert (found.log_start_offset, found.high_watermark, found.log_end_offset) == (5, 15, 20)


def test_corruption_is_reported_and_ends_the_read(ask):
    """So that the replica repairs it, and the backup asks another one."""
    error, reported = CorruptBatchError("flipped bits"), [None]
    with pytest.raises(CorruptBatchError, match="flipped bits"):
        ask(Log(error), reported=reported, offset=6)
    assert reported == [None, error]


def test_the_log_of_a_stream_made_anew_is_another_one(ask):
    """Its records are not those that the backup began with."""
    with pytest.raises(UnknownStreamError, match="deleted and created again"):
        ask(Log(), offset=6, log_id=6)
