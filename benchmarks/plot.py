"""Draws Beam's curve: appends/s over the number of connections, beside the 2018 Kafka curve.

`python -m benchmarks.plot` draws the newest results again. If they lack the disk's limit, it is
measured then.

The 2018 figures are read off the plots that eBay published with Beam (later Akutan): Kafka 1.0.1,
`flush.messages=1`, 1 replica, 128 appenders of 2 KiB, 4-vCPU VMs with local SSD. Another machine
and another year: they show the shape, not a rate to compare.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from benchmarks import report
from benchmarks.loadgen.build import BUILD_DIR
from benchmarks.machine import Machine, SyncCost, machine_of, measure_sync
from benchmarks.peers.system import Ack, System
from benchmarks.runner import Summary

PICTURE: Final = Path(__file__).parents[1] / "docs" / "img" / "beam-curve.png"
APPENDERS: Final = 128
RECORD_BYTES: Final = 2048
TRIES: Final = 10

KAFKA_2018: Final = {
    1: 7450,
    2: 4550,
    4: 2400,
    8: 1250,
    16: 610,
    32: 320,
    64: 160,
    128: 160,
}
LEGEND_SHARE: Final = 0.16
COLORS: Final = {
    "strandline": "#0b6e99",
    "strandline-nats": "#44a5c2",
    "strandline-memory": "#0b6e99",
    "strandline-nats-memory": "#44a5c2",
    "jetstream": "#2ca02c",
    "redis": "#d62728",
    "kafka": "#333333",
}


def disk_limit(machine: Machine) -> float | None:
    """Appends a second if the disk writes and syncs the records of all appenders at once."""
    if machine.group_sync is None:
        return None
    return _limit(machine.group_sync, machine.group_sync.size_bytes / machine.sync.size_bytes)


def _limit(sync: SyncCost, records: float) -> float:
    return records / (sync.overwrite_p50_us / 1e6)


def draw_curve(
    systems: Sequence[System],
    summaries: Sequence[Summary],
    path: Path,
    limit: float | None = None,
) -> bool:
    """Writes the PNG; returns False, and writes nothing, if matplotlib is not installed."""
    try:
        import matplotlib as mpl
    except ImportError:
        return False
    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(9, 6.4), dpi=150)
    for system in systems:
        rows = sorted((s for s in summaries if s.system == system.name), key=lambda s: s.x)
        if not rows:
            continue
        xs = [row.x for row in rows]
        style = "-" if system.ack is Ack.DISK else "--" if system.ack is Ack.MEMORY else ":"
        (line,) = axes.plot(
            xs,
            [row.median_per_s for row in rows],
            style,
            marker="o",
            markersize=4,
            color=COLORS.get(system.name),
            label=f"{system.label} [{system.ack.value[0]}]",
        )
        low, high = [row.min_per_s for row in rows], [row.max_per_s for row in rows]
        axes.fill_between(xs, low, high, color=line.get_color(), alpha=0.15, linewidth=0)
    label = "Kafka 1.0.1, flush.messages=1, as published by Beam in 2018 (other machine)"
    years = list(KAFKA_2018.values())
    axes.plot(list(KAFKA_2018), years, ":", marker="x", color="#999999", label=label)
    if limit is not None:
        label = "the disk's limit: 128 records in one write and fdatasync"
        axes.axhline(limit, linestyle="-.", linewidth=1.2, color="#b8860b", label=label)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(list(KAFKA_2018), [str(x) for x in KAFKA_2018])
    axes.set_xlabel("connections (128 appenders of 2 KiB in all, each waits for its ack)")
    axes.set_ylabel("appends per second (median, band: min to max)")
    axes.grid(visible=True, which="both", alpha=0.25)
    figure.legend(*axes.get_legend_handles_labels(), fontsize=8, loc="lower center", ncols=2)
    axes.set_title("Beam's curve: what connections cost a durable log", fontsize=11)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.tight_layout(rect=(0, LEGEND_SHARE, 1, 1))
    figure.savefig(path)
    plt.close(figure)
    return True


def main() -> None:
    """Draw the newest curve beside the peers."""
    values = json.loads(report.newest("curve-peers").read_text())
    found = report.read(values)
    limit = disk_limit(machine_of(values["machine"]))
    if limit is None:
        # Others may use the disk: the best of several tries is nearest to what it can do.
        tries = [measure_sync(BUILD_DIR, APPENDERS * RECORD_BYTES) for _ in range(TRIES)]
        limit = max(_limit(each, APPENDERS) for each in tries)
        print(f"the disk's limit now: {limit:,.0f} appends a second")
    draw_curve(found.systems, found.summaries, PICTURE, limit)
    print(f"written: {PICTURE.name}")


if __name__ == "__main__":
    main()
