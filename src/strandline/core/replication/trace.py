"""Trace of replicas with vector clocks: two lines an event, in the format that ShiViz reads.

    broker-1.4 {"broker-1.4":7,"broker-2.1":3}
    orders/0: commits to 12

Rules: an event ticks its own host's clock by one; what is sent carries the clock of the last event
before it, and what is received raises ours to that. So an event's clock says exactly which events
of other hosts it can know of. A host is one run of a broker, so a clock never restarts. Tracing
does not change what a replica does: events are written afterwards. No I/O: lines go to ``write``.
"""

from collections.abc import Callable, Mapping

from strandline.core.replication import effects as fx
from strandline.core.replication import events as ev
from strandline.core.replication.effects import Effect
from strandline.core.replication.events import Event
from strandline.core.replication.limits import ReplicationLimits
from strandline.core.replication.messages import Session
from strandline.core.replication.replica import Replica
from strandline.core.replication.state import LogState
from strandline.types import BrokerId

Clock = Mapping[str, int]


class Trace:
    """The events of one host.

    Args:
        host: its name, without blanks.
        write: takes each event, with the end of its second line.
    """

    def __init__(self, host: str, write: Callable[[str], object]) -> None:
        self.host = host
        self._write = write
        self._clock: dict[str, int] = {}

    @property
    def clock(self) -> dict[str, int]:
        """The vector clock: how many events of each host are known here; a copy."""
        return dict(self._clock)

    def note(self, what: str) -> None:
        """Trace a local event."""
        self._clock[self.host] = self._clock.get(self.host, 0) + 1
        times = ",".join(f'"{host}":{self._clock[host]}' for host in sorted(self._clock))
        self._write(f"{self.host} {{{times}}}\n{what}\n")

    def received(self, clock: Clock) -> None:
        """Trace the receipt of a message that was sent at this time."""
        for host, time in clock.items():
            if host != self.host and time > self._clock.get(host, 0):
                self._clock[host] = time


class TracedReplica(Replica):
    """A replica that traces its elections and writes.

    Args:
        me: this broker.
        log: the partition's log.
        name: the name of the partition in the lines.
        trace: receives the lines.
        limits: the timeouts.
        session: the session of its requests.
        incarnation: the incarnation of the broker.
    """

    def __init__(
        self,
        me: BrokerId,
        log: LogState,
        *,
        name: str,
        trace: Trace,
        limits: ReplicationLimits,
        session: Session,
        incarnation: str,
    ) -> None:
        super().__init__(me, log, limits=limits, session=session, incarnation=incarnation)
        self.name = name
        self.trace = trace

    def step(self, event: Event, now_ms: int) -> list[Effect]:
        """Step the replica as ``Replica.step`` does, and trace it."""
        epoch, durable = self.epoch, self.log.durable_offset
        effects = super().step(event, now_ms)
        lines = _describe_event(event)
        if self.epoch > epoch:
            assert isinstance(event, ev.Assigned), "epochs come from metadata alone"
            lines = [_describe_assignment(event, self.me)]
        if self.log.durable_offset > durable:
            lines.append(f"has synced to {self.log.durable_offset}")
        lines += [text for effect in effects if (text := _describe_effect(effect))]
        if lines:
            self.trace.note(f"{self.name}: {'; '.join(lines)}")
        return effects


def _describe_assignment(event: ev.Assigned, me: BrokerId) -> str:
    in_sync = " ".join(map(str, event.isr))
    if event.leader is None:
        return f"epoch {event.epoch}: nobody leads, in sync {in_sync}"
    who = "leads" if event.leader == me else f"follows {event.leader}"
    return f"epoch {event.epoch}: {who}, in sync {in_sync}"


def _describe_event(event: Event) -> list[str]:
    match event:
        case ev.Appended() if event.batches:
            first, after = event.batches[0].base_offset, event.batches[-1].next_offset
            return [f"appends {first} to {after - 1}"]
        case ev.IsrChanged():
            return [f"in sync are {' '.join(map(str, event.isr))}"]
        case ev.PeerDisconnected():
            return [f"loses the link to {event.broker}"]
        case _:
            return []


def _describe_effect(effect: Effect) -> str:
    match effect:
        case fx.Append():
            first, after = effect.batches[0].base_offset, effect.batches[-1].next_offset
            return f"copies {first} to {after - 1}"
        case fx.Committed():
            return f"commits to {effect.offset}"
        case fx.TruncateTo():
            return f"cuts its log to {effect.offset}"
        case fx.ResetTo():
            return f"starts its log anew at {effect.offset}"
        case fx.ProposeIsr():
            return f"wants in sync {' '.join(map(str, effect.isr))}"
        case fx.Halted():
            return f"is halted: {effect.trouble}"
        case _:
            return ""
