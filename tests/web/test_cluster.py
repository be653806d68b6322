"""The console of three brokers with access control and a trace, in a browser."""

import pytest
from playwright.sync_api import expect

import strandline
from strandline.types import PartitionName
from tests.kit.axe import violations
from tests.kit.clusters import IDS, WITH_HTTP, three_brokers

ADMIN = "an-administrators-token-made-for-this-test"
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    directory = tmp_path_factory.mktemp("console")
    environment = {
        "STRANDLINE_AUTH__ENABLED": "true",
        "STRANDLINE_AUTH__ADMIN_TOKEN": ADMIN,
        "STRANDLINE_TOKEN": ADMIN,
        "STRANDLINE_CLUSTER__TRACE": str(directory / "trace"),
    }
    with three_brokers(directory, environment_of=lambda _: environment, more=WITH_HTTP) as brokers:
        yield brokers


@pytest.fixture
def client(cluster):
    with strandline.connect(cluster[1].flight, token=ADMIN) as client:
        yield client


def log_in(page, server, token=ADMIN, to="/"):
    page.goto(f"{server.http_url}{to}")
    page.get_by_label("Token").fill(token)
    page.get_by_role("button", name="Log in").click()


def test_everything_is_done_at_any_broker(cluster, client, open_page):
    """A stream is created at one, published to at the next, read and reset at the third."""
    with open_page() as page:
        for number in IDS:  # three sessions: the brokers share a host name, not a login
            log_in(page, cluster[number])
            page.get_by_text("All 3 brokers are in service").wait_for()
        page.goto(f"{cluster[1].http_url}/create-stream")
        page.get_by_label("Name", exact=True).fill("orders")
        page.get_by_label("Replicas", exact=True).fill("3")
        page.get_by_label("Minimum in-sync replicas").fill("2")
        page.get_by_role("button", name="Create").click()
        page.get_by_text("The stream was created.").wait_for()
        page.goto(f"{cluster[2].http_url}/streams/orders/publish")
        for number in range(3):
            page.get_by_label("Value", exact=True).fill(f'{{"number": {number}}}')
            page.get_by_role("button", name="Publish").click()
            page.get_by_text(f"Stored in partition 0 at offset {number}.").wait_for()
        page.goto(f"{cluster[3].http_url}/streams/orders/records")
        expect(page.locator("table.records > tbody > tr")).to_have_count(3)
        client.groups.commit("billing", {PartitionName("orders", 0): 3})
        page.goto(f"{cluster[3].http_url}/group?name=billing&stream=orders&to=earliest")
        page.get_by_text("reads 3 again").wait_for()
        page.get_by_role("button", name="Set these offsets").click()
        page.get_by_text("The committed offsets were set.").wait_for()
        assert client.groups.info("billing").positions == {"orders": {0: 0}}
        page.goto(f"{cluster[2].http_url}/clients")
        expect(page.locator("tbody")).to_contain_text("__admin")


def test_a_reader_of_one_stream_sees_that_and_nothing_else(cluster, client, open_page):
    """Its records, not the cluster, and no other stream's name."""
    for name in ("mine", "theirs"):
        client.create_stream(name, replicas=3)
        client.append(name, b"a record")
    client.access.grant("reader", "read", "stream", "mine")
    token = client.access.create_token("reader")
    with open_page() as page:
        log_in(page, cluster[2], token, to="/streams")
        expect(page.locator("tbody tr")).to_have_count(1)
        page.goto(f"{cluster[2].http_url}/streams/mine/records")
        expect(page.locator("table.records > tbody > tr")).to_have_count(1)
        page.goto(f"{cluster[2].http_url}/streams/mine")
        expect(page.locator("tbody tr").first).to_contain_text("0")
        for path in ("/", "/streams/theirs", "/streams/theirs/records", "/trace", "/access"):
            answer = page.goto(f"{cluster[2].http_url}{path}")
            assert (path, answer.status) == (path, 403)
            assert "a record" not in page.content()
        page.goto(f"{cluster[2].http_url}/streams/mine/publish")
        page.get_by_label("Value", exact=True).fill("forbidden")
        page.get_by_role("button", name="Publish").click()
        assert "reader" in page.get_by_role("alert").inner_text()
    assert client.read("mine").read_all().num_rows == 1


def test_an_election_is_seen_while_one_watches(cluster, client, open_page):
    """The stream's page shows the new leader by itself; the events and the trace tell of it."""
    client.create_stream("watched", replicas=3, min_isr=2)
    client.append("watched", b"x")
    with strandline.connect(cluster[2].flight, token=ADMIN) as other:
        routes = other.stream_info("watched").partitions[0]
        victim = next(n for n in IDS if cluster[n].flight == routes.leader)
    watched = next(n for n in IDS if n != victim)
    with open_page() as page:
        log_in(page, cluster[watched], to="/streams/watched")
        leader = page.locator("[data-live=partitions] tr td").first
        expect(leader).to_have_text(str(victim))
        cluster[victim].kill()
        expect(leader).not_to_have_text(str(victim), timeout=30_000)
        page.goto(f"{cluster[watched].http_url}/events?kind=election&q=watched")
        page.get_by_text(f"before, broker {victim}").wait_for()
        page.goto(f"{cluster[watched].http_url}/trace?q=watched/0")
        expect(page.locator("svg.spacetime circle").first).to_be_visible()
        assert page.locator("svg.spacetime .arrow").count() > 0
        assert violations(page) == []
        with page.expect_download() as started:
            page.get_by_role("link", name="Download for ShiViz").click()
        text = started.value.path().read_text()
        assert "watched/0: appends 0 to 0" in text
        page.get_by_label("A trace of a simulation").fill(text)
        page.get_by_role("button", name="Draw").click()
        page.get_by_role("heading", name="Pasted trace").wait_for()
        page.get_by_label("A trace of a simulation").fill("no trace")
        page.get_by_role("button", name="Draw").click()
        assert "two lines for each event" in page.get_by_role("alert").inner_text()
