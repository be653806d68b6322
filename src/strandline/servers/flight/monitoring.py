"""Handlers of the monitoring commands."""

import re
import shutil
from pathlib import Path
from typing import Final

from strandline.api import monitoring as wire
from strandline.broker.monitor import resident_bytes
from strandline.errors import UnavailableError
from strandline.servers.flight.actions import ActionContext, handles
from strandline.version import __version__

_HEAD: Final = re.compile(r"\S+ \{.*\}")
TRACE_BYTES_MAX: Final = 256 << 10
"""The limit for one answer, which has the end of the trace, where the newest events are."""


@handles(wire.BROKER_STATUS)
def _status(context: ActionContext, _: None) -> list[wire.BrokerStatus]:
    broker = context.broker
    context.run(_refreshed(context))
    telemetry, disk = broker.telemetry, shutil.disk_usage(broker.data_dir)
    here = [each for each in broker.partitions() if each.remote_error is None]
    rates = broker.monitor.meter.rates()
    is_alone = not broker.config.cluster.is_on
    return [
        wire.BrokerStatus(
            broker=broker.config.cluster.broker_id,
            address=broker.flight_address,
            version=__version__,
            why_not_ready=broker.why_not_ready,
            up_s=broker.monitor.up_s,
            data_dir=str(broker.data_dir),
            disk_bytes=disk.total,
            disk_free_bytes=disk.free,
            log_bytes=sum(each.log.size_bytes for each in here),
            memory_bytes=resident_bytes(),
            replicas=len(here) if is_alone else telemetry.replicas,
            led_partitions=len(here) if is_alone else telemetry.led_partitions,
            under_replicated_partitions=telemetry.under_replicated_partitions,
            under_min_isr_partitions=telemetry.under_min_isr_partitions,
            offline_partitions=telemetry.offline_partitions,
            pending_bytes=telemetry.pending_bytes,
            connections=dict(telemetry.connections),
            corrupt_batches=telemetry.corrupt_batches,
            rates=wire.BrokerRates(**rates._asdict()),
        )
    ]


async def _refreshed(context: ActionContext) -> None:
    context.broker.refresh_telemetry()


@handles(wire.METRIC_HISTORY)
def _history(context: ActionContext, _: None) -> list[wire.MetricHistoryInfo]:
    broker = context.broker
    samples = tuple(broker.monitor.history())
    return [wire.MetricHistoryInfo(broker=broker.config.cluster.broker_id, samples=samples)]


@handles(wire.LIST_EVENTS)
def _events(context: ActionContext, _: None) -> list[wire.ClusterEvent]:
    return context.broker.monitor.events()


@handles(wire.LIST_CONNECTIONS)
def _connections(context: ActionContext, _: None) -> list[wire.ConnectionInfo]:
    return context.clients()


@handles(wire.READ_TRACE)
def _trace(context: ActionContext, _: None) -> list[wire.TraceText]:
    path = context.broker.config.cluster.trace
    return [wire.TraceText(text=_end_of_trace(Path(path)) if path else "")]


def _end_of_trace(path: Path) -> str:
    """Return the last complete events of a trace that fit an answer.

    Raises:
        UnavailableError: the file cannot be read.
    """
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - TRACE_BYTES_MAX))
            lines = file.read(TRACE_BYTES_MAX).decode("utf-8", "replace").split("\n")
    except OSError as error:
        raise UnavailableError(f"cluster.trace: cannot read {path}: {error.strerror}") from error
    whole = lines[:-1]  # the last line is empty or incomplete
    if size > TRACE_BYTES_MAX:
        whole = whole[1:]
    # An event begins with a line that has its host and clock; no text line ends in braces.
    if whole and not _HEAD.fullmatch(whole[0]):
        whole = whole[1:]
    return "".join(f"{line}\n" for line in whole[: len(whole) // 2 * 2])
