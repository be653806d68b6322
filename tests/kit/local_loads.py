"""Loads by ``engine: local`` into tables of each format, run here or in a killed process."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import yaml

import strandline
from strandline.spark.pipelines.config import decode_pipeline
from strandline.spark.pipelines.local import run_local
from strandline.spark.tables.open import existing_store

from .object_stores import BUCKET

FORMATS = ("parquet", "delta", "iceberg")


def sql_catalog(directory, *, s3=None):
    """Return the properties of an Iceberg catalog in a file of this directory."""
    top = f"s3://{BUCKET}" if s3 else f"file://{directory}"
    return {
        "type": "sql",
        "uri": f"sqlite:///{directory}/catalog.db",
        "warehouse": f"{top}/warehouse",
    }


class LocalLoad:
    """A load of the stream ``orders`` as JSON columns, into a directory or an object store."""

    def __init__(self, url, client, directory, *, s3=None, partitions=2, **config):
        self.client = client
        self.partitions = partitions
        self.directory = directory
        self.s3 = s3
        self.config = {
            "kind": "load",
            "engine": "local",
            "server": url,
            "streams": ["orders"],
            "into": f"s3://{BUCKET}/{{stream}}" if s3 else str(directory / "{stream}"),
            "storage": s3.storage() if s3 else {},
            "values": "json",
            "schema": "id BIGINT",
            "checkpoint": str(directory / "checkpoint"),
        } | config

    def use(self, table_format):
        """Load into a table of this format."""
        self.config["format"] = table_format
        if table_format == "iceberg":
            catalog = sql_catalog(self.directory, s3=self.s3)
            self.config |= {"into": "lake.orders", "catalog": catalog}

    def append(self, numbers, bad=(), stream="orders"):
        """Append records with these ids, to one partition after the other."""
        for partition in range(self.partitions):
            mine = [n for n in numbers if n % self.partitions == partition]
            values = [b"oops %d" % n if n in bad else b'{"id": %d}' % n for n in mine]
            table = pa.table({"value": pa.array(values, pa.binary())})
            self.client.append_batch(stream, table, partition=partition)

    def run(self, **changes):
        """Load the stored records; return the reported lines."""
        lines = []
        run_local(decode_pipeline(self.config | changes), report=lines.append)
        return lines

    def file(self, **changes):
        """Return the load as a file of settings."""
        path = self.directory / "load.yaml"
        path.write_text(yaml.safe_dump(self.config | changes))
        return path

    def where(self):
        """Return the table's location as arguments for the functions that open tables."""
        return {
            "table_format": self.config.get("format", "parquet"),
            "catalog": self.config.get("catalog"),
            "storage": self.config["storage"],
        }

    def state(self):
        """Return the table, and the offsets committed to it."""
        store = existing_store(self.config["into"].replace("{stream}", "orders"), **self.where())
        return store, store.load()

    def rows(self):
        """Return the rows of the table, in no order."""
        store, loaded = self.state()
        return [row for batch in store.scan(loaded) for row in batch.to_pylist()]

    def ids(self):
        """Return the ids in the table."""
        return sorted(row["id"] for row in self.rows())

    def letters(self):
        """Return the dead letters."""
        return sorted(self.client.read("bad").read_all().column("value").to_pylist())

    def killed(self, rounds, begin, *, lines=1, pause_s=0.2, seed=3, **changes):
        """Run the load in a process, and kill the process by SIGKILL, several times.

        Args:
            rounds: the number of runs.
            begin: called with the number of the run while its process starts.
            lines: the number of reported batches to wait for.
            pause_s: the longest pause between these reports and the kill.
            seed: the seed of the pauses.
            **changes: changed settings of the load.
        """
        changes = {"trigger": "continuous", "batch_bytes_max": 2000} | changes
        command = [sys.executable, "-m", "strandline.cli", "pipeline", "run"]
        command += [str(self.file(**changes)), "--output", "json"]
        source = str(Path(strandline.__file__).parents[1])
        rng = random.Random(seed)
        for number in range(rounds):
            with subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                env=os.environ | {"PYTHONPATH": source},
                start_new_session=True,
            ) as process:
                try:
                    begin(number)
                    for _ in range(lines):
                        assert process.stdout.readline(), "it ended by itself"
                    time.sleep(rng.random() * pause_s)
                finally:
                    os.kill(process.pid, signal.SIGKILL)
