"""The progress of loads: the offsets that their tables have, and the lag behind the streams.

Rules: the offsets come from the commits of the tables, not from the loading processes. So a status
is right whether a load is running or not, on either engine. Settings that a run rejects before its
first batch are rejected here, too. Must not know the command line.
"""

from typing import TYPE_CHECKING

import msgspec

from strandline.spark.pipelines.config import LoadPipeline

if TYPE_CHECKING:
    from strandline.spark.options import ReadOptions


class LoadStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The progress of the load of one table."""

    stream: str
    """The name of the stream; of several their names, or the pattern."""
    table: str
    """The table's directory, URL, or name in the catalog."""
    format: str
    commits: int
    """The number of commits, of loads and merges."""
    files: int
    bytes: int
    rows: int
    committed_at_ms: int | None
    """Unix time of the newest commit; null before the first."""
    offsets: dict[str, int]
    """The offset up to which each partition, such as ``orders/0``, is loaded."""
    lag: dict[str, int]
    """The number of offsets of each partition that are not loaded yet."""
    oldest_unread_ms: dict[str, int]
    """The age of the oldest record that is not loaded yet, for each partition with a lag."""


def load_status(config: LoadPipeline) -> list[LoadStatus]:
    """Return the progress of each table of a load.

    Raises:
        StrandlineError: a load would raise the error before its first batch, or a broker or table
            cannot be reached.
    """
    from strandline.spark.pipelines.failures import naming_keys
    from strandline.spark.pipelines.load import check_load, reads_of

    with naming_keys():
        check_load(config)
        return [_status_of(config, read) for read in reads_of(config)]


def _status_of(config: LoadPipeline, read: "ReadOptions") -> LoadStatus:
    # Here, so that the schema of a status is known without PySpark.
    from strandline.spark.connection import stream_state
    from strandline.spark.options import parse_read_options
    from strandline.spark.pipelines.load import open_load, source_options, streams_of, table_of
    from strandline.spark.pipelines.local import plan_path, read_plan
    from strandline.spark.pipelines.unread import oldest_unread_ms
    from strandline.spark.planning import keyed, starting_offsets

    identity, store, loaded = open_load(config, read)
    if config.engine == "local":
        read_plan(plan_path(config, read), identity=identity)
    files = store.live_files(loaded) if store is not None and loaded.state is not None else []
    options = parse_read_options(
        {"server": config.server, "startingOffsets": config.starting_offsets}
        | source_options(read),
        streaming=True,
    )
    # The stream is read after the table, so that the lag is never negative.
    partitions = stream_state(options).partitions
    committed = loaded.state.offsets if loaded.state is not None else {}
    done = keyed(committed.items(), options, identity=identity)
    at = starting_offsets(partitions, options) | done
    lag = {
        options.place(each.partition): max(0, each.high_watermark - at[each.partition])
        for each in partitions
    }
    unread: dict[tuple[str, int], int] = {
        place: at[options.key(*place)] for place, behind in lag.items() if behind
    }
    return LoadStatus(
        stream=streams_of(read),
        table=table_of(config, read),
        format=config.format,
        commits=loaded.state.sequence + 1 if loaded.state is not None else 0,
        files=len(files),
        bytes=sum(file.size_bytes for file in files),
        rows=sum(file.rows for file in files),
        committed_at_ms=store.committed_at_ms(loaded) if store is not None else None,
        offsets={str(options.place(key)): offset for key, offset in done.items()},
        lag={str(place): behind for place, behind in lag.items()},
        oldest_unread_ms=oldest_unread_ms(config.server, unread),
    )
