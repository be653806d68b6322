"""Access rules: which principal may do which operation on which resources.

Rules only allow: none forbids, so their order does not matter. Everything that no rule allows is
rejected. A rule names resources of one kind by a pattern:

| kind | what it is | pattern | operations |
|---|---|---|---|
| stream | a stream by its name | a name, or a prefix and ``*`` | read, publish, admin |
| subject | a NATS subject | wildcards of NATS | publish; read: to record it in a stream |
| group | a consumer group, cursor, transactional id | as of a stream | group, admin |
| cluster | brokers, rules, tokens | ``*`` | read, admin |

Rules: no operation includes another, with one exception: a principal that may administer the
cluster may do everything, because it could grant itself any rule. A prefix does not match the
broker's own names (``__groups``) unless it begins with ``__`` itself, just as ``>`` does not match
NATS' own subjects. A subject with wildcards is allowed only if every subject that it matches is
allowed (CVE-2026-73499 was a check of only the first key of a range). The table is an immutable
snapshot of the rules.
"""

from collections.abc import Iterable
from typing import Final, Literal, NamedTuple, get_args

import msgspec

from strandline.config import NAME_BYTES_MAX
from strandline.errors import InvalidRequestError
from strandline.record.subjects import subject_covers, validate_subject
from strandline.security.principal import (
    INTERNAL_PREFIX,
    Principal,
    check_user_name,
    is_clean_name,
)

Operation = Literal["read", "publish", "group", "admin"]
Kind = Literal["stream", "subject", "group", "cluster"]

OPERATIONS: Final[dict[Kind, frozenset[Operation]]] = {
    "stream": frozenset({"read", "publish", "admin"}),
    "subject": frozenset({"read", "publish"}),
    "group": frozenset({"group", "admin"}),
    "cluster": frozenset({"read", "admin"}),
}
"""The operations of each kind."""
ANYTHING: Final = "*"
"""The pattern that stands for all names of a kind, and for the cluster."""


class Resource(NamedTuple):
    """A resource: something that an operation is applied to."""

    kind: Kind
    name: str
    """The name; of a subject also a pattern, which stands for all subjects that it matches."""

    def __str__(self) -> str:
        return f"{self.kind} {self.name!r}" if self.name else self.kind


CLUSTER: Final = Resource("cluster", "")


class Rule(msgspec.Struct, frozen=True, array_like=True):
    """A rule that allows a principal an operation on the resources of a pattern."""

    principal: str
    operation: Operation
    kind: Kind
    pattern: str

    def __str__(self) -> str:
        return f"{self.principal} may {self.operation} {self.kind} {self.pattern}"


def check_rule(rule: Rule) -> None:
    """Reject a rule that cannot have the effect that its text suggests.

    Raises:
        InvalidRequestError: the rule is wrong; the message says what to write instead.
        InvalidSubjectError: the pattern of a subject is malformed.
    """
    check_user_name(rule.principal)
    if rule.operation not in get_args(Operation) or rule.kind not in OPERATIONS:
        raise InvalidRequestError(
            f"no rule: {rule.operation!r} on {rule.kind!r}; operations are "
            f"{', '.join(get_args(Operation))}, kinds {', '.join(OPERATIONS)}"
        )
    if rule.operation not in OPERATIONS[rule.kind]:
        known = ", ".join(sorted(OPERATIONS[rule.kind]))
        raise InvalidRequestError(
            f"there is no {rule.operation!r} of a {rule.kind}; there is: {known}"
        )
    if rule.kind == "subject":
        validate_subject(rule.pattern, wildcards=True)
    elif rule.kind == "cluster":
        if rule.pattern != ANYTHING:
            raise InvalidRequestError(
                f"the pattern of kind cluster must be '*', got {rule.pattern[:NAME_BYTES_MAX]!r}"
            )
    else:
        _check_name_pattern(rule.pattern)


def _check_name_pattern(pattern: str) -> None:
    """Reject a ``*`` that is not at the end, where it would be no wildcard."""
    if not is_clean_name(pattern) or ANYTHING in pattern[:-1]:
        raise InvalidRequestError(
            f"{pattern[:NAME_BYTES_MAX]!r} is not a name pattern: write a name, or the "
            "beginning of one and '*'"
        )


class _Patterns:
    """The patterns of one kind on which a principal may do one operation."""

    __slots__ = ("internal_prefixes", "names", "prefixes")

    def __init__(self, patterns: Iterable[str]) -> None:
        patterns = tuple(patterns)
        self.names = frozenset(p for p in patterns if not p.endswith(ANYTHING))
        prefixes = [p.removesuffix(ANYTHING) for p in patterns if p.endswith(ANYTHING)]
        self.prefixes = tuple(prefixes)
        self.internal_prefixes = tuple(p for p in prefixes if p.startswith(INTERNAL_PREFIX))

    def allows(self, name: str) -> bool:
        is_internal = name.startswith(INTERNAL_PREFIX)
        prefixes = self.internal_prefixes if is_internal else self.prefixes
        return name in self.names or (bool(name) and name.startswith(prefixes))


_Key = tuple[str, Operation, Kind]


class Acls:
    """A snapshot of the rules, indexed for decisions; immutable.

    Args:
        rules: the rules, each once; they were checked when they were created.
    """

    def __init__(self, rules: Iterable[Rule] = ()) -> None:
        self.rules = tuple(rules)
        by_key: dict[_Key, list[str]] = {}
        for rule in self.rules:
            key = (rule.principal, rule.operation, rule.kind)
            by_key.setdefault(key, []).append(rule.pattern)
        self._patterns = {key: tuple(patterns) for key, patterns in by_key.items()}
        self._names = {
            key: _Patterns(patterns)
            for key, patterns in by_key.items()
            if key[2] in ("stream", "group")
        }
        self._known = frozenset(rule.principal for rule in self.rules)

    def allows(self, principal: Principal, operation: Operation, resource: Resource) -> bool:
        """Return whether a rule allows the operation."""
        name = principal.name
        if self.is_admin(principal):
            return True
        if resource.kind == "subject":
            patterns = self._patterns.get((name, operation, "subject"), ())
            return any(subject_covers(pattern, resource.name) for pattern in patterns)
        if resource.kind == "cluster":
            return (name, operation, "cluster") in self._patterns
        names = self._names.get((name, operation, resource.kind))
        return names is not None and names.allows(resource.name)

    def is_admin(self, principal: Principal) -> bool:
        """Return whether the principal may administer the cluster, and so do everything."""
        return (principal.name, "admin", "cluster") in self._patterns

    def knows(self, principal: Principal) -> bool:
        """Return whether any rule names the principal; if none does, it may do nothing."""
        return principal.name in self._known

    def patterns(self, principal: Principal, operation: Operation, kind: Kind) -> tuple[str, ...]:
        """Return the patterns on which a principal may do an operation; for an admin, all."""
        if self.is_admin(principal):
            return (">",) if kind == "subject" else (ANYTHING,)
        return self._patterns.get((principal.name, operation, kind), ())
