"""Settings of the documentation's site: ``make docs`` builds it, without network."""

import sys
from pathlib import Path

from strandline.version import __version__

sys.path.insert(0, str(Path(__file__).parent))  # for reference_pages

project = "Strandline"
release = version = __version__
html_title = f"Strandline {__version__}"
html_theme = "furo"
html_static_path = ["_static"]
html_js_files = ["version_menu.js"]
templates_path = ["_templates"]
root_doc = "index"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "reference_pages"]

myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4

autodoc_class_signature = "mixed"
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_inherit_docstrings = True
python_use_unqualified_type_names = True
napoleon_custom_sections = [("Yields", "returns_style")]

suppress_warnings = [
    "misc.highlighting_failure",  # YAML with `…` for what is left out
]
