"""``client.scan``: a stream as a Polars frame, with columns and predicates read by the broker."""

from datetime import UTC, datetime, timedelta

import duckdb
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

import strandline
from strandline.client.reader.polars_scan import Narrowing, narrow
from strandline.errors import InvalidRequestError, UnknownStreamError
from strandline.testing import Server

CITIES = ("orders.paris", "orders.oslo", "orders.oslo.east", "orders.rome")
KEYS = (b"a", b"b", None)


@pytest.fixture(scope="module")
def client():
    """With a stream of three partitions, and one of a single partition whose start was deleted."""
    with Server() as url, strandline.connect(url) as client:
        client.create_stream("orders", subject="orders.>", partitions=3)
        client.create_stream("single", subject="single.>")
        with client.producer("orders") as orders, client.producer("single") as single:
            for number in range(300):
                key, city = KEYS[number % 3], CITIES[number % 4]
                orders.append(b"%d" % number, key=key, subject=city, headers=[("n", b"1")])
                single.append(b"%d" % number, key=key, subject=f"single.{city}")
        client.delete_records("single", 40)
        yield client


@pytest.fixture
def calls(client, monkeypatch):
    """The options of each read that a broker is asked for, without those for the schema."""
    found = []
    real = client.read

    def noted(stream, **options):
        if options.get("records_max") != 0:
            found.append(options)
        return real(stream, **options)

    monkeypatch.setattr(client, "read", noted)
    return found


def everything(client, stream):
    """The stream read as ever, as a frame with text as subjects."""
    columns = ["partition", "offset", "timestamp", "subject", "key", "value", "headers"]
    frame = pl.from_arrow(client.read(stream, columns=columns).read_all())
    return frame.with_columns(pl.col("subject").cast(pl.String))


def test_a_scan_is_what_a_read_is(client):
    """All columns and records, subjects as text; each collect reads anew."""
    frame = client.scan("orders")
    assert frame.collect_schema()["subject"] == pl.String
    assert_frame_equal(frame.collect(), everything(client, "orders"))
    client.append("orders", b"one more", subject="orders.paris")
    assert frame.select(pl.len()).collect().item() == everything(client, "orders").height


def test_only_the_columns_of_the_query_are_read(client, calls):
    """Also those of its predicate, and no others."""
    client.scan("orders").filter(pl.col("subject") == "orders.oslo").select("value").collect()
    assert [set(each["columns"]) for each in calls] == [{"subject", "value"}]
    assert calls[0]["subject"] == "orders.oslo"


def test_a_limit_ends_the_read(client, calls):
    """``head`` asks the broker for as many records, before a predicate that follows it."""
    assert client.scan("orders").head(5).collect().height == 5
    client.scan("orders").head(5).filter(pl.col("key") == b"a").collect()
    assert [each["records_max"] for each in calls] == [5, 5]
    assert all("keys" not in each for each in calls)


def test_offsets_of_a_partition_are_looked_up(client, calls):
    """Each partition that may match is read from the first such offset to the last."""
    query = (pl.col("partition") == 1) & pl.col("offset").is_between(5, 9)
    found = client.scan("orders").filter(query).select("offset").collect()
    assert found["offset"].to_list() == [5, 6, 7, 8, 9]
    [read] = calls
    assert (read["partition"], read["start"], read["stop"]) == (1, 5, 10)


def test_offsets_before_the_log_start_are_no_error(client):
    """Records that were deleted are not there; a read that begins among them would be refused."""
    frame = client.scan("single").filter(pl.col("offset") >= 10).collect()
    assert frame["offset"].min() == 40
    assert client.scan("single").filter(pl.col("offset") < 10).collect().height == 0
    assert client.scan("single").filter(pl.col("partition") == 7).collect().height == 0


LAST = datetime(2100, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("predicate", "expected"),
    [
        (pl.col("subject") == "a.b", Narrowing(subject="a.b")),
        (pl.lit("a.b") == pl.col("subject"), Narrowing(subject="a.b")),
        (pl.col("subject").str.starts_with("a.b."), Narrowing(subject="a.b.>")),
        (pl.col("subject").str.starts_with("a.b"), Narrowing()),
        (pl.col("subject") == "a.*", Narrowing()),
        (pl.col("key") == b"\x00k", Narrowing(keys=[b"\x00k"])),
        (pl.col("key").is_in([b"a", b"b"]), Narrowing(keys=[b"a", b"b"])),
        (pl.col("offset") > 3, Narrowing(offset_from=4)),
        (pl.lit(3) >= pl.col("offset"), Narrowing(offset_to=4)),
        (
            (pl.col("timestamp") < LAST) & (pl.col("partition") == 2),
            Narrowing(partition=2, timestamp_to=LAST + timedelta(microseconds=1)),
        ),
        ((pl.col("offset") > 3) | (pl.col("offset") < 1), Narrowing()),
        (~(pl.col("offset") > 3), Narrowing(offset_to=4)),
        (pl.col("value").map_elements(lambda _: True, pl.Boolean), Narrowing()),
    ],
    ids=str,
)
def test_what_a_broker_can_look_up_is_recognized(client, predicate, expected):
    """Polars' own form of a predicate, after its optimizer; the rest narrows nothing."""
    schema = client.scan("orders").collect_schema()
    seen = []

    def source(_, pushed, *__):
        seen.append(Narrowing() if pushed is None else narrow(pushed))
        yield pl.DataFrame(schema=schema)

    pl.io.plugins.register_io_source(source, schema=schema).filter(predicate).collect()
    assert seen == [expected]


comparisons = st.sampled_from(["__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__"])
leaves = st.one_of(
    st.builds(lambda op, n: getattr(pl.col("offset"), op)(n), comparisons, st.integers(-2, 110)),
    st.builds(lambda op, n: getattr(pl.col("partition"), op)(n), comparisons, st.integers(0, 3)),
    st.builds(
        lambda op, value: getattr(pl.col("subject"), op)(value),
        st.sampled_from(["__eq__", "__ne__"]),
        st.sampled_from([*CITIES, "orders", ""]),
    ),
    st.builds(pl.col("subject").str.starts_with, st.sampled_from(["orders.oslo.", ""])),
    st.builds(lambda k: pl.col("key") == k, st.sampled_from([b"a", b"c"])),
    st.builds(lambda k: pl.col("key").is_in(k), st.lists(st.sampled_from([b"a", b"b", b"c"]))),
    st.builds(
        lambda op, s: getattr(pl.col("timestamp"), op)(datetime.now(UTC) + timedelta(seconds=s)),
        comparisons,
        st.sampled_from([-3600, -1, 0, 3600]),
    ),
)
predicates = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.builds(lambda a, b: a & b, inner, inner),
        st.builds(lambda a, b: a | b, inner, inner),
        st.builds(lambda a: ~a, inner),
    ),
    max_leaves=4,
)


@given(predicates, st.sampled_from(["orders", "single"]))
@settings(max_examples=40)
def test_a_predicate_gives_the_same_at_the_broker_as_in_memory(client, predicate, stream):
    """Whatever is pushed down, the result is the whole stream's, filtered."""
    found = client.scan(stream).filter(predicate).collect()
    assert_frame_equal(found, everything(client, stream).filter(predicate))


def test_duckdb_finds_a_scan_by_its_name(client, calls):
    """DuckDB gives the columns and conditions of a query to Polars, and that to the broker."""
    orders = client.scan("orders")
    query = "SELECT count(*) FROM orders WHERE subject = 'orders.oslo'"
    assert duckdb.sql(query).fetchall() == [(75,)]
    assert calls[-1]["subject"] == "orders.oslo"
    assert not {"value", "key", "headers"} & {*calls[-1]["columns"]}
    assert orders is not None


def test_an_unknown_stream_is_an_error_at_the_call(client):
    """Not only when the frame is collected; and what a query says is no option."""
    with pytest.raises(UnknownStreamError):
        client.scan("nothing")
    with pytest.raises(InvalidRequestError, match="the query says it"):
        client.scan("orders", columns=["value"])


def test_an_error_of_the_broker_reaches_who_collects(client):
    """A read that is refused is not an empty frame."""
    frame = client.scan("single", start=5)
    with pytest.raises(Exception, match="offset 5"):
        frame.collect()
