"""The output of commands."""

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from strandline.cli.output import (
    OutputFormat,
    print_error,
    print_json,
    print_line,
    print_table,
    progress,
    reports_errors,
)
from strandline.errors import DiskFullError, UnknownStreamError


def test_a_table_is_aligned_and_plain(capsys):
    """Numbers to the right, text to the left, no trailing blanks, no borders."""
    print_table(("name", "#records"), [("orders", 1_234_567), ("a", 1)])
    assert capsys.readouterr().out.splitlines() == [
        "NAME      RECORDS",
        "orders  1,234,567",
        "a               1",
    ]


def test_a_table_without_rows_has_its_heads(capsys):
    """An empty table is still a table."""
    print_table(("name", "#records"), [])
    assert capsys.readouterr().out == "NAME  RECORDS\n"


def test_help_is_wrapped_by_the_terminal_alone():
    """The lines of the source are not those of the help."""

    @reports_errors
    def command(*, output=OutputFormat.text):
        """Do something.

        Two lines of the source
        are one paragraph.
        """

    assert command.__doc__ == "Do something.\n\nTwo lines of the source are one paragraph."


def test_json_is_one_line(capsys):
    """Programs read line by line."""
    print_json({"a": "x\ny", "b": [1]})
    assert capsys.readouterr().out == '{"a":"x\\ny","b":[1]}\n'


HOSTILE = "a\x1b[31m\x07\x00\u202e\x9bé"


def test_what_could_control_a_terminal_is_escaped(capsys):
    """Names come from other users: in tables, lines, notes and JSON."""
    shown = r"a\x1b[31m\x07\x00\u202e\x9bé"
    print_table(("name", "#n"), [(HOSTILE + "\n", 1)])
    assert capsys.readouterr().out.splitlines()[1] == rf"{shown}\n  1"
    print_line(f"group {HOSTILE}\nof two lines")
    assert capsys.readouterr().out == f"group {shown}\nof two lines\n"
    print_error(UnknownStreamError(HOSTILE), OutputFormat.text)
    assert capsys.readouterr().err == f"error: {shown} (unknown_stream)\n"
    print_json({"name": HOSTILE, "far": "\U000e0001"})
    found = capsys.readouterr().out
    assert found.removesuffix("\n").isprintable()
    assert json.loads(found) == {"name": HOSTILE, "far": "\U000e0001"}


def test_an_error_is_one_line_on_standard_error(capsys):
    """The message and its code, nothing on standard output."""
    print_error(UnknownStreamError("no stream is named 'x'"), OutputFormat.text)
    captured = capsys.readouterr()
    assert captured.err == "error: no stream is named 'x' (unknown_stream)\n"
    assert captured.out == ""


def test_an_error_for_programs_is_json(capsys):
    """With --output json the error is a JSON object that says whether to retry."""
    print_error(DiskFullError("no space"), OutputFormat.json)
    assert json.loads(capsys.readouterr().err) == {
        "error": "disk_full",
        "message": "no space",
        "retriable": True,
    }


def test_a_package_that_is_missing_is_named(capsys):
    """A missing extra is named with its installation; a bug of ours is raised."""

    @reports_errors
    def command(*, output=OutputFormat.text):
        import a_package_that_nobody_has.inside  # noqa: F401 - it cannot be

    with pytest.raises(typer.Exit) as ended:
        command()
    assert ended.value.exit_code == 1
    said = capsys.readouterr().err
    assert "'a_package_that_nobody_has': pip install 'strandline[all]'" in said

    @reports_errors
    def broken(*, output=OutputFormat.text):
        import strandline.nothing_of_this_name  # noqa: F401 - it cannot be

    with pytest.raises(ModuleNotFoundError):
        broken()


def test_a_command_that_fails_exits_1(capsys):
    """Errors of the project end a command with exit code 1; bugs are not hidden."""

    @reports_errors
    def command(*, output: OutputFormat = OutputFormat.text) -> None:
        raise DiskFullError("no space")

    @reports_errors
    def buggy(*, output: OutputFormat = OutputFormat.text) -> None:
        raise ZeroDivisionError

    with pytest.raises(typer.Exit) as caught:
        command(output=OutputFormat.text)
    assert caught.value.exit_code == 1
    assert "no space" in capsys.readouterr().err
    with pytest.raises(ZeroDivisionError):
        buggy()


@pytest.mark.parametrize(
    ("failure", "said"),
    [
        (OSError(104, "Connection reset by peer"), "system failed: Connection reset by peer (un"),
        (BrokenPipeError(32, "Broken pipe"), "operating system failed: Broken pipe (unavailable)"),
        (TimeoutError("the read timed out"), "operating system failed: the read timed out (un"),
        (FileExistsError(17, "File exists", "/a/b"), "'/a/b': File exists"),
        (UnicodeEncodeError("utf-8", "a\udcff", 1, 2, "no"), "not UTF-8: 'a\\udcff' (invalid_requ"),
        (UnicodeEncodeError("ascii", "caf\u00e9", 3, 4, "no"), "cannot be encoded as ascii"),
    ],
)
def test_what_files_and_arguments_do_is_one_line(capsys, failure, said):
    """A lost connection, a file in the way, bytes that are no text: exit code 1.

    Nothing of it is called an error of standard output.
    """

    @reports_errors
    def command(*, output=OutputFormat.text):
        raise failure

    with pytest.raises(typer.Exit) as caught:
        command()
    assert caught.value.exit_code == 1
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert said in error
    assert "standard output" not in error
    assert error.count("\n") == 1


def test_output_that_cannot_be_written_is_one_line():
    """Also where the rest is written as Python ends."""
    with Path("/dev/full").open("w") as full:
        command = (sys.executable, "-m", "strandline.cli", "version")
        done = subprocess.run(
            command, check=False, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60
        )
    assert done.returncode == 1
    wanted = "error: cannot use standard output: No space left on device (unavailable)\n"
    assert done.stderr == wanted


def test_progress_stays_off_standard_output(capsys):
    """Progress goes to standard error, as single lines without a terminal."""
    with progress("reading", 10) as advance:
        advance(10)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.splitlines()[0] == "reading ..."


class Terminal(io.StringIO):
    """A standard output that is a terminal."""

    def isatty(self):
        return True


ROWS = [("orders-of-all-shops-in-europe", "orders.europe.*.shop.>", 64, 104_857_600, "replicated")]
HEADS = ("name", "subject", "#partitions", "#records", "acks")


@pytest.mark.parametrize("columns", [50, 70, 80])
def test_a_table_fits_the_terminal(monkeypatch, columns):
    """The longest texts are cut, no number is; a pipe gets all of it."""
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setattr("sys.stdout", out := Terminal())
    print_table(HEADS, ROWS)
    lines = out.getvalue().splitlines()
    assert max(map(len, lines)) == max(columns, 53), "no text is cut more than it has to be"
    assert "…" in lines[1]
    assert "64" in lines[1]
    assert "104,857,600" in lines[1]
    monkeypatch.setattr("sys.stdout", out := io.StringIO())
    print_table(HEADS, ROWS)
    assert ROWS[0][0] in out.getvalue()
    assert "…" not in out.getvalue()
