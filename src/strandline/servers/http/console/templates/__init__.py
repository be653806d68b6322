"""The console's templates, and their rendering with jinja2.

Rules: every value is escaped unless it is marked as safe, which only the SVG drawn here is. A
template that uses a value which its page does not pass is an error.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from strandline.servers.http.console import formatting
from strandline.servers.http.console.static import address_of
from strandline.version import __version__


def _environment() -> Environment:
    made = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    made.filters.update(
        size=formatting.size,
        duration=formatting.duration,
        number=formatting.number,
        format_time=formatting.format_time,
        escape_hidden=formatting.escape_hidden,
        segment=lambda text: quote(text, safe=""),
        query=lambda values: urlencode({k: v for k, v in values.items() if v not in ("", None)}),
        json=lambda value: json.dumps(value, ensure_ascii=False),
    )
    made.globals.update(version=__version__, static=address_of, problem="", note="")
    return made


_ENVIRONMENT = _environment()


def render(template: str, values: Mapping[str, Any]) -> str:
    """Return a template filled with values; any thread."""
    return _ENVIRONMENT.get_template(template).render(values)
