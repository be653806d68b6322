"""The ``nats`` command manages streams here; skipped where it is not installed."""

import json


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
    info = json.loads(run("consumer", "info", "CONS", "c", "--json"))
    assert (info["ack_floor"]["stream_seq"], info["num_pending"]) == (2, 1)
    assert "c" in run("consumer", "report", "CONS")
    run("consumer", "rm", "-f", "CONS", "c")
    assert "c" not in run("consumer", "ls", "CONS", "--names").split()
    run("bench", "js", "pub", "sync", "cons.b", "--stream", "CONS", "--msgs", "50", "--no-progress")
    run("bench", "js", "consume", "--stream", "CONS", "--msgs", "50", "--no-progress")
    run("stream", "rm", "-f", "CONS")
