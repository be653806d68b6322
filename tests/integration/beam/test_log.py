"""Beam's log through a client generated from its service: its obligations, on one and on three."""

import threading
import time

import grpc
import pytest

import strandline
from strandline.servers.grpc._generated import health_pb2
from strandline.servers.grpc._generated import logspec_pb2 as pb

TIMEOUT_S = 120
pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


def test_a_new_log_is_empty_and_begins_at_1(log):
    """First index 1, last index 0."""
    found = log.info()
    assert (found.firstIndex, found.lastIndex) == (1, 0)
    assert found.bytesTotal > found.bytesUsed == 0


def test_each_request_is_answered_in_order_with_its_indexes(log):
    """Also a probe without proposals, and one of thousands."""
    many = [b"%d" % n for n in range(5000)]
    replies = log.append([b"a", b"b"], [], many, [b"c"])
    assert [reply.ok.sequence for reply in replies] == [1, 2, 3, 4]
    assert [list(reply.ok.indexes) for reply in replies] == [
        [1, 2],
        [],
        list(range(3, 5003)),
        [5003],
    ]
    found = log.entries(1, 5003)
    assert [entry.index for entry in found] == list(range(1, 5004))
    assert [entry.data for entry in found] == [b"a", b"b", *many, b"c"]
    assert not any(entry.skip for entry in found)
    assert log.info().lastIndex == 5003


def test_empty_proposals_are_entries(log):
    """An entry without bytes is no skip."""
    log.append([b"", b"x"])
    assert [(e.data, e.skip) for e in log.entries(1, 2)] == [(b"", False), (b"x", False)]


def test_proposals_of_several_megabytes(log):
    """They are stored and read back, over every window and frame there is."""
    large = [bytes((n,)) * (3 << 20) for n in range(3)]
    [reply] = log.append(large)
    assert list(reply.ok.indexes) == [1, 2, 3]
    assert [entry.data for entry in log.entries(1, 3)] == large


@pytest.mark.parametrize("sequences", [(0,), (2,), (1, 1), (1, 3)])
def test_a_wrong_sequence_ends_the_stream(log, sequences):
    """With an error; earlier entries stay."""
    requests = [pb.AppendRequest(sequence=number, proposals=[b"x"]) for number in sequences]
    with pytest.raises(grpc.RpcError) as caught:
        list(log.Append(iter(requests), timeout=TIMEOUT_S))
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "is the next on this stream" in caught.value.details()


def test_a_request_may_be_larger_than_a_batch(log):
    """Its proposals get consecutive indexes, in order, whether they are large or small."""
    proposals = [bytes((n,)) * (7 << 20 if n % 3 else 10) for n in range(6)]
    replies = log.append(proposals, [b"next"])
    assert [list(reply.ok.indexes) for reply in replies] == [[1, 2, 3, 4, 5, 6], [7]]
    assert [entry.data for entry in log.entries(1, 7)] == [*proposals, b"next"]


def test_a_proposal_that_is_too_large_ends_the_stream(beam, log):
    """Before anything of its request is stored; the broker's log says so, for it is repeated."""
    for _ in range(3):
        with pytest.raises(grpc.RpcError) as caught:
            log.append([b"fine", bytes((8 << 20) + 1)])
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "proposal of 8388609 bytes" in caught.value.details()
        assert "grpc.beam_record_bytes" in caught.value.details()
    assert log.info().lastIndex == 0
    deadline = time.monotonic() + TIMEOUT_S
    while not (warnings := beam.warnings("may repeat it for ever")):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert len(warnings) == 1


def test_who_appends_to_a_deleted_log_is_told(beam, log):
    """Also on a stream opened before; other streams are not listed."""
    going = threading.Event()

    def requests():
        yield pb.AppendRequest(sequence=1, proposals=[b"x"])
        assert going.wait(TIMEOUT_S)
        yield pb.AppendRequest(sequence=2, proposals=[b"y"])

    replies = log.Append(requests(), timeout=TIMEOUT_S)
    assert list(next(replies).ok.indexes) == [1]
    with strandline.connect(beam.flight) as client:
        client.delete_stream("beam")
    deadline = time.monotonic() + TIMEOUT_S
    while code_of(log.Info, pb.InfoRequest()) is not grpc.StatusCode.NOT_FOUND:
        assert time.monotonic() < deadline
    going.set()
    for call in (lambda: next(replies), lambda: log.append([b"z"]), log.info):
        with pytest.raises(grpc.RpcError) as caught:
            call()
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND
        assert "there are" not in caught.value.details()


def code_of(call, request):
    """Return the status that a call ends with; None for success."""
    try:
        call(request, timeout=TIMEOUT_S)
    except grpc.RpcError as error:
        return error.code()
    return None


def test_many_appenders_at_once(log):
    """Streams of their own: every proposal gets an index of its own, and all are readable."""
    indexes = []

    def run(name):
        batches = ([b"%d-%d-%d" % (name, n, k) for k in range(3)] for n in range(20))
        requests = (
            pb.AppendRequest(sequence=n, proposals=batch) for n, batch in enumerate(batches, 1)
        )
        for reply in log.Append(requests, timeout=TIMEOUT_S):
            indexes.extend(reply.ok.indexes)

    threads = [threading.Thread(target=run, args=(name,)) for name in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT_S)
    assert sorted(indexes) == list(range(1, 961))
    assert len({entry.data for entry in log.entries(1, 960)}) == 960


def test_a_reader_follows_the_end(log):
    """From the middle, then new entries, without waiting to fill a reply."""
    log.append([b"1", b"2", b"3"])
    reading = log.Read(pb.ReadRequest(nextIndex=2), timeout=TIMEOUT_S)
    assert [e.data for e in next(reading).ok.entries] == [b"2", b"3"]
    log.append([b"4"])
    assert [(e.index, e.data) for e in next(reading).ok.entries] == [(4, b"4")]
    ahead = log.Read(pb.ReadRequest(nextIndex=6), timeout=TIMEOUT_S)
    log.append([b"5", b"6"])
    assert [(e.index, e.data) for e in next(ahead).ok.entries] == [(6, b"6")]
    reading.cancel()
    ahead.cancel()


def test_long_reads_come_in_replies_that_every_client_takes(log):
    """Tens of megabytes: complete, in order, each reply far below gRPC's usual limit."""
    value = b"x" * 10_000
    for _ in range(4):
        log.append([value] * 500)
    reading = log.Read(pb.ReadRequest(nextIndex=1), timeout=TIMEOUT_S)
    seen = 0
    for reply in reading:
        assert reply.ByteSize() < 2 << 20
        assert [e.index for e in reply.ok.entries] == list(
            range(seen + 1, seen + 1 + len(reply.ok.entries))
        )
        seen += len(reply.ok.entries)
        if seen == 2000:
            break
    reading.cancel()


def test_discarded_entries_are_gone(log):
    """Up to the index; a reader below it gets a truncation error, and its stream ends."""
    log.append([b"%d" % n for n in range(1, 101)])
    log.discard(50)
    found = log.info()
    assert (found.firstIndex, found.lastIndex) == (50, 100)
    for index in (0, 1, 49):
        replies = list(log.Read(pb.ReadRequest(nextIndex=index), timeout=TIMEOUT_S))
        assert [reply.WhichOneof("reply") for reply in replies] == ["truncated"]
    assert log.entries(50, 1)[0].data == b"50"
    log.discard(10)
    assert log.info().firstIndex == 50


def test_discarding_beyond_the_end_moves_the_log_there(log):
    """The log continues at the given index."""
    log.append([b"a"])
    waiting = log.Read(pb.ReadRequest(nextIndex=2), timeout=TIMEOUT_S)
    log.discard(1000)
    found = log.info()
    assert (found.firstIndex, found.lastIndex) == (1000, 999)
    assert next(waiting).truncated
    [reply] = log.append([b"b"])
    assert list(reply.ok.indexes) == [1000]
    assert [(e.index, e.data) for e in log.entries(1000, 1)] == [(1000, b"b")]


@pytest.mark.parametrize("first", [(1 << 62) + 1, (1 << 63) - 1, (1 << 64) - 1])
def test_an_index_without_room_behind_it_is_rejected(log, first):
    """Such a log could store nothing, and a batch that fails stops all streams."""
    log.append([b"a"])
    with pytest.raises(grpc.RpcError) as refused:
        log.Discard(pb.DiscardRequest(firstIndex=first), timeout=TIMEOUT_S)
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    [reply] = log.append([b"b"])
    assert list(reply.ok.indexes) == [2]


def test_info_is_repeated_when_it_changes(log):
    """After appends and after discards."""
    watching = log.InfoStream(pb.InfoRequest(allowStale=True), timeout=TIMEOUT_S)
    assert next(watching).ok.lastIndex == 0
    log.append([b"a", b"b"])
    assert any(reply.ok.lastIndex == 2 for reply in watching)
    log.discard(2)
    assert any(reply.ok.firstIndex == 2 for reply in watching)
    watching.cancel()


def test_the_health_of_the_log(beam, grpc_stub):
    """SERVING under its name."""
    health = grpc_stub(beam.channel, health_pb2.DESCRIPTOR.services_by_name["Health"])
    request = health_pb2.HealthCheckRequest(service="logspec.Log")
    assert health.Check(request, timeout=TIMEOUT_S).status == 1


def test_transactions_are_seen_when_they_are_committed(beam, log):
    """Aborted records and transaction markers are skipped."""
    with strandline.connect(beam.flight, timeout_s=TIMEOUT_S) as client:
        log.append([b"1"])
        for value, ends_well in ((b"kept", True), (b"lost", False)):
            transaction = client.transaction(f"t-{value}")
            transaction.append("beam", value)
            transaction.commit() if ends_well else transaction.abort()
    [reply] = log.append([b"last"])
    (last,) = reply.ok.indexes
    found = log.entries(1, last)
    assert [entry.index for entry in found] == list(range(1, last + 1))
    assert [entry.data for entry in found if not entry.skip] == [b"1", b"kept", b"last"]


def test_compacted_offsets_are_skipped(beam):
    """Compacted offsets are sent as skip entries, so that a reader sees every index."""
    log = beam.anew(compact=True, segment_bytes=64 << 10)
    with strandline.connect(beam.flight, timeout_s=TIMEOUT_S) as client:
        for n in range(200):
            client.append("beam", b"%d" % n * 200, key=b"%d" % (n % 3))
        client.append("beam", None, key=b"gone")
    deadline = time.monotonic() + TIMEOUT_S
    while not (found := log.entries(1, 201))[0].skip:
        assert time.monotonic() < deadline, "nothing is compacted"
        time.sleep(0.05)
    assert [entry.index for entry in found] == list(range(1, 202))
    assert found[-1].skip
    assert found[199].data == b"199" * 200
