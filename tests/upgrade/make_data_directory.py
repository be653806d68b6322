"""Makes the archive of data directories that later versions have to open.

Run once for each release, with that release: ``python -m tests.upgrade.make_data_directory``. It
writes ``VERSION.tar.xz`` beside this file: data directories of a single broker and of a broker of a
cluster, both killed, the master key of their encrypted stream, and what readers saw.
"""

import json
import sys
import tarfile
import tempfile
from pathlib import Path

import pyarrow as pa

import strandline
from strandline.client.client import Client
from strandline.encryption.master_keys import new_key_text
from strandline.process.ports import free_ports
from strandline.testing import ProcessServer
from strandline.version import __version__
from tests.upgrade.contents import contents

HERE = Path(__file__).parent
SMALL = {"STRANDLINE_JOURNAL__FILE_BYTES": str(1 << 20)}
SKIPPED = ("nats", "broker.lock", "local-reads.proof", "reserve")
"""Of a data directory: what each start writes anew."""


def fill(client: Client) -> None:
    """Store something of every kind."""
    client.create_stream("plain", subject="plain.>", partitions=3, segment_bytes=1 << 16)
    client.create_stream("keyed", partitions=2, partition_by="key", retention_age_ms=1 << 50)
    client.create_stream("compacted", compact=True)
    client.create_stream("newest", subject="newest.*", max_records_per_subject=2)
    client.create_stream("packed", compression="zstd")
    client.create_stream("secret", encryption=True)
    client.create_stream("empty", description="nothing is stored here")
    client.create_stream("deleted")
    client.append("deleted", b"x")
    client.delete_stream("deleted")
    for number in range(120):
        headers = {"number": b"%d" % number} if number % 3 else None
        value = b"value %d" % number * (40 if number % 10 == 0 else 1)
        client.append("plain", value, subject=f"plain.{number % 4}", headers=headers)
        for name in ("keyed", "compacted"):
            client.append(name, value if number % 9 else None, key=b"%d" % (number % 12))
        client.append("newest", value, subject=f"newest.{number % 5}")
        client.append("secret", value, key=b"k", message_id=f"m-{number}")
    client.append_batch("packed", pa.table({"value": [b"row %d" % n for n in range(500)]}))
    client.delete_records("plain", 5, partition=1)
    with client.transaction("t") as transaction:
        for name in ("plain", "packed"):
            transaction.append(name, b"committed")
    transaction = client.transaction("u")
    transaction.append("packed", b"aborted")
    transaction.abort()
    client.groups.reset("readers", "keyed", "latest")
    client.access.grant("app", "read", "stream", "plain")
    client.access.create_token("app")
    client.quotas.set("app", requests_per_s=1000)


def make(directory: Path, key_file: Path, arguments: tuple[str, ...]) -> dict[str, object]:
    """Fill a data directory, and kill its broker; return what its streams have."""
    environment = {**SMALL, "STRANDLINE_ENCRYPTION__KEY_FILE": str(key_file)}
    server = ProcessServer(
        directory, arguments=(*arguments, "--ingest-port", "-1"), environment=environment
    ).start()
    try:
        with strandline.connect(server.flight) as client:
            fill(client)
            return contents(client)
    finally:
        server.kill()


def main() -> None:
    """Write the archive."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        key_file = folder / "keys"
        key_file.touch(mode=0o600)
        key_file.write_text(new_key_text())
        [port] = free_ports(1)
        peer = ("--broker-id", "1", "--cluster-id", "upgrade", "--peer-port", str(port))
        peer += ("--peers", f"1=127.0.0.1:{port}")
        found = {
            "single": make(folder / "single", key_file, ()),
            "cluster": make(folder / "cluster", key_file, peer),
        }
        (folder / "contents.json").write_text(json.dumps(found))
        with tarfile.open(HERE / f"{__version__}.tar.xz", "w:xz", preset=9) as archive:
            for path in ("contents.json", "keys", "single", "cluster"):
                archive.add(folder / path, path, filter=_kept)
    sys.stdout.write(f"{__version__}.tar.xz\n")


def _kept(item: tarfile.TarInfo) -> tarfile.TarInfo | None:
    if any(part in SKIPPED for part in item.name.split("/")):
        return None
    item.uid = item.gid = 0
    item.uname = item.gname = ""
    return item


if __name__ == "__main__":
    main()
