"""Quotas at a client: how much of each broker principals may use, changed at any broker."""

from strandline.client.cluster_client import ClusterClient
from strandline.protocol import quotas


class Quotas:
    """Who may use how much; what ``Client.quotas`` gives.

    Args:
        brokers: who is asked.
    """

    def __init__(self, brokers: ClusterClient) -> None:
        self._brokers = brokers

    def list(self) -> list[quotas.QuotaInfo]:
        """Every quota, by principal."""
        return self._brokers.ask(quotas.LIST_QUOTAS, None, quotas.QuotaInfo)

    def set(
        self,
        principal: str,
        *,
        publish_bytes_per_s: int = 0,
        read_bytes_per_s: int = 0,
        requests_per_s: int = 0,
        connections: int = 0,
    ) -> None:
        """Limit a principal at each broker, in place of the limits it had; 0 is no limit.

        Raises:
            InvalidRequestError: not a name for a principal, or nothing is limited.
            NotAllowedError: the caller does not administer the cluster.
        """
        body = quotas.SetQuota(
            principal=principal,
            publish_bytes_per_s=publish_bytes_per_s,
            read_bytes_per_s=read_bytes_per_s,
            requests_per_s=requests_per_s,
            connections=connections,
        )
        self._brokers.change(quotas.SET_QUOTA, body, quotas.QuotaInfo)

    def remove(self, principal: str) -> None:
        """Limit a principal no more.

        Raises:
            InvalidRequestError: it has no quota.
            NotAllowedError: the caller does not administer the cluster.
        """
        body = quotas.WhoseQuota(principal=principal)
        self._brokers.change(quotas.REMOVE_QUOTA, body, quotas.QuotaInfo)
