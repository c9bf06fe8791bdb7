"""The library of chunked arrays: `dask.array`, or `dask_array` with its query optimizer.

The second one takes the place of `dask.array`, in this package only, if the dask configuration ``array.query-planning``
is True when this module is imported. `dask.array` is imported when it is used: programs that write a part of a job
do not use it, and it imports xarray, pandas and pyarrow where they are installed.
"""

from __future__ import annotations

from importlib import import_module
from itertools import product
from typing import TYPE_CHECKING, Any

import dask

from dask_tfrecord.errors import explain_missing


class _DaskArray:
    """The module `dask.array`, imported by the first use of a name of it."""

    def __getattr__(self, name: str) -> Any:
        return getattr(import_module("dask.array"), name)


_PLANNED = bool(dask.config.get("array.query-planning", None))
if TYPE_CHECKING:
    import dask.array as da
elif not _PLANNED:
    da = _DaskArray()
else:
    with explain_missing("the dask configuration array.query-planning is on, and needs", "dask_array", "planning"):
        import dask_array as da


def from_graph(graph: dict[Any, Any], name: str, chunks: tuple[tuple[float, ...], ...], meta: Any) -> da.Array:
    """Return the array of the tasks ``(name, *block)`` of a graph."""
    if not _PLANNED:
        return da.Array(graph, name, chunks, meta=meta)
    from dask_array.core import from_graph as expression

    keys = [(name, *block) for block in product(*(range(len(sizes)) for sizes in chunks))]
    array: da.Array = expression(graph, meta, chunks, keys, name)
    return array
