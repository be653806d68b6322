"""Metadata changes that this broker wants, gathered while another command is in flight."""

import asyncio
from typing import Generic, TypeVar

from strandline.types import LogId

T = TypeVar("T")


class PendingProposals(Generic[T]):
    """The newest proposal of each log; one command must not name a partition twice."""

    def __init__(self) -> None:
        self._proposals: dict[LogId, T] = {}
        self._is_there = asyncio.Event()

    def put(self, log_id: LogId, proposal: T) -> None:
        """Set a log's proposal, instead of an earlier one."""
        self._proposals[log_id] = proposal
        self._is_there.set()

    def put_back(self, log_id: LogId, proposal: T) -> None:
        """Put a proposal back, unless there is a newer one of the log."""
        self._proposals.setdefault(log_id, proposal)
        self._is_there.set()

    async def taken(self) -> list[T]:
        """Wait until there are proposals; remove and return all."""
        await self._is_there.wait()
        self._is_there.clear()
        proposals, self._proposals = self._proposals, {}
        return list(proposals.values())
