"""The store for the state of NATS consumers: the group coordinator, here or on another broker.

Rules: a consumer is the only member of its group. The broker that leads its partition claims it
under its leader epoch and stores its state here; from then on the previous leader's requests are
rejected. Must not know what the state means.
"""

from collections.abc import Awaitable, Callable
from typing import Literal, NamedTuple

from strandline.broker.coordinators.groups import GroupCoordinatorService
from strandline.core.groups.state import Positions

What = Literal["keep", "new", "delete", "claim", "list"]


class ConsumerOrder(NamedTuple):
    """A request about consumers to the group coordinator."""

    what: What
    group: str
    """The group of one consumer, or the common prefix of several."""
    positions: Positions | None = None
    consumer: str = ""
    epoch: int = 0


async def _ends_nothing(group: str) -> None:
    """Do nothing: without NATS servers no consumer runs."""


class ConsumerStore:
    """The states of NATS consumers, by the names of their groups.

    Args:
        groups: this broker's group coordinator.
    """

    def __init__(self, groups: GroupCoordinatorService) -> None:
        self._groups = groups
        self._end_consumer: Callable[[str], Awaitable[None]] = _ends_nothing

    def on_group_deleted(self, end_consumer: Callable[[str], Awaitable[None]]) -> None:
        """Register the function that stops the consumer of a deleted group, where it runs."""
        self._end_consumer = end_consumer

    async def keep(
        self, group: str, positions: Positions, consumer: str, *, epoch: int, is_new: bool = False
    ) -> None:
        """Store a consumer's state; return when every in-sync replica has it.

        Raises:
            UnknownGroupError: the consumer was deleted.
            GroupInUseError: the consumer is new, and a group of its name exists.
            StaleMemberError: another broker leads the consumer's partition.
            UnavailableError: retry; the state may have been stored.
        """
        what: What = "new" if is_new else "keep"
        await self._do(ConsumerOrder(what, group, positions, consumer, epoch))

    async def delete(self, group: str) -> None:
        """Delete a consumer.

        Raises:
            UnknownGroupError: the consumer does not exist.
            UnavailableError: retry; the consumer may have been deleted.
        """
        await self._do(ConsumerOrder("delete", group))

    async def delete_group(self, group: str) -> None:
        """Delete a group; if it is a NATS consumer's, stop the consumer at once.

        Raises:
            StrandlineError: as for ``GroupCoordinatorService.delete``.
        """
        if await self._groups.delete(group):
            await self._end_consumer(group)

    async def claim(self, prefix: str, epoch: int) -> dict[str, str]:
        """Claim the consumers with this prefix for an epoch; return their states.

        Raises:
            StaleMemberError: another broker leads their partition.
            UnavailableError: the coordinator does not answer now; retry.
        """
        return await self._do(ConsumerOrder("claim", prefix, epoch=epoch))

    async def list(self, prefix: str) -> list[str]:
        """Return the names of the consumers' groups with this prefix.

        Raises:
            UnavailableError: the coordinator does not answer now; retry.
        """
        return sorted(await self._do(ConsumerOrder("list", prefix)))

    async def _do(self, order: ConsumerOrder) -> dict[str, str]:
        return await self.carry_out(order)

    async def carry_out(self, order: ConsumerOrder) -> dict[str, str]:
        """Execute a request at this broker's coordinator; return its result.

        Raises:
            NotLeaderError: another broker is the coordinator.
            StrandlineError: the coordinator's error.
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
