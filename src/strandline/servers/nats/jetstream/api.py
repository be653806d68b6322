"""The JetStream API of one broker: who answers a request, and what.

Rules:
- every broker of a cluster hears every request, and one answers: the controller where it is about
  all streams or creates or deletes one, and of unknown streams; else the leader of the stream's
  partition, which of all partitions is the first one's. A broker that has lost contact with its
  cluster is silent. Without a leader nobody answers, and clients try again;
- a leader's answer covers everything that was acknowledged before it was asked;
- an answer needs a reply subject: a request without one is ignored;
- files are read on threads of our own; the number of requests under way is limited, and one too
  many is answered with an error.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, NamedTuple, Protocol, TypeVar

import msgspec

from strandline.broker.read_path.ends import wait_until_caught_up
from strandline.broker.write_path.partition import Partition
from strandline.errors import (
    UNDECODABLE,
    InvalidRecordError,
    StrandlineError,
    UnknownStreamError,
)
from strandline.servers.nats.atomic_batches import DIGITS_MAX, LEVEL_MAX
from strandline.servers.nats.headers import VERSION_LINE, parse_headers
from strandline.servers.nats.jetstream.errors import (
    API_LEVEL,
    BAD_REQUEST,
    INSUFFICIENT,
    NOT_SUPPORTED,
    PUBLIC_INBOX,
    STREAM_NOT_FOUND,
    UNAVAILABLE,
    ApiError,
    ApiRejection,
    api_error,
    detailed,
    reject,
    reject_json,
)
from strandline.servers.nats.jetstream.subjects import PREFIX, ApiCall, parse_subject
from strandline.servers.nats.jetstream.views import JetStreamView, split_name, view_of
from strandline.servers.nats.ports import JetStreamPort
from strandline.servers.nats.protocol import Message

logger = logging.getLogger(__name__)

API_LEVEL_HEADER: Final = "Nats-Required-Api-Level"
REQUEST_BYTES_MAX: Final = 1 << 20
REQUESTS_MAX: Final = 256
"""Requests under way at the same time."""
THREADS: Final = 4
PEER_TIMEOUT_S: Final = 2.0
OF_CONTROLLER: Final = frozenset(
    ("", "INFO", "STREAM.NAMES", "STREAM.LIST", "STREAM.CREATE", "STREAM.DELETE")
)
"""Operations that the controller answers."""
T = TypeVar("T")
RequestT = TypeVar("RequestT")


class ApiLink(Protocol):
    """The connection that requests come over."""

    @property
    def is_alone(self) -> bool:
        """Whether no other broker receives its requests."""
        ...

    @property
    def payload_max(self) -> int:
        """The largest message that it takes."""
        ...

    def deliver(self, to: bytes, payload: bytes) -> None:
        """Queue a message."""
        ...

    def flush_answers(self) -> None:
        """Send queued messages soon."""
        ...

    def deliver_with_headers(self, to: bytes, payload: bytes, *, block: bytes) -> None:
        """Queue a message with a header block."""
        ...

    @property
    def is_shared(self) -> bool:
        """Whether others than who asked could receive an answer."""
        ...

    def receiver(self, inbox: bytes) -> object:
        """Return who receives what a consumer delivers for a pull, as ``Receivers`` knows it."""
        ...


class ServerApiLink(ApiLink, Protocol):
    """The connection to a nats-server, which also carries acknowledgements."""

    async def request(self, subject: bytes, payload: bytes) -> bytes | None:
        """Return the answer to a request; None if nobody responds."""
        ...

    def subscribe_acks(self, stream: str) -> None:
        """Hear the acknowledgements of a stream's consumers."""
        ...

    def unsubscribe_acks(self, stream: str) -> None:
        """Hear them no longer."""
        ...


class ApiReply(NamedTuple):
    """The answer to a request."""

    payload: bytes
    block: bytes = b""
    """Its header block, if it has one."""
    is_silent: bool = False
    """Whether the answer comes later, from elsewhere."""


class ApiRequest(NamedTuple):
    """A request."""

    call: ApiCall
    payload: bytes
    link: ApiLink
    reply: bytes = b""

    def body(self, kind: type[RequestT]) -> RequestT:
        """Return the decoded body; an empty one and ``null``, as Rust sends it, are no fields.

        Raises:
            ApiRejection: it is not of this kind.
        """
        if len(self.payload) > REQUEST_BYTES_MAX:
            reject_json(f"more than {REQUEST_BYTES_MAX} bytes")
        text = self.payload.strip()
        try:
            return msgspec.json.decode(b"{}" if text in (b"", b"null") else text, type=kind)
        except UNDECODABLE as error:
            reject_json(error)

    def answer(self, **fields: Any) -> ApiReply:
        """Return an answer with these fields, but those that are not set."""
        said = {name: value for name, value in fields.items() if value is not msgspec.UNSET}
        return ApiReply(msgspec.json.encode({"type": self.call.answer_type, **said}))


Handler = Callable[[ApiRequest], Awaitable[ApiReply]]


AckHandler = Callable[[Sequence[Message], ApiLink], None]
"""Handles acknowledgements that came together."""


def _ignore_acks(messages: Sequence[Message], link: ApiLink) -> None:
    """Without consumers there is nothing to acknowledge."""


def status(line: str, *headers: tuple[str, object]) -> ApiReply:
    """Return an answer without a payload whose headers say everything."""
    lines = [VERSION_LINE + b" " + line.encode()]
    lines += (f"{name}: {value}".encode() for name, value in headers)
    return ApiReply(b"", b"\r\n".join((*lines, b"", b"")))


class JetStreamApi:
    """The API of one broker, over any number of connections.

    Args:
        broker: the broker.
        domain: the JetStream domain of its requests; empty: none.
    """

    def __init__(self, broker: JetStreamPort, domain: str = "") -> None:
        self.broker = broker
        self.domain = domain
        self.handlers: dict[str, Handler] = {"": _unknown}
        self._handle_acks: AckHandler = _ignore_acks
        self._link: ServerApiLink | None = None
        self._acked: set[str] = set()
        """The streams to whose acknowledgements this broker subscribes."""
        self.requests = self.errors = 0
        """How many were answered here."""
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="jetstream")
        self._tasks: set[asyncio.Task[None]] = set()

    async def stop(self) -> None:
        """Answer no more requests."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._pool.shutdown(wait=False, cancel_futures=True)

    # Acknowledgements

    def on_acks(self, handler: AckHandler) -> None:
        """Have acknowledgements handled from now on."""
        self._handle_acks = handler

    def take_acks(self, messages: Sequence[Message], link: ApiLink) -> None:
        """Handle acknowledgements that came together over a connection."""
        self._handle_acks(messages, link)

    def attach(self, link: ServerApiLink) -> None:
        """Hear acknowledgements over a new connection."""
        self._link = link
        for stream in self._acked:
            link.subscribe_acks(stream)

    def follow_acks(self, stream: str) -> None:
        """Hear the acknowledgements of a stream's consumers from now on."""
        if stream not in self._acked:
            self._acked.add(stream)
            if self._link is not None:
                self._link.subscribe_acks(stream)

    def unfollow_acks(self, stream: str) -> None:
        """Hear them no longer: another broker leads, or there are no consumers."""
        if stream in self._acked:
            self._acked.remove(stream)
            if self._link is not None:
                self._link.unsubscribe_acks(stream)

    @property
    def prefix(self) -> str:
        """Return the beginning of the subjects of requests at a nats-server."""
        return f"$JS.{self.domain}.API." if self.domain else PREFIX

    async def ask_others(self, operation: str, payload: bytes = b"") -> bytes | None:
        """Return another broker's answer to a request; None if nobody responds.

        Raises:
            DisconnectedError: the connection was lost.
        """
        subject = f"{self.prefix}{operation}".encode()
        return await self._link.request(subject, payload) if self._link is not None else None

    async def on_thread(self, function: Callable[..., T], *args: object) -> T:
        """Run what reads files."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, function, *args)

    def take(
        self,
        subject: bytes,
        reply: bytes | None,
        *,
        block: bytes | None,
        payload: bytes,
        link: ApiLink,
    ) -> None:
        """Handle a message below ``$JS.API``; the answer follows later, if it is ours to give."""
        if reply is None:
            return
        call = parse_subject(subject.decode(errors="replace"))
        if not self._answers(call, link):
            return
        request = ApiRequest(call, payload, link, reply)
        if len(self._tasks) >= REQUESTS_MAX:
            self._reply(request, reply, self._rejection(request, INSUFFICIENT))
        elif not _has_level(block):
            self._reply(request, reply, self._rejection(request, API_LEVEL))
        else:
            task = asyncio.create_task(self._answer(request, reply), name="jetstream-request")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    # Who answers

    def _answers(self, call: ApiCall, link: ApiLink) -> bool:
        """Return whether a request is this broker's to answer."""
        if not self.broker.has_lease:
            return False
        if link.is_alone:
            return True
        if call.operation in OF_CONTROLLER:
            return self.broker.is_controller
        try:
            view = self.find(call.stream)
        except StrandlineError:
            return False  # it exists and is not open here: another broker leads it
        return self.broker.is_controller if view is None else view.partitions[0].is_led

    def find(self, name: str) -> JetStreamView | None:
        """Return the stream that clients know by this name, or None.

        Raises:
            UnavailableError: this broker cannot tell now.
        """
        ours, number = split_name(name)
        try:
            return view_of(self.broker.stream(ours), number)
        except UnknownStreamError:
            return None

    def find_quietly(self, name: str) -> JetStreamView | None:
        """Return the stream of this name, or None also if this broker cannot tell now."""
        try:
            return self.find(name)
        except StrandlineError:
            return None  # another broker may tell

    def find_led(self, name: str) -> Partition | None:
        """Return the partition of this name, if this broker leads it."""
        view = self.find_quietly(name)
        partition = view.partitions[0] if view is not None and view.is_exact else None
        return partition if partition is not None and partition.is_led else None

    def view(self, request: ApiRequest) -> JetStreamView:
        """Return the stream of a request, which this broker leads.

        Raises:
            ApiRejection: there is none, or another broker leads it.
            UnavailableError: this broker cannot tell now.
        """
        view = self.find(request.call.stream)
        if view is None:
            reject(STREAM_NOT_FOUND)
        if not view.partitions[0].is_led:
            # Only on a connection that no other broker receives from.
            reject(UNAVAILABLE, "another broker leads the stream; ask at its nats-server")
        return view

    async def caught_up(self, view: JetStreamView) -> None:
        """Wait until everything that was acknowledged is known to be committed here.

        Raises:
            UnavailableError: not in time.
        """
        await wait_until_caught_up(*view.partitions)

    # Answering

    async def _answer(self, request: ApiRequest, reply: bytes) -> None:
        self._reply(request, reply, await self._outcome(request))

    async def _outcome(self, request: ApiRequest) -> ApiReply:
        """Return the answer, whatever happens."""
        try:
            return await self.handlers[request.call.operation](request)
        except ApiRejection as rejection:
            return self._rejection(request, rejection.error)
        except StrandlineError as error:
            return self._rejection(request, api_error(error))
        except Exception:
            logger.exception("a request of the JetStream API failed, please report")
            return self._rejection(request, ApiError(500, 10051, "internal error"))

    def _rejection(self, request: ApiRequest, error: ApiError) -> ApiReply:
        self.errors += 1
        if request.call.operation == "DIRECT.GET":
            return _direct_refusal(error)
        if request.call.operation == "CONSUMER.MSG.NEXT":
            return status("412 Required Api Level" if error is API_LEVEL else "503")
        paging = {}
        if request.call.operation == "STREAM.INFO":
            paging = {"total": 0, "offset": 0, "limit": 0}
        return request.answer(error=error, **paging)

    def _reply(self, request: ApiRequest, to: bytes, reply: ApiReply) -> None:
        self.requests += 1
        if reply.is_silent:
            return
        size = len(reply.payload) + len(reply.block)
        if size > request.link.payload_max:
            text = f"an answer of {size} bytes is more than max_payload"
            reply = self._rejection(request, detailed(INSUFFICIENT, text))
        if reply.block:
            request.link.deliver_with_headers(to, reply.payload, block=reply.block)
        else:
            request.link.deliver(to, reply.payload)
        request.link.flush_answers()


async def _unknown(request: ApiRequest) -> ApiReply:
    """Reject an operation that is not built."""
    return request.answer(error=NOT_SUPPORTED)


def _direct_refusal(error: ApiError) -> ApiReply:
    """Return an error as DIRECT.GET says it: in the status line."""
    match error.err_code:
        case 10037:
            return status("404 Message Not Found")
        case 10059:
            return status("503")
        case 10185:
            return status("412 Required Api Level")
        case 10003 | 10025 if error is not PUBLIC_INBOX:
            detail = error.description.removeprefix(BAD_REQUEST.description)
            is_ours = error.err_code == 10003 and detail.isprintable()  # it is a line of a header
            return status("408 Bad Request" + (detail if is_ours else ""))
    return status(f"{error.code} {error.description}")


def _has_level(block: bytes | None) -> bool:
    """Return whether a request needs no higher level of the API than ours."""
    if block is None or API_LEVEL_HEADER.encode() not in block:
        return True
    try:
        headers = dict(parse_headers(block))
    except InvalidRecordError:
        return False
    value = headers.get(API_LEVEL_HEADER, b"0")
    return value.isdigit() and len(value) <= DIGITS_MAX and int(value) <= LEVEL_MAX
