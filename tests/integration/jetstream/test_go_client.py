"""Go's NATS client (nats.go, both of its APIs) uses streams and consumers unchanged.

Its programs are compiled here; without Go, or without its modules, the tests are skipped.
"""

import subprocess

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


def assert_done(program, url):
    """Assert that a program does all that it does."""
    found = subprocess.run([program, url], capture_output=True, check=False, text=True, timeout=90)
    assert found.stdout.endswith("all done\n"), found.stdout[-1000:] + found.stderr[-2000:]


def test_gos_client_uses_streams_and_consumers(go_programs, url):
    """Create, publish, read, fetch, consume, acknowledge, refuse, ordered, purge, delete."""
    assert_done(go_programs / "jetstream", url)


def test_gos_client_receives_from_push_and_ordered_consumers(go_programs, url):
    """Both of its APIs; ordered consumers that are lost, queue groups, flow control."""
    assert_done(go_programs / "push", url)


def test_gos_client_uses_key_value_buckets(go_programs, url):
    """Create, get, put, update, delete, purge, keys, history, watch, status."""
    assert_done(go_programs / "kv", url)
