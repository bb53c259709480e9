"""How Sphinx builds this site: make docs."""

import sys
from importlib import metadata
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

project = "Lightloop"
author = "Lightloop contributors"
copyright = "Lightloop contributors"
release = metadata.version("lightloop")

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "lightloop_reference"]
exclude_patterns = ["_build", "_ext", "_make"]
myst_enable_extensions = ["colon_fence", "deflist", "fieldlist"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_default_options = {"members": True, "show-inheritance": False}
autodoc_inherit_docstrings = False
python_maximum_signature_line_length = 100
napoleon_google_docstring = True
napoleon_numpy_docstring = False

html_theme = "furo"
html_title = "Lightloop"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sourcelink = False
smartquotes = False
