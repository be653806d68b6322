"""The fields of everything that brokers send to each other, to clients, and to their disks.

``wire.list`` lists them in order, with the name and the place that each has in the encoded bytes:
an array has no names, so two fields that change places would still decode. ``GOLDEN_UPDATE=1``
writes what is there now into the list: read the difference before a commit.
"""

import os
from pathlib import Path

import msgspec
import pytest

from strandline.api import put, status, tickets
from strandline.api.commands import COMMANDS
from strandline.backup.manifest import BackupManifest
from strandline.broker.cluster import channels
from strandline.broker.cluster.identity import DirectoryIdentity
from strandline.broker.peers import handshake
from strandline.broker.quorum_store import _StoredEntry
from strandline.core.consumers.state import ConsumerState
from strandline.core.groups.state import GroupEntry
from strandline.core.metadata.commands import Entry
from strandline.core.metadata.image import MetadataImage
from strandline.core.raft.messages import Envelope, HardState, Snapshot
from strandline.core.replication import messages
from strandline.core.transactions.state import TransactionEntry
from strandline.storage.checkpoint import Checkpoint
from strandline.storage.truncation_marker import TruncationMarker

LIST = Path(__file__).with_name("wire.list")
ROOTS = {
    "between brokers: consensus": Envelope,
    "between brokers: handshake": handshake.Hello | handshake.Rejected,
    "between brokers: replication": messages.Message,
    "between brokers: requests": channels.Request,
    "flight: admin commands": tuple[
        tuple(each for command in COMMANDS.values() for each in (command.request, command.result))
    ],
    "flight: errors": status.ErrorBody,
    "flight: reads and puts": tuple[tickets.ReadRequest, put.PutRequest, put.BatchTag, put.PutAck],
    "disk: backup": BackupManifest,
    "disk: checkpoint": tuple[Checkpoint, TruncationMarker],
    "disk: consumer groups": tuple[GroupEntry, ConsumerState],
    "disk: metadata": tuple[Entry, MetadataImage],
    "disk: quorum": tuple[DirectoryIdentity, HardState, Snapshot, _StoredEntry],
    "disk: transactions": TransactionEntry,
}


def structs_of(kind, found):
    """Collect the structs that a type consists of, by name."""
    if isinstance(kind, msgspec.inspect.StructType):
        name = kind.cls.__qualname__
        if name in found:
            return
        found[name] = kind
    for each in kind if isinstance(kind, tuple) else vars_of(kind):
        if isinstance(each, (tuple, msgspec.inspect.Type, msgspec.inspect.Field)):
            structs_of(each, found)


def vars_of(kind):
    """The values of what ``msgspec.inspect`` says about a type."""
    return [getattr(kind, name) for name in kind.__struct_fields__]


def line_of(name, kind):
    """A struct in one line: its tag, then its fields in order, those with a default marked."""
    fields = [each.encode_name + ("" if each.required else "?") for each in kind.fields]
    tag = "" if kind.tag is None else f" {kind.tag!r}"
    start, end = "[]" if kind.array_like else "{}"
    return f"{name}{tag} {start}{', '.join(fields)}{end}"


@pytest.mark.parametrize("title", ROOTS)
def test_what_is_encoded_changes_on_purpose_only(title):
    """Each message and stored value has the fields that the list says, in that order."""
    found = {}
    structs_of(msgspec.inspect.type_info(ROOTS[title]), found)
    now = [line_of(name, found[name]) for name in sorted(found)]
    assert now
    sections = {}
    for part in LIST.read_text("utf-8").split("# ")[1:] if LIST.exists() else []:
        name, _, body = part.partition("\n")
        sections[name] = body.strip().splitlines()
    if os.environ.get("GOLDEN_UPDATE"):
        sections[title] = now
        LIST.write_text(
            "\n\n".join("\n".join([f"# {name}", *sections[name]]) for name in sorted(sections))
            + "\n",
            "utf-8",
        )
    assert now == sections.get(title), "if that is meant, write the list anew with GOLDEN_UPDATE=1"


def test_the_list_has_no_other_formats():
    """A format that is no longer there is no longer listed."""
    titles = [line[2:] for line in LIST.read_text("utf-8").splitlines() if line.startswith("# ")]
    assert titles == sorted(ROOTS)
