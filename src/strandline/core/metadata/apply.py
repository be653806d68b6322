"""``apply_entry(image, entry)``: the deterministic state machine of the metadata.

The same entry on the same image gives the same image and the same outcome on every broker. A
command that does not apply is an outcome like any other.

Rules of sessions: a proposer opens a session and numbers its commands with growing sequences, one
in flight at a time. Each command is applied once; a repeat returns the recorded outcome. The least
recently used sessions are forgotten. Their ids are never reused, so a late retry is rejected, not
applied again.
"""

from collections.abc import Callable
from typing import Any

import msgspec

from strandline.core.metadata import (
    access,
    activity,
    brokers,
    changes,
    groups,
    quotas,
    schemas,
    skips,
    states,
    stream_keys,
    streams,
)
from strandline.core.metadata.commands import (
    AddPartitions,
    AddSchema,
    AddToken,
    AdmitBroker,
    AllocateProducerIds,
    BeginShutdown,
    ChangeIsr,
    Command,
    CreateStream,
    DeleteSchema,
    DeleteStream,
    Drain,
    ElectLeader,
    Entry,
    Fence,
    FinishReassignment,
    ForgetDirectory,
    ForgetEvents,
    Grant,
    JoinGroup,
    KeepStreamKeys,
    LeaveGroup,
    MoveGroup,
    MoveLogStarts,
    OpenSession,
    PausePartitions,
    Proposed,
    ReassignReplicas,
    RegisterBroker,
    RemoveBroker,
    RemoveQuota,
    ReportStorage,
    Revoke,
    RevokeToken,
    SetQuota,
    SetReadonly,
    SkipTo,
    Unfence,
    UpdateStream,
)
from strandline.core.metadata.image import MetadataImage, SessionImage
from strandline.core.metadata.outcome import CommandOutcome, CommandRejectedError, refused
from strandline.errors import InvalidRequestError, StrandlineError
from strandline.security.producer_ids import OWNERS_MAX, producer_id_of

SESSIONS_MAX = 256
PRODUCER_IDS_MAX = 1_000_000

_WHOLE: dict[type[Any], Callable[[MetadataImage, Any], MetadataImage]] = {
    CreateStream: streams.create_stream,
    KeepStreamKeys: stream_keys.keep_stream_keys,
    AddSchema: schemas.add_schema,
    DeleteSchema: schemas.delete_schema,
    UpdateStream: streams.update_stream,
    DeleteStream: streams.delete_stream,
    AddPartitions: streams.add_partitions,
    AdmitBroker: brokers.admit,
    RegisterBroker: brokers.register,
    Fence: brokers.fence_brokers,
    Unfence: brokers.unfence_brokers,
    BeginShutdown: brokers.begin_shutdown,
    Drain: brokers.drain,
    ReportStorage: brokers.report_storage,
    ForgetDirectory: brokers.forget_directory,
    RemoveBroker: brokers.remove,
    SkipTo: skips.skip_to,
    SetReadonly: states.set_readonly,
    PausePartitions: states.pause_partitions,
    JoinGroup: groups.join,
    LeaveGroup: groups.leave,
    MoveGroup: groups.move,
    ForgetEvents: activity.forget_events,
    Grant: access.grant,
    Revoke: access.revoke,
    AddToken: access.add_token,
    RevokeToken: access.revoke_token,
    SetQuota: quotas.set_quota,
    RemoveQuota: quotas.remove_quota,
}
"""Commands that are applied or rejected as a whole, and their functions."""

_ANSWERING: dict[
    type[Any], Callable[[MetadataImage, Any], tuple[MetadataImage, CommandOutcome]]
] = {
    ChangeIsr: changes.change_isrs,
    ElectLeader: changes.elect_leaders,
    ReassignReplicas: changes.reassign,
    FinishReassignment: changes.finish,
    MoveLogStarts: changes.move_log_starts,
}
"""Commands whose outcome has a value, and their functions."""


def apply(image: MetadataImage, command: Command) -> MetadataImage:
    """Return the image after the command; for a broker that runs alone.

    Raises:
        StreamExistsError: a stream of that name exists.
        UnknownStreamError: no such stream.
        InvalidConfigError: a setting is out of range.
        InvalidSubjectError: the stream's subject is not a NATS subject.
        InvalidRequestError: a command of another kind does not apply.
    """
    try:
        after, outcome = _run(image, command)
    except CommandRejectedError as error:
        raise InvalidRequestError(error.message) from error
    outcome.raise_if_rejected()
    return after


def apply_entry(image: MetadataImage, entry: Entry) -> tuple[MetadataImage, CommandOutcome]:
    """Return the image after a metadata entry, and the outcome for the proposer."""
    if not isinstance(entry, Proposed):
        return _outcome(image, entry)
    session = image.sessions.get(entry.client_id)
    if session is None:
        why = (
            f"session {entry.client_id} was forgotten; whether its last command applied is unknown"
        )
        return image, refused(CommandRejectedError("session_expired", why))
    if was_seen(session, entry):
        return image, recorded_outcome(session, entry)
    if isinstance(entry.command, OpenSession):
        return image, refused(CommandRejectedError("limit", "a session is opened outside of one"))
    after, outcome = _outcome(image, entry.command)
    return _recorded(after, entry, outcome), outcome


def was_seen(session: SessionImage, entry: Proposed) -> bool:
    """Whether this command, or a later one of its session, was applied before."""
    return entry.sequence <= session.sequence


def recorded_outcome(session: SessionImage, entry: Proposed) -> CommandOutcome:
    """Return the recorded outcome of a command that was applied or skipped before."""
    if entry.sequence == session.sequence and entry.sequence > 0:
        return session.outcome
    why = f"sequence {entry.sequence} is not above {session.sequence}, the last one"
    return refused(CommandRejectedError("sequence_passed", why))


def _recorded(image: MetadataImage, entry: Proposed, outcome: CommandOutcome) -> MetadataImage:
    """Record the outcome of a session's command, applied or rejected."""
    used = image.proposals + 1
    session = SessionImage(used=used, sequence=entry.sequence, outcome=outcome)
    sessions = {**image.sessions, entry.client_id: session}
    return msgspec.structs.replace(image, proposals=used, sessions=sessions)


def _outcome(image: MetadataImage, command: Command) -> tuple[MetadataImage, CommandOutcome]:
    """Apply a command; a rejection leaves the image unchanged."""
    try:
        return _run(image, command)
    except (CommandRejectedError, StrandlineError) as error:
        return image, refused(error)


def _run(image: MetadataImage, command: Command) -> tuple[MetadataImage, CommandOutcome]:
    kind = type(command)
    if kind in _WHOLE:
        return activity.noted(image, _WHOLE[kind](image, command), command), CommandOutcome()
    if kind in _ANSWERING:
        return _ANSWERING[kind](image, command)
    if isinstance(command, AllocateProducerIds):
        return _allocate_producer_ids(image, command)
    assert isinstance(command, OpenSession), command
    return _open_session(image)


def _allocate_producer_ids(
    image: MetadataImage, command: AllocateProducerIds
) -> tuple[MetadataImage, CommandOutcome]:
    if not 1 <= command.count <= PRODUCER_IDS_MAX:
        raise CommandRejectedError(
            "limit", f"count must be between 1 and {PRODUCER_IDS_MAX}, got {command.count}"
        )
    owners, first = image.producer_owners, image.next_producer_id
    if command.owner and command.owner not in owners:
        if len(owners) >= OWNERS_MAX:
            raise CommandRejectedError(
                "limit", f"{OWNERS_MAX} principals have producer ids, the most"
            )
        owners = {**owners, command.owner: len(owners) + 1}
    after = msgspec.structs.replace(
        image, next_producer_id=first + command.count, producer_owners=owners
    )
    return after, CommandOutcome(value=producer_id_of(first, owners.get(command.owner, 0)))


def _open_session(image: MetadataImage) -> tuple[MetadataImage, CommandOutcome]:
    """Open a session under a new id, and forget the least recently used if there are too many."""
    client_id, used = image.next_client_id, image.proposals + 1
    sessions = dict(image.sessions)
    if len(sessions) >= SESSIONS_MAX:
        del sessions[min(sessions, key=lambda client: sessions[client].used)]
    sessions[client_id] = SessionImage(used=used)
    after = msgspec.structs.replace(
        image, next_client_id=client_id + 1, proposals=used, sessions=sessions
    )
    return after, CommandOutcome(value=client_id)
