"""Runs every benchmark, briefly unless told otherwise, and sums up: what was promised, what came.

`make bench`, or `python -m benchmarks.run_all` in the root of the repository. Brief runs take a few
minutes, leave out what is slow to start (Kafka) and say `brief` in the names of their results;
`--full` is the real thing and takes an hour or two. A missed aim is a figure, not a failure; the
exit code is 1 only when a benchmark breaks.

Uses the standard library only, so that it also runs as a script.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[1]
STOP_TIMEOUT_S: Final = 60.0
RESULTS: Final = ROOT / "benchmarks" / "results"


@dataclass(frozen=True)
class Job:
    """One benchmark: its module, the name of its results, and its arguments."""

    module: str
    name: str
    brief: str
    full: str = ""

    def words(self, args: argparse.Namespace) -> list[str]:
        """The command."""
        words = [sys.executable, "-m", f"benchmarks.{self.module}"]
        words += (self.full if args.full else self.brief).split()
        words += ["--results", str(args.results)]
        return words if args.full else [*words, "--label", "brief"]


SHORT: Final = "--warm-mib 256 --settle-s 1"
FEW: Final = f"--runs 1 --seconds 2 {SHORT}"
JOBS: Final = (
    Job(
        "curve",
        "curve",
        "--systems strandline,strandline-nats,strandline-memory,jetstream,redis "
        f"--connections 1,16,128 {FEW} --no-syncs --no-plot",
    ),
    Job(
        "partitions",
        "partitions",
        f"--systems strandline --partitions 1,1000 {FEW} --no-syncs",
    ),
    Job("lone", "lone", f"--systems strandline,strandline-nats,jetstream {FEW}"),
    Job(
        "read",
        "read",
        "--mib 256 --small 2000000 --ones 10000 --runs 3 --peers jetstream --peer-seconds 2 "
        f"--peer-records 50000 {SHORT}",
    ),
    Job(
        "spark_read",
        "spark-read",
        f"--mib 128 --small 1000000 --runs 1 {SHORT}",
    ),
    Job(
        "spark_stream",
        "spark-stream",
        f"--mib 128 --batch-mib 64 --small 1000000 --runs 1 {SHORT}",
    ),
    Job("spark_copy", "spark-copy", f"--mib 64 --small 500000 --runs 1 {SHORT}"),
    Job("spark_trigger", "spark-trigger", f"--batches 20 --runs 1 {SHORT}"),
    Job("spark_load", "spark-load", f"--mib 128 --small 1000000 --runs 1 {SHORT}"),
    Job("changelog", "changelog", f"--keys 1000000 --runs 1 {SHORT}"),
    Job("memory", "memory", "--records 1000000"),
    Job("memory", "memory-ingest", "--records 200000 --via ingest", "--via ingest"),
    Job("overhead", "overhead", "--ones 3000 --full 200000"),
    Job("subjects", "subjects", "--records 1000000 --runs 1"),
    Job("recovery", "recovery", f"--gib 0.5 --runs 1 --load-seconds 1 {SHORT}"),
    Job("beam", "beam", FEW),
    Job("liftbridge", "liftbridge", f"--records 200000 --runs 1 {SHORT}"),
    Job("idle", "idle", f"--seconds 5 {SHORT}"),
    Job("rebalance", "rebalance", f"--rounds 2 {SHORT}"),
    Job("many", "many", f"--partitions 100 --kills 2 --seconds 5 {SHORT}"),
)


@dataclass(frozen=True)
class Outcome:
    """The outcome of one benchmark."""

    job: Job
    seconds: float
    exit_code: int
    aims: list[dict[str, Any]]


def parse_args() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.run_all",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    names = ", ".join(dict.fromkeys(job.name for job in JOBS))
    add = parser.add_argument
    add("--full", action="store_true", help="full sizes and five runs of everything: hours")
    add("--only", default="", help=f"comma-separated, of: {names}")
    add("--results", type=Path, default=RESULTS, help="where the dated results go")
    args = parser.parse_args()
    args.only = [name.strip() for name in args.only.split(",") if name.strip()]
    unknown = [name for name in args.only if name not in {job.name for job in JOBS}]
    if unknown:
        parser.error(f"unknown benchmark {', '.join(unknown)}; there are: {names}")
    return args


def newest_result(folder: Path, name: str, since: float) -> dict[str, Any] | None:
    """The result of this name that was written since then."""
    for path in folder.glob(f"*-{name}*.json"):
        if path.stat().st_mtime >= since:
            values: dict[str, Any] = json.loads(path.read_text())
            if values.get("name") == name:
                return values
    return None


def call(words: list[str]) -> int:
    """Runs a command to its end; if we are interrupted, so is it, and we wait until it is gone."""
    process = subprocess.Popen(words, cwd=ROOT)
    try:
        return process.wait()
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired, KeyboardInterrupt):
                process.wait(STOP_TIMEOUT_S)
            process.kill()


def run(job: Job, args: argparse.Namespace) -> Outcome:
    """Runs one benchmark; its output goes where ours goes."""
    print(f"\n=== {job.name} ===", flush=True)
    began, started = time.time() - 1, time.perf_counter()
    code = call(job.words(args))
    seconds = time.perf_counter() - started
    result = newest_result(args.results, job.name, began) if code == 0 else None
    if code == 0 and result is None:
        print(f"{job.name} wrote no result", file=sys.stderr)
        code = 1
    return Outcome(job, seconds, code, result["aims"] if result else [])


def figure(value: float | None, unit: str) -> str:
    """A figure as a person reads it."""
    if value is None:
        return "-"
    return f"{value:,.0f} {unit}" if abs(value) >= 1000 else f"{value:.3g} {unit}"


def aim_cells(name: str, aim: dict[str, Any]) -> tuple[str, ...]:
    """One row of the summary."""
    sign = "<=" if aim["at_most"] else ">="
    verdict = {True: "met", False: "MISSED", None: "not measured"}[aim["is_met"]]
    ratio = "-" if aim["ratio"] is None else f"{aim['ratio']:.2f}"
    wanted = f"{sign} {figure(aim['wanted'], aim['unit'])}"
    return name, aim["name"], wanted, figure(aim["measured"], aim["unit"]), verdict, ratio


def print_table(rows: list[tuple[str, ...]]) -> None:
    """Rows in columns as wide as they need be."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        print("  ".join(cells).rstrip())


def summarize(outcomes: list[Outcome], *, full: bool) -> None:
    """Prints one table of all aims, and what broke."""
    print(f"\n=== Aims and what was measured ({'full' if full else 'brief'} run) ===")
    head = ("benchmark", "aim", "wanted", "measured", "", "ratio (1 or more is met)")
    rows = [aim_cells(each.job.name, aim) for each in outcomes for aim in each.aims]
    print_table([head, *rows])
    verdicts = [aim["is_met"] for each in outcomes for aim in each.aims]
    met, missed = verdicts.count(True), verdicts.count(False)
    print(f"{met} met, {missed} missed, {verdicts.count(None)} not measured")
    if not full:
        print("A brief run is a smoke test with figures; judge by --full on an idle machine.")
    for each in outcomes:
        if each.exit_code:
            print(f"BROKEN: {each.job.name} ended with {each.exit_code}")


def main() -> int:
    """Runs the benchmarks; the exit code."""
    args = parse_args()
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    args.results = args.results.resolve()
    chosen = [job for job in JOBS if not args.only or job.name in args.only]
    outcomes = [run(job, args) for job in chosen]
    summarize(outcomes, full=args.full)
    return 1 if any(each.exit_code for each in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
