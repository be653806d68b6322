"""Checks of a page against the rules of accessibility."""

from axe_playwright_python.sync_playwright import Axe


def violations(page):
    """Return the violations that axe-core finds on a page, one per line."""
    found = Axe().run(page).response["violations"]
    return [
        f"{each['id']}: {each['help']}: {node['html'][:200]}"
        for each in found
        for node in each["nodes"]
    ]
