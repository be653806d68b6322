"""The streams and pipelines of a crash run, and the records appended so far.

Rules: record n is at offset n // 2 of partition n % 2 of ``orders``, so what every pipeline has to
make of it is arithmetic, which ``judge`` does. ``extra`` comes over NATS, the rest over Flight.
"""

import json
import sys
from pathlib import Path

import pyarrow as pa
from feeding import NatsPublisher

import strandline
from strandline.spark.demo.processes import Child
from strandline.spark.headers import SOURCE_OFFSET, SOURCE_PARTITION, SOURCE_STREAM
from strandline.spark.tables.iceberg import open_catalog

JOB = Path(__file__).parents[1] / "jobs" / "pipelines.py"
STREAMS = ("copy", "transform", "aggregate", "merge", "repartition", "clean")
LOADS = ("parquet", "delta", "iceberg")
KINDS = STREAMS + LOADS
NUMBER = "CAST(get_json_object(CAST(value AS STRING), '$.n') AS BIGINT)"
KEYS = 7
NEW_KEYS = 3
REPEATED = 30
"""How many old records the stream that has to be cleaned repeats with every append."""
APPEND_TIMEOUT_S = 300
READ_OF = {"merge": ("orders", "extra"), "clean": ("dirty",)}
"""What a pipeline reads; the others read ``orders`` alone."""
CLIENT_TIMEOUT_S = 30

INPUTS = {"orders": 2, "extra": 1, "dirty": 2}
BY_NATS = "extra"
NOT_MADE = ("even", "odd")
"""Outputs that have to be there before their pipeline."""
OUTPUTS = {
    "copy": {"copy": 2},
    "transform": {"even": 1, "odd": 1},
    "aggregate": {"totals": 2},
    "merge": {"merged": 1},
    "repartition": {"keyed": 2},
    "clean": {"pristine": 2},
}
"""Of each pattern its output streams, and how many partitions they have."""


class Story:
    """Streams, pipelines and input.

    Args:
        directory: for tables, checkpoints and logs.
        kinds: which pipelines.
        brokers: running.
        master: of Spark.
    """

    def __init__(self, directory, kinds, *, brokers, master):
        self.directory = directory
        self.kinds = kinds
        self.brokers = brokers
        self.master = master
        self.total = 0
        self.client = strandline.connect(brokers.addresses, timeout_s=CLIENT_TIMEOUT_S)
        made = {name: n for name, n in self.outputs.items() if name in NOT_MADE}
        for name, partitions in (INPUTS | made).items():
            self.client.create_stream(name, partitions=partitions, **brokers.replication)
        if "iceberg" in kinds:
            (directory / "warehouse").mkdir()
            open_catalog(self.catalog).create_namespace("crash")
        self._producers = {
            name: self.client.producer(name, delivery_timeout_s=APPEND_TIMEOUT_S)
            for name in INPUTS
            if name != BY_NATS
        }
        self.nats = NatsPublisher([each.nats_url for each in brokers.servers], BY_NATS)
        self.nats.__enter__()

    @property
    def outputs(self):
        """The streams that the pipelines write, and how many partitions they have."""
        return {name: n for kind in self.kinds for name, n in OUTPUTS.get(kind, {}).items()}

    @property
    def partitions(self):
        """Every partition of a stream that the pipelines read or write."""
        return [(name, p) for name, n in (INPUTS | self.outputs).items() for p in range(n)]

    @property
    def catalog(self):
        """The Iceberg catalog: SQLite."""
        return {
            "type": "sql",
            "uri": f"sqlite:///{self.directory}/catalog.db",
            "warehouse": f"file://{self.directory}/warehouse",
        }

    def append(self, count):
        """Append numbered records to every input, and wait until they are stored."""
        first, self.total = self.total, self.total + count
        waiting = []
        for name in self._producers:
            partitions = INPUTS[name]
            begin = max(0, first - REPEATED) if name == "dirty" else first
            for partition in range(partitions):
                numbers = [n for n in range(begin, self.total) if n % partitions == partition]
                rows = records(numbers, has_source=name == "dirty")
                waiting.append(self._producers[name].append_batch(rows, partition=partition))
        self.nats.publish(range(first, self.total), timeout_s=APPEND_TIMEOUT_S)
        for each in waiting:
            each.result(APPEND_TIMEOUT_S)

    def unread(self):
        """The pipelines that have records before them, by the progress they have noted."""
        ends = {}
        for name in INPUTS:
            for info in self.client.stream_info(name).partitions:
                ends[name, info.partition] = info.high_watermark
        found = set()
        for kind in self.kinds:
            noted = self.client.groups.committed_offsets(kind)
            places = [at for at in ends if at[0] in READ_OF.get(kind, ("orders",))]
            if any(noted.get(at, 0) < ends[at] for at in places):
                found.add(kind)
        return found

    def _config(self, kind, trigger):
        """A pipeline, for ``jobs/pipelines.py``."""
        own = self._load(kind) if kind in LOADS else {"kind": kind, **self._stream_pipeline(kind)}
        common = {
            "server": self.brokers.addresses,
            "trigger": trigger,
            "group": kind,
            "checkpoint": str(self.directory / "checkpoints" / kind),
        }
        return own | common

    def _stream_pipeline(self, kind):
        sql = (
            f"SELECT value, key, IF({NUMBER} % 2 = 0, 'even', 'odd') stream FROM records "
            f"LATERAL VIEW explode(array(1, 2)) t AS i WHERE {NUMBER} % 5 != 0"
        )
        columns = {"n": "count()", "total": f"sum({NUMBER})"}
        fold = {"key": "CAST(key AS STRING)", "columns": columns}
        by_number = {"key": f"{NUMBER} % {NEW_KEYS}", "partitions": 2}
        return {
            "copy": {"stream": "orders", "into": "copy"},
            "transform": {"stream": "orders", "sql": sql},
            "aggregate": {"stream": "orders", "into": "totals", **fold},
            "merge": {"streams": ["orders", "extra"], "into": "merged"},
            "repartition": {"stream": "orders", "into": "keyed", **by_number},
            "clean": {"stream": "dirty", "into": "pristine"},
        }[kind] | {"batch_records_max": 300}

    def _load(self, kind):
        own = {"kind": "load", "streams": ["orders"], "values": "json", "schema": "n BIGINT"}
        own |= {"format": kind, "into": self.table_path(kind)}
        return own | ({"catalog": self.catalog} if kind == "iceberg" else {})

    def table_path(self, kind):
        """Where a load's table is."""
        return "crash.orders" if kind == "iceberg" else str(self.directory / kind)

    def start(self, trigger, *, name="job", kinds=None):
        """Start a driver with all pipelines, or some."""
        file = self.directory / f"{name}-{trigger}.json"
        file.write_text(json.dumps({k: self._config(k, trigger) for k in kinds or self.kinds}))
        command = [sys.executable, str(JOB), self.master, str(file)]
        return Child(command, log=self.directory / f"{name}.log")

    def close(self):
        """Let the clients go."""
        self.nats.__exit__()
        self.client.close()


def records(numbers, *, has_source):
    """Numbered records; with the headers of a source, if they have one."""
    columns = {
        "value": pa.array([b'{"n": %d}' % n for n in numbers], pa.binary()),
        "key": pa.array([b"k%d" % (n % KEYS) for n in numbers], pa.binary()),
    }
    if has_source:
        names = (SOURCE_STREAM, SOURCE_PARTITION, SOURCE_OFFSET)
        headers = [
            list(zip(names, (b"orders", b"%d" % (n % 2), b"%d" % (n // 2)), strict=True))
            for n in numbers
        ]
        columns["headers"] = pa.array(headers, pa.map_(pa.string(), pa.binary()))
    return pa.table(columns)
