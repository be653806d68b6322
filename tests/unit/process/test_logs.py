"""JSON log lines: one object each, whatever is logged."""

import contextlib
import json
import logging
import os
import signal
import subprocess
import sys

import pytest

from strandline.process.logs import JsonFormatter, configure_logging, logging_to_stderr


def line_of(message, *arguments, error=None):
    info = (type(error), error, None) if error is not None else None
    record = logging.LogRecord("a.b", logging.WARNING, "f", 1, message, arguments, info)
    text = JsonFormatter().format(record)
    assert "\n" not in text
    return json.loads(text)


def test_an_event_is_one_object():
    """Time, level, logger and message, as documented."""
    line = line_of("corruption in %s", "orders/0")
    assert set(line) == {"time", "level", "logger", "message"}
    assert (line["level"], line["logger"]) == ("warning", "a.b")
    assert line["message"] == "corruption in orders/0"
    assert line["time"].endswith("Z")


def test_nothing_breaks_the_line():
    """Line feeds, quotes, broken Unicode, and the lines of a trace."""
    line = line_of('a\n"b" %s', "\udc80", error=ValueError("c\nd"))
    assert line["message"] == 'a\n"b" ?'
    assert "ValueError: c\nd" in line["trace"]


def test_a_process_logs_as_it_is_told():
    """Each line on standard error is an object from the first on."""
    code = (
        "import logging; from strandline.process.logs import configure_logging;"
        "configure_logging('info', 'json'); logging.info('x %d', 1); logging.debug('no')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    [line] = done.stderr.splitlines()
    assert json.loads(line)["message"] == "x 1"


def run_logging(code):
    """Return the log of a process that runs these lines with JSON logs."""
    start = (
        "import logging, os, subprocess, sys, threading, warnings\n"
        "from strandline.process.logs import logging_to_stderr\n"
        "with logging_to_stderr('info', 'json'):\n    "
    )
    done = subprocess.run(
        [sys.executable, "-c", start + code.replace("\n", "\n    ")],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert all({"time", "level", "logger", "message"} <= set(line) for line in lines)
    return lines


@pytest.mark.parametrize(
    ("code", "level", "message"),
    [
        ("os.write(2, b'raw\\n')", "warning", "raw"),
        ("os.write(2, b'no end')", "warning", "no end"),
        ("os.write(2, b'\\xff\\n')", "warning", "\ufffd"),
        ("os.write(2, b'E0102 00:00 x.cc] bad\\n')", "error", "E0102 00:00 x.cc] bad"),
        ("os.write(2, b'I0102 00:00 x.cc] so\\n')", "info", "I0102 00:00 x.cc] so"),
        ("subprocess.run(['sh', '-c', 'echo child >&2'])", "warning", "child"),
        ("print('printed', file=sys.stderr)", "warning", "printed"),
    ],
)
def test_what_others_write_there_becomes_an_event(code, level, message):
    """Lines of C libraries and child processes are captured."""
    [line] = run_logging(code)
    assert (line["level"], line["logger"], line["message"]) == (level, "stderr", message)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("warnings.warn('careful\\nhere')", "UserWarning: careful\nhere"),
        ("1 / 0", "ZeroDivisionError"),
        ("threading.Thread(target=lambda: 1 / 0).start()", "ZeroDivisionError"),
        ("class A:\n  def __del__(self):\n    1 / 0\nA()", "ZeroDivisionError"),
    ],
)
def test_what_python_prints_over_several_lines_is_one_event(code, words):
    """Warnings and uncaught errors, with their tracebacks."""
    [line] = run_logging(code)
    assert words in line["message"] + line.get("trace", "")


def test_a_crash_is_reported_by_the_process_itself():
    """The pipe's reader dies with it, so the stack goes to the original standard error."""
    code = (
        "import faulthandler, os; faulthandler.enable()\n"
        "from strandline.process.logs import logging_to_stderr\n"
        "with logging_to_stderr('info', 'json'):\n    os.abort()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == -signal.SIGABRT
    assert "Fatal Python error: Aborted" in done.stderr


def test_a_broken_standard_error_does_not_complain_to_itself(capsys):
    """A logging failure is reported on standard error, unless it came from there."""
    source, sink = os.pipe()
    os.close(source)
    logging.getLogger().handlers.clear()
    stream = os.fdopen(sink, "w")
    configure_logging("info", "json", stream)
    [handler] = logging.getLogger().handlers
    logging.getLogger("stderr").info("a complaint")
    assert capsys.readouterr().err == ""
    logging.getLogger("strandline").info("an event")
    assert "BrokenPipeError" in capsys.readouterr().err
    logging.getLogger().removeHandler(handler)
    with contextlib.suppress(BrokenPipeError):
        stream.close()


def test_text_is_for_people_and_left_alone(capfd):
    """Nothing is put between the process and its standard error."""
    logging.getLogger().handlers.clear()
    with logging_to_stderr("info", "text"):
        os.write(2, b"raw\n")
    assert capfd.readouterr().err == "raw\n"


def test_logs_go_to_standard_error(capsys):
    """A line per event, with its level."""
    logging.getLogger().handlers.clear()
    configure_logging("warning", "text")
    logging.getLogger("strandline").info("not this")
    logging.getLogger("strandline").warning("but this")
    output = capsys.readouterr()
    assert output.out == ""
    assert "WARNING strandline: but this" in output.err
    assert "not this" not in output.err
