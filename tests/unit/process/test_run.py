"""A broker as this very process: signals end it cleanly."""

import gc
import logging
import os
import resource
import signal
import socket
import sys
import threading

import pytest
from msgspec.structs import replace

from strandline.broker.lock import DataDirLock
from strandline.config import BrokerConfig, NatsConfig
from strandline.errors import UnavailableError
from strandline.process.run import raise_open_files_limit, run_broker
from strandline.storage.descriptors import STORAGE_DESCRIPTORS


@pytest.fixture(autouse=True)
def as_before():
    """Process settings that a running broker changes are restored.

    What it froze stays so: with it the collector would get back all the tests that were collected.
    """
    root, interval = logging.getLogger(), sys.getswitchinterval()
    handlers, level = root.handlers.copy(), root.level
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    thresholds = gc.get_threshold()
    yield
    gc.set_threshold(*thresholds)
    root.handlers[:] = handlers
    root.setLevel(level)
    sys.setswitchinterval(interval)
    STORAGE_DESCRIPTORS.end()
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def config(tmp_path):
    return BrokerConfig(
        data_dir=str(tmp_path / "data"),
        flight_port=0,
        http_port=-1,
        nats=NatsConfig(port=0, ingest_port=-1),
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_with_code_0(config, number):
    """The ready line comes first; after the end the signal has its usual meaning again."""
    lines = []

    def ready(line):
        lines.append(line)
        os.kill(os.getpid(), number)

    assert run_broker(config, on_ready=ready) == 0
    [line] = lines
    assert line["pid"] == os.getpid()
    assert line["nats_port"]
    assert signal.getsignal(number) == signal.SIG_DFL, "a second one would end it at once"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_start_that_waits(config, tmp_path, number):
    """With code 0, before anything was announced; the data directory is free."""
    with socket.create_server(("127.0.0.1", 0)) as silent:

        def signal_once_it_waits():
            waiting.append(silent.accept())
            os.kill(os.getpid(), number)

        waiting, lines = [], []
        accepting = threading.Thread(target=signal_once_it_waits)
        accepting.start()
        servers = (f"nats://127.0.0.1:{silent.getsockname()[1]}",)
        config = replace(config, nats=NatsConfig(servers=servers, ingest_port=-1))
        assert run_broker(config, on_ready=lines.append) == 0
        accepting.join()
        waiting[0][0].close()
    assert not lines
    DataDirLock(tmp_path / "data").release()


def test_a_broker_that_cannot_start_raises(config, tmp_path):
    """The error is typed; nothing was announced."""
    (tmp_path / "data").write_text("a file")
    lines = []
    with pytest.raises(UnavailableError, match="cannot use data directory"):
        run_broker(config, on_ready=lines.append)
    assert not lines


def test_as_many_files_may_be_open_as_the_system_allows():
    """Every connection and every segment takes one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 256), hard))
    raise_open_files_limit()
    soft, left = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert left == hard
    assert 0 < soft < hard, "the rest is the storage's"


def test_a_limit_that_is_too_low_is_told_before_anything_is_opened(config, monkeypatch):
    """Else a library without a descriptor would end the process without our error."""
    monkeypatch.setattr(resource, "getrlimit", lambda _: (64, 64))
    with pytest.raises(UnavailableError, match=r"only 64 files .* 'ulimit -n'"):
        run_broker(config, on_ready=pytest.fail)
