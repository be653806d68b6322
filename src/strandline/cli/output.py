"""What commands print, for people and for programs.

Rules: with ``--output json`` every line on standard output is one JSON document; an error is one
line on standard error either way, with the stable code from docs/errors.md.
"""

import contextlib
import functools
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from typing import Annotated, Any, TypeVar

import msgspec
import typer
from rich.markup import escape

from strandline.errors import (
    InvalidConfigError,
    InvalidRequestError,
    StrandlineError,
    UnavailableError,
)
from strandline.optional_dependencies import missing_package

EXIT_ERROR = 1
Command = TypeVar("Command", bound=Callable[..., None])
Advance = Callable[[int], None]
T = TypeVar("T")


class OutputFormat(StrEnum):
    """For whom to print."""

    text = "text"
    json = "json"


OutputOption = Annotated[
    OutputFormat,
    typer.Option("--output", "-o", help="Print for people (text) or programs (json)."),
]
ServerOption = Annotated[
    str,
    typer.Option(
        "--server",
        "-s",
        envvar="STRANDLINE_SERVER",
        metavar="HOST:PORT",
        help="The broker's Arrow Flight address.",
    ),
]
SERVER_DEFAULT = "127.0.0.1:9293"
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


def is_asked(output: OutputFormat, *, yes: bool) -> bool:
    """Whether somebody is there to be asked, and did not say yes already."""
    return not yes and sys.stdin.isatty() and output is OutputFormat.text


def examples(*lines: str) -> str:
    """Text for the end of a command's help, its lines kept as they are."""
    return "\b\nExamples:\n" + "\n".join(f"  {escape(line)}" for line in lines)


def print_json(value: object) -> None:
    """One JSON document on one line."""
    sys.stdout.write(msgspec.json.encode(value).decode() + "\n")
    sys.stdout.flush()


def print_line(text: str) -> None:
    """One line of text on standard output."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def print_done(text: str, document: object, *, output: OutputFormat) -> None:
    """What a command has done: a line for people, a document for programs."""
    if output is OutputFormat.json:
        print_json(document)
    else:
        print_line(text)


def print_list(
    found: Iterable[T],
    columns: Sequence[str],
    row: Callable[[T], Sequence[object]],
    *,
    output: OutputFormat,
) -> None:
    """What a command lists: a table for people, a document each for programs."""
    if output is OutputFormat.json:
        for each in found:
            print_json(each)
    else:
        print_table(columns, map(row, found))


def note(text: str) -> None:
    """One line for the person watching; never mixed with results."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """An aligned table; a column whose name begins with # is numeric.

    Plain text: no borders to cut away, no colours to strip, and pipes get the same as terminals.
    """
    heads = [name.removeprefix("#").upper() for name in columns]
    cells = [[_cell(value) for value in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(heads, *cells, strict=True)]
    for line in (heads, *cells):
        parts = [
            text.rjust(width) if name.startswith("#") else text.ljust(width)
            for name, text, width in zip(columns, line, widths, strict=True)
        ]
        print_line("  ".join(parts).rstrip())


def print_error(error: StrandlineError, output: OutputFormat) -> None:
    """One line that says what went wrong and, as the message should, what to do."""
    if output is OutputFormat.json:
        report = {"error": error.code, "message": error.message, "retriable": error.retriable}
        note(msgspec.json.encode(report).decode())
    else:
        note(f"error: {error.message} ({error.code})")


def reports_errors(command: Command) -> Command:
    """Turn a ``StrandlineError`` of a command into one line and exit code 1.

    So, too, what files, the output and the arguments do to it: bugs alone show where they are.
    """

    @functools.wraps(command)
    def run(*args: Any, output: OutputFormat = OutputFormat.text, **kwargs: Any) -> None:
        try:
            command(*args, output=output, **kwargs)
        except StrandlineError as error:
            print_error(error, output)
            raise typer.Exit(EXIT_ERROR) from error
        except ModuleNotFoundError as error:
            print_error(_not_installed(error), output)
            raise typer.Exit(EXIT_ERROR) from error
        except UnicodeEncodeError as error:
            print_error(_not_encodable(error), output)
            raise typer.Exit(EXIT_ERROR) from error
        except BrokenPipeError:
            _forget_output()  # its reader has gone, as `| head` does; nobody is left to tell
        except OSError as error:
            place = "standard output" if error.filename is None else repr(error.filename)
            print_error(UnavailableError(f"cannot use {place}: {error.strerror}"), output)
            if error.filename is None:
                _forget_output()
            raise typer.Exit(EXIT_ERROR) from error

    return run  # type: ignore[return-value] # functools.wraps keeps the signature


def _forget_output() -> None:
    """Let what is still to be written go nowhere, or Python would fail in writing it at the end."""
    with contextlib.suppress(OSError):  # it is no file, in a test
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _not_encodable(error: UnicodeEncodeError) -> StrandlineError:
    """Which text is to blame: arguments that are not UTF-8 have surrogates for those bytes."""
    text = error.object[max(error.start - 20, 0) : error.end + 20]
    if any("\ud800" <= letter <= "\udfff" for letter in error.object[error.start : error.end]):
        return InvalidRequestError(f"an argument is not UTF-8: {text!a}")
    return InvalidConfigError(
        f"{text!a} cannot be written in {error.encoding}: set PYTHONUTF8=1, or another locale"
    )


def _not_installed(error: ModuleNotFoundError) -> StrandlineError:
    """What to do about a package of others that is missing; one of ours is a bug."""
    package = (error.name or "strandline").partition(".")[0]
    if package.startswith(("strandline", "pyspark_strandline")):
        raise error
    return InvalidConfigError(missing_package(error))


@contextmanager
def progress(title: str, total: int | None, *, unit: str = "records") -> Iterator[Advance]:
    """A progress bar on standard error while the block runs.

    Args:
        title: what is being done.
        total: how many units; ``None`` if unknown.
        unit: what is counted; ``bytes`` are shown in binary units.

    Yields:
        a function to call with the number of units done since its last call.
    """
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        Progress,
        ProgressColumn,
        TextColumn,
        TimeElapsedColumn,
        TransferSpeedColumn,
    )

    counts: list[ProgressColumn] = (
        [DownloadColumn(binary_units=True), TransferSpeedColumn()]
        if unit == "bytes"
        else [MofNCompleteColumn(), TextColumn(unit)]
    )
    console = Console(stderr=True)
    if not console.is_terminal:
        note(f"{title} ...")
    columns = (TextColumn("{task.description}"), BarColumn(), *counts, TimeElapsedColumn())
    # Standard output is the result's: Rich would otherwise print it above the bar, on this console.
    with Progress(
        *columns, console=console, disable=not console.is_terminal, redirect_stdout=False
    ) as bar:
        task = bar.add_task(title, total=total)
        yield lambda done: bar.advance(task, done)


def _cell(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return str(value)
