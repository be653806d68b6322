"""Consumers' settings, and the subjects of acknowledgements: any JSON and any text."""

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.servers.nats.jetstream.consumer_config import (
    UNSUPPORTED,
    ConsumerConfig,
    ConsumerConfigRequest,
    CreateConsumerRequest,
    check_update,
    consumer_config,
)
from strandline.servers.nats.jetstream.errors import ApiRejection
from strandline.servers.nats.jetstream.subjects import (
    ApiCall,
    format_ack,
    format_flow,
    parse_ack,
    parse_flow,
    parse_subject,
)

NS = 1_000_000_000


def asked(call=None, **settings):
    call = call or ApiCall("CONSUMER.CREATE", "S", "c")
    config = ConsumerConfigRequest(**settings)
    return consumer_config(call, CreateConsumerRequest("S", config), "made-up")


def test_defaults_are_jetstreams():
    """Without acknowledgements and with; an ephemeral ends when it is not used."""
    none = asked()
    assert (none.ack_policy, none.ack_wait, none.max_ack_pending) == ("none", 0, 0)
    assert none.inactive_threshold == 5 * NS
    explicit = asked(ack_policy="explicit", durable_name="c")
    assert (explicit.ack_wait, explicit.max_ack_pending) == (30 * NS, 1000)
    assert (explicit.inactive_threshold, explicit.max_deliver) == (0, -1)
    assert asked(ack_policy="explicit", durable_name="c", ack_wait=0, max_deliver=0) == explicit


def test_settings_become_rules():
    """In milliseconds; no limit is 0."""
    policy = asked(ack_policy="explicit", backoff=[NS, 2 * NS], max_deliver=5).policy
    assert (policy.backoff_ms, policy.max_deliver) == ((1000, 2000), 5)
    assert asked(ack_policy="all", ack_wait=NS // 2).policy.ack_wait_ms == 500


@pytest.mark.parametrize(
    ("asked_for", "in_force"), [(-1, 10_000), (524_288, 10_000), (9, 9), (0, 1000)]
)
def test_the_limit_of_pending_messages_has_a_limit(asked_for, in_force):
    """nats.go asks for half a million: the answer shows what is in force."""
    found = asked(ack_policy="explicit", max_ack_pending=asked_for)
    assert found.max_ack_pending == found.policy.max_ack_pending == in_force


def test_a_push_consumer_has_no_waiting_pulls():
    """Its settings are kept; a pull consumer has none of them."""
    push = asked(
        ack_policy="explicit",
        deliver_subject="_INBOX.x",
        deliver_group="g",
        flow_control=True,
        idle_heartbeat=NS,
    )
    assert push.is_push
    assert (push.max_waiting, push.max_ack_pending) == (0, 1000)
    assert (push.deliver_subject, push.deliver_group) == ("_INBOX.x", "g")
    assert (push.flow_control, push.idle_heartbeat) == (True, NS)
    pull = asked(deliver_group="g", flow_control=False, idle_heartbeat=0)
    assert not pull.is_push
    assert pull.deliver_group == ""


def test_names_are_those_of_the_subject():
    """Else a permission for one name would do for another."""
    assert asked(ApiCall("CONSUMER.CREATE", "S")).name == "made-up"
    assert asked(ApiCall("CONSUMER.CREATE", "S"), name="n").name == "n"
    for call, settings, number in (
        (ApiCall("CONSUMER.CREATE", "S", "c"), {"name": "d"}, 10132),
        (ApiCall("CONSUMER.CREATE", "S", "c"), {"durable_name": "d"}, 10132),
        (ApiCall("CONSUMER.CREATE", "S"), {"durable_name": "d"}, 10019),
        (ApiCall("CONSUMER.CREATE", "S"), {"name": "a.b"}, 10103),
        (ApiCall("CONSUMER.CREATE", "S"), {"name": "a\\b"}, 10127),
        (ApiCall("CONSUMER.CREATE", "S"), {"name": "ä" * 128}, 10102),
        (ApiCall("CONSUMER.DURABLE.CREATE", "S", "c"), {}, 10018),
        (ApiCall("CONSUMER.DURABLE.CREATE", "S", "c"), {"durable_name": "d"}, 10017),
        (ApiCall("CONSUMER.CREATE", "S", "c", "a.b"), {"filter_subject": "a.c"}, 10131),
        (ApiCall("CONSUMER.CREATE", "S", "c", "a.b"), {"filter_subjects": ["a.b"]}, 10137),
    ):
        with pytest.raises(ApiRejection) as refused:
            asked(call, **settings)
        assert refused.value.error.err_code == number, settings


@pytest.mark.parametrize("field", UNSUPPORTED)
def test_every_setting_that_is_not_built_is_rejected(field):
    """By its name, unless it asks for nothing."""
    for value in (None, False, 0, "", [], "0001-01-01T00:00:00Z"):
        asked(**{field: value})
    with pytest.raises(ApiRejection, match=field):
        asked(**{field: "something"})


def test_what_is_fixed_cannot_be_updated():
    """The text names it as JetStream does."""
    before = asked(ack_policy="explicit")
    check_update(before, asked(ack_policy="explicit", max_deliver=9, filter_subject="a"))
    with pytest.raises(ApiRejection, match="ack policy can not be updated"):
        check_update(before, asked(ack_policy="all"))


WHOLE = [
    "opt_start_seq",
    "ack_wait",
    "max_deliver",
    "max_waiting",
    "max_ack_pending",
    "max_batch",
    "max_expires",
    "max_bytes",
    "inactive_threshold",
    "num_replicas",
    "idle_heartbeat",
    "rate_limit_bps",
]


@pytest.mark.parametrize("field", WHOLE)
def test_a_number_beyond_int64_is_invalid_json(field):
    """Whichever it is: none is met that does not fit a float, or a client's integer."""
    for number in (1 << 63, 1 << 64, 10**400, -(1 << 63) - 1, -(10**400)):
        for body in ({field: number}, {"backoff": [number]}):
            text = str({"config": body}).replace("'", '"')
            with pytest.raises(msgspec.ValidationError):
                msgspec.json.decode(text, type=CreateConsumerRequest)


numbers = st.integers() | st.integers(1, 500).map(lambda digits: 10**digits)
values = st.recursive(
    st.none() | st.booleans() | numbers | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2)
    ),
    max_leaves=4,
)


@given(
    st.dictionaries(st.sampled_from(ConsumerConfigRequest.__struct_fields__), values, max_size=6)
)
def test_any_configuration_is_settings_or_an_error(body):
    """And settings are read back as they were stored."""
    try:
        decoded = msgspec.json.decode(json.dumps({"config": body}), type=CreateConsumerRequest)
        config = consumer_config(ApiCall("CONSUMER.CREATE", "S", "c"), decoded, "x")
    except (ValueError, ApiRejection):
        return
    assert msgspec.json.decode(msgspec.json.encode(config), type=ConsumerConfig) == config
    assert config.policy.ack_wait_ms > 0
    backoff = config.policy.backoff_ms
    assert all(0.5 + each < 1 << 62 for each in (config.policy.ack_wait_ms, *backoff))
    assert abs(config.max_deliver) <= 1 << 63


names = st.text(
    st.characters(blacklist_characters=". \r\n\t", blacklist_categories=["Cs"]), min_size=1
)


@given(names, names, st.lists(st.integers(0, 1 << 60), min_size=5, max_size=5))
def test_acknowledgements_name_what_was_delivered(stream, consumer, numbers):
    """The reply subject of a message is read back."""
    deliveries, sequence, number, time_ns, pending = numbers
    text = f"$JS.ACK.{stream}.{consumer}.{deliveries}.{sequence}.{number}.{time_ns}.{pending}"
    ack = parse_ack(text)
    assert ack == (stream, consumer, deliveries, sequence, number)
    assert format_ack(ack, time_ns=time_ns, pending=pending) == text


@given(st.text())
def test_any_text_is_an_acknowledgement_or_none(text):
    """And never an error; digits of other scripts are none."""
    for subject in (text, f"$JS.ACK.{text}", f"$JS.ACK.S.c.1.2.3.4.{text}", f"$JS.ACK.S.c.{text}"):
        ack = parse_ack(subject)
        assert ack is None or min(ack[2:]) >= 0
    assert parse_ack("$JS.ACK.S.c.1.2.3.4.٣") is None


@given(st.text())
def test_any_text_is_an_answer_to_flow_control_or_none(text):
    """And never an error."""
    for subject in (text, f"$JS.FC.{text}", f"$JS.FC.S.c.{text}"):
        found = parse_flow(subject)
        assert found is None or len(found) == 2
    assert parse_flow(format_flow("S", "c", "ab12")) == ("S", "c")


def test_subjects_of_consumers():
    """The old and the new forms."""
    for subject, call in {
        "CONSUMER.CREATE.S": ApiCall("CONSUMER.CREATE", "S"),
        "CONSUMER.CREATE.S.c": ApiCall("CONSUMER.CREATE", "S", "c"),
        "CONSUMER.CREATE.S.c.a.b": ApiCall("CONSUMER.CREATE", "S", "c", "a.b"),
        "CONSUMER.DURABLE.CREATE.S.d": ApiCall("CONSUMER.DURABLE.CREATE", "S", "d"),
        "CONSUMER.MSG.NEXT.S.c": ApiCall("CONSUMER.MSG.NEXT", "S", "c"),
        "CONSUMER.PAUSE.S.c": ApiCall("CONSUMER.PAUSE", "S", "c"),
        "CONSUMER.UNPIN.S.c": ApiCall(""),
        "CONSUMER.INFO.S": ApiCall(""),
    }.items():
        assert parse_subject(f"$JS.API.{subject}") == call
