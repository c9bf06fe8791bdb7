"""Previews: the first rows of a `Dataset` as text, HTML and PNG."""
