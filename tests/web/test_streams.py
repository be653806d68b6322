"""The pages of the cluster and its streams, in a browser."""

import re
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest
from playwright.sync_api import expect

import strandline
from strandline.testing import Server
from tests.kit.clusters import IDS, WITH_HTTP, leader_of, three_brokers


@pytest.fixture(scope="module")
def server():
    with Server(http_port=0) as url:
        yield url


@pytest.fixture
def client(server):
    with strandline.connect(server) as client:
        yield client
        for info in client.list_streams():
            if not info.name.startswith("__"):
                client.delete_stream(info.name)


def test_a_stream_is_created_seen_and_deleted(server, client, page):
    """As a person does it: the form, the page of the stream, the name typed to confirm."""
    page.goto(f"{server.http_url}/streams")
    page.get_by_text("There are no streams yet.").wait_for()
    page.get_by_role("link", name="Create a stream").click()
    page.get_by_label("Name", exact=True).fill("orders")
    page.get_by_label("NATS subject").fill("orders.>")
    page.get_by_label("Partitions", exact=True).fill("3")
    page.get_by_label("Maximum age").fill("36h")
    page.get_by_label("Maximum size of a partition").fill("1.5GiB")
    page.get_by_role("button", name="Create").click()
    page.get_by_text("The stream was created.").wait_for()
    config = client.stream_info("orders").config
    assert (config.subject, config.partitions) == ("orders.>", 3)
    assert (config.retention_age_ms, config.retention_bytes) == (36 * 3_600_000, 3 << 29)
    assert "1 d 12 h" in page.get_by_role("row", name="retention_age").inner_text()
    assert "1.5 GiB" in page.get_by_role("row", name="retention_bytes").inner_text()

    page.get_by_role("link", name="Delete …").click()
    page.get_by_label("Type the name").fill("other")
    page.get_by_role("button", name="Delete the stream").click()
    page.get_by_role("alert").get_by_text("type the name of the stream, orders").wait_for()
    assert [info.name for info in client.list_streams()] == ["orders"]
    page.get_by_label("Type the name").fill("orders")
    page.get_by_role("button", name="Delete the stream").click()
    page.get_by_text("The stream was deleted.").wait_for()
    assert client.list_streams() == []


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"Maximum age": "7 fortnights"}, "'7 fortnights' is not a duration; write for example"),
        ({"Maximum size of a partition": "big"}, "'big' is not a size; write for example 64MiB"),
        ({"Partitions": "0"}, "partitions"),
        ({"NATS subject": "a..b"}, "a..b"),
        ({"Replicas": "3"}, "replicas is 3, which needs a cluster"),
    ],
)
def test_a_wrong_setting_is_explained_beside_the_form(server, client, page, fields, message):
    """The broker's own message, with what was entered still there."""
    page.goto(f"{server.http_url}/create-stream")
    page.get_by_label("Name", exact=True).fill("orders")
    for label, text in fields.items():
        page.get_by_label(label, exact=True).fill(text)
    page.get_by_role("button", name="Create").click()
    assert message in page.get_by_role("alert").inner_text()
    assert page.get_by_label("Name", exact=True).input_value() == "orders"
    for label, text in fields.items():
        assert page.get_by_label(label, exact=True).input_value() == text
    assert client.list_streams() == []


def test_streams_are_found_while_typing(server, client, page):
    """By name and by subject; the keyboard stays in the field."""
    for name in ("orders", "payments", "audit"):
        client.create_stream(name, subject=f"shop.{name}")
    page.goto(f"{server.http_url}/streams")
    rows = page.locator("tbody tr")
    assert rows.count() == 3
    field = page.get_by_label("Search by name or subject")
    field.click()
    page.keyboard.type("PAY")
    expect(rows).to_have_count(1)
    expect(rows).to_contain_text("payments")
    assert page.url.endswith("q=PAY&sort=name")
    page.keyboard.type("x")
    page.get_by_text("No stream has").wait_for()
    assert field.input_value() == "PAYx"
    page.goto(f"{server.http_url}/streams?q=shop.a")
    assert "audit" in rows.inner_text()


def test_updates_leave_the_keyboards_focus_and_the_selection(server, client, page):
    """The figures of a page change while what is focused and selected stays as it is."""
    client.create_stream("orders")
    client.append("orders", b"1")
    page.goto(f"{server.http_url}/streams")
    cell = page.locator("tbody tr td").nth(2)
    assert cell.inner_text() == "1"
    page.locator("tbody a").focus()
    page.evaluate(
        "getSelection().selectAllChildren(document.querySelector('tbody td'));"
        "window.before = document.activeElement"
    )
    for count in ("2", "3"):
        client.append("orders", b"x")
        expect(cell).to_have_text(count)
    assert page.evaluate("document.activeElement === window.before")
    assert page.evaluate("document.activeElement.textContent") == "orders"
    assert page.evaluate("getSelection().toString()") == "orders"


def test_records_are_deleted_after_a_tick(server, client, page):
    """Without the tick nothing happens; with it the log begins at the offset."""
    client.create_stream("orders")
    for _ in range(5):
        client.append("orders", b"x")
    page.goto(f"{server.http_url}/streams/orders")
    page.get_by_label("First offset to keep").fill("3")
    page.get_by_role("button", name="Delete records").click()
    page.get_by_role("alert").get_by_text("tick the box").wait_for()
    assert client.offsets("orders", "earliest") == {0: 0}
    page.get_by_label("Delete the records below it").check()
    page.get_by_role("button", name="Delete records").click()
    page.get_by_text("The records were deleted.").wait_for()
    assert client.offsets("orders", "earliest") == {0: 3}


def test_a_page_for_what_does_not_exist_says_so(server, page):
    """With the broker's message and a status of 404."""
    answer = page.goto(f"{server.http_url}/streams/nothing")
    assert answer.status == 404
    assert "nothing" in page.get_by_role("alert").inner_text()


@pytest.mark.slow
def test_every_broker_of_a_cluster_shows_the_whole_of_it(tmp_path, open_page):
    """Rates, sizes and records at each broker, the replicas' lag, and a broker that is killed."""
    stop = Event()

    def load(address):
        with strandline.connect(address) as client, client.producer("orders") as producer:
            while not stop.wait(0.01):
                producer.append(b"x" * 100)

    def rate(page):
        text = page.locator("tbody tr", has_text="orders").locator("td").nth(3).inner_text()
        return float(text.removesuffix("/s").replace(",", "").replace("…", "0"))

    with (
        three_brokers(tmp_path, more=WITH_HTTP) as cluster,
        ThreadPoolExecutor() as pool,
    ):
        with strandline.connect(cluster[1].flight) as client:
            client.create_stream("orders", partitions=2, replicas=3, min_isr=2)
        loading = pool.submit(load, cluster[1].flight)
        try:
            for number in IDS:
                with open_page() as page:
                    page.goto(f"{cluster[number].http_url}/streams")
                    expect(page.locator("tbody")).not_to_contain_text(re.compile(r"…|\b0/s"))
                    assert rate(page) > 10
                    page.goto(f"{cluster[number].http_url}/streams/orders")
                    cell = page.locator("tbody tr").first.locator("td").nth(1)
                    assert sorted(cell.inner_text().split()) == ["1", "2", "3"]
                    page.goto(cluster[number].http_url)
                    page.get_by_text("All 3 brokers are in service").wait_for()
                    assert page.get_by_text("controller").count() == 1
            victim = next(n for n in IDS if n != leader_of(cluster))
            watched = next(n for n in IDS if n != victim)
            with open_page() as page:
                page.goto(cluster[watched].http_url)
                cluster[victim].kill()
                page.get_by_text(f"broker {victim} is fenced").wait_for()
                page.get_by_role("heading", name="Under-replicated partitions").wait_for()
                page.locator("[data-live=under] .tag.bad", has_text=str(victim)).first.wait_for()
                assert re.search(r"[12] partitions? (is|are) under-replicated", page.content())
                page.goto(f"{cluster[watched].http_url}/events?q=orders/")
                page.get_by_role("row", name=f"broker {victim} fell out of sync").first.wait_for()
                page.goto(f"{cluster[watched].http_url}/events?q=broker+{victim}")
                page.get_by_text("was live, is fenced").wait_for()
                page.goto(f"{cluster[watched].http_url}/load")
                expect(page.locator("svg.graph").first.locator("polyline")).to_have_count(2)
        finally:
            stop.set()
        loading.result()
