"""The subjects of inboxes, and the subscriptions of one publisher, which exist to receive replies.

Rules: a reply goes to one subscription: an exact match first, then ``prefix.*``, then any other
pattern. The forms that clients use (``_INBOX.x`` and ``_INBOX.x.*``) cost one dictionary lookup.
Other patterns are tried one by one, so their number is limited. Pure.
"""

from collections.abc import Sequence
from itertools import cycle, islice
from typing import Final
from urllib.parse import quote

from strandline.errors import InvalidSubjectError
from strandline.record.subjects import SUBJECT_BYTES_MAX, subject_matches, validate_subject

INBOX_PREFIX: Final = "_INBOX."
"""With access control everybody may receive below it."""
PRIVATE_PREFIX: Final = "_INBOX_PRIVATE."
"""With access control a principal may receive below it and its own name only."""
SUBSCRIPTIONS_MAX: Final = 4096
PATTERNS_MAX: Final = 4
"""Most subscriptions that are neither plain nor ``prefix.*``."""


def private_inbox(principal: str) -> str:
    """Return the inbox prefix of a principal, as clients are configured with it.

    The name becomes one token. With a dot in it, it would be below the inbox of its first part.
    """
    return PRIVATE_PREFIX + quote(principal, safe="").replace(".", "%2E")


def is_private(subject: bytes) -> bool:
    """Return whether only one principal may receive what is sent to a subject."""
    return subject.startswith(PRIVATE_PREFIX.encode())


def inbox_pattern(subject: bytes) -> str:
    """Return the subject of a subscription at the ingest listener.

    Raises:
        InvalidSubjectError: it is invalid, or not of an inbox.
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
    """A subscription."""

    __slots__ = ("pattern", "remaining", "sid")

    def __init__(self, pattern: str, sid: bytes) -> None:
        self.pattern = pattern
        self.sid = sid
        self.remaining = 0
        """Deliveries left before it ends by itself; 0: it does not."""


class Inboxes:
    """The subscriptions of one connection; ``by_prefix`` is public for the hot path to read."""

    def __init__(self) -> None:
        self.by_prefix: dict[bytes, bytes] = {}
        """The reply without its last token → sid; only for unlimited ``prefix.*``."""
        self._by_sid: dict[bytes, Inbox] = {}
        self._plain: dict[str, Inbox] = {}
        self._patterns: dict[bytes, Inbox] = {}

    def __len__(self) -> int:
        return len(self._by_sid)

    def add(self, pattern: str, sid: bytes) -> bool:
        """Subscribe; return False if there are too many. A sid in use is replaced.

        Args:
            pattern: a valid subject, perhaps with wildcards.
            sid: the client's name for it.
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

        A limit on one ``prefix.*`` too many is ignored: deliveries are counted on the slow path,
        which is kept short, and clients limit plain inboxes only.
        """
        inbox = self._by_sid.get(sid)
        if inbox is None:
            return
        inbox.remaining = deliveries_max
        if len(self._patterns) < PATTERNS_MAX and self._forget_prefix(inbox):
            # Its deliveries must be counted from now on, which only the slow path does.
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
        """Return the sid that receives a reply, or None; count the delivery."""
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
        """Return the sid that receives each reply, None for none; count the deliveries."""
        if not self._plain:
            prefixes = self.by_prefix
            sids = [prefixes.get(reply.rpartition(b".")[0]) for reply in replies if reply]
            if len(sids) == len(replies) and None not in sids:
                return sids
        return [None if reply is None else self.sid_for(reply) for reply in replies]

    def sids_in_turns(self, inboxes: Sequence[bytes], count: int) -> list[bytes | None]:
        """Return the sid that receives each of some messages, to inboxes in turns; count them."""
        sids = self.sids_for(inboxes[:count])
        known = [self._by_sid.get(sid) for sid in sids if sid is not None]
        if len(known) == len(sids) and all(
            each is not None and not each.remaining for each in known
        ):
            return list(islice(cycle(sids), count))
        turns = islice(cycle(inboxes), len(sids), count)
        return sids + [self.sid_for(each) for each in turns]

    def _forget_prefix(self, inbox: Inbox) -> bool:
        """Remove an inbox from ``by_prefix``; return False if it was not there."""
        prefix = inbox.pattern.rpartition(".")[0].encode()
        if self.by_prefix.get(prefix) != inbox.sid:
            return False
        del self.by_prefix[prefix]
        return True


def _matches(pattern: str, subject: str) -> bool:
    """Return whether a pattern matches; unlike ``subject_matches``, ``>`` matches inboxes too."""
    if pattern == ">":
        return True
    return subject_matches(pattern, subject)
