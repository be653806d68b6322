"""The state of an aggregate: the change by a record, and the encoding in the changelog.

Rules: pure. The state of a key has the last offset applied of each partition, so that the newest
states of all keys together give the offset at which to resume.
"""

import hashlib
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from strandline.errors import UNDECODABLE, InvalidConfigError, InvalidRecordError

_NUMBERS = ("tinyint", "smallint", "int", "bigint", "float", "double")
_COMPARED = (*_NUMBERS, "string")
_KEPT = (*_COMPARED, "binary", "date", "decimal", "timestamp", "timestamp_ntz")
_TAKES = {"sum": _NUMBERS, "min": _COMPARED, "max": _COMPARED, "last": _KEPT}
"""Argument types by function. A state is JSON, which has numbers and texts: other types are kept as
text, which cannot be added or compared.
"""
_NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
"""Numbers that JSON cannot express, as the texts that Spark's ``to_json`` writes for them."""
_COLUMN = re.compile(r"(count|sum|min|max|last)\((.*)\)", re.DOTALL)


@dataclass(frozen=True)
class Fold:
    """One column of the state."""

    name: str
    function: str
    argument: str
    """SQL over a record; empty for ``count``."""


class AggregateState(msgspec.Struct, kw_only=True):
    """The state of a key."""

    values: dict[str, float | int | str | None]
    offsets: dict[int, int]
    """The last offset of each partition that is included in the values."""
    definition: str = ""
    """The result of ``definition_of`` for the aggregate."""


def definition_of(key: str, columns: Mapping[str, str]) -> str:
    """Return a digest of the key and the columns; white space does not change it."""
    texts = {name: " ".join(text.split()) for name, text in columns.items()}
    data = msgspec.json.encode([" ".join(key.split()), sorted(texts.items())])
    return hashlib.sha256(data).hexdigest()[:8]


def parse_folds(columns: Mapping[str, str]) -> list[Fold]:
    """Parse the columns of a state.

    Raises:
        InvalidConfigError: naming the column with an unknown function.
    """
    folds = []
    for name, text in columns.items():
        found = _COLUMN.fullmatch(text.strip())
        if found is None or (found[1] != "count" and not found[2].strip()):
            raise InvalidConfigError(
                f"column '{name}' must be count(), sum(X), min(X), max(X) or last(X), got {text!r}"
            )
        folds.append(Fold(name, found[1], found[2].strip()))
    return folds


def check_argument_types(folds: Iterable[Fold], types: Mapping[str, str]) -> None:
    """Check that a state can hold the arguments of its columns.

    Args:
        folds: the columns.
        types: Spark's type of each column's argument, as ``simpleString``.

    Raises:
        InvalidConfigError: naming the column and its type.
    """
    for each in folds:
        kind = types[each.name]
        takes = _TAKES.get(each.function)
        if takes is not None and kind.partition("(")[0] not in takes:
            raise InvalidConfigError(
                f"column '{each.name}': {each.function}() takes {', '.join(takes)}, got {kind}; "
                "CAST its argument"
            )


def check_same_columns(
    folds: Iterable[Fold], states: Iterable[AggregateState], *, into: str, definition: str
) -> None:
    """Check that states have these columns, and were made by the same definition.

    Args:
        folds: the columns.
        states: the states in the changelog.
        into: the changelog.
        definition: the definition of the aggregate.

    Raises:
        InvalidConfigError: the states have other columns, or were made by another definition.
    """
    wanted = {each.name for each in folds}
    for state in states:
        if set(state.values) != wanted:
            raise InvalidConfigError(
                f"the columns are {', '.join(sorted(wanted))}, but the states in {into} have "
                f"{', '.join(sorted(state.values))}; write to another stream, with a new checkpoint"
            )
        if state.definition != definition:
            raise InvalidConfigError(
                f"the states in {into} were made with another key, or other functions of their "
                "columns; write those, or write to another stream, with a new checkpoint"
            )


def fold(
    state: AggregateState,
    folds: Iterable[Fold],
    record: Mapping[str, Any],
    *,
    place: tuple[int, int],
) -> None:
    """Apply a record to a state, unless the state includes it already.

    Args:
        state: the state, which is changed.
        folds: the columns.
        record: an argument for each column.
        place: partition and offset of the record.

    Raises:
        InvalidConfigError: the state's value does not fit the function.
    """
    partition, offset = place
    if offset <= state.offsets.get(partition, -1):
        return
    for each in folds:
        old, new = state.values.get(each.name), record.get(each.name)
        try:
            state.values[each.name] = _folded(each.function, old, new)
        except TypeError as error:
            raise InvalidConfigError(
                f"column '{each.name}': {each.function}() of {new!r} and {old!r}, which is in the "
                "state and was made by another function; write to another stream, with a new "
                "checkpoint"
            ) from error
    state.offsets[partition] = offset


def encode_state(state: AggregateState) -> str:
    """Encode a state as JSON; equal states have equal encodings."""
    # Values are in the order of the columns; offsets have no fixed order.
    ordered = AggregateState(
        values={name: _in_json(value) for name, value in state.values.items()},
        offsets=dict(sorted(state.offsets.items())),
        definition=state.definition,
    )
    return msgspec.json.encode(ordered).decode()


def decode_state(text: str | bytes, *, where: str) -> AggregateState:
    """Decode the result of ``encode_state``.

    Raises:
        InvalidRecordError: the text is not a state.
    """
    try:
        return msgspec.json.decode(text, type=AggregateState)
    except UNDECODABLE as error:
        raise InvalidRecordError(
            f"{where} has no state of an aggregate: {error}; write to another stream, with a new "
            "checkpoint, to compute it again"
        ) from error


def next_offsets(states: Iterable[AggregateState]) -> dict[int, int]:
    """Return the first offset of each partition that no state includes."""
    found: dict[int, int] = {}
    for state in states:
        for partition, offset in state.offsets.items():
            found[partition] = max(found.get(partition, 0), offset + 1)
    return dict(sorted(found.items()))


def _in_json(value: Any) -> Any:
    """Convert a value to JSON; msgspec would write null for a number that is not finite."""
    if not isinstance(value, float) or math.isfinite(value):
        return value
    return next(text for text, number in _NOT_FINITE.items() if repr(number) == repr(value))


def _folded(function: str, old: Any, new: Any) -> Any:
    if function == "count":
        return (old or 0) + 1
    if new is None:
        return old
    if old is None or function == "last":
        return new
    if isinstance(old, str) and not isinstance(new, str):
        old = _NOT_FINITE.get(old, old)
    if function == "sum":
        return old + new
    # As in Spark, NaN is the largest number, so that the result does not depend on the order.
    chosen = min if function == "min" else max
    return chosen(old, new, key=lambda value: (value != value, value))  # noqa: PLR0124 - only NaN
