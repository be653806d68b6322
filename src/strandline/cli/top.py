"""``strandline top``: streams with rates, consumer groups with lag, and brokers, as they change."""

import sys
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
import typer

from strandline.cli import cluster_admin
from strandline.cli.output import (
    SERVER_DEFAULT,
    OutputFormat,
    OutputOption,
    ServerOption,
    examples,
    print_json,
    print_line,
    print_table,
    reports_errors,
    writing_output,
)
from strandline.cli.parsing import size_text
from strandline.cli.signals import interrupted_by_sigterm
from strandline.errors import StrandlineError, UnknownStreamError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from strandline.api.admin import StreamInfo
    from strandline.client.client import Client

EPILOG = examples(
    "strandline top                                    # until Ctrl-C",
    "strandline top --interval 10",
    "strandline top --count 2 -o json                  # two measurements, for programs",
)
STREAM_COLUMNS: Final = ("stream", "#partitions", "#records", "#size", "#records/s", "#bytes/s")
GROUP_COLUMNS: Final = ("group", "#members", "#lag", "#consumed/s")
LEADERLESS_COLUMN: Final = "without leader"
BROKER_COLUMNS: Final = ("#broker", "state", "flight", "#leads")


class StreamRate(msgspec.Struct, frozen=True, kw_only=True):
    """The size of a stream, and how fast it grows."""

    stream: str
    partitions: int
    records: int
    size_bytes: int
    end: int
    """The sum of the high watermarks."""
    records_per_s: float | None = None
    """None at the first measurement of the stream."""
    bytes_per_s: float | None = None
    """Growth of the size; retention and compaction may make it negative."""
    leaderless: tuple[int, ...] = ()
    """Partitions without a leader: they take no records, and the figures of their stream are what
    the broker that was asked knows."""


class GroupLag(msgspec.Struct, frozen=True, kw_only=True):
    """A consumer group's members and lag."""

    group: str
    members: int
    lag: int
    """The number of records between the committed offsets and the high watermarks."""
    committed: int
    """The sum of the committed offsets."""
    records_per_s: float | None = None
    """How fast the committed offsets advance."""


class BrokerLine(msgspec.Struct, frozen=True, kw_only=True):
    """A broker of the cluster."""

    broker: int
    state: str
    flight_address: str
    leads: int
    """The number of partitions that the broker leads."""


class Measurement(msgspec.Struct, frozen=True, kw_only=True):
    """The values at one moment."""

    at_s: float
    """Seconds since 1970."""
    streams: tuple[StreamRate, ...]
    groups: tuple[GroupLag, ...]
    brokers: tuple[BrokerLine, ...] = ()
    """Empty if the broker is not part of a cluster."""
    error: str = ""
    """Why this measurement failed; the other fields are then those of the last one."""


@reports_errors
def top(
    *,
    interval: Annotated[float, typer.Option(help="Seconds between measurements.", min=0.2)] = 2.0,
    count: Annotated[
        int | None,
        typer.Option(
            "--count", "-n", help="Number of measurements.", show_default="until Ctrl-C", min=1
        ),
    ] = None,
    server: ServerOption = SERVER_DEFAULT,
    output: OutputOption = OutputFormat.text,
) -> None:
    """Show streams with rates, groups with lag and brokers, refreshed until Ctrl-C.

    A terminal shows the newest measurement only; otherwise each one is printed. If the broker stops
    answering, the command waits for it. Partitions without a leader are named beside their stream.
    """
    import strandline

    with strandline.connect(server) as client, interrupted_by_sigterm():
        measured = _measured(client, server, interval_s=interval, count=count)
        try:
            if output is OutputFormat.json:
                for each in measured:
                    print_json(each)
            elif sys.stdout.isatty():
                _show_live(measured)
            else:
                for each in measured:
                    _print_measurement(each)
        except KeyboardInterrupt:
            pass  # Ctrl-C is the way to end the command


def _measured(
    client: "Client", server: str, *, interval_s: float, count: int | None
) -> Iterator[Measurement]:
    """Measure at intervals. If the first measurement fails, raise; later ones report the error."""
    last: Measurement | None = None
    number = 0
    while True:
        try:
            last = measure(client, server, last)
        except StrandlineError as error:
            if last is None:
                raise
            last = msgspec.structs.replace(last, error=error.message)
        yield last
        number += 1
        if number == count:
            return
        time.sleep(interval_s)


def measure(client: "Client", server: str, last: Measurement | None) -> Measurement:
    """Measure once, with the rates since the last measurement."""
    infos, is_cluster = client.list_streams(), bool(client.server_info().brokers)
    ends = {
        (info.name, part.partition): part.high_watermark
        for info in infos
        for part in info.partitions
    }
    streams = [
        StreamRate(
            stream=info.name,
            partitions=len(info.partitions),
            records=sum(part.records for part in info.partitions),
            size_bytes=sum(part.size_bytes for part in info.partitions),
            end=sum(part.high_watermark for part in info.partitions),
            leaderless=leaderless_of(info) if is_cluster else (),
        )
        for info in infos
    ]
    groups = [_group(client, name, ends) for name in _group_names(client)]
    now_s = time.time()
    return Measurement(
        at_s=now_s,
        streams=tuple(_with_stream_rates(streams, last, now_s)),
        groups=tuple(_with_group_rates(groups, last, now_s)),
        brokers=_brokers(server) if is_cluster else (),
    )


def leaderless_of(info: "StreamInfo") -> tuple[int, ...]:
    """Return the partitions of a cluster's stream that have no leader."""
    return tuple(part.partition for part in info.partitions if not part.leader)


def _group_names(client: "Client") -> list[str]:
    """Return all groups; where there has been none, do not create their stream."""
    from strandline.api.groups import GROUPS_STREAM

    try:
        client.stream_info(GROUPS_STREAM, of_leaders=False)
    except UnknownStreamError:
        return []
    return [each.group for each in client.groups.list()]


def _group(client: "Client", name: str, ends: dict[tuple[str, int], int]) -> GroupLag:
    found = client.groups.info(name)
    committed = {
        (stream, number): offset
        for stream, offsets in found.positions.items()
        for number, offset in offsets.items()
    }
    lag = sum(max(0, ends[key] - at) for key, at in committed.items() if key in ends)
    return GroupLag(
        group=name, members=len(found.members), lag=lag, committed=sum(committed.values())
    )


def _brokers(server: str) -> tuple[BrokerLine, ...]:
    from strandline.api.cluster import CLUSTER_STATUS

    with cluster_admin.connected(server) as connection:
        [status] = connection.action(CLUSTER_STATUS, None)
    led = [part.leader for part in status.partitions]
    return tuple(
        BrokerLine(
            broker=each.id,
            state=each.state,
            flight_address=each.flight_address,
            leads=led.count(each.id),
        )
        for each in status.brokers
    )


def _with_stream_rates(
    streams: list[StreamRate], last: Measurement | None, now_s: float
) -> Iterator[StreamRate]:
    before = {each.stream: each for each in last.streams} if last else {}
    for each in streams:
        old = before.get(each.stream)
        if last is None or old is None:
            yield each
            continue
        seconds = max(now_s - last.at_s, 1e-3)
        yield msgspec.structs.replace(
            each,
            records_per_s=round((each.end - old.end) / seconds, 1),
            bytes_per_s=round((each.size_bytes - old.size_bytes) / seconds, 1),
        )


def _with_group_rates(
    groups: list[GroupLag], last: Measurement | None, now_s: float
) -> Iterator[GroupLag]:
    before = {each.group: each for each in last.groups} if last else {}
    for each in groups:
        old = before.get(each.group)
        if last is None or old is None:
            yield each
            continue
        seconds = max(now_s - last.at_s, 1e-3)
        rate = round((each.committed - old.committed) / seconds, 1)
        yield msgspec.structs.replace(each, records_per_s=rate)


# Output


def _tables(found: Measurement) -> Iterator[tuple[tuple[str, ...], list[tuple[object, ...]]]]:
    """Yield columns and rows of each table; busy streams and groups with much lag come first."""
    streams = sorted(found.streams, key=lambda each: (-(each.records_per_s or 0), each.stream))
    rows: list[tuple[object, ...]] = [
        (
            each.stream,
            each.partitions,
            each.records,
            size_text(each.size_bytes),
            _rate(each.records_per_s),
            "-" if each.bytes_per_s is None else size_text(max(0, int(each.bytes_per_s))),
        )
        for each in streams
    ]
    yield with_leaderless(STREAM_COLUMNS, rows, [each.leaderless for each in streams])
    if found.groups:
        groups = sorted(found.groups, key=lambda each: (-each.lag, each.group))
        yield (
            GROUP_COLUMNS,
            [(each.group, each.members, each.lag, _rate(each.records_per_s)) for each in groups],
        )
    if found.brokers:
        yield (
            BROKER_COLUMNS,
            [(each.broker, each.state, each.flight_address, each.leads) for each in found.brokers],
        )


def with_leaderless(
    columns: tuple[str, ...], rows: list[tuple[object, ...]], leaderless: Sequence[Sequence[int]]
) -> tuple[tuple[str, ...], list[tuple[object, ...]]]:
    """Add a column with the partitions that have no leader, if there are any."""
    if not any(leaderless):
        return columns, rows
    texts = [", ".join(map(str, each)) or "-" for each in leaderless]
    return (
        (*columns, LEADERLESS_COLUMN),
        [(*row, text) for row, text in zip(rows, texts, strict=True)],
    )


def _rate(per_s: float | None) -> str:
    return "-" if per_s is None else f"{per_s:,.0f}"


def _title(found: Measurement) -> str:
    shown = time.strftime("%H:%M:%S", time.localtime(found.at_s))
    title = f"{shown}  streams: {len(found.streams)}, groups: {len(found.groups)}"
    if leaderless := _leaderless(found):
        title += f", partitions without a leader: {leaderless}"
    return f"{title}  no answer: {found.error}" if found.error else title


def _leaderless(found: Measurement) -> int:
    return sum(len(each.leaderless) for each in found.streams)


def _print_measurement(found: Measurement) -> None:
    print_line(_title(found))
    for columns, rows in _tables(found):
        print_table(columns, rows)
    print_line("")


def _show_live(measured: Iterator[Measurement]) -> None:
    from rich.live import Live

    with Live(screen=True, auto_refresh=False) as screen:
        for found in measured:
            with writing_output():
                screen.update(_screen(found), refresh=True)


def _screen(found: Measurement) -> "RenderableType":
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    style = "red" if found.error or _leaderless(found) else "bold"
    parts: list[Any] = [Text(_title(found), style=style)]
    for columns, rows in _tables(found):
        table = Table(box=None, header_style="dim", padding=(0, 2, 0, 0))
        for name in columns:
            numeric = name.startswith("#")
            table.add_column(name.removeprefix("#"), justify="right" if numeric else "left")
        for row in rows:
            table.add_row(*(Text(_cell_text(value)) for value in row))
        parts += [Text(""), table]
    return Group(*parts)


def _cell_text(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)
