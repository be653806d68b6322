"""Metrics: declared once, cheap to count, complete when scraped."""

import threading

from prometheus_client.parser import text_string_to_metric_families

from strandline.telemetry import (
    METRICS,
    GroupSample,
    Histogram,
    PartitionSample,
    Telemetry,
    metric_names,
)


def families(telemetry):
    return {
        family.name: family
        for family in text_string_to_metric_families(telemetry.render().decode())
    }


def test_a_scrape_carries_every_declared_metric():
    """Each declared metric is in the text, also before anything was counted."""
    shown = families(Telemetry())
    for name in metric_names():
        assert name.removesuffix("_total") in shown, name


def test_every_metric_has_a_sentence_of_help():
    """Help texts are sentences."""
    for field in METRICS:
        assert field.metadata["help"].endswith("."), field.name


def test_two_brokers_do_not_mix_their_figures():
    """Each instance renders its own figures."""
    first, second = Telemetry(), Telemetry()
    first.group_commits += 3
    assert families(first)["strandline_group_commits"].samples[0].value == 3
    assert families(second)["strandline_group_commits"].samples[0].value == 0


def test_labelled_counters_grow_by_label():
    """Rejections are counted by error code."""
    telemetry = Telemetry()
    telemetry.rejects["disk_full"] += 2
    telemetry.rejects["record_too_large"] += 1
    samples = families(telemetry)["strandline_rejects"].samples
    assert {sample.labels["code"]: sample.value for sample in samples} == {
        "disk_full": 2,
        "record_too_large": 1,
    }


def test_histogram_buckets_include_their_upper_bound():
    """A value equal to a bound counts below it, as Prometheus defines `le`."""
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 2.0, 99.0):
        histogram.observe(value)
    assert list(histogram.cumulative()) == [("1.0", 2), ("2.0", 4), ("+Inf", 5)]
    assert histogram.count == 5
    assert histogram.total == 104.0


def test_partition_offsets_are_asked_for_at_each_scrape():
    """Offsets are read when scraped, not counted."""
    telemetry = Telemetry()
    telemetry.partition_samples = lambda: [PartitionSample("orders", 3, 5, 8, 9)]
    shown = families(telemetry)
    sample = shown["strandline_partition_high_watermark"].samples[0]
    assert sample.labels == {"stream": "orders", "partition": "3"}
    assert sample.value == 8


def test_groups_show_their_positions_and_what_is_before_them():
    """Unknown values of a partition are left out."""
    telemetry = Telemetry()
    telemetry.group_samples = lambda: [
        GroupSample("billing", "orders", 0, 6, 2, 1.5),
        GroupSample("billing", "remote_error", 0, 5),
    ]
    shown = families(telemetry)

    def values(name):
        return [
            (*(sample.labels[n] for n in ("group", "stream", "partition")), sample.value)
            for sample in shown[f"strandline_group_{name}"].samples
        ]

    assert values("position") == [
        ("billing", "orders", "0", 6),
        ("billing", "remote_error", "0", 5),
    ]
    assert values("lag_records") == [("billing", "orders", "0", 2)]
    assert values("oldest_unread_seconds") == [("billing", "orders", "0", 1.5)]


def test_reads_are_counted_from_many_threads():
    """Readers on several threads lose no count."""
    telemetry = Telemetry()

    def read():
        for _ in range(10_000):
            telemetry.count_read(records=2, size_bytes=10)
            telemetry.count_listener("flight", connections=1, messages=3)

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert telemetry.reads == 40_000
    assert telemetry.read_records == 80_000
    assert telemetry.read_bytes == 400_000
    assert telemetry.connections["flight"] == 40_000
    assert telemetry.messages_received["flight"] == 120_000
