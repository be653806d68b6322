"""What is shown and alerted on exists: dashboard and rules against the metrics there are."""

import json
import re
from itertools import chain, combinations
from pathlib import Path

import pytest
import yaml

from strandline.servers.http.console.static import DIRECTORY
from strandline.telemetry import METRICS, PREFIX, metric_names

DEPLOY = Path(__file__).parents[3] / "deploy"
BOARD = json.loads((DIRECTORY / "grafana.json").read_text())
RULES = yaml.safe_load((DEPLOY / "prometheus" / "rules.yaml").read_text())
PANELS = [panel for panel in BOARD["panels"] if panel["type"] != "row"]
HISTOGRAMS = {PREFIX + field.name for field in METRICS if field.metadata["kind"] == "histogram"}
LABELS = {PREFIX + f.name: f.metadata["label"] for f in METRICS if "label" in f.metadata}
EXPORTED = {*metric_names(), *(f"{name}_bucket" for name in HISTOGRAMS)} - HISTOGRAMS


def expressions():
    """Every query, by where it is."""
    for panel in PANELS:
        for target in panel["targets"]:
            yield f"{panel['title']} {target['refId']}", target["expr"]
    for rule in RULES["groups"][0]["rules"]:
        yield rule["alert"], rule["expr"]


QUERIES = dict(expressions())


def names_in(expression):
    return set(re.findall(r"\bstrandline_\w+", expression))


@pytest.mark.parametrize("place", QUERIES)
def test_queries_name_metrics_that_exist(place):
    """A renamed metric must not leave an empty panel, or an alert that never fires."""
    found = names_in(QUERIES[place])
    assert found
    assert found <= EXPORTED
    assert QUERIES[place].count("(") == QUERIES[place].count(")")


@pytest.mark.parametrize("place", QUERIES)
def test_counters_are_shown_as_rates(place):
    """A counter since the start tells little; only corruption is shown as it is."""
    counters = {name for name in names_in(QUERIES[place]) if name.endswith(("_total", "_bucket"))}
    is_rate = re.search(r"\b(rate|increase)\(", QUERIES[place])
    assert not counters or is_rate or place.startswith("Corruption")


def test_legends_name_labels_that_exist():
    """``by (label)`` and ``{{label}}`` are of the metric, or of Prometheus' own."""
    common = {"instance", "job", "le"}
    for panel in PANELS:
        for target in panel["targets"]:
            bases = {name.removesuffix("_total") for name in names_in(target["expr"])}
            known = common | {LABELS[name] for name in bases if name in LABELS}
            used = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
            for group in re.findall(r"by \(([^)]*)\)", target["expr"]):
                used |= {label.strip() for label in group.split(",")}
            assert used <= known, panel["title"]


def test_what_operators_need_is_on_the_board():
    """Replicas behind or missing, elections, commit and sync times, corruption, the journal."""
    shown = set(chain.from_iterable(map(names_in, QUERIES.values())))
    needed = (
        "under_replicated_partitions offline_partitions under_min_isr_partitions isr_shrinks_total"
        " isr_expands_total replica_lag_records replica_lag_bytes commit_seconds_bucket"
        " leader_elections_total controller consensus_term consensus_commit_index"
        " corrupt_batches_total repaired_batches_total failed_repairs_total journal_bytes"
        " commit_records_bucket commit_bytes_bucket sync_seconds_bucket ready"
    )
    assert {PREFIX + name for name in needed.split()} <= shown


def test_the_board_is_whole():
    """Ids differ, panels do not overlap, each is described and asks the chosen data source."""
    assert len({panel["id"] for panel in BOARD["panels"]}) == len(BOARD["panels"])
    places = [panel["gridPos"] for panel in BOARD["panels"]]
    assert all(place["x"] + place["w"] <= 24 for place in places)
    for one, other in combinations(places, 2):
        assert (
            one["x"] + one["w"] <= other["x"]
            or other["x"] + other["w"] <= one["x"]
            or one["y"] + one["h"] <= other["y"]
            or other["y"] + other["h"] <= one["y"]
        )
    for panel in PANELS:
        assert panel["description"].endswith("."), panel["title"]
        assert panel["datasource"]["uid"] == "${datasource}"


def test_the_answers_on_call_are_those_of_brokers():
    """Each text of /health/ready that the page quotes is in the code, also split over lines."""
    page = (DEPLOY.parent / "docs" / "on-call.md").read_text("utf-8")
    table = page.partition("## StrandlineNotReady")[2].partition("\n## ")[0]
    quoted = re.findall(r"`([^`]+)`", " ".join(re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)))
    assert len(quoted) > 6
    broker = DEPLOY.parent / "src" / "strandline"
    code = "".join(path.read_text("utf-8") for path in broker.rglob("*.py"))
    assert [text for text in quoted if text not in code] == []


def test_alerts_say_what_is_wrong():
    """Each has a name of ours, waits a while, and says what to do or look at."""
    page = (DEPLOY.parent / "docs" / "on-call.md").read_text("utf-8")
    sections = re.findall(r"^## (Strandline\w+)$", page, re.MULTILINE)
    rules = RULES["groups"][0]["rules"]
    assert sections == [rule["alert"] for rule in rules]
    for rule in rules:
        assert re.fullmatch(r"\d+[sm]", rule["for"])
        assert rule["annotations"]["summary"]
        assert rule["annotations"]["runbook"] == f"docs/on-call.md#{rule['alert'].lower()}"
