"""The settings of a worker's process, once, and only in Spark's."""

import gc

import pytest

from strandline.spark import worker


@pytest.fixture(autouse=True)
def collector(monkeypatch):
    """A worker without tasks. What it freezes stays so, as do the tests that were collected."""
    monkeypatch.setattr(worker, "_settled", False)


def in_task(monkeypatch, *, is_task):
    """Let Spark say whether a task runs here."""
    monkeypatch.setattr(worker.TaskContext, "get", lambda: object() if is_task else None)


def test_a_worker_is_settled_once(monkeypatch):
    """The first task freezes present objects; later ones are collected as usual."""
    in_task(monkeypatch, is_task=True)
    before = gc.get_freeze_count()
    worker.settle()
    frozen = gc.get_freeze_count()
    assert frozen > before
    new = [[] for _ in range(1000)]
    worker.settle()
    assert gc.get_freeze_count() < frozen + len(new), "less if something frozen was let go"


def test_a_process_of_the_user_is_left_alone(monkeypatch):
    """Outside of tasks nothing is frozen."""
    in_task(monkeypatch, is_task=False)
    before = gc.get_freeze_count()
    worker.settle()
    assert gc.get_freeze_count() <= before, "less if something frozen was let go"
