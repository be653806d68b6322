"""Handlers of the stream commands, and of what clients ask a broker about itself."""

from collections.abc import Iterable

import msgspec

from strandline.api import admin
from strandline.broker.internal import check_public
from strandline.broker.stream import Stream
from strandline.broker.write_path.partition import Partition
from strandline.config import StreamConfig
from strandline.errors import InvalidConfigError, StrandlineError
from strandline.servers.flight.actions import ActionContext, handles
from strandline.servers.flight.info import server_info, stream_info
from strandline.servers.flight.plan import check_led, needs_end, resolve
from strandline.types import Offset


@handles(admin.CREATE_STREAM)
def _create_stream(context: ActionContext, config: StreamConfig) -> list[admin.StreamInfo]:
    if not config.name:
        raise InvalidConfigError("a stream needs a name")
    check_public(config.name)
    return [_with_others(context, context.run(context.broker.create_stream(config)))]


@handles(admin.DELETE_STREAM)
def _delete_stream(context: ActionContext, request: admin.StreamName) -> list[None]:
    check_public(request.name)
    context.run(context.broker.delete_stream(request.name))
    return []


@handles(admin.DELETE_RECORDS)
def _delete_records(context: ActionContext, request: admin.DeleteRecords) -> list[admin.StreamInfo]:
    broker = context.broker
    check_public(request.name)
    offset = Offset(request.offset)
    context.run(broker.delete_before(request.name, request.partition, offset))
    return [stream_info(broker.stream(request.name), broker)]


@handles(admin.STREAM_INFO)
def _stream_info(
    context: ActionContext, request: admin.StreamInfoRequest
) -> list[admin.StreamInfo]:
    context.broker.check_metadata()
    stream = context.broker.stream(request.name)
    led = [stream.partition(number) for number in request.led or ()]
    know_end(context, led, led=led)
    return [_with_others(context, stream)]


def _with_others(context: ActionContext, stream: Stream) -> admin.StreamInfo:
    """Return a stream's info with the other streams that acknowledge its publishers."""
    broker = context.broker
    found = stream_info(stream, broker)
    if broker.config.auth.enabled:  # the caller may not be allowed to see the others
        return found
    others = tuple(broker.routes.answering_beside(stream))
    return msgspec.structs.replace(found, also_answering=others)


@handles(admin.LIST_STREAMS)
def _list_streams(context: ActionContext, _: None) -> list[admin.StreamInfo]:
    broker = context.broker
    broker.check_metadata()
    return [stream_info(stream, broker) for stream in broker.streams()]


@handles(admin.OFFSETS)
def _offsets(context: ActionContext, request: admin.OffsetsRequest) -> list[admin.Offsets]:
    stream = context.broker.stream(request.name)
    partitions = stream.partitions
    if request.partitions is not None:
        partitions = [stream.partition(number) for number in request.partitions]
    unclear = [each for each in partitions if needs_end(request.at, each)]
    know_end(context, unclear, led=partitions if request.of_leader else ())
    offsets = {each.name.partition: int(resolve(request.at, each)) for each in partitions}
    return [admin.Offsets(offsets=offsets)]


def know_end(
    context: ActionContext, partitions: Iterable[Partition], *, led: Iterable[Partition]
) -> None:
    """Wait until the ends are known, and check before and after that this broker leads.

    Raises:
        NotLeaderError: another broker leads one of them.
    """
    check_led(led)
    context.lifecycle.wait_until_caught_up(partitions, context.is_cancelled)
    check_led(led)


@handles(admin.WAIT_BEYOND)
def _wait_beyond(context: ActionContext, request: admin.WaitRequest) -> list[admin.Offsets]:
    """Wait until any high watermark passes the offset given for it."""
    stream, lifecycle = context.broker.stream(request.name), context.lifecycle
    watched = {stream.partition(number): after for number, after in request.beyond.items()}
    deadline = lifecycle.now_ms() + request.wait_ms_max
    with lifecycle.waiter(watched) as waiter:
        while True:
            waiter.arm()
            left_ms = deadline - lifecycle.now_ms()
            if context.is_cancelled() or left_ms <= 0 or any(map(_gone_from, watched)):
                break
            if any(item.last_stable_offset > after for item, after in watched.items()):
                break
            lifecycle.check()
            waiter.wait(left_ms / 1e3)
    for error in filter(None, map(_gone_from, watched)):
        raise error  # this broker has no copy, so its high watermark would be wrong
    now = {item.name.partition: int(item.last_stable_offset) for item in watched}
    return [admin.Offsets(offsets=now)]


@handles(admin.NEW_PRODUCER)
def _new_producer(context: ActionContext, _: None) -> list[admin.ProducerInfo]:
    producer_id = context.run(context.broker.new_producer_id(context.owner))
    return [admin.ProducerInfo(producer_id=producer_id)]


@handles(admin.SERVER_INFO)
def _server_info(context: ActionContext, _: None) -> list[admin.ServerInfo]:
    return [server_info(context.broker)]


def _gone_from(partition: Partition) -> StrandlineError | None:
    """Return why a partition is not on this broker; None if it is."""
    return partition.remote_error or partition.closed_by
