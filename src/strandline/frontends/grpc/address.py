"""The host that clients of gRPC are told to dial."""

from strandline.config import BrokerConfig
from strandline.types import BrokerId


def advertised_host(config: BrokerConfig) -> str:
    """The host by which clients of gRPC reach this broker."""
    host = config.grpc.advertised_host or config.host
    if host not in ("", "0.0.0.0", "::"):  # noqa: S104  not a bind
        return host
    peers, me = config.cluster.peer_addresses, BrokerId(config.cluster.broker_id)
    return peers[me][0] if me in peers else "localhost"
