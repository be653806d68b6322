"""Descriptions of streams: StreamInfo, and FlightInfo with one endpoint per partition.

The ticket of an endpoint has the start and stop as offsets, so that every read with it returns the
same records. The locations of an endpoint are the brokers that can serve it: in a cluster the
leader and then the other live replicas, otherwise this broker.
"""

from typing import NamedTuple

import pyarrow.flight as fl

from strandline.api.admin import PROTOCOL_VERSION, PartitionInfo, ServerInfo, StreamInfo
from strandline.api.tickets import ReadRequest, decode_ticket
from strandline.api.wire import encode
from strandline.broker.broker import Broker
from strandline.broker.stream import Stream
from strandline.broker.write_path.partition import Partition
from strandline.errors import InvalidRequestError, PausedError
from strandline.reading.cursor import PartitionRange
from strandline.servers.flight.plan import ReadPlan, plan_read
from strandline.version import __version__


def partition_info(partition: Partition) -> PartitionInfo:
    """Return a partition's offsets; its high watermark is the last stable offset."""
    start, stop = partition.log_start_offset, partition.last_stable_offset
    return PartitionInfo(
        partition=partition.name.partition,
        log_start_offset=start,
        high_watermark=stop,
        hidden_offsets=partition.hidden_between(start, stop),
        log_end_offset=partition.log_end_offset,
        size_bytes=partition.log.size_bytes,
        leader=partition.leader_address,
        in_sync=partition.in_sync_addresses,
        paused=isinstance(partition.blocked_by, PausedError),
    )


def stream_info(stream: Stream, broker: Broker) -> StreamInfo:
    """Return a stream's description for clients."""
    index = broker.metadata_index  # read first: the rest is at least as new as the index
    return StreamInfo(
        metadata_index=index,
        config=stream.config,
        created_ns=stream.created_ns,
        partitions=tuple(partition_info(partition) for partition in stream.partitions),
    )


def server_info(broker: Broker) -> ServerInfo:
    """Return the broker's description for clients."""
    limits = broker.config.limits
    return ServerInfo(
        version=__version__,
        protocol=PROTOCOL_VERSION,
        record_bytes_max=limits.record_bytes,
        batch_bytes_max=limits.batch_bytes,
        streams=broker.stream_count,
        brokers=broker.flight_addresses,
        address=broker.flight_address,
        auth_enabled=broker.config.auth.enabled,
    )


def request_of(descriptor: fl.FlightDescriptor) -> ReadRequest:
    """Return the read that a descriptor names: as a path (stream, partition) or a ticket's JSON.

    Raises:
        InvalidRequestError: the descriptor does not describe a read.
    """
    if descriptor.descriptor_type == fl.DescriptorType.CMD:
        return decode_ticket(descriptor.command)
    if descriptor.descriptor_type != fl.DescriptorType.PATH:
        raise InvalidRequestError(
            "the descriptor is neither a path nor a command; give a path such as orders/0"
        )
    try:
        path = [part.decode() for part in descriptor.path]
    except UnicodeDecodeError as error:
        raise InvalidRequestError("the descriptor's path is not UTF-8") from error
    match path:
        case [name]:
            return ReadRequest(stream=name)
        case [name, number] if number.isascii() and number.isdigit() and len(number) < 6:
            return ReadRequest(stream=name, partition=int(number))
    raise InvalidRequestError(
        f"a path must be a stream, or a stream and a partition number, got {'/'.join(path)[:200]!r}"
    )


class Here(NamedTuple):
    """This broker and its address for clients."""

    broker: Broker
    location: str
    scheme: str
    """The URI scheme for all brokers of the cluster, whose TLS settings are alike."""


def flight_info(
    request: ReadRequest, stream: Stream, *, descriptor: fl.FlightDescriptor, here: Here
) -> fl.FlightInfo:
    """Return the schema and the endpoints of a read.

    Args:
        request: the read.
        stream: the stream to read.
        descriptor: the client's descriptor, which the result repeats.
        here: this broker's address.

    Raises:
        UnavailableError: this broker has lost contact with the cluster's majority.
        StrandlineError: see ``plan_read``.
    """
    here.broker.check_metadata()
    plan = plan_read(request, stream)
    records = -1 if request.follow else sum(_records(extent) for extent in plan.ranges)
    return fl.FlightInfo(
        plan.schema,
        descriptor,
        [_endpoint(plan, extent, _locations(extent, here)) for extent in plan.ranges],
        records,
        -1,
        app_metadata=encode(stream_info(stream, here.broker)),
    )


def _locations(extent: PartitionRange[Partition], here: Here) -> list[str]:
    """Return the addresses where a partition can be read: in a cluster, those of live replicas."""
    found = [f"{here.scheme}://{address}" for address in extent.partition.addresses]
    return found or [here.location]


def _records(extent: PartitionRange[Partition]) -> int:
    """Return the number of offsets in a range that have records."""
    if extent.stop is None or extent.stop <= extent.start:
        return 0
    hidden = extent.partition.hidden_between(extent.start, extent.stop)
    return extent.stop - extent.start - hidden


def _endpoint(
    plan: ReadPlan, extent: PartitionRange[Partition], locations: list[str]
) -> fl.FlightEndpoint:
    """Return the endpoint of one partition, with the start and stop as offsets."""
    old = plan.request
    request = ReadRequest(
        stream=old.stream,
        partition=extent.partition.name.partition,
        start=extent.start,
        stop=extent.stop,
        order=old.order,
        follow=old.follow,
        columns=plan.schema.names,
        subject=old.subject,
        keys=old.keys,
        timestamp_from_ns=old.timestamp_from_ns,
        timestamp_to_ns=old.timestamp_to_ns,
        records_max=old.records_max,
        bytes_min=old.bytes_min,
        wait_ms_max=old.wait_ms_max,
        batch_bytes=old.batch_bytes,
        skip_corrupt=old.skip_corrupt,
        of_copy=old.of_copy,
    )
    return fl.FlightEndpoint(
        encode(request),
        locations,
        app_metadata=encode(partition_info(extent.partition)),
    )
