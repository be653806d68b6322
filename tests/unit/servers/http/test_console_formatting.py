"""Values as text, and text as values."""

import io
import json

import fastavro
import pytest

from strandline.errors import InvalidRequestError
from strandline.servers.http.console import decoding, formatting
from strandline.servers.http.console.decoding import (
    PARSED_BYTES_MAX,
    SHOWN_CHARACTERS_MAX,
    SchemaDecoder,
    decoded,
    key_text,
)
from strandline.servers.http.console.records import positions_of, positions_text
from strandline.values.evolution import next_version
from tests.kit.proto import in_base64, message_class


@pytest.mark.parametrize(
    ("value", "text"),
    [
        *((0, "0 B"), (1023, "1,023 B"), (1024, "1.0 KiB"), (1536, "1.5 KiB")),
        *(((1 << 20) - 52, "1,023.9 KiB"), (1 << 20, "1.0 MiB"), (1 << 30, "1.0 GiB")),
        *((5 << 30, "5.0 GiB"), (1 << 40, "1.0 TiB"), (3 << 50, "3,072.0 TiB")),
    ],
)
def test_sizes_use_binary_units(value, text):
    """Bytes are shown in the largest unit that leaves a figure of at least one."""
    assert formatting.size(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        *((0, "0 s"), (0.001, "1 ms"), (0.5, "500 ms"), (1, "1 s"), (59.9, "59 s")),
        *((60, "1 min"), (61, "1 min 1 s"), (3600, "1 h"), (3601, "1 h 1 s"), (86_400, "1 d")),
        *((90_061, "1 d 1 h"), (-1, "-1 d 23 h")),
    ],
)
def test_durations_use_two_units(seconds, text):
    """A duration is shown by its two largest units."""
    assert formatting.duration(seconds) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        *((0, "0"), (0.04, "0.0"), (1.0, "1"), (1.25, "1.2"), (9.96, "10.0"), (10, "10")),
        *((10.5, "10"), (1_234_567, "1,234,567"), (-2.5, "-2")),
    ],
)
def test_small_numbers_have_one_digit_after_the_point(value, text):
    """Unless they are whole."""
    assert formatting.number(value) == text


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [("500", 500), ("30s", 30_000), ("1.5 h", 5_400_000), ("7D", 7 * 86_400_000)],
)
def test_durations_are_read_as_the_cli_reads_them(text, milliseconds):
    """A number with a unit, or milliseconds."""
    assert formatting.parse_duration(text, "age") == milliseconds


@pytest.mark.parametrize("text", ["", "-1", "1 fortnight", "1e9", "٣s", "9" * 16, "1.5.5s"])
def test_other_durations_and_sizes_are_rejected(text):
    """With the field and an example in the message."""
    with pytest.raises(InvalidRequestError, match=r"^age: .* write for example 7d"):
        formatting.parse_duration(text, "age")
    with pytest.raises(InvalidRequestError, match=r"^limit: .* write for example 64MiB"):
        formatting.parse_size(text, "limit")


@pytest.mark.parametrize("text", ["", "-1", "1.5", "x", "²", "9" * 19])
def test_counts_are_whole_numbers(text):
    """And anything else is rejected with the field's name."""
    with pytest.raises(InvalidRequestError, match=r"^partitions must be a whole number"):
        formatting.parse_count(text, "partitions")


def test_text_that_hides_or_controls_is_made_visible():
    """Escape sequences, direction marks and invisible characters; line ends and words stay."""
    assert formatting.escape_hidden("a\x1b[31mb") == "a\\x1b[31mb"
    assert formatting.escape_hidden("a\u202eb\u200b\ufeff") == "a\\u202eb\\u200b\\ufeff"
    assert formatting.escape_hidden("a\nb\tc äß 語 🙂") == "a\nb\tc äß 語 🙂"
    assert formatting.escape_hidden("\x00\r\u2028") == "\\x00\\r\\u2028"


def test_a_time_that_no_calendar_has_is_a_number():
    """Records may have any timestamp."""
    assert formatting.format_time(1_700_000_000_123_456_789) == "2023-11-14 22:13:20.123"
    assert formatting.format_time_ns(1_700_000_000_123_456_789) == "2023-11-14T22:13:20.123456789Z"
    assert formatting.format_time(1 << 62) == "2116-02-20 23:53:38.427"
    assert formatting.format_time(-(1 << 70)) == f"{-(1 << 70)} ns"


@pytest.mark.parametrize(
    ("value", "kind", "summary", "text"),
    [
        (None, "null", "null", "null"),
        (b"", "text", "", ""),
        (b'{"a": [1, 2]}', "JSON", '{"a": [1, 2]}', '{\n  "a": [\n    1,\n    2\n  ]\n}'),
        (b'{"a": }', "text", '{"a": }', '{"a": }'),
        (b"[" * 5000, "text", "[" * 160, "[" * 5000),
        (b"two\nlines", "text", "two lines", "two\nlines"),
        (b"\xff\x00", "bytes", "ff 00", f"00000000  {'ff 00':48} .."),
        (b"12", "text", "12", "12"),
    ],
)
def test_a_value_is_shown_as_what_it_is(value, kind, summary, text):
    """JSON is indented, text stays, other bytes are dumped; broken JSON is text."""
    assert decoded(value)[:3] == (kind, summary, text)


def test_a_value_may_be_shown_in_another_way():
    """As bytes although it is text, or as text although it is not."""
    assert decoded(b"ab", "hex").text == f"00000000  {'61 62':48} ab"
    assert decoded(b"\xffab", "text").text == "\ufffdab"
    assert decoded(b'{"a":1}', "text").text == '{"a":1}'
    assert key_text(b"k\xff") == "k\\xff"
    assert key_text(None) == ""


@pytest.mark.parametrize("how", ["auto", "text", "hex"])
@pytest.mark.parametrize(
    "value", [b"x" * (1 << 20), b"\xff" * (1 << 20), b'{"a":"' + b"y" * (1 << 20)]
)
def test_what_is_shown_of_a_large_value_is_limited(value, how):
    """A page has a limited size; the value itself can be downloaded."""
    shown = decoded(value, how)
    assert len(shown.text) <= SHOWN_CHARACTERS_MAX
    assert len(shown.summary) <= 160
    assert shown.is_cut


def test_positions_are_read_as_they_are_written():
    """Offsets by partition survive the address; anything else is rejected."""
    positions = {0: 12, 3: 0, 11: (1 << 62)}
    assert positions_of(positions_text(positions)) == positions
    assert positions_of("") == {}
    for text in ("0", "0:", ":1", "a:b", "0:-1", "0:1;1:2", "0:" + "9" * 40):
        with pytest.raises(InvalidRequestError, match="invalid offsets"):
            positions_of(text)


AVRO = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "name", "type": "string"}, {"name": "price", "type": "double"}],
}


def avro(**row):
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(AVRO), row)
    return out.getvalue()


def test_avro_is_shown_by_the_stream_s_schema():
    """Also text that would be markup, and numbers that JSON has not; never as text or hex."""
    decoder = SchemaDecoder([next_version([], json.dumps(AVRO))])
    shown = decoder.decoded(avro(name="<b>&\u202e", price=float("nan")), "auto")
    assert (shown.kind, shown.problem) == ("Avro", "")
    assert json.loads(shown.text) == {"name": "<b>&\u202e", "price": "NaN"}
    assert decoder.decoded(avro(name="a", price=1.0), "hex").kind == "bytes"
    assert decoder.decoded(None, "auto").kind == "null"


def test_a_message_is_shown_as_json():
    """By its columns, framed or not; JSON in a frame without it."""
    text = 'syntax = "proto3"; message Order { int32 id = 1; map<string, int32> n = 2; }'
    version = next_version([], in_base64(text), kind="protobuf", registry_id=7)
    decoder = SchemaDecoder([version])
    value = message_class(text, "Order")(id=5, n={"a": 1}).SerializeToString()
    for each in (value, b"\0\0\0\0\7\0" + value):
        shown = decoder.decoded(each, "auto")
        assert (shown.kind, shown.problem) == ("Protobuf", "")
        assert json.loads(shown.text) == {"id": 5, "n": {"a": 1}}
    assert decoder.decoded(b"\xff", "auto").problem.startswith("Error parsing message")
    schema = {"type": "object", "properties": {"id": {"type": "integer"}}}
    decoder = SchemaDecoder([next_version([], json.dumps(schema), registry_id=7)])
    shown = decoder.decoded(b'\0\0\0\0\7{"id":1}', "auto")
    assert (shown.kind, json.loads(shown.text), shown.problem) == ("JSON", {"id": 1}, "")


def test_a_value_that_does_not_fit_is_shown_as_it_looks():
    """With the reason; so is one that is too long, and what comes after too many bytes."""
    decoder = SchemaDecoder([next_version([], json.dumps(AVRO))])
    shown = decoder.decoded(b"plain", "auto")
    assert (shown.kind, shown.text) == ("text", "plain")
    assert shown.problem.startswith("it fits no version of the schema")
    long = avro(name="x" * PARSED_BYTES_MAX, price=1.0)
    assert decoder.decoded(long, "auto")[0::4] == ("bytes", "")


def test_a_page_decodes_so_many_bytes_only(monkeypatch):
    """The rest of the page is shown without the schema."""
    monkeypatch.setattr(decoding, "SCHEMA_BYTES_MAX", 40)
    decoder = SchemaDecoder([next_version([], json.dumps(AVRO))])
    kinds = [decoder.decoded(avro(name="\xff", price=1.5), "auto").kind for _ in range(5)]
    assert kinds == ["Avro"] * 3 + ["bytes"] * 2


def test_json_is_checked_by_the_stream_s_schema():
    """It is shown whole, with the fields that the schema does not name."""
    decoder = SchemaDecoder([next_version([], "id BIGINT NOT NULL")])
    shown = decoder.decoded(b'{"id":1,"more":2}', "auto")
    assert (shown.kind, json.loads(shown.text), shown.problem) == (
        "JSON",
        {"id": 1, "more": 2},
        "",
    )
    shown = decoder.decoded(b'{"more":2}', "auto")
    assert (shown.kind, shown.problem) == (
        "JSON",
        "'id', which the schema requires, is missing or null",
    )
    assert SchemaDecoder(()).decoded(b"{}", "auto").problem == ""
