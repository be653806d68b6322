"""Reading back: one Python consumer over Arrow Flight, cached, cold, small records, single ones.

Run it from the root of the repository: `python -m benchmarks.read`. Beside it, in the same run: the
ceiling (a bare Flight server with the same batches in memory), a JetStream pull consumer, a Kafka
consumer, and `cat` of the same segment files for the cold read. Values are random bytes.
"""

from __future__ import annotations

import argparse
import functools
import subprocess
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Final

from benchmarks import broker as brokers
from benchmarks import cache, figures, machine, runner
from benchmarks.aims import Aim
from benchmarks.figures import Figure, Findings, find
from benchmarks.fill import Shape
from benchmarks.passes import CPU_TEXT, Samples, timed
from benchmarks.peers.process import UnavailableError, fresh_dir
from benchmarks.peers.system import Place
from benchmarks.report import table
from benchmarks.sources import (
    LABEL,
    VALUES_ONLY,
    Pass,
    Source,
    ValuesOnly,
    jetstream,
    kafka,
    open_bare_flight,
    open_jetstream_source,
    open_kafka_source,
    open_strandline_source,
)
from benchmarks.sources.source import GIB, MIB
from benchmarks.sources.strandline import fill, read_stream
from benchmarks.warmup import Preparation

WIDE_BYTES: Final = 2048
SMALL_BYTES: Final = 100
WIDE, COLD, SMALL, ONES = (
    "2 KiB records, cached",
    "2 KiB records, cold",
    "100 B records",
    "100 B records, one per batch",
)
CASES: Final = {"wide": WIDE, "cold": COLD, "small": SMALL, "ones": ONES}
CAT: Final = "cat SEGMENTS > /dev/null"
PEERS: Final[dict[str, Callable[[Place, Shape], AbstractContextManager[Source]]]] = {
    "jetstream": open_jetstream_source,
    "kafka": open_kafka_source,
}
PEER_LABELS: Final = (jetstream.LABEL, kafka.LABEL)
OURS_S_MAX: Final = 60.0
INTRO = (
    "One Python consumer reads one partition from the beginning, once per run; median of {runs} "
    "runs after one that is not counted. Systems take turns; peers are cut after {peer_seconds:g} "
    "s. GiB/s count bytes of values; cold, bytes of segment files. All columns are read unless a "
    "row says otherwise. Cold: a broker just started (one record read, to connect), its segments "
    "dropped from the page cache (checked with mincore), then read once; `cat` likewise. How safe "
    "an ack was does not matter to a read, so peers were filled without syncs."
)
EPILOG = """\
examples:
  python -m benchmarks.read --mib 256 --small 2000000 --ones 20000 --runs 3 --peer-seconds 3
  python -m benchmarks.read --cases cold --peers ''
"""


def parse_args() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.read",
        description=__doc__,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--cases", default=",".join(CASES), help=f"comma-separated, of: {', '.join(CASES)}")
    add("--peers", default=",".join(PEERS), help="comma-separated; '' for none")
    add("--runs", type=int, default=5, help="runs of each case; medians are reported (5)")
    add("--mib", type=int, default=1024, help="MiB of 2 KiB records (1024)")
    add("--small", type=int, default=10_000_000, help="records of 100 B (10000000)")
    add("--ones", type=int, default=100_000, help="records stored one per batch (100000)")
    add("--peer-seconds", type=float, default=5.0, help="a peer's pass is cut after this (5)")
    add("--peer-records", type=int, default=200_000, help="records a peer is filled with (200000)")
    runner.add_place_options(parser)
    args = parser.parse_args()
    unknown = [name for name in split(args.cases) if name not in CASES]
    unknown += [name for name in split(args.peers) if name not in PEERS]
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}")
    return args


def split(names: str) -> list[str]:
    """The words of a comma-separated list."""
    return [name.strip() for name in names.split(",") if name.strip()]


def open_source(
    stack: ExitStack, samples: Samples, opened: AbstractContextManager[Source], name: str
) -> list[Source]:
    """The source, filled, after one pass that is not counted; none if it cannot be had here."""
    print(f"  starting and filling {name}", flush=True)
    try:
        source = stack.enter_context(opened)
        source.read(OURS_S_MAX / 10)
    except UnavailableError as error:
        samples.unavailable[name] = str(error)
        return []
    except (*runner.FAILURES, subprocess.SubprocessError) as error:
        samples.unavailable[name] = f"{type(error).__name__}: {error}"
        return []
    samples.versions[source.label] = source.version
    return [source]


def open_sources(
    stack: ExitStack, case: str, shape: Shape, args: argparse.Namespace, samples: Samples
) -> list[Source]:
    """Strandline first, then what it is compared with, all filled and read once."""
    place = Place(args.data_root)
    print(f"{case}: filling Strandline with {shape.records:,} records", flush=True)
    ours = stack.enter_context(open_strandline_source(place, shape, one_by_one=case == ONES))
    ours.read(OURS_S_MAX)
    samples.versions[ours.label] = ours.version
    sources: list[Source] = [ours, ValuesOnly(ours)]
    if case != ONES:
        sources += open_source(stack, samples, open_bare_flight(place, ours), "bare Flight")
        few = Shape(min(shape.records, args.peer_records), shape.value_bytes)
        for name in split(args.peers):
            sources += open_source(stack, samples, PEERS[name](place, few), name)
    return sources


def measure(case: str, shape: Shape, args: argparse.Namespace, samples: Samples) -> None:
    """All runs of one case that reads what is cached."""
    preparation = runner.preparation_of(args)
    with ExitStack() as stack:
        sources = open_sources(stack, case, shape, args, samples)
        total = sources[0].records
        for run in range(args.runs):
            shift = run % len(sources)
            for source in sources[shift:] + sources[:shift]:
                is_ours = source.label in (LABEL, VALUES_ONLY)
                cut_s = OURS_S_MAX if is_ours else args.peer_seconds
                one_pass = functools.partial(source.read, cut_s)
                done = timed(case, source.label, one_pass, pid=source.pid, preparation=preparation)
                if is_ours and done.records != total:
                    raise RuntimeError(f"read {done.records} records of {total}")
                samples.add_pass(case, source.label, done, by_bytes=case == WIDE)


def read_cold(folder: Path, total: int, preparation: Preparation) -> tuple[float, Pass]:
    """GiB/s of segment files, read by one consumer of a restarted broker, and the pass itself."""
    with brokers.running(folder) as broker, broker.connect() as client:
        read_stream(client, seconds_max=OURS_S_MAX, start=total - 1)  # sets up the connection
        segments = broker.log_segments()
        preparation.run(cache.size_bytes(segments) // MIB)  # the page cache will need as much
        cache.evict(segments)
        whole = functools.partial(read_stream, client, seconds_max=OURS_S_MAX)
        done = timed(COLD, LABEL, whole, pid=broker.pid)
        if done.records != total:
            raise RuntimeError(f"read {done.records} records of {total}")
        return cache.size_bytes(segments) / GIB / done.seconds, done


def cat_cold(folder: Path, preparation: Preparation) -> float:
    """GiB/s of the same files, read by `cat`, with no broker that could have them mapped."""
    segments = brokers.segments_of(folder)
    preparation.run(cache.size_bytes(segments) // MIB)
    cache.evict(segments)
    rate = cache.size_bytes(segments) / GIB / cache.cat_seconds(segments)
    print(f"  {COLD:<28} {CAT:<40} {rate:6.2f} GiB/s", flush=True)
    return rate


def measure_cold(shape: Shape, args: argparse.Namespace, samples: Samples) -> None:
    """Reads with nothing cached; in every other run `cat` goes first."""
    preparation = runner.preparation_of(args)
    with fresh_dir(args.data_root, "strandline") as folder:
        print(f"{COLD}: filling Strandline with {shape.records:,} records", flush=True)
        with brokers.running(folder) as broker, broker.connect() as client:
            total = fill(broker, client, shape, one_by_one=False)
        for run in range(args.runs):
            if run % 2:
                samples.add(COLD, CAT, "GiB/s", cat_cold(folder, preparation))
            rate, done = read_cold(folder, total, preparation)
            samples.add(COLD, LABEL, "GiB/s", rate)
            samples.add_cpu(COLD, LABEL, done)
            if not run % 2:
                samples.add(COLD, CAT, "GiB/s", cat_cold(folder, preparation))


def aims(found: Sequence[Figure], cases: Sequence[str]) -> list[Aim]:
    """Return the target rates of reading; for peers the best of them."""

    def median(case: str, system: str = LABEL) -> float | None:
        figure = find(found, case, system)
        return figure.median if figure else None

    def over(case: str, systems: Sequence[str]) -> float | None:
        mine, others = median(case), [m for m in (median(case, s) for s in systems) if m]
        return mine / max(others) if mine and others else None

    listed = []
    if "wide" in cases:
        listed.append(Aim(WIDE, 1.5, median(WIDE), "GiB/s"))
        listed.append(Aim(f"{WIDE} ÷ best peer client", 5, over(WIDE, PEER_LABELS), "x"))
    if "cold" in cases:
        listed.append(Aim(f"{COLD} ÷ cat", 0.9, over(COLD, [CAT]), "x"))
    if "small" in cases:
        listed.append(Aim(f"{SMALL} into Arrow", 10e6, median(SMALL), "records/s"))
        listed.append(Aim(f"{SMALL} ÷ best peer client", 10, over(SMALL, PEER_LABELS), "x"))
    if "ones" in cases:
        listed.append(Aim(ONES, 300e3, median(ONES), "records/s"))
    return listed


def main() -> None:
    """Runs the benchmark."""
    args = parse_args()
    cases, samples = split(args.cases), Samples()
    host = machine.describe(args.data_root, WIDE_BYTES)
    wide = Shape(args.mib * MIB // WIDE_BYTES, WIDE_BYTES)
    if "wide" in cases:
        measure(WIDE, wide, args, samples)
    if "cold" in cases:
        measure_cold(wide, args, samples)
    if "small" in cases:
        measure(SMALL, Shape(args.small, SMALL_BYTES), args, samples)
    if "ones" in cases:
        measure(ONES, Shape(args.ones, SMALL_BYTES), args, samples)
    found = samples.figures()
    ratios = table(["case", "ratio of medians", ""], figures.ratio_rows(found, LABEL))
    settings = {
        "2 KiB records": wide.records,
        "100 B records": args.small,
        "records stored one per batch": args.ones,
        "records in a peer, at most": args.peer_records,
        "client.read()": "batch_bytes 1 MiB (default), one partition, over loopback",
        "nats-py": "pull_subscribe, fetch(1000), no acks",
        "confluent-kafka": "consume(10000), queued.max.messages.kbytes 256 MiB",
    }
    findings = Findings(
        name="read",
        title="Reading back",
        intro=INTRO.format(**vars(args)),
        machine=host,
        settings=settings,
        figures=found,
        aims=aims(found, cases),
        module="benchmarks.read",
        versions=samples.versions,
        unavailable=samples.unavailable,
        sections=["## Ratios", ratios, "## CPU", CPU_TEXT, samples.cpu_table()],
    )
    figures.publish(findings, args.results, args.label)


if __name__ == "__main__":
    main()
