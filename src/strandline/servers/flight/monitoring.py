"""Handlers of the monitoring commands."""

import shutil

from strandline.api import monitoring as wire
from strandline.broker.monitor import resident_bytes
from strandline.servers.flight.actions import ActionContext, handles
from strandline.version import __version__


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
