"""Lines of JSON: one object each, whatever is told."""

import json
import logging
import subprocess
import sys

from strandline.server.logs import JsonFormatter, configure_logging


def line_of(message, *arguments, error=None):
    info = (type(error), error, None) if error is not None else None
    record = logging.LogRecord("a.b", logging.WARNING, "f", 1, message, arguments, info)
    text = JsonFormatter().format(record)
    assert "\n" not in text
    return json.loads(text)


def test_an_event_is_one_object():
    """Time, level, logger and message, as documented."""
    line = line_of("damage in %s", "orders/0")
    assert set(line) == {"time", "level", "logger", "message"}
    assert (line["level"], line["logger"]) == ("warning", "a.b")
    assert line["message"] == "damage in orders/0"
    assert line["time"].endswith("Z")


def test_nothing_breaks_the_line():
    """Line feeds, quotes, broken Unicode, and the lines of a trace."""
    line = line_of('a\n"b" %s', "\udc80", error=ValueError("c\nd"))
    assert line["message"] == 'a\n"b" ?'
    assert "ValueError: c\nd" in line["trace"]


def test_a_process_logs_as_it_is_told():
    """Each line on standard error is an object from the first on."""
    code = (
        "import logging; from strandline.server.logs import configure_logging;"
        "configure_logging('info', 'json'); logging.info('x %d', 1); logging.debug('no')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    [line] = done.stderr.splitlines()
    assert json.loads(line)["message"] == "x 1"


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
