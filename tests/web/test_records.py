"""The pages of a stream's records, in a browser."""

import csv
import io
import json
import re
import time
import urllib.request
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from playwright.sync_api import expect

import strandline
from strandline.clock import SystemClock
from strandline.servers.http.console import records as records_module
from strandline.servers.http.console.records import Budget, RecordQuery, RecordReader
from strandline.testing import Server

HOSTILE = (
    "<script>window.hacked=1</script><img src=x onerror=window.hacked=1>",
    "'\"><svg/onload=window.hacked=1>",
    "{{7*7}}{% raw %}",
    "\x1b]0;title\x07\x1b[31m",
    "\u202egpj.exe",
)


@pytest.fixture(scope="module")
def server():
    with Server(http_port=0) as url:
        yield url


@pytest.fixture
def client(server):
    with strandline.connect(server) as client:
        yield client
        for info in client.list_streams():
            client.delete_stream(info.name)


@pytest.fixture
def orders(client):
    """300 records in three partitions, with keys, subjects and headers."""
    client.create_stream("orders", subject="orders.>", partitions=3)
    with client.producer("orders") as producer:
        for number in range(300):
            producer.append(
                json.dumps({"id": number, "city": "Oslo" if number % 50 == 7 else "Rome"}),
                key=f"k{number % 10}",
                subject=f"orders.{number % 4}",
                headers={"trace": f"t{number % 3}"},
                partition=number % 3,
            )
    return "/streams/orders/records"


def shown(page):
    """The ids of the records of a page, in its order."""
    rows = page.locator("table.records > tbody > tr")
    return [int(re.search(r'"id": ?(\d+)', text)[1]) for text in rows.all_inner_texts()]


def walk(page, button):
    """The ids of all pages, one after another."""
    found = shown(page)
    while page.get_by_role("link", name=button, exact=True).count():
        with page.expect_navigation():
            page.get_by_role("link", name=button, exact=True).click()
        found += shown(page)
    return found


@pytest.mark.parametrize(("start", "button"), [("newest", "Older"), ("oldest", "Newer")])
def test_pages_show_every_record_once(server, orders, page, start, button):
    """Over all partitions, from either end."""
    page.goto(f"{server.http_url}{orders}?start={start}")
    found = walk(page, button)
    assert sorted(found) == list(range(300))
    of_one = [number for number in found if number % 3 == 1]
    assert of_one == sorted(of_one, reverse=start == "newest")


def test_records_are_found_by_subject_key_header_and_text(server, orders, page):
    """Each filter alone and all together, through the form."""
    page.goto(f"{server.http_url}{orders}?count=200")
    for label, text, wanted in (
        ("Subject", "orders.2", lambda n: n % 4 == 2),
        ("Key", "k3", lambda n: n % 10 == 3),
        ("Header", "trace=t1", lambda n: n % 3 == 1),
        ("Header", "Trace", lambda n: True),
        ("Value contains", "oslo", lambda n: n % 50 == 7),
    ):
        page.get_by_label(label, exact=True).fill(text)
        with page.expect_navigation():
            page.get_by_role("button", name="Show", exact=True).click()
        assert sorted(walk(page, "Older")) == [n for n in range(300) if wanted(n)], label
        page.get_by_label(label, exact=True).fill("")
    page.goto(f"{server.http_url}{orders}?subject=orders.*&key=k7&header=trace%3Dt1&text=oslo")
    assert shown(page) == [157, 7]


def test_records_are_shown_from_an_offset_and_from_a_time(server, client, orders, page):
    """Of one partition, or of all."""
    page.goto(f"{server.http_url}{orders}?start=offset&at=98&partition=2")
    assert shown(page) == [98 * 3 + 2, 99 * 3 + 2]
    page.goto(f"{server.http_url}{orders}?start=offset&at=99")
    assert sorted(shown(page)) == [297, 298, 299]
    [batch] = client.read("orders", partition=0, start=99).read_all().to_batches()
    last = batch.column("timestamp").cast("int64")[0].as_py()
    page.goto(f"{server.http_url}{orders}?start=time&at=-1h&partition=0&count=200")
    assert len(shown(page)) == 100
    page.goto(f"{server.http_url}{orders}?start=time&at=2999-01-01&partition=0")
    page.get_by_text("No records").wait_for()
    assert last > 0
    page.goto(f"{server.http_url}{orders}?start=time&at=yesterday")
    assert "'yesterday' is not a time" in page.get_by_role("alert").inner_text()
    page.goto(f"{server.http_url}{orders}?partition=7")
    assert "there is no partition 7" in page.get_by_role("alert").inner_text()


def test_the_tail_shows_new_records_and_pauses(server, client, orders, page):
    """New records come first; while it is paused none, and afterwards all."""
    page.goto(f"{server.http_url}{orders}?partition=1&text=new")
    page.get_by_role("button", name="Follow").click()
    page.get_by_text("waiting for records").wait_for()
    rows = page.locator("table.records > tbody > tr")
    expect(rows).to_have_count(0)
    client.append("orders", "new-1", partition=1)
    client.append("orders", "new-other", partition=2)
    client.append("orders", "old", partition=1)
    expect(rows).to_have_count(1)
    page.get_by_role("button", name="Pause").click()
    client.append("orders", "new-2", partition=1)
    page.wait_for_timeout(1500)
    expect(rows).to_have_count(1)
    page.get_by_role("button", name="Continue").click()
    expect(rows).to_have_count(2)
    assert "new-2" in rows.first.inner_text()
    rows.first.locator("summary").click()
    client.append("orders", "new-3", partition=1)
    expect(rows).to_have_count(3)
    assert page.locator("details[open]").count() == 1


def test_a_record_is_published_and_shown(server, client, page):
    """With key, headers and subject; a repeated message id is stored once; refusals are shown."""
    client.create_stream("orders", subject="orders.>", partitions=2)
    page.goto(f"{server.http_url}/streams/orders/publish")
    for _ in range(2):
        page.get_by_label("Value", exact=True).fill("first line\nsecond <b>line</b>")
        page.get_by_label("Key", exact=True).fill("k")
        page.get_by_label("Subject", exact=True).fill("orders.eu")
        page.get_by_label("Message id").fill("id-1")
        page.get_by_label("Partition", exact=True).fill("1")
        page.get_by_label("Headers").fill("trace: abc\nx-y: z: w\n")
        page.get_by_role("button", name="Publish").click()
        page.get_by_text("Stored in partition 1 at offset 0.").wait_for()
    table = client.read("orders").read_all()
    assert table.num_rows == 1
    [row] = table.to_pylist()
    assert row["value"].replace(b"\r\n", b"\n") == b"first line\nsecond <b>line</b>"
    assert row["headers"][1:] == [("trace", b"abc"), ("x-y", b"z: w")]
    page.get_by_role("link", name="Show it").click()
    page.locator("summary").first.click()
    page.get_by_text("second <b>line</b>").first.wait_for()
    page.goto(f"{server.http_url}/streams/orders/publish")
    page.get_by_label("Subject", exact=True).fill("orders..x")
    page.get_by_role("button", name="Publish").click()
    assert "orders..x" in page.get_by_role("alert").inner_text()
    assert page.get_by_label("Subject", exact=True).input_value() == "orders..x"
    page.get_by_label("Headers").fill("no header")
    page.get_by_role("button", name="Publish").click()
    assert "is not a header" in page.get_by_role("alert").inner_text()
    assert client.read("orders").read_all().num_rows == 1


def fetch(server, path):
    with urllib.request.urlopen(f"{server.http_url}{path}", timeout=60) as answer:
        return answer.read(), answer.headers["content-disposition"]


def test_downloads_hold_what_was_stored(server, client, page):
    """JSON lines and Parquet every byte, CSV the text; no cell is a formula."""
    client.create_stream("orders")
    values = [b"=1+1", b"\xff\x00", None, 'ä\n,"'.encode()]
    for number, value in enumerate(values):
        client.append("orders", value, key=f"k{number}", headers={"h": f"+{number}"})
    body, name = fetch(server, "/streams/orders/download?format=jsonl&start=oldest")
    lines = [json.loads(line) for line in body.decode().splitlines()]
    assert name.endswith("orders.jsonl")
    assert [line.get("value") for line in lines] == ["=1+1", None, None, 'ä\n,"']
    assert lines[1]["value_base64"] == "/wA="
    assert lines[2]["headers"] == [["h", "+2"]]
    body, _ = fetch(server, "/streams/orders/download?format=csv&start=oldest")
    rows = list(csv.DictReader(io.StringIO(body.decode())))
    assert [row["value"] for row in rows] == ["'=1+1", "\\xff\x00", "", 'ä\n,"']
    body, _ = fetch(server, "/streams/orders/download?format=parquet&start=oldest")
    table = pq.read_table(pa.BufferReader(body))
    assert table.column("value").to_pylist() == values
    stored = client.read("orders").read_all()
    assert table.column("timestamp").to_pylist() == stored.column("timestamp").to_pylist()
    assert table.column("headers").to_pylist() == stored.column("headers").to_pylist()
    body, _ = fetch(server, "/streams/orders/download?format=jsonl&start=oldest&key=k3")
    assert json.loads(body)["offset"] == 3
    page.goto(f"{server.http_url}/streams/orders/records?key=k1")
    page.get_by_label("Format").select_option("csv")
    with page.expect_download() as started:
        page.get_by_role("button", name="Download").click()
    assert started.value.suggested_filename == "orders.csv"
    page.goto(f"{server.http_url}/streams/orders/records")
    page.locator("summary").nth(2).click()
    with page.expect_download() as started:
        page.get_by_role("link", name="Download the value").click()
    assert started.value.path().read_bytes() == values[1]


def test_a_download_has_limits(server, client):
    """A larger one is refused with the command that has none; a cut one says so in its name."""
    client.create_stream("orders")
    with client.producer("orders") as producer:
        for _ in range(70):
            producer.append(b"x" * 1_000_000)
    with pytest.raises(urllib.error.HTTPError, match="400"):
        fetch(server, "/streams/orders/download?records=100001")
    body, name = fetch(server, "/streams/orders/download?format=jsonl&records=1000")
    assert name.endswith("orders.part.jsonl")
    assert 30 << 20 < len(body) < 40 << 20


def test_hostile_data_is_shown_and_does_nothing(server, client, page):
    """In names, subjects, keys, values and headers; on every page that shows them."""
    client.create_stream("orders", subject="x.>")
    for text in HOSTILE:
        subject = "x." + re.sub(r"[\s.*>]", "", text.replace("\x1b", "").replace("\x07", ""))
        client.append("orders", text, key=text, headers={"h": text}, subject=subject)
    client.create_stream("evil", subject="evil.<img/src=x/onerror=hacked=1")
    for path in ("/streams", "/streams/evil", "/streams/orders/records", "/streams?q=<script>"):
        page.goto(f"{server.http_url}{path}")
        for opener in page.locator("table.records summary").all():
            opener.click()
        assert page.evaluate("window.hacked") is None
        assert page.locator("main img, main svg, main script").count() == 0
    page.goto(f"{server.http_url}/streams/orders/records")
    text = page.locator("table.records").inner_text()
    assert HOSTILE[0] in text
    assert "{{7*7}}" in text
    assert "\\x1b[31m" in text
    assert "\\u202egpj" in text
    assert "\x1b" not in page.content()
    assert "\u202e" not in page.content()
    page.goto(f"{server.http_url}/streams/orders/records?tail=1&decode=text")
    client.append("orders", HOSTILE[0], key=HOSTILE[1], headers={HOSTILE[2]: HOSTILE[0]})
    expect(page.locator("table.records > tbody > tr")).to_have_count(6)
    assert page.evaluate("window.hacked") is None
    page.goto(f"{server.http_url}/streams/{quote(HOSTILE[0].replace('/', ''))}")
    assert page.evaluate("window.hacked") is None


def test_a_search_is_limited_and_goes_on(server, client, page, monkeypatch):
    """A page looks at so many records only; the next goes on where it stopped, and misses none."""
    client.create_stream("orders")
    with client.producer("orders") as producer:
        for number in range(3000):
            producer.append(b'{"id": %d}' % number + (b" needle" if number % 1000 == 5 else b""))
    monkeypatch.setattr(records_module, "SEARCHED_RECORDS_MAX", 700)
    page.goto(f"{server.http_url}/streams/orders/records?text=needle&start=oldest")
    page.get_by_text("The search stopped at its limit").wait_for()
    assert shown(page) == [5]
    assert walk(page, "Search further") == [5, 1005, 2005]
    monkeypatch.setattr(records_module, "FILTERED_OFFSETS_MAX", 800)
    client.append("orders", b'{"id": 9}', key="rare")
    page.goto(f"{server.http_url}/streams/orders/records?key=rare&start=oldest")
    assert walk(page, "Search further") == [9]


def test_a_spent_budget_reads_nothing(client):
    """Neither of one partition nor of the others; the positions stay where they are."""
    client.create_stream("orders", partitions=2)
    for number in range(4):
        client.append("orders", b"x", partition=number % 2)
    parts = list(client.stream_info("orders").partitions)
    reader = RecordReader(
        client,
        "orders",
        parts,
        wanted=RecordQuery(),
        budget=Budget(SystemClock(), records=0, size_bytes=1000, seconds=10.0),
    )
    began = time.monotonic()
    found = reader.newest({}, 10)
    assert (found.records, found.positions, found.is_cut) == ([], {0: 2, 1: 2}, True)
    assert reader.oldest({0: 1}, 10).positions == {0: 1, 1: 0}
    assert time.monotonic() - began < 5
