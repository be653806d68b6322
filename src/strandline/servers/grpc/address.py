"""The host name or address that gRPC clients connect to."""

from strandline.config import BrokerConfig


def advertised_host(config: BrokerConfig) -> str:
    """Return the host at which gRPC clients reach this broker."""
    host = config.grpc.advertised_host or config.cluster.advertised_host
    host = host or config.grpc.host or config.host
    if host not in ("", "0.0.0.0", "::"):  # noqa: S104  not a bind
        return host
    return config.cluster.client_host if config.cluster.is_on else "localhost"
