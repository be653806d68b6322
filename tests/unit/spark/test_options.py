"""Options of the Spark formats: decoding, checks and messages."""

import re
from pathlib import Path

import pytest

from strandline.errors import InvalidConfigError
from strandline.spark.offset_options import parse_timestamp
from strandline.spark.options import (
    READ_OPTIONS,
    TABLE_OPTIONS,
    WRITE_OPTIONS,
    parse_read_options,
    parse_table_options,
    parse_write_options,
)

BASE = {"server": "localhost:9293", "stream": "flights"}


def read(*, streaming=False, **options):
    return parse_read_options(BASE | options, streaming=streaming)


def test_defaults_read_everything_and_reject_loss():
    """A read that names only broker and stream starts at the beginning and fails on data loss."""
    options = read()
    assert (options.starting_offsets, options.ending_offsets) == ("earliest", "latest")
    assert options.fail_on_data_loss
    assert options.subject is None


def test_names_are_matched_without_case():
    """Spark lowers option names, so any spelling of case is understood."""
    assert read(MAXRECORDSPERTRIGGER="5").records_per_trigger_max == 5
    assert read(maxrecordspertrigger="5").records_per_trigger_max == 5


def test_a_misspelt_option_is_rejected_with_the_right_name():
    """A typo would be ignored by Spark, so a near miss is an error that names the option."""
    with pytest.raises(InvalidConfigError, match="did you mean 'startingOffsets'"):
        read(startingOffset="latest")


@pytest.mark.parametrize(
    ("parse", "name", "hint"),
    [
        (read, "maxOffsetsPerTrigger", "'maxRecordsPerTrigger'"),
        (read, "minOffsetsPerTrigger", "'minBytesPerTrigger'"),
        (read, "maxRecordsPerBatch", "'maxRecordsPerTrigger'"),
        (read, "endingOffsetsByTimestamp", "'endingTimestamp'"),
        (read, "endTimestamp", "'endingTimestamp'"),
        (read, "startingOffsetsByTimestamp", "'startingTimestamp'"),
        (read, "endOffset", "'endingOffsets'"),
        (read, "startOffset", "'startingOffsets'"),
        (read, "kafka.group.id", "'group'"),
        (read, "maxBytes", "'maxBytesPerTrigger'"),
    ],
)
def test_what_other_sources_call_an_option_is_rejected(parse, name, hint):
    """A limit or an end by the name it has in Kafka's source would otherwise not hold, silently."""
    with pytest.raises(InvalidConfigError, match=f"did you mean {hint}"):
        parse(**{name: "1"})


def test_options_of_spark_itself_pass():
    """Options that Spark adds on its own are none of our business."""
    read(checkpointlocation="/tmp/c", queryname="q")


def write(**options):
    return parse_write_options(BASE | options)


def table(**options):
    return parse_table_options({"path": "/t"} | options)


@pytest.mark.parametrize(
    ("parse", "name", "hint"),
    [
        (read, "assign", "did you mean 'stream'"),
        (read, "subscribePattern", "did you mean 'streamPattern'"),
        (read, "kafka.bootstrap.servers", "did you mean 'server'"),
        (read, "path", "did you mean 'stream'"),
        (read, "includeHeaders", "there are: server, "),
        (write, "subscribe", "did you mean 'stream'"),
        (write, "startingOffsets", "there are: server, "),
        (write, "transactionId", "there are: server, "),
        (table, "mergeSchema", "there are: path, "),
        (table, "codec", "there are: path, "),
        (table, "compresion", "did you mean 'compression'"),
    ],
)
def test_every_option_that_is_not_ours_is_rejected(parse, name, hint):
    """Spark would ignore it silently."""
    with pytest.raises(InvalidConfigError, match=rf"unknown option '{name.lower()}' .*{hint}"):
        parse(**{name.lower(): "1"})


def test_a_table_of_spark_s_catalog_is_rejected_with_what_to_write():
    """Spark keeps its options to itself, and the first use would miss them."""
    given = {"owner": "root", "provider": "x", "option.stream": "y"}
    for parse in (read, table):
        with pytest.raises(InvalidConfigError, match="CREATE TEMPORARY VIEW"):
            parse(**given)


def test_the_kind_of_a_read_may_be_unknown_yet():
    """Options of both are taken where a schema is asked for, wrong values are not."""
    both = BASE | {"endingOffsets": "latest", "group": "g"}
    assert parse_read_options(both, streaming=None).group == "g"
    with pytest.raises(InvalidConfigError, match="'longPollMs'"):
        parse_read_options(BASE | {"longPollMs": "soon"}, streaming=None)


@pytest.mark.parametrize("missing", ["server", "stream"])
def test_a_missing_option_is_named(missing):
    """Without broker or stream the error says which option to give."""
    with pytest.raises(
        InvalidConfigError, match=f"'{missing}" if missing == "stream" else "server"
    ):
        parse_read_options({k: v for k, v in BASE.items() if k != missing}, streaming=False)


def test_servers_takes_a_list_and_a_scheme():
    """All addresses are kept, with or without grpc://: any may be away when a task starts."""
    options = parse_read_options({"servers": "grpc://a:1, b:2", "stream": "s"}, streaming=False)
    assert options.server == "a:1,b:2"


def test_offsets_as_json():
    """A place for each partition: numbers and words."""
    assert read(startingOffsets='{"1": 5, "0": "latest"}').starting_offsets == {1: 5, 0: "latest"}
    assert read(startingOffsets="LATEST").starting_offsets == "latest"


@pytest.mark.parametrize(
    "text", ["soon", "[]", "{}", '{"a": 1}', '{"0": -1}', '{"0": true}', '{"0": "late"}', "{"]
)
def test_wrong_offsets_say_what_is_taken(text):
    """Other forms than the three are rejected with an example."""
    with pytest.raises(InvalidConfigError, match="earliest, latest or JSON"):
        read(startingOffsets=text)


def test_a_stream_read_takes_no_end():
    """A streaming read with endingOffsets is rejected with an alternative."""
    with pytest.raises(InvalidConfigError, match="availableNow"):
        read(streaming=True, endingOffsets="latest")


def test_a_batch_read_has_no_progress_to_note():
    """The options that name a group and an output are for streaming reads."""
    found = read(streaming=True, group="copy a into b", output="b@1")
    assert (found.group, found.output) == ("copy a into b", "b@1")
    for name in ("group", "output"):
        with pytest.raises(InvalidConfigError, match=f"'{name}' is for streaming"):
            read(**{name: "b"})


def test_offsets_and_time_exclude_each_other():
    """A read starts at offsets or at a time, not at both."""
    with pytest.raises(InvalidConfigError, match="not both"):
        read(startingOffsets="earliest", startingTimestamp="2013-01-01")


@pytest.mark.parametrize("text", ["0", "-1", "1.5", "many", "٣x"])
def test_counts_are_positive_whole_numbers(text):
    """Zero or an invalid limit is rejected."""
    with pytest.raises(InvalidConfigError, match="maxRecordsPerTrigger"):
        read(maxRecordsPerTrigger=text)


def test_flags_are_true_or_false():
    """A flag is one of two words."""
    assert not read(failOnDataLoss="FALSE").fail_on_data_loss
    with pytest.raises(InvalidConfigError, match="true or false"):
        read(failOnDataLoss="no")


def test_keys_are_one_text_or_a_json_list():
    """Keys come as one key or as a list of keys."""
    assert read(keys="AA").keys == (b"AA",)
    assert read(keys='["AA", "ü"]').keys == (b"AA", "ü".encode())
    for wrong in ("[", "[]", "[1]"):
        with pytest.raises(InvalidConfigError, match="keys"):
            read(keys=wrong)


@pytest.mark.parametrize(
    ("text", "nanoseconds"),
    [
        ("1000", 1_000_000_000),
        ("1970-01-01T00:00:01Z", 1_000_000_000),
        ("1970-01-01 00:00:01.000001", 1_000_001_000),
        ("1970-01-01T01:00:00+01:00", 0),
        ("1969-12-31T23:59:59.5Z", -500_000_000),
    ],
)
def test_timestamps_are_utc_unless_they_say_otherwise(text, nanoseconds):
    """Milliseconds and ISO 8601 both become nanoseconds, to the microsecond."""
    assert parse_timestamp(text) == nanoseconds


def test_a_wrong_timestamp_is_rejected():
    """Text that is not a time is rejected with an example."""
    with pytest.raises(InvalidConfigError, match="ISO 8601"):
        parse_timestamp("yesterday")


@pytest.mark.parametrize(
    "text",
    ["1700000000000000000", "9" * 30, "9999-12-31", "9999-12-31T23:59:59-01:00", "1600-01-01"],
)
def test_a_timestamp_that_no_record_can_have_is_rejected(text):
    """Above all nanoseconds given for milliseconds; the error has the unit."""
    with pytest.raises(InvalidConfigError, match=r"milliseconds, of the years 1678 to 2261"):
        parse_timestamp(text)
    assert parse_timestamp("2261-12-31") > parse_timestamp("1678-01-01")


def test_write_and_table_options():
    """The sinks have their own options and defaults."""
    assert parse_write_options(BASE | {"subject": "a.b"}).subject == "a.b"
    with pytest.raises(InvalidConfigError, match="did you mean 'subject'"):
        parse_write_options(BASE | {"subjects": "a.b"})
    table = parse_table_options({"path": "/t", "denseOffsets": "false", "txnId": "x"})
    assert (table.path, table.dense_offsets, table.txn_id) == ("/t", False, "x")
    with pytest.raises(InvalidConfigError, match="'path'"):
        parse_table_options({})


def test_compression_is_a_codec_of_parquet():
    """Spark's names are accepted, and others are rejected before any task."""
    for given, meant in (("", "zstd"), ("SNAPPY", "snappy"), ("uncompressed", "none")):
        assert parse_table_options({"path": "/t", "compression": given}).compression == meant
    with pytest.raises(InvalidConfigError, match="must be one of zstd, snappy"):
        parse_table_options({"path": "/t", "compression": "lzo"})


def test_every_option_is_documented():
    """docs/spark.md has each option in a table or in the list of the sink."""
    page = (Path(__file__).parents[3] / "docs" / "spark.md").read_text("utf-8")
    documented = set(re.findall(r"`(\w+)`", page)) | {"path"}
    assert set(READ_OPTIONS) | set(WRITE_OPTIONS) | set(TABLE_OPTIONS) <= documented
