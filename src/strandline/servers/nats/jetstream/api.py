"""The JetStream API of one broker: which broker answers a request, and how.

Rules:
- In a cluster every broker receives every request, and one answers. The controller answers requests
  about all streams, creations and deletions, and requests for unknown streams. Other requests are
  answered by the leader of the stream's partition, or of the first one if it has several. A broker
  that has lost contact with its cluster does not answer. Without a leader no broker answers, and
  clients retry.
- A leader's answer covers everything that was acknowledged before the request.
- A request without a reply subject is ignored.
- Files are read on a pool of threads. The number of requests in progress is limited, and further
  ones are answered with an error.
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
"""The limit of requests in progress."""
THREADS: Final = 4
PEER_TIMEOUT_S: Final = 2.0
OF_CONTROLLER: Final = frozenset(
    ("", "INFO", "STREAM.NAMES", "STREAM.LIST", "STREAM.CREATE", "STREAM.DELETE")
)
"""The operations that the controller answers."""
T = TypeVar("T")
RequestT = TypeVar("RequestT")


class ApiLink(Protocol):
    """The connection over which a request came."""

    @property
    def is_alone(self) -> bool:
        """Whether no other broker receives the requests that come over it."""
        ...

    @property
    def payload_max(self) -> int:
        """The largest message that it carries."""
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
        """Whether clients other than the one that asked could receive an answer."""
        ...

    def receiver(self, inbox: bytes) -> object:
        """Return the token that stands for the receiver of pulled records in ``Receivers``."""
        ...


class ServerApiLink(ApiLink, Protocol):
    """The connection to a nats-server, which also carries acknowledgements of deliveries."""

    async def request(self, subject: bytes, payload: bytes) -> bytes | None:
        """Send a request; return the answer, or None if there are no responders."""
        ...

    def subscribe_consumer_acks(self, stream: str) -> None:
        """Subscribe to the acknowledgements of a stream's consumers."""
        ...

    def unsubscribe_consumer_acks(self, stream: str) -> None:
        """Unsubscribe from the acknowledgements of a stream's consumers."""
        ...


class ApiReply(NamedTuple):
    """The answer to a request."""

    payload: bytes
    block: bytes = b""
    """The header block; empty for none."""
    is_silent: bool = False
    """Whether nothing is sent now, because the answer comes later or as deliveries."""


class ApiRequest(NamedTuple):
    """A request to the API."""

    call: ApiCall
    payload: bytes
    link: ApiLink
    reply: bytes = b""

    def body(self, kind: type[RequestT]) -> RequestT:
        """Return the decoded body; an empty one, or ``null`` as Rust's client sends, has no fields.

        Raises:
            ApiRejection: the body is not of this kind.
        """
        if len(self.payload) > REQUEST_BYTES_MAX:
            reject_json(f"more than {REQUEST_BYTES_MAX} bytes")
        text = self.payload.strip()
        try:
            return msgspec.json.decode(b"{}" if text in (b"", b"null") else text, type=kind)
        except UNDECODABLE as error:
            reject_json(error)

    def answer(self, **fields: Any) -> ApiReply:
        """Return an answer with the given fields, without those that are UNSET."""
        said = {name: value for name, value in fields.items() if value is not msgspec.UNSET}
        return ApiReply(msgspec.json.encode({"type": self.call.answer_type, **said}))


Handler = Callable[[ApiRequest], Awaitable[ApiReply]]


ConsumerAckHandler = Callable[[Sequence[Message], ApiLink], None]
"""A function that handles acknowledgements of deliveries that arrived together."""


def _ignore_consumer_acks(messages: Sequence[Message], link: ApiLink) -> None:
    """Do nothing: without consumers there is nothing to acknowledge."""


def status(line: str, *headers: tuple[str, object]) -> ApiReply:
    """Return an answer without a payload, only with a status line and headers."""
    lines = [VERSION_LINE + b" " + line.encode()]
    lines += (f"{name}: {value}".encode() for name, value in headers)
    return ApiReply(b"", b"\r\n".join((*lines, b"", b"")))


class JetStreamApi:
    """The API of one broker, for any number of connections.

    Args:
        broker: the broker.
        domain: the JetStream domain that requests name; empty for none.
    """

    def __init__(self, broker: JetStreamPort, domain: str = "") -> None:
        self.broker = broker
        self.domain = domain
        self.handlers: dict[str, Handler] = {"": _unknown}
        self._handle_consumer_acks: ConsumerAckHandler = _ignore_consumer_acks
        self._link: ServerApiLink | None = None
        self._followed: set[str] = set()
        """The streams to whose consumers' acknowledgements this broker subscribes."""
        self.requests = self.errors = 0
        """The numbers of requests and of errors answered by this broker."""
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="jetstream")
        self._tasks: set[asyncio.Task[None]] = set()

    async def stop(self) -> None:
        """Stop answering requests."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._pool.shutdown(wait=False, cancel_futures=True)

    # Acknowledgements of deliveries

    def on_consumer_acks(self, handler: ConsumerAckHandler) -> None:
        """Set the handler of acknowledgements."""
        self._handle_consumer_acks = handler

    def take_consumer_acks(self, messages: Sequence[Message], link: ApiLink) -> None:
        """Handle acknowledgements that arrived together over a connection."""
        self._handle_consumer_acks(messages, link)

    def attach(self, link: ServerApiLink) -> None:
        """Use a new connection to nats-server, and subscribe to acknowledgements over it."""
        self._link = link
        for stream in self._followed:
            link.subscribe_consumer_acks(stream)

    def follow_consumer_acks(self, stream: str) -> None:
        """Start to receive the acknowledgements of a stream's consumers."""
        if stream not in self._followed:
            self._followed.add(stream)
            if self._link is not None:
                self._link.subscribe_consumer_acks(stream)

    def unfollow_consumer_acks(self, stream: str) -> None:
        """Stop to receive them, because another broker leads or the stream has no consumers."""
        if stream in self._followed:
            self._followed.remove(stream)
            if self._link is not None:
                self._link.unsubscribe_consumer_acks(stream)

    @property
    def prefix(self) -> str:
        """The prefix of the subjects of requests at a nats-server."""
        return f"$JS.{self.domain}.API." if self.domain else PREFIX

    async def ask_others(self, operation: str, payload: bytes = b"") -> bytes | None:
        """Send a request to the other brokers; return the answer, or None without responders.

        Raises:
            DisconnectedError: the connection was lost.
        """
        subject = f"{self.prefix}{operation}".encode()
        return await self._link.request(subject, payload) if self._link is not None else None

    async def on_thread(self, function: Callable[..., T], *args: object) -> T:
        """Run a function that reads files, on a thread of the pool."""
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
        """Handle a message below ``$JS.API``; the answer, if this broker gives it, comes later."""
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

    # Which broker answers

    def _answers(self, call: ApiCall, link: ApiLink) -> bool:
        """Return whether this broker must answer a request."""
        if not self.broker.has_lease:
            return False
        if link.is_alone:
            return True
        if call.operation in OF_CONTROLLER:
            return self.broker.is_controller
        try:
            view = self.find(call.stream)
        except StrandlineError:
            return False  # the stream exists, but another broker has it open and leads it
        return self.broker.is_controller if view is None else view.partitions[0].is_led

    def find(self, name: str) -> JetStreamView | None:
        """Return the stream that clients know by a name; None if it does not exist.

        Raises:
            UnavailableError: this broker cannot tell now whether it exists.
        """
        ours, number = split_name(name)
        try:
            return view_of(self.broker.stream(ours), number)
        except UnknownStreamError:
            return None

    def find_or_none(self, name: str) -> JetStreamView | None:
        """Return the stream of a name; None if it does not exist or this broker cannot tell."""
        try:
            return self.find(name)
        except StrandlineError:
            return None  # another broker can perhaps tell

    def find_led(self, name: str) -> Partition | None:
        """Return the partition that clients know by a name; None unless this broker leads it."""
        view = self.find_or_none(name)
        partition = view.partitions[0] if view is not None and view.is_exact else None
        return partition if partition is not None and partition.is_led else None

    def view(self, request: ApiRequest) -> JetStreamView:
        """Return the stream of a request, checked to be led here.

        Raises:
            ApiRejection: the stream does not exist, or another broker leads it.
            UnavailableError: this broker cannot tell now whether it exists.
        """
        view = self.find(request.call.stream)
        if view is None:
            reject(STREAM_NOT_FOUND)
        if not view.partitions[0].is_led:
            # This happens only over a connection whose messages no other broker receives.
            reject(UNAVAILABLE, "another broker leads the stream; ask at its nats-server")
        return view

    async def caught_up(self, view: JetStreamView) -> None:
        """Wait until this broker knows that everything acknowledged so far is committed.

        Raises:
            UnavailableError: it did not learn that in time.
        """
        await wait_until_caught_up(*view.partitions)

    # Answering

    async def _answer(self, request: ApiRequest, reply: bytes) -> None:
        self._reply(request, reply, await self._outcome(request))

    async def _outcome(self, request: ApiRequest) -> ApiReply:
        """Return the answer of the request's handler, or the answer for its error."""
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
    """Reject an operation that is unknown or not built."""
    return request.answer(error=NOT_SUPPORTED)


def _direct_refusal(error: ApiError) -> ApiReply:
    """Return an error in the form of DIRECT.GET, as a status line."""
    match error.err_code:
        case 10037:
            return status("404 Message Not Found")
        case 10059:
            return status("503")
        case 10185:
            return status("412 Required Api Level")
        case 10003 | 10025 if error is not PUBLIC_INBOX:
            detail = error.description.removeprefix(BAD_REQUEST.description)
            is_ours = error.err_code == 10003 and detail.isprintable()  # it goes into a header line
            return status("408 Bad Request" + (detail if is_ours else ""))
    return status(f"{error.code} {error.description}")


def _has_level(block: bytes | None) -> bool:
    """Return whether this API has the level that a request requires."""
    if block is None or API_LEVEL_HEADER.encode() not in block:
        return True
    try:
        headers = dict(parse_headers(block))
    except InvalidRecordError:
        return False
    value = headers.get(API_LEVEL_HEADER, b"0")
    return value.isdigit() and len(value) <= DIGITS_MAX and int(value) <= LEVEL_MAX
