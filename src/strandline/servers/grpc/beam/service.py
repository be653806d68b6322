"""The service ``logspec.Log``: one stream on one port."""

import asyncio
import contextlib
import logging
import shutil
from concurrent.futures import Executor
from typing import Final

import pyarrow as pa

from strandline.broker.access import Access
from strandline.broker.broker import Broker
from strandline.broker.cluster.broker import ClusterBroker
from strandline.broker.read_path.ends import wait_until_caught_up
from strandline.broker.write_path.partition import Partition
from strandline.config import StreamConfig, bracketed
from strandline.core.metadata.internal_streams import COPIES_MAX
from strandline.errors import (
    InvalidConfigError,
    NotLeaderError,
    ShuttingDownError,
    StrandlineError,
    StreamExistsError,
    UnavailableError,
    UnknownStreamError,
)
from strandline.security.acl import Operation, Resource
from strandline.servers.grpc._generated import logspec_pb2 as pb
from strandline.servers.grpc.address import advertised_host
from strandline.servers.grpc.beam.append import AppendStream
from strandline.servers.grpc.beam.entries import COLUMNS, entries_of, framed_replies, skips
from strandline.servers.grpc.calls import Call
from strandline.servers.grpc.health import HealthService
from strandline.servers.grpc.listener import GrpcListener
from strandline.servers.grpc.methods import Direct, Method, server_stream, unary
from strandline.servers.grpc.reading import GrpcReader
from strandline.servers.grpc.status import GrpcStatus, RpcError, rpc_error
from strandline.servers.metering import Metering
from strandline.servers.tasks import end_task, start_task
from strandline.types import Offset

logger = logging.getLogger(__name__)

NAME: Final = "logspec.Log"
NEEDS: Final[dict[str, tuple[Operation, ...]]] = {
    "Append": ("publish",),
    "Discard": ("admin",),
    "Read": ("read",),
    "Info": ("read", "publish", "admin"),
    "InfoStream": ("read", "publish", "admin"),
}
"""Rpc → permissions, one of which its caller needs on the served stream."""
INFO_INTERVAL_S: Final = 1.0
"""The time after which changes without a commit, such as a discard, are noticed."""
RETRY_S: Final = 1.0
PORTION_OFFSETS: Final = 32_768
"""The most offsets read at once: each is an entry, even where compaction removed millions."""
REQUEST_BATCHES: Final = 4
"""The limit of a request as a multiple of ``limits.batch_bytes``, for several large proposals."""
INDEX_MAX: Final = 1 << 62
"""The highest index to discard to: offsets have 63 bits, and enough must remain above it."""


class BeamService:
    """Beam's log on a port of its own.

    Args:
        broker: the broker that is served.
        pool: the threads to read on.
        metering: the meters of principals.
    """

    def __init__(self, broker: Broker, pool: Executor, metering: Metering) -> None:
        self._broker = broker
        self._metering = metering
        self._pool = pool
        self._name = broker.config.grpc.beam_stream
        self._resource = Resource("stream", self._name)
        self._listener: GrpcListener | None = None
        self._making: asyncio.Task[None] | None = None
        self._is_ready = False
        self.port = 0

    @property
    def address(self) -> str:
        """The address to which other brokers redirect clients."""
        return f"{bracketed(advertised_host(self._broker.config))}:{self.port}"

    async def start(self) -> None:
        """Create the stream if it does not exist, then listen.

        Raises:
            InvalidConfigError: the port is not available, or the stream has several partitions.
            StrandlineError: the stream cannot be created.
        """
        broker = self._broker
        health = HealthService((NAME,), lambda: self._is_ready and broker.is_ready)
        config = self._broker.config
        self._listener = GrpcListener(
            {**self._methods(), **health.methods()},
            broker.telemetry,
            Access(config, broker),
            metering=self._metering,
        )
        await self._listener.start(config, config.grpc.beam_port, key="grpc.beam_port")
        self.port = self._listener.port
        self._broker.on_answered(self._listener.shared.send_answers)
        if isinstance(self._broker, ClusterBroker):
            self._making = start_task(self._make_stream(), "beam-stream")
        else:
            await self._make_stream()
        self._is_ready = True

    async def stop(self) -> None:
        """End every call."""
        self._is_ready = False
        if self._listener is not None:
            await self._listener.stop()
        await end_task(self._making)

    async def _make_stream(self) -> None:
        """Create the stream if it does not exist; in a cluster, once it has room for the replicas.

        It never gets fewer replicas because a broker starts late: the number would stay.
        """
        replicas = max(1, min(COPIES_MAX, len(self._broker.config.cluster.peers)))
        waits_for = ""
        while True:
            known = {stream.name: stream for stream in self._broker.streams()}
            if self._name in known:
                if len(known[self._name].partitions) != 1:
                    raise InvalidConfigError(
                        f"grpc.beam_stream {self._name!r} has several partitions; Beam's log has 1"
                    )
                return
            config = StreamConfig(
                name=self._name,
                subject=self._name,
                replicas=replicas,
                min_isr=replicas // 2 + 1,
                dedup_window_ms=0,
            )
            try:
                await self._broker.create_stream(config)
            except StreamExistsError:
                continue  # another broker created it first
            except UnavailableError as error:
                if not isinstance(self._broker, ClusterBroker):
                    raise
                if str(error) != waits_for:
                    waits_for = str(error)
                    logger.info("stream %r is not created yet: %s", self._name, waits_for)
                await asyncio.sleep(RETRY_S)

    def _methods(self) -> dict[bytes, Method | Direct]:
        request_max = REQUEST_BATCHES * self._broker.config.limits.batch_bytes
        methods: dict[str, Method | Direct] = {
            "Append": Direct(self._open_append, request_max),
            "Discard": unary(pb.DiscardRequest, self._discard),
            "Read": server_stream(pb.ReadRequest, self._read),
            "Info": unary(pb.InfoRequest, self._info),
            "InfoStream": server_stream(pb.InfoRequest, self._info_stream),
        }
        assert set(methods) == set(NEEDS), "of every rpc it is known who may call it"
        return {f"/{NAME}/{name}".encode(): method for name, method in methods.items()}

    def _partition(self) -> Partition:
        """Return the log's partition.

        Raises:
            UnknownStreamError: the stream was deleted, or this broker has just started.
        """
        try:
            return self._broker.stream(self._name).partition(0)
        except UnknownStreamError:
            raise self._gone from None

    @property
    def _gone(self) -> UnknownStreamError:
        """Return the error for a missing log, without the names of other streams."""
        return UnknownStreamError(f"there is no stream {self._name!r} that is known here")

    def _is_leading(self, partition: Partition) -> bool:
        """Return whether this broker leads the partition.

        Raises:
            UnknownStreamError: the stream was deleted, or this broker has just started.
        """
        if not isinstance(self._broker, ClusterBroker):
            return True
        try:
            leader = self._broker.image.partition(self._name, 0).leader
        except UnknownStreamError:
            raise self._gone from None
        return partition.remote_error is None and leader == self._broker.config.cluster.broker_id

    def _redirect(self) -> pb.Redirect:
        """Return the leader's address; empty without a leader that serves Beam clients."""
        image = self._broker.image
        stream = image.streams.get(self._name)
        leader = stream.partitions[0].leader if stream is not None else None
        if leader is None or leader == self._broker.config.cluster.broker_id:
            return pb.Redirect()
        known = image.brokers.get(leader)
        return pb.Redirect(host=known.beam_address if known is not None else "")

    # The calls

    def _allow(self, call: Call, rpc: str) -> None:
        """Raise unless the caller may call; every rpc begins with this.

        Raises:
            UnauthenticatedError, NotAllowedError: the caller may not call it.
        """
        call.caller.check(self._resource, *NEEDS[rpc])

    def _open_append(self, call: Call) -> AppendStream:
        self._allow(call, "Append")
        limits = self._broker.config.limits
        is_checked = call.caller.is_checked
        is_alone = not isinstance(self._broker, ClusterBroker)

        def is_leading(partition: Partition) -> bool:  # checked for each request: keep it cheap
            try:
                if is_checked:
                    self._allow(call, "Append")
                return is_alone or self._is_leading(partition)
            except StrandlineError as error:
                raise rpc_error(error) from error

        return AppendStream(
            call,
            self._partition(),
            limits,
            proposal_bytes_max=self._broker.config.grpc.beam_record_bytes,
            is_leading=is_leading,
            redirect=self._redirect,
        )

    async def _discard(self, request: pb.DiscardRequest, call: Call) -> pb.DiscardReply:
        self._allow(call, "Discard")
        partition = self._partition()
        if not self._is_leading(partition):
            return pb.DiscardReply(redirect=self._redirect())
        if request.firstIndex > INDEX_MAX:
            text = f"index {request.firstIndex} leaves no room behind it; at most {INDEX_MAX} does"
            raise RpcError(GrpcStatus.INVALID_ARGUMENT, text)
        await wait_until_caught_up(partition)
        first = Offset(max(0, request.firstIndex - 1))
        if first > partition.high_watermark:
            await self._broker.skip_to(self._name, 0, first)
        elif first > partition.log_start_offset:
            await self._broker.delete_before(self._name, 0, first)
        return pb.DiscardReply(ok=pb.DiscardReply.OK())

    async def _read(self, request: pb.ReadRequest, call: Call) -> None:
        self._allow(call, "Read")
        partition = self._partition()
        if not self._is_leading(partition):
            call.send(pb.ReadReply(redirect=self._redirect()))
            return
        if request.nextIndex < 1 or request.nextIndex - 1 < partition.log_start_offset:
            call.send(pb.ReadReply(truncated=True))
            return
        reader: GrpcReader

        def convert(batches: list[pa.RecordBatch]) -> bytes:
            return framed_replies(entries_of(batches, reader.offset))

        start = Offset(request.nextIndex - 1)
        reader = GrpcReader(partition, start, columns=COLUMNS, convert=convert, pool=self._pool)
        await self._follow(reader, call)

    async def _follow(self, reader: GrpcReader, call: Call) -> None:
        """Send entries as they are committed, until some are deleted before they are sent."""
        partition = reader.partition
        while True:
            if partition.closed:
                if isinstance(partition.closed_by, ShuttingDownError):
                    raise RpcError(GrpcStatus.UNAVAILABLE, "the broker is stopping; retry later")
                if isinstance(partition.closed_by, UnknownStreamError):
                    raise RpcError(GrpcStatus.NOT_FOUND, f"stream {self._name!r} was deleted")
                is_moved = isinstance(partition.closed_by, NotLeaderError)
                redirect = pb.ReadReply(redirect=self._redirect())
                call.send(redirect if is_moved else pb.ReadReply(truncated=True))
                return
            before = reader.offset
            stop = Offset(before + PORTION_OFFSETS)
            portion = await reader.next(stop, bytes_max=call.share_bytes)
            self._allow(call, "Read")
            if before < partition.log_start_offset:
                call.send(pb.ReadReply(truncated=True))
                return
            if portion.records:
                call.send_framed(portion.data)
                size = len(portion.data)
                self._broker.telemetry.count_read(records=portion.records, size_bytes=size)
            if portion.next_offset > portion.filled_to:
                rest = skips(portion.filled_to, portion.next_offset)
                loop = asyncio.get_running_loop()
                call.send_framed(await loop.run_in_executor(self._pool, framed_replies, rest))
            await call.drain()
            if reader.offset >= partition.last_stable_offset:
                await reader.more()

    async def _info(self, request: pb.InfoRequest, call: Call) -> pb.InfoReply:
        self._allow(call, "Info")
        if not request.allowStale:
            await wait_until_caught_up(self._partition())
        return self._described(request)

    async def _info_stream(self, request: pb.InfoRequest, call: Call) -> None:
        said: pb.InfoReply | None = None
        changed = asyncio.Event()
        partition = self._partition()
        partition.watch(changed)
        try:
            while not isinstance(partition.closed_by, ShuttingDownError | UnknownStreamError):
                if partition.closed:  # its records were deleted, and it continues
                    partition.unwatch(changed)
                    partition = self._partition()
                    partition.watch(changed)
                self._allow(call, "InfoStream")
                if not request.allowStale:
                    await wait_until_caught_up(partition)
                changed.clear()
                now = self._described(request)
                if now != said:
                    call.send(now)
                    said = now
                await call.drain()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(INFO_INTERVAL_S):
                        await changed.wait()
        finally:
            partition.unwatch(changed)

    def _described(self, request: pb.InfoRequest) -> pb.InfoReply:
        partition = self._partition()
        if not self._is_leading(partition) and not (
            request.allowStale and partition.remote_error is None
        ):
            return pb.InfoReply(redirect=self._redirect())
        used = partition.log.size_bytes
        limit = partition.config.retention_bytes
        total = limit or used + shutil.disk_usage(self._broker.data_dir).free
        ok = pb.InfoReply.OK(
            firstIndex=partition.log_start_offset + 1,
            lastIndex=partition.last_stable_offset,
            bytesUsed=used,
            bytesTotal=total,
        )
        return pb.InfoReply(ok=ok)
