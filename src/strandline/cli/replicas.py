"""The lag of replicas, queried from the brokers that have them."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from strandline.errors import StrandlineError

if TYPE_CHECKING:
    from strandline.api.cluster import ClusterStatus, CopiesInfo
    from strandline.client.connection import BrokerConnection

Ends = Mapping[int, Mapping[tuple[str, int], int]]
"""Broker → partition → log end offset."""


def log_ends(found: "ClusterStatus", first: "BrokerConnection") -> Ends:
    """Return each partition's log end offset at each broker that answers."""
    from strandline.api import admin

    ends: dict[int, dict[tuple[str, int], int]] = {}
    for broker in found.brokers:
        if broker.state == "fenced":
            continue
        connection = first.sibling(broker.flight_address)
        try:
            streams = connection.action(admin.LIST_STREAMS, None)
        except StrandlineError:
            continue  # the lag of its replicas is shown as a question mark
        finally:
            connection.close()
        ends[broker.id] = {
            (info.name, part.partition): part.log_end_offset
            for info in streams
            for part in info.partitions
        }
    return ends


def lags(part: "CopiesInfo", ends: Ends) -> dict[int, int | None]:
    """Return how many records each replica lacks; None if unknown."""
    name = part.stream, part.partition
    leader_end = ends.get(part.leader, {}).get(name) if part.leader is not None else None
    found: dict[int, int | None] = {}
    for broker in part.replicas:
        end = ends.get(broker, {}).get(name)
        is_known = leader_end is not None and end is not None
        found[broker] = max(0, (leader_end or 0) - (end or 0)) if is_known else None
    return found
