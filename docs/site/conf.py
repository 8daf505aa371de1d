"""Sphinx's settings for the site of the documents; `make_site.py` uses them."""

project = "Trireme"
extensions = ["myst_parser"]
myst_heading_anchors = 6
html_theme = "furo"
html_title = "Trireme"
html_show_sourcelink = False
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False
highlight_language = "text"
suppress_warnings = ["misc.highlighting_failure", "myst.xref_ambiguous"]
