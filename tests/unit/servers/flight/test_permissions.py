"""Permissions of actions: each needs exactly the rules in the table."""

from types import SimpleNamespace

import pytest

from strandline.api.admin import ACTIONS
from strandline.broker.access import Access
from strandline.clock import ManualClock
from strandline.config import AuthConfig, BrokerConfig, StreamConfig
from strandline.core.metadata.image import MetadataImage
from strandline.errors import InvalidRequestError, NotAllowedError
from strandline.security.acl import Rule
from strandline.security.policy import ClientCredentials
from strandline.servers.flight.permissions import NEEDS, check_action
from strandline.servers.required_permissions import needs_of_stream
from strandline.testing.action_bodies import BODIES

OWNERS = {"app": 0}
"""The producer ids of the bodies are those of ``app``."""


def caller(*rules: Rule):
    """Principal ``app``, allowed what some rules say."""
    image = MetadataImage(rules=rules, producer_owners=OWNERS)
    broker = SimpleNamespace(image=image, clock=ManualClock())
    config = BrokerConfig(auth=AuthConfig(enabled=True))
    return Access(config, broker).identify(ClientCredentials(None, "app"))


def rules_for(needs) -> list[Rule]:
    """One rule for each need, by its first operation."""
    return [
        Rule("app", need.operations[0], need.resource.kind, need.resource.name or "*")
        for need in needs
    ]


ELSEWHERE = [
    *(Rule("app", operation, "stream", "other*") for operation in ("read", "publish", "admin")),
    *(Rule("app", operation, "group", "other*") for operation in ("group", "admin")),
    *(Rule("app", operation, "subject", "other.>") for operation in ("read", "publish")),
]


def test_every_action_has_needs_and_a_body_to_try_them_with():
    """An action that is added without saying who may run it cannot be forgotten."""
    assert set(BODIES) == set(NEEDS) == set(ACTIONS)


@pytest.mark.parametrize("name", sorted(ACTIONS))
def test_an_action_is_refused_if_any_need_is_missing(name):
    """Whoever has every right elsewhere, and here all but one, is refused."""
    needs = list(NEEDS[name](BODIES[name]))
    wanted = rules_for(needs)
    for left_out in range(len(wanted)):
        rules = ELSEWHERE + [rule for at, rule in enumerate(wanted) if at != left_out]
        with pytest.raises(NotAllowedError):
            check_action(caller(*rules), name, BODIES[name])
    check_action(caller(*ELSEWHERE, *wanted), name, BODIES[name])


@pytest.mark.parametrize("name", sorted(ACTIONS))
def test_no_action_is_for_those_whom_no_rule_names(name):
    """A verified name is not enough, not even to list what there is."""
    with pytest.raises(NotAllowedError):
        check_action(caller(), name, BODIES[name])


@pytest.mark.parametrize("name", sorted(name for name in ACTIONS if BODIES[name]))
def test_a_body_that_is_none_is_an_error_and_no_way_around(name):
    """A request that cannot be decoded is refused."""
    if not list(NEEDS[name](BODIES[name])):
        return
    with pytest.raises(InvalidRequestError):
        check_action(caller(*ELSEWHERE), name, b"{")


@pytest.mark.parametrize(
    ("config", "subjects"),
    [
        ({}, ["s"]),
        ({"subject": "a.>", "partitions": 3}, ["a.>"]),
        ({"subject": "a", "partitions": 3}, ["a", "a.*"]),
        ({"subject": "a", "partitions": 3, "partition_by": "key"}, ["a"]),
    ],
)
def test_a_new_stream_needs_all_that_it_would_record(config, subjects):
    """Partitions by suffix record what lies below the subject, too."""
    made = StreamConfig(**{"name": "s", "subject": "s", **config})
    found = [need.resource.name for need in needs_of_stream(made) if need.operations == ("read",)]
    assert found == subjects


def test_to_share_a_queue_group_needs_its_name():
    """Whoever takes part takes records from the others."""
    made = StreamConfig(name="s", subject="s", queue_group="q")
    assert [n.resource.name for n in needs_of_stream(made) if n.resource.kind == "group"] == ["q"]
