"""Streams' settings between JetStream and here."""

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.config import StreamConfig
from strandline.core.metadata.streams import check_stream_config
from strandline.errors import StrandlineError
from strandline.servers.nats.jetstream.errors import ApiRejection
from strandline.servers.nats.jetstream.integers import INT64_MAX
from strandline.servers.nats.jetstream.stream_config import (
    UNSUPPORTED,
    StreamConfigRequest,
    changed_settings,
    jetstream_config,
    stream_config,
)


def asked(**settings):
    return stream_config(StreamConfigRequest(**settings), is_cluster=True)


def test_what_was_asked_for_is_shown():
    """Limits, replicas and windows come back as they were sent."""
    config = asked(
        name="orders=eu",
        subjects=["orders.*"],
        max_msgs=7,
        max_bytes=8,
        max_age=9_000_000_000,
        num_replicas=3,
        duplicate_window=1_000_000_000,
    )
    assert config == StreamConfig(
        name="orders.eu",
        subject="orders.*",
        replicas=3,
        min_isr=2,
        retention_records=7,
        retention_bytes=8,
        retention_age_ms=9_000,
        dedup_window_ms=1_000,
    )
    shown = jetstream_config(config)
    assert (shown.name, shown.subjects) == ("orders=eu", ("orders.*",))
    assert (shown.max_msgs, shown.max_bytes, shown.max_age) == (7, 8, 9_000_000_000)
    assert (shown.num_replicas, shown.duplicate_window) == (3, 1_000_000_000)


def test_defaults_are_jetstreams():
    """The subject is the name, nothing is limited, and ids are remembered for two minutes."""
    config = asked(name="S")
    assert (config.subject, config.pub_ack, config.dedup_window_ms) == ("S", True, 120_000)
    shown = jetstream_config(config)
    assert (shown.max_msgs, shown.max_age, shown.no_ack) == (-1, 0, False)
    assert asked(name="S", max_age=10**9).dedup_window_ms == 1_000, "no longer than the records"


def test_a_bucket_shows_what_its_clients_ask_for():
    """Some compare it. Other streams show that the oldest records are deleted."""
    bucket = asked(name="KV_b", subjects=["$KV.b.>"], max_msgs_per_subject=5, discard="new")
    assert jetstream_config(bucket).discard == "new"
    for name, subject in (("b", "$KV.b.>"), ("KV_b", "$KV.c.>"), ("KV_b", "KV_b")):
        assert jetstream_config(asked(name=name, subjects=[subject])).discard == "old"


@pytest.mark.parametrize("field", ["allow_rollup_hdrs", "allow_msg_ttl"])
@pytest.mark.parametrize("limit", [None, 0, -1])
def test_what_needs_a_limit_for_each_subject_is_rejected_without(field, limit):
    """With one, such a message replaces those before it, as in a bucket."""
    with pytest.raises(ApiRejection, match=field):
        asked(name="S", max_msgs_per_subject=limit, **{field: True})
    assert asked(name="S", max_msgs_per_subject=1, **{field: True}).max_records_per_subject == 1


@pytest.mark.parametrize("field", UNSUPPORTED)
def test_every_setting_that_is_not_built_is_rejected(field):
    """By its name, unless it asks for nothing."""
    for value in (None, False, 0, "", [], {}, {"inner": 0}):
        asked(name="S", **{field: value})
    for value in (True, 1, "x", [1], {"inner": 1}):
        with pytest.raises(ApiRejection, match=field):
            asked(name="S", **{field: value})


@pytest.mark.parametrize(
    "name", ["", "a.b", "a b", "a*", ">", "a/b", "a\\b", "__x", "a:1", "x" * 256]
)
def test_impossible_names_are_rejected(name):
    """As JetStream does, and those that stand for something here."""
    with pytest.raises(ApiRejection):
        asked(name=name)


def test_changes_are_named():
    """An update says which settings it would change."""
    before, after = jetstream_config(asked(name="S")), jetstream_config(asked(name="S", max_msgs=1))
    assert changed_settings(before, before) == []
    assert changed_settings(before, after) == ["max_msgs from -1 to 1"]


def test_what_a_bucket_cannot_have_is_said():
    """A limit of all records, which it asks to refuse new ones; and another history."""
    bucket = {"name": "KV_b", "subjects": ["$KV.b.>"], "discard": "new"}
    with pytest.raises(ApiRejection, match=r"max_bytes 1024 .* leave max_bytes out"):
        asked(**bucket, max_bytes=1024)
    before, after = (jetstream_config(asked(**bucket, max_msgs_per_subject=n)) for n in (1, 5))
    [changed] = changed_settings(before, after)
    assert changed == "max_msgs_per_subject (a bucket's history) from 1 to 5"


numbers = st.integers() | st.integers(1, 500).map(lambda digits: 10**digits)
values = st.recursive(
    st.none() | st.booleans() | numbers | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2)
    ),
    max_leaves=4,
)


@given(st.dictionaries(st.sampled_from(StreamConfigRequest.__struct_fields__), values, max_size=6))
def test_any_configuration_is_settings_or_an_error(body):
    """Whatever JSON a client sends; settings are then checked like anybody's."""
    try:
        request = msgspec.json.decode(json.dumps(body), type=StreamConfigRequest)
        config = stream_config(request, is_cluster=True)
        check_stream_config(config, is_cluster=True)
    except (ValueError, ApiRejection, StrandlineError):
        return
    shown = jetstream_config(config)
    assert changed_settings(shown, jetstream_config(config)) == []
    for number in (shown.max_msgs, shown.max_bytes, shown.max_age, shown.duplicate_window):
        assert number <= INT64_MAX
    assert shown.num_replicas <= INT64_MAX


def test_durations_are_shown_as_int64():
    """A duration of whole milliseconds may be larger than what clients in Go can read."""
    longest = asked(name="s", subjects=["s"], max_age=INT64_MAX, duplicate_window=INT64_MAX)
    shown = jetstream_config(longest)
    assert shown.max_age == shown.duplicate_window == INT64_MAX
