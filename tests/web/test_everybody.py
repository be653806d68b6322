"""Pages for everybody: keyboards, screen readers, dark mode, small screens; and pictures of them.

The pictures in the documentation are made here: run with ``UPDATE_SCREENSHOTS=1`` after a change.
"""

import os
import time
from pathlib import Path

import pytest

import strandline
from strandline.servers.http.console.app import ROUTES
from strandline.testing import Server
from strandline.types import PartitionName
from tests.kit.axe import violations

IMAGES = Path(__file__).parents[2] / "docs" / "img"
PICTURE_BYTES_MAX = 100 << 10
ADMIN = "an-administrators-token-made-for-this-test"
NOT_PAGES = {
    "/streams/{name}/tail",
    "/streams/{name}/value",
    "/streams/{name}/download",
    "/trace/export",
}
QUERIES = {
    "/group": "?name=billing&stream=orders&to=earliest",
    "/streams/{name}/records": "?count=50",
}
PATHS = {
    route.path: route.path.replace("{name}", "orders") + QUERIES.get(route.path, "")
    for route in ROUTES
    if route.method == "GET" and route.path not in NOT_PAGES
}


@pytest.fixture(scope="module")
def server():
    """A broker with something on every page."""
    server = Server(http_port=0)
    with server as url, strandline.connect(url) as client:
        client.create_stream(
            "orders",
            subject="orders.>",
            partitions=4,
            retention_age_ms=7 * 86_400_000,
            description="Orders of the shop",
        )
        client.create_stream("payments", subject="payments.*", partitions=2, compact=True)
        client.create_stream("audit", subject="audit")
        with client.producer("orders") as producer:
            for number in range(600):
                producer.append(
                    f'{{"id": {number}, "customer": "c{number % 97}", "total": {number}.50}}',
                    key=f"c{number % 97}",
                    subject=f"orders.eu.{number % 7}",
                    headers={"trace": f"{number:08x}"},
                )
        client.groups.commit("billing", {PartitionName("orders", n): 20 * n for n in range(4)})
        client.access.grant("billing", "read", "stream", "orders*")
        client.access.grant("billing", "group", "group", "billing*")
        client.access.create_token("billing", days=90)
        client.quotas.set("billing", read_bytes_per_s=50 << 20)
        monitor, loop = server.app.broker.monitor, server.app.broker
        for number in range(40):  # so that the graphs have lines
            client.append("orders", b"x" * (50 * (number % 7)), subject="orders.eu.1")
            loop.run_coroutine(sampled(monitor)).result()
        yield url


async def sampled(monitor):
    """Sample on the broker's loop."""
    monitor.sample(is_of_history=True)


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 390)])
def test_axe_finds_nothing_to_complain_about(server, open_page, scheme, width):
    """Labels, landmarks, contrast and order of headings, on every page; nothing is cut off."""
    viewport = {"width": width, "height": 844}
    with open_page(viewport=viewport, color_scheme=scheme) as page:
        found = []
        for path in (*PATHS.values(), "/streams/orders/records?tail=1", "/streams/nothing"):
            page.goto(f"{server.http_url}{path}")
            found += [(path, each) for each in violations(page)]
            if page.evaluate("document.documentElement.scrollWidth") > width:
                found.append((path, "is wider than the screen"))
        assert not found


def test_the_login_is_for_everybody_too(open_page):
    """With nothing but the keyboard, after a wrong token."""
    with (
        Server(http_port=0, auth={"enabled": True, "admin_token": ADMIN}) as url,
        open_page(viewport={"width": 390, "height": 844}) as page,
    ):
        page.goto(url.http_url)
        assert violations(page) == []
        page.keyboard.type("wrong")
        page.keyboard.press("Enter")
        page.get_by_role("alert").wait_for()
        assert violations(page) == []
        page.keyboard.type(ADMIN)
        page.keyboard.press("Enter")
        page.get_by_role("heading", name="Broker", exact=True).wait_for()
        assert violations(page) == []


def test_everything_is_reached_with_the_keyboard(server, page):
    """The first key leads to the content, the next to every link, field and button, in order."""
    page.goto(f"{server.http_url}/streams")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "content"
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Create a stream"
    page.goto(f"{server.http_url}/streams/orders/records")
    page.locator("table.records summary").first.focus()
    page.keyboard.press("Enter")
    assert page.locator("details[open] pre").first.is_visible()


def test_pages_work_without_scripts(server, open_page):
    """Search, pages of records and forms are plain links and forms."""
    with open_page(java_script_enabled=False) as page:
        page.goto(f"{server.http_url}/streams?q=pay")
        assert page.locator("tbody tr").count() == 1
        page.goto(f"{server.http_url}/streams/orders/records?count=50")
        page.get_by_role("link", name="Older").click()
        page.get_by_role("link", name="Older").wait_for()
        page.goto(f"{server.http_url}/streams/audit/publish")
        page.get_by_label("Value", exact=True).fill("plain")
        page.get_by_role("button", name="Publish").click()
        page.get_by_text("Stored in partition 0").wait_for()


PICTURES = {
    "cluster": "/",
    "streams": "/streams",
    "stream": "/streams/orders",
    "records": "/streams/orders/records?partition=1",
    "group": "/group?name=billing&stream=orders&to=latest",
    "load": "/load",
}


def test_the_pictures_of_the_documentation_are_made(server, open_page, tmp_path):
    """Each is small, and is there."""
    target = IMAGES if os.environ.get("UPDATE_SCREENSHOTS") else tmp_path
    with open_page(viewport={"width": 1120, "height": 700}) as page:
        for name, path in PICTURES.items():
            page.goto(f"{server.http_url}{path}")
            time.sleep(2.5 if name in ("streams", "stream", "group") else 0)  # rates need two looks
            if name in ("streams", "stream", "group"):
                page.reload()
            page.screenshot(path=target / f"console-{name}.png")
            assert (target / f"console-{name}.png").stat().st_size < PICTURE_BYTES_MAX
    kept = {picture.name: picture.stat().st_size for picture in IMAGES.glob("console-*.png")}
    assert set(kept) == {f"console-{name}.png" for name in PICTURES}
    assert max(kept.values()) < PICTURE_BYTES_MAX
