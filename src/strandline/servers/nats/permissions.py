"""The permissions of a nats-server client, derived from the access rules.

A rule about subjects applies to messages: ``publish subject P`` allows publishing to P, and ``read
subject P`` allows receiving messages on P. A rule about streams applies to requests of the
JetStream API, whose subjects name the stream. It does not apply to publishes, because a message
goes to every stream bound to its subject.

nats-server does not report who sent a request. So if the body of a request could ask for more than
its subject shows, the request needs permission for all of that: creating a stream can record any
subject, and listing streams shows all of them. A rule whose pattern is the beginning of a name
cannot be expressed as a NATS subject, and allows no API requests.

The broker can neither slow down clients of nats-server nor count their messages, because the server
does not identify their sender. So a principal with a quota of bytes or requests may not do at
nats-server what the quota limits; it uses the ingest listener or Arrow Flight.

Rules: every client may receive replies, and what is sent to its own private inbox. Only the broker
may send to either, because receivers trust it. Only an administrator may subscribe to a pattern
that matches private inboxes, such as ``>``. No client may receive requests. A rule about subjects
whose pattern covers NATS' own subjects does not allow these: they are denied, and a denial wins. So
such a principal has no JetStream API, unless it may administer the cluster. Pure.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from strandline.record.subjects import has_wildcard
from strandline.security.acl import ANYTHING, Acls, Operation
from strandline.security.principal import Principal
from strandline.security.quota import Quota
from strandline.servers.nats.accounts import INBOXES, PRIVATE_INBOXES, SYSTEM_SUBJECTS
from strandline.servers.nats.callout import Permissions
from strandline.servers.nats.inboxes import private_inbox
from strandline.servers.nats.jetstream.subjects import (
    ACK_PREFIX,
    FLOW_PREFIX,
    GROUP_PREFIX,
    PREFIX,
)
from strandline.servers.nats.jetstream.views import names_of

JETSTREAM: Final = "$JS.>"
BUCKETS: Final = "$KV.>"
OF_NATS: Final = (SYSTEM_SUBJECTS, JETSTREAM, BUCKETS, "$O.>", "$MQTT.>")
EVERY_SUBJECT: Final = ">"
KNOWING: Final[tuple[Operation, ...]] = ("read", "publish", "admin")
"""Operations of which each lets a principal see that a stream exists."""
OF_READ: Final = (
    "STREAM.MSG.GET.{}",
    "DIRECT.GET.{}",
    "DIRECT.GET.{}.>",
    "CONSUMER.NAMES.{}",
    "CONSUMER.LIST.{}",
)
OF_CONSUMER: Final = (
    "CONSUMER.CREATE.{}.{}",
    "CONSUMER.CREATE.{}.{}.>",
    "CONSUMER.DURABLE.CREATE.{}.{}",
    "CONSUMER.INFO.{}.{}",
    "CONSUMER.DELETE.{}.{}",
    "CONSUMER.PAUSE.{}.{}",
    "CONSUMER.MSG.NEXT.{}.{}",
)
OF_ANY_CONSUMER: Final = "CONSUMER.CREATE.{}"
"""The request for a consumer whose name the broker chooses."""
OF_ADMIN: Final = (
    "STREAM.UPDATE.{}",
    "STREAM.DELETE.{}",
    "STREAM.PURGE.{}",
    "STREAM.MSG.DELETE.{}",
)
OF_CREATE: Final = "STREAM.CREATE.{}"
OF_EVERYBODY: Final = "INFO"
OF_ALL_STREAMS: Final = ("STREAM.NAMES", "STREAM.LIST")


def permissions_of(
    principal: Principal,
    acls: Acls,
    quota: Quota,
    *,
    partitions: Mapping[str, int] | None = None,
) -> Permissions:
    """Return the subjects that a principal may publish to and receive.

    Args:
        principal: the principal.
        acls: the rules.
        quota: the principal's quota.
        partitions: the number of partitions of each stream.
    """
    is_metered = bool(quota.publish_bytes_per_s or quota.requests_per_s)
    publish = () if is_metered else acls.patterns(principal, "publish", "subject")
    is_metered = bool(quota.read_bytes_per_s or quota.requests_per_s)
    read = () if is_metered else acls.patterns(principal, "read", "subject")
    denied, requests = set(OF_NATS), set[str]()
    if acls.is_admin(principal):
        denied -= {JETSTREAM, BUCKETS}
    else:
        # Denials do not suffice: nats-server compares them with a record's own subject.
        read = tuple(pattern for pattern in read if not _reaches_inboxes(pattern))
        if not any(map(_covers_api, publish)):
            denied.discard(JETSTREAM)
            if not is_metered:
                requests = set(_requests(principal, acls, partitions or {}))
    if not any(has_wildcard(pattern.partition(".")[0]) for pattern in publish):
        denied.discard(BUCKETS)  # without wildcards, a rule allows a bucket only by its name
    return Permissions(
        publish=tuple(sorted(set(publish) | requests)),
        publish_not=(INBOXES, PRIVATE_INBOXES, *(each for each in OF_NATS if each in denied)),
        subscribe=(INBOXES, f"{private_inbox(principal.name)}.>", *sorted(set(read))),
        subscribe_not=OF_NATS,
    )


def _covers_api(pattern: str) -> bool:
    """Return whether the pattern of a rule matches subjects of JetStream."""
    first = pattern.partition(".")[0]
    return has_wildcard(first) or first == "$JS"


def _reaches_inboxes(pattern: str) -> bool:
    """Return whether a pattern matches private inboxes, which have three tokens or more."""
    first, *rest = pattern.split(".")
    has_first = has_wildcard(first) or PRIVATE_INBOXES.startswith(f"{first}.")
    return has_first and (len(rest) > 1 or pattern.endswith(">"))


def _requests(principal: Principal, acls: Acls, partitions: Mapping[str, int]) -> Iterator[str]:
    """Yield the requests of the JetStream API that a principal may send."""
    may_record = EVERY_SUBJECT in acls.patterns(principal, "read", "subject")
    knows_all, knows_any = False, False
    groups = acls.patterns(principal, "group", "group")
    for operation in KNOWING:
        for pattern in acls.patterns(principal, operation, "stream"):
            knows_all = knows_all or pattern == ANYTHING
            for token in _tokens(pattern, partitions):
                knows_any = True
                yield f"{PREFIX}STREAM.INFO.{token}"
                subjects = {"read": OF_READ, "admin": OF_ADMIN}.get(operation, ())
                yield from (PREFIX + each.format(token) for each in subjects)
                if operation == "read":
                    yield from _of_consumers(token, groups)
                if operation == "admin" and may_record:
                    yield PREFIX + OF_CREATE.format(token)
    if knows_any:
        yield PREFIX + OF_EVERYBODY
    if knows_all:
        yield from (PREFIX + each for each in OF_ALL_STREAMS)


def _of_consumers(stream: str, groups: tuple[str, ...]) -> Iterator[str]:
    """Yield requests and acknowledgements for a stream's consumers, by the rules about groups."""
    if ANYTHING in groups:
        yield PREFIX + OF_ANY_CONSUMER.format(stream)
    for pattern in groups:
        beginning = f"{GROUP_PREFIX}{stream}/"
        if pattern in (ANYTHING, beginning + ANYTHING):
            consumer = ANYTHING
        elif pattern.startswith(beginning) and not pattern.endswith(ANYTHING):
            consumer = pattern.removeprefix(beginning)
        else:
            continue
        yield from (PREFIX + each.format(stream, consumer) for each in OF_CONSUMER)
        yield f"{ACK_PREFIX}{stream}.{consumer}.>"
        yield f"{FLOW_PREFIX}{stream}.{consumer}.*"


def _tokens(pattern: str, partitions: Mapping[str, int]) -> Iterator[str]:
    """Yield the names that requests use for the streams of a rule."""
    if pattern == ANYTHING:
        yield ANYTHING
    elif not pattern.endswith(ANYTHING):
        yield from names_of(pattern, partitions.get(pattern, 1))
