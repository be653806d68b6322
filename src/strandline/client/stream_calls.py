"""What a client asks about streams: creating and deleting them, and where their records are.

Part of ``Client``. Questions go to any broker, those about partitions to their leaders.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from typing import Any

import msgspec

from strandline.client.arguments import offsets_by_number, wait
from strandline.client.cluster_client import ClusterClient, group
from strandline.client.deadline import within
from strandline.client.reading import Place, bound_of
from strandline.client.retry import is_worth_a_retry
from strandline.config import StreamConfig, decode_config
from strandline.errors import StrandlineError
from strandline.protocol import admin
from strandline.protocol.tickets import WAIT_MS_MAX

RETRY_S = 0.1
WAIT_SLICE_S = 0.25
"""How long one of several leaders is waited for before the others are asked."""


class StreamCalls(ABC):
    """The calls of a client about streams."""

    _brokers: ClusterClient

    @property
    @abstractmethod
    def _known(self) -> ClusterClient:
        """The brokers, once it is known whether there are several."""

    @abstractmethod
    def _forget_appender(self, stream: str) -> None:
        """A stream is about to be deleted: end what appends to it."""

    def create_stream(
        self, name: str, *, subject: str | None = None, partitions: int = 1, **config: Any
    ) -> admin.StreamInfo:
        """Create a stream.

        Args:
            name: of the stream.
            subject: NATS subject to record, perhaps with wildcards; the name by default.
            partitions: how many.
            **config: other fields of ``config.StreamConfig``, such as ``retention_age_ms``.

        Raises:
            StreamExistsError: the name is taken.
            InvalidConfigError: an unknown or wrong setting; the message suggests the nearest.
        """
        subject = name if subject is None else subject
        values = {"name": name, "subject": subject, "partitions": partitions, **config}
        checked = decode_config(values, StreamConfig)
        [info] = self._known.change(admin.CREATE_STREAM, checked, admin.StreamInfo)
        return info

    def delete_stream(self, name: str) -> None:
        """Delete a stream and all its records.

        Raises:
            UnknownStreamError: there is none.
        """
        self._forget_appender(name)
        self._known.change(admin.DELETE_STREAM, admin.StreamName(name=name), admin.StreamInfo)

    def stream_info(self, name: str, *, of_leaders: bool = True) -> admin.StreamInfo:
        """A stream's configuration and the extent of its partitions, as their leaders know it.

        Args:
            name: of the stream.
            of_leaders: whether the leaders are asked; False: as any broker knows it, at once.

        Raises:
            UnknownStreamError: there is none.
            NotLeaderError: a partition has no leader for too long.
            UnavailableError: a new leader does not know its end for too long.
        """
        with within(self._brokers.timeout_s):
            info = self._described(name)
            if not (self._brokers.is_cluster and of_leaders):
                return info
            found = self._brokers.ask_leaders(
                name,
                admin.STREAM_INFO,
                admin.StreamInfo,
                body=lambda led: admin.StreamInfoRequest(name=name, led=led),
            )
        parts = {each.partition: each for each in info.partitions}
        for numbers, answer in found:
            parts |= {number: answer.partitions[number] for number in numbers}
        return msgspec.structs.replace(info, partitions=tuple(parts[n] for n in sorted(parts)))

    def _described(self, name: str) -> admin.StreamInfo:
        """A stream as any broker knows it."""
        body = admin.StreamInfoRequest(name=name)
        [info] = self._known.ask(admin.STREAM_INFO, body, admin.StreamInfo)
        return info

    def list_streams(self) -> list[admin.StreamInfo]:
        """All streams, by name; in a cluster with offsets as the broker asked knows them."""
        return self._known.ask(admin.LIST_STREAMS, None, admin.StreamInfo)

    def delete_records(self, stream: str, offset: int, *, partition: int = 0) -> admin.StreamInfo:
        """Delete a partition's records below ``offset``, for ever.

        Whole segments are deleted, so some records below may stay.

        Raises:
            OffsetOutOfRangeError: beyond the high watermark.
            UnknownStreamError, UnknownPartitionError: no such partition.
        """
        body = admin.DeleteRecords(name=stream, partition=partition, offset=offset)
        [info] = self._known.change(admin.DELETE_RECORDS, body, admin.StreamInfo)
        return info

    def offsets(self, stream: str, at: Place = "latest") -> dict[int, int]:
        """Where a place or time is in each partition.

        Args:
            stream: its name.
            at: ``"earliest"``, ``"latest"``, an offset to check, or a time: then the first record
                stored at or after it.

        Raises:
            UnknownStreamError, OffsetOutOfRangeError: as they say.
            NotLeaderError, UnavailableError: as ``stream_info``.
        """
        return self._offsets(stream, at)

    def _offsets(
        self, stream: str, at: Place, numbers: Collection[int] | None = None
    ) -> dict[int, int]:
        """As ``offsets``, of some partitions; None: of all."""
        bound = bound_of(at)
        found: dict[int, int] = {}
        for _, answer in self._known.ask_leaders(
            stream,
            admin.OFFSETS,
            admin.Offsets,
            body=lambda of: admin.OffsetsRequest(
                name=stream, at=bound, partitions=of, of_leader=True
            ),
            numbers=numbers,
        ):
            found |= answer.offsets
        return dict(sorted(found.items()))

    def wait_for(
        self, stream: str, beyond: Mapping[int, int], *, timeout_s: float = 1.0
    ) -> dict[int, int]:
        """Wait until a partition's high watermark is above the offset given for it.

        Args:
            stream: its name.
            beyond: offset by partition.
            timeout_s: the longest wait, at most 60 s.

        Returns:
            the high watermarks of those partitions, changed or not.

        Raises:
            UnknownStreamError, UnknownPartitionError: as they say.
            InvalidRequestError: what is given is no offsets by partition, or no time.
        """
        beyond = offsets_by_number(beyond, "beyond")
        deadline_s = time.monotonic() + min(WAIT_MS_MAX / 1e3, wait(timeout_s, "timeout_s"))
        while True:
            left_s = max(0.0, deadline_s - time.monotonic())
            try:
                with within(left_s + self._brokers.timeout_s):
                    found = self._wait_once(stream, beyond, wait_s=left_s)
            except StrandlineError as error:
                is_passing = is_worth_a_retry(error) and self._brokers.is_cluster
                if not is_passing or time.monotonic() >= deadline_s:
                    raise
                time.sleep(min(RETRY_S, left_s))
                continue
            is_over = time.monotonic() >= deadline_s
            if is_over or any(found[number] > after for number, after in beyond.items()):
                return found

    def _wait_once(
        self, stream: str, beyond: Mapping[int, int], *, wait_s: float
    ) -> dict[int, int]:
        """The high watermarks, waited for at a single leader, or at several for a moment."""
        leaders = self._leaders_of(stream, beyond)
        if len(leaders) > 1:
            wait_s = min(wait_s, WAIT_SLICE_S)
        found: dict[int, int] = {}
        for leader, numbers in leaders.items():
            part = {number: beyond[number] for number in numbers}
            found |= self._wait_at(leader, stream, part, wait_s=wait_s)
        return found

    def _leaders_of(self, stream: str, partitions: Mapping[int, int]) -> dict[str, tuple[int, ...]]:
        """Who leads some partitions; "" those that have no leader now."""
        if not self._known.is_cluster or not partitions:
            return {self._brokers.home: tuple(partitions)}
        leaders = self._brokers.leaders(self._brokers.routes(stream))
        return group({number: leaders.get(number, "") for number in partitions})

    def _wait_at(
        self, leader: str, stream: str, beyond: Mapping[int, int], *, wait_s: float
    ) -> dict[int, int]:
        """The high watermarks of a leader's partitions, waited for; any broker's without one."""
        body = admin.WaitRequest(name=stream, beyond=dict(beyond), wait_ms_max=int(wait_s * 1e3))
        ask = self._brokers.connection(leader).action if leader else self._brokers.ask
        [answer] = ask(admin.WAIT_BEYOND, body, admin.Offsets, wait_s=wait_s)
        return answer.offsets
