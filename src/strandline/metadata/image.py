"""The image: everything the metadata says at one moment, never changed in place.

Invariants:
- a log id is given out once and never again, so that journal entries of a deleted stream can
  never be replayed into another;
- a stream has at least one partition, numbered from 0 without gaps;
- the leader epoch of a partition only grows.
"""

import msgspec

from strandline.config import StreamConfig
from strandline.errors import UnknownPartitionError, UnknownStreamError


class PartitionImage(msgspec.Struct, frozen=True, kw_only=True):
    """One partition: the log that holds it and the number of its leadership."""

    log_id: int
    leader_epoch: int = 0


class StreamImage(msgspec.Struct, frozen=True, kw_only=True):
    """One stream."""

    config: StreamConfig
    created_ns: int
    partitions: tuple[PartitionImage, ...]


class MetadataImage(msgspec.Struct, frozen=True, kw_only=True):
    """All streams, by name, and the next log id to give out."""

    version: int = 1
    next_log_id: int = 1
    streams: dict[str, StreamImage] = {}

    def stream(self, name: str) -> StreamImage:
        """The stream called ``name``.

        Raises:
            UnknownStreamError: there is none; the message lists what there is.
        """
        try:
            return self.streams[name]
        except KeyError:
            raise UnknownStreamError(unknown_stream_message(name, self.streams)) from None

    def partition(self, name: str, number: int) -> PartitionImage:
        """Partition ``number`` of stream ``name``.

        Raises:
            UnknownStreamError: no such stream.
            UnknownPartitionError: no such partition.
        """
        partitions = self.stream(name).partitions
        if not 0 <= number < len(partitions):
            raise UnknownPartitionError(
                f"stream {name!r} has partitions 0 to {len(partitions) - 1}, not {number}"
            )
        return partitions[number]


def unknown_stream_message(name: str, streams: dict[str, StreamImage]) -> str:
    """The sentence for an unknown stream: what to do instead."""
    if not streams:
        return f"no stream {name!r}; create it with 'strandline stream create {name} --subject …'"
    some = ", ".join(sorted(streams)[:5])
    more = ", …" if len(streams) > 5 else ""
    return f"no stream {name!r}; there are: {some}{more}"
