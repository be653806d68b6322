"""The NATS parser under any bytes and any chunks; header blocks; where replies go."""

import contextlib
import itertools

from hypothesis import example, given
from hypothesis import strategies as st

from strandline.errors import InvalidRecordError, InvalidSubjectError
from strandline.record.subjects import (
    SubjectRouter,
    subject_matches,
    subjects_overlap,
    validate_subject,
)
from strandline.servers.nats.headers import encode_headers, parse_headers
from strandline.servers.nats.inboxes import Inboxes
from strandline.servers.nats.ingest import interpret
from strandline.servers.nats.protocol import (
    LINE_BYTES_MAX,
    SERVER_LINE_BYTES_MAX,
    Parser,
    Violation,
    encode_message,
    encode_message_with_headers,
    encode_publish,
    encode_publish_with_headers,
    encode_subscribe,
    encode_unsubscribe,
)

PAYLOAD_MAX = 200
words = st.from_regex(rb"[a-z0-9_.*>$]{1,12}", fullmatch=True)
payloads = st.binary(max_size=60) | st.sampled_from([b"", b"\r\n", b"\r\n\r\n", b"PING\r\n"])
blocks = st.binary(max_size=20)
replies = st.just(b"") | words

client_operations = st.one_of(
    st.builds(lambda s, p, r: encode_publish(s, p, reply=r), words, payloads, replies),
    st.builds(
        lambda s, p, b, r: encode_publish_with_headers(s, p, block=b, reply=r),
        words, payloads, blocks, replies,
    ),
    st.builds(lambda s, i, q: encode_subscribe(s, i, queue=q), words, words, replies),
    st.builds(encode_unsubscribe, words),
    st.sampled_from([b"PING\r\n", b"PONG\r\n", b"ping \r\n", b'CONNECT {"verbose":false}\r\n']),
)  # fmt: skip
server_operations = st.one_of(
    st.builds(lambda s, i, p, r: encode_message(s, i, p, reply=r), words, words, payloads, replies),
    st.builds(
        lambda s, i, p, b: encode_message_with_headers(s, i, p, block=b),
        words, words, payloads, blocks,
    ),
    st.sampled_from([b"PING\r\n", b"+OK\r\n", b"INFO {}\r\n", b"-ERR 'x'\r\n"]),
)  # fmt: skip
fragments = st.lists(
    st.sampled_from(
        [b"PUB ", b"HPUB ", b"MSG ", b"HMSG ", b"SUB ", b"CONNECT ", b"a ", b"_INBOX.x ", b"1",
         b"5\r\n", b"12 34\r\n", b"\r\n", b"\r", b"\n", b" ", b"-1", b"\xff", b"NATS/1.0\r\n\r\n",
         b"hello\r\n", b"99999999999999999999"]
    )
    | st.binary(max_size=8),
    max_size=30,
).map(b"".join)  # fmt: skip


def feed_in_chunks(parser, data, cuts):
    """Return all events of ``data``, split at the given positions."""
    places = sorted({min(cut, len(data)) for cut in cuts} | {0, len(data)})
    events = []
    for start, stop in itertools.pairwise(places):
        events += parser.feed(data[start:stop])
    return events


cut_places = st.lists(st.integers(min_value=0, max_value=2000), max_size=20)


@given(st.lists(client_operations, max_size=12).map(b"".join), cut_places)
def test_any_cutting_of_valid_client_bytes_gives_the_same_events(data, cuts):
    """Chunks never matter, whatever a client says."""
    whole = Parser(PAYLOAD_MAX, from_client=True).feed(data)
    assert not any(isinstance(event, Violation) for event in whole)
    parser = Parser(PAYLOAD_MAX, from_client=True)
    assert feed_in_chunks(parser, data, cuts) == whole
    assert parser.buffered_bytes == 0


@given(st.lists(server_operations, max_size=12).map(b"".join), cut_places)
def test_any_cutting_of_valid_server_bytes_gives_the_same_events(data, cuts):
    """Chunks never matter, whatever a server says."""
    whole = Parser(PAYLOAD_MAX, from_client=False).feed(data)
    assert not any(isinstance(event, Violation) for event in whole)
    assert feed_in_chunks(Parser(PAYLOAD_MAX, from_client=False), data, cuts) == whole


@given(fragments | st.binary(max_size=300), cut_places, st.booleans())
@example(b"PUB a 5\r\nhelloXX", [16], True)
@example(b"PUB a 5\r\nhello\r\r\n", [14, 15], True)
def test_any_bytes_give_events_and_bounded_memory(data, cuts, from_client):
    """Any bytes, however split, give the same events, in bounded memory."""
    whole = Parser(PAYLOAD_MAX, from_client=from_client).feed(data)
    line_max = LINE_BYTES_MAX if from_client else SERVER_LINE_BYTES_MAX
    parser = Parser(PAYLOAD_MAX, from_client=from_client)
    events = []
    for byte in range(0, len(data), 7):
        events += parser.feed(data[byte : byte + 7])
        assert parser.buffered_bytes <= max(PAYLOAD_MAX + 2, line_max)
    assert events == whole
    assert feed_in_chunks(Parser(PAYLOAD_MAX, from_client=from_client), data, cuts) == whole
    assert sum(isinstance(event, Violation) for event in events) <= 1


@given(st.integers(min_value=0, max_value=3), st.binary(min_size=1, max_size=3))
def test_endless_lines_are_not_kept(prefix, filler):
    """A line without an end is rejected soon after its limit."""
    parser = Parser(PAYLOAD_MAX, from_client=True)
    parser.feed(b"PUB"[:prefix])
    for _ in range(2 * LINE_BYTES_MAX // len(filler)):
        parser.feed(filler.replace(b"\n", b"x") * 1)
        assert parser.buffered_bytes <= LINE_BYTES_MAX
    assert parser.feed(b"PING\r\n") == []


names = st.text(
    st.characters(min_codepoint=33, exclude_characters=": \r\n", exclude_categories=["Cs"]),
    min_size=1,
    max_size=10,
)
values = st.binary(max_size=12).map(lambda v: v.replace(b"\r\n", b"").strip(b" \t"))


@given(st.lists(st.tuples(names, values), max_size=8))
def test_headers_round_trip(headers):
    """Order, repeats and bytes of headers survive."""
    assert parse_headers(encode_headers(headers)) == headers


@given(
    st.binary(max_size=120).map(lambda b: b"NATS/1.0\r\n" + b + b"\r\n\r\n")
    | st.binary(max_size=120)
)
def test_any_header_block_parses_or_is_a_typed_error(block):
    """Any block gives headers or one typed error."""
    with contextlib.suppress(InvalidRecordError):
        for name, value in parse_headers(block):
            assert name
            assert b"\r\n" not in value


@given(st.lists(client_operations | st.binary(max_size=10), max_size=20), st.integers(1, 5))
def test_events_taken_in_pieces_are_the_same(operations, events_max):
    """A limit on the events of one call changes when they come, and nothing else."""
    data = b"".join(operations)
    whole = Parser(PAYLOAD_MAX, from_client=True).feed(data)
    parser = Parser(PAYLOAD_MAX, from_client=True)
    pieces = [parser.feed(data, events_max)]
    while parser.unparsed is not None:
        pieces.append(parser.resume(events_max))
    assert [event for piece in pieces for event in piece] == whole
    assert all(len(piece) <= events_max + 1 for piece in pieces)


known_names = st.sampled_from(
    ["Nats-Msg-Id", "Nats-Expected-Last-Sequence", "Nats-Expected-Stream", "Strandline-Key",
     "Strandline-Tombstone", "Nats-Rollup", "Other"]
)  # fmt: skip


@given(st.lists(st.tuples(known_names, values), max_size=5), st.binary(max_size=30))
def test_any_known_headers_are_interpreted(headers, payload):
    """Whatever the values of known headers, no payload is lost."""
    found = interpret(encode_headers(headers), payload)
    assert found.value in (payload, None)
    assert found.expected_last is None or found.expected_last >= 0


tokens = st.sampled_from(["a", "b", "_INBOX", "$x", "c"])
plain_subjects = st.lists(tokens, min_size=1, max_size=5).map(".".join)
patterns = st.builds(
    lambda start, tail: ".".join([*start, *tail]),
    st.lists(tokens | st.just("*"), min_size=0, max_size=4),
    st.sampled_from([[], [">"], ["*"], ["a"]]),
).filter(bool)


@given(st.lists(patterns, max_size=8), plain_subjects)
def test_router_finds_exactly_what_matches(bound, subject):
    """The router's answer is the list of matching patterns, in order."""
    router = SubjectRouter(list(enumerate_patterns(bound)))
    expected = [index for index, each in enumerate(bound) if subject_matches(each, subject)]
    assert router.match(subject) == expected


@given(
    st.lists(patterns, max_size=8),
    st.lists(patterns, max_size=4, unique=True),
    plain_subjects,
    patterns,
)
def test_router_follows_what_is_added_and_removed(bound, others, subject, asked):
    """Removed patterns match nothing, and overlapping ones are found."""
    targets = enumerate_patterns(bound)
    router = SubjectRouter(targets)
    for pattern in others:
        router.add(pattern, pattern)
    for pattern in others:
        router.remove(pattern, pattern)
    assert router.match(subject) == SubjectRouter(targets).match(subject)
    assert router.overlapping(asked) == [n for p, n in targets if subjects_overlap(p, asked)]
    for pattern, target in targets:
        router.remove(pattern, target)
    assert router._root.is_empty
    assert not router._plain


def enumerate_patterns(bound):
    """(pattern, index) pairs."""
    return [(pattern, index) for index, pattern in enumerate(bound)]


@given(st.text(max_size=40), st.booleans())
def test_any_text_is_a_subject_or_a_typed_error(text, wildcards):
    """Validation raises one typed error only, and a valid subject is safe in a control line."""
    try:
        validate_subject(text, wildcards=wildcards)
    except InvalidSubjectError:
        return
    assert len(text.encode().split()) == 1
    assert "" not in text.split(".")


actions = st.one_of(
    st.tuples(st.just("add"), patterns, st.integers(0, 5)),
    st.tuples(st.just("remove"), st.just(""), st.integers(0, 5)),
    st.tuples(st.just("limit"), st.just(""), st.integers(0, 5)),
    st.tuples(st.just("reply"), plain_subjects, st.just(0)),
)


@given(st.lists(actions, max_size=30))
def test_inboxes_deliver_to_a_matching_subscription(script):
    """A reply goes to a live subscription whose pattern matches, whatever came before."""
    inboxes = Inboxes()
    live = {}
    for action, subject, number in script:
        sid = b"%d" % number
        if action == "add":
            live.pop(sid, None)
            if inboxes.add(subject, sid):
                live[sid] = subject
        elif action == "remove":
            inboxes.remove(sid)
            live.pop(sid, None)
        elif action == "limit":
            inboxes.limit(sid, 1)
        else:
            found = inboxes.sid_for(subject.encode())
            if found is not None:
                assert matches_inbox(live[found], subject)
                if found not in inboxes._by_sid:
                    del live[found]
    assert len(inboxes) == len(live)


def matches_inbox(pattern, subject):
    """As NATS matches, reserved subjects or not."""
    return subject_matches(pattern, subject) or subject_matches(f"x.{pattern}", f"x.{subject}")
