"""A real browser for the tests of the console: Debian's Chromium, driven by Playwright."""

import shutil
from contextlib import contextmanager

import pytest
from playwright import sync_api

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
TIMEOUT_MS = 30_000


@pytest.fixture(scope="module")
def chromium():
    """The browser, started once for a module.

    Not for the session: until it ends, Playwright's event loop runs on this thread, where
    asynchronous tests of other modules could run none.
    """
    if CHROMIUM is None:
        pytest.skip("Chromium is not installed; on Debian: apt install chromium")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def open_page(chromium):
    """A function that opens a page of its own, and fails the test if a script of it fails."""
    contexts, faults = [], []

    @contextmanager
    def opened(**options):
        context = chromium.new_context(**{"viewport": {"width": 1280, "height": 900}, **options})
        contexts.append(context)
        context.set_default_timeout(TIMEOUT_MS)
        page = context.new_page()
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("request", lambda request: note_foreign(request.url, page))
        page.on("console", lambda message: note_refusal(message.text))
        yield page
        context.close()

    def note_foreign(url, page):
        if not url.startswith(("http://127.0.0.1:", "data:")):
            faults.append(f"{page.url} asked for {url}")

    def note_refusal(text):
        if "Content Security Policy" in text or "Content-Security-Policy" in text:
            faults.append(text)

    yield opened
    assert not faults


@pytest.fixture
def page(open_page):
    """A page of a new user."""
    with open_page() as opened:
        yield opened
