"""The subjects of inboxes, and the subscriptions of one client at the ingest listener.

Rules: a reply goes to one subscription: one of exactly its subject if there is one, then
    ``prefix.*``,
then any other pattern. The forms that clients use (``_INBOX.x`` and ``_INBOX.x.*``) cost one lookup
in a dictionary. Other patterns are tried one by one, so their number is limited. Pure.
"""

from collections.abc import Sequence
from itertools import cycle, islice
from typing import Final
from urllib.parse import quote

from strandline.errors import InvalidSubjectError
from strandline.record.subjects import SUBJECT_BYTES_MAX, subject_matches, validate_subject

INBOX_PREFIX: Final = "_INBOX."
"""Inboxes that, with access control, every principal may receive."""
PRIVATE_PREFIX: Final = "_INBOX_PRIVATE."
"""Inboxes that, with access control, only one principal may receive: the next token names it."""
SUBSCRIPTIONS_MAX: Final = 4096
PATTERNS_MAX: Final = 4
"""The most subscriptions that are neither plain subjects nor ``prefix.*``."""


def private_inbox(principal: str) -> str:
    """Return the inbox prefix of a principal, with which its clients must be configured.

    The name becomes one token: a dot in it would put it below the inbox of another principal.
    """
    return PRIVATE_PREFIX + quote(principal, safe="").replace(".", "%2E")


def is_private(subject: bytes) -> bool:
    """Return whether only one principal may receive messages on a subject."""
    return subject.startswith(PRIVATE_PREFIX.encode())


def inbox_pattern(subject: bytes) -> str:
    """Return the pattern of a subscription at the ingest listener, checked.

    Raises:
        InvalidSubjectError: the subject is invalid, or not an inbox.
    """
    try:
        pattern = subject.decode()
        validate_subject(pattern, wildcards=True)
    except (InvalidSubjectError, UnicodeDecodeError) as error:
        raise InvalidSubjectError("Invalid Subject") from error
    if not pattern.startswith((INBOX_PREFIX, PRIVATE_PREFIX)):
        raise InvalidSubjectError(
            f'Permissions Violation for Subscription to "{pattern}": this listener takes '
            f"publishes and delivers replies below {INBOX_PREFIX} and {PRIVATE_PREFIX}; "
            "subscribe at nats-server"
        )
    return pattern


class Inbox:
    """A subscription: its subject or pattern, and its sid."""

    __slots__ = ("pattern", "remaining", "sid")

    def __init__(self, pattern: str, sid: bytes) -> None:
        self.pattern = pattern
        self.sid = sid
        self.remaining = 0
        """Deliveries until it ends by itself; 0 means that it does not."""


class Inboxes:
    """The subscriptions of one connection; the hot path reads ``by_prefix`` directly."""

    def __init__(self) -> None:
        self.by_prefix: dict[bytes, bytes] = {}
        """Prefix of ``prefix.*`` → sid; only subscriptions without a limit."""
        self._by_sid: dict[bytes, Inbox] = {}
        self._plain: dict[str, Inbox] = {}
        self._patterns: dict[bytes, Inbox] = {}

    def __len__(self) -> int:
        return len(self._by_sid)

    def add(self, pattern: str, sid: bytes) -> bool:
        """Subscribe; return False if there are too many. A sid in use is replaced.

        Args:
            pattern: a valid subject, perhaps with wildcards.
            sid: the client's id for the subscription.
        """
        self.remove(sid)
        prefix, _, last = pattern.rpartition(".")
        is_plain = "*" not in pattern and ">" not in pattern
        is_prefix = last == "*" and prefix != "" and "*" not in prefix
        full = len(self._by_sid) >= SUBSCRIPTIONS_MAX
        if full or not (is_plain or is_prefix or len(self._patterns) < PATTERNS_MAX):
            return False
        inbox = self._by_sid[sid] = Inbox(pattern, sid)
        if is_plain:
            self._plain[pattern] = inbox
        elif is_prefix:
            self.by_prefix[prefix.encode()] = sid
        else:
            self._patterns[sid] = inbox
        return True

    def remove(self, sid: bytes) -> None:
        """Unsubscribe; an unknown sid is ignored."""
        inbox = self._by_sid.pop(sid, None)
        if inbox is None:
            return
        self._patterns.pop(sid, None)
        if self._plain.get(inbox.pattern) is inbox:
            del self._plain[inbox.pattern]
        self._forget_prefix(inbox)

    def limit(self, sid: bytes, deliveries_max: int) -> None:
        """Unsubscribe after ``deliveries_max`` more deliveries.

        Only ``PATTERNS_MAX`` limited subscriptions of the form ``prefix.*`` are possible, because
        deliveries to them must be counted on the slow path; further limits are ignored. Clients
        set limits for plain inboxes only.
        """
        inbox = self._by_sid.get(sid)
        if inbox is None:
            return
        inbox.remaining = deliveries_max
        if len(self._patterns) < PATTERNS_MAX and self._forget_prefix(inbox):
            # From now on its deliveries must be counted, which only the slow path does.
            self._patterns[sid] = inbox

    def has(self, reply: bytes) -> bool:
        """Return whether a subscription receives a reply."""
        if reply.rpartition(b".")[0] in self.by_prefix:
            return True
        subject = reply.decode(errors="replace")
        return subject in self._plain or any(
            _matches(each.pattern, subject) for each in self._patterns.values()
        )

    def sid_for(self, reply: bytes) -> bytes | None:
        """Return the sid of the subscription that receives a reply, or None; count the delivery."""
        sid = self.by_prefix.get(reply.rpartition(b".")[0])
        if sid is not None and not self._plain:
            return sid
        if len(reply) > SUBJECT_BYTES_MAX:
            return sid
        subject = reply.decode(errors="replace")
        inbox = self._plain.get(subject)
        if inbox is None:
            if sid is not None:
                return sid
            inbox = next(
                (each for each in self._patterns.values() if _matches(each.pattern, subject)), None
            )
        if inbox is None:
            return None
        if inbox.remaining:
            inbox.remaining -= 1
            if inbox.remaining == 0:
                self.remove(inbox.sid)
        return inbox.sid

    def sids_for(self, replies: Sequence[bytes | None]) -> list[bytes | None]:
        """Return the sid for each reply, or None; count the deliveries."""
        if not self._plain:
            prefixes = self.by_prefix
            sids = [prefixes.get(reply.rpartition(b".")[0]) for reply in replies if reply]
            if len(sids) == len(replies) and None not in sids:
                return sids
        return [None if reply is None else self.sid_for(reply) for reply in replies]

    def sids_in_turns(self, inboxes: Sequence[bytes], count: int) -> list[bytes | None]:
        """Return the sid, or None, for each of ``count`` messages to inboxes in turns."""
        sids = self.sids_for(inboxes[:count])
        known = [self._by_sid.get(sid) for sid in sids if sid is not None]
        if len(known) == len(sids) and all(
            each is not None and not each.remaining for each in known
        ):
            return list(islice(cycle(sids), count))
        turns = islice(cycle(inboxes), len(sids), count)
        return sids + [self.sid_for(each) for each in turns]

    def _forget_prefix(self, inbox: Inbox) -> bool:
        """Remove a subscription from ``by_prefix``; return False if it is not there."""
        prefix = inbox.pattern.rpartition(".")[0].encode()
        if self.by_prefix.get(prefix) != inbox.sid:
            return False
        del self.by_prefix[prefix]
        return True


def _matches(pattern: str, subject: str) -> bool:
    """Return whether a pattern matches a subject; here ``>`` matches inboxes, too."""
    if pattern == ">":
        return True
    return subject_matches(pattern, subject)
