"""Repeated appends are acknowledged no sooner than the record that they repeat."""

from types import SimpleNamespace

import pytest

from strandline.broker.write_path.pending import AckWaiter
from strandline.broker.write_path.repeat_answers import RepeatAnswers
from strandline.errors import UnavailableError
from strandline.types import PartitionName

NAME = PartitionName("s", 0)


@pytest.fixture
def partition():
    """Offsets below 10 are committed, below 20 written, and later ones are pending."""
    holders = {}

    def holder_of(offset):
        return holders.setdefault(offset, SimpleNamespace(waiting=[]))

    return SimpleNamespace(
        name=NAME,
        high_watermark=10,
        log_end_offset=20,
        pending=SimpleNamespace(holder_of=holder_of),
        holders=holders,
    )


@pytest.fixture
def admission():
    sent = []
    queue = SimpleNamespace(acknowledge=lambda name, waiting: sent.extend(waiting) or sent)
    return SimpleNamespace(duplicates=0, send_queue=queue, sent=sent)


class Sink:
    def __init__(self):
        self.rejections = []

    def rejected(self, token, error):
        self.rejections.append((token, error))


@pytest.mark.parametrize(
    ("last", "state"), [(9, "sent"), (10, "late"), (19, "late"), (20, "pending"), (25, "pending")]
)
def test_a_repeat_waits_as_long_as_its_last_record(partition, admission, last, state):
    """The ack has the offset of its first record, and says that it is a repeat."""
    answers, sink = RepeatAnswers(partition, admission), Sink()
    answers.answer(4, sink, "token", last=last)
    assert admission.duplicates == 1
    places = {
        "sent": admission.sent,
        "late": [waiting for _, waiting in answers.late],
        "pending": partition.holders[last].waiting if last in partition.holders else [],
    }
    assert {name: len(found) for name, found in places.items()} == {
        name: int(name == state) for name in places
    }
    [waiting] = places[state]
    assert waiting == AckWaiter(sink, "token", 4, True)


def test_a_repeat_that_nobody_waits_for_is_only_counted(partition, admission):
    """Whoever asks for no answer gets none."""
    answers = RepeatAnswers(partition, admission)
    for last in (9, 19, 29):
        answers.answer(4, None, None, last=last)
    assert admission.duplicates == 3
    assert not admission.sent
    assert not answers.late
    assert not partition.holders


def test_repeats_are_acknowledged_up_to_what_is_committed(partition, admission):
    """Each once; the rest waits, or is rejected when the leader has lost its place."""
    answers, sink = RepeatAnswers(partition, admission), Sink()
    for last in (12, 14, 13):
        answers.answer(last, sink, last, last=last)
    answers.committed(12)
    assert admission.sent == []
    answers.committed(14)
    assert [each.token for each in admission.sent] == [12, 13]
    error = UnavailableError("it moved")
    answers.reject(error)
    assert sink.rejections == [(14, error)]
    answers.reject(error)
    answers.committed(99)
    assert len(sink.rejections) == 1
    assert len(admission.sent) == 2
