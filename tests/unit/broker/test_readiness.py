"""When a broker alone is ready, and the figures that are brought up to date for a scrape."""

import resource

import pytest


async def test_a_broker_that_works_is_ready(broker, partition, kit, answers):
    """There is no reason against it, and the gauges have the present values."""
    kit.put(partition, answers, "a", "b")
    await answers.wait(2)
    assert broker.why_not_ready == ""
    broker.refresh_telemetry()
    shown = broker.telemetry
    assert (shown.ready, shown.streams, shown.partitions) == (1, 1, 1)
    assert shown.journal_bytes > 0
    assert shown.commit_bytes.count == shown.commit_records.count >= 1
    assert shown.commit_bytes.total == shown.bytes_appended


@pytest.mark.parametrize(
    ("figure", "reason"), [("journal_poisoned", "storage failed"), ("disk_full", "disk is full")]
)
async def test_what_is_in_the_way_is_named(broker, figure, reason):
    """Failed storage and a full disk."""
    setattr(broker.telemetry, figure, 1)
    assert reason in broker.why_not_ready
    broker.refresh_telemetry()
    assert broker.telemetry.ready == 0


async def test_a_broker_that_may_open_hardly_any_more_files_is_not_ready(broker, monkeypatch):
    """Connections and segments would fail; the reason names the limit."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    room = broker.disk.descriptors_left()
    monkeypatch.setattr(resource, "getrlimit", lambda _: (limits[0] - room + 20, limits[1]))
    assert "ulimit -n" in broker.why_not_ready


async def test_a_broker_that_stops_is_not_ready(broker):
    """Clients should not be sent to it any longer."""
    await broker.stop()
    assert "stopping" in broker.why_not_ready
