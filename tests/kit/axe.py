"""What the rules of accessibility say of a page."""

from axe_playwright_python.sync_playwright import Axe


def violations(page):
    """What axe-core finds on a page, one line each."""
    found = Axe().run(page).response["violations"]
    return [
        f"{each['id']}: {each['help']}: {node['html'][:200]}"
        for each in found
        for node in each["nodes"]
    ]
