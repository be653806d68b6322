"""Principals: valid names of certificates and tokens."""

import pytest

from strandline.errors import InvalidRequestError
from strandline.security.principal import (
    ANONYMOUS,
    BOOTSTRAP_ADMIN,
    BROKERS,
    Principal,
    check_user_name,
    is_user_name,
)


@pytest.mark.parametrize("name", ["app", "Alice Smith", "spiffe://here/app", "größe", "a" * 200])
def test_what_a_certificate_may_say_is_a_name(name):
    """Host names, people's names and URIs are names."""
    check_user_name(name)


@pytest.mark.parametrize(
    "name",
    ["", " ", " app", "app\n", "a\x00b", "\ud800", "__admin", "__broker", "a" * 201, "é" * 101],
)
def test_what_could_be_taken_for_another_is_no_name(name):
    """Empty, invisible, too long and reserved names are invalid."""
    assert not is_user_name(name)
    with pytest.raises(InvalidRequestError, match="no name for a principal"):
        check_user_name(name)


def test_nobody_can_claim_to_be_anonymous_or_a_broker():
    """The principals that the broker makes up have names that no user may have."""
    for principal in (ANONYMOUS, BOOTSTRAP_ADMIN, BROKERS):
        assert not is_user_name(principal.name)
    assert ANONYMOUS.is_anonymous
    assert not BOOTSTRAP_ADMIN.is_anonymous


def test_a_principal_is_shown_by_its_name():
    """Messages name the caller, or call it anonymous."""
    assert str(Principal("app")) == "app"
    assert str(ANONYMOUS) == "(anonymous)"
