"""How records are printed."""

import json

import pyarrow as pa
import pytest

from strandline.cli.read import print_json_record, print_raw_record, print_table_record, rows

BATCH = pa.record_batch(
    {
        "offset": pa.array([7], pa.int64()),
        "timestamp": pa.array([1_700_000_000_123_456_789], pa.timestamp("ns", "UTC")),
        "subject": pa.array(["orders.paris"]).dictionary_encode(),
        "key": pa.array([None], pa.binary()),
        "value": pa.array([b"caf\xc3\xa9"], pa.binary()),
        "headers": pa.array([[("a", b"1"), ("a", b"2")]], pa.map_(pa.string(), pa.binary())),
    }
)


@pytest.fixture
def record():
    return rows(BATCH)[0]


def test_times_keep_their_nanoseconds(record):
    """Times are ISO 8601 in UTC with all nine digits, with or without pandas."""
    assert record["timestamp"] == "2023-11-14T22:13:20.123456789Z"


def test_a_record_as_json(record, capsys):
    """Text stays text, null stays null, headers keep order and repeats."""
    print_json_record(record)
    assert json.loads(capsys.readouterr().out) == {
        "offset": 7,
        "timestamp": "2023-11-14T22:13:20.123456789Z",
        "subject": "orders.paris",
        "key": None,
        "value": "café",
        "headers": [["a", "1"], ["a", "2"]],
    }


def test_bytes_that_are_no_text_are_base64(capsys):
    """The field's name says so, and nothing is lost."""
    print_json_record({"value": b"\xff\x00"})
    assert json.loads(capsys.readouterr().out) == {"value_base64": "/wA="}


def test_header_values_that_are_no_text_are_base64(capsys):
    """All of the record's, so that their order is kept; on a line they are shown escaped."""
    headers = [("a", b"1"), ("b", b"\xff"), ("a", b"")]
    print_json_record({"headers": headers})
    expected = {"headers_base64": [["a", "MQ=="], ["b", "/w=="], ["a", ""]]}
    assert json.loads(capsys.readouterr().out) == expected
    print_table_record({"headers": headers})
    assert capsys.readouterr().out == "a=1 b=\\xff a=\n"


def test_a_record_as_a_line(record, capsys):
    """The columns are beside each other, null as a dash."""
    print_table_record(record)
    line = capsys.readouterr().out
    assert line.split() == ["7", record["timestamp"], "orders.paris", "-", "café", "a=1", "a=2"]


def test_a_value_cannot_steer_the_terminal(capsys):
    """Control characters and invalid text are escaped; long values are shortened."""
    print_table_record({"value": b"\x1b[2J\xff" + b"x" * 1000})
    line = capsys.readouterr().out
    assert line.startswith(r"\x1b[2J\xff")
    assert len(line) < 130
    print_table_record({"headers": [("\x1b]0;title\x07", b"\x1b")]})
    assert "\x1b" not in capsys.readouterr().out


def test_raw_is_the_value_and_a_line_end(capsysbinary):
    """Values leave as they came; a null value leaves nothing."""
    print_raw_record({"value": b"\xff\x00"})
    print_raw_record({"value": None})
    assert capsysbinary.readouterr().out == b"\xff\x00\n"
