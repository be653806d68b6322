"""The scrub reads everything, slowly, and reports each corruption once a round."""

import asyncio
import logging
from types import SimpleNamespace

import pytest

from strandline.broker.maintenance import scrubber as scrubber_module
from strandline.broker.maintenance.corruption import CorruptionReports
from strandline.broker.maintenance.scrubber import STEP_BYTES, Scrubber
from strandline.telemetry import Telemetry
from strandline.types import Offset

VALUE = b"x" * 10_000


@pytest.fixture
def telemetry():
    return Telemetry()


@pytest.fixture
def scrubber(partition, telemetry):
    """Of one partition, as fast as it can; its reports are taken at once."""
    reports = CorruptionReports(lambda function, *given: function(*given), telemetry=telemetry)
    partition.committed._corruption = reports
    return Scrubber(
        lambda: [partition], reports, telemetry=telemetry, interval_ms=10**9, bytes_per_s=1 << 40
    )


@pytest.fixture
async def stored(broker, partition, kit, answers):
    """Forty records of 10,000 bytes in several segments, on disk."""
    for number in range(40):
        kit.put(partition, answers, number, value=VALUE)
        await answers.wait(number + 1)
    await broker._checkpoints.checkpoint()
    assert len(partition.log.segments) > 3
    return partition


def flip(log, offset):
    found = log.read(offset, 1)
    with found.file.open("r+b") as file:
        file.seek(found.position + 100)
        file.write(b"?")


async def test_a_round_reads_every_byte(scrubber, stored, telemetry):
    """As many as the log has, and finds nothing in a log that is whole."""
    await scrubber.scrub()
    assert telemetry.scrubbed_bytes == stored.log.size_bytes
    assert telemetry.corrupt_batches == 0


async def test_corruption_is_said_once_a_round(scrubber, stored, telemetry, caplog):
    """Readers that meet it again say nothing new; the next round does."""
    for offset in (3, 30):
        flip(stored.log, offset)
    await scrubber.scrub()
    await scrubber.scrub()
    assert telemetry.corrupt_batches == 2
    assert [r.levelno for r in caplog.records if "corruption in s/0" in r.message] == [
        logging.ERROR
    ] * 2
    running = asyncio.create_task(scrubber.run())
    scrubber.hurry()
    try:
        async with asyncio.timeout(20):
            while telemetry.corrupt_batches < 4:  # noqa: ASYNC110 - a counter
                await asyncio.sleep(0.01)
    finally:
        running.cancel()


async def test_retention_may_be_quicker(scrubber, stored, telemetry, monkeypatch):
    """Records that go away in the middle of a round are not missed."""
    read = type(stored.log).read

    def slow(log, offset, bytes_max, **options):
        if offset == 0:
            log.delete_before(Offset(20))
        return read(log, offset, bytes_max, **options)

    monkeypatch.setattr(type(stored.log), "read", slow)
    await scrubber.scrub()
    assert stored.log.log_start_offset == 20
    assert telemetry.scrubbed_bytes >= 20 * len(VALUE)
    assert telemetry.corrupt_batches == 0


async def test_a_log_that_is_closed_ends_the_round(scrubber, stored, telemetry):
    """A deleted or reopened log is left to the next round."""
    stored.log.close()
    await scrubber.scrub()
    assert telemetry.scrubbed_bytes == 0


async def test_it_takes_its_time(partition, stored, telemetry, monkeypatch):
    """After each piece it waits as long as the piece may take at the rate that is set."""
    waits = []

    async def note(seconds):
        waits.append(seconds)

    beside = SimpleNamespace(to_thread=asyncio.to_thread, sleep=note)
    reports = CorruptionReports(lambda *_: None, telemetry=telemetry)
    scrubber = Scrubber(
        lambda: [partition], reports, telemetry=telemetry, interval_ms=1, bytes_per_s=1000
    )
    monkeypatch.setattr(scrubber_module, "asyncio", beside)  # its own: the broker sleeps as ever
    await scrubber.scrub()
    assert sum(waits) == pytest.approx(stored.log.size_bytes / 1000)
    assert max(waits) <= STEP_BYTES / 1000
