"""Handlers of the commands that a backup uses."""

from strandline.api import backup as wire
from strandline.core.metadata.snapshot import encode_json
from strandline.errors import CorruptBatchError, UnknownStreamError
from strandline.servers.flight.actions import ActionContext, handles
from strandline.servers.flight.admin import know_end


@handles(wire.METADATA_SNAPSHOT)
def _metadata(context: ActionContext, _: None) -> list[wire.MetadataSnapshot]:
    broker = context.broker
    context.run(broker.know_newest())
    name = broker.config.cluster.name
    return [wire.MetadataSnapshot(cluster=name, image=encode_json(broker.image))]


@handles(wire.READ_LOG)
def _read_log(context: ActionContext, request: wire.ReadLogRequest) -> list[wire.LogBatches]:
    context.broker.check_metadata()
    partition = context.broker.stream(request.stream).partition(request.partition)
    if partition.log_id != request.log_id:
        raise UnknownStreamError(f"{partition.name} was deleted and created again")
    know_end(context, [partition], led=[partition])
    log, high_watermark = partition.log, partition.high_watermark
    batches = b""
    start = max(request.offset, log.log_start_offset)
    if request.bytes_max and start < high_watermark:
        try:
            found = log.read_dense(start, request.bytes_max, below=high_watermark)
        except CorruptBatchError as error:
            partition.committed.report_corruption(error)
            raise
        batches = bytes(found.buffer)
    return [
        wire.LogBatches(
            batches=batches,
            log_start_offset=log.log_start_offset,
            high_watermark=high_watermark,
            log_end_offset=log.log_end_offset,
        )
    ]
