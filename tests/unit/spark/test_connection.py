"""Fetching ranges: retries, cut reads, lost records. The client is a fake with a script."""

import threading
from types import SimpleNamespace

import pyarrow as pa
import pytest

from strandline.errors import (
    CorruptBatchError,
    DataLossError,
    DisconnectedError,
    OffsetOutOfRangeError,
    UnknownStreamError,
)
from strandline.spark import connection
from strandline.spark.options import ReadOptions
from strandline.spark.planning import OffsetRange

WANTED = OffsetRange(0, 10, 20)


class FakeClient:
    """A partition 0 with records up to 100, whose calls fail as the script says."""

    def __init__(self, *, log_start=0, compact=False, failures=()):
        self.log_start = log_start
        self.compact = compact
        self.failures = list(failures)
        self.starts = []
        self.closed = 0

    def stream_info(self, name):
        partition = SimpleNamespace(
            partition=0,
            log_start_offset=self.log_start,
            high_watermark=100,
            log_end_offset=100,
            size_bytes=1000,
        )
        config = SimpleNamespace(has_gaps=self.compact)
        return SimpleNamespace(name=name, created_ns=7, partitions=(partition,), config=config)

    def read(self, stream, *, partition, start, stop, columns, subject, keys):
        """Batches of three records; a failure is (after how many batches, the error)."""
        self.starts.append(start)
        after, error = self.failures.pop(0) if self.failures else (None, None)
        assert "offset" in columns
        for number, first in enumerate(range(start, stop, 3)):
            if number == after:
                raise error
            offsets = list(range(first, min(first + 3, stop)))
            yield pa.RecordBatch.from_pydict({"offset": pa.array(offsets, pa.int64())})
        if after is not None and error is None:
            return

    def close(self):
        self.closed += 1


@pytest.fixture
def use(monkeypatch):
    """Puts a fake client in the place of this process's, and lets no time pass."""

    def put(client):
        monkeypatch.setattr(connection, "client_of", lambda server: client)
        monkeypatch.setattr(connection, "forget_client", lambda server: client.close())
        monkeypatch.setattr(connection.time, "sleep", lambda seconds: None)
        return client

    return put


def options(**changes):
    return ReadOptions(server="s", stream="x", **{"retry_timeout_ms": 1000, **changes})


def offsets(wanted=WANTED, **changes):
    batches = connection.read_range(options(**changes), wanted, ["value"], identity="x@7")
    return [offset for batch in batches for offset in batch.column("offset").to_pylist()]


def test_a_range_is_read_once(use):
    """Without trouble one call reads everything."""
    client = use(FakeClient())
    assert offsets() == list(range(10, 20))
    assert client.starts == [10]


def test_a_cut_read_continues_where_it_was_truncated(use):
    """A connection lost in the middle loses and repeats no record."""
    lost = DisconnectedError("gone")
    client = use(FakeClient(failures=[(2, lost), (0, lost), (1, lost)]))
    assert offsets() == list(range(10, 20))
    assert client.starts == [10, 16, 16, 19]
    assert client.closed == 3


def test_a_stream_that_was_recreated_is_not_read(use):
    """Neither from the start nor after a wait for a broker: its offsets mean something else."""

    class Anew(FakeClient):
        created = iter((7, 7, 8))

        def stream_info(self, name):
            info = super().stream_info(name)
            info.created_ns = next(self.created)
            return info

    def read(identity):
        return list(connection.read_range(options(), WANTED, ["value"], identity=identity))

    client = use(Anew(failures=[(2, DisconnectedError("gone"))] * 2))
    with pytest.raises(DataLossError, match=r"x@6.*x@7.*load it again"):
        read("x@6")
    assert client.starts == []
    with pytest.raises(DataLossError, match=r"x@7.*x@8.*load it again"):
        read("x@7")
    assert client.starts == [10]


def test_retries_end(use, monkeypatch):
    """A broker that stays away is an error once the time is over."""
    now = iter(range(100))
    monkeypatch.setattr(connection.time, "monotonic", lambda: next(now))
    client = use(FakeClient(failures=[(0, DisconnectedError("gone"))] * 50))
    with pytest.raises(DisconnectedError):
        offsets(retry_timeout_ms=5000)
    assert 2 <= len(client.starts) <= 6


def test_an_orphan_does_not_go_on_asking(use, monkeypatch):
    """A worker whose Spark is gone gives up at once."""
    parents = iter([100, 100, 1])  # of the read, of the look at the stream, then none
    monkeypatch.setattr(connection.os, "getppid", lambda: next(parents))
    client = use(FakeClient(failures=[(0, DisconnectedError("gone"))] * 5))
    with pytest.raises(DisconnectedError):
        offsets()
    assert len(client.starts) == 1


def test_errors_that_stay_are_not_retried(use):
    """A stream that does not exist will not exist in a second either."""
    client = use(FakeClient(failures=[(0, UnknownStreamError("no x"))]))
    with pytest.raises(UnknownStreamError):
        offsets()
    assert client.starts == [10]


@pytest.mark.parametrize("error", [OffsetOutOfRangeError("below"), DataLossError("deleted")])
def test_lost_records_fail_the_read(use, error):
    """Records deleted before they were read are an error that says what to set."""
    use(FakeClient(log_start=15, failures=[(0, error)]))
    with pytest.raises(DataLossError, match="failOnDataLoss=false"):
        offsets()


@pytest.mark.parametrize("error", [OffsetOutOfRangeError("below"), DataLossError("deleted")])
def test_lost_records_are_skipped_when_allowed(use, error):
    """With failOnDataLoss off reading goes on at the log start, or ends if all is gone."""
    use(FakeClient(log_start=15, failures=[(0, error)]))
    assert offsets(fail_on_data_loss=False) == list(range(15, 20))
    use(FakeClient(log_start=50, failures=[(0, error)]))
    assert offsets(fail_on_data_loss=False) == []


def test_records_that_a_restored_log_lacks_are_passed_over_when_allowed(use):
    """Of a micro-batch that was planned on a longer log what is there is read, if that is asked."""

    class Restored(FakeClient):
        def read(self, stream, *, stop, **more):
            if stop > 100:
                raise OffsetOutOfRangeError("beyond")
            return super().read(stream, stop=stop, **more)

    for planned, there in (
        (OffsetRange(0, 95, 130), [*range(95, 100)]),
        (OffsetRange(0, 110, 130), []),
    ):
        use(Restored())
        assert offsets(planned, fail_on_data_loss=False) == there
        with pytest.raises(DataLossError, match="failOnDataLoss=false"):
            offsets(planned)


def test_an_offset_that_never_was_is_not_skipped(use):
    """Out of range for another reason than the log start is an error in any case."""
    use(FakeClient(log_start=0, failures=[(0, OffsetOutOfRangeError("beyond"))]))
    with pytest.raises(DataLossError, match="beyond"):
        offsets(fail_on_data_loss=False)


def test_corruption_is_not_hidden(use):
    """A corrupt batch fails the read with its own error."""
    use(FakeClient(failures=[(1, CorruptBatchError("bits", file="f", position=3))]))
    with pytest.raises(CorruptBatchError, match="f at byte 3"):
        offsets()


def test_a_short_answer_after_a_deletion_is_data_loss(use):
    """Fewer records than offsets are data loss if the start of the log has moved into the range;
    else the offsets are those of markers and aborted records, or filtered away.
    """

    class Short(FakeClient):
        def read(self, *args, **kwargs):
            yield from list(super().read(*args, **kwargs))[:-1]

    use(Short(log_start=50))
    with pytest.raises(DataLossError, match="gave 9 records of the 10"):
        offsets()
    assert len(offsets(subject="a.*")) == 9
    assert len(offsets(keys=(b"k",))) == 9
    use(Short())
    assert len(offsets()) == 9
    use(Short(log_start=50, compact=True))
    assert len(offsets()) == 9


def test_an_empty_range_asks_nothing(use):
    """A range without offsets is not a read."""
    client = use(FakeClient())
    assert offsets(OffsetRange(0, 5, 5)) == []
    assert client.starts == []


def test_the_state_names_the_stream_that_it_is_of(use):
    """Two streams of one name differ by their time of creation."""
    use(FakeClient())
    state = connection.stream_state(options())
    assert state.identity == "x@7"
    assert state.partitions[0].high_watermark == 100


def test_calls_are_retried_too(use):
    """A call on the driver outlives a broker that restarts."""
    use(FakeClient())
    answers = iter([DisconnectedError("gone"), DisconnectedError("gone"), "there"])

    def action(_):
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    assert connection.with_retries("s", action, timeout_ms=1000) == "there"


def test_clients_are_kept_for_each_process(monkeypatch):
    """A second use gets the same client, a forked child one of its own."""
    made = []
    monkeypatch.setattr(
        connection.strandline.client, "connect", lambda server: made.append(server) or FakeClient()
    )
    monkeypatch.setattr(connection, "_clients", {})
    first = connection.client_of("a")
    assert connection.client_of("a") is first
    monkeypatch.setattr(connection.os, "getpid", lambda: -1)
    assert connection.client_of("a") is not first
    connection.forget_client("a")
    connection.forget_client("a")
    assert made == ["a", "a"]


def test_a_wait_is_logged_once_and_ends_with_its_event(use, caplog):
    """Each failure after a success begins another wait; a set event ends it with the error."""
    caplog.set_level("INFO", logger="strandline")
    lost = DisconnectedError("nobody answers")
    client = use(FakeClient(failures=[(1, lost), (0, lost), (0, lost)]))
    assert offsets() == list(range(10, 20))
    assert caplog.messages == ["nobody answers; retrying for 1 s"]
    client.failures = [(0, lost)]
    stop = threading.Event()
    stop.set()
    with connection.stopped_by(stop), pytest.raises(DisconnectedError):
        offsets()
