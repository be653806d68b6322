"""Watching certificates: read again when they have changed, and only then."""

import asyncio

import pytest

from strandline.config import BrokerConfig, ClusterConfig, TlsConfig
from strandline.errors import InvalidConfigError
from strandline.process import renewal
from strandline.process.renewal import CertificateWatch, certificate_files


class Reader:
    """Records the reads of a file; fails while asked to."""

    def __init__(self, file):
        self.file = file
        self.read = []
        self.refused = 0
        self.refuses = False

    def __call__(self):
        if self.refuses:
            self.refused += 1
            raise InvalidConfigError("half a certificate")
        self.read.append(self.file.read_text())

    async def until(self, condition):
        async with asyncio.timeout(20):
            while not condition():  # noqa: ASYNC110  conditions have no events
                await asyncio.sleep(0.002)


@pytest.fixture
async def watched(tmp_path):
    """A file, its reader and its watcher."""
    file = tmp_path / "certificate.pem"
    file.write_text("first")
    reader = Reader(file)
    watch = CertificateWatch([file, tmp_path / "none"], reader)
    task = asyncio.create_task(watch.run())
    yield file, reader, watch
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_what_has_changed_is_read_when_asked(watched):
    """Asked for nothing new nothing is read; a file put in its place counts as a change."""
    file, reader, watch = watched
    watch.look_now()
    await asyncio.sleep(0)
    other = file.with_name("other")
    other.write_text("second")
    other.replace(file)
    watch.look_now()
    await reader.until(lambda: reader.read)
    watch.look_now()
    await asyncio.sleep(0.01)
    file.write_text("the third")
    watch.look_now()
    await reader.until(lambda: "the third" in reader.read)
    assert reader.read == ["second", "the third"]


async def test_files_are_looked_at_now_and_then(tmp_path, monkeypatch):
    """Changed files are found without a request."""
    monkeypatch.setattr(renewal, "LOOK_INTERVAL_S", 0.01)
    file = tmp_path / "certificate.pem"
    file.write_text("first")
    reader = Reader(file)
    task = asyncio.create_task(CertificateWatch([file], reader).run())
    file.write_text("the second")
    await reader.until(lambda: reader.read)
    task.cancel()
    assert reader.read[-1] == "the second"


async def test_what_is_of_no_use_is_tried_again(watched):
    """The old stays in force; when the file is whole, it counts, changed since or not."""
    file, reader, watch = watched
    reader.refuses = True
    file.write_text("hal")
    watch.look_now()
    await reader.until(lambda: reader.refused)
    reader.refuses = False
    watch.look_now()
    await reader.until(lambda: reader.read)
    assert reader.read == ["hal"]


def test_all_files_of_both_kinds_are_watched():
    """Those towards clients and those between brokers, as far as there are any."""
    tls = TlsConfig(certificate="a", key="b")
    cluster = ClusterConfig(tls_certificate="c", tls_key="d", tls_authority="e")
    files = certificate_files(BrokerConfig(tls=tls, cluster=cluster))
    assert [str(file) for file in files] == ["a", "b", "c", "d", "e"]
    assert certificate_files(BrokerConfig()) == ()
