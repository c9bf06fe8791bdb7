"""The library of chunked arrays that the configuration of dask selects, as `da`."""

from __future__ import annotations

import importlib

import dask

PLANNED = bool(dask.config.get("array.query-planning", None))
da = importlib.import_module("dask_array" if PLANNED else "dask.array")
if PLANNED:
    importlib.import_module("dask_array.xarray").register()
