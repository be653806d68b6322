"""Access control, quotas and consumer groups for asyncio: the same names, run on threads."""

import asyncio
from collections.abc import Mapping

from strandline.api import groups as wire
from strandline.api.access import TokenInfo
from strandline.api.quotas import QuotaInfo
from strandline.client.access import AccessControl
from strandline.client.consumer.groups import TIMEOUT_S, Groups
from strandline.client.consumer.offset_store import Offsets
from strandline.client.quotas import Quotas
from strandline.client.reader.reading import OffsetSpec
from strandline.security.acl import Kind, Operation, Rule
from strandline.types import PartitionName


class AsyncGroups:
    """The consumer groups of a broker or cluster; as ``Groups``.

    Args:
        groups: the synchronous object to wrap.
    """

    def __init__(self, groups: Groups) -> None:
        self._groups = groups

    async def list(self) -> list[wire.GroupSummary]:
        """Return all groups; as ``Groups.list``."""
        return await asyncio.to_thread(self._groups.list)

    async def info(self, group: str) -> wire.GroupInfo:
        """Return a group's members, assignment and committed offsets; as ``Groups.info``."""
        return await asyncio.to_thread(self._groups.info, group)

    async def committed_offsets(self, group: str) -> dict[PartitionName, int]:
        """Return the next offset to consume of each partition; as ``Groups.committed_offsets``."""
        return await asyncio.to_thread(self._groups.committed_offsets, group)

    async def commit(self, group: str, offsets: Offsets, *, timeout_s: float = TIMEOUT_S) -> None:
        """Set committed offsets of a group without members; as ``Groups.commit``."""
        await asyncio.to_thread(self._groups.commit, group, offsets, timeout_s=timeout_s)

    async def reset(
        self, group: str, stream: str, to: OffsetSpec, *, partition: int | None = None
    ) -> Mapping[PartitionName, int]:
        """Set a group's committed offsets in one stream; as ``Groups.reset``."""
        return await asyncio.to_thread(self._groups.reset, group, stream, to, partition=partition)

    async def delete(self, group: str) -> None:
        """Delete a group; as ``Groups.delete``."""
        await asyncio.to_thread(self._groups.delete, group)


class AsyncAccessControl:
    """The access rules and tokens; as ``AccessControl``.

    Args:
        access: the synchronous object to wrap.
    """

    def __init__(self, access: AccessControl) -> None:
        self._access = access

    async def rules(self) -> list[Rule]:
        """Return every rule; as ``AccessControl.rules``."""
        return await asyncio.to_thread(self._access.rules)

    async def grant(self, principal: str, operation: Operation, kind: Kind, *patterns: str) -> None:
        """Allow a principal an operation; as ``AccessControl.grant``."""
        await asyncio.to_thread(self._access.grant, principal, operation, kind, *patterns)

    async def revoke(
        self, principal: str, operation: Operation, kind: Kind, *patterns: str
    ) -> None:
        """Remove rules; as ``AccessControl.revoke``."""
        await asyncio.to_thread(self._access.revoke, principal, operation, kind, *patterns)

    async def tokens(self) -> list[TokenInfo]:
        """Return every token; as ``AccessControl.tokens``."""
        return await asyncio.to_thread(self._access.tokens)

    async def create_token(self, principal: str, *, days: float | None = None) -> str:
        """Create a token; as ``AccessControl.create_token``."""
        return await asyncio.to_thread(self._access.create_token, principal, days=days)

    async def revoke_token(self, token: str) -> None:
        """Revoke a token; as ``AccessControl.revoke_token``."""
        await asyncio.to_thread(self._access.revoke_token, token)


class AsyncQuotas:
    """The quotas of principals; as ``Quotas``.

    Args:
        quotas: the synchronous object to wrap.
    """

    def __init__(self, quotas: Quotas) -> None:
        self._quotas = quotas

    async def list(self) -> list[QuotaInfo]:
        """Return every quota; as ``Quotas.list``."""
        return await asyncio.to_thread(self._quotas.list)

    async def set(
        self,
        principal: str,
        *,
        publish_bytes_per_s: int = 0,
        read_bytes_per_s: int = 0,
        requests_per_s: int = 0,
        connections: int = 0,
    ) -> None:
        """Limit a principal at each broker; as ``Quotas.set``."""
        await asyncio.to_thread(
            self._quotas.set,
            principal,
            publish_bytes_per_s=publish_bytes_per_s,
            read_bytes_per_s=read_bytes_per_s,
            requests_per_s=requests_per_s,
            connections=connections,
        )

    async def remove(self, principal: str) -> None:
        """Remove a principal's quota; as ``Quotas.remove``."""
        await asyncio.to_thread(self._quotas.remove, principal)
