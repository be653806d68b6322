"""How fast a consumer delivers: original pauses, and a limited rate."""

from hypothesis import given
from hypothesis import strategies as st

from strandline.servers.nats.jetstream.pacing import BURST_BYTES, Pacer

MS = 1_000_000


def played(pacer, records, *, start_ms=100.0):
    """Deliver records, each as early as it may be; return when each was."""
    now_ms, times = start_ms, []
    for sequence, (time_ns, size) in enumerate(records, 1):
        now_ms = max(now_ms, pacer.due_ms(sequence, time_ns))
        pacer.sent(time_ns, size, now_ms)
        times.append(now_ms)
    return times


def test_at_once_unless_something_else_is_asked_for():
    """No record waits."""
    assert played(Pacer(), [(0, 1 << 30), (9_000 * MS, 1 << 30)]) == [100, 100]


def test_original_pauses():
    """As between the publishes, up to the last record that was there; short ones are left out."""
    records = [(0, 1), (500 * MS, 1), (500 * MS + 1, 1), (400 * MS, 1), (700 * MS, 1)]
    assert played(Pacer(original_to=4), records) == [100, 600, 600, 600, 600]
    assert played(Pacer(original_to=9), records) == [100, 600, 600, 600, 900]


def test_a_rate_allows_a_burst():
    """Then each record waits until all before it fit."""
    bits_per_s = 8 * BURST_BYTES
    half = BURST_BYTES // 2
    times = played(Pacer(bits_per_s=bits_per_s), [(0, half)] * 6)
    assert times == [100, 100, 100, 600, 1100, 1600]


def test_a_record_larger_than_the_burst_comes_all_the_same():
    """What follows waits for it."""
    times = played(Pacer(bits_per_s=8 * BURST_BYTES), [(0, 9 * BURST_BYTES), (0, 1)])
    assert times == [100, 8_100]


@given(
    st.lists(st.tuples(st.integers(0, 10**18), st.integers(0, 1 << 26)), max_size=20),
    st.integers(0, 20),
    st.integers(0, 1 << 40),
)
def test_every_record_has_its_time(records, original_to, bits_per_s):
    """The times do not go back, and the rate is kept but for a burst and a record."""
    times = played(Pacer(original_to, bits_per_s), records)
    assert times == sorted(times)
    if bits_per_s and len(records) > 1:
        size = sum(size for _, size in records[:-1])
        largest = max(size for _, size in records)
        allowed = BURST_BYTES + largest + (times[-1] - times[0]) * bits_per_s / 8e3
        assert size <= allowed * 1.000001
