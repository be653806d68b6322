"""Lists the versions of the built site: ``python docs/site_versions.py build/site``.

Each version is a folder of its own; those that are there, of earlier builds, stay in the menu. The
address without a version leads to the newest.
"""

import json
import re
import sys
from pathlib import Path


def write_versions(site: Path) -> list[str]:
    """Write ``versions.js`` and ``index.html`` for the versions in a folder; return them."""
    found = [each.parent.name for each in site.glob("*/index.html")]
    versions = sorted(found, key=_order, reverse=True)
    (site / "versions.js").write_text(f"strandlineVersions({json.dumps(versions)});\n")
    if versions:
        target = f"{versions[0]}/index.html"
        page = f'<!doctype html><title>Strandline</title><a href="{target}">{versions[0]}</a>'
        page += f'<meta http-equiv="refresh" content="0; url={target}">\n'
        (site / "index.html").write_text(page)
    return versions


def _order(version: str) -> tuple[list[int], str]:
    """Return a key by which versions are sorted."""
    return [int(number) for number in re.findall(r"\d+", version)], version


if __name__ == "__main__":
    sys.stdout.write(", ".join(write_versions(Path(sys.argv[1]))) + "\n")
