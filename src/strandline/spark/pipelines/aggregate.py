"""Aggregate: a running state per key, in a compacted stream that others can read as a table.

Rules: Spark keeps the state (RocksDB, with its changelog in the checkpoint); every change is
written to the stream together with the offsets, which are part of the state. So without checkpoint,
on another machine, the pipeline starts from the stream's states at their offsets. These initial
states are saved beside the checkpoint, because a replay of the first batch must start with the same
ones. ``aggregates`` applies a record to a state.
"""

import json
from collections.abc import Iterator
from typing import Any

import pyarrow.compute as pc
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 -- the name all of Spark's users know
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle, StreamingQuery

from strandline.api.admin import StreamInfo
from strandline.client.reader.compacted_view import compacted_view
from strandline.errors import InvalidConfigError, InvalidRecordError
from strandline.spark.connection import client_of
from strandline.spark.pipelines.aggregates import (
    AggregateState,
    Fold,
    check_argument_types,
    check_same_columns,
    decode_state,
    definition_of,
    encode_state,
    fold,
    next_offsets,
    parse_folds,
)
from strandline.spark.pipelines.config import AggregatePipeline
from strandline.spark.pipelines.outputs import ensure_stream, stream_of
from strandline.spark.pipelines.queries import read_stream, write_stream
from strandline.spark.pipelines.sources import check_derivable
from strandline.spark.tables.store import local_path, make_directory, replace_durably

_OUTPUT = "key STRING, value STRING"
_BEGINNING = "began-with.json"
_DEFINITION = "columns.json"


def start_aggregate(spark: SparkSession, config: AggregatePipeline) -> list[StreamingQuery]:
    """Start the query; the changelog is created, compacted, if it does not exist.

    Raises:
        UnknownStreamError: there is no stream to read.
        InvalidConfigError: a column of the state is invalid, or of an unsupported type; or the
            existing states have other columns.
        InvalidRecordError: the changelog has a record that is not a state.
        InvalidRequestError: the changelog is older than the stream.
    """
    folds = parse_folds(config.columns)
    source = stream_of(config.server, config.stream)
    output = ensure_stream(
        config.server, config.into, like=source, partitions=len(source.partitions), compact=True
    )
    began = _began_with(config, source)
    states = [
        decode_state(state, where=f"stream {config.into}, key {key!r},")
        for key, state in began.items()
    ]
    definition = definition_of(config.key, config.columns)
    check_same_columns(folds, states, into=config.into, definition=definition)
    name = f"aggregate {config.stream} into {config.into}"
    position = next_offsets(states)
    records = read_stream(
        spark,
        config,
        config.stream,
        name=name,
        output=output,
        startingOffsets=json.dumps({str(p): o for p, o in position.items()}) if position else None,
    )
    initial = spark.createDataFrame(list(began.items()), _OUTPUT).groupBy("key")
    changed = (
        _arguments(records, config.key, folds)
        .groupBy("group")
        .transformWithState(
            Folder(folds, definition),
            outputStructType=_OUTPUT,
            outputMode="Append",
            timeMode="None",
            initialState=initial,
        )
    )
    # Last, so that a definition Spark rejects is not saved.
    _check_same_definition(config)
    return [write_stream(changed, config, name=name, into=config.into)]


class Folder(StatefulProcessor):
    """Applies the records of a key to its state, and emits the state once per micro-batch."""

    def __init__(self, folds: list[Fold], definition: str) -> None:
        self._folds = folds
        self._definition = definition

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Open the state: JSON."""
        self._state = handle.getValueState("state", "state STRING")

    def handleInputRows(  # noqa: N802 -- Spark's name
        self,
        key: Any,
        rows: Iterator[Row],
        timerValues: Any,  # noqa: N803 -- Spark's name
    ) -> Iterator[Row]:
        """Return the new state of a key."""
        del timerValues
        state = AggregateState(values={}, offsets={}, definition=self._definition)
        if self._state.exists():
            state = decode_state(self._state.get()[0], where=f"the checkpoint, key {key!r},")
        # Sorted: a sum of floats depends on the order, and a replay must have the same result.
        for row in sorted(rows, key=lambda row: (row["partition"], row["offset"])):
            place = (row["partition"], row["offset"])
            record = {each.name: row[_argument(n)] for n, each in enumerate(self._folds)}
            fold(state, self._folds, record, place=place)
        text = encode_state(state)
        self._state.update((text,))
        yield Row(key=key[0], value=text)

    def handleInitialState(  # noqa: N802 -- Spark's name
        self,
        key: Any,
        initialState: Row,  # noqa: N803 -- Spark's name
        timerValues: Any,  # noqa: N803 -- Spark's name
    ) -> None:
        """Initialize a key with its state in the changelog."""
        del key, timerValues
        self._state.update((initialState["value"],))

    def close(self) -> None:
        """Do nothing: there are no resources."""


def _arguments(records: DataFrame, key: str, folds: list[Fold]) -> DataFrame:
    """Select the key, the offset and one argument for each column; leave out records without a key.

    Raises:
        InvalidConfigError: an argument of an unsupported type.
    """
    arguments = [
        F.expr(each.argument or "NULL").alias(_argument(n)) for n, each in enumerate(folds)
    ]
    types = records.select(*arguments).schema
    kinds = [field.dataType.simpleString() for field in types]
    check_argument_types(folds, {each.name: kind for each, kind in zip(folds, kinds, strict=True)})
    grouped = records.select(
        F.expr(key).cast("string").alias("group"), "partition", "offset", *arguments
    )
    return grouped.where("group IS NOT NULL")


def _argument(number: int) -> str:
    """Return the name of a column's argument; the column's own name might be ``offset``."""
    return f"argument {number}"


def _check_same_definition(config: AggregatePipeline) -> None:
    """Check that the checkpoint's states have this key and these columns; save them if new.

    Raises:
        InvalidConfigError: key or columns were changed since.
    """
    note = local_path(config.checkpoint) / _DEFINITION
    texts = {"key": config.key} | {f"column '{name}'": of for name, of in config.columns.items()}
    given = {what: " ".join(text.split()) for what, text in texts.items()}
    if not note.exists():
        make_directory(note.parent)
        replace_durably(note, json.dumps(given).encode())
    noted: dict[str, str] = json.loads(note.read_bytes())
    for what in noted | given:
        if noted.get(what) != given.get(what):
            raise InvalidConfigError(
                f"{what} is {given.get(what, 'none')}, but was {noted.get(what, 'none')} when the "
                "states of this checkpoint were made; write that, or write to another stream, "
                "with a new checkpoint"
            )


def _began_with(config: AggregatePipeline, source: StreamInfo) -> dict[str, str]:
    """Return the initial states of this checkpoint, by key."""
    note = local_path(config.checkpoint) / _BEGINNING
    if not note.exists():
        # Synced before the states change: a replay must start with the same ones.
        make_directory(note.parent)
        replace_durably(note, json.dumps(_changelog(config, source)).encode())
    found: dict[str, str] = json.loads(note.read_bytes())
    return found


def _changelog(config: AggregatePipeline, source: StreamInfo) -> dict[str, str]:
    table = compacted_view(client_of(config.server), config.into)
    if table.num_rows:
        newest_ns = pc.max(table.column("timestamp").cast("int64")).as_py()
        check_derivable(newest_ns, source, into=config.into)
    keys, values = (table.column(name).to_pylist() for name in ("key", "value"))
    try:
        return {key.decode(): value.decode() for key, value in zip(keys, values, strict=True)}
    except UnicodeDecodeError as error:
        raise InvalidRecordError(
            f"stream {config.into} has records that are not aggregate states; write to another"
        ) from error
