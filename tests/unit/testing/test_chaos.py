"""Chaos without brokers: the faults, and what publishers, readers and members may observe."""

import random
from concurrent.futures import Future
from itertools import islice
from types import SimpleNamespace

import pyarrow as pa
import pytest

from chaos import clients, load, run
from chaos.__main__ import page, write
from chaos.clients import GroupClient, OwnProducer, expected_failure
from chaos.faults import FAULTS, deal
from chaos.load import ChaosReader, expected
from chaos.run import ChaosOutcome, ChaosPlan
from strandline import errors
from strandline.client.reader.results import Ack
from strandline.testing.history import GroupHistory, PartitionHistory, ViolationError
from strandline.types import PartitionName


@pytest.fixture
def histories():
    return [PartitionHistory("partition 0")]


@pytest.fixture
def arriving(monkeypatch):
    """Make waiting for readers fail at once."""
    monkeypatch.setattr(run, "ARRIVE_TIMEOUT_S", 0.0)


@pytest.mark.parametrize("seed", range(20))
def test_each_fault_comes_before_any_comes_again(seed):
    """A round has every fault once, one or two at a time; the seed repeats it."""
    rounds = deal(list(FAULTS), random.Random(seed))
    dealt = []
    while len(dealt) < 3 * len(FAULTS):
        chosen = next(rounds)
        assert len(chosen) in (1, 2)
        dealt += chosen
    for first in range(0, len(dealt), len(FAULTS)):
        assert sorted(dealt[first : first + len(FAULTS)]) == sorted(FAULTS)
    again = deal(list(FAULTS), random.Random(seed))
    assert [name for names in islice(again, len(dealt)) for name in names][: len(dealt)] == dealt


@pytest.mark.parametrize("kind", [*load.PASSING, errors.UnavailableError])
def test_what_faults_cause_is_counted(kind):
    """A client may find a broker down, or no longer leading."""
    assert expected(kind("so")) == kind.code


@pytest.mark.parametrize(
    "kind",
    [
        errors.StrandlineError,
        errors.CorruptBatchError,
        errors.DataLossError,
        errors.InvalidRequestError,
        errors.OffsetOutOfRangeError,
        errors.LogPoisonedError,
        errors.DiskFullError,
    ],
)
def test_what_no_fault_may_cause_is_a_broken_promise(kind):
    """Corruption, loss, nonsense, or a full disk where one only reads."""
    with pytest.raises(ViolationError, match=kind.code):
        expected(kind("so"))


class Replica:
    """Serves batches of (offset, value) from the reader's place, or an error, then ends it all."""

    def __init__(self, reader, *served):
        self._reader, self._served = reader, list(served)

    def __call__(self, *_, **__):
        return self

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def wait_for(self, *_, **__):
        self._reader.is_stopping = len(self._served) == 1
        return {0: 1 << 30}

    def read(self, *_, **__):
        served = self._served.pop(0)
        if isinstance(served, Exception):
            raise served
        offsets, values = zip(*served, strict=True)
        yield pa.record_batch({"offset": list(offsets), "value": list(values)})


@pytest.fixture
def reader(histories, monkeypatch):
    """Makes a reader of a replica that serves this."""

    def make(*served):
        made = ChaosReader([SimpleNamespace(flight="here")], "s", histories, name="one")
        monkeypatch.setattr(load, "ReplicaReader", Replica(made, *served))
        return made

    return make


def test_a_reader_continues_after_errors(reader, histories):
    """Errors that pass are counted, and the reader continues at its position to the end."""
    made = reader([(0, b"a")], errors.DisconnectedError("gone"), [(1, b"b"), (2, b"c")])
    made.run()
    assert (made.records, made.errors) == (3, {"disconnected": 1})
    assert made.is_at([3])
    assert not made.is_at([4])
    histories[0].arrived("one", 3)


@pytest.mark.parametrize(
    "served",
    [
        [[(0, b"a")], [(2, b"c")]],
        [[(0, b"a")], [(0, b"a")]],
        [[(0, b"a"), (2, b"c")]],
        [[(0, b"a")], [(1, b"a")]],
        [[(0, b"a")], errors.CorruptBatchError("corrupt")],
    ],
    ids=["left out", "again", "left out within", "twice", "corruption"],
)
def test_a_reader_that_sees_what_must_not_be_says_so(reader, served):
    """Gaps, repetitions and errors that nothing here may cause end the run."""
    with pytest.raises(ViolationError):
        reader(*served).run()


async def test_a_reader_that_never_arrives_is_a_broken_promise(arriving, histories):
    """It may take its time while things break, and not after."""
    histories[0].read("one", [0], [b"a"])
    slow = SimpleNamespace(name="one", is_at=lambda ends: ends == [1])
    await run._judge_readers([slow], histories, [1], followers=[])
    with pytest.raises(ViolationError, match="one is at 1, the log ends at 2"):
        await run._judge_readers([slow], histories, [2], followers=[])


@pytest.mark.parametrize("position", [None, 0, 2])
async def test_a_group_that_never_arrives_is_a_broken_promise(
    arriving, histories, monkeypatch, position
):
    """All is processed, and its position has to say just that."""
    group = GroupHistory(histories[0])
    group.begins("ann", 0)
    group.processed("ann", [0], [b"a"])
    cluster = SimpleNamespace(servers={})
    monkeypatch.setattr(run, "positions", lambda *_: [1])
    await run._judge_group(cluster, [group], [1], followers=[])
    monkeypatch.setattr(run, "positions", lambda *_: [position])
    with pytest.raises(ViolationError, match=f"its position is {position}"):
        await run._judge_group(cluster, [group], [1], followers=[])


class Answers:
    """A producer whose acks are given, one for each append."""

    def __init__(self, owner, *answers):
        self._owner, self._answers = owner, list(answers)

    def append(self, value, *, partition):
        future = Future()
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            future.set_exception(answer)
        else:
            future.set_result(Ack.at(answer, partition))
        self._owner.is_stopping = not self._answers
        return future


async def heard(histories, *answers):
    """Return a producer that has received these acks and errors."""
    own = OwnProducer([], "s", histories, name="own")
    own._send(Answers(own, *answers))
    while own._open:
        await own._hear()
    return own


async def test_a_producer_may_give_up_what_met_a_full_disk(histories):
    """Such a record is not stored; the others are, in the order in which they were given."""
    own = await heard(histories, 0, errors.DiskFullError("full"), 3)
    assert (own.acked.count, own.rejections) == (2, {"disk_full": 1})
    with pytest.raises(ViolationError, match="was refused"):
        histories[0].settled("broker 1", [b"own 0", b"own 1", b"x", b"own 2"])


@pytest.mark.parametrize(
    "answers",
    [
        [1, 0],
        [0, errors.RequestTimeoutError("unknown")],
        [errors.OutOfOrderSequenceError("missing")],
    ],
    ids=["out of order", "given up", "given up for good"],
)
async def test_a_producer_that_breaks_its_promise_is_seen(histories, answers):
    """Records out of order, or given up for another reason."""
    with pytest.raises(ViolationError):
        await heard(histories, *answers)


def test_only_a_full_disk_may_fail_a_record():
    """After any other error the producer has to retry."""
    assert expected_failure(errors.DiskFullError("full")) == "disk_full"
    with pytest.raises(ViolationError, match="failed a record: not_leader"):
        expected_failure(errors.NotLeaderError("another"))


class Handing:
    """A consumer that begins at a position and hands out batches of (offset, value)."""

    def __init__(self, member, at, *batches, commit=None):
        self._member, self._batches, self._at = member, list(batches), at
        self._commit = commit
        self._name = PartitionName("s", 0)

    def positions(self):
        return {self._name: self._at}

    def poll(self, _):
        batch = self._batches.pop(0)
        self._member.is_stopping = not self._batches
        offsets, values = zip(*batch, strict=True)
        self._at = offsets[-1] + 1
        records = pa.record_batch({"offset": list(offsets), "value": list(values)})
        return [SimpleNamespace(partition=0, records=records)]

    def commit(self):
        if self._commit is not None:
            raise self._commit


def consume(group, at, *batches, commit=None):
    """Let a member be handed this."""
    member = GroupClient([], "s", [group], name="ann", stay_s=60.0)
    consumer = Handing(member, at, *batches, commit=commit)
    member._begin(consumer, {PartitionName("s", 0)})
    while not member.is_stopping:
        member._process(consumer)
        member._commit(consumer)
    return member


def test_a_member_continues_though_a_commit_fails(histories):
    """A failed commit is repeated or its records are consumed again; committed ones count."""
    group = GroupHistory(histories[0])
    lost = errors.UnknownMemberError("not heard of in time")
    member = consume(group, 0, [(0, b"a")], [(1, b"b")], commit=lost)
    assert (member.records, member.errors) == (2, {"unknown_member": 2})
    assert (group.processed_end, group.committed) == (2, 0)
    consume(group, 1, [(1, b"b"), (2, b"c")])
    group.settled(3, 3)
    assert group.committed == 3


@pytest.mark.parametrize(
    ("at", "batches", "commit"),
    [
        (1, [[(1, b"b")]], None),
        (0, [[(0, b"a")], [(2, b"c")]], None),
        (0, [[(0, b"a")], [(0, b"a")]], None),
        (0, [[(0, b"a")]], errors.InvalidRequestError("nonsense")),
    ],
    ids=["skipped", "left out", "again", "nonsense"],
)
def test_a_member_that_sees_what_must_not_be_says_so(histories, at, batches, commit):
    """Records skipped, left out or repeated, and errors that nothing here may cause."""
    with pytest.raises(ViolationError):
        consume(GroupHistory(histories[0]), at, *batches, commit=commit)


def test_positions_are_those_of_all_partitions(monkeypatch):
    """A partition without a committed offset has none."""

    class Client:
        groups = SimpleNamespace(committed_offsets=lambda _: {PartitionName("s", 1): 7})

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

    monkeypatch.setattr(clients.strandline, "connect", lambda _: Client())
    assert clients.positions([], "s", 2) == [None, 7]


def test_results_are_written_by_day_and_label(tmp_path):
    """The page has a line for each run, and how often each fault came."""
    outcome = ChaosOutcome(ChaosPlan(3, 1.0, 7), skipped={"fill-disk": "mounting needs root"})
    outcome.faults.update(name for name in FAULTS if name != "fill-disk")
    plain, short = write([outcome], tmp_path, ""), write([outcome], tmp_path, "short")
    assert plain.name.endswith("-chaos.md")
    assert short.name.endswith("-chaos-short.md")
    assert plain.read_text() == short.read_text() == page([outcome])
    assert "| flap | 1 |" in page([outcome])
    assert "| fill-disk | skipped |" in page([outcome])
