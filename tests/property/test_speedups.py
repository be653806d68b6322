"""The compiled functions do what their plain Python twins do, for any arguments."""

import pytest
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


@given(
    words,
    st.lists(st.none() | words, max_size=12),
    st.none() | st.lists(st.none() | words, max_size=12),
    words,
    words,
    sequences,
)
@example(b"MSG ", [b"_INBOX.a"], [], b"", b"", 1)
@example(b"PUB ", [b"_INBOX.a"] * 3, None, b"x" * 98, b"", 9)
def test_ack_lines(operation, replies, sids, before, after, sequence):
    """Lines are the same bytes, with sids and without, also where numbers get a digit more."""
    around = {"before": before, "after": after, "sequence": sequence}
    expected = outcome(pure.ack_lines, operation, replies, sids, **around)
    assert outcome(compiled.ack_lines, operation, replies, sids, **around) == expected
    if sids is None:
        lines = outcome(compiled.ack_lines, operation, tuple(replies), None, **around)
        assert lines == expected


@pytest.mark.parametrize("bad", [None, "text", 1, [1], ["text"]])
def test_arguments_of_other_types_are_errors(bad):
    """What is not of the types that a function takes raises; it never crashes."""
    around = {"before": b"", "after": b"", "sequence": 1}
    good = [b"PUB ", [b"a"], [b"1"] * 4]
    for place in (0, 1):
        args = [*good[:place], bad, *good[place + 1 :]]
        with pytest.raises(TypeError):
            compiled.ack_lines(*args, **around)
    for name in ("before", "after"):
        with pytest.raises(TypeError):
            compiled.ack_lines(*good, **{**around, name: bad})
    with pytest.raises((TypeError, OverflowError)):
        compiled.ack_lines(*good, **{**around, "sequence": 2**64})
