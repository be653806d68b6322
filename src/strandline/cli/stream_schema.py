"""``strandline stream schema``: the versions of the schema of a stream's values."""

import base64
import binascii
import contextlib
import json
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from strandline.cli.completion import stream_names
from strandline.cli.output import (
    SERVER_DEFAULT,
    OutputFormat,
    OutputOption,
    ServerOption,
    YesOption,
    examples,
    is_asked,
    print_done,
    print_json,
    print_line,
    print_list,
    print_table,
    reports_errors,
)
from strandline.cli.proto_files import compiled_proto
from strandline.errors import InvalidConfigError, InvalidRequestError
from strandline.values.schema import SchemaFormat

app = typer.Typer(
    no_args_is_help=True, help="Set and show the schema of a stream's values, in versions."
)

StreamArgument = Annotated[
    str,
    typer.Argument(metavar="NAME", help="The stream's name.", autocompletion=stream_names),
]
MessageOption = Annotated[
    str | None,
    typer.Option(
        help="Full name of the values' message type in Protocol Buffers.",
        show_default="the only one",
    ),
]


@app.command(
    "set",
    epilog=examples(
        "echo 'id BIGINT NOT NULL, customer STRING' | strandline stream schema set orders -",
        "strandline stream schema set orders order.schema.json",
        "strandline stream schema set payments payment.avsc",
        "strandline stream schema set payments payment.avsc --registry-id 17",
        "strandline stream schema set clicks shop/click.proto --message shop.Click",
    ),
)
@reports_errors
def set_schema(
    *,
    name: StreamArgument,
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            help="Columns as Spark writes them or as JSON, a JSON Schema, an Avro schema, a "
            ".proto file or its compiled descriptors; - is standard input.",
        ),
    ],
    schema_format: Annotated[
        SchemaFormat | None,
        typer.Option(
            "--format", help="The format of the values.", show_default="guessed from the file"
        ),
    ] = None,
    message: MessageOption = None,
    include: Annotated[
        list[Path] | None,
        typer.Option(
            help="Directory that imports of a .proto file are relative to; may be repeated.",
            show_default="the file's",
        ),
    ] = None,
    registry_id: Annotated[
        int | None,
        typer.Option(help="Id of the schema in a registry; framed values begin with it.", min=0),
    ] = None,
    server: ServerOption = SERVER_DEFAULT,
    output: OutputOption = OutputFormat.text,
) -> None:
    """Add a version to the schema of a stream's values.

    A later version may add columns that may be null, widen types, make columns nullable, and rename
    columns: by id in columns as JSON, by aliases in Avro, by number in Protocol Buffers. Other
    changes are rejected. If the file equals the newest version, nothing is changed.
    """
    import strandline

    text: str | bytes
    if schema_format == "protobuf" or message is not None or file.suffix == ".proto":
        schema_format = schema_format or "protobuf"
        text = _descriptors_of(file, include or [])
    else:
        text = _text_of(file)
    with strandline.connect(server) as client:
        found = client.schemas.set(
            name, text, format=schema_format, message=message, registry_id=registry_id
        )
    columns = f"{len(found.columns)} column{'s' if len(found.columns) > 1 else ''}"
    print_done(
        f"the schema of {name} is at version {found.version}: {columns} of {found.format} values",
        found,
        output=output,
    )


@app.command(
    "import",
    epilog=examples(
        "strandline stream schema import payments --registry https://registry.example.com",
        "strandline stream schema import clicks --registry http://localhost:8081 --subject clicks",
    ),
)
@reports_errors
def import_schema(
    *,
    name: StreamArgument,
    registry: Annotated[
        str, typer.Option(help="URL of a Confluent-compatible registry.", metavar="URL")
    ],
    subject: Annotated[
        str | None,
        typer.Option(help="Subject in the registry.", show_default="NAME-value"),
    ] = None,
    message: MessageOption = None,
    server: ServerOption = SERVER_DEFAULT,
    output: OutputOption = OutputFormat.text,
) -> None:
    """Add the versions of a registry's subject to the schema of a stream, with their ids.

    Versions whose ids the stream already has are skipped, so the command may be repeated. Each
    version must be able to read the values of earlier ones, as with set. Credentials are taken from
    the variable STRANDLINE_REGISTRY_AUTH, as user:password.
    """
    import strandline
    from strandline.cli.schema_registry import SchemaRegistry

    subject = subject or f"{name}-value"
    asked = SchemaRegistry(registry)
    with strandline.connect(server) as client:
        known = {each.registry_id: each.message for each in client.schemas.list(name)}
        added = 0
        for each in asked.versions(subject):
            if each.id in known:
                if message not in (None, known[each.id]):
                    raise InvalidConfigError(
                        f"version {each.version} of subject {subject} is imported already, "
                        f"{_of_message(known[each.id])}, not with {message!r}; leave --message out"
                    )
                continue
            try:
                found = client.schemas.set(
                    name,
                    asked.text(each),
                    format=each.format,
                    message=message,
                    registry_id=each.id,
                )
            except InvalidConfigError as error:
                raise InvalidConfigError(
                    f"version {each.version} of subject {subject}: {error.message}"
                ) from error
            added += 1
            print_done(
                f"the schema of {name} is at version {found.version}, version {each.version} of "
                f"subject {subject}, id {each.id}",
                found,
                output=output,
            )
    if not added and output is OutputFormat.text:
        print_line(f"the schema of {name} has all versions of subject {subject}")


def _of_message(name: str) -> str:
    return f"with the message {name!r}" if name else "without a message of Protocol Buffers"


def _text_of(file: Path) -> str:
    """Return the text of a file or of standard input.

    Raises:
        InvalidConfigError: the file cannot be read.
    """
    try:
        return _bytes_of(file).decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidConfigError(
            f"cannot read the schema {file}: it is no text in UTF-8 ({error.reason} at byte "
            f"{error.start}); if it is of Protocol Buffers, add --format protobuf"
        ) from error


def _bytes_of(file: Path) -> bytes:
    try:
        return sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
    except OSError as error:
        raise InvalidConfigError(
            f"cannot read the schema {file}: {error.strerror}; give another FILE"
        ) from error


def _descriptors_of(file: Path, include: Sequence[Path]) -> str | bytes:
    """Return the descriptors of a ``.proto`` file, or those in a file, perhaps in Base64."""
    if file.suffix == ".proto":
        return compiled_proto(file, include)
    data = _bytes_of(file)
    with contextlib.suppress(UnicodeDecodeError, binascii.Error):
        base64.b64decode(data.decode("ascii"), validate=True)
        return data.decode("ascii")
    return data


@app.command(
    "list",
    epilog=examples(
        "strandline stream schema list orders", "strandline stream schema list orders -o json"
    ),
)
@reports_errors
def list_versions(
    *,
    name: StreamArgument,
    server: ServerOption = SERVER_DEFAULT,
    output: OutputOption = OutputFormat.text,
) -> None:
    """List the versions of a stream's schema, the oldest first."""
    import strandline

    with strandline.connect(server) as client:
        found = client.schemas.list(name)
    if not found and output is OutputFormat.text:
        print_line(f"no schema yet; set one with: strandline stream schema set {name} FILE")
        return
    print_list(
        found,
        ("#version", "format", "#columns", "#registry id", "set"),
        lambda each: (
            each.version,
            each.format,
            len(each.columns),
            "-" if each.registry_id is None else each.registry_id,
            _time_text(each.created_ns),
        ),
        output=output,
    )


@app.command(
    epilog=examples(
        "strandline stream schema show orders",
        "strandline stream schema show orders --version 1",
        "strandline stream schema show orders -o json > columns.json   # edit, and set it again",
    )
)
@reports_errors
def show(
    *,
    name: StreamArgument,
    version: Annotated[
        int | None, typer.Option(help="The version to show.", show_default="the newest", min=1)
    ] = None,
    server: ServerOption = SERVER_DEFAULT,
    output: OutputOption = OutputFormat.text,
) -> None:
    """Show the columns of a version of a stream's schema, and its JSON Schema with all limits."""
    import strandline

    with strandline.connect(server) as client:
        found = client.schemas.get(name, version)
    if output is OutputFormat.json:
        print_json(found)
        return
    print_line(f"schema of {name}, version {found.version}, {found.format} values")
    print_table(
        ("#id", "column", "type", "nullable"),
        [(each.id, each.name, each.type, each.nullable) for each in found.columns],
    )
    if found.json_schema:
        print_line("")
        print_line(json.dumps(json.loads(found.json_schema), indent=2, ensure_ascii=False))


@app.command(epilog=examples("strandline stream schema delete orders --yes"))
@reports_errors
def delete(
    *,
    name: StreamArgument,
    yes: YesOption = False,
    server: ServerOption = SERVER_DEFAULT,
    output: OutputOption = OutputFormat.text,
) -> None:
    """Delete all versions of a stream's schema; its records stay.

    The next version that is set becomes version 1 and may have any columns. Asks for confirmation
    at a terminal, unless --yes.
    """
    import strandline

    with strandline.connect(server) as client:
        count = len(client.schemas.list(name))
        if not count:
            raise InvalidRequestError(
                f"stream {name!r} has no schema to delete; is it the name of another stream?"
            )
        if is_asked(output, yes=yes):
            typer.confirm(f"Delete the schema of {name}, {count} versions?", abort=True)
        client.schemas.delete(name)
    print_done(f"deleted the schema of {name}", {"deleted": name}, output=output)


def _time_text(at_ns: int) -> str:
    return f"{datetime.fromtimestamp(at_ns / 1e9, UTC):%Y-%m-%d %H:%M:%S} UTC"
