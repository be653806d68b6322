"""Access control settings that check nothing, or admit nobody, prevent the start."""

import pytest

from strandline.errors import InvalidConfigError, InvalidRequestError
from strandline.process.settings import load_settings

SECRET = "0123456789" * 4
FILES = {"certificate": "c.pem", "key": "k.pem"}
CLUSTER = {"broker_id": 1, "name": "c", "peers": ["1=10.0.0.1:9295"]}
PEER_FILES = {"tls_certificate": "c.pem", "tls_key": "k.pem", "tls_authority": "ca.pem"}


def settings(auth, **others):
    """The settings with some keys of ``auth``."""
    return load_settings(None, {}, {"auth": auth, **others})


def test_access_control_is_off_unless_it_is_turned_on():
    """Nothing given checks nothing, as the pages say."""
    assert not load_settings(None, {}, {}).auth.enabled


@pytest.mark.parametrize(
    ("auth", "others"),
    [
        ({"enabled": True, "admin_token": SECRET}, {}),
        ({"enabled": True, "admin_token_file": "token"}, {"host": "::1"}),
        ({"enabled": True, "admins": ["alice"]}, {"tls": {**FILES, "authority": "ca.pem"}}),
        ({"enabled": True, "admin_token": SECRET}, {"host": "10.0.0.1", "tls": FILES}),
        ({"enabled": True, "admin_token": SECRET}, {"cluster": CLUSTER}),
        (
            {"enabled": True, "admin_token": SECRET},
            {"host": "10.0.0.1", "tls": FILES, "cluster": {**CLUSTER, **PEER_FILES}},
        ),
        (
            {"enabled": True, "admin_token": SECRET},
            {"host": "10.0.0.1", "tls": FILES, "cluster": {**CLUSTER, "peer_host": "127.0.0.1"}},
        ),
    ],
)
def test_what_lets_an_administrator_in_is_taken(auth, others):
    """A token or a named certificate; in clear text on loopback only."""
    assert settings(auth, **others).auth.enabled


@pytest.mark.parametrize(
    ("auth", "others", "message"),
    [
        ({"admin_token": SECRET}, {}, "need auth.enabled"),
        ({"admins": ["alice"]}, {}, "need auth.enabled"),
        ({"enabled": True}, {}, "leaves no administrator"),
        ({"enabled": True, "admins": ["alice"]}, {}, "leaves no administrator"),
        ({"enabled": True, "admins": ["alice"]}, {"tls": FILES}, "leaves no administrator"),
        ({"enabled": True, "admin_token": "short"}, {}, "fewer than 32"),
        ({"enabled": True, "admin_token": SECRET, "admin_token_file": "f"}, {}, "not both"),
        ({"enabled": True, "admin_token": SECRET}, {"host": "0.0.0.0"}, "clear text"),
        ({"enabled": True, "admin_token": SECRET}, {"host": "broker.example"}, "clear text"),
        (
            {"enabled": True, "admin_token": SECRET},
            {"host": "10.0.0.1", "tls": FILES, "cluster": CLUSTER},
            "could pass for a broker",
        ),
        (
            {"enabled": True, "admin_token": SECRET},
            {"cluster": {**CLUSTER, "peer_host": "10.0.0.1"}},
            "cluster.peer_port on '10.0.0.1'",
        ),
    ],
)
def test_what_would_be_open_or_shut_for_ever_is_rejected(auth, others, message):
    """A half-made configuration never means less checking than it seems to."""
    with pytest.raises(InvalidConfigError, match=message) as caught:
        settings(auth, **others)
    assert SECRET not in str(caught.value)


def test_an_administrators_name_is_one_a_certificate_can_have():
    """An impossible name would never admit anybody."""
    with pytest.raises(InvalidRequestError, match="no name"):
        settings({"enabled": True, "admin_token": SECRET, "admins": ["__admin"]})


def test_the_token_may_come_from_the_environment():
    """The token need not be in a file; the variable of clients is another one."""
    environ = {
        "STRANDLINE_AUTH__ENABLED": "true",
        "STRANDLINE_AUTH__ADMIN_TOKEN": SECRET,
        "STRANDLINE_TOKEN": "a client's",
        "STRANDLINE_REGISTRY_AUTH": "a:b",
    }
    assert load_settings(None, environ, {}).auth.admin_token == SECRET
