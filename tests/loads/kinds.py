"""The loads that are killed: where their tables are, and how records become rows.

Rules: a kind says what is published, what a table has to have after any number of records, and the
settings of the pipeline. Nothing here knows of processes.
"""

import json
from collections import Counter
from dataclasses import dataclass

from tests.kit.local_loads import sql_catalog
from tests.kit.object_stores import BUCKET

KEYS = 40
_BAD = b"oops"
_COLUMNS = "id BIGINT, name STRING"
MERGED_FILES_MAX = 3
"""Small files for each partition, in place of 24: so merges are frequent."""
SNAPSHOT_AGES_MS = (0, 3000)
"""How long replaced files stay; with 0 readers of older versions have to begin anew."""


@dataclass(frozen=True)
class LoadKind:
    """A kind of load."""

    format: str
    mode: str = "append"
    """``append``, ``upsert``, ``debezium`` (an upsert) or ``several`` (streams in one table)."""
    in_store: bool = False
    """Whether the table is in an object store."""

    @property
    def name(self):
        place = "object store" if self.in_store else "disk"
        return f"{self.format}, {self.mode}, {place}"

    @property
    def is_upsert(self):
        return self.mode in ("upsert", "debezium")

    def streams(self, label):
        """Return the streams of a round, each of two partitions."""
        names = ("eu", "us") if self.mode == "several" else ("all",)
        return [f"orders-{label}-{name}" for name in names]

    def config(self, directory, *, label, server, s3, age_ms):
        """Return the settings of the pipeline."""
        config = {
            "kind": "load",
            "engine": "local",
            "server": server,
            "streams": self.streams(label),
            "into": f"s3://{BUCKET}/{label}" if s3 else str(directory / "table"),
            "format": self.format,
            "values": "json",
            "schema": _COLUMNS,
            "checkpoint": str(directory / "checkpoint"),
            "dead_letters": f"bad-{label}",
            "compaction": True,
            "snapshot_age_ms": age_ms,
            "batch_bytes_max": 600,
        }
        if s3:
            config["storage"] = s3.storage()
        if self.format == "iceberg":
            config |= {"into": "lake.orders", "catalog": sql_catalog(directory, s3=s3)}
        if self.is_upsert:
            config |= {"mode": "upsert", "primary_key": ["id"]}
        if self.mode == "debezium":
            config["envelope"] = "debezium"
        return config

    def record(self, number, moments, partition):
        """Return the key and value of the next record of a partition."""
        if moments.random() < 0.02:
            return b"bad", b"%b %d" % (_BAD, number)
        if not self.is_upsert:
            return None, json.dumps({"id": number, "name": f"n{number}"}).encode()
        key = 2 * moments.randrange(KEYS // 2) + partition
        row = {"id": key, "name": f"n{number}"}
        is_delete = moments.random() < 0.2
        if self.mode == "upsert":
            return b"%d" % key, None if is_delete else json.dumps(row).encode()
        event = {"op": "d", "before": row} if is_delete else {"op": "u", "after": row}
        return b'{"id":%d}' % key, json.dumps(event).encode()

    def rows(self, records):
        """Return the rows that a table has, and how often, after these records.

        Args:
            records: for each partition of a stream its records, as (key, value), from offset 0 on.
        """
        if not self.is_upsert:
            return Counter(
                (place, offset, json.loads(value)["id"])
                for place, found in records.items()
                for offset, (_, value) in enumerate(found)
                if not is_bad(value)
            )
        kept = {}
        for found in records.values():
            for key, value in found:
                self._apply(kept, key, value)
        return Counter(kept.items())

    def _apply(self, kept, key, value):
        if is_bad(value):
            return
        if value is None:
            kept.pop(int(key), None)
            return
        row = json.loads(value)
        if self.mode == "debezium":
            if row["op"] == "d":
                kept.pop(row["before"]["id"], None)
                return
            row = row["after"]
        kept[row["id"]] = row["name"]

    def found(self, batches, stream):
        """Return the rows of a table as ``rows`` does.

        Args:
            batches: of the table.
            stream: which it is of, if it is one.
        """
        rows = (row for batch in batches for row in batch.to_pylist())
        if self.is_upsert:
            return Counter((row["id"], row["name"]) for row in rows)
        return Counter(
            ((row.get("_stream", stream), row["_partition"]), row["_offset"], row["id"])
            for row in rows
        )


def is_bad(value):
    """Return whether a value becomes a dead letter."""
    return value is not None and value.startswith(_BAD)


KINDS = tuple(
    LoadKind(table_format, mode, in_store)
    for in_store in (False, True)
    for table_format in ("parquet", "delta", "iceberg")
    for mode in ("append", "upsert", "several", "debezium")
    if table_format != "parquet" or mode in ("append", "several")
    if not in_store or mode in ("append", "upsert")
)
