"""Settings of every property test: the suite tries the same examples each time, so that it judges
the change and not the luck of a draw; `make fuzz` draws others, and more of them.

And what pytest-xdist lacks: a worker that is stuck says where, and one that died costs the test it
died of, not the run. And what nats-py's clients lack. Must not know what the tests are about.
"""

import faulthandler
import gc
import os
import resource
import signal

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadFileScheduling

EXAMPLES = os.environ.get("PROPERTY_EXAMPLES")

# Shared cores are slow at times: a deadline per example would fail tests for the machine's sake.
settings.register_profile(
    "strandline",
    deadline=None,
    derandomize=EXAMPLES is None,
    max_examples=60,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.load_profile("strandline")


def pytest_collection_modifyitems(items):
    """With PROPERTY_EXAMPLES set, search that far in every property, whatever it says itself."""
    if EXAMPLES is None:
        return
    for item in items:
        test = getattr(item.obj, "__func__", item.obj)
        own = getattr(test, "_hypothesis_internal_use_settings", None)
        if own is not None:
            test._hypothesis_internal_use_settings = settings(own, max_examples=int(EXAMPLES))
        if item.cls is not None and isinstance(getattr(item.cls, "settings", None), settings):
            item.cls.settings = settings(item.cls.settings, max_examples=int(EXAMPLES))


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Collect without the garbage collector, and keep what is there from it.

    The suite's tests are some millions of objects. Every full pass over them takes a second or two,
    while tests are collected and in each that runs: a third of the CPU of many a test.
    """
    gc.disable()
    pa.scalar(0)  # with pandas, which commands that tests call here would keep out of pyarrow
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture
def flushed():
    """Return a function that waits until nats-server has everything a stock client sent.

    nats-py's ``flush`` writes its PING ahead of what publish and subscribe left in the client's
    buffer, and only then the buffer: the answer to a second one comes after both.
    """

    async def flush_twice(client):
        await client.flush()
        await client.flush()

    return flush_twice


errors_of_worker = pytest.StashKey[int]()


def pytest_configure(config):
    """In a worker, keep standard error as it is while nothing is captured.

    Logs and journals that a test leaves to the garbage collector keep their files open until it
    comes: more than the 1024 that shells allow, where the system allows many more. And a shell
    that runs the suite in the background has it ignore Ctrl-C, which every program that a test
    starts would inherit.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if hasattr(config, "workerinput"):
        config.stash[errors_of_worker] = os.dup(2)


def pytest_timeout_set_timer(item, settings):
    """End a worker whose test takes too long, with the stack of every thread.

    pytest-timeout's own way writes them to standard output, which leads nowhere in a worker.
    """
    if errors_of_worker not in item.config.stash:
        return None
    file = item.config.stash[errors_of_worker]
    faulthandler.dump_traceback_later(settings.timeout, exit=True, file=file)
    return True


def pytest_timeout_cancel_timer(item):
    """It ended in time."""
    if errors_of_worker not in item.config.stash:
        return None
    faulthandler.cancel_dump_traceback_later()
    return True


SPARK = "tests/spark/"
SPARK_WORKERS = 2
SLOW_FIRST = (
    SPARK,
    "tests/test_wheel.py",
    "tests/test_docs",
    "tests/integration/",
    "tests/web/",
    "tests/simulation/",
    "tests/property/",
)
"""In which order folders are handed out: what is long goes first, what is short fills the end."""


class Files(LoadFileScheduling):
    """Tests of a file go to one worker, those with Spark to the first two.

    Spark's tests are the longest by far. Two JVMs beside other tests keep two cores busy; more keep
    each other from starting Python in the time that Spark gives it.

    The original hands the test that killed a worker to the next one again, and keeps a worker that
    came late waiting for ever for what follows its last test.
    """

    def remove_node(self, node):
        """Take a worker out; the test it died of, if it died."""
        left = self.assigned_work.pop(node)
        waiting = [(file, test) for file in left for test, done in left[file].items() if not done]
        if not waiting:
            return None
        file, killer = waiting[0]
        left[file][killer] = True
        self.workqueue.update({file: left[file] for file, _ in waiting[1:]})
        for other in self.assigned_work:
            self._reschedule(other)
        return killer

    def schedule(self):
        """Hand out work. A worker begins a test when it knows the next, or that there is none."""
        super().schedule()
        for node in self.nodes:
            self._reschedule(node)

    def _next(self, node):
        """The file that a worker should take next, if any."""
        alive = [each for each in self.assigned_work if not each.shutting_down]
        has_spark = node in alive[:SPARK_WORKERS]
        files = [f for f in self.workqueue if has_spark or not f.startswith(SPARK)]
        return min(files, key=_rank, default=None)

    def _reschedule(self, node):
        """Give a worker more if it has little left."""
        if node.shutting_down or self._pending_of(self.assigned_work[node]) > 2:
            return
        if self._next(node) is None:
            node.shutdown()
        else:
            self._assign_work_unit(node)

    def _assign_work_unit(self, node):
        """Give a worker the tests of a file."""
        if (file := self._next(node)) is not None:
            self.workqueue.move_to_end(file, last=False)
            super()._assign_work_unit(node)


def _rank(file):
    """The place of a file's folder in the order."""
    return next((n for n, f in enumerate(SLOW_FIRST) if file.startswith(f)), len(SLOW_FIRST))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Ours instead of ``--dist loadfile``."""
    return Files(config, log) if config.getvalue("dist") == "loadfile" else None
