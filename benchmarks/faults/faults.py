"""What is done to each system under load: killed, cut from power, a bit flipped, its disk filled.

Rules: every fault is repeatable from its seed, up to the timing of processes; every wait is
bounded, and what does not happen in time becomes a note. A system that does not serve at the end
has lost what it acknowledged, as far as this command sees; its own tools may save some of it.
"""

from __future__ import annotations

import contextlib
import random
import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from benchmarks.faults.load import FaultLoad
from benchmarks.faults.records import MARK, SIZE_BYTES_MAX, Ledger, Payloads, Verdict
from benchmarks.faults.stores import Store, Stored, opened
from benchmarks.peers.process import StartError, UnavailableError
from chaos.faults import small_disk
from chaos.power_cut import power_cut_disk, unavailable_reason
from chaos.unsynced import Names

ROUNDS: Final = 2
FLIPS: Final = 3
PROGRESS: Final = 25
"""Acks of each connection between two faults."""
PROGRESS_TIMEOUT_S: Final = 20.0
FULL_S: Final = 6.0
LEFT_BYTES: Final = 256 << 10
"""Space that is left when a disk is filled."""
READ_TRIES_S: Final = 40.0
NOTE_LENGTH: Final = 160


@dataclass
class Outcome:
    """What became of one system under one fault."""

    system: str
    fault: str
    verdict: Verdict = field(default_factory=Verdict)
    notes: list[str] = field(default_factory=list)
    unavailable: str = ""
    """Why it was not tried."""
    version: str = ""
    seconds: float = 0.0

    def note(self, text: str) -> None:
        """Adds a remark, once."""
        line = " ".join(text.split())[:NOTE_LENGTH]
        if line not in self.notes:
            self.notes.append(line)


@dataclass(frozen=True)
class Trial:
    """One system and where it runs."""

    kind: type[Store]
    folder: Path
    seed: int
    outcome: Outcome


Fault = Callable[[Trial], None]


def kill(trial: Trial) -> None:
    """`kill -9` of the server under load, several times."""
    data = trial.folder / "data"
    data.mkdir()
    _rounds(trial, data, lambda store, _: store.kill())


def cut_power(trial: Trial) -> None:
    """Everything unsynced is lost, several times; names are durable with any sync, as on ext4."""
    _cut(trial, Names.EXT4, chance=False)


def cut_power_harshly(trial: Trial) -> None:
    """The worst that POSIX allows.

    Names need a sync of their directory, and each unsynced page is lost or kept by chance.
    """
    _cut(trial, Names.POSIX, chance=True)


def _cut(trial: Trial, names: Names, *, chance: bool) -> None:
    probe = trial.folder / "probe"
    probe.mkdir()
    if reason := unavailable_reason(probe):
        raise UnavailableError(reason)
    pages = lost_names = 0
    with power_cut_disk(trial.folder / "disk", names) as disk:

        def lose(store: Store, number: int) -> None:
            nonlocal pages, lost_names
            store.lose_power()
            dropped = disk.cut(trial.seed + number if chance else None)
            pages, lost_names = pages + dropped.pages, lost_names + dropped.names

        _rounds(trial, disk.path, lose, before=disk.sync)
    trial.outcome.note(f"dropped {pages} unsynced pages and {lost_names} names")


def flip_bits(trial: Trial) -> None:
    """After a `kill -9`: one bit flipped between the first and last record of a data file.

    Each flip is done to a fresh copy of the same directory, and each copy is judged alone.
    """
    data, saved = trial.folder / "data", trial.folder / "saved"
    data.mkdir()
    choice = random.Random(trial.seed)
    with _loaded(trial, data) as (store, load):
        with load.running():
            load.progress(2 * PROGRESS, PROGRESS_TIMEOUT_S)
            store.kill()
        shutil.copytree(data, saved)
        for _ in range(FLIPS):
            shutil.rmtree(data)
            shutil.copytree(saved, data)
            trial.outcome.note(_flip(data, choice))
            _judge(trial, store, load.ledger, started=_start(trial, store))
            store.kill()


def fill_disk(trial: Trial) -> None:
    """The disk fills up under load, the server is killed, and starts again with space."""
    data = trial.folder / "data"
    with ExitStack() as stack:
        if reason := stack.enter_context(small_disk(data)):
            raise UnavailableError(reason)
        store, load = stack.enter_context(_loaded(trial, data))
        with load.running():
            load.progress(PROGRESS, PROGRESS_TIMEOUT_S)
            ballast = _fill(data)
            time.sleep(FULL_S)
            trial.outcome.note(_told(load))
            if not store.is_running:
                trial.outcome.note("the server ended")
            store.kill()
            ballast.unlink()
            if started := _start(trial, store):
                _progresses(trial, load)
        _judge(trial, store, load.ledger, started=started)


FAULTS: Final[dict[str, Fault]] = {
    "kill -9": kill,
    "power cut": cut_power,
    "power cut, harsh": cut_power_harshly,
    "flipped bit": flip_bits,
    "full disk": fill_disk,
}


def run(fault: str, kind: type[Store], folder: Path, seed: int) -> Outcome:
    """Does one fault to one system, and judges it."""
    outcome, started = Outcome(kind.name, fault), time.monotonic()
    folder.mkdir(parents=True)
    try:
        FAULTS[fault](Trial(kind, folder, seed, outcome))
    except UnavailableError as error:
        outcome.unavailable = str(error)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    outcome.seconds = time.monotonic() - started
    return outcome


@contextlib.contextmanager
def _loaded(trial: Trial, data: Path) -> Iterator[tuple[Store, FaultLoad]]:
    """A running system, and a load that is not running yet."""
    with opened(trial.kind, trial.folder / "server", data) as store:
        trial.outcome.version = store.version
        yield store, FaultLoad(Ledger(Payloads(trial.seed)), store.appender)


def _rounds(
    trial: Trial,
    data: Path,
    strike: Callable[[Store, int], None],
    *,
    before: Callable[[], None] = lambda: None,
) -> None:
    """Strikes under load and starts again, several times; then judges.

    Args:
        trial: the system.
        data: its directory.
        strike: the fault; gets the number of the round.
        before: called once, when the system serves and has stored nothing yet.
    """
    choice = random.Random(trial.seed)
    with _loaded(trial, data) as (store, load):
        before()
        with load.running():
            started = _progresses(trial, load)
            for number in range(ROUNDS):
                time.sleep(choice.uniform(0, 0.3))
                strike(store, number)
                started = _start(trial, store)
                if not (started and _progresses(trial, load)):
                    break
        _judge(trial, store, load.ledger, started=started)


def _start(trial: Trial, store: Store) -> bool:
    """Starts a server on what a fault left; whether it serves."""
    try:
        store.start()
    except StartError as error:
        lines = [line for line in str(error).splitlines() if line.strip()]
        causes = [line for line in lines if re.search("error|exception|bad ", line, re.IGNORECASE)]
        trial.outcome.note(f"does not start: {(causes or lines)[-1]}")
        store.kill()
        return False
    return True


def _progresses(trial: Trial, load: FaultLoad) -> bool:
    """Waits for acks on every connection; whether they came in time."""
    if load.progress(PROGRESS, PROGRESS_TIMEOUT_S):
        return True
    trial.outcome.note(f"publishers stood still for {PROGRESS_TIMEOUT_S:.0f} s; {_told(load)}")
    return False


def _told(load: FaultLoad) -> str:
    """The most frequent answer that was no ack."""
    if not load.errors:
        return "publishers noticed nothing"
    return f"publishers were told: {load.errors.most_common(1)[0][0]}"


def _judge(trial: Trial, store: Store, ledger: Ledger, *, started: bool) -> None:
    stored = _read_back(store) if started else Stored(notes=["nothing could be read"])
    verdict = ledger.judge(stored.values)
    verdict.unreported = 0 if stored.notes else verdict.lost
    trial.outcome.verdict.add(verdict)
    for note in stored.notes:
        trial.outcome.note(note)


def _read_back(store: Store) -> Stored:
    """Reads everything; a server that has just started, or repairs itself, may need a moment."""
    deadline = time.monotonic() + READ_TRIES_S
    while True:
        try:
            stored = store.read()
        except (OSError, RuntimeError) as error:
            stored = Stored(notes=[f"cannot be read: {error}"])
            repairs = True
        else:
            repairs = bool(stored.notes) and store.repairs
        if not repairs or time.monotonic() > deadline:
            return stored
        time.sleep(0.5)


def _fill(data: Path) -> Path:
    """Takes the free space, but for a little; returns the file that does."""
    ballast, piece = data / "ballast", bytes(1 << 20)
    with ballast.open("wb", buffering=0) as file:
        with contextlib.suppress(OSError):  # there is no space left
            while True:
                file.write(piece)
        file.truncate(max(0, file.tell() - LEFT_BYTES))
    return ballast


def _flip(data: Path, choice: random.Random) -> str:
    """Flips one bit of a file that holds records; says where."""
    holding = []
    for path in sorted(path for path in data.rglob("*") if path.is_file()):
        content = path.read_bytes()
        if (first := content.find(MARK)) >= 0:
            last = min(content.rfind(MARK) + SIZE_BYTES_MAX, len(content))
            holding.append((path, first, last, content.count(MARK)))
    weights = [count for *_, count in holding]
    [(path, first, last, _)] = choice.choices(holding, weights)
    position, bit = choice.randrange(first, last), choice.randrange(8)
    with path.open("r+b") as file:
        file.seek(position)
        [byte] = file.read(1)
        file.seek(position)
        file.write(bytes([byte ^ 1 << bit]))
    return f"flipped bit {bit} of byte {position} of {path.relative_to(data)}"
