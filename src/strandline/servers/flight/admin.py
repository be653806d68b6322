"""Handlers of the admin actions, each a short function from a decoded body to JSON answers.

Rules: a change runs on the broker's loop, and the caller waits for it with a timeout. Reading the
state needs no loop. An unknown action is refused with the list of known ones.
"""

import concurrent.futures
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, TypeVar

import msgspec

from strandline.api import admin
from strandline.api.wire import decode, encode, refuse_body
from strandline.broker.access import Caller
from strandline.broker.broker import Broker
from strandline.broker.internal import check_public
from strandline.broker.stream import Stream
from strandline.broker.write_path.partition import Partition
from strandline.config import StreamConfig, decode_config
from strandline.errors import (
    InvalidConfigError,
    InvalidRequestError,
    RequestTimeoutError,
    StrandlineError,
)
from strandline.servers.flight.access import AccessActions
from strandline.servers.flight.actions import ActionContext, Handler
from strandline.servers.flight.cluster import cluster_actions
from strandline.servers.flight.encryption import encryption_actions
from strandline.servers.flight.groups import GroupActions
from strandline.servers.flight.info import server_info, stream_info
from strandline.servers.flight.lifecycle import ServerLifecycle
from strandline.servers.flight.local import LocalActions
from strandline.servers.flight.permissions import NEEDS, VISIBLE, check_action
from strandline.servers.flight.plan import check_led, needs_end, resolve
from strandline.servers.flight.quotas import QuotaActions
from strandline.servers.flight.transactions import TransactionActions
from strandline.types import Offset

CHANGE_TIMEOUT_S = 60.0
T = TypeVar("T")


class AdminActions:
    """The admin API of one broker.

    Args:
        broker: the broker.
        lifecycle: the lifecycle of the Flight server.
    """

    def __init__(self, broker: Broker, lifecycle: ServerLifecycle) -> None:
        self._broker = broker
        self._lifecycle = lifecycle
        self._handlers: dict[str, Handler] = {
            admin.CREATE_STREAM: self._create_stream,
            admin.DELETE_STREAM: self._delete_stream,
            admin.DELETE_RECORDS: self._delete_records,
            admin.STREAM_INFO: self._stream_info,
            admin.LIST_STREAMS: self._list_streams,
            admin.OFFSETS: self._offsets,
            admin.WAIT_BEYOND: self._wait_beyond,
            admin.SERVER_INFO: self._server_info,
            admin.NEW_PRODUCER: self._new_producer,
            **LocalActions(self._broker, self._lifecycle).handlers,
            **cluster_actions(self._broker, self._change),
            **encryption_actions(self._broker, self._change),
            **TransactionActions(self._broker, self._change).handlers,
            **GroupActions(self._broker, self._change).handlers,
            **AccessActions(self._broker, self._change).handlers,
            **QuotaActions(self._broker, self._change).handlers,
        }
        assert set(self._handlers) == set(admin.ACTIONS), "every action has a handler"
        assert set(NEEDS) == set(admin.ACTIONS), "of every action it is known who may run it"

    def run(
        self, name: str, body: bytes, *, caller: Caller, is_cancelled: Callable[[], bool]
    ) -> list[bytes]:
        """Run an action; return the JSON of its results.

        Args:
            name: the action's name.
            body: its JSON.
            caller: the caller.
            is_cancelled: whether the client has disconnected.

        Raises:
            InvalidRequestError: the action is unknown, or the body is invalid.
            UnauthenticatedError, NotAllowedError: the caller may not run the action.
            StrandlineError: the action failed.
        """
        handler = self._handlers.get(name)
        if handler is None:
            known = ", ".join(admin.ACTIONS)
            raise InvalidRequestError(f"unknown action {name[:80]!r}; actions are: {known}")
        self._lifecycle.check()
        check_action(caller, name, body)
        sees = VISIBLE.get(name)

        def is_over() -> bool:
            """Return whether to stop waiting; raise if the caller has lost its permission."""
            check_action(caller, name, body)
            return is_cancelled()

        waits = is_over if name == admin.WAIT_BEYOND else is_cancelled
        return [
            encode(answer)
            for answer in handler(body, ActionContext(caller.principal.name, waits))
            if sees is None or sees(caller, answer)
        ]

    def _change(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop and wait for its result."""
        future = self._broker.run_coroutine(coroutine)
        try:
            return future.result(CHANGE_TIMEOUT_S)
        except concurrent.futures.TimeoutError as error:
            raise RequestTimeoutError(
                f"the broker did not finish within {CHANGE_TIMEOUT_S:g} s; it may still do so"
            ) from error
        except concurrent.futures.CancelledError as error:
            raise RequestTimeoutError("the broker stopped before it could finish") from error

    def _create_stream(self, body: bytes, _: ActionContext) -> list[Any]:
        values = decode(body, dict[str, Any], what="stream configuration")
        config = decode_config(values, StreamConfig)
        if not config.name:
            raise InvalidConfigError("a stream needs a name")
        check_public(config.name)
        return [self._with_others(self._change(self._broker.create_stream(config)))]

    def _delete_stream(self, body: bytes, _: ActionContext) -> list[Any]:
        request = decode(body, admin.StreamName, what="delete_stream")
        check_public(request.name)
        self._change(self._broker.delete_stream(request.name))
        return []

    def _delete_records(self, body: bytes, _: ActionContext) -> list[Any]:
        request = decode(body, admin.DeleteRecords, what="delete_records")
        check_public(request.name)
        self._change(
            self._broker.truncate_before(request.name, request.partition, Offset(request.offset))
        )
        return [stream_info(self._broker.stream(request.name), self._broker)]

    def _stream_info(self, body: bytes, context: ActionContext) -> list[Any]:
        request = decode(body, admin.StreamInfoRequest, what="stream_info")
        self._broker.check_quorum()
        stream = self._broker.stream(request.name)
        led = [stream.partition(number) for number in request.led or ()]
        self._know_end(led, context.is_cancelled, led=led)
        return [self._with_others(stream)]

    def _with_others(self, stream: Stream) -> admin.StreamInfo:
        """Return a stream's info with the other streams that acknowledge its publishers."""
        found = stream_info(stream, self._broker)
        if self._broker.config.auth.enabled:  # the caller may not be allowed to see the others
            return found
        others = tuple(self._broker.routes.answering_beside(stream))
        return msgspec.structs.replace(found, also_answering=others)

    def _list_streams(self, body: bytes, _: ActionContext) -> list[Any]:
        refuse_body(body, admin.LIST_STREAMS)
        self._broker.check_quorum()
        self._broker.check_knows_streams()
        return [stream_info(stream, self._broker) for stream in self._broker.streams()]

    def _offsets(self, body: bytes, context: ActionContext) -> list[Any]:
        request = decode(body, admin.OffsetsRequest, what="offsets")
        stream = self._broker.stream(request.name)
        partitions = stream.partitions
        if request.partitions is not None:
            partitions = [stream.partition(number) for number in request.partitions]
        unclear = [each for each in partitions if needs_end(request.at, each)]
        self._know_end(unclear, context.is_cancelled, led=partitions if request.of_leader else ())
        return [
            admin.Offsets(
                offsets={
                    partition.name.partition: resolve(request.at, partition)
                    for partition in partitions
                }
            )
        ]

    def _know_end(
        self,
        partitions: Iterable[Partition],
        is_cancelled: Callable[[], bool],
        *,
        led: Iterable[Partition],
    ) -> None:
        """Wait until the ends are known, and check before and after that this broker leads.

        Raises:
            NotLeaderError: another broker leads one of them.
        """
        check_led(led)
        self._lifecycle.wait_until_caught_up(partitions, is_cancelled)
        check_led(led)

    def _wait_beyond(self, body: bytes, context: ActionContext) -> list[Any]:
        """Wait until any high watermark passes the offset given for it."""
        request = decode(body, admin.WaitRequest, what="wait_beyond")
        stream = self._broker.stream(request.name)
        watched = {stream.partition(number): after for number, after in request.beyond.items()}
        deadline = self._lifecycle.now_ms() + request.wait_ms_max
        with self._lifecycle.waiter(watched) as waiter:
            while True:
                waiter.arm()
                left_ms = deadline - self._lifecycle.now_ms()
                if context.is_cancelled() or left_ms <= 0 or any(map(_gone_from, watched)):
                    break
                if any(item.last_stable_offset > after for item, after in watched.items()):
                    break
                self._lifecycle.check()
                waiter.wait(left_ms / 1e3)
        for error in filter(None, map(_gone_from, watched)):
            raise error  # this broker has no copy, so its high watermark would be wrong
        now = {item.name.partition: int(item.last_stable_offset) for item in watched}
        return [admin.Offsets(offsets=now)]

    def _new_producer(self, body: bytes, context: ActionContext) -> list[Any]:
        refuse_body(body, admin.NEW_PRODUCER)
        producer_id = self._change(self._broker.new_producer_id(context.owner))
        return [admin.ProducerInfo(producer_id=producer_id)]

    def _server_info(self, body: bytes, _: ActionContext) -> list[Any]:
        refuse_body(body, admin.SERVER_INFO)
        return [server_info(self._broker)]


def _gone_from(partition: Partition) -> StrandlineError | None:
    """Return why a partition is not on this broker; None if it is."""
    return partition.remote_error or partition.closed_by
