"""Permissions of actions: each needs exactly the rules in the table."""

from types import SimpleNamespace

import pytest

from strandline.api.commands import COMMANDS
from strandline.api.required_permissions import needs_of_stream
from strandline.broker.access import Access
from strandline.clock import ManualClock
from strandline.config import AuthConfig, BrokerConfig, StreamConfig
from strandline.core.metadata.image import MetadataImage
from strandline.errors import InvalidRequestError, NotAllowedError
from strandline.security.acl import Rule
from strandline.security.policy import ClientCredentials
from strandline.servers.flight.commands import allowed_request
from tests.kit.admin_requests import BODIES

OWNERS = {"app": 0}
"""The producer ids of the bodies are those of ``app``."""


def caller(*rules: Rule):
    """Principal ``app``, with some rules."""
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


def needs_of(name):
    """Return the required permissions of the kit's body."""
    command = COMMANDS[name]
    return list(command.needs(command.decode_request(BODIES[name])))


ELSEWHERE = [
    *(Rule("app", operation, "stream", "other*") for operation in ("read", "publish", "admin")),
    *(Rule("app", operation, "group", "other*") for operation in ("group", "admin")),
    *(Rule("app", operation, "subject", "other.>") for operation in ("read", "publish")),
]


def test_every_command_has_a_body_to_try_it_with():
    """A new action without declared permissions fails here."""
    assert set(BODIES) == set(COMMANDS)


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_an_action_is_rejected_if_any_need_is_missing(name):
    """A caller that lacks one permission is rejected, even with all others."""
    needs = needs_of(name)
    wanted = rules_for(needs)
    for left_out in range(len(wanted)):
        rules = ELSEWHERE + [rule for at, rule in enumerate(wanted) if at != left_out]
        with pytest.raises(NotAllowedError):
            allowed_request(caller(*rules), COMMANDS[name], BODIES[name])
    allowed_request(caller(*ELSEWHERE, *wanted), COMMANDS[name], BODIES[name])


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_no_action_is_for_those_whom_no_rule_names(name):
    """Authentication alone does not even allow listing."""
    with pytest.raises(NotAllowedError):
        allowed_request(caller(), COMMANDS[name], BODIES[name])


@pytest.mark.parametrize("name", sorted(name for name in COMMANDS if BODIES[name]))
def test_a_body_that_is_none_is_an_error_and_no_way_around(name):
    """A request that cannot be decoded is rejected."""
    if not needs_of(name):
        return
    with pytest.raises(InvalidRequestError):
        allowed_request(caller(*ELSEWHERE), COMMANDS[name], b"{")


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
    """Partitions by suffix also store the subjects below."""
    made = StreamConfig(**{"name": "s", "subject": "s", **config})
    found = [need.resource.name for need in needs_of_stream(made) if need.operations == ("read",)]
    assert found == subjects


def test_to_share_a_queue_group_needs_its_name():
    """A new member takes records from the others."""
    made = StreamConfig(name="s", subject="s", queue_group="q")
    assert [n.resource.name for n in needs_of_stream(made) if n.resource.kind == "group"] == ["q"]
