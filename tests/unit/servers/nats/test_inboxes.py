"""Delivery of replies on a publisher's connection."""

import pytest

from strandline.servers.nats.inboxes import PATTERNS_MAX, SUBSCRIPTIONS_MAX, Inboxes


@pytest.fixture
def inboxes():
    """No subscriptions yet."""
    return Inboxes()


def test_prefix_inbox(inboxes):
    """``prefix.*`` gets replies with one more token, and no others."""
    assert inboxes.add("_INBOX.x.*", b"1")
    assert inboxes.sid_for(b"_INBOX.x.7") == b"1"
    assert inboxes.sid_for(b"_INBOX.x") is None
    assert inboxes.sid_for(b"_INBOX.x.7.8") is None
    assert inboxes.sid_for(b"_INBOX.y.7") is None


def test_plain_inbox_goes_first(inboxes):
    """An exact subscription is preferred to a pattern."""
    inboxes.add("_INBOX.x.*", b"1")
    inboxes.add("_INBOX.x.7", b"2")
    assert inboxes.sid_for(b"_INBOX.x.7") == b"2"
    assert inboxes.sid_for(b"_INBOX.x.8") == b"1"


def test_other_patterns(inboxes):
    """Unusual patterns work as well, ``>`` included."""
    inboxes.add("my.*.acks", b"1")
    assert inboxes.sid_for(b"my.own.acks") == b"1"
    assert inboxes.sid_for(b"_INBOX.a") is None
    inboxes.add(">", b"2")
    assert inboxes.sid_for(b"_INBOX.a") == b"2"


def test_unsubscribing(inboxes):
    """A removed subscription gets nothing; removing twice or an unknown one is harmless."""
    inboxes.add("a.*", b"1")
    inboxes.add("a.b", b"2")
    inboxes.add("*.b.*", b"3")
    for sid in (b"1", b"2", b"3", b"3", b"4"):
        inboxes.remove(sid)
    assert len(inboxes) == 0
    assert [inboxes.sid_for(reply) for reply in (b"a.x", b"a.b", b"a.b.c")] == [None] * 3


def test_limit_of_deliveries(inboxes):
    """A subscription ends after its requested deliveries, as old-style requests need."""
    inboxes.add("_INBOX.once", b"1")
    inboxes.limit(b"1", 1)
    assert inboxes.sid_for(b"_INBOX.once") == b"1"
    assert inboxes.sid_for(b"_INBOX.once") is None
    inboxes.add("_INBOX.x.*", b"2")
    inboxes.limit(b"2", 2)
    assert [inboxes.sid_for(b"_INBOX.x.1") for _ in range(3)] == [b"2", b"2", None]
    inboxes.limit(b"none", 1)
    assert len(inboxes) == 0


def test_a_sid_used_again_replaces(inboxes):
    """Subscribing under a sid in use moves it."""
    inboxes.add("a.*", b"1")
    inboxes.add("b.*", b"1")
    assert inboxes.sid_for(b"a.1") is None
    assert inboxes.sid_for(b"b.1") == b"1"
    assert len(inboxes) == 1


def test_limits(inboxes):
    """Too many subscriptions, or too many slow patterns, are rejected."""
    for number in range(PATTERNS_MAX):
        assert inboxes.add(f"*.{number}.*", b"p%d" % number)
    assert not inboxes.add("*.more.*", b"more")
    for number in range(SUBSCRIPTIONS_MAX - PATTERNS_MAX):
        assert inboxes.add(f"i.{number}", b"%d" % number)
    assert not inboxes.add("i.more", b"more")


def test_limiting_many_prefixes_stays_fast(inboxes):
    """A limit on one prefix too many is ignored, so that the slow way stays short."""
    for number in range(PATTERNS_MAX + 3):
        inboxes.add(f"i.{number}.*", b"%d" % number)
        inboxes.limit(b"%d" % number, 1)
    assert len(inboxes._patterns) == PATTERNS_MAX
    assert inboxes.sid_for(b"i.%d.x" % PATTERNS_MAX) is not None


def test_overlong_and_undecodable_replies(inboxes):
    """Odd reply subjects find nothing and harm nothing."""
    inboxes.add("*.*.>", b"1")
    assert inboxes.sid_for(b"a." * 2000 + b"b") is None
    assert inboxes.sid_for(b"\xff\xfe") is None


def test_replies_in_a_row_are_found_as_each_would_be(inboxes):
    """With an endless prefix alone, and with a plain inbox that is to be counted."""
    inboxes.add("_INBOX.x.*", b"1")
    replies = [b"_INBOX.x.%d" % number for number in range(3)]
    assert inboxes.sids_for(replies) == [b"1"] * 3
    assert inboxes.sids_for([*replies, b"_INBOX.y.1"]) == [b"1"] * 3 + [None]
    assert inboxes.sids_for([None, *replies]) == [None] + [b"1"] * 3
    inboxes.add("_INBOX.x.1", b"2")
    inboxes.limit(b"2", 1)
    assert inboxes.sids_for(replies) == [b"1", b"2", b"1"]
    assert inboxes.sids_for(replies) == [b"1"] * 3


TURNS = [b"_INBOX.a", b"_INBOX.b", b"_INBOX.x.1", b"_INBOX.none"]


@pytest.mark.parametrize("count", [0, 1, 2, 3, 7])
@pytest.mark.parametrize("limit", [0, 1, 2, 3])
@pytest.mark.parametrize("names", [TURNS[:1], TURNS[:2], TURNS[:3], TURNS, TURNS[2:3]])
def test_messages_in_turns_go_where_each_would_go(names, limit, count):
    """Also where a subscription ends among them, and where nobody subscribes."""
    found = []
    for in_turns in (True, False):
        inboxes = Inboxes()
        for sid, pattern in enumerate(["_INBOX.a", "_INBOX.b", "_INBOX.x.*"]):
            inboxes.add(pattern, b"%d" % sid)
        if limit:
            inboxes.limit(b"0", limit)
        each = [inboxes.sid_for(names[n % len(names)]) for n in range(0 if in_turns else count)]
        sids = inboxes.sids_in_turns(names, count) if in_turns else each
        found.append((sids, len(inboxes)))
    assert found[0] == found[1]
