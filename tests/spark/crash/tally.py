"""The results of crash runs, as one dated table to which every set of runs adds its own.

Rules: the counts are the judge's; a chunk that failed is in the table with what was seen.
"""

import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

import msgspec


@dataclass
class Chunk:
    """Some runs on the same streams, one after the other."""

    brokers: int
    executors: int
    """Of a Spark cluster; 0: the driver did everything."""
    seed: int
    kinds: str
    victims: str
    """Words that have their turns, run by run."""
    drivers: int
    """How many work on the same checkpoints at the end."""
    load: float
    """Average load of the machine when it began."""
    runs: int = 0
    records: int = 0
    seconds: int = 0
    failure: str = "ended from outside"
    """Empty once everything was judged."""
    killed: dict = field(default_factory=dict)
    """Victim: how often."""
    hit: dict = field(default_factory=dict)
    """Pipeline: victim: how often it was killed while this pipeline had records before it."""
    restarted: dict = field(default_factory=dict)
    """Pipeline: how often its query failed though its driver lived, and was started again."""
    fenced: dict = field(default_factory=dict)
    """Pipeline: how many of two drivers on its checkpoint ended with an error."""
    verdicts: dict = field(default_factory=dict)

    def count(self, victim, busy):
        """Note a kill, and the pipelines that had work to do then."""
        self.killed[victim] = self.killed.get(victim, 0) + 1
        for kind in busy:
            hits = self.hit.setdefault(kind, {})
            hits[victim] = hits.get(victim, 0) + 1


def write_results(chunk, directory):
    """Add a chunk to the results of this day; returns the page with all of them."""
    chunks = [asdict(chunk)]
    if directory is not None:
        stem = Path(directory) / f"{time.strftime('%Y-%m-%d')}-crash-pipelines"
        if stem.with_suffix(".json").exists():
            chunks = [*msgspec.json.decode(stem.with_suffix(".json").read_bytes()), *chunks]
        stem.with_suffix(".json").write_bytes(
            msgspec.json.format(msgspec.json.encode(chunks)) + b"\n"
        )
        stem.with_suffix(".md").write_text(page(chunks))
    return page(chunks)


def page(chunks):
    """All chunks as Markdown."""
    lines = [f"# Pipelines killed, {time.strftime('%Y-%m-%d')}", "", *INTRODUCTION, ""]
    lines += ["| " + " | ".join(HEADINGS) + " |", "|---" * len(HEADINGS) + "|"]
    for brokers in sorted({chunk["brokers"] for chunk in chunks}):
        mine = [chunk for chunk in chunks if chunk["brokers"] == brokers]
        kinds = dict.fromkeys(kind for chunk in mine for kind in chunk["verdicts"])
        lines += [row(kind, [c for c in mine if kind in c["verdicts"]]) for kind in kinds]
    lines += ["", *KILLS, "", *kills(chunks), "", *seeds(chunks), ""]
    return "\n".join(lines)


INTRODUCTION = (
    "`make crash-pipelines` makes this page;",
    "[docs/pipelines.md](../../docs/pipelines.md#crash-tests) says what happens in a run.",
    "Lost: expected and not there. Duplicated: there too often, or not expected. Out of place:",
    "each there once, but not in its order. Restarted: queries that failed while their driver",
    "lived. Refused: of two drivers that worked on the same checkpoints at the end, those that",
    "ended with an error; a second one that finds nothing left to do is not.",
)
KILLS = (
    "Who was killed with `kill -9` how often while a pipeline had records before it, by the",
    "progress it had noted at that moment; records went on coming all the time, those of `extra`",
    "through the nats-server that was killed. An executor is a process of a Spark cluster with two",
    "workers, a worker one of Spark's Python processes where the driver does everything.",
)
HEADINGS = (
    *("pipeline", "brokers", "runs", "kills", "records in", "records out"),
    *("lost", "duplicated", "out of place", "restarted", "refused of two drivers"),
)


def row(kind, chunks):
    """One pipeline in all chunks."""

    def total(name):
        return sum(chunk["verdicts"][kind][name] for chunk in chunks)

    fenced = [chunk["fenced"][kind] for chunk in chunks if kind in chunk["fenced"]]
    cells = [
        kind,
        chunks[0]["brokers"],
        sum(chunk["runs"] for chunk in chunks),
        sum(sum(chunk["killed"].values()) for chunk in chunks),
        f"{sum(chunk['records'] for chunk in chunks):,}",
        f"{total('found'):,}",
        total("lost"),
        total("duplicated"),
        total("misplaced"),
        sum(chunk["restarted"].get(kind, 0) for chunk in chunks),
        f"{sum(fenced)} of {2 * len(fenced)}" if fenced else "-",
    ]
    return "| " + " | ".join(map(str, cells)) + " |"


def kills(chunks):
    """Return how often each victim was killed, for each pipeline."""
    victims = sorted({victim for chunk in chunks for victim in chunk["killed"]})
    lines = ["| pipeline | brokers | " + " | ".join(victims) + " |"]
    lines.append("|---" * (len(victims) + 2) + "|")
    for brokers in sorted({chunk["brokers"] for chunk in chunks}):
        mine = [chunk for chunk in chunks if chunk["brokers"] == brokers]
        hits = [chunk["hit"] for chunk in mine]
        for kind in dict.fromkeys(kind for each in hits for kind in sorted(each)):
            times = [sum(each.get(kind, {}).get(victim, 0) for each in hits) for victim in victims]
            lines.append("| " + " | ".join(map(str, (kind, brokers, *times))) + " |")
        times = [sum(chunk["killed"].get(victim, 0) for chunk in mine) for victim in victims]
        lines.append("| " + " | ".join(map(str, ("all", brokers, *times))) + " |")
    return lines


def seeds(chunks):
    """Each chunk: how to have it again, and how it went."""
    lines = [
        "| arguments that repeat it | seconds | load at the start | verdict |",
        "|---" * 4 + "|",
    ]
    for chunk in chunks:
        names = ("brokers", "executors", "seed", "runs", "drivers", "victims", "kinds")
        cells = ["`" + " ".join(f"--{name} {chunk[name]}" for name in names) + "`"]
        cells.append(chunk["seconds"])
        verdict = chunk["failure"].replace("|", "/").replace("\n", " ")[:300]
        cells += [f"{chunk['load']:.0f}", verdict or "each record once, in order"]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return lines
