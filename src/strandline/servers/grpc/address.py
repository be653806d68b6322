"""The host that clients of gRPC are told to dial."""

from strandline.config import BrokerConfig


def advertised_host(config: BrokerConfig) -> str:
    """The host by which clients of gRPC reach this broker."""
    host = config.grpc.advertised_host or config.cluster.advertised_host
    host = host or config.grpc.host or config.host
    if host not in ("", "0.0.0.0", "::"):  # noqa: S104  not a bind
        return host
    return config.cluster.client_host if config.cluster.is_on else "localhost"
