"""``strandline acl`` and ``strandline token`` against a real broker that checks access."""

import itertools
import json

import pytest
from typer.testing import CliRunner

from strandline.cli.app import app
from strandline.testing import Server

ADMIN = "an-administrators-token-made-for-this-test"


@pytest.fixture(scope="module")
def url():
    with Server(auth={"enabled": True, "admin_token": ADMIN}) as url:
        yield url


@pytest.fixture
def run(url):
    """Runs a command as a principal, by default the administrator."""

    def run(*arguments, token=ADMIN, code=0):
        environment = {"STRANDLINE_TOKEN": token}
        result = CliRunner().invoke(app, [*arguments, "--server", url], env=environment)
        assert result.exit_code == code, result.output
        return result

    return run


def lines(result):
    return [json.loads(line) for line in result.stdout.splitlines()]


@pytest.mark.parametrize("command", ["grant", "revoke"])
def test_a_wrong_rule_needs_no_broker(command):
    """It is refused before anybody is asked."""
    words = ["acl", command, "billing", "write", "stream", "orders", "--server", "127.0.0.1:9"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 1
    assert "write" in done.stderr
    assert "127.0.0.1" not in done.stderr


def test_a_rule_is_granted_listed_and_revoked(run):
    """Rules are written as they are listed; an invalid one is an error before a request."""
    rule = ("billing", "read", "stream", "orders*")
    assert "billing may read stream orders*" in run("acl", "grant", *rule).stdout
    [listed] = lines(run("acl", "list", "-o", "json"))
    assert listed == {
        "principal": "billing",
        "operation": "read",
        "kind": "stream",
        "pattern": "orders*",
    }
    assert list(rule) in [line.split() for line in run("acl", "list").stdout.splitlines()]
    revoked = {"revoked": list(rule), "access_checked": True}
    assert lines(run("acl", "revoke", *rule, "-o", "json")) == [revoked]
    assert "(invalid_request)" in run("acl", "revoke", *rule, code=1).stderr
    wrong = run("acl", "grant", "billing", "write", "stream", "orders", code=1)
    assert "operations are read, publish" in wrong.stderr


def test_a_token_is_made_used_listed_and_revoked(run):
    """Printed alone, so that a shell can take it; never listed."""
    run("acl", "grant", "shop", "publish", "stream", "orders")
    token = run("token", "create", "shop").stdout.strip()
    [made] = lines(run("token", "create", "shop", "--days", "1", "-o", "json"))
    assert made["token"] != token
    run("stream", "list", token=token)
    assert "(not_allowed)" in run("acl", "list", token=token, code=1).stderr
    listed = {each["id"]: each for each in lines(run("token", "list", "-o", "json"))}
    number = token.split("_")[1]
    assert listed[number]["principal"] == "shop"
    text = run("token", "list").stdout
    assert "never" in text
    assert token not in text
    assert number in run("token", "revoke", number).stdout
    assert "(unauthenticated)" in run("stream", "list", token=token, code=1).stderr
    assert "(invalid_request)" in run("token", "revoke", number, code=1).stderr


CHANGES = (
    ("acl", "grant", "shop", "read", "stream", "orders"),
    ("acl", "revoke", "shop", "read", "stream", "orders"),
    ("token", "create", "shop"),
    ("token", "revoke", None),
    ("quota", "set", "shop", "--requests", "5"),
    ("quota", "remove", "shop"),
)


@pytest.mark.parametrize("enabled", [False, True])
def test_a_change_says_where_access_is_not_checked(enabled):
    """On standard error, so that a shell can take the token; for programs in a field."""
    auth = {"enabled": True, "admin_token": ADMIN} if enabled else {}
    with Server(auth=auth) as url:

        def run(*arguments):
            words = [*arguments, "--server", str(url)]
            done = CliRunner().invoke(app, words, env={"STRANDLINE_TOKEN": ADMIN})
            assert done.exit_code == 0, done.output
            return done

        for output, each in itertools.product(("text", "json"), CHANGES):
            tokens = lines(run("token", "list", "-o", "json"))
            done = run(*(part or tokens[0]["id"] for part in each), "-o", output)
            if output == "json":
                assert done.stderr == ""
                assert json.loads(done.stdout)["access_checked"] is enabled
            else:
                assert done.stdout.count("\n") == 1
                assert ("does not check access" in done.stderr) is not enabled
                assert ("until auth.enabled is set" in done.stderr) is not enabled


def test_without_a_token_the_command_says_what_to_set(run):
    """The message names the variable."""
    assert "STRANDLINE_TOKEN" in run("stream", "list", token="", code=1).stderr
