"""The compiled functions do what their plain Python twins do, for any arguments."""

import pytest
from crc32c import crc32c
from hypothesis import example, given
from hypothesis import strategies as st

from strandline.speedups import pure

compiled = pytest.importorskip("strandline.speedups._compiled", reason="installed without compiler")

LONG_MAX = 2**63 - 1
words = st.binary(max_size=12)
sequences = st.integers(0, LONG_MAX - 20) | st.sampled_from([0, 9, 10, 99, 10**12 - 1])


def outcome(function, *args, **kwargs):
    """What a call returns, or the type of what it raises."""
    try:
        return function(*args, **kwargs)
    except (IndexError, OverflowError, TypeError, ValueError) as error:
        return type(error)


replies = st.lists(st.none() | words, max_size=6)


@given(
    words,
    st.lists(st.tuples(words, words, sequences, replies | replies.map(tuple)), max_size=4),
    st.none() | st.lists(st.none() | words, max_size=20),
)
@example(b"MSG ", [(b"", b"", 1, [b"_INBOX.a"])], [])
@example(b"MSG ", [(b"a", b"}", 1, [b"r"]), (b"b", b"}", 9, (b"r", b"s"))], [b"1", None, b"2"])
@example(b"PUB ", [(b"x" * 98, b"", 9, [b"_INBOX.a"] * 3)], None)
def test_ack_lines(operation, runs, sids):
    """Lines are the same bytes, with sids and without, also where numbers get a digit more."""
    expected = outcome(pure.ack_lines, operation, runs, sids)
    assert outcome(compiled.ack_lines, operation, runs, sids) == expected
    assert outcome(compiled.ack_lines, operation, tuple(runs), sids) == expected


@given(
    st.binary(max_size=40),
    words,
    st.integers(-1, LONG_MAX),
    st.integers(0, 2**32 - 1),
    st.integers(-(2**63), LONG_MAX),
)
def test_encode_record(value, subject, base_offset, leader_epoch, timestamp_ns):
    """The same bytes, whatever the paddings are, and other numbers are errors."""
    rest = {"base_offset": base_offset, "leader_epoch": leader_epoch, "timestamp_ns": timestamp_ns}
    expected = pure.encode_record(value, subject, crc32c, **rest)
    assert compiled.encode_record(value, subject, crc32c, **rest) == expected


protocol = st.lists(
    st.sampled_from(
        [b"PUB ", b"HPUB ", b"MSG ", b"HMSG ", b"pub ", b"SUB ", b"PUB\t", b"a ", b"b\t", b"1 ",
         b"0 ", b"3 ", b"3", b"5", b"0", b"00003", b"\x0b", b"\xff ", b" ", b"\r", b"\n", b"\r\n",
         b"abc\r\n", b"abc", b"PING\r\n", b"9999999999999999999 ", b"-1 ", b"_INBOX.x.1 "]
    )
    | st.sampled_from(
        [b"PUB a 3\r\nabc\r\n", b"PUB a r 0\r\n\r\n", b"HPUB a r 2 3\r\nabc\r\n",
         b"HPUB a 0 3\r\nabc\r\n", b"MSG a 1 3\r\nabc\r\n", b"MSG a 2 r 3\r\nabc\r\n",
         b"HMSG b 2 r 3 3\r\nabc\r\n", b"PUB b 3\r\nabc\r\n"]
    )
    | st.binary(max_size=3),
    max_size=20,
).map(b"".join)  # fmt: skip
WHOLE = b"PUB a 3\r\nabc\r\nHPUB b r 2 3\r\nabc\r\nPUB a x 0\r\n\r\n"


@given(
    protocol,
    st.integers(0, 12),
    st.booleans(),
    st.integers(0, 40),
    st.sampled_from([0, 3, 5, 2**62 - 1]),
    st.integers(0, 6),
)
@example(WHOLE, 0, True, 40, 3, 6)
@example(b"PUB a 3\r\nabc", 0, True, 40, 3, 6)
@example(b"PUB a 3\r\nabc\r", 0, True, 40, 3, 6)
@example(b"MSG a 1 x y 3\r\nabc\r\n", 0, False, 40, 3, 6)
@example(b"PUB a 3\r\nabc\r\n", 99, True, 40, 3, 6)
def test_split_messages(data, position, is_published, line_max, payload_max, count_max):
    """The same messages up to the same place, for every beginning of the bytes."""
    limits = {"line_max": line_max, "payload_max": payload_max, "count_max": count_max}
    for end in {len(data), *range(min(len(data), 60))}:
        expected, found = [], []
        stopped = pure.split_messages(
            data[:end], position, expected, is_published=is_published, **limits
        )
        assert stopped == compiled.split_messages(
            data[:end], position, found, is_published=is_published, **limits
        )
        assert found == expected


numbers = st.integers(-1, LONG_MAX) | st.sampled_from([9, 10, 99])
rows = st.lists(st.tuples(sequences, numbers, words, words), max_size=9)


@given(
    st.tuples(words, words),
    st.lists(words, min_size=1, max_size=3),
    st.lists(words, min_size=1, max_size=3),
    rows,
    sequences,
    st.integers(0, 20),
)
def test_delivery_frames(operations, lefts, rights, rows, first, pending):
    """Frames are the same bytes, with headers and without, to one receiver and to several."""
    columns = tuple(map(list, zip(*rows, strict=True))) or ([], [], [], [])
    rest = {"columns": columns, "first": first, "pending": pending}
    expected = outcome(pure.delivery_frames, operations, lefts, rights, **rest)
    assert outcome(compiled.delivery_frames, operations, lefts, rights, **rest) == expected


@pytest.mark.parametrize(
    "changed",
    [
        {"operations": (b"a",)},
        {"lefts": []},
        {"rights": []},
        {"lefts": ["x"]},
        {"columns": ([1], [1], [b""], [])},
        {"columns": ([1], [1], [b""])},
        {"columns": ([1], [1], [b""], ["x"])},
        {"columns": ([1], ["x"], [b""], [b""])},
    ],
)
def test_malformed_deliveries_are_errors(changed):
    """Whatever is wrong with them; nothing is read or written beyond what is there."""
    good = {"operations": (b"a", b"b"), "lefts": [b"l"], "rights": [b"r"]}
    good |= {"columns": ([1], [1], [b""], [b""]), "first": 1, "pending": 0}
    assert compiled.delivery_frames(**good) == pure.delivery_frames(**good)
    for function in (pure.delivery_frames, compiled.delivery_frames):
        with pytest.raises((IndexError, OverflowError, TypeError, ValueError, ZeroDivisionError)):
            function(**{**good, **changed})


@pytest.mark.parametrize("bad", [None, "text", 1, [1], ["text"]])
def test_arguments_of_other_types_are_errors(bad):
    """What is not of the types that a function takes raises; it never crashes."""
    run = (b"", b"", 1, [b"a"])
    good = [b"PUB ", [run], [b"1"] * 4]
    for place in (0, 1):
        args = [*good[:place], bad, *good[place + 1 :]]
        with pytest.raises((TypeError, ValueError)):
            compiled.ack_lines(*args)
    for place in range(4):
        changed = (*run[:place], bad, *run[place + 1 :])
        if changed != (b"", b"", 1, [b"a"]) and not (place == 2 and bad == 1):
            with pytest.raises(TypeError):
                compiled.ack_lines(b"PUB ", [changed], None)
    with pytest.raises(OverflowError):
        compiled.ack_lines(b"PUB ", [(b"", b"", 2**64, [b"a"])], None)
    record = {"base_offset": 0, "leader_epoch": 0, "timestamp_ns": 0}
    for args in ((bad, b"s", crc32c), (b"v", bad, crc32c), (b"v", b"s", bad)):
        with pytest.raises(TypeError):
            compiled.encode_record(*args, **record)
    for name in record:
        with pytest.raises((TypeError, OverflowError)):
            compiled.encode_record(b"v", b"s", crc32c, **{**record, name: 2**64})
    limits = {"line_max": 9, "payload_max": 9, "count_max": 9}
    with pytest.raises(TypeError):
        compiled.split_messages(bad, 0, [], is_published=True, **limits)
    if not isinstance(bad, list):
        with pytest.raises(TypeError):
            compiled.split_messages(b"PUB a 0\r\n\r\n", 0, bad, is_published=True, **limits)
    with pytest.raises(IndexError):
        compiled.split_messages(b"", -1, [], is_published=True, **limits)


numbers = st.integers(0, 10**20).map(b"%d".__mod__) | st.sampled_from(
    [b"", b"0", b"007", b"1" * 18, b"1" * 19, b"1" * 20, b"1" * 21, b"-1", b"x", b"\xb2"]
)
beginnings = st.sampled_from([b"$JS.ACK.S.c", b"$JS.ACK.S.d", b"", b"1", b"."])
ack_subjects = (
    st.builds(lambda *tokens: b".".join(tokens), beginnings, *[numbers] * 5)
    | st.lists(numbers, max_size=7).map(b".".join)
    | st.binary(max_size=12)
)
PLAIN = frozenset((b"+ACK", b""))
acks = st.tuples(
    ack_subjects,
    st.just(b"7"),
    st.sampled_from([None] * 5 + [b"_INBOX.a"]),
    st.none(),
    st.sampled_from([b"+ACK", b"", b"-NAK"]),
)


def plain(*subjects):
    """Plain acknowledgements with these subjects."""
    return [(subject, b"7", None, None, b"+ACK") for subject in subjects]


@given(st.lists(acks, max_size=4))
@example(plain(b"a.1.2.3.4.5", b"b.1.2.3.4.5", b"a.6.7.8.9.0"))
@example(plain(b"a.1.2.3.4.5."))
@example(plain(b".1.2.3.4.5"))
@example(plain(b"1.2.3.4.5"))
@example(plain(b"$JS.ACK.S.c.1.%b.3.4.5" % (b"9" * 20)))
def test_plain_acks(messages):
    """The same numbers by the same beginnings, and the same runs are not plain."""
    expected = outcome(pure.plain_acks, messages, PLAIN)
    assert outcome(compiled.plain_acks, messages, PLAIN) == expected
    assert outcome(compiled.plain_acks, tuple(messages), PLAIN) == expected


@pytest.mark.parametrize("function", [pure.plain_acks, compiled.plain_acks])
def test_what_is_no_plain_acknowledgement(function):
    """A reply subject, another payload, or another subject: then none of the run is."""
    good = plain(b"$JS.ACK.S.c.1.12.34.5.6")
    assert function([*good, *good], PLAIN) == {b"$JS.ACK.S.c": [(12, 34)] * 2}
    subject, sid, _, block, payload = good[0]
    bad = (
        (subject, sid, b"_INBOX.a", block, payload),
        (subject, sid, None, block, b"-NAK"),
        (subject + b".x", sid, None, block, payload),
    )
    for each in bad:
        assert function([*good, each], PLAIN) is None
