"""The calls of a client about streams, as a part of ``Client``: create, delete, describe, offsets.

Queries go to any broker; those about partitions go to the leaders.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from typing import Any

import msgspec

from strandline.api import admin
from strandline.api.cluster import ADD_PARTITIONS, AddPartitionsRequest
from strandline.api.tickets import WAIT_MS_MAX
from strandline.client.arguments import offsets_by_number, wait, whole_number
from strandline.client.cluster_client import ClusterClient, group
from strandline.client.deadline import within
from strandline.client.reader.reading import OffsetSpec, bound_of
from strandline.client.retry_policy import call_with_retries
from strandline.config import StreamConfig, decode_config
from strandline.errors import InvalidRequestError, StrandlineError

WAIT_SLICE_S = 0.25
"""The wait at one of several leaders before the next is asked."""


class StreamAdminCalls(ABC):
    """The calls of a client about streams."""

    _brokers: ClusterClient

    @property
    @abstractmethod
    def _known(self) -> ClusterClient:
        """Return the brokers, after finding out whether this is a cluster."""

    @abstractmethod
    def _forget_appender(self, stream: str) -> None:
        """Close the appender of a stream that is about to be deleted."""

    def create_stream(
        self, /, name: str, *, subject: str | None = None, partitions: int = 1, **config: Any
    ) -> admin.StreamInfo:
        """Create a stream.

        Args:
            name: the name of the stream.
            subject: the NATS subject to record, perhaps with wildcards; by default the name.
            partitions: the number of partitions.
            **config: other fields of ``config.StreamConfig``, such as ``retention_age_ms``.

        Raises:
            StreamExistsError: the name is taken.
            InvalidConfigError: a setting is unknown or invalid; the message suggests a similar one.
        """
        subject = name if subject is None else subject
        values = {"name": name, "subject": subject, "partitions": partitions, **config}
        checked = decode_config(values, StreamConfig)
        [info] = self._known.change(admin.CREATE_STREAM, checked)
        return info

    def add_partitions(self, name: str, partitions: int) -> admin.StreamInfo:
        """Give a stream in a cluster more partitions; has no effect if it has as many already.

        A key may map to another partition afterwards, so the records of one key are in order only
        before the change and after it. Partitions cannot be removed.

        Args:
            name: the name of the stream.
            partitions: the new number of partitions.

        Raises:
            UnknownStreamError: there is no such stream.
            InvalidRequestError: the stream has more partitions, or the broker is in no cluster.
        """
        info = self._described(name)
        has = len(info.partitions)
        more = whole_number(partitions, "partitions") - has
        if more < 0:
            raise InvalidRequestError(
                f"stream {name} has {has} partitions, which cannot be removed; partitions must be "
                f"at least {has}, got {partitions}"
            )
        if more:
            order = AddPartitionsRequest(name=name, count=more)
            [info] = self._known.change(ADD_PARTITIONS, order)
        return info

    def delete_stream(self, name: str) -> None:
        """Delete a stream and all its records.

        Raises:
            UnknownStreamError: there is no such stream.
        """
        self._forget_appender(name)
        self._known.change(admin.DELETE_STREAM, admin.StreamName(name=name))

    def stream_info(self, name: str, *, of_leaders: bool = True) -> admin.StreamInfo:
        """Return a stream's configuration and its partitions' offsets, as their leaders know them.

        Args:
            name: the name of the stream.
            of_leaders: ask the leaders; False: return at once what any broker knows.

        Raises:
            UnknownStreamError: there is no such stream.
            NotLeaderError: a partition has had no leader for too long.
            UnavailableError: a new leader has not known its end for too long.
        """
        with within(self._brokers.timeout_s):
            info = self._described(name)
            if not (self._brokers.is_cluster and of_leaders):
                return info
            found = self._brokers.ask_leaders(
                name,
                admin.STREAM_INFO,
                request=lambda led: admin.StreamInfoRequest(name=name, led=led),
                routes=self._brokers.metadata.take(info),
            )
        parts = {each.partition: each for each in info.partitions}
        for numbers, answer in found:
            parts |= {number: answer.partitions[number] for number in numbers}
        return msgspec.structs.replace(info, partitions=tuple(parts[n] for n in sorted(parts)))

    def _described(self, name: str) -> admin.StreamInfo:
        """Return the description of a stream by any broker."""
        body = admin.StreamInfoRequest(name=name)
        [info] = self._known.ask(admin.STREAM_INFO, body)
        return info

    def list_streams(self) -> list[admin.StreamInfo]:
        """Return all streams, sorted by name; in a cluster, with offsets that any broker knows."""
        return self._known.ask(admin.LIST_STREAMS, None)

    def update_stream(self, name: str, *, schema_validation: bool) -> admin.StreamInfo:
        """Change the settings of a stream that may be changed; the others are fixed.

        Args:
            name: the name of the stream.
            schema_validation: whether to reject records whose value does not fit its schema, from
                now on. Records that are stored stay.

        Raises:
            UnknownStreamError: there is no such stream.
            NotAllowedError: the caller does not administer the stream.
        """
        body = admin.UpdateStreamRequest(name=name, schema_validation=schema_validation)
        [info] = self._known.change(admin.UPDATE_STREAM, body)
        return info

    def delete_records(self, stream: str, offset: int, *, partition: int = 0) -> admin.StreamInfo:
        """Delete a partition's records below ``offset``; this cannot be undone.

        Whole segments are deleted, so some records below ``offset`` may stay on disk.

        Raises:
            OffsetOutOfRangeError: the offset is beyond the high watermark.
            UnknownStreamError, UnknownPartitionError: there is no such partition.
        """
        body = admin.DeleteRecords(name=stream, partition=partition, offset=offset)
        [info] = self._known.change(admin.DELETE_RECORDS, body)
        return info

    def offsets(self, stream: str, at: OffsetSpec = "latest") -> dict[int, int]:
        """Return the offset for ``at`` in each partition.

        Args:
            stream: the stream's name.
            at: ``"earliest"``, ``"latest"``, an offset, which is checked, or a time, which stands
                for
                the first record stored at or after it.

        Raises:
            UnknownStreamError: there is no such stream.
            OffsetOutOfRangeError: the offset does not exist.
            NotLeaderError, UnavailableError: as for ``stream_info``.
        """
        return self._offsets(stream, at)

    def _offsets(
        self, stream: str, at: OffsetSpec, numbers: Collection[int] | None = None
    ) -> dict[int, int]:
        """Return the offsets in these partitions; None: in all partitions."""
        bound = bound_of(at)
        found: dict[int, int] = {}
        for _, answer in self._known.ask_leaders(
            stream,
            admin.OFFSETS,
            request=lambda of: admin.OffsetsRequest(
                name=stream, at=bound, partitions=of, of_leader=True
            ),
            numbers=numbers,
        ):
            found |= answer.offsets
        return dict(sorted(found.items()))

    def wait_for(
        self, stream: str, beyond: Mapping[int, int], *, timeout_s: float = 1.0
    ) -> dict[int, int]:
        """Wait until the high watermark of a partition is above the offset given for it.

        Args:
            stream: the stream's name.
            beyond: the offset of each partition.
            timeout_s: the longest wait, at most 60 s.

        Returns:
            The high watermarks of those partitions, whether they have changed or not.

        Raises:
            UnknownStreamError, UnknownPartitionError: there is no such stream or partition.
            InvalidRequestError: an argument is of the wrong type.
        """
        beyond = offsets_by_number(beyond, "beyond")
        deadline_s = time.monotonic() + min(WAIT_MS_MAX / 1e3, wait(timeout_s, "timeout_s"))

        def left_s() -> float:
            return max(0.0, deadline_s - time.monotonic())

        def should_retry(error: StrandlineError) -> bool:
            self._brokers.metadata.forget(stream)
            return error.passes_soon and self._brokers.is_cluster and left_s() > 0

        while True:
            found = call_with_retries(
                lambda: self._wait_once(stream, beyond, wait_s=left_s()),
                timeout_s=left_s() + self._brokers.timeout_s,
                should_retry=should_retry,
            )
            if not left_s() or any(found[number] > after for number, after in beyond.items()):
                return found

    def _wait_once(
        self, stream: str, beyond: Mapping[int, int], *, wait_s: float
    ) -> dict[int, int]:
        """Return high watermarks; wait at the only leader, or for a moment at each of several."""
        leaders = self._leaders_of(stream, beyond)
        if len(leaders) > 1:
            wait_s = min(wait_s, WAIT_SLICE_S)
        found: dict[int, int] = {}
        for leader, numbers in leaders.items():
            part = {number: beyond[number] for number in numbers}
            found |= self._wait_at(leader, stream, part, wait_s=wait_s)
        return found

    def _leaders_of(self, stream: str, partitions: Mapping[int, int]) -> dict[str, tuple[int, ...]]:
        """Group partitions by leader; those without a leader now have the key ""."""
        if not self._known.is_cluster or not partitions:
            return {self._brokers.home: tuple(partitions)}
        leaders = self._brokers.leaders(self._brokers.known_routes(stream))
        return group({number: leaders.get(number, "") for number in partitions})

    def _wait_at(
        self, leader: str, stream: str, beyond: Mapping[int, int], *, wait_s: float
    ) -> dict[int, int]:
        """Wait at a leader (at any broker if it is ""); return the high watermarks."""
        body = admin.WaitRequest(name=stream, beyond=dict(beyond), wait_ms_max=int(wait_s * 1e3))
        ask = self._brokers.connection(leader).action if leader else self._brokers.ask
        [answer] = ask(admin.WAIT_BEYOND, body, wait_s=wait_s)
        return answer.offsets
