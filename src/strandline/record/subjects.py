"""NATS subjects: validity, matching with patterns, and the targets of a published subject.

Rules: a subject is dot-separated tokens, none empty and none with white space; in a pattern ``*``
stands for one token and a final ``>`` for one or more. A pattern whose first token is a wildcard
does not match the reserved subjects (``_INBOX.…``, ``_INBOX_PRIVATE.…``, ``$…``), so that a stream
bound to ``>`` does not store its own acknowledgements. Pure: must not know streams or connections.
"""

import itertools
import re
from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar

from strandline.errors import InvalidSubjectError

SUBJECT_BYTES_MAX = 1024
RESERVED_FIRST_TOKEN = re.compile(r"_INBOX(_PRIVATE)?$|\$")
_FORBIDDEN = re.compile(r"[\x00-\x20\x7f]")

TargetT = TypeVar("TargetT")
_Entries = tuple[tuple[int, TargetT], ...]
"""Targets, each with its number in the order of addition."""


def validate_subject(subject: str, *, wildcards: bool = False) -> None:
    """Check a subject to publish to or, with ``wildcards``, a pattern.

    Raises:
        InvalidSubjectError: the subject is malformed; the message says how.
    """
    if not isinstance(subject, str):
        raise InvalidSubjectError(f"a subject is text, got {str(subject)[:80]!r}")
    shown = subject if len(subject) <= 80 else subject[:80] + "…"
    if not subject:
        raise InvalidSubjectError("the subject is empty; write one such as orders.paris")
    # Each character is at least one byte: this bounds the work of encoding.
    if len(subject) > SUBJECT_BYTES_MAX or len(_encoded(subject)) > SUBJECT_BYTES_MAX:
        raise InvalidSubjectError(
            f"subject '{shown}' is longer than {SUBJECT_BYTES_MAX} bytes, the limit; shorten it"
        )
    if _FORBIDDEN.search(subject):
        raise InvalidSubjectError(
            f"subject {shown!r} contains white space or a control character; leave it out, or "
            "replace it, such as by '_'"
        )
    tokens = subject.split(".")
    if "" in tokens:
        raise InvalidSubjectError(
            f"subject '{shown}' has an empty token (a dot too many); leave the dot out"
        )
    if "*" in subject or ">" in subject:
        _check_wildcards(shown, tokens, allowed=wildcards)


def _encoded(subject: str) -> bytes:
    try:
        return subject.encode()
    except UnicodeEncodeError as error:
        raise InvalidSubjectError(
            f"the subject {subject[:80]!a} has half of a character, which UTF-8 cannot encode"
        ) from error


def _check_wildcards(shown: str, tokens: list[str], *, allowed: bool) -> None:
    """Check the ``*`` and ``>`` of a subject that has wildcards."""
    if not allowed:
        raise InvalidSubjectError(f"subject '{shown}' contains a wildcard; publish to a plain one")
    if ">" in tokens[:-1]:
        raise InvalidSubjectError(
            f"subject '{shown}': '>' may only be the last token; write '*' for one token within"
        )
    for token in tokens:
        if len(token) > 1 and ("*" in token or ">" in token):
            raise InvalidSubjectError(
                f"subject '{shown}': a wildcard must be a whole token, not part of '{token}'"
            )


def is_reserved(subject: str) -> bool:
    """Whether the subject belongs to NATS itself (an inbox, or ``$…``)."""
    return RESERVED_FIRST_TOKEN.match(subject.partition(".")[0]) is not None


def has_wildcard(pattern: str) -> bool:
    """Whether a valid pattern may match more than one subject."""
    return "*" in pattern or ">" in pattern


def subject_matches(pattern: str, subject: str) -> bool:
    """Whether a valid pattern matches a plain subject."""
    if not has_wildcard(pattern):
        return pattern == subject
    if pattern[0] in "*>" and is_reserved(subject):
        return False
    if pattern[-2:] == ".>" and "*" not in pattern:
        return subject.startswith(pattern[:-1])  # the fast path of most patterns
    wanted, tokens = pattern.split("."), subject.split(".")
    if wanted[-1] == ">":
        wanted = wanted[:-1]
        if len(tokens) <= len(wanted):
            return False
        tokens = tokens[: len(wanted)]
    return len(wanted) == len(tokens) and all(
        want in ("*", token) for want, token in zip(wanted, tokens, strict=True)
    )


def subjects_overlap(one: str, other: str) -> bool:
    """Return whether a subject exists that both valid patterns match."""
    for first, second in ((one, other), (other, one)):
        if first[0] in "*>" and is_reserved(second):
            return False
    ours, theirs = one.split("."), other.split(".")
    for mine, its in zip(ours, theirs, strict=False):
        if ">" in (mine, its):
            return True
        if mine != its and "*" not in (mine, its):
            return False
    return len(ours) == len(theirs)


def subject_covers(pattern: str, asked: str) -> bool:
    """Whether ``pattern`` matches every subject that ``asked`` matches.

    Both are valid; ``asked`` is a pattern or a plain subject.
    """
    if not has_wildcard(asked):
        return subject_matches(pattern, asked)
    if pattern[0] in "*>" and is_reserved(asked):
        return False
    wanted, tokens = pattern.split("."), asked.split(".")
    for place, want in enumerate(wanted):
        if want == ">":
            return len(tokens) > place
        if place >= len(tokens) or tokens[place] == ">":
            return False
        if want not in ("*", tokens[place]):
            return False
    return len(wanted) == len(tokens)


class _Node(Generic[TargetT]):
    """A node of the trie of wildcard patterns."""

    __slots__ = ("children", "ending", "open_ending")

    def __init__(self) -> None:
        self.children: dict[str, _Node[TargetT]] = {}
        # These tuples are replaced, never changed in place: other threads may be reading them.
        self.ending: _Entries[TargetT] = ()
        """Targets of patterns that end here."""
        self.open_ending: _Entries[TargetT] = ()
        """Targets of patterns that end here with ``>``."""

    @property
    def is_empty(self) -> bool:
        """Whether no pattern passes or ends here."""
        return not (self.children or self.ending or self.open_ending)


class SubjectRouter(Generic[TargetT]):
    """A lookup from a published subject to its targets.

    A lookup costs one dictionary access for plain patterns and, for wildcard ones, at most the
    number of patterns times the number of tokens, usually far less. Changes are for one thread,
    lookups for any.
    """

    def __init__(self, bindings: Iterable[tuple[str, TargetT]] = ()) -> None:
        self._plain: dict[str, _Entries[TargetT]] = {}
        self._root: _Node[TargetT] = _Node()
        self._orders = itertools.count()
        for pattern, target in bindings:
            self.add(pattern, target)

    def add(self, pattern: str, target: TargetT) -> None:
        """Add a target of a valid pattern."""
        entry = (next(self._orders), target)
        if not has_wildcard(pattern):
            self._plain[pattern] = (*self._plain.get(pattern, ()), entry)
            return
        node, is_open = self._root, pattern.endswith(">")
        for token in pattern.split(".")[: -1 if is_open else None]:
            node = node.children.setdefault(token, _Node())
        if is_open:
            node.open_ending = (*node.open_ending, entry)
        else:
            node.ending = (*node.ending, entry)

    def remove(self, pattern: str, target: TargetT) -> None:
        """Remove a target that was added with this pattern."""
        if not has_wildcard(pattern):
            self._plain[pattern] = _without(self._plain[pattern], target)
            if not self._plain[pattern]:
                del self._plain[pattern]
            return
        node, is_open = self._root, pattern.endswith(">")
        path: list[tuple[_Node[TargetT], str]] = []
        for token in pattern.split(".")[: -1 if is_open else None]:
            path.append((node, token))
            node = node.children[token]
        if is_open:
            node.open_ending = _without(node.open_ending, target)
        else:
            node.ending = _without(node.ending, target)
        for parent, token in reversed(path):
            if parent.children[token].is_empty:
                del parent.children[token]

    def match(self, subject: str) -> list[TargetT]:
        """Return the targets of patterns that match a plain subject, in the order of addition."""
        found = list(self._plain.get(subject, ()))
        found += self._match_wildcards(subject)
        found.sort(key=lambda entry: entry[0])
        return [target for _, target in found]

    def overlapping(self, pattern: str) -> list[TargetT]:
        """Return the targets of patterns that overlap with this one."""
        if not has_wildcard(pattern):
            return self.match(pattern)
        tokens = pattern.split(".")
        found = list(_overlapping(self._root, tokens))
        # Plain subjects are not in the trie, where each would need memory for every token.
        for subject, entries in list(self._plain.items()):
            if subject_matches(pattern, subject):
                found += entries
        found.sort(key=lambda entry: entry[0])
        return [target for _, target in found]

    def _match_wildcards(self, subject: str) -> list[tuple[int, TargetT]]:
        found: list[tuple[int, TargetT]] = []
        level = [self._root]
        wildcard_allowed = not is_reserved(subject)
        for token in subject.split("."):
            following: list[_Node[TargetT]] = []
            for node in level:
                if wildcard_allowed:
                    found += node.open_ending
                    if star := node.children.get("*"):
                        following.append(star)
                if child := node.children.get(token):
                    following.append(child)
            wildcard_allowed = True
            level = following
            if not level:
                return found
        for node in level:
            found += node.ending
        return found


def _without(entries: _Entries[TargetT], target: TargetT) -> _Entries[TargetT]:
    return tuple(entry for entry in entries if entry[1] is not target)


def _overlapping(
    node: _Node[TargetT], tokens: list[str], place: int = 0
) -> Iterator[tuple[int, TargetT]]:
    """Yield the entries below a node whose patterns overlap with ``tokens`` from ``place`` on."""
    if place == len(tokens):
        yield from node.ending
        return
    wanted = tokens[place]
    # No leading wildcard matches the first token of a reserved subject.
    is_first_reserved = place == 0 and is_reserved(wanted)
    if not is_first_reserved:
        yield from node.open_ending
    for name, child in list(node.children.items()):
        if place == 0 and wanted in ("*", ">") and is_reserved(name):
            continue
        if wanted == ">":
            yield from _below(child)
        elif name == wanted or (not is_first_reserved and "*" in (name, wanted)):
            yield from _overlapping(child, tokens, place + 1)


def _below(node: _Node[TargetT]) -> Iterator[tuple[int, TargetT]]:
    """Yield all entries at a node and below."""
    yield from node.ending
    yield from node.open_ending
    for child in list(node.children.values()):
        yield from _below(child)
