"""Rules and tokens as metadata."""

import pytest

from strandline.core.metadata import access
from strandline.core.metadata.apply import apply, apply_entry
from strandline.core.metadata.commands import (
    AddToken,
    Grant,
    Revoke,
    RevokeToken,
    decode_entry,
    encode_entry,
)
from strandline.core.metadata.image import MetadataImage
from strandline.core.metadata.snapshot import decode_image, decode_json, encode_image, encode_json
from strandline.errors import InvalidRequestError
from strandline.security.acl import Rule
from strandline.security.tokens import Token

READ = Rule("app", "read", "stream", "orders")
PUBLISH = Rule("app", "publish", "subject", "orders.>")
TOKEN = Token(id="0123abcd", principal="app", sha256=bytes(range(32)), created_ns=1)


def applied(*commands) -> MetadataImage:
    """The image after some commands."""
    image = MetadataImage()
    for command in commands:
        image = apply(image, decode_entry(encode_entry(command)))
    return image


def test_rules_are_kept_once_and_in_order():
    """Whatever the order of grants, brokers list them alike."""
    one = applied(Grant((READ,)), Grant((PUBLISH, READ)))
    other = applied(Grant((PUBLISH,)), Grant((READ,)))
    assert one.rules == other.rules
    assert set(one.rules) == {READ, PUBLISH}


def test_a_revoked_rule_is_gone():
    """The others stay."""
    assert applied(Grant((READ, PUBLISH)), Revoke((READ,))).rules == (PUBLISH,)


def test_revoking_what_is_not_there_changes_nothing():
    """A rule written otherwise than it is listed is an error, not a silent nothing."""
    image = applied(Grant((READ,)))
    after, outcome = apply_entry(image, Revoke((READ, PUBLISH)))
    assert outcome.reason == "unknown_rule"
    assert after is image


@pytest.mark.parametrize(
    "rule", [Rule("__broker", "read", "stream", "*"), Rule("app", "group", "stream", "*")]
)
def test_a_rule_that_is_none_is_rejected(rule):
    """The metadata only holds valid rules, whoever proposes them."""
    image = MetadataImage()
    after, outcome = apply_entry(image, Grant((rule,)))
    assert not outcome.is_applied
    assert after is image


def test_there_is_a_limit_to_rules_and_tokens(monkeypatch):
    """Every broker keeps them in memory."""
    monkeypatch.setattr(access, "RULES_MAX", 1)
    monkeypatch.setattr(access, "TOKENS_MAX", 0)
    _, rules = apply_entry(MetadataImage(), Grant((READ, PUBLISH)))
    _, tokens = apply_entry(MetadataImage(), AddToken(TOKEN))
    assert (rules.reason, tokens.reason) == ("limit", "limit")
    monkeypatch.setattr(access, "TOKENS_MAX", 1)
    assert apply_entry(MetadataImage(), Grant((READ,)))[1].is_applied
    assert apply_entry(MetadataImage(), AddToken(TOKEN))[1].is_applied


def test_a_token_is_kept_by_its_hash_and_revoked_by_its_id():
    """The stored form of a token cannot be used as one."""
    image = applied(AddToken(TOKEN))
    assert image.tokens == {"0123abcd": TOKEN}
    assert apply(image, RevokeToken("0123abcd")).tokens == {}
    with pytest.raises(InvalidRequestError, match="no token"):
        apply(image, RevokeToken("ffffffff"))


def test_the_id_of_a_token_does_not_pass_to_another_principal():
    """Else the first token's holder would become the other principal."""
    image = applied(AddToken(TOKEN))
    other = Token(id=TOKEN.id, principal="other", sha256=bytes(32), created_ns=1)
    _, outcome = apply_entry(image, AddToken(other))
    assert outcome.reason == "duplicate_token"


def test_rules_and_tokens_outlive_a_snapshot():
    """Both forms of the image carry them; an image of an earlier version has none."""
    image = applied(Grant((READ, PUBLISH)), AddToken(TOKEN))
    assert decode_image(encode_image(image)) == image
    assert decode_json(encode_json(image)) == image
    old = decode_json(b'{"version": 3, "next_log_id": 1, "streams": {}}')
    assert (old.rules, old.tokens) == ((), {})
