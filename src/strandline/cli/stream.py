"""``strandline stream``: create, list, describe, grow and delete streams."""

import contextlib
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Final, Literal

import typer

from strandline.cli import stream_schema
from strandline.cli.completion import stream_names
from strandline.cli.output import (
    SERVER_DEFAULT,
    OutputFormat,
    OutputOption,
    ServerOption,
    YesOption,
    examples,
    is_asked,
    note,
    print_done,
    print_json,
    print_line,
    print_table,
    reports_errors,
)
from strandline.cli.parsing import parse_duration, parse_size, setting_text, size_text
from strandline.cli.top import leaderless_of, with_leaderless
from strandline.errors import NotAllowedError, UnavailableError

if TYPE_CHECKING:
    from strandline.api.admin import StreamInfo
    from strandline.client.client import Client

LIST_COLUMNS: Final = ("name", "subject", "#partitions", "#records", "#size", "acks")
ELECTION_S: Final = 3.0
"""How long to wait for a partition's leader to be elected."""

app = typer.Typer(
    no_args_is_help=True, help="Create, inspect, grow and delete streams, and delete old records."
)
app.add_typer(stream_schema.app, name="schema")

NewNameArgument = Annotated[str, typer.Argument(metavar="NAME", help="The stream's name.")]
NameArgument = Annotated[
    str,
    typer.Argument(metavar="NAME", help="The stream's name.", autocompletion=stream_names),
]
RETENTION = "Retention and size"
VALUES = "Stored values"


@app.command(
    epilog=examples(
        "strandline stream create orders --subject 'orders.>' --partitions 4",
        "strandline stream create audit --subject audit --retention-age 30d --compression zstd",
        "strandline stream create prices --subject 'prices.*' --partition-by key --compact",
        "strandline stream create payments --subject 'payments.>' --encryption",
    )
)
@reports_errors
def create(
    *,
    name: NewNameArgument,
    subject: Annotated[
        str | None,
        typer.Option(
            help="NATS subject to record; * and > are wildcards.", show_default="the name"
        ),
    ] = None,
    partitions: Annotated[int, typer.Option(help="Number of partitions.", min=1)] = 1,
    partition_by: Annotated[
        Literal["suffix", "subject", "key", "message_id"] | None,
        typer.Option(
            help="What chooses a record's partition.", show_default="subject if it has wildcards"
        ),
    ] = None,
    queue_group: Annotated[
        str, typer.Option(help="Streams with the same group share a subject's records.")
    ] = "",
    replicas: Annotated[
        int, typer.Option(help="Replicas per partition; more than 1 needs a cluster.", min=1)
    ] = 1,
    min_isr: Annotated[
        int, typer.Option(help="In-sync replicas below which publishes are rejected.", min=1)
    ] = 1,
    acks: Annotated[
        Literal["memory", "disk", "replicated"] | None,
        typer.Option(
            help="How safe a record is before it is acknowledged.",
            show_default="replicated if replicas > 1, else disk",
        ),
    ] = None,
    pub_ack: Annotated[bool, typer.Option(help="Send JetStream's PubAck to publishers.")] = True,
    compression: Annotated[
        Literal["none", "zstd", "lz4"],
        typer.Option(help="Compression of stored batches.", rich_help_panel=VALUES),
    ] = "none",
    encryption: Annotated[
        bool,
        typer.Option(
            "--encryption",
            help="Encrypt stored batches; needs a master key.",
            rich_help_panel=VALUES,
        ),
    ] = False,
    schema_validation: Annotated[
        bool,
        typer.Option(
            "--schema-validation",
            help="Reject values that do not fit the stream's schema.",
            rich_help_panel=VALUES,
        ),
    ] = False,
    retention_age: Annotated[
        int,
        typer.Option(
            parser=parse_duration,
            metavar="DURATION",
            help="Maximum age, e.g. 7d; 0 is unlimited.",
            rich_help_panel=RETENTION,
        ),
    ] = 0,
    retention_bytes: Annotated[
        int,
        typer.Option(
            parser=parse_size,
            metavar="SIZE",
            help="Maximum size per partition, e.g. 10GiB; 0 is unlimited.",
            rich_help_panel=RETENTION,
        ),
    ] = 0,
    retention_records: Annotated[
        int,
        typer.Option(
            metavar="N",
            help="Maximum number per partition; 0 is unlimited.",
            min=0,
            rich_help_panel=RETENTION,
        ),
    ] = 0,
    max_records_per_subject: Annotated[
        int,
        typer.Option(
            metavar="N",
            help="Maximum number per subject; 0 is unlimited.",
            min=0,
            rich_help_panel=RETENTION,
        ),
    ] = 0,
    compact: Annotated[
        bool,
        typer.Option(
            "--compact", help="Keep only the newest record of each key.", rich_help_panel=RETENTION
        ),
    ] = False,
    dedup_window: Annotated[
        int,
        typer.Option(
            parser=parse_duration,
            metavar="DURATION",
            help="How long a Nats-Msg-Id is remembered; 0 is off.",
            show_default="2min",
            rich_help_panel=RETENTION,
        ),
    ] = 120_000,
    segment_bytes: Annotated[
        int,
        typer.Option(
            parser=parse_size,
            metavar="SIZE",
            help="Size of one segment file.",
            show_default="256MiB",
        ),
    ] = 256 << 20,
    server: ServerOption = SERVER_DEFAULT,
    output: OutputOption = OutputFormat.text,
) -> None:
    """Create a stream, which records what is published on its subject."""
    import strandline

    with strandline.connect(server) as client:
        info = client.create_stream(
            name,
            subject=subject,
            partitions=partitions,
            partition_by=partition_by,
            queue_group=queue_group,
            replicas=replicas,
            min_isr=min_isr,
            acks=acks,
            pub_ack=pub_ack,
            compression=compression,
            encryption=encryption,
            schema_validation=schema_validation,
            retention_age_ms=retention_age,
            retention_bytes=retention_bytes,
            retention_records=retention_records,
            max_records_per_subject=max_records_per_subject,
            compact=compact,
            dedup_window_ms=dedup_window,
            segment_bytes=segment_bytes,
        )
    parts = f"{partitions} partition{'s' if partitions > 1 else ''}"
    print_done(f"created {name}: records '{info.subject}' in {parts}", info, output=output)
    if info.also_answering and output is OutputFormat.text:
        print_line(_also_answering(info))


def _also_answering(info: "StreamInfo") -> str:
    others = ", ".join(info.also_answering)
    return (
        f"publishes to some of its subjects are also acknowledged by {others}; a publisher that "
        "needs the ack of one stream names it in the header Nats-Expected-Stream"
    )


@app.command("list", epilog=examples("strandline stream list", "strandline stream list -o json"))
@reports_errors
def list_streams(
    *,
    server: ServerOption = SERVER_DEFAULT,
    output: OutputOption = OutputFormat.text,
) -> None:
    """List all streams."""
    import strandline

    with strandline.connect(server) as client:
        infos = client.list_streams()
        is_cluster = bool(client.server_info().brokers)
    if output is OutputFormat.json:
        for info in infos:
            print_json(info)
        return
    if not infos:
        print_line(
            "no streams yet; create one with: strandline stream create NAME --subject SUBJECT"
        )
        return
    rows: list[tuple[object, ...]] = [
        (
            info.name,
            info.subject,
            len(info.partitions),
            sum(part.records for part in info.partitions),
            size_text(sum(part.size_bytes for part in info.partitions)),
            info.config.acks,
        )
        for info in infos
    ]
    leaderless = [leaderless_of(info) if is_cluster else () for info in infos]
    print_table(*with_leaderless(LIST_COLUMNS, rows, leaderless))
    if any(leaderless):
        note("partitions without a leader take no records; see 'strandline cluster status'")


@app.command(epilog=examples("strandline stream info orders"))
@reports_errors
def info(
    *,
    name: NameArgument,
    server: ServerOption = SERVER_DEFAULT,
    output: OutputOption = OutputFormat.text,
) -> None:
    """Show a stream's settings and the offsets of its partitions."""
    import strandline

    with strandline.connect(server) as client:
        found, leaderless = _described(client, name)
        schema = _schema_text(client, name) if output is OutputFormat.text else ""
    if output is OutputFormat.json:
        print_json(found)
    else:
        _print_info(found, schema)
    if leaderless:
        numbers = ", ".join(map(str, leaderless))
        raise UnavailableError(
            f"partitions {numbers} of stream {name!r} have no leader: the offsets above are "
            "those of the broker's own replica. See 'strandline cluster status'"
        )


def _described(client: "Client", name: str) -> "tuple[StreamInfo, tuple[int, ...]]":
    """Return a stream, and which partitions lack a leader even after waiting for an election."""
    deadline_s = time.monotonic() + ELECTION_S
    while True:
        found = client.stream_info(name, of_leaders=False)
        leaderless = leaderless_of(found)
        if not leaderless or not client.server_info().brokers:
            return client.stream_info(name), ()
        if time.monotonic() >= deadline_s:
            return found, leaderless
        time.sleep(0.2)


def _schema_text(client: "Client", name: str) -> str:
    """Return a description of the newest version of a stream's schema; empty without one."""
    with contextlib.suppress(NotAllowedError, UnavailableError):
        for each in client.schemas.list(name)[-1:]:
            return f"version {each.version} of {each.format} values"
    return ""


def _print_info(found: "StreamInfo", schema: str) -> None:
    name = found.config.name
    created = datetime.fromtimestamp(found.created_ns / 1e9, UTC)
    print_line(f"stream {name}, created {created:%Y-%m-%d %H:%M:%S} UTC")
    if found.also_answering:
        print_line(_also_answering(found))
    if schema:
        print_line(f"schema: {schema}; see 'strandline stream schema show {name}'")
    print_line("")
    print_table(
        ("setting", "value"),
        [
            (key, setting_text(key, getattr(found.config, key)))
            for key in found.config.__struct_fields__
        ],
    )
    print_line("")
    print_table(
        ("#partition", "#log start offset", "#high watermark", "#log end offset", "#size"),
        [
            (
                part.partition,
                part.log_start_offset,
                part.high_watermark,
                part.log_end_offset,
                size_text(part.size_bytes),
            )
            for part in found.partitions
        ],
    )


@app.command(
    epilog=examples(
        "strandline stream update orders --schema-validation",
        "strandline stream update orders --no-schema-validation",
    )
)
@reports_errors
def update(
    *,
    name: NameArgument,
    schema_validation: Annotated[
        bool, typer.Option(help="Reject values that do not fit its schema.")
    ],
    server: ServerOption = SERVER_DEFAULT,
    output: OutputOption = OutputFormat.text,
) -> None:
    """Change a setting of a stream; the others are fixed when it is created.

    Records that are stored stay, whether they fit or not.
    """
    import strandline

    with strandline.connect(server) as client:
        info = client.update_stream(name, schema_validation=schema_validation)
    acts = "rejects" if schema_validation else "accepts"
    print_done(f"{name} {acts} values that do not fit its schema", info, output=output)


@app.command(epilog=examples("strandline stream delete orders --yes"))
@reports_errors
def delete(
    *,
    name: NameArgument,
    yes: YesOption = False,
    server: ServerOption = SERVER_DEFAULT,
    output: OutputOption = OutputFormat.text,
) -> None:
    """Delete a stream and all its records; this cannot be undone.

    Asks for confirmation at a terminal, unless --yes.
    """
    import strandline

    with strandline.connect(server) as client:
        if is_asked(output, yes=yes):
            found = client.stream_info(name)
            records = sum(part.records for part in found.partitions)
            typer.confirm(f"Delete stream {name} with {records:,} records?", abort=True)
        client.delete_stream(name)
    print_done(f"deleted {name}", {"deleted": name}, output=output)


@app.command(
    "add-partitions", epilog=examples("strandline stream add-partitions orders --partitions 8")
)
@reports_errors
def add_partitions(
    *,
    name: NameArgument,
    partitions: Annotated[int, typer.Option(help="The new number of partitions.", min=1)],
    server: ServerOption = SERVER_DEFAULT,
    output: OutputOption = OutputFormat.text,
) -> None:
    """Add partitions to a stream of a cluster.

    A key may belong to another partition afterwards, so records of one key are in order only before
    the change and after it. Partitions cannot be removed.
    """
    import strandline
    from strandline.cli.cluster_admin import ORDER_TIMEOUT_S

    with strandline.connect(server, timeout_s=ORDER_TIMEOUT_S) as client:
        info = client.add_partitions(name, partitions)
    print_done(f"{name} has {len(info.partitions)} partitions", info, output=output)


@app.command(
    "delete-records",
    epilog=examples("strandline stream delete-records orders --before 5000 --partition 2"),
)
@reports_errors
def delete_records(
    *,
    name: NameArgument,
    before: Annotated[
        int, typer.Option(metavar="OFFSET", help="Delete records below this offset.", min=0)
    ],
    partition: Annotated[int, typer.Option(help="Number of the partition.", min=0)] = 0,
    server: ServerOption = SERVER_DEFAULT,
    output: OutputOption = OutputFormat.text,
) -> None:
    """Delete the oldest records of a partition; this cannot be undone.

    Readers no longer see records below the offset. Disk space is freed when whole segments are
    below it.
    """
    import strandline

    with strandline.connect(server) as client:
        info = client.delete_records(name, before, partition=partition)
    start = info.partitions[partition].log_start_offset
    document = {"stream": name, "partition": partition, "log_start_offset": start}
    print_done(f"{name}/{partition} now starts at offset {start:,}", document, output=output)
