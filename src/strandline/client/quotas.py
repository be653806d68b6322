"""Quotas of a client: the rates that a principal may use at each broker."""

from strandline.api import quotas
from strandline.client.cluster_client import ClusterClient


class Quotas:
    """The quotas of principals. Returned by ``Client.quotas``.

    Args:
        brokers: the brokers that are asked.
    """

    def __init__(self, brokers: ClusterClient) -> None:
        self._brokers = brokers

    def list(self) -> list[quotas.QuotaInfo]:
        """Return every quota, sorted by principal."""
        return self._brokers.ask(quotas.LIST_QUOTAS, None)

    def set(
        self,
        principal: str,
        *,
        publish_bytes_per_s: int = 0,
        read_bytes_per_s: int = 0,
        requests_per_s: int = 0,
        connections: int = 0,
    ) -> None:
        """Set a principal's limits at each broker, replacing its quota; 0 is no limit.

        Raises:
            InvalidRequestError: the name is not valid, or there is no limit.
            NotAllowedError: the caller does not administer the cluster.
        """
        body = quotas.SetQuotaRequest(
            principal=principal,
            publish_bytes_per_s=publish_bytes_per_s,
            read_bytes_per_s=read_bytes_per_s,
            requests_per_s=requests_per_s,
            connections=connections,
        )
        self._brokers.change(quotas.SET_QUOTA, body)

    def remove(self, principal: str) -> None:
        """Remove a principal's quota.

        Raises:
            InvalidRequestError: the principal has no quota.
            NotAllowedError: the caller does not administer the cluster.
        """
        body = quotas.WhoseQuota(principal=principal)
        self._brokers.change(quotas.REMOVE_QUOTA, body)
