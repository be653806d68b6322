"""Checks the demo's tables against the source and against the log, record by record.

Rules: nothing here shares code with the writers of the tables: the source is read from the package,
the log through the client, and the expected sums are computed from the source. A difference is an
error that names the record.
"""

from dataclasses import dataclass
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

import strandline.client
from strandline.errors import DataLossError
from strandline.spark.demo.flights import CLOCK_SUBJECT, COLUMNS
from strandline.spark.table import read_table, table_summary


@dataclass(frozen=True)
class Checked:
    """The numbers of records and rows that were compared and found equal."""

    flights: int
    values: int
    log_records: int
    hours: int
    commits: int


def check_everything(directory: Path, flights: pa.Table, *, server: str, stream: str) -> Checked:
    """Compare both tables with the source and the first one with the log.

    Args:
        directory: the directory of the demo's output.
        flights: the source.
        server: address of the broker.
        stream: name of the stream.

    Raises:
        DataLossError: a record is missing, there twice, or different.
    """
    records = read_table(str(directory / "records")).to_table()
    log_records = check_against_log(records, server=server, stream=stream)
    landed = records.filter(pc.is_valid(records["id"])).select(COLUMNS).sort_by("id")
    check_equal(landed, flights, what="flight", key="id")
    hours = check_delays(directory, flights)
    return Checked(
        flights=landed.num_rows,
        values=landed.num_rows * landed.num_columns,
        log_records=log_records,
        hours=hours,
        commits=table_summary(str(directory / "records")).commits,
    )


def check_against_log(records: pa.Table, *, server: str, stream: str) -> int:
    """Check that records of the log and rows of the table correspond one to one."""
    rows = records.select(["partition", "offset", "subject", "id"]).sort_by(
        [("partition", "ascending"), ("offset", "ascending")]
    )
    logged = read_log(server, stream)
    check_equal(rows, logged, what="record", key="offset")
    return int(logged.num_rows)


def read_log(server: str, stream: str) -> pa.Table:
    """Return partition, offset, subject and flight number of every record in the log, in order."""
    schema = pa.schema(
        [
            ("partition", pa.int32()),
            ("offset", pa.int64()),
            ("subject", pa.string()),
            ("id", pa.int32()),
        ]
    )
    parts = []
    with strandline.client.connect(server) as client:
        for info in client.stream_info(stream).partitions:
            reader = client.read(
                stream, partition=info.partition, columns=["offset", "subject", "value"]
            )
            for batch in reader:
                ids = [
                    None if subject == CLOCK_SUBJECT else msgspec.json.decode(value)["id"]
                    for subject, value in zip(
                        batch.column("subject").to_pylist(),
                        batch.column("value").to_pylist(),
                        strict=True,
                    )
                ]
                columns = [
                    pa.repeat(pa.scalar(info.partition, pa.int32()), batch.num_rows),
                    batch.column("offset"),
                    batch.column("subject").cast(pa.string()),
                    pa.array(ids, pa.int32()),
                ]
                parts.append(pa.RecordBatch.from_arrays(columns, schema=schema))
    return pa.Table.from_batches(parts, schema)


def check_delays(directory: Path, flights: pa.Table) -> int:
    """Check that the sums per carrier and hour equal those computed from the source."""
    expected = expected_delays(flights)
    found = read_table(str(directory / "delays")).to_table()
    ordered = found.select(expected.column_names).cast(expected.schema)
    order = [("hour", "ascending"), ("carrier", "ascending")]
    check_equal(ordered.sort_by(order), expected.sort_by(order), what="hour", key="hour")
    return int(expected.num_rows)


def expected_delays(flights: pa.Table) -> pa.Table:
    """Compute flights, departures and delays per carrier and hour from the source."""
    hours = pc.strptime(flights["time_hour"], format="%Y-%m-%dT%H:%M:%SZ", unit="us")
    keyed = pa.table(
        {
            "hour": pc.assume_timezone(hours, "UTC"),
            "carrier": flights["carrier"],
            "dep_delay": flights["dep_delay"].cast(pa.int64()),
        }
    )
    sums = keyed.group_by(["hour", "carrier"]).aggregate(
        [([], "count_all"), *((("dep_delay", kind)) for kind in ("count", "sum", "max"))]
    )
    return sums.select(
        ["hour", "carrier", "count_all", "dep_delay_count", "dep_delay_sum", "dep_delay_max"]
    ).rename_columns(["hour", "carrier", "flights", "departed", "dep_delay_sum", "dep_delay_max"])


def check_equal(found: pa.Table, wanted: pa.Table, *, what: str, key: str) -> None:
    """Compare two tables value by value.

    Raises:
        DataLossError: naming the first row that differs.
    """
    if found.num_rows != wanted.num_rows:
        raise DataLossError(
            f"{found.num_rows:,} rows are there, {wanted.num_rows:,} should be; first difference: "
            f"{what} {_first_difference(found[key], wanted[key])}"
        )
    for name in wanted.column_names:
        a, b = found[name].combine_chunks(), wanted[name].combine_chunks()
        if not a.equals(b.cast(a.type)):
            raise DataLossError(
                f"column {name} differs at {what} {_first_difference(found[name], wanted[name])}"
            )


def _first_difference(found: pa.ChunkedArray, wanted: pa.ChunkedArray) -> str:
    pairs = zip(found.to_pylist(), wanted.to_pylist(), strict=False)
    for row, (a, b) in enumerate(pairs):
        if a != b:
            return f"in row {row}: {a!r} instead of {b!r}"
    return f"after row {min(len(found), len(wanted))}"
