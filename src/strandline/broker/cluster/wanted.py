"""Metadata changes that this broker wants, gathered while a command is in flight."""

import asyncio
from typing import Generic, TypeVar

from strandline.types import LogId

T = TypeVar("T")


class PendingProposals(Generic[T]):
    """The newest proposal of each log: a command that names a partition twice is rejected whole."""

    def __init__(self) -> None:
        self._wishes: dict[LogId, T] = {}
        self._is_there = asyncio.Event()

    def put(self, log_id: LogId, wish: T) -> None:
        """Set a log's proposal, in place of an earlier one."""
        self._wishes[log_id] = wish
        self._is_there.set()

    def put_back(self, log_id: LogId, wish: T) -> None:
        """Put a proposal back, unless there is a newer one."""
        self._wishes.setdefault(log_id, wish)
        self._is_there.set()

    async def taken(self) -> list[T]:
        """Wait for proposals; return and remove all."""
        await self._is_there.wait()
        self._is_there.clear()
        wishes, self._wishes = self._wishes, {}
        return list(wishes.values())
