"""The ``nats`` command manages streams here; skipped where it is not there and cannot be built."""

import json

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(700)]  # it may have to be built


def test_streams_are_managed_from_the_command_line(ours, cli):
    """Add, list, show, report, read, count, purge, remove: each as with JetStream."""

    def run(*arguments):
        return cli(ours.nats_url, *arguments)

    run("stream", "add", "CLI", "--subjects", "cli.>", "--defaults")
    assert "Sequence: 1" in run("pub", "-J", "cli.one", "hello")
    run("pub", "-J", "cli.two", "world")
    assert "CLI" in run("stream", "ls", "--names")
    info = json.loads(run("stream", "info", "CLI", "--json"))
    assert (info["state"]["messages"], info["state"]["last_seq"]) == (2, 2)
    assert "CLI" in run("stream", "report")
    assert "hello" in run("stream", "get", "CLI", "1")
    assert "world" in run("stream", "get", "CLI", "--last-for", "cli.two")
    assert "cli.two" in run("stream", "subjects", "CLI")
    assert "CLI" in run("stream", "ls", "--subject", "cli.one", "--names")
    assert "Purged 2" in run("stream", "purge", "-f", "CLI")
    run("stream", "rm", "-f", "CLI")
    assert "CLI" not in run("stream", "ls", "--names")
    assert "JetStream Account Information" in run("account", "info")


def test_consumers_are_used_from_the_command_line(ours, cli):
    """Add, list, show, report, next, remove, and ``bench`` with a durable."""

    def run(*arguments):
        return cli(ours.nats_url, *arguments)

    run("stream", "add", "CONS", "--subjects", "cons.>", "--defaults")
    for number in range(3):
        run("pub", "-J", "cons.x", f"message {number}")
    run("consumer", "add", "CONS", "c", "--pull", "--defaults")
    assert "c" in run("consumer", "ls", "CONS", "--names")
    found = run("consumer", "next", "CONS", "c", "--count", "2")
    assert "message 0" in found
    assert "message 1" in found
    assert "never" not in run("consumer", "ls", "CONS"), "when it last delivered"
    info = json.loads(run("consumer", "info", "CONS", "c", "--json"))
    assert (info["ack_floor"]["stream_seq"], info["num_pending"]) == (2, 1)
    assert "c" in run("consumer", "report", "CONS")
    run("consumer", "rm", "-f", "CONS", "c")
    assert "c" not in run("consumer", "ls", "CONS", "--names").split()
    run("bench", "js", "pub", "sync", "cons.b", "--stream", "CONS", "--msgs", "50", "--no-progress")
    run("bench", "js", "consume", "--stream", "CONS", "--msgs", "50", "--no-progress")
    run("bench", "js", "ordered", "--stream", "CONS", "--msgs", "50", "--no-progress")
    run("bench", "js", "pub", "sync", "cons.b", "--stream", "CONS", "--msgs", "50", "--no-progress")
    run("bench", "js", "fetch", "--stream", "CONS", "--msgs", "50", "--no-progress")
    run("stream", "rm", "-f", "CONS")


def test_push_consumers_are_used_from_the_command_line(ours, cli):
    """Add one that delivers to a subject; subscribe to a stream, which orders and pushes."""

    def run(*arguments):
        return cli(ours.nats_url, *arguments)

    run("stream", "add", "PUSHED", "--subjects", "pushed.>", "--defaults")
    for number in range(3):
        run("pub", "-J", "pushed.x", f"message {number}")
    added = ("--target", "to.p", "--defaults", "--ack", "none", "--deliver", "all", "--replay")
    run("consumer", "add", "PUSHED", "p", *added, "instant")
    info = json.loads(run("consumer", "info", "PUSHED", "p", "--json"))
    assert info["config"]["deliver_subject"] == "to.p"
    found = run("sub", "to.p", "--count", "3")
    assert all(f"message {number}" in found for number in range(3))
    found = run("sub", "--stream", "PUSHED", "--all", "--count", "3")
    assert all(f"message {number}" in found for number in range(3))
    run("stream", "rm", "-f", "PUSHED")


def test_buckets_are_used_from_the_command_line(ours, cli):
    """Add, put, get, create, update, list, history, watch status, delete, purge, remove."""

    def run(*arguments):
        return cli(ours.nats_url, "kv", *arguments)

    run("add", "CLIKV", "--history", "3")
    run("put", "CLIKV", "color", "red")
    run("put", "CLIKV", "color", "blue")
    assert run("get", "CLIKV", "color", "--raw").strip() == "blue"
    assert run("get", "CLIKV", "color", "--revision", "1", "--raw").strip() == "red"
    run("create", "CLIKV", "size", "xl")
    run("update", "CLIKV", "size", "xxl", "3")
    assert set(run("ls", "CLIKV").split()) >= {"color", "size"}
    history = run("history", "CLIKV", "color")
    assert "red" in history
    assert "blue" in history
    assert "CLIKV" in run("info", "CLIKV")
    run("del", "-f", "CLIKV", "size")
    assert "size" not in run("ls", "CLIKV").split()
    run("purge", "-f", "CLIKV", "color")
    run("compact", "-f", "CLIKV")
    assert "CLIKV" in run("ls")
    run("del", "-f", "CLIKV")
    assert "CLIKV" not in run("ls")
