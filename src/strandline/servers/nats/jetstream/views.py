"""Names of streams in the JetStream API, and the streams and partitions that they mean.

A stream of one partition has its own name. For a stream of several partitions, its name means all
of them, and ``name:0``, ``name:1`` and so on mean one each. JetStream does not allow ``.`` in a
name. So it is shown as ``=``, which no name here contains.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

from strandline.broker.internal import is_internal
from strandline.broker.stream import Stream
from strandline.broker.write_path.partition import Partition

DIGITS_MAX: Final = 6


class JetStreamView(NamedTuple):
    """A stream as the JetStream API shows it."""

    stream: Stream
    number: int | None = None
    """The partition's number; None: all of several partitions."""

    @property
    def name(self) -> str:
        """The name that clients know."""
        is_part = self.number is not None and len(self.stream.partitions) > 1
        shown = shown_name(self.stream.name)
        return f"{shown}:{self.number}" if is_part else shown

    @property
    def partitions(self) -> list[Partition]:
        """The partitions that the view comprises."""
        if self.number is None:
            return self.stream.partitions
        return [self.stream.partitions[self.number]]

    @property
    def is_exact(self) -> bool:
        """Whether it is one partition, so that a sequence identifies a record."""
        return self.number is not None


def shown_name(name: str) -> str:
    """Return a stream's name in the form that JetStream's clients accept."""
    return name.replace(".", "=")


def names_of(name: str, partitions: int) -> Iterator[str]:
    """Yield all names by which clients know a stream."""
    shown = shown_name(name)
    yield shown
    if partitions > 1:
        yield from (f"{shown}:{number}" for number in range(partitions))


def split_name(name: str) -> tuple[str, int | None]:
    """Return the stream's own name and the partition's number, if the client's name has one."""
    base, colon, number = name.rpartition(":")
    if not colon:
        return name.replace("=", "."), None
    is_number = number.isascii() and number.isdigit() and len(number) <= DIGITS_MAX
    if not is_number or str(int(number)) != number:  # a partition has one name only: not "00"
        return "", None
    return base.replace("=", "."), int(number)


def view_of(stream: Stream, number: int | None) -> JetStreamView | None:
    """Return the view that the number in a client's name means; None if there is none."""
    count = len(stream.partitions)
    if is_internal(stream.name):
        return None
    if count == 1:
        return JetStreamView(stream, 0) if number is None else None
    if number is not None and number >= count:
        return None
    return JetStreamView(stream, number)


def views_of(stream: Stream) -> Iterator[JetStreamView]:
    """Yield all views of a stream."""
    if is_internal(stream.name):
        return
    if len(stream.partitions) > 1:
        yield JetStreamView(stream)
    for number in range(len(stream.partitions)):
        yield JetStreamView(stream, number)
