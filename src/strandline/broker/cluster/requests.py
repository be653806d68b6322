"""Proposals of commands to the metadata from any broker, sent to the quorum's leader.

Rules: a command is proposed until it is decided or the deadline has passed. If an answer was lost,
it may be proposed twice. A command that must be applied at most once goes through a ``Session``,
which numbers its commands. Registrations and other idempotent commands do not need that.
"""

import asyncio
import logging
import math

from strandline.broker.cluster.channels import (
    TIMEOUT_MS_MAX,
    Answer,
    Decided,
    Failed,
    Propose,
)
from strandline.broker.cluster.peer_rpc import PeerRpc
from strandline.broker.quorum import Quorum
from strandline.core.metadata.commands import Command, Entry, OpenSession, Proposed, encode_entry
from strandline.core.metadata.outcome import CommandOutcome
from strandline.errors import (
    NotLeaderError,
    RequestTimeoutError,
    StrandlineError,
    UnavailableError,
)
from strandline.types import BrokerId

logger = logging.getLogger(__name__)

RETRY_S = 0.05
ATTEMPT_S = 5.0
"""A command without an answer for this long is proposed again."""
LEADERLESS_S = 8.0
"""If no leader was found for this long, it is no mere election, and proposals fail. Clients wait 10
s for an answer; without one they would not learn the reason, nor that nothing was changed. Counted
for all proposals together, since those that wait for one another would each wait so long."""
FAILURE_PAUSE_S = 0.05
"""The pause before such a failure. Without it a caller that retries at once, as registrations and
leaders do, would keep the loop too busy to notice a new controller."""
PAUSE_S = 1.0
"""After so long without a proposal it is unknown whether there was a leader meanwhile."""


class Requests:
    """Proposals of this broker, and of other brokers while this one leads the quorum.

    Args:
        quorum: this broker's member.
        rpc: requests to and from other brokers.
    """

    def __init__(self, quorum: Quorum, rpc: PeerRpc) -> None:
        self._quorum = quorum
        self._rpc = rpc
        self._serving: set[asyncio.Task[None]] = set()
        self._leaderless_since_s = self._leaderless_at_s = -math.inf

    async def propose(self, entry: Entry, *, timeout_s: float) -> CommandOutcome:
        """Propose an entry, with retries until the deadline; return its outcome, applied here.

        Raises:
            RequestTimeoutError: not decided in time; it may be applied later.
            UnavailableError: no leader was found; the entry will not be applied.
        """
        data = encode_entry(entry)
        loop = asyncio.get_running_loop()
        began = loop.time()
        reason, is_open = "no broker leads the metadata now", False
        while (left_s := began + timeout_s - loop.time()) > 0:
            try:
                outcome = await self._attempt(data, min(left_s, ATTEMPT_S))
            except NotLeaderError as error:
                reason = error.message
                now_s = loop.time()
                leaderless_s = self._leaderless_s(now_s)
                if is_open and now_s >= began + LEADERLESS_S:
                    break
                if not is_open and leaderless_s >= LEADERLESS_S:
                    await asyncio.sleep(FAILURE_PAUSE_S)
                    raise UnavailableError(
                        f"nothing was changed: {reason}. Are most of the cluster's brokers up?"
                    ) from error
            except UnavailableError as error:
                reason = error.message
                is_open = True  # it may have been proposed
                self._leaderless_at_s = -math.inf
            else:
                self._leaderless_at_s = -math.inf
                return outcome
            await asyncio.sleep(RETRY_S)
        raise RequestTimeoutError(
            f"not decided within {loop.time() - began:.0f} s ({reason}); it may still happen. Are "
            "most of the cluster's brokers up?"
        )

    def _leaderless_s(self, now_s: float) -> float:
        """Return how long no leader was found."""
        if now_s - self._leaderless_at_s > PAUSE_S:
            self._leaderless_since_s = now_s
        self._leaderless_at_s = now_s
        return now_s - self._leaderless_since_s

    async def _attempt(self, data: bytes, timeout_s: float) -> CommandOutcome:
        """Propose an entry once.

        Raises:
            UnavailableError: it is undecided; only NotLeaderError means that it is not applied.
        """
        leader = self._quorum.leader
        if leader is None:
            raise NotLeaderError("no broker leads the metadata now")
        if self._quorum.is_leading:
            outcome = await self._quorum.propose(data, timeout_s=timeout_s)
            assert isinstance(outcome, CommandOutcome), "what the machine answers"
            return outcome
        timeout_ms = max(1, int(timeout_s * 1e3))
        answer = self._rpc.ask(leader, lambda n: Propose(n, data, timeout_ms), Decided)
        if answer is None:
            raise NotLeaderError(f"broker {leader} leads the metadata and cannot be reached")
        try:
            async with asyncio.timeout(timeout_s):
                decided = await answer
                # The caller may look for the change at once. A rejected command changed nothing, so
                # there is nothing to wait for.
                if decided.outcome.is_applied:
                    await self._quorum.applied(decided.index)
                return decided.outcome
        except TimeoutError:
            raise RequestTimeoutError(f"broker {leader} did not answer") from None

    # Requests of other brokers

    def serve(self, sender: BrokerId, request: Propose) -> None:
        """Propose a command for another broker, and send the answer."""
        task = asyncio.create_task(self._serve(sender, request), name="forwarded-proposal")
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def _serve(self, sender: BrokerId, request: Propose) -> None:
        timeout_s = min(request.timeout_ms, TIMEOUT_MS_MAX) / 1e3
        answer: Answer
        try:
            outcome = await self._quorum.propose(request.entry, timeout_s=timeout_s)
            assert isinstance(outcome, CommandOutcome), "what the machine answers"
            answer = Decided(request.number, outcome, self._quorum.applied_index)
        except StrandlineError as error:
            answer = Failed(request.number, error.code, error.message)
        self._rpc.answer(sender, answer)

    async def stop(self) -> None:
        """Cancel proposals in progress."""
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)


class Session:
    """A session of numbered commands: each is applied once, however often it is proposed.

    Args:
        requests: sends the proposals.
    """

    def __init__(self, requests: Requests) -> None:
        self._requests = requests
        self._lock = asyncio.Lock()
        self._client_id = 0
        self._sequence = 0

    async def propose(self, command: Command, *, timeout_s: float) -> CommandOutcome:
        """Propose a command so that it is applied once at most, and return its outcome.

        Raises:
            RequestTimeoutError: not decided in time; it may be applied later, once.
        """
        async with self._lock:
            if not self._client_id:
                opened = await self._requests.propose(OpenSession(), timeout_s=timeout_s)
                opened.raise_if_rejected()
                self._client_id, self._sequence = opened.value, 0
            # An abandoned command uses up its number, so that it is rejected if it arrives late.
            self._sequence += 1
            entry = Proposed(self._client_id, self._sequence, command)
            outcome = await self._requests.propose(entry, timeout_s=timeout_s)
            if outcome.reason == "session_expired":
                self._client_id = 0
                raise UnavailableError(outcome.message)
            return outcome
