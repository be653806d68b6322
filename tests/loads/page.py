"""The page of results of killed loads."""

import os
import time

from .kinds import KINDS

HEADINGS = (
    *("load", "rounds", "kills of it", "of the broker", "records", "lost", "doubled"),
    *("snapshots read", "offsets and data disagreed", "unions read", "wrong", "commits"),
    *("files merged", "files expired", "faults of the store"),
)
INTRODUCTION = (
    "`make kill-loads` makes this page; [docs/pipelines.md](../../docs/pipelines.md#crash-tests)",
    "says what happens in a round. Each round is a load into a new table; a kill is `kill -9` at a",
    "random moment. Lost and doubled are rows of the table and dead letters at the end of a round,",
    "compared with the log, which had everything that was acknowledged. A snapshot was read after",
    "each kill and at random moments, and compared with the records below its own offsets; a union",
    "is `strandline.table`, the table with the log's tail, which upserts do not have.",
)


def page(rounds, *, seed):
    """Return the results of all rounds as Markdown."""
    lines = [f"# Loads killed, {time.strftime('%Y-%m-%d')}", "", *INTRODUCTION, ""]
    lines += ["| " + " | ".join(HEADINGS) + " |", "|---" * len(HEADINGS) + "|"]
    by_name = {kind.name: [r for r in rounds if r.kind == kind.name] for kind in KINDS}
    lines += [_row(name, mine) for name, mine in by_name.items() if mine]
    lines.append(_row("all", rounds))
    seconds = sum(each.seconds for each in rounds)
    refused = sum(each.refused for each in rounds)
    lines += [
        "",
        f"Seed {seed}; {len(rounds)} rounds in {seconds / 60:.0f} minutes on {os.cpu_count()}",
        f"cores that others used, too. {refused} lives ended by themselves, with an error that may",
        "pass or because another one had committed.",
        "",
    ]
    failed = [each for each in rounds if each.failure]
    lines += [f"Round {each.number} ({each.kind}) failed: {each.failure}\n" for each in failed]
    return "\n".join(lines)


def _row(name, rounds):
    def total(field):
        return sum(getattr(each, field) for each in rounds)

    faults = {}
    for each in rounds:
        for kind, number in each.store_faults.items():
            faults[kind] = faults.get(kind, 0) + number
    cells = [
        name,
        len(rounds),
        sum(each.kills.get("load", 0) for each in rounds),
        sum(each.kills.get("broker", 0) for each in rounds),
        f"{total('records'):,}",
        *(total(each) for each in ("lost", "doubled")),
        *(f"{total(each):,}" for each in ("snapshots",)),
        *(total(each) for each in ("disagreeing", "unions", "wrong_unions", "commits")),
        *(total(each) for each in ("merged", "expired")),
        ", ".join(f"{kind} {number}" for kind, number in sorted(faults.items())) or "-",
    ]
    return "| " + " | ".join(map(str, cells)) + " |"
