"""Reports about coordinators: counted once a member, for a while."""

import pytest

from strandline.servers.grpc.liftbridge.reports import Reports


@pytest.fixture
def reports():
    return Reports(timeout_ms=1000)


def test_each_member_counts_once_for_an_epoch(reports):
    """Another group's, and another epoch's, are counted apart."""
    assert reports.add("g", 1, "a", now_ms=0) == 1
    assert reports.add("g", 1, "a", now_ms=1) == 1
    assert reports.add("g", 1, "b", now_ms=2) == 2
    assert reports.add("g", 2, "a", now_ms=3) == 1
    assert reports.add("h", 1, "a", now_ms=4) == 1


def test_reports_count_until_nobody_reports_any_more(reports):
    """Two hiccups a day apart are no majority; a report keeps those before it."""
    reports.add("g", 1, "a", now_ms=0)
    assert reports.add("g", 1, "b", now_ms=900) == 2
    assert reports.add("g", 1, "c", now_ms=1_900) == 3
    assert reports.add("g", 1, "a", now_ms=2_901) == 1


def test_what_is_over_is_forgotten(reports):
    """Deleted groups and past epochs leave nothing behind."""
    reports.add("g", 1, "a", now_ms=0)
    reports.add("h", 1, "a", now_ms=0)
    reports.keep({("h", 1)})
    assert reports.add("h", 1, "b", now_ms=1) == 2
    assert reports.add("g", 1, "b", now_ms=1) == 1
