"""The offsets that no reader sees, counted between any two offsets."""

from hypothesis import given
from hypothesis import strategies as st

from strandline.core.transactions.hidden import WORD_OFFSETS, HiddenOffsets

OFFSETS = st.integers(0, 3 * WORD_OFFSETS)
RUNS = st.lists(st.tuples(OFFSETS, st.integers(1, 2 * WORD_OFFSETS)), max_size=5)


@given(runs=RUNS, start=OFFSETS, stop=OFFSETS, forgotten=OFFSETS)
def test_it_counts_as_a_set_does(runs, start, stop, forgotten):
    """Whatever was added, in whatever runs; nothing above the beginning of the log is forgotten."""
    hidden, model = HiddenOffsets(), set()
    for first, count in sorted(runs):
        hidden.add(first, count)
        model |= set(range(first, first + count))
    assert hidden.between(start, stop) == len(model & set(range(start, stop)))
    hidden.forget_below(forgotten)
    start = max(start, forgotten)
    assert hidden.between(start, stop) == len(model & set(range(start, stop)))


def test_what_is_below_the_beginning_of_the_log_takes_no_memory():
    """Only the word that the log begins in is kept of it."""
    hidden = HiddenOffsets()
    for offset in range(0, 100 * WORD_OFFSETS, 64):
        hidden.add(offset)
    hidden.forget_below(99 * WORD_OFFSETS + 1)
    assert hidden.between(0, 99 * WORD_OFFSETS) == 0
    assert hidden.between(0, 100 * WORD_OFFSETS) == WORD_OFFSETS // 64
