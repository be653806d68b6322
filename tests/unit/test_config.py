"""Settings: defaults, decoding, and rejection of unknown keys."""

import pytest

from strandline.config import BrokerConfig, StreamConfig, decode_config
from strandline.errors import InvalidConfigError


def test_nothing_given_means_the_defaults():
    """An empty mapping is the default configuration."""
    assert decode_config({}, BrokerConfig) == BrokerConfig()


def test_an_unknown_key_is_rejected_with_a_suggestion():
    """A misspelt key, also in a section, is rejected with the nearest key."""
    with pytest.raises(InvalidConfigError, match=r"'nats.prot'; did you mean 'nats.port'"):
        decode_config({"nats": {"prot": 1}}, BrokerConfig)


def test_a_wrong_type_names_the_place():
    """A value of the wrong type is rejected with its key, and what it takes."""
    with pytest.raises(InvalidConfigError, match="file_bytes is 'many'; it must be a whole number"):
        decode_config({"journal": {"file_bytes": "many"}}, BrokerConfig)
    with pytest.raises(InvalidConfigError, match=r"auth\.admins\[1\] is 3; it must be text"):
        decode_config({"auth": {"admins": ["a", 3]}}, BrokerConfig)
    with pytest.raises(InvalidConfigError, match="acks is 'all'; it must be one of memory, disk, "):
        decode_config({"name": "s", "subject": "s", "acks": "all"}, StreamConfig)
    with pytest.raises(InvalidConfigError, match="subject is missing; it is required"):
        decode_config({"name": "s"}, StreamConfig)


def test_a_secret_of_the_wrong_type_is_not_shown():
    """Its key is."""
    with pytest.raises(InvalidConfigError, match=r"auth\.admin_token is a value that is") as caught:
        decode_config({"auth": {"admin_token": 987654321}}, BrokerConfig)
    assert "987654321" not in caught.value.message


@pytest.mark.parametrize(
    ("subject", "rule"), [("a.*", "subject"), ("a.>", "subject"), ("a.b", "suffix")]
)
def test_the_default_partition_rule_follows_the_subject(subject, rule):
    """Wildcard streams spread by subject, others by suffix as Liftbridge does."""
    assert StreamConfig(name="s", subject=subject).partition_rule == rule
