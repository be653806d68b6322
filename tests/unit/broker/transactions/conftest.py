"""A broker with transactions, asked directly, and what a reader of its partitions sees."""

import itertools
from types import SimpleNamespace

import pyarrow as pa
import pytest

from strandline.record.codec import decode_batches
from strandline.transactions import events as ev
from strandline.transactions.state import Batch, Producer
from strandline.types import ProducerStamp

counter = itertools.count()


def seen(partition, start=None):
    """Values that a reader sees from an offset on; moves on as ``Cursor`` does."""
    offset = partition.log_start_offset if start is None else start
    end, found = partition.stable_offset, []
    while offset < end:
        buffer = partition.read(offset, 1 << 12)
        if not buffer.size:
            break
        for batch in decode_batches(buffer, columns=["offset", "value"]):
            for at, value in zip(*(c.to_pylist() for c in batch.columns), strict=True):
                if offset <= at < end:
                    found.append(value.decode())
                    offset = at + 1
    return found


class Asker:
    """Requests to the office of a broker, as the front end makes them."""

    def __init__(self, broker):
        self.broker = broker
        self.sequences = {}

    @property
    def office(self):
        return self.broker.transactions

    async def begin(self, id_, *, after=None, timeout_ms=60_000, batch=None, nonce=None):
        nonce = nonce or f"nonce {next(counter)}"
        batch = None if batch is None else Batch(*batch)
        begun = await self.office.begin_transaction(
            lambda token, fresh: ev.Begin(token, id_, after, nonce, timeout_ms, fresh, batch)
        )
        return begun.producer

    async def add(self, id_, who, *names):
        places = self.office.places(list(names))
        await self.office.ask(lambda token: ev.AddPlaces(token, id_, who, places))

    def write(self, who, partition, answers, *values):
        """Append values as one batch; the token is the first value."""
        number = self.sequences.get((who, partition.name), 0)
        self.sequences[who, partition.name] = number + len(values)
        column = pa.array([value.encode() for value in values], pa.binary())
        partition.append_arrow(
            pa.RecordBatch.from_arrays([column], names=["value"]),
            responder=answers,
            token=values[0],
            producer=ProducerStamp(who.producer_id, who.epoch, number),
            is_transactional=True,
        )

    async def end(self, id_, who, *, is_commit, cursors=None):
        await self.office.ask(
            lambda token: ev.End(token, id_, who, is_commit=is_commit, cursors=cursors or {})
        )

    async def prepare(self, id_, who):
        await self.office.ask(lambda token: ev.Prepare(token, id_, who))

    async def end_staged(self, id_, who, *, is_commit):
        await self.office.ask(
            lambda token: ev.EndStaged(token, id_, Producer(*who), is_commit=is_commit)
        )

    async def publish(self, name, number, fingerprint, *parts):
        return await self.office.ask(
            lambda token: ev.Publish(token, Batch(name, number), parts, fingerprint)
        )

    async def read(self, question):
        return await self.office.ask(lambda token: ev.Read(token, question))


@pytest.fixture
def tx():
    """What the tests here share."""
    return SimpleNamespace(Asker=Asker, seen=seen)
