"""Which message ids are remembered, for how long, and how they come back after a restart."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.broker.write_path.dedup import VECTOR_RECORDS_MIN, DedupWindow, load_window
from strandline.record.batch import read_header
from strandline.record.codec import Stamp, as_id, encode_records
from strandline.storage.disk import Disk
from strandline.storage.log import Log

SECOND = 1_000_000_000


@pytest.fixture
def log(tmp_path, disk):
    return Log.open(tmp_path / "log", disk=disk, segment_bytes=64 << 10, segment_age_ms=10**9)


def store(log, ids, *, time_ns, compression="none"):
    """One batch with a record for each id; None has none."""
    headers = [[("other", b"x"), ("Nats-Msg-Id", i)] if i is not None else None for i in ids]
    stamp = Stamp(log.log_end_offset, 0, time_ns, compression)
    batch = encode_records(
        [b"v"] * len(ids), ["s"], stamp, headers=headers if any(headers) else None
    )
    log.append(batch, read_header(batch))


def known(window, now_ns, *ids):
    return [window.find(as_id(i), now_ns) for i in ids]


def test_an_id_is_known_until_the_window_has_passed():
    """The last nanosecond of the window still counts."""
    window = DedupWindow(1000)
    window.add("m", 5, 0)
    assert window.find("m", SECOND) == 5
    assert window.find("m", SECOND + 1) is None
    assert len(window) == 0


def test_an_id_used_again_after_its_window_is_known_again():
    """The old entry's leaving does not take the new one with it."""
    window = DedupWindow(1000)
    window.add("m", 5, 0)
    window._ages.append((1, "other", 6))
    window.expire(SECOND + 1)
    window.add("m", 9, 2 * SECOND)
    window.expire(2 * SECOND + 1)
    assert window.find("m", 2 * SECOND + 1) == 9


def test_unstored_records_are_forgotten_from_their_offset_on():
    """Records that were accepted before stay known."""
    window = DedupWindow(1000)
    for number in range(5):
        window.add(f"m{number}", number, number)
    window.forget_from(3)
    assert known(window, 5, b"m0", b"m1", b"m2", b"m3", b"m4") == [0, 1, 2, None, None]


def test_no_window_remembers_nothing():
    """A window of 0 is off."""
    window = DedupWindow(0)
    window.add("m", 1, 0)
    assert len(window) == 0


@pytest.mark.parametrize("compression", ["none", "zstd", "lz4"])
@pytest.mark.parametrize("count", [1, 3, VECTOR_RECORDS_MIN, 5000])
def test_the_window_comes_back_from_the_log(log, count, compression):
    """Ids of the last window are read from any size of batch; batches without ids cost nothing."""
    store(log, [None] * 10, time_ns=50 * SECOND)
    store(log, [b"early%d" % n for n in range(3)], time_ns=60 * SECOND)
    first = log.log_end_offset
    ids = [b"m%d" % n if n % 2 == 0 else None for n in range(count)]
    store(log, ids, time_ns=100 * SECOND, compression=compression)
    store(log, [None] * 10, time_ns=101 * SECOND)
    now_ns = 110 * SECOND
    window = load_window(log, 20_000, now_ns)
    assert len(window) == (count + 1) // 2
    assert known(window, now_ns, b"early0", b"m0") == [None, first]
    if count > 2:
        assert known(window, now_ns, b"m2", b"m1") == [first + 2, None]
    assert known(window, now_ns + 11 * SECOND, b"m0") == [None]


def test_a_restart_forgets_no_id_of_the_last_nanosecond(log):
    """The window has the same end before and after."""
    store(log, [b"a"], time_ns=SECOND)
    store(log, [b"b"], time_ns=SECOND + 1)
    at_its_end = 21 * SECOND
    assert known(load_window(log, 20_000, at_its_end), at_its_end, b"a", b"b") == [0, 1]
    assert known(load_window(log, 20_000, at_its_end + 1), at_its_end + 1, b"a", b"b") == [None, 1]


def test_the_first_id_of_a_record_counts(log):
    """As at the time of the publish: empty ones and later ones are no ids."""
    for size in (1, VECTOR_RECORDS_MIN):
        ids = [("Nats-Msg-Id", b""), ("Nats-Msg-Id", b"a"), ("Nats-Msg-Id", b"b")]
        stamp = Stamp(log.log_end_offset, 0, SECOND)
        batch = encode_records([b"v"] * size, ["s"], stamp, headers=[None] * (size - 1) + [ids])
        log.append(batch, read_header(batch))
        window = load_window(log, 20_000, SECOND)
        assert known(window, SECOND, b"", b"a", b"b") == [None, log.log_end_offset - 1, None]


def test_ids_in_corrupt_batches_are_passed_over(log, disk):
    """Corruption costs the ids in it, not the start of the broker nor the ids after it."""
    for number in range(3):
        store(log, [b"m%d" % number], time_ns=SECOND)
    log.checkpoint()
    segment = log.segments[0]
    middle = segment.size // 3 + 80
    disk.pwrite(segment.file.fd, b"\xff", middle)
    assert known(load_window(log, 20_000, SECOND), SECOND, b"m0", b"m1", b"m2") == [0, None, 2]


@given(st.lists(st.binary(min_size=1, max_size=4), unique=True, max_size=20))
def test_different_bytes_are_different_ids(ids):
    """Ids are bytes: two that are not UTF-8 are not taken for each other."""
    assert len({as_id(i) for i in ids}) == len(ids)


PAIRS = st.lists(
    st.tuples(st.sampled_from(["Nats-Msg-Id", "nats-msg-id", "", "x" * 9]), st.binary(max_size=9)),
    max_size=4,
)


@given(pairs=PAIRS, value=st.binary(max_size=20), subject=st.sampled_from(["s", "s.longer.name"]))
def test_a_record_stored_alone_is_read_the_short_way_and_the_long(
    tmp_path_factory, pairs, value, subject
):
    """Both ways find the same id; compressed records need the long one."""
    found = []
    for compression in ("none", "zstd"):
        directory = tmp_path_factory.mktemp("log")
        log = Log.open(directory, disk=Disk(), segment_bytes=64 << 10, segment_age_ms=10**9)
        stamp = Stamp(0, 0, SECOND, compression)
        batch = encode_records([value], [subject], stamp, headers=[pairs])
        log.append(batch, read_header(batch))
        window = load_window(log, 20_000, SECOND)
        found.append((window._offsets, list(window._ages)))
    assert found[0] == found[1]
