"""What a subscription asks for again after a lost connection. The broker is a fake."""

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import pyarrow as pa
import pytest

from strandline.client.reader.reading import read_request
from strandline.client.reader.subscription import SUBSCRIPTION_COLUMNS, Subscription
from strandline.errors import DisconnectedError
from strandline.record.schema import project

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


class Stream:
    """Gives some records of partition 0, then loses the connection, or ends."""

    resumes = False

    def __init__(self, request, *, until, is_last):
        self.added = {}
        self.request, self.until, self.is_last = request, until, is_last

    def batches(self):
        schema = project(SUBSCRIPTION_COLUMNS, with_partition=True)
        for offset in range(self.request.starts[0], self.until):
            row = {"partition": 0, "offset": offset, "timestamp": NOON, "subject": "s"}
            yield pa.RecordBatch.from_pylist([row | {"value": b"%d" % offset}], schema=schema)
        if not self.is_last:
            raise DisconnectedError("the broker is away")

    def cancel(self):
        pass


def subscribe(*ends, **options):
    """A subscription whose connections end at these offsets, and the requests it makes."""
    requests, left = [], list(ends)

    def begin(request):
        requests.append(request)
        return Stream(request, until=left.pop(0), is_last=not left)

    request = read_request("s", starts={0: 3}, follow=True, **options)
    return Subscription(begin, request, reconnect_timeout_s=5), requests


def test_filters_and_ends_are_asked_for_again():
    """Whatever was asked for still holds behind the place that was reached."""
    options = {"subject": "a.*", "keys": [b"k"], "timestamp_from": NOON, "timestamp_to": NOON}
    subscription, requests = subscribe(5, 9, stop=9, batch_bytes=1 << 20, **options)
    assert [record.offset for record in subscription] == [3, 4, 5, 6, 7, 8]
    first, again = requests
    assert again.starts == {0: 5}
    for name in ("subject", "keys", "timestamp_from_ns", "timestamp_to_ns", "stop", "batch_bytes"):
        assert getattr(again, name) == getattr(first, name), name


@pytest.mark.parametrize("lost_at", [4, 6])
def test_no_more_records_than_asked_for(lost_at):
    """Those that came before the connection was lost count; none are left, it has ended."""
    subscription, requests = subscribe(lost_at, 6, records_max=3)
    assert [record.offset for record in subscription] == [3, 4, 5]
    assert [request.records_max for request in requests] == ([3, 2] if lost_at == 4 else [3])


def test_a_subscription_that_is_closed_while_it_reconnects_ends():
    """Without a record more, without an error, and without a read that nobody cancels."""
    subscription, requests = subscribe(5, 9, start=3)
    begin, cancelled = subscription._begin, []

    def closed_meanwhile(request):
        stream = begin(request)
        stream.cancel = lambda: cancelled.append(stream)
        subscription.close()
        return stream

    subscription._begin = closed_meanwhile
    assert [record.offset for record in subscription] == [3, 4]
    assert (len(requests), len(cancelled)) == (2, 1)


def test_a_subscription_that_is_closed_while_nobody_is_there_ends():
    """Nobody waits for a broker on behalf of who has left."""
    subscription, _ = subscribe(5, 9)

    def away(_request):
        subscription.close()
        raise DisconnectedError("the broker is away")

    subscription._begin = away
    assert [record.offset for record in subscription] == [3, 4]


def test_several_threads_may_take_records():
    """Each record goes to one of them; Python's own word was that a generator already executes."""
    subscription, _ = subscribe(2_000)
    with ThreadPoolExecutor(4) as pool:
        taken = [pool.submit(lambda: [record.offset for record in subscription]) for _ in range(4)]
        assert sorted(offset for each in taken for offset in each.result()) == list(range(3, 2_000))
