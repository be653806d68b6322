"""Keeps the state of NATS consumers at the group coordinator, here or at another broker.

Rules: a consumer is its group's only member. The broker that leads its partition claims it under
its leader epoch and stores its state here; from then on the previous leader is rejected. Must not
know what the state means.
"""

from collections.abc import Awaitable, Callable
from typing import Literal, NamedTuple

from strandline.broker.coordinators.groups import GroupCoordinatorService
from strandline.core.groups.state import Positions

What = Literal["keep", "new", "delete", "claim", "list"]


class ConsumerOrder(NamedTuple):
    """A request to the coordinator."""

    what: What
    group: str
    """The consumer's group, or a prefix of several."""
    positions: Positions | None = None
    consumer: str = ""
    epoch: int = 0


async def _ends_nothing(group: str) -> None:
    """Without NATS servers no consumer works."""


class ConsumerStore:
    """The states of NATS consumers, by the names of their groups.

    Args:
        groups: this broker's coordinator.
    """

    def __init__(self, groups: GroupCoordinatorService) -> None:
        self._groups = groups
        self._end_consumer: Callable[[str], Awaitable[None]] = _ends_nothing

    def on_group_deleted(self, end_consumer: Callable[[str], Awaitable[None]]) -> None:
        """Register what ends the consumer of a deleted group where it works."""
        self._end_consumer = end_consumer

    async def keep(
        self, group: str, positions: Positions, consumer: str, *, epoch: int, is_new: bool = False
    ) -> None:
        """Store a consumer's state; return when every in-sync replica has it.

        Raises:
            UnknownGroupError: the consumer was deleted.
            GroupInUseError: it is new, and a group of its name exists.
            StaleMemberError: another broker leads its partition.
            UnavailableError: not now; the outcome may be unknown.
        """
        what: What = "new" if is_new else "keep"
        await self._do(ConsumerOrder(what, group, positions, consumer, epoch))

    async def delete(self, group: str) -> None:
        """Delete a consumer.

        Raises:
            UnknownGroupError: it does not exist.
            UnavailableError: not now; the outcome may be unknown.
        """
        await self._do(ConsumerOrder("delete", group))

    async def delete_group(self, group: str) -> None:
        """Delete a group; the consumer whose group it was ends at once.

        Raises:
            StrandlineError: as ``GroupCoordinatorService.delete``.
        """
        if await self._groups.delete(group):
            await self._end_consumer(group)

    async def claim(self, prefix: str, epoch: int) -> dict[str, str]:
        """Claim the consumers with this prefix for an epoch; return their states.

        Raises:
            StaleMemberError: another broker leads their partition.
            UnavailableError: not now.
        """
        return await self._do(ConsumerOrder("claim", prefix, epoch=epoch))

    async def list(self, prefix: str) -> list[str]:
        """Return the names of the consumers' groups with this prefix.

        Raises:
            UnavailableError: not now.
        """
        return sorted(await self._do(ConsumerOrder("list", prefix)))

    async def _do(self, order: ConsumerOrder) -> dict[str, str]:
        return await self.carry_out(order)

    async def carry_out(self, order: ConsumerOrder) -> dict[str, str]:
        """Execute a request at this broker's coordinator; return its result.

        Raises:
            NotLeaderError: another broker coordinates.
            StrandlineError: as the coordinator raises it.
        """
        what, group, positions, consumer, epoch = order
        match what:
            case "claim":
                return await self._groups.claim_consumers(group, epoch)
            case "list":
                return dict.fromkeys(await self._groups.consumers(group), "")
            case "delete":
                await self._groups.delete(group)
            case _:
                await self._groups.keep_consumer(
                    group, positions or {}, consumer, epoch=epoch, is_new=what == "new"
                )
        return {}
