"""Pipelines under kill -9: all patterns at once, something killed each run, then the output judged.

    python tests/spark/crash_pipelines.py --runs 30 --seed 7 --out results.md

Each run appends records, lets the pipelines publish some batches, and kills the driver with all its
processes, one of Spark's Python workers, or the broker, at a random moment. After each run what is
seen must be the beginning of what is expected, without repeats; at the end two drivers are
started on the same checkpoints, and the output must be the function of the input, each record.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable

import strandline
from strandline.client.latest import latest_by_key
from strandline.errors import RequestTimeoutError, UnavailableError
from strandline.spark.demo.processes import Child
from strandline.spark.pipelines.sources import source_of
from strandline.spark.table import read_table
from strandline.testing import ProcessServer

JOB = Path(__file__).parent / "jobs" / "pipelines.py"
KINDS = ("copy", "transform", "aggregate", "merge", "repartition", "parquet", "delta")
VICTIMS = ("driver", "worker", "broker")
NUMBER = "CAST(get_json_object(CAST(value AS STRING), '$.n') AS BIGINT)"
RECORDS = 400
START_S = 600
ATTEMPTS = 5


class Story:
    """Streams, pipelines, and what has been appended so far."""

    def __init__(self, directory, kinds):
        self.directory = directory
        self.kinds = kinds
        self.server = ProcessServer(directory / "data").start()
        self.client = strandline.connect(self.server.flight)
        self.total = 0
        for name, partitions in (("orders", 2), ("extra", 1), ("even", 1), ("odd", 1)):
            self.client.create_stream(name, partitions=partitions)

    def reconnect(self):
        """A client of the broker that runs now."""
        self.client.close()
        self.client = strandline.connect(self.server.flight)

    def append(self, count):
        """Append numbered records: to ``orders`` by parity, and to ``extra``."""
        numbers = range(self.total, self.total + count)
        self.total += count
        for stream, partition in (("orders", 0), ("orders", 1), ("extra", 0)):
            mine = [n for n in numbers if stream == "extra" or n % 2 == partition]
            table = pa.table(
                {
                    "value": pa.array([b'{"n": %d}' % n for n in mine], pa.binary()),
                    "key": pa.array([b"k%d" % (n % 7) for n in mine], pa.binary()),
                }
            )
            self.client.append_batch(stream, table, partition=partition)

    def configs(self, trigger):
        """The pipelines, for ``jobs/pipelines.py``."""
        sql = (
            f"SELECT value, key, IF({NUMBER} % 2 = 0, 'even', 'odd') stream FROM records "
            f"LATERAL VIEW explode(array(1, 2)) t AS i WHERE {NUMBER} % 5 != 0"
        )
        tables = {"streams": ["orders"], "values": "json", "schema": "n BIGINT", "kind": "load"}
        all_of_them = {
            "copy": {"stream": "orders", "into": "copy"},
            "transform": {"stream": "orders", "sql": sql},
            "aggregate": {
                "stream": "orders",
                "into": "totals",
                "key": "CAST(key AS STRING)",
                "columns": {"n": "count()", "total": f"sum({NUMBER})"},
            },
            "merge": {"streams": ["orders", "extra"], "into": "merged"},
            "repartition": {
                "stream": "orders",
                "into": "keyed",
                "key": f"{NUMBER} % 3",
                "partitions": 2,
            },
            "parquet": tables | {"into": str(self.directory / "parquet")},
            "delta": tables | {"into": str(self.directory / "delta"), "format": "delta"},
        }
        return [
            {"kind": kind}
            | all_of_them[kind]
            | {
                "server": self.server.flight,
                "trigger": trigger,
                "checkpoint": str(self.directory / "checkpoints" / kind),
            }
            | ({} if kind in ("parquet", "delta") else {"batch_records_max": 100})
            for kind in self.kinds
        ]

    def start(self, trigger, name="job"):
        """Start a driver with all pipelines."""
        file = self.directory / f"{trigger}.json"
        file.write_text(json.dumps(self.configs(trigger)))
        command = [sys.executable, str(JOB), "local[2,8]", str(file)]
        return Child(command, log=self.directory / f"{name}.log")

    # What readers see

    def records(self, stream, partition=0):
        """Numbers and sources of a partition's records, in order."""
        if stream not in {info.name for info in self.client.list_streams()}:
            return [], []
        table = self.client.read(stream, partition=partition).read_all()
        numbers = [json.loads(value)["n"] for value in table.column("value").to_pylist()]
        sources = [source_of(dict(each or ())) for each in table.column("headers").to_pylist()]
        return numbers, sources

    def expected(self, partition):
        """Numbers of a partition of ``orders``."""
        return [n for n in range(self.total) if n % 2 == partition]

    def check(self, kind, *, is_end):
        """Compare the output of a pipeline with the plain function of its input."""
        getattr(self, f"_check_{kind}")(is_end)

    def _check_copy(self, is_end):
        for partition in (0, 1):
            begins(self.records("copy", partition)[0], self.expected(partition), is_end)

    def _check_transform(self, is_end):
        for partition, stream in enumerate(("even", "odd")):
            twice = [n for n in self.expected(partition) if n % 5 for _ in (1, 2)]
            begins(self.records(stream)[0], twice, is_end)

    def _check_aggregate(self, is_end):
        if not is_end:
            return
        table = latest_by_key(self.client, "totals").to_pylist()
        found = {row["key"]: json.loads(row["value"])["values"] for row in table}
        groups = {b"k%d" % k: [n for n in range(self.total) if n % 7 == k] for k in range(7)}
        assert found == {k: {"n": len(g), "total": sum(g)} for k, g in groups.items()}

    def _check_merge(self, is_end):
        numbers, sources = self.records("merged")
        found = list(zip(numbers, sources, strict=True))
        for stream, partition in (("orders", 0), ("orders", 1), ("extra", 0)):
            mine = [n for n, place in found if place[:2] == (stream, partition)]
            all_of_it = list(range(self.total)) if stream == "extra" else self.expected(partition)
            begins(mine, all_of_it, is_end)

    def _check_repartition(self, is_end):
        seen = []
        for partition in (0, 1):
            numbers, sources = self.records("keyed", partition)
            for source in (0, 1):
                mine = [n for n, place in zip(numbers, sources, strict=True) if place[1] == source]
                assert mine == sorted(mine), "order within a source partition"
            seen += numbers
        assert len(seen) == len(set(seen)), "no repeats"
        assert not is_end or sorted(seen) == list(range(self.total))

    def _check_parquet(self, is_end):
        path = self.directory / "parquet"
        if path.exists():
            whole_rows(read_table(str(path)).to_table(), self.total, is_end)

    def _check_delta(self, is_end):
        path = self.directory / "delta"
        if (path / "_delta_log").exists():
            whole_rows(DeltaTable(str(path)).to_pyarrow_table(), self.total, is_end)


def begins(found, expected, is_end):
    """Check that ``found`` is the beginning of ``expected``, or all of it at the end."""
    assert found == (expected if is_end else expected[: len(found)])


def whole_rows(table, total, is_end):
    """Check the rows of a table: none twice, and all of them at the end."""
    numbers = sorted(table.column("n").to_pylist())
    assert len(numbers) == len(set(numbers)), "no repeats"
    assert not is_end or numbers == list(range(total))


def python_workers(group):
    """Spark's Python processes in a process group."""
    listed = subprocess.run(
        ["ps", "-eo", "pid=,pgid=,args="], capture_output=True, text=True, check=True
    )
    rows = (line.split(None, 2) for line in listed.stdout.splitlines())
    return [int(pid) for pid, pgid, args in rows if int(pgid) == group and "pyspark" in args]


def one_run(story, moments, victim):
    """Append, let the pipelines work, kill, and judge what is visible."""
    story.append(RECORDS)
    job = story.start("continuous")
    try:
        with suppress(UnavailableError, RequestTimeoutError):
            for _ in range(moments.randint(1, len(story.kinds))):
                job.wait_for("batch", timeout_s=START_S)
        time.sleep(moments.uniform(0, 2))
        if victim == "broker":
            story.server.kill()
            story.server.start()
            story.reconnect()
        elif victim == "worker" and (workers := python_workers(job.pid)):
            with suppress(ProcessLookupError):
                os.kill(moments.choice(workers), signal.SIGKILL)
        if victim != "driver":
            # The pipelines live on, or end with an error and are started again by the next run.
            with suppress(UnavailableError, RequestTimeoutError):
                job.wait_for("batch", timeout_s=10)
    finally:
        job.kill()
    for kind in story.kinds:
        story.check(kind, is_end=False)


def finish(story):
    """Start two drivers at once on the same checkpoints, then one alone if neither came through;
    returns how many of the two ended with an error.
    """
    jobs = [story.start("available_now", f"last{n}") for n in range(2)]
    ends = []
    try:
        for job in jobs:
            with suppress(UnavailableError, RequestTimeoutError):
                ends.append(job.wait_for("end", timeout_s=START_S))
    finally:
        for job in jobs:
            job.kill()
    refused = sum(end["error"] is not None for end in ends)
    if refused == len(ends):
        run_to_the_end(story)
    for kind in story.kinds:
        story.check(kind, is_end=True)
    return refused


def run_to_the_end(story):
    """Run the pipelines until they have read everything; a query that fails is started again."""
    for attempt in range(ATTEMPTS):
        job = story.start("available_now", f"alone{attempt}")
        try:
            error = job.wait_for("end", timeout_s=START_S)["error"]
        except UnavailableError as ended:
            error = str(ended)
        finally:
            job.kill()
        if error is None:
            return
        sys.stderr.write(f"attempt {attempt + 1}: {error[:300]}\n")
    raise AssertionError(f"the pipelines failed {ATTEMPTS} times")


def crash(runs, seed, kinds):
    """All runs; returns what happened."""
    moments = random.Random(seed)
    victims = [moments.choice(VICTIMS) for _ in range(runs)]
    with tempfile.TemporaryDirectory(prefix="strandline-crash-") as name:
        story = Story(Path(name), kinds)
        try:
            for number, victim in enumerate(victims):
                one_run(story, moments, victim)
                sys.stderr.write(f"run {number + 1}: {victim} killed, {story.total} records\n")
            refused = finish(story)
        finally:
            story.client.close()
            story.server.kill()
        return {"victims": Counter(victims), "records": story.total, "refused": refused}


def as_markdown(found, kinds, seed):
    """The results of runs in which every check held: a violation would have raised."""
    killed = ", ".join(f"{count} x {victim}" for victim, count in sorted(found["victims"].items()))
    lines = [
        f"Seed {seed}: killed {killed}; two drivers at once: {found['refused']} of 2 ended.",
        "",
        "| pipeline | kills | records in | output |",
        "|---|---|---|---|",
    ]
    kills = sum(found["victims"].values())
    verdict = "equals the function of the input"
    lines += [f"| {kind} | {kills} | {found['records']} | {verdict} |" for kind in kinds]
    return "\n".join(lines) + "\n"


def main():
    """Run from the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=30)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    seed = random.randrange(1 << 32) if given.seed is None else given.seed
    sys.stderr.write(f"seed {seed}\n")
    kinds = given.kinds.split(",")
    text = as_markdown(crash(given.runs, seed, kinds), kinds, seed)
    sys.stdout.write(text)
    if given.out:
        given.out.write_text(text)


if __name__ == "__main__":
    main()
