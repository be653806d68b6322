"""A stream as a Polars ``LazyFrame``: the broker selects columns and filters by predicates.

Rules: Polars passes the predicate as an expression, whose JSON form is not a stable interface. The
parts that are recognized narrow the read. In any case the whole predicate is applied to what was
read. So a form that is not recognized costs time, but never changes the result.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec
import polars as pl
import pyarrow as pa
from polars.exceptions import ComputeError
from polars.io.plugins import register_io_source

from strandline.api.admin import StreamInfo
from strandline.errors import InvalidRequestError

COLUMNS: Final = ["partition", "offset", "timestamp", "subject", "key", "value", "headers"]
SUBJECT: Final = re.compile(r"[^\s.*>]+(\.[^\s.*>]+)*")
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
TIME_UNITS: Final = {"Nanoseconds": 1, "Microseconds": 1000, "Milliseconds": 1_000_000}
FLIPPED: Final = {"Eq": "Eq", "Lt": "Gt", "LtEq": "GtEq", "Gt": "Lt", "GtEq": "LtEq"}

Read = Callable[..., Any]


class Narrowing(msgspec.Struct):
    """The part of a predicate that a broker can apply; it may match more than the predicate."""

    subject: str | None = None
    keys: list[bytes] | None = None
    partition: int | None = None
    offset_from: int = 0
    offset_to: int | None = None
    """Exclusive."""
    timestamp_from: datetime | None = None
    timestamp_to: datetime | None = None
    """Exclusive."""

    @property
    def options(self) -> dict[str, Any]:
        """Return the filters as options of ``Client.read``."""
        names = ("subject", "keys", "timestamp_from", "timestamp_to")
        return {name: found for name in names if (found := getattr(self, name)) is not None}

    @property
    def has_offsets(self) -> bool:
        """Return whether it limits partitions or offsets."""
        return (self.partition, self.offset_from, self.offset_to) != (None, 0, None)


def lazy_frame(
    read: Read, stream_info: Callable[[], StreamInfo], options: Mapping[str, Any]
) -> pl.LazyFrame:
    """Return a frame that reads the stream each time it is collected.

    Args:
        read: ``Client.read``, bound to the stream.
        stream_info: returns the description of the stream.
        options: options for all reads.
    """
    for name in ("columns", "follow", "records_max"):
        if name in options:
            raise InvalidRequestError(f"a scan takes no {name!r}; the query says it")
    schema = _frame(read(columns=COLUMNS, records_max=0).read_all()).schema

    def batches(*asked: Any) -> Iterator[pl.DataFrame]:
        with_columns, predicate, n_rows, _ = asked
        # A limit counts records before the predicate is applied, so a broker cannot have both.
        narrowing = Narrowing() if predicate is None or n_rows is not None else narrow(predicate)
        wanted = {"columns": with_columns or COLUMNS, "records_max": n_rows, **options}
        for bounds in _bounds(narrowing, stream_info, options):
            for batch in read(**{**wanted, **narrowing.options, **bounds}):
                frame = _frame(batch)
                yield frame if predicate is None else frame.filter(predicate)

    return register_io_source(batches, schema=schema, is_pure=False)


def _bounds(
    narrowing: Narrowing, stream_info: Callable[[], StreamInfo], options: Mapping[str, Any]
) -> Iterator[dict[str, Any]]:
    """Yield the options of each read: one for all partitions, or one for each that may match."""
    if not narrowing.has_offsets or options.keys() & {"partition", "start", "starts", "stop"}:
        yield {}
        return
    for part in stream_info().partitions:
        end = part.high_watermark
        stop = end if narrowing.offset_to is None else min(end, narrowing.offset_to)
        begin = max(part.log_start_offset, narrowing.offset_from)
        if narrowing.partition in (None, part.partition) and begin < stop:
            is_first = begin == part.log_start_offset  # retention may delete this offset meanwhile
            start = "earliest" if is_first else begin
            yield {"partition": part.partition, "start": start, "stop": stop}


def _frame(table: pa.Table | pa.RecordBatch) -> pl.DataFrame:
    """Return Arrow data as a frame, with subjects as plain text instead of categories."""
    frame = pl.DataFrame(pl.from_arrow(table))
    if "subject" in frame.columns:
        frame = frame.with_columns(pl.col("subject").cast(pl.String))
    return frame


# Predicates


def narrow(predicate: pl.Expr) -> Narrowing:
    """Return the part of a predicate that a broker can apply; empty if none is recognized."""
    found = Narrowing()
    try:
        text = predicate.meta.serialize(format="json")
    except ComputeError:  # the predicate calls a Python function
        return found
    for each in _conjuncts(msgspec.json.decode(text)):
        match each:
            case {"BinaryExpr": {"left": {"Column": str(name)}, "op": str(op), "right": literal}}:
                _compare(found, name, op=op, value=_value(literal))
            case {"BinaryExpr": {"left": literal, "op": str(op), "right": {"Column": str(name)}}}:
                _compare(found, name, op=FLIPPED.get(op, ""), value=_value(literal))
            case {"Function": {"input": [{"Column": str(name)}, *literals], "function": function}}:
                _call(found, name, function=function, literals=literals)
    return found


def _conjuncts(tree: Any) -> Iterator[Any]:
    match tree:
        case {"BinaryExpr": {"left": left, "op": "And", "right": right}}:
            yield from _conjuncts(left)
            yield from _conjuncts(right)
        case _:
            yield tree


def _call(found: Narrowing, name: str, *, function: Any, literals: Sequence[Any]) -> None:
    values = [_value(each) for each in literals]
    match function, values:
        case {"Boolean": {"IsBetween": _}}, [low, high]:
            _compare(found, name, op="GtEq", value=low)
            _compare(found, name, op="LtEq", value=high)
        case {"Boolean": {"IsIn": _}}, [list(keys)] if name == "key":
            found.keys = [key for key in keys if isinstance(key, bytes)]
        case {"StringExpr": "StartsWith"}, [str(prefix)] if name == "subject":
            if prefix.endswith(".") and SUBJECT.fullmatch(prefix[:-1]):
                found.subject = f"{prefix}>"


def _compare(found: Narrowing, name: str, *, op: str, value: Any) -> None:
    """Narrow by ``column op value``."""
    match name, op, value:
        case "subject", "Eq", str() if SUBJECT.fullmatch(value):
            found.subject = value
        case "key", "Eq", bytes():
            found.keys = [value]
        case "partition", "Eq", int():
            found.partition = value
        case "offset", _, int():
            _narrow_offsets(found, op, value)
        case "timestamp", _, _ExactTime():
            _narrow_times(found, op, value.nanoseconds)


def _narrow_offsets(found: Narrowing, op: str, value: int) -> None:
    if op in ("Eq", "Gt", "GtEq"):
        found.offset_from = max(found.offset_from, value + (op == "Gt"))
    if op in ("Eq", "Lt", "LtEq"):
        end = value + (op != "Lt")
        found.offset_to = end if found.offset_to is None else min(found.offset_to, end)


def _narrow_times(found: Narrowing, op: str, nanoseconds: int) -> None:
    """Narrow by a time; made a little wider, since ``datetime`` has only microseconds."""
    if op in ("Eq", "Gt", "GtEq"):
        low = EPOCH + timedelta(microseconds=nanoseconds // 1000)
        found.timestamp_from = max(low, found.timestamp_from or low)
    if op in ("Eq", "Lt", "LtEq"):
        high = EPOCH + timedelta(microseconds=nanoseconds // 1000 + 1)
        found.timestamp_to = min(high, found.timestamp_to or high)


class _ExactTime(msgspec.Struct, frozen=True):
    """A time in a predicate; it may have nanoseconds."""

    nanoseconds: int


def _value(tree: Any) -> Any:
    """Return the value of a literal; None if it is no literal, or of another type."""
    match tree:
        case {"Literal": {"Scalar": {"Datetime": [int(count), str(unit), _]}}}:
            return _ExactTime(count * TIME_UNITS[unit]) if unit in TIME_UNITS else None
        case {"Literal": {"Scalar": {"Binary": list(octets)}}}:
            return bytes(octets)
        case {"Literal": {"Scalar": {"List": list(octets)}}}:
            return pa.ipc.open_stream(bytes(octets)).read_all().column(0).to_pylist()
        case {"Literal": {"Scalar": {**kinds}}} | {"Literal": {"Dyn": {**kinds}}}:
            [value] = kinds.values() or [None]
            return value if isinstance(value, int | str) else None
    return None
