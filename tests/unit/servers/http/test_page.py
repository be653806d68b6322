"""Numbers and pages as text."""

import pytest

from strandline.config import StreamConfig
from strandline.servers.http.page import Overview, duration, overview_page, size, sparkline
from strandline.servers.http.rates import Rates
from strandline.servers.http.view import PartitionSnapshot, StreamSnapshot
from strandline.telemetry import Telemetry


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0 B"), (1023, "1,023 B"), (1536, "1.5 KiB"), (5 << 30, "5.0 GiB"), (3 << 40, "3.0 TiB")],
)
def test_sizes_use_binary_units(value, text):
    """Bytes are shown in the largest unit that leaves a figure of at least one."""
    assert size(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (59.9, "59 s"), (61, "1 min 1 s"), (3600, "1 h"), (90_061, "1 d 1 h")],
)
def test_durations_use_two_units(seconds, text):
    """A duration is shown by its two largest units."""
    assert duration(seconds) == text


def test_a_sparkline_spans_its_box():
    """The largest value touches the top, zero the bottom, and time runs left to right."""
    assert 'points="0.00,29.00 50.00,1.00 100.00,15.00"' in sparkline([0, 10, 5])
    assert "not enough samples" in sparkline([1])


def test_many_streams_are_cut_and_counted():
    """The first page stays small with many streams and says how many it left out."""
    streams = [
        StreamSnapshot(
            config=StreamConfig(name=f"s{number:04}", subject=f"s.{number}"),
            created_ns=0,
            partitions=[
                PartitionSnapshot(
                    partition=0, log_start_offset=0, high_watermark=0, log_end_offset=0
                )
            ],
        )
        for number in range(1200)
    ]
    page = overview_page(
        Overview(
            streams=streams,
            rates=Rates(),
            history=[],
            telemetry=Telemetry(),
            data_dir="d",
            why_not_ready="",
            up_s=0,
        )
    )
    assert "and 700 more" in page
    assert len(page) < 300_000
