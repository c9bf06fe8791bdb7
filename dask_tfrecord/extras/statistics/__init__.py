"""Statistics of columns: summaries of chunks that merge, and their display, comparison and export."""
