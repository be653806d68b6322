"""Access rules: valid forms, and their decisions."""

import pytest

from strandline.errors import InvalidRequestError
from strandline.security.acl import CLUSTER, Acls, Resource, Rule, check_rule
from strandline.security.principal import ANONYMOUS, Principal

APP = Principal("app")
ROOT = Principal("root")


def table(*rules: tuple[str, str, str]) -> Acls:
    """Rules of the principal ``app``."""
    return Acls(Rule("app", *rule) for rule in rules)


def test_what_no_rule_allows_is_rejected():
    """An empty table allows nothing, and a rule allows its principal alone."""
    orders = Resource("stream", "orders")
    assert not Acls().allows(APP, "read", orders)
    acls = table(("read", "stream", "orders"))
    assert acls.allows(APP, "read", orders)
    assert not acls.allows(Principal("other"), "read", orders)
    assert not acls.allows(Principal("ap"), "read", orders)
    assert not acls.allows(ANONYMOUS, "read", orders)


@pytest.mark.parametrize(
    ("operation", "kind", "name"),
    [
        ("publish", "stream", "orders"),
        ("admin", "stream", "orders"),
        ("read", "subject", "orders"),
        ("group", "group", "orders"),
        ("read", "stream", "order"),
        ("read", "stream", "orders2"),
        ("read", "cluster", ""),
        ("admin", "cluster", ""),
    ],
)
def test_a_rule_allows_its_operation_on_its_resource(operation, kind, name):
    """Neither another operation, nor another kind, nor a name that looks like it."""
    acls = table(("read", "stream", "orders"))
    assert not acls.allows(APP, operation, Resource(kind, name))


def test_a_trailing_star_stands_for_the_rest_of_a_name():
    """A prefix matches names that begin with it; a lone star matches every name."""
    acls = table(("read", "stream", "eu-*"), ("group", "group", "*"))
    assert acls.allows(APP, "read", Resource("stream", "eu-orders"))
    assert acls.allows(APP, "read", Resource("stream", "eu-"))
    assert not acls.allows(APP, "read", Resource("stream", "eu"))
    assert not acls.allows(APP, "read", Resource("stream", "us-eu-orders"))
    assert acls.allows(APP, "group", Resource("group", "any"))
    assert not acls.allows(APP, "group", Resource("group", ""))


def test_a_prefix_stands_for_no_name_of_the_brokers_own():
    """Permission to read every stream does not include internal ones, unless named."""
    internal = Resource("stream", "__groups")
    assert not table(("read", "stream", "*")).allows(APP, "read", internal)
    assert not table(("read", "stream", "_*")).allows(APP, "read", internal)
    assert table(("read", "stream", "__g*")).allows(APP, "read", internal)
    assert table(("read", "stream", "__groups")).allows(APP, "read", internal)


@pytest.mark.parametrize(
    ("pattern", "asked", "expected"),
    [
        ("orders.*", "orders.eu", True),
        ("orders.*", "orders.eu.paris", False),
        ("orders.>", "orders.eu.paris", True),
        ("orders.>", "orders", False),
        ("orders.>", "orders.*", True),
        ("orders.>", "orders.>", True),
        ("orders.*", "orders.>", False),
        ("orders.eu", "orders.*", False),
        ("orders.*.>", "orders.>", False),
        ("*.eu", "orders.eu", True),
        ("*.eu", "*.*", False),
        (">", ">", True),
        (">", "$SYS.REQ", False),
        (">", "_INBOX.a.*", False),
        ("_INBOX.>", "_INBOX.a.*", True),
    ],
)
def test_a_subject_rule_covers_all_that_is_asked_for(pattern, asked, expected):
    """A wildcard is allowed only if every matching subject is."""
    acls = table(("publish", "subject", pattern))
    assert acls.allows(APP, "publish", Resource("subject", asked)) is expected


def test_who_administers_the_cluster_may_do_everything():
    """An administrator could grant itself any rule anyway."""
    acls = Acls([Rule("root", "admin", "cluster", "*")])
    for resource in (Resource("stream", "s"), Resource("subject", "$SYS.>"), CLUSTER):
        assert acls.allows(ROOT, "read", resource)
    assert acls.allows(ROOT, "group", Resource("group", "g"))
    assert acls.patterns(ROOT, "publish", "subject") == (">",)
    assert acls.patterns(ROOT, "publish", "stream") == ("*",)
    assert not acls.allows(APP, "read", Resource("stream", "s"))


def test_reading_the_cluster_is_not_administering_it():
    """Of operations on the cluster only admin includes others."""
    acls = table(("read", "cluster", "*"))
    assert acls.allows(APP, "read", CLUSTER)
    assert not acls.allows(APP, "admin", CLUSTER)
    assert not acls.allows(APP, "read", Resource("stream", "s"))


def test_a_table_tells_whom_it_names_and_with_which_patterns():
    """Front ends that hand rules on (nats-server's permissions) get the patterns themselves."""
    acls = table(("publish", "subject", "a.>"), ("publish", "subject", "b"))
    assert acls.patterns(APP, "publish", "subject") == ("a.>", "b")
    assert acls.patterns(APP, "read", "subject") == ()
    assert acls.knows(APP)
    assert not acls.knows(ROOT)
    assert not acls.knows(ANONYMOUS)


@pytest.mark.parametrize(
    "rule",
    [
        Rule("app", "read", "stream", "orders"),
        Rule("app", "admin", "stream", "*"),
        Rule("app", "publish", "subject", "orders.*.>"),
        Rule("Alice Smith", "group", "group", "team-*"),
        Rule("app", "admin", "cluster", "*"),
    ],
)
def test_a_rule_that_means_something_is_taken(rule):
    """One of each kind."""
    check_rule(rule)


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (Rule("", "read", "stream", "s"), "no name for a principal"),
        (Rule("__broker", "read", "stream", "s"), "no name for a principal"),
        (Rule("app", "write", "stream", "s"), "operations are"),
        (Rule("app", "read", "stream-like", "s"), "kinds stream"),
        (Rule("app", "group", "stream", "s"), "no 'group' of a stream"),
        (Rule("app", "admin", "subject", "s"), "no 'admin' of a subject"),
        (Rule("app", "read", "group", "g"), "no 'read' of a group"),
        (Rule("app", "read", "stream", ""), "not a name pattern"),
        (Rule("app", "read", "stream", "a*b"), "not a name pattern"),
        (Rule("app", "read", "stream", "**"), "not a name pattern"),
        (Rule("app", "read", "stream", "a\n"), "not a name pattern"),
        (Rule("app", "publish", "subject", "a..b"), "empty token"),
        (Rule("app", "publish", "subject", "a*"), "whole token"),
        (Rule("app", "admin", "cluster", "mine"), "pattern of kind cluster"),
    ],
)
def test_a_rule_that_would_mean_nothing_is_rejected(rule, message):
    """A rule that could never apply, or not as it reads, is an error when it is made."""
    with pytest.raises(InvalidRequestError, match=message):
        check_rule(rule)
