"""Aggregate: a running state for each key, in a compacted stream that is a table for others.

Rules: Spark keeps the state (RocksDB, with its changelog in the checkpoint); every change goes to
the stream in the same step as the position, which is in the states themselves. So on another
machine, without checkpoint, the pipeline begins with the stream's states at the position they hold.
What it began with is noted beside the checkpoint, because a replay of the first batch must begin
with the same. What a record does to a state is ``folding``'s business.
"""

import json
from collections.abc import Iterator
from typing import Any

import pyarrow.compute as pc
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 -- the name all of Spark's users know
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle, StreamingQuery

from strandline.client.compacted_view import compacted_view
from strandline.errors import InvalidConfigError, InvalidRecordError
from strandline.protocol.admin import StreamInfo
from strandline.spark.connection import client_of
from strandline.spark.pipelines.aggregates import (
    Fold,
    State,
    decode_state,
    encode_state,
    fold,
    next_offsets,
    parse_folds,
    refuse_other_columns,
    refuse_types,
)
from strandline.spark.pipelines.config import Aggregate
from strandline.spark.pipelines.outputs import ensure_stream, stream_of
from strandline.spark.pipelines.queries import read_stream, write_stream
from strandline.spark.pipelines.sources import refuse_older
from strandline.spark.table_store import local_path, make_directory, replace_durably

_OUTPUT = "key STRING, value STRING"
_BEGINNING = "began-with.json"
_DEFINITION = "columns.json"


def start_aggregate(spark: SparkSession, config: Aggregate) -> list[StreamingQuery]:
    """Start the query; the changelog is created, compacted, if it is not there.

    Raises:
        UnknownStreamError: there is no stream to read.
        InvalidConfigError: a column of the state is none, or of a type that no state can hold; or
            the states that are there were made by other columns.
        InvalidRecordError: the changelog holds what is no state.
        InvalidRequestError: the changelog is older than the stream.
    """
    folds = parse_folds(config.columns)
    source = stream_of(config.server, config.stream)
    output = ensure_stream(
        config.server, config.into, like=source, partitions=len(source.partitions), compact=True
    )
    began = _began_with(config, source)
    states = [decode_state(state) for state in began.values()]
    refuse_other_columns(folds, states, into=config.into)
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
            Folder(folds),
            outputStructType=_OUTPUT,
            outputMode="Append",
            timeMode="None",
            initialState=initial,
        )
    )
    # Last, since what Spark refuses is not what the states are made by.
    _refuse_other_definition(config)
    return [write_stream(changed, config, name=name, into=config.into)]


class Folder(StatefulProcessor):
    """Folds the records of a key into its state, and tells the state once a micro-batch."""

    def __init__(self, folds: list[Fold]) -> None:
        self._folds = folds

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Open the state: JSON."""
        self._state = handle.getValueState("state", "state STRING")

    def handleInputRows(  # noqa: N802 -- Spark's name
        self,
        key: Any,
        rows: Iterator[Row],
        timerValues: Any,  # noqa: N803 -- Spark's name
    ) -> Iterator[Row]:
        """The new state of a key."""
        del timerValues
        state = State(values={}, offsets={})
        if self._state.exists():
            state = decode_state(self._state.get()[0])
        # Sorted, because a sum of floats depends on the order, and a replay must give the same.
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
        """Begin a key with the state that the changelog has."""
        del key, timerValues
        self._state.update((initialState["value"],))

    def close(self) -> None:
        """Nothing is held."""


def _arguments(records: DataFrame, key: str, folds: list[Fold]) -> DataFrame:
    """Group, place and an argument for each column; records without a key are left out.

    Raises:
        InvalidConfigError: an argument of a type that no state can hold.
    """
    arguments = [
        F.expr(each.argument or "NULL").alias(_argument(n)) for n, each in enumerate(folds)
    ]
    types = records.select(*arguments).schema
    kinds = [field.dataType.simpleString() for field in types]
    refuse_types(folds, {each.name: kind for each, kind in zip(folds, kinds, strict=True)})
    grouped = records.select(
        F.expr(key).cast("string").alias("group"), "partition", "offset", *arguments
    )
    return grouped.where("group IS NOT NULL")


def _argument(number: int) -> str:
    """What a column's argument is called: not as the column, which may be an ``offset``."""
    return f"argument {number}"


def _refuse_other_definition(config: Aggregate) -> None:
    """Check that the checkpoint's states are of this key and these columns, and note them if new.

    Raises:
        InvalidConfigError: they were changed since.
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


def _began_with(config: Aggregate, source: StreamInfo) -> dict[str, str]:
    """The states that this checkpoint began with, by key."""
    note = local_path(config.checkpoint) / _BEGINNING
    if not note.exists():
        # Durably, before anything is added to those states: the next run must not begin with more.
        make_directory(note.parent)
        replace_durably(note, json.dumps(_changelog(config, source)).encode())
    found: dict[str, str] = json.loads(note.read_bytes())
    return found


def _changelog(config: Aggregate, source: StreamInfo) -> dict[str, str]:
    table = compacted_view(client_of(config.server), config.into)
    if table.num_rows:
        newest_ns = pc.max(table.column("timestamp").cast("int64")).as_py()
        refuse_older(newest_ns, source, into=config.into)
    keys, values = (table.column(name).to_pylist() for name in ("key", "value"))
    try:
        return {key.decode(): value.decode() for key, value in zip(keys, values, strict=True)}
    except UnicodeDecodeError as error:
        raise InvalidRecordError(
            f"stream {config.into} has records that are no states of an aggregate; write to another"
        ) from error
