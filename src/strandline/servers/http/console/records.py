"""Bounded reads of records for a page, the live tail and downloads.

Rules: a request reads for a limited time, and a limited number of records and bytes. A search that
ends at a limit returns the offset where it can continue. The broker filters by subject and key,
over a limited range of offsets; header and text are matched here, on the records it delivers.
"""

import heapq
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from strandline.api.admin import PartitionInfo
from strandline.client.client import Client
from strandline.clock import Clock
from strandline.errors import InvalidRequestError, UnknownPartitionError
from strandline.servers.http.console.request import Fields

PAGE_RECORDS: Final = 50
PAGE_RECORDS_MAX: Final = 200
SEARCHED_RECORDS_MAX: Final = 50_000
SEARCHED_BYTES_MAX: Final = 64 << 20
SEARCH_S: Final = 4.0
FILTERED_OFFSETS_MAX: Final = 1_000_000
"""Offsets that the broker searches for one request that filters by subject or key."""
DOWNLOAD_RECORDS_MAX: Final = 100_000
DOWNLOAD_BYTES_MAX: Final = 32 << 20
DOWNLOAD_S: Final = 10.0
PARTITIONS_AT_ONCE: Final = 64
"""A page over all partitions reads this many at most; the user can select another one."""
BATCH_BYTES: Final = 256 << 10
COLUMNS: Final = ("offset", "timestamp", "subject", "key", "value", "headers")


class ConsoleRecord(NamedTuple):
    """A record of a stream, read for the console."""

    partition: int
    offset: int
    timestamp_ns: int
    subject: str
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes]]

    @property
    def size(self) -> int:
        """The total length of key, value and headers in bytes."""
        texts = sum(len(name) + len(content) for name, content in self.headers)
        return len(self.key or b"") + len(self.value or b"") + texts


class RecordQuery(NamedTuple):
    """A filter of records; an empty field matches all."""

    subject: str = ""
    key: str = ""
    header: str = ""
    """A header's name, or ``name=value``."""
    text: str = ""
    """Text that the value contains, in upper or lower case."""

    @property
    def options(self) -> dict[str, Any]:
        """The part of the filter that the broker applies, as arguments of a read."""
        found: dict[str, Any] = {}
        if self.subject:
            found["subject"] = self.subject
        if self.key:
            found["keys"] = [self.key]
        return found

    @property
    def is_searched(self) -> bool:
        """Whether records must be matched here."""
        return bool(self.header or self.text)

    @property
    def matcher(self) -> Callable[[ConsoleRecord], bool]:
        """A function that applies the other part of the filter to a record."""
        name, has_value, content = self.header.partition("=")
        name, content, text = name.strip().lower(), content.strip().lower(), self.text.lower()

        def matches(record: ConsoleRecord) -> bool:
            if text and text not in (record.value or b"").decode("utf-8", "replace").lower():
                return False
            return not name or any(
                key.lower() == name
                and (not has_value or content in value.decode("utf-8", "replace").lower())
                for key, value in record.headers
            )

        return matches


class Budget:
    """The limits of what one request may still read.

    Args:
        clock: measures the time.
        records: how many records may be looked at.
        size_bytes: how many bytes these records may have.
        seconds: how long the request may take.
    """

    def __init__(self, clock: Clock, *, records: int, size_bytes: int, seconds: float) -> None:
        self._clock = clock
        self._records = records
        self._bytes = size_bytes
        self._until_ms = clock.monotonic_ms() + seconds * 1e3

    @property
    def is_spent(self) -> bool:
        """Whether nothing more may be read."""
        if self._records <= 0 or self._bytes <= 0:
            return True
        return self._clock.monotonic_ms() > self._until_ms

    def spend(self, record: ConsoleRecord) -> None:
        """Count a record that was looked at."""
        self._records -= 1
        self._bytes -= record.size


def search_budget(clock: Clock) -> Budget:
    """Return the budget of a page."""
    return Budget(
        clock,
        records=SEARCHED_RECORDS_MAX,
        size_bytes=SEARCHED_BYTES_MAX,
        seconds=SEARCH_S,
    )


class RecordPage(NamedTuple):
    """The records of a page and where the next page begins."""

    records: list[ConsoleRecord]
    positions: dict[int, int]
    """Partition → the next offset in the direction of reading, half-open."""
    is_cut: bool
    """Whether a search stopped before it had found enough or reached the end."""
    is_end: bool
    """Whether there are no further records in this direction."""


class RecordReader:
    """A reader of one stream's records for one request.

    Args:
        client: the user's client.
        stream: the stream.
        partitions: the partitions to read, as their leaders describe them.
        wanted: the filter.
        budget: the limits of the request.
    """

    def __init__(
        self,
        client: Client,
        stream: str,
        partitions: list[PartitionInfo],
        *,
        wanted: RecordQuery,
        budget: Budget,
    ) -> None:
        self._client = client
        self._stream = stream
        self._partitions = partitions
        self._wanted = wanted
        self._budget = budget

    def newest(self, positions: Mapping[int, int], count: int) -> RecordPage:
        """Return the newest records before the given offsets, newest first."""
        return self._page(positions, count, is_newest_first=True)

    def oldest(self, positions: Mapping[int, int], count: int) -> RecordPage:
        """Return the records from the given offsets on, oldest first."""
        return self._page(positions, count, is_newest_first=False)

    def _page(
        self, positions: Mapping[int, int], count: int, *, is_newest_first: bool
    ) -> RecordPage:
        found: list[list[ConsoleRecord]] = []
        ends: dict[int, int] = {}
        for part in self._partitions:
            low, high = part.log_start_offset, part.high_watermark
            position = positions.get(part.partition, high if is_newest_first else low)
            bounds = self._bounds(part, min(max(position, low), high), is_newest_first)
            taken, ends[part.partition] = self._some(
                part.partition, bounds, count, is_newest_first=is_newest_first
            )
            found.append(taken)
        # Records of one partition stay in order, even if a clock was set back.
        merged = list(heapq.merge(*found, key=_time_of, reverse=is_newest_first))
        # Records beyond this page are returned to their partitions: the next page starts at their
        # offsets.
        for record in reversed(merged[count:]):
            ends[record.partition] = record.offset + (1 if is_newest_first else 0)
        last = "log_start_offset" if is_newest_first else "high_watermark"
        is_end = all(ends[each.partition] == getattr(each, last) for each in self._partitions)
        is_cut = not is_end and len(merged) < count
        return RecordPage(merged[:count], ends, is_cut, is_end)

    def _bounds(self, part: PartitionInfo, position: int, is_newest_first: bool) -> tuple[int, int]:  # noqa: FBT001 - one of two directions
        """Return the range of offsets to read; it is limited if the broker filters."""
        low, high = part.log_start_offset, part.high_watermark
        if self._wanted.options:
            width = FILTERED_OFFSETS_MAX // len(self._partitions)
            low, high = max(low, position - width), min(high, position + width)
        return (low, position) if is_newest_first else (position, high)

    def _some(
        self, partition: int, bounds: tuple[int, int], count: int, *, is_newest_first: bool
    ) -> tuple[list[ConsoleRecord], int]:
        """Return up to ``count`` records of a partition, and where the next page begins."""
        (start, stop), budget = bounds, self._budget
        if start >= stop or budget.is_spent:
            return [], stop if is_newest_first else start
        found: list[ConsoleRecord] = []
        matches = self._wanted.matcher
        for record in self._read(partition, bounds, is_newest_first=is_newest_first, count=count):
            if budget.is_spent:
                return found, record.offset + (1 if is_newest_first else 0)
            budget.spend(record)
            if matches(record):
                found.append(record)
                if len(found) == count:
                    return found, record.offset + (0 if is_newest_first else 1)
        return found, start if is_newest_first else stop

    def _read(
        self, partition: int, bounds: tuple[int, int], *, is_newest_first: bool, count: int
    ) -> Iterator[ConsoleRecord]:
        batches = self._client.read(
            self._stream,
            partition=partition,
            start=bounds[0],
            stop=bounds[1],
            order="descending" if is_newest_first else "ascending",
            columns=COLUMNS,
            records_max=None if self._wanted.is_searched else count,
            batch_bytes=BATCH_BYTES,
            skip_corrupt=True,
            **self._wanted.options,
        )
        for batch in batches:
            yield from records_of(batch, partition)


def _time_of(record: ConsoleRecord) -> int:
    return record.timestamp_ns


def records_of(batch: Any, partition: int) -> Iterator[ConsoleRecord]:
    """Yield the records of an Arrow batch with all columns."""
    columns = {name: batch.column(name) for name in COLUMNS}
    times = columns.pop("timestamp").cast("int64").to_pylist()
    rows = zip(times, *(column.to_pylist() for column in columns.values()), strict=True)
    for at_ns, offset, subject, key, value, headers in rows:
        yield ConsoleRecord(
            partition, offset, at_ns, subject or "", key, value, list(headers or ())
        )


def chosen_partitions(partitions: tuple[PartitionInfo, ...], fields: Fields) -> list[PartitionInfo]:
    """Return the partitions that a page reads.

    Raises:
        UnknownPartitionError: the stream has no such partition.
    """
    number = fields.number("partition")
    if number is None:
        return list(partitions[:PARTITIONS_AT_ONCE])
    if number >= len(partitions):
        raise UnknownPartitionError(
            f"there is no partition {number}; the stream has {len(partitions)}, from 0"
        )
    return [partitions[number]]


def positions_of(text: str) -> dict[int, int]:
    """Parse offsets by partition, such as ``0:12,1:5``.

    Raises:
        InvalidRequestError: the text has another form.
    """
    found = {}
    for pair in filter(None, text.split(",")):
        number, _, offset = pair.partition(":")
        digits = number + offset
        if not (digits.isascii() and digits.isdigit() and len(digits) < 30 and number and offset):
            raise InvalidRequestError(f"invalid offsets {text[:80]!r}: expected 0:12,1:5")
        found[int(number)] = int(offset)
    return found


def positions_text(positions: Mapping[int, int]) -> str:
    """Return offsets by partition as text for a page's address."""
    return ",".join(f"{number}:{offset}" for number, offset in sorted(positions.items()))
