"""``strandline group`` against a real broker."""

import json

import pytest
from typer.testing import CliRunner

import strandline
from strandline.cli.app import app
from strandline.errors import InvalidRequestError
from strandline.testing import Server


@pytest.fixture(scope="module")
def url():
    with Server() as url, strandline.connect(url) as client:
        client.create_stream("orders", partitions=2)
        for number in range(6):
            client.append("orders", str(number), partition=number % 2)
        yield url


@pytest.fixture
def run(url):
    def run(*arguments, code=0):
        result = CliRunner().invoke(app, ["group", *arguments, "--server", url])
        assert result.exit_code == code, result.output
        return result

    return run


def lines(result):
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_a_group_is_made_shown_and_deleted(run):
    """Reset to offsets of all kinds, listed with its lag, deleted."""
    [done] = lines(run("reset", "billing", "orders", "--to", "latest", "-o", "json"))
    assert done["offsets"] == {"0": 3, "1": 3}
    run("reset", "billing", "orders", "--to", "1", "--partition", "1")
    [listed] = [each for each in lines(run("list", "-o", "json")) if each["group"] == "billing"]
    assert listed["members"] == 0
    [info] = lines(run("info", "billing", "-o", "json"))
    assert info["positions"] == {"orders": {"0": 3, "1": 1}}
    rows = [line.split() for line in run("info", "billing").stdout.splitlines()]
    assert ["orders", "1", "1", "2", "-"] in rows
    assert "billing" in run("list").stdout
    assert lines(run("delete", "billing", "--yes", "-o", "json")) == [{"deleted": "billing"}]
    assert "(unknown_group)" in run("info", "billing", code=1).stderr


def test_what_the_last_commit_says_is_shown(run, url):
    """As one line, whatever is in it; the text has a limit."""
    with strandline.connect(url) as client:
        client.groups.commit("failing", {}, metadata="disk full\nof\x1b[2J records")
        assert "its last commit says: 'disk full" in run("info", "failing").stdout
        assert "\x1b" not in run("info", "failing").stdout
        [info] = lines(run("info", "failing", "-o", "json"))
        assert info["metadata"] == "disk full\nof\x1b[2J records"
        with pytest.raises(InvalidRequestError, match="4096"):
            client.groups.commit("failing", {}, metadata="x" * 4097)
    run("reset", "failing", "orders", "--to", "latest")
    assert "last commit" not in run("info", "failing").stdout


def test_a_place_beyond_the_end_is_rejected(run):
    """A group reset there would silently consume nothing for long."""
    refused = run("reset", "far", "orders", "--partition", "0", "--to", "99999999", code=1)
    assert "offset 99999999 is beyond the end of orders/0, 3" in refused.stderr
    run("info", "far", code=1)
    run("reset", "far", "orders", "--partition", "0", "--to", "3")
    unknown = run("reset", "far", "orders", "--partition", "7", "--to", "0", code=1)
    assert "has no partition 7" in unknown.stderr


def test_members_are_shown_and_guard_their_group(run, url):
    """Members are listed by name; a group in use is neither reset nor deleted."""
    with (
        strandline.connect(url) as client,
        client.consumer("used", "orders", instance="till-1") as consumer,
    ):
        consumer.poll(5)
        consumer.commit()
        text = run("info", "used").stdout
        assert "till-1" in text
        assert "(group_in_use)" in run("delete", "used", "--yes", code=1).stderr
        failed = run("reset", "used", "orders", "--to", "earliest", code=1)
        assert "(group_in_use)" in failed.stderr


def test_an_offset_needs_its_partition(run):
    """An offset is a place in one partition."""
    assert "(invalid_request)" in run("reset", "g", "orders", "--to", "2", code=1).stderr
    assert (
        "no partition 9"
        in run("reset", "g", "orders", "--to", "earliest", "--partition", "9", code=1).stderr
    )
