"""The pages of consumers, access, load and events, in a browser."""

import asyncio
import json
import re
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import nats
import pytest
from playwright.sync_api import expect

import strandline
from strandline.errors import UnauthenticatedError
from strandline.servers.http.console.pages_groups import NATS_PREFIX
from strandline.servers.nats.jetstream.subjects import GROUP_PREFIX
from strandline.testing import Server
from strandline.types import PartitionName

ADMIN = "an-administrators-token-made-for-this-test"


@pytest.fixture(scope="module")
def server():
    server = Server(http_port=0, nats=True)
    server.start()
    yield server
    server.stop()


@pytest.fixture
def client(server):
    with strandline.connect(server.url) as client:
        yield client
        for info in client.list_streams():
            if not info.name.startswith("__"):
                client.delete_stream(info.name)


def test_a_committed_offset_beyond_the_end_is_marked(server, client, page):
    """The lag is what the next member reads: all of a stream that was created again."""
    client.create_stream("orders", partitions=1)
    for _ in range(5):
        client.append("orders", b"x")
    client.groups.commit("billing", {PartitionName("orders", 0): 5})
    page.goto(f"{server.http_url}/group?name=billing")
    row = page.get_by_role("row", name="orders")
    expect(row.get_by_role("cell").nth(3)).to_have_text("0")
    expect(row).not_to_contain_text("beyond")
    client.delete_stream("orders")
    client.create_stream("orders", partitions=1)
    for _ in range(3):
        client.append("orders", b"y")
    page.reload()
    expect(row).to_contain_text("beyond the end")
    expect(row.get_by_role("cell").nth(3)).to_have_text("3")


def test_a_group_is_shown_with_its_lag_and_members_and_is_reset(server, client, page):
    """The preview changes nothing; what it has shown is what is set; members forbid it."""
    client.create_stream("orders", partitions=2)
    for number in range(20):
        client.append("orders", b"x", partition=number % 2)
    client.groups.commit("billing", {PartitionName("orders", n): 4 + n for n in (0, 1)})
    page.goto(f"{server.http_url}/groups")
    row = page.get_by_role("row", name="billing")
    expect(row.get_by_role("cell").nth(3)).to_have_text("11")
    page.get_by_role("link", name="billing").click()
    page.get_by_label("To", exact=True).select_option("earliest")
    page.get_by_role("button", name="Preview").click()
    page.get_by_text("reads 5 again").wait_for()
    offsets = client.groups.info("billing").positions
    assert offsets == {"orders": {0: 4, 1: 5}}
    page.get_by_role("button", name="Set these offsets").click()
    page.get_by_text("The committed offsets were set.").wait_for()
    assert client.groups.info("billing").positions == {"orders": {0: 0, 1: 0}}
    page.get_by_label("To", exact=True).select_option("offset")
    page.get_by_label("Time or offset").fill("99")
    page.get_by_label("Partition", exact=True).fill("1")
    page.get_by_role("button", name="Preview").click()
    page.get_by_role("button", name="Set these offsets").click()
    assert "beyond the end of orders/1" in page.get_by_role("alert").inner_text()
    page.goto(f"{server.http_url}/group?name=billing&stream=orders&to=time&at=soon")
    assert "'soon' is not a time" in page.get_by_role("alert").inner_text()
    with client.consumer("billing", "orders") as consumer:
        consumer.poll(5.0)
        page.goto(f"{server.http_url}/group?name=billing&stream=orders&to=latest")
        page.get_by_text("orders: 0, 1").wait_for()
        page.get_by_role("button", name="Set these offsets").click()
        assert "members" in page.get_by_role("alert").inner_text()
    page.goto(f"{server.http_url}/group?name=billing")
    page.get_by_role("button", name="Delete the group").click()
    page.get_by_role("alert").get_by_text("tick the box").wait_for()
    page.get_by_label("Delete the group and its committed offsets").check()
    page.get_by_role("button", name="Delete the group").click()
    page.get_by_text("The group was deleted.").wait_for()
    assert "billing" not in [each.group for each in client.groups.list()]


async def make_consumer(url):
    connection = await nats.connect(url)
    stream = connection.jetstream()
    subscription = await stream.pull_subscribe("jobs", "worker")
    for message in await subscription.fetch(3):
        await message.ack_sync()
    await connection.close()


def test_a_nats_consumer_is_shown_with_its_lag(server, client, page):
    """A durable consumer of JetStream's API, under its own name."""
    client.create_stream("jobs")
    for _ in range(10):
        client.append("jobs", b"x")
    with ThreadPoolExecutor() as pool:  # Playwright's own loop runs on this thread
        pool.submit(asyncio.run, make_consumer(server.nats_url)).result()
    page.goto(f"{server.http_url}/groups")
    row = page.get_by_role("row", name="jobs/worker")
    expect(row).to_contain_text("NATS consumer")
    expect(row.get_by_role("cell").nth(3)).to_have_text("7")
    page.get_by_role("link", name="jobs/worker").click()
    assert page.get_by_role("button", name="Set these offsets").count() == 0
    assert NATS_PREFIX == GROUP_PREFIX


def test_a_pipeline_is_shown_with_its_lag_and_its_oldest_unread_record(server, client, page):
    """The one that is behind comes first; a group with a member is a consumer, not a pipeline."""
    client.create_stream("orders", partitions=2)
    for number in range(20):
        client.append("orders", b"x", partition=number % 2)
    client.groups.commit("done", {PartitionName("orders", n): 10 for n in (0, 1)})
    client.groups.commit("load", {PartitionName("orders", n): 4 + n for n in (0, 1)})
    with client.consumer("reader", "orders") as consumer:
        consumer.poll(5.0)
        page.goto(f"{server.http_url}/pipelines")
        rows = page.get_by_role("region", name="Pipelines").locator("tbody tr")
        expect(rows).to_have_count(2)
        expect(rows.nth(0)).to_contain_text("load")
        expect(rows.nth(1)).to_contain_text("done")
    cells = rows.nth(0).get_by_role("cell")
    expect(cells.nth(0)).to_have_text("orders")
    expect(cells.nth(2)).to_have_text("11")
    assert re.fullmatch(r"\d+ (ms|s)", cells.nth(3).inner_text())
    expect(rows.nth(1).get_by_role("cell").nth(1)).to_have_text("up to date")
    expect(cells.nth(1)).to_have_text("not moving", timeout=30_000)
    client.groups.commit("done", {}, metadata="the disk is full <b>")
    page.reload()
    expect(rows.nth(0)).to_contain_text("failed the disk is full <b>")
    page.get_by_role("link", name="done").click()
    expect(page.get_by_text("the disk is full <b>")).to_be_visible()
    for name in ("load", "done"):
        client.groups.delete(name)
    page.goto(f"{server.http_url}/pipelines?q=load")
    expect(page.get_by_text("No pipeline has “load” in its name.")).to_be_visible()


def test_rules_tokens_and_quotas_are_administered(open_page):
    """A token is shown once, opens what its rules allow, and no more once it is revoked."""
    with (
        Server(http_port=0, auth={"enabled": True, "admin_token": ADMIN}) as url,
        strandline.connect(url, token=ADMIN) as client,
        open_page() as page,
    ):
        client.create_stream("orders")
        page.goto(f"{url.http_url}/access")
        page.get_by_label("Token").fill(ADMIN)
        page.get_by_role("button", name="Log in").click()
        grant = page.locator("form[action='/access/grant']")
        grant.get_by_label("Principal").fill("billing")
        grant.get_by_label("Pattern").fill("orders")
        grant.get_by_role("button").click()
        page.get_by_text("The rule was added.").wait_for()
        page.get_by_label("For the principal").fill("billing")
        page.get_by_role("button", name="Create a token").click()
        token = page.locator("#new-token").inner_text()
        with strandline.connect(url, token=token) as other:
            assert [info.name for info in other.list_streams()] == ["orders"]
        page.goto(f"{url.http_url}/access")
        assert token not in page.content()

        quota = page.locator("form[action='/access/set-quota']")
        quota.get_by_label("Principal").fill("billing")
        quota.get_by_label("Read bytes a second").fill("5MiB")
        quota.get_by_role("button").click()
        page.get_by_text("The quota was set.").wait_for()
        assert client.quotas.list()[0].read_bytes_per_s == 5 << 20
        page.get_by_role("button", name="Remove the quota of billing").click()
        page.get_by_text("The quota was removed.").wait_for()

        page.get_by_role("button", name=re.compile("Revoke the token")).click()
        page.get_by_text("The token was revoked.").wait_for()
        with pytest.raises(UnauthenticatedError):
            strandline.connect(url, token=token)
        page.get_by_role("button", name="Revoke read on stream orders from billing").click()
        page.get_by_text("The rule was removed.").wait_for()
        assert client.access.rules() == []
        grant.get_by_label("Principal").fill("__broker")
        grant.get_by_label("Pattern").fill("x")
        grant.get_by_role("button").click()
        assert page.get_by_role("alert").count() == 1
        assert client.access.rules() == []
        page.get_by_role("button", name="Log out").click()
        page.goto(f"{url.http_url}/streams")
        page.get_by_role("heading", name="Strandline").wait_for()
        assert "orders" not in page.content()


def test_load_is_drawn_and_events_are_found(server, client, page):
    """Each graph has axes with units and a line; a creation and a refusal are events.

    For longer times there is a dashboard for Grafana to download.
    """
    client.create_stream("orders")
    broker = server.app.broker
    for _ in range(3):
        client.append("orders", b"x" * 1000)
        broker.run_coroutine(sampled(broker.monitor)).result()
    page.goto(f"{server.http_url}/load")
    graphs = page.locator("svg.graph")
    expect(graphs).to_have_count(10)
    for graph in graphs.all():
        assert graph.locator("text").count() >= 6
        assert graph.locator("polyline").first.get_attribute("points").count(",") >= 2
    widest = page.evaluate("""() => {
        const text = document.querySelector("svg.graph text")
        text.textContent = "500.0 MiB/s"
        return text.getBBox().x
    }""")
    assert widest >= 0  # not cut off at the left
    memory = page.get_by_role("img", name=re.compile("Memory of the process; now .* [MG]iB"))
    assert re.search("[MG]iB", memory.text_content())
    with page.expect_download() as started:
        page.get_by_role("link", name="this dashboard").click()
    assert started.value.suggested_filename == "strandline-grafana.json"
    assert json.loads(started.value.path().read_text())["panels"]
    page.goto(f"{server.http_url}/events?kind=stream")
    page.get_by_role("row", name="created with 1 partition").first.wait_for()
    page.get_by_label("Search").fill("no such event")
    page.get_by_text("Nothing has happened that matches").wait_for()


async def sampled(monitor):
    """Sample on the broker's loop."""
    monitor.sample(is_of_history=True)


async def publish_some(url, done):
    connection = await nats.connect(url, user="x", password="y")
    for _ in range(25):
        await connection.publish("jobs", b"x")
    await connection.flush()
    await asyncio.to_thread(done.wait)
    await connection.close()


def test_clients_are_shown_with_their_protocol_and_messages(server, client, page):
    """Publishers at either way in, and readers by Arrow Flight; gone ones are not listed.

    Of those at nats-server, the broker's own connections are not.
    """
    client.create_stream("jobs")
    done = Event()
    with ThreadPoolExecutor() as pool:
        publishing = [
            pool.submit(asyncio.run, publish_some(url, done))
            for url in (server.ingest_url, server.nats_url)
        ]
        try:
            page.goto(f"{server.http_url}/clients?q=nats")
            for place in ("NATS, at the ingest listener", "NATS, at nats-server"):
                row = page.locator("tbody tr", has_text=place)
                expect(row.locator("td").nth(2)).to_have_text("25")
            page.get_by_label("Search").fill("flight")
            expect(page.locator("tbody tr").first).to_contain_text("Arrow Flight")
        finally:
            done.set()
        for each in publishing:
            each.result()
    page.goto(f"{server.http_url}/clients?q=nats")
    expect(page.get_by_text("No client matches.")).to_be_visible()
