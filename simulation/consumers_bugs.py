"""Seeded bugs of NATS consumers that histories must find; rule as in ``metadata_bugs``."""

from typing import Final

from simulation.bugs import Replacement, SourceRewrite
from strandline.core.consumers.consumer import PullConsumer
from strandline.core.groups import coordinator as groups

_CORE = "strandline.core.consumers.consumer:PullConsumer"
_FLOW = "strandline.core.consumers.flow:FlowWindow"
_RUNNER = "strandline.servers.nats.jetstream.runner:ConsumerRunner"
_MERGED = "strandline.servers.nats.jetstream.merged_buffer:MergedBuffer"
_STATE = "strandline.core.consumers.state:ConsumerState"

CONSUMER_BUGS: Final = (
    SourceRewrite(
        "a record is sent before its delivery is stored",
        f"{_RUNNER}._commit",
        "if self.is_durable:",
        "if not self.is_durable:",
    ),
    SourceRewrite(
        "an acknowledgement is answered before it is stored",
        f"{_RUNNER}._commit",
        "answers, self._answers = self._answers, []",
        "answers, self._answers = [each() or each for each in self._answers], []",
    ),
    SourceRewrite(
        "a broker that leads no longer answers repeated acknowledgements",
        f"{_RUNNER}._commit",
        "bool(self._outgoing or answers)",
        "bool(self._outgoing)",
    ),
    Replacement(
        "a broker that no longer leads still stores states",
        "_check_epoch",
        lambda *_: None,
        (groups,),
    ),
    SourceRewrite(
        "a new leader does not wait for acknowledgements",
        f"{_CORE}.__init__",
        "in state.pending.items()",
        "in ()",
    ),
    SourceRewrite(
        "the acknowledgement wait of a sent record never ends",
        f"{_CORE}.sent",
        "== math.inf",
        "is None",
    ),
    SourceRewrite(
        "a rejected record is not delivered again",
        f"{_CORE}.ack",
        "self._expect_acks([sequence], now_ms + delay_ms)",
        "pass",
    ),
    SourceRewrite(
        "an acknowledged record keeps its timer",
        f"{_CORE}.ack_many",
        "self._forget(sequence)",
        "pass",
    ),
    SourceRewrite(
        "new records are delivered before those due for redelivery",
        f"{_CORE}.wanted",
        "if self._again:",
        "if self._again and self.is_full:",
    ),
    Replacement(
        "any number of records is pending", "is_full", property(lambda _: False), (PullConsumer,)
    ),
    SourceRewrite(
        "records are delivered for ever",
        f"{_CORE}._is_due",
        "record.deliveries >= self.policy.max_deliver",
        "not record.deliveries",
    ),
    SourceRewrite(
        "a redelivery does not count",
        f"{_CORE}._send",
        "record.deliveries += 1",
        "record.deliveries += 0",
    ),
    SourceRewrite(
        "acknowledging all earlier records misses one",
        f"{_CORE}._ack_all",
        "next(iter(state.pending))) <= sequence",
        "next(iter(state.pending))) < sequence",
    ),
    SourceRewrite(
        "the floor passes a pending record",
        f"{_CORE}._settle",
        "first - 1)",
        "first)",
    ),
    SourceRewrite(
        "a record whose partition cannot be read counts as deleted",
        f"{_MERGED}.read_again",
        "return [merged_sequence(each, number, count) for each in together]",
        "return []",
    ),
    SourceRewrite(
        "a partition that could not be read once is left out for ever",
        f"{_MERGED}._is_absent",
        "part.retry_ms <= self._now_ms()",
        "part.retry_ms <= 0",
    ),
    SourceRewrite(
        "partitions share a position",
        f"{_STATE}.advance",
        "self.positions[number] = max(within, self.positions[number])",
        "self.positions[:] = [max(within, each) for each in self.positions]",
    ),
    SourceRewrite(
        "an answer to flow control frees nothing",
        f"{_FLOW}.answered",
        "self.sent_bytes - self._covered",
        "self.sent_bytes",
    ),
    SourceRewrite(
        "a new receiver inherits a full window",
        f"{_FLOW}.reset",
        "self.sent_bytes = self.request = self._covered = 0",
        "self.request = self._covered = 0",
    ),
    SourceRewrite(
        "a new receiver is not noticed",
        f"{_RUNNER}.interest_changed",
        "self._rebind(is_bound=is_bound)",
        "self._rebind(is_bound=False)",
    ),
)
