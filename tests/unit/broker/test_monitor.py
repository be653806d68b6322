"""A broker's samples of its own load."""

import sys
from collections import Counter
from types import SimpleNamespace

from strandline.broker import monitor
from strandline.broker.monitor import HISTORY_SAMPLES_MAX, BrokerMonitor, resident_bytes
from strandline.clock import ManualClock
from strandline.core.metadata.image import MetadataImage
from strandline.telemetry import Telemetry


def monitored():
    """A broker made of plain values."""
    return SimpleNamespace(
        telemetry=Telemetry(),
        clock=ManualClock(),
        admission=SimpleNamespace(pending_bytes=7, rejects=Counter()),
        image=MetadataImage(),
        controller=None,
    )


def test_the_history_is_of_intervals():
    """Rates are those between two samples, not since the start; gauges are the newest values."""
    broker = monitored()
    monitor = BrokerMonitor(broker)
    assert monitor.history() == []
    monitor.sample(is_of_history=True)
    assert monitor.history() == []
    for records in (1000, 500):
        broker.telemetry.records_appended += records
        broker.telemetry.bytes_appended += records * 10
        broker.telemetry.sync_seconds.observe(0.004)
        broker.telemetry.replica_lag_records["2"] = records
        broker.clock.advance_ms(10_000)
        monitor.sample(is_of_history=True)
    first, second = monitor.history()
    assert (first.records_per_s, second.records_per_s) == (100.0, 50.0)
    assert (first.bytes_per_s, second.syncs_per_s) == (1000.0, 0.1)
    assert round(second.sync_ms, 6) == 4.0
    assert (second.lag_records, second.pending_bytes) == (500, 7)
    assert monitor.up_s == 20.0


def test_the_history_is_one_hour_and_small():
    """However long the broker runs; an hour of samples takes less than a quarter of a MiB."""
    broker = monitored()
    monitor = BrokerMonitor(broker)
    for _ in range(2 * HISTORY_SAMPLES_MAX):
        broker.clock.advance_ms(10_000)
        monitor.sample(is_of_history=True)
    assert len(monitor.history()) == HISTORY_SAMPLES_MAX - 1
    held = sum(
        sys.getsizeof(counters) + sum(map(sys.getsizeof, counters)) for counters in monitor._history
    )
    assert held < 256 << 10


def test_the_resident_memory_is_known():
    """This process has more than a MiB and less than a TiB."""
    assert 1 << 20 < resident_bytes() < 1 << 40


def test_memory_is_that_of_this_process(monkeypatch, tmp_path):
    """In bytes; 0 where the system does not say."""
    file = tmp_path / "statm"
    monkeypatch.setattr(monitor, "MEMORY_FILE", file)
    assert monitor.resident_bytes() == 0
    file.write_text("500 20 3 1 0 9 0\n")
    assert monitor.resident_bytes() == 20 * 4096
