"""Runs the controller on the broker that leads the metadata quorum.

Rules: ``core.metadata.controller`` and ``voters`` decide. This module passes them heartbeats and
the time, and proposes their decisions one after another. Each command names the version that it was
decided on; if that is outdated, the command is rejected and decided again.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping

from strandline.broker.cluster.voters import next_members, successor
from strandline.broker.quorum import Quorum
from strandline.clock import Clock
from strandline.core.metadata.commands import BrokerRun, Command, encode_entry
from strandline.core.metadata.controller import Controller, ControllerLimits
from strandline.core.metadata.election import LogEnds, brokers_to_ask
from strandline.core.metadata.image import MetadataImage
from strandline.core.metadata.outcome import CommandOutcome
from strandline.errors import UnavailableError
from strandline.types import BrokerId, LogId

logger = logging.getLogger(__name__)

INTERVAL_S = 0.25
PROPOSE_TIMEOUT_S = 5.0
LIMITS = ControllerLimits(session_ms=1_500)
"""Six heartbeats. The loss of a leader that is paused or cut off costs about two seconds, the loss
of a controller one more. If the process ended, that costs a second less, because its connections
show it (``disconnected_ms``)."""


class ControllerRunner:
    """Runs the controller while this broker leads the quorum.

    Args:
        quorum: this broker's member.
        image: returns the newest image.
        ask: requests replicas' log ends; brokers that do not answer in time are left out.
        clock: the source of the time of heartbeats and decisions.
        limits: timeouts.
    """

    def __init__(
        self,
        quorum: Quorum,
        image: Callable[[], MetadataImage],
        ask: Callable[[Mapping[BrokerId, tuple[LogId, ...]]], Awaitable[LogEnds]],
        *,
        clock: Clock,
        limits: ControllerLimits | None = None,
    ) -> None:
        self._quorum = quorum
        self._image = image
        self._ask = ask
        self._clock = clock
        self._limits = limits or LIMITS
        self._controller: Controller | None = None
        self._disconnected: dict[BrokerId, float] = {}
        self._changed = asyncio.Event()
        quorum.on_leadership.append(self._leadership_changed)

    @property
    def is_held(self) -> bool:
        """Whether this broker is the controller."""
        return self._controller is not None

    def _leadership_changed(self) -> None:
        is_leading = self._quorum.is_leading
        now_ms = self._clock.monotonic_ms()
        self._controller = (
            Controller(now_ms, self._limits, self._disconnected) if is_leading else None
        )
        self._changed.set()

    def heartbeat(self, run: BrokerRun, stored_index: int) -> None:
        """Note a heartbeat of a broker (this one, too) with the last entry on its disk."""
        if self._controller is not None:
            self._controller.heartbeat(run, self._clock.monotonic_ms(), stored_index)

    def peer_disconnected(self, broker: BrokerId) -> None:
        """Note that the link to a broker is down."""
        now_ms = self._clock.monotonic_ms()
        self._disconnected[broker] = now_ms
        if self._controller is not None:
            self._controller.lost(broker, now_ms)

    def peer_connected(self, broker: BrokerId) -> None:
        """Note that the link to a broker is up again."""
        self._disconnected.pop(broker, None)
        if self._controller is not None:
            self._controller.found(broker)

    def image_changed(self) -> None:
        """Schedule a decision, because the image changed."""
        self._changed.set()

    async def run(self) -> None:
        """Decide after each change, and at intervals, until cancelled."""
        while True:
            try:
                async with asyncio.timeout(INTERVAL_S):
                    await self._changed.wait()
            except TimeoutError:
                pass  # time alone may require a decision: a session may have expired
            self._changed.clear()
            if self._controller is not None:
                started_ms = self._clock.monotonic_ms()
                await self._decide(self._controller)
                # A decision may look at every partition: with thousands, use a fifth of the time at
                # most.
                took_s = (self._clock.monotonic_ms() - started_ms) / 1e3
                await asyncio.sleep(min(INTERVAL_S, 4 * took_s))

    async def _decide(self, controller: Controller) -> None:
        try:
            # Without the barrier a new leader could decide on an outdated image.
            await self._quorum.barrier(timeout_s=PROPOSE_TIMEOUT_S)
            for command in await self._commands(controller):
                outcome = await self._quorum.propose(
                    encode_entry(command), timeout_s=PROPOSE_TIMEOUT_S
                )
                assert isinstance(outcome, CommandOutcome), "what the machine answers"
                name = type(command).__name__
                if outcome.is_applied:
                    logger.info("controller: %s", command)
                else:
                    logger.warning("controller: %s was rejected: %s", name, outcome.message)
            await self._adjust_members()
        except UnavailableError as error:
            logger.info("controller: nothing was decided: %s", error)

    async def _commands(self, controller: Controller) -> tuple[Command, ...]:
        """Return the next commands; the replica with the longest log replaces a lost leader."""
        image, now_ms = self._image(), self._clock.monotonic_ms()
        commands = controller.decide(image, now_ms)
        wanted = brokers_to_ask(image, commands)
        if not wanted:
            return commands
        log_ends = await self._ask(wanted)
        # With the time of the first call, so that waiting for answers lets no session expire.
        return controller.decide(self._image(), now_ms, log_ends)

    async def _adjust_members(self) -> None:
        """Change the quorum by one step towards the registered brokers."""
        quorum, image = self._quorum, self._image()
        for members in next_members(quorum.members, image):
            try:
                if quorum.me not in members.voters:
                    quorum.hand_over(successor(members, image))  # the next leader removes this one
                    return
                await quorum.change_members(members, timeout_s=PROPOSE_TIMEOUT_S)
            except UnavailableError as error:
                logger.debug("controller: the quorum cannot be %s yet: %s", members, error)
                continue
            logger.info("controller: the quorum is now %s", members)
            return
