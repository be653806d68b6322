"""Helpers for tests of a table's commit: what tasks pass to it, and what it stores."""

import pyarrow as pa
import pyarrow.dataset as ds

from strandline.spark.table import read_table
from strandline.spark.tables.log import Proposal, encode_schema, merge_ranges
from strandline.spark.tables.stage import FileSettings, stage, tracks_offsets

SCHEMA = pa.schema([("partition", pa.int32()), ("offset", pa.int64()), ("value", pa.binary())])
DAY_MS = 86_400_000


def rows(partition, start, stop):
    """Return records of a partition."""
    offsets = range(start, stop)
    return pa.RecordBatch.from_arrays(
        [
            pa.array([partition] * len(offsets), pa.int32()),
            pa.array(offsets, pa.int64()),
            pa.array([b"%d/%d" % (partition, offset) for offset in offsets], pa.binary()),
        ],
        schema=SCHEMA,
    )


def propose(store, *batches, txn="query", batch=0, schema=SCHEMA):
    """Stage each batch in a file of its own, as tasks do; return the commit's proposal."""
    store.create()
    settings = FileSettings(schema=schema, prefix="t", compression="none")
    staged = [stage(store, [each], settings) for each in batches]
    return Proposal(
        txn_id=txn,
        batch=batch,
        files=[file for each in staged for file in each.files],
        ranges=merge_ranges(each.ranges for each in staged),
        arrow_schema=encode_schema(schema),
        tracks_offsets=tracks_offsets(schema),
    )


def stored(path):
    """Return the values of the table's records, as the table's own reader finds them."""
    return sorted(read_table(str(path)).to_table().column("value").to_pylist())


def visible(path):
    """Return the files that a plain directory listing finds, as Spark and others use it."""
    if not path.exists():
        return []
    names = [p for p in path.iterdir() if not p.name.startswith(("_", "."))]
    found = ds.dataset(names, schema=SCHEMA, format="parquet") if names else None
    return sorted(found.to_table().column("value").to_pylist()) if found else []
