"""One put: batches checked, appended on the loop, acked while more come; and how it ends."""

import threading
import time

import pyarrow as pa
import pyarrow.flight as fl
import pytest

from strandline.api.put import BatchTag, ProducerTag, PutAck, PutRequest
from strandline.api.wire import decode, encode
from strandline.errors import (
    DiskFullError,
    InvalidRequestError,
    NotLeaderError,
    ShuttingDownError,
    StillLoadingError,
    UnknownStreamError,
)
from strandline.servers.flight import writer
from strandline.servers.flight.lifecycle import ServerLifecycle
from strandline.servers.flight.writer import PutSession
from strandline.types import ProducerStamp


class Chunk:
    """A chunk as pyarrow passes it."""

    def __init__(self, data, metadata=None):
        self.data = data
        self.app_metadata = None if metadata is None else pa.py_buffer(metadata)


def values(*items, **columns) -> pa.RecordBatch:
    """A batch of values."""
    return pa.RecordBatch.from_pydict({"value": list(items), **columns})


class Put:
    """A put into a fake broker."""

    def __init__(self, broker, **request):
        self.lifecycle = ServerLifecycle(broker)
        self.gone = threading.Event()
        self.acks = []
        self.session = PutSession(
            broker,
            PutRequest(stream="s", **request),
            self.lifecycle,
            send_ack=lambda data: self.acks.append(decode(data, PutAck, what="ack")),
            is_cancelled=self.gone.is_set,
        )

    def run(self, *chunks):
        """Put these, to the end; returns the acks."""
        left = iter(chunks)

        def read():
            item = next(left)
            return item() if callable(item) else item

        self.session.run(read)
        return self.acks


def test_batches_are_stored_and_acked(broker, stream, partition):
    """Without tags they are numbered; each ack says where the rows are."""
    acks = Put(broker).run(Chunk(values(b"a", b"b")), Chunk(values(b"c")))
    assert [(ack.sequence, ack.ranges) for ack in acks] == [(0, ((0, 0, 2),)), (1, ((0, 2, 1),))]
    assert partition.high_watermark == 3
    assert broker.telemetry.messages_received["flight"] == 3


def test_tags_come_back(broker, stream):
    """The client's number for a batch, and its partition if it names one."""
    broker.make_stream("s", partitions=3)
    [ack] = Put(broker).run(Chunk(values(b"a"), encode(BatchTag(sequence=77, partition=2))))
    assert (ack.sequence, ack.ranges) == (77, ((2, 0, 1),))


def test_rows_find_their_partitions(broker):
    """A plain Flight client need not know the partitioning."""
    stream = broker.make_stream("s", partitions=4, partition_by="key")
    [ack] = Put(broker).run(Chunk(values(b"a", b"b", b"c", key=[b"x", b"y", b"x"])))
    assert sum(stored.records for stored in ack.ranges) == 3
    assert len(ack.ranges) == len({stored.partition for stored in ack.ranges})
    assert sum(item.high_watermark for item in stream.partitions) == 3


def test_partitions_that_are_added_during_a_put_get_their_share(broker, stream):
    """By their number, and of rows that name none; not those of another stream of the name."""

    def added():
        broker.make_stream("s", partitions=3, partition_by="key")
        return Chunk(values(b"a"), encode(BatchTag(sequence=1, partition=2)))

    def made_anew():
        broker.make_stream("s", partitions=9).created_ns = 2
        return Chunk(values(b"a"), encode(BatchTag(sequence=3, partition=8)))

    many = values(*[b"v"] * 30, key=[b"%d" % number for number in range(30)])
    acks = Put(broker).run(
        Chunk(values(b"a")), added, Chunk(many, encode(BatchTag(sequence=2))), made_anew
    )
    first, second, third, fourth = sorted(acks, key=lambda ack: ack.sequence)
    assert (first.ranges, second.ranges) == (((0, 0, 1),), ((2, 0, 1),))
    assert {stored.partition for stored in third.ranges} == {0, 1, 2}
    assert fourth.error.code == "unknown_partition"


def test_a_partition_that_moves_to_this_broker_takes_records_of_an_open_put(broker, stream):
    """A move replaces the remote partition by one that accepts records."""
    stream.partitions[0].refuse = NotLeaderError("broker 2 leads s/0")

    def moved():
        broker.make_stream("s")
        return Chunk(values(b"b"))

    first, second = Put(broker).run(Chunk(values(b"a")), moved)
    assert first.error.code == "not_leader"
    assert second.ranges == ((0, 0, 1),)


def test_a_put_ends_when_its_stream_was_recreated(broker, stream):
    """The batch for the old stream is rejected, and the next needs another put."""

    def recreated():
        while not stream.partitions[0].high_watermark:
            time.sleep(0.001)
        stream.partitions[0].refuse = UnknownStreamError("stream 's' was deleted")
        broker.make_stream("s").created_ns = 2
        return Chunk(values(b"b"))

    acks = Put(broker).run(Chunk(values(b"a")), recreated, Chunk(values(b"never read")))
    assert [ack.error and ack.error.code for ack in acks] == [None, "unknown_stream"]
    assert broker.stream("s").partitions[0].high_watermark == 0


NUMBERS = ProducerTag(7, 1, 40)


def test_the_numbers_of_a_producer_come_with_its_batches(broker, stream, partition):
    """Each batch of one put may be of another producer, or of none."""
    numbered = encode(BatchTag(sequence=0, partition=0, producer=NUMBERS))
    Put(broker).run(Chunk(values(b"a"), numbered), Chunk(values(b"b")))
    assert partition.producers == [ProducerStamp(7, 1, 40), None]


def test_an_expected_offset_goes_to_the_partition(broker, stream, partition):
    """A record is stored only where it is expected; without ids it is answered row by row too."""
    tag = BatchTag(sequence=5, partition=0, expected_offset=0)
    [ack] = Put(broker).run(Chunk(values(b"a", key=[b"k"]), encode(tag)))
    assert (ack.sequence, ack.offsets, ack.partitions) == (5, (0,), (0,))
    [record] = partition.appended
    assert (record["value"], record["key"], record["expected_last"]) == (b"a", b"k", 0)


@pytest.mark.parametrize(
    ("tag", "count"),
    [
        (BatchTag(sequence=0, expected_offset=0), 1),
        (BatchTag(sequence=0, partition=0, expected_offset=0), 2),
        (BatchTag(sequence=0, partition=0, expected_offset=0, producer=NUMBERS), 1),
        (BatchTag(sequence=0, partition=0, expected_offset=-1), 1),
    ],
)
def test_expected_offsets_that_cannot_be_are_rejected(broker, stream, partition, tag, count):
    """Without a partition, for several records, with a producer's sequence, or below 0."""
    [ack] = Put(broker).run(Chunk(values(*[b"a"] * count), encode(tag)))
    assert ack.error.code == "invalid_request"
    assert partition.appended == []


@pytest.mark.parametrize(
    ("tag", "columns"),
    [
        (BatchTag(sequence=0, producer=NUMBERS), {}),
        (BatchTag(sequence=0, partition=0, producer=NUMBERS), {"message_id": ["m"]}),
        (BatchTag(sequence=0, partition=0, producer=ProducerTag(7, -1, 0)), {}),
        (BatchTag(sequence=0, partition=0, producer=ProducerTag(7, 0, 1 << 31)), {}),
        (BatchTag(sequence=0, partition=0, producer=ProducerTag(-1, 0, 0)), {}),
    ],
)
def test_numbers_that_cannot_be_are_rejected(broker, stream, partition, tag, columns):
    """Rows for several partitions, rows with message ids, numbers out of their range."""
    [ack] = Put(broker).run(Chunk(values(b"a", **columns), encode(tag)))
    assert ack.error.code == "invalid_request"
    assert partition.producers == []


@pytest.mark.parametrize(
    ("chunk", "code"),
    [
        (Chunk(values(1)), "invalid_record"),
        (Chunk(values(b"v", subject=["a b"])), "invalid_subject"),
        (Chunk(values(b"x" * (1 << 21))), "record_too_large"),
        (Chunk(values(b"v"), b"{"), "invalid_request"),
        (Chunk(values(b"v"), encode(BatchTag(sequence=0, partition=9))), "unknown_partition"),
        (Chunk(None, encode(BatchTag(sequence=0))), "invalid_record"),
        (Chunk(values()), "invalid_record"),
    ],
)
def test_a_bad_batch_costs_only_itself(broker, stream, partition, chunk, code):
    """Its ack has the error; the batches before and after are stored."""
    acks = Put(broker).run(Chunk(values(b"a")), chunk, Chunk(values(b"b")))
    errors = [ack.error.code for ack in acks if ack.error]
    assert errors == [code]
    assert partition.high_watermark == 2


def test_a_rejection_of_the_broker_is_the_batches_answer(broker, stream, partition):
    """As when the disk is full."""
    partition.refuse = DiskFullError("full")
    [ack] = Put(broker).run(Chunk(values(b"a")))
    assert ack.error.code == "disk_full"
    assert ack.error.retriable


def test_what_is_behind_a_rejected_batch_is_rejected_until_that_is_sent_again(
    broker, stream, partition
):
    """Batches without a sequence keep their order; others continue."""
    partition.refuse = StillLoadingError("still read back")

    def batch(value, sequence, after=None):
        tag = BatchTag(sequence=sequence, partition=0, after=after)
        return Chunk(values(value), encode(tag))

    def loaded():
        while len(put.acks) < 1:
            time.sleep(0.001)
        partition.refuse = None
        return batch(b"b", 1, after=0)

    put = Put(broker)
    acks = put.run(
        batch(b"a", 0),
        loaded,
        batch(b"c", 2, after=1),
        batch(b"x", 3),
        batch(b"a", 0),
        batch(b"d", 4, after=2),
        batch(b"b", 1, after=0),
        batch(b"c", 2, after=1),
    )
    codes = [(ack.sequence, ack.error and ack.error.code) for ack in acks]
    loading = "still_loading"
    assert codes[:4] == [(0, loading), (1, loading), (2, loading), (3, None)]
    assert codes[4:] == [(0, None), (4, loading), (1, None), (2, None)]
    assert partition.high_watermark == 4


def test_a_fault_of_ours_is_answered_too(broker, stream, partition):
    """The loop continues and the client gets an error."""

    def fault(*_, **__):
        raise ZeroDivisionError

    partition.append_arrow = fault
    [ack] = Put(broker).run(Chunk(values(b"a")))
    assert ack.error.code == "error"


def test_message_ids_deduplicate_row_by_row(broker, stream, partition):
    """Each row has its own answer, and its id becomes a header."""
    acks = Put(broker).run(
        Chunk(values(b"a", b"b", b"c", message_id=["i", "j", "i"])),
        Chunk(values(b"d", message_id=["j"])),
    )
    assert [(ack.offsets, ack.duplicates) for ack in acks] == [((0, 1, 0), (2,)), ((1,), (0,))]
    assert partition.appended[0]["headers"] == [("Nats-Msg-Id", b"i")]


def test_acks_flow_while_the_client_sends_nothing(broker, stream):
    """An ack never waits for the next batch."""
    put = Put(broker)
    saw_ack = threading.Event()

    def pause():
        deadline = time.monotonic() + 60
        while not put.acks and time.monotonic() < deadline:
            time.sleep(0.01)
        saw_ack.set() if put.acks else None
        return Chunk(values(b"b"))

    put.run(Chunk(values(b"a")), pause)
    assert saw_ack.is_set()


def test_the_window_stops_a_fast_client(broker, stream, partition, monkeypatch):
    """At most a window is in flight; answers open it again."""
    monkeypatch.setattr(writer, "WINDOW_BATCHES", 4)
    partition.holds_acks = True
    put = Put(broker)
    taken = []

    def batch():
        taken.append(1)
        return Chunk(values(b"v"))

    thread = threading.Thread(target=put.run, args=[batch] * 10)
    thread.start()
    deadline = time.monotonic() + 60
    while len(taken) < 4 and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.2)  # long enough for a fifth, if it were asked for
    assert len(taken) == 4
    partition.holds_acks = False
    broker.call_soon(lambda: [answer() for answer in partition.held])
    thread.join(60)
    assert len(put.acks) == 10


def test_unstored_bytes_of_the_broker_stop_a_client(broker, stream, monkeypatch):
    """All clients wait until the disk catches up."""
    broker.admission.pending_bytes = broker.config.limits.pending_bytes
    put = Put(broker)
    thread = threading.Thread(target=put.run, args=[Chunk(values(b"v"))])
    thread.start()
    time.sleep(0.1)
    assert not put.acks
    broker.admission.pending_bytes = 0
    thread.join(60)
    assert len(put.acks) == 1


def test_a_client_that_goes_away_frees_the_threads(broker, stream, partition):
    """Even when the disk never answers."""
    partition.holds_acks = True
    put = Put(broker)
    threading.Timer(0.2, put.gone.set).start()
    started = time.monotonic()
    put.run(Chunk(values(b"v")))
    assert time.monotonic() - started < 30
    assert put.lifecycle.busy == 0


def test_a_stopping_broker_answers_what_it_took(broker, stream, partition):
    """Nothing new is accepted; accepted records are acked before the call ends."""
    put = Put(broker)

    def stop():
        put.lifecycle.stopping.set()
        return Chunk(values(b"b"))

    with pytest.raises(ShuttingDownError):
        put.run(Chunk(values(b"a")), stop, Chunk(values(b"c")))
    assert len(put.acks) == 2
    assert partition.high_watermark == 2


def test_an_idle_put_does_not_hold_up_a_stop(broker, stream):
    """A producer without records in flight does not delay it."""
    put = Put(broker)
    busy = []

    def idle():
        deadline = time.monotonic() + 60
        while put.lifecycle.busy and time.monotonic() < deadline:
            time.sleep(0.01)
        busy.append(put.lifecycle.busy)
        raise StopIteration

    put.run(Chunk(values(b"a")), idle)
    assert busy == [0]


def test_a_client_that_stops_listening_is_left_alone(broker, stream, partition):
    """Its records are stored; the acks have nowhere to go."""
    put = Put(broker)

    def broken(_):
        raise fl.FlightUnavailableError("gone")

    put.session._send_ack = broken
    put.run(Chunk(values(b"a")))
    assert partition.high_watermark == 1


@pytest.mark.parametrize(
    ("promised", "asked", "is_more"),
    [
        ("memory", "memory", False),
        ("memory", "disk", True),
        ("disk", "memory", False),
        ("disk", "disk", False),
        (None, "disk", False),
        (None, "replicated", True),
    ],
)
def test_acks_mean_no_more_than_the_stream_promises(broker, promised, asked, is_more):
    """A put with a stronger level is rejected at once, with both levels named."""
    broker.make_stream("s", acks=promised)
    if not is_more:
        assert Put(broker, acks=asked).run(Chunk(values(b"a")))[0].error is None
        return
    with pytest.raises(InvalidRequestError, match=f"'{asked}'.* 's'.*'{promised or 'disk'}'"):
        Put(broker, acks=asked)


def test_an_unknown_stream_is_rejected_at_once(broker):
    """Before a batch is read."""
    with pytest.raises(UnknownStreamError):
        Put(broker)
