"""The gauges and the readiness of a broker in a cluster.

Rules: computed on request, on the loop; changes nothing.
"""

from collections import defaultdict

from strandline.broker.cluster.membership import ClusterMembership
from strandline.broker.cluster.replicas import Replicas
from strandline.core.metadata.image import MetadataImage, PartitionImage
from strandline.core.replication.effects import RejectReason
from strandline.telemetry import Telemetry
from strandline.types import BrokerId


def refresh(telemetry: Telemetry, membership: ClusterMembership) -> None:
    """Refresh the gauges of the cluster."""
    quorum, replicas = membership.quorum, membership.replicas
    telemetry.controller = int(membership.controller.is_held)
    telemetry.consensus_term = quorum.term
    telemetry.consensus_commit_index = quorum.commit_index
    telemetry.offline_partitions = _offline(membership.machine.image)
    telemetry.replicas = len(replicas.drivers)
    _refresh_leaders(telemetry, replicas)


def _offline(image: MetadataImage) -> int:
    """Count the partitions without a leader, or whose leader is fenced."""
    in_service = {b.id for b in image.brokers.values() if not b.is_fenced}
    return sum(partition.leader not in in_service for _, partition in image.partitions())


def _refresh_leaders(telemetry: Telemetry, replicas: Replicas) -> None:
    """Refresh the gauges of the partitions that this broker leads."""
    led = under_replicated = under_min_isr = 0
    records: dict[str, int] = defaultdict(int)
    size: dict[str, int] = defaultdict(int)
    for log_id, driver in replicas.drivers.items():
        leader, assigned = driver.replica.leader, replicas.assigned(log_id)
        if leader is None or assigned is None:
            continue
        led += 1
        under_replicated += bool(behind(assigned))
        under_min_isr += leader.reject_reason is RejectReason.NOT_ENOUGH_REPLICAS
        for broker, progress in leader.followers.items():
            lag = leader.log.log_end_offset - progress.durable_offset
            records[str(broker)] += lag
            size[str(broker)] += driver.log.bytes_from(progress.durable_offset) if lag else 0
    telemetry.led_partitions = led
    telemetry.under_replicated_partitions = under_replicated
    telemetry.under_min_isr_partitions = under_min_isr
    telemetry.replica_lag_records, telemetry.replica_lag_bytes = records, size


def behind(partition: PartitionImage) -> set[BrokerId]:
    """Return the replicas that are not in the ISR but should be; those just added need not."""
    return set(partition.replicas) - set(partition.adding) - set(partition.isr)


def why_behind(replicas: Replicas) -> str:
    """Return why replicas on this broker lag behind; empty if none does."""
    me, late, to_lead, lost, too_few = replicas.me, 0, 0, 0, 0
    for log_id, driver in replicas.drivers.items():
        assigned = replicas.assigned(log_id)
        late += assigned is None or me in behind(assigned)
        to_lead += assigned is not None and assigned.leader == me and driver.replica.leader is None
        lost += not replicas.can_commit(log_id)
        too_few += driver.replica.reject_reason is RejectReason.NOT_ENOUGH_REPLICAS
    if lost:
        return f"no controller: {lost} of {len(replicas.drivers)} copies here take no records"
    if too_few:
        return (
            f"{too_few} partitions led here take no records: fewer of their copies are in sync "
            "than min_isr asks for"
        )
    if late:
        return f"{late} of {len(replicas.drivers)} copies here are not in sync yet"
    return f"{to_lead} leaderships here have not begun yet" if to_lead else ""
