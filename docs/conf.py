"""Settings of Sphinx, which builds the documentation site; contributing.md has the command."""

import os
from importlib.metadata import version as version_of

project = "dask_tfrecord"
author = "dask_tfrecord developers"
release = version = version_of("dask-tfrecord")

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx.ext.intersphinx",
]
templates_path = ["_templates"]
exclude_patterns = ["_build"]

# Headings get anchors as on GitHub, down to this level.
myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]
# Files outside of the documentation are links to the repository.
repository = "https://github.com/dask-tfrecord/dask-tfrecord"

# Text between single backticks in docstrings is a link if it names an object.
default_role = "py:obj"
autosummary_generate = True
autodoc_typehints = "none"
autodoc_member_order = "bysource"
napoleon_google_docstring = False
napoleon_use_rtype = False
napoleon_use_ivar = True

# The inventories of other projects have to be fetched, so a build without a network leaves their names unlinked.
if os.environ.get("READTHEDOCS") or os.environ.get("DASK_TFRECORD_INTERSPHINX"):
    intersphinx_mapping = {
        "python": ("https://docs.python.org/3", None),
        "numpy": ("https://numpy.org/doc/stable", None),
        "dask": ("https://docs.dask.org/en/stable", None),
        "zarr": ("https://zarr.readthedocs.io/en/stable", None),
        "xarray": ("https://docs.xarray.dev/en/stable", None),
    }

html_theme = "pydata_sphinx_theme"
html_title = "dask_tfrecord"
html_static_path = ["_static"]
html_css_files = ["pages.css"]
html_show_sourcelink = False
# Pages without pages below them: their menu on the left would be empty.
html_sidebars = {name: [] for name in ("getting-started", "performance", "contributing")}
html_theme_options = {
    "logo": {"text": "dask_tfrecord"},
    "icon_links": [{"name": "GitHub", "url": repository, "icon": "fa-brands fa-github"}],
    "navigation_with_keys": False,
    # One row at a width of 1,280 pixels.
    "navbar_align": "left",
    "navbar_persistent": ["search-button"],
    "header_links_before_dropdown": 6,
    "show_toc_level": 2,
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["copyright"],
    "footer_end": [],
}
copyright = author
