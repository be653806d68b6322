"""Sizes, durations, places and headers as people type them."""

from datetime import UTC, datetime, timedelta

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

from strandline.cli.parsing import (
    duration_text,
    exact_size_text,
    parse_duration,
    parse_header,
    parse_offset,
    parse_size,
    setting_text,
    size_text,
)

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("4096", 4096),
        ("64MiB", 64 << 20),
        ("64 mib", 64 << 20),
        ("10GB", 10**10),
        ("1.5KiB", 1536),
        ("100B", 100),
    ],
)
def test_sizes_have_units(text, size):
    """Sizes take binary and decimal units in any case."""
    assert parse_size(text) == size


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [("250", 250), ("250ms", 250), ("30s", 30_000), ("12h", 43_200_000), ("7d", 604_800_000)],
)
def test_durations_have_units(text, milliseconds):
    """A bare number is milliseconds."""
    assert parse_duration(text) == milliseconds


@pytest.mark.parametrize("text", ["", "x", "-5", "5 parsecs", "1e9", "5 5", "9" * 30])
def test_what_is_no_size_is_a_usage_error(text):
    """An invalid size is rejected with an example."""
    with pytest.raises(typer.BadParameter, match="such as"):
        parse_size(text)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("earliest", "earliest"),
        ("latest", "latest"),
        ("0", 0),
        ("5000", 5000),
        ("-15m", NOW - timedelta(minutes=15)),
        ("2026-11-20T10:00:00Z", datetime(2026, 11, 20, 10, tzinfo=UTC)),
        ("2026-11-20", datetime(2026, 11, 20, tzinfo=UTC)),
        ("2026-11-20T10:00:00+02:00", datetime(2026, 11, 20, 8, tzinfo=UTC)),
    ],
)
def test_places_in_a_stream(text, place):
    """Words, offsets, times, and how long ago; a time without a zone is UTC."""
    assert parse_offset(text, NOW) == place


@pytest.mark.parametrize(
    "text", ["", "soon", "-", "1.5", "2026-13-01", "-9999999w", "-999999999999999w"]
)
def test_what_is_no_place_is_a_usage_error(text):
    """The error lists the valid forms of an offset."""
    with pytest.raises(typer.BadParameter):
        parse_offset(text, NOW)


def test_headers_keep_what_follows_the_first_separator():
    """Both notations are taken; the value may contain the separator."""
    assert parse_header("trace=a=b") == ("trace", b"a=b")
    assert parse_header("Nats-Msg-Id: 17") == ("Nats-Msg-Id", b"17")
    assert parse_header("indent=  x ") == ("indent", b"  x ")
    for text in ("", "novalue", "=x"):
        with pytest.raises(typer.BadParameter):
            parse_header(text)


@given(st.text(max_size=30))
def test_any_text_is_a_value_or_a_usage_error(text):
    """No text raises anything but BadParameter."""
    for parse in (parse_size, parse_duration, parse_offset, parse_header):
        try:
            parse(text)
        except typer.BadParameter:
            continue


@pytest.mark.parametrize(
    ("size", "text", "exact"),
    [
        (0, "0B", "0"),
        (1, "1B", "1B"),
        (1536, "1.5KiB", "1536B"),
        (64 << 20, "64MiB", "64MiB"),
        (3 << 29, "1.5GiB", "1536MiB"),
        (10**9, "953.7MiB", "1000000000B"),
    ],
)
def test_sizes_are_shown_in_units(size, text, exact):
    """Measured sizes are rounded to a digit; settings are exact."""
    assert size_text(size) == text
    assert exact_size_text(size) == exact


@given(st.integers(0, 10**15 - 1))
def test_exact_texts_are_read_back(number):
    """What is shown of a setting can be given as a flag again."""
    assert parse_size(exact_size_text(number)) == number
    assert parse_duration(duration_text(number)) == number


def test_a_setting_is_shown_by_the_unit_in_its_name():
    """Sizes and durations have units, the rest stays as it is."""
    assert setting_text("retention_age_ms", 7 * 86_400_000) == "7d"
    assert setting_text("retention_bytes", 10 << 30) == "10GiB"
    assert setting_text("partitions", 4) == 4
    assert setting_text("pub_ack", True) is True
