"""Conversions to Zarr: planned, shown, and then written as planned. `to_zarr` is a plan that is written at once."""

from __future__ import annotations

import uuid
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import dask.array as da
import numpy as np
from dask.delayed import Delayed

from dask_tfrecord.arrays.dataset import Dataset
from dask_tfrecord.arrays.writable import register_store
from dask_tfrecord.stores.array_likes import of_one_dimension
from dask_tfrecord.stores.axis_names import AxisNames
from dask_tfrecord.stores.budget import MemoryBudget, Workers
from dask_tfrecord.stores.codecs import Codecs
from dask_tfrecord.stores.conversion import checked, find_begun, finish
from dask_tfrecord.stores.failure import uninterrupted
from dask_tfrecord.stores.feed import Feed, RowSizes
from dask_tfrecord.stores.fill_values import FillValues
from dask_tfrecord.stores.fingerprint import Fingerprint
from dask_tfrecord.stores.grid import Wishes
from dask_tfrecord.stores.layout import PIECE_NBYTES, Layout, check_storable, zarr_layout
from dask_tfrecord.stores.options import ZarrOptions
from dask_tfrecord.stores.units import count_jobs
from dask_tfrecord.stores.zarr import Target, check_forms
from dask_tfrecord.stores.zarr_plan import ArrayPlan, ZarrPlan, entry_nbytes

__all__ = ["plan_zarr", "to_zarr"]

# What a Python string takes beside its letters, which Zarr's codec of strings is handed.
_STRING_NBYTES = 64


def plan_zarr(
    arrays: Mapping[str, Any],
    *,
    chunks: int | Mapping[str, int] | None = None,
    shards: int | Mapping[str, int] | None = None,
    target_chunk_bytes: int | str | None = None,
    target_shard_bytes: int | str | None = None,
    compressors: Any = "auto",
    filters: Any = "auto",
    dimension_names: Mapping[str, Sequence[str]] | None = None,
    fill_values: Mapping[str, Any] | None = None,
    consolidated: bool = True,
    memory_limit: int | str | None = "auto",
) -> ZarrPlan:
    """Plan a conversion to Zarr: what it will write and what memory it takes, before a byte is written.

    Parameters
    ----------
    arrays : Dataset or mapping of str to array-like
        What is to be written: a data set, or dask, NumPy or Zarr arrays of as many rows each.
    chunks, shards : int or mapping of str to int, optional
        As for `to_zarr`.
    target_chunk_bytes, target_shard_bytes : int or str, optional
        As for `to_zarr`.
    compressors, filters : "auto", None, what `zarr.create_array` takes, or a mapping of such
        As for `to_zarr`.
    dimension_names, fill_values : mapping, optional
        As for `to_zarr`.
    consolidated : bool, default True
        As for `to_zarr`.
    memory_limit : int, str or None, default "auto"
        As for `to_zarr`; a plan that does not fit says so, and its `to_zarr` raises.

    Returns
    -------
    ZarrPlan
        It prints as a table; ``plan.to_zarr(store)`` writes it.

    Raises
    ------
    SchemaError
        As for `to_zarr`.
    UnknownFeatureError
        If an option names what is neither a feature nor a flat array.
    ValueError
        If rows are not counted, or an option is senseless.

    Notes
    -----
    Columns whose rows differ in size are read once, to count what they hold; of images only the headers are looked at.
    How far data compress is not guessed. The workers are those of the active scheduler, at this moment: threads of
    this process limit nobody's memory.

    Examples
    --------
    >>> import dask_tfrecord as dtf
    >>> plan = dtf.plan_zarr({"x": np.zeros((1000, 8))}, chunks=100)
    >>> plan.arrays[0].chunks, plan.write_units, plan.nbytes
    ((100, 8), 10, 64000)
    """
    wishes, codecs = Wishes(chunks, shards, target_chunk_bytes, target_shard_bytes), Codecs(compressors, filters)
    dataset, options, fingerprint = _asked(arrays, wishes, codecs, dimension_names, fill_values, consolidated)
    return _plan(dataset, options, fingerprint, memory_limit, None)


def _asked(
    arrays: Mapping[str, Any],
    wishes: Wishes,
    codecs: Codecs,
    dimension_names: Mapping[str, Sequence[str]] | None,
    fill_values: Mapping[str, Any] | None,
    consolidated: bool,
) -> tuple[Dataset, ZarrOptions, Fingerprint]:
    """Find what is to be written, how, and by what this conversion is known."""
    dataset = _counted(arrays)
    options = ZarrOptions(wishes, codecs, AxisNames.of(arrays, dimension_names), FillValues(fill_values), consolidated)
    options.check(dataset.schema)
    return dataset, options, Fingerprint.of(dataset, options.values())


def _counted(arrays: Mapping[str, Any]) -> Dataset:
    if not isinstance(arrays, Mapping):
        raise TypeError(f"arrays is a data set, or a mapping of names to arrays; got {type(arrays).__name__}")
    dataset = arrays if isinstance(arrays, Dataset) else Dataset.from_arrays(of_one_dimension(arrays))
    if dataset.nrecords is None:
        raise ValueError("rows have to be counted to be written: open with counts='auto'")
    check_storable(dataset.schema)
    return dataset


def _plan(
    dataset: Dataset,
    options: ZarrOptions,
    fingerprint: Fingerprint,
    memory_limit: int | str | None,
    layout: Layout | None,
) -> ZarrPlan:
    """Plan a conversion, of which the layout may be there."""
    schema, rows = dataset.schema, dataset.nrecords or 0
    workers = Workers.active().limited(memory_limit)
    feed = Feed(dataset, uuid.uuid4().hex)
    sizes = feed.row_sizes()
    recut = dataset.merged().recut
    if layout is None:
        grid, cuts = options.wishes.cut(schema, rows, sizes)
        layout = zarr_layout(schema, rows, grid, feed.tally(grid.unit, grid.most), cuts, options.names.given)
        forms = options.forms(layout, schema)
        uninterrupted(lambda: check_forms(forms))
    read = _read_nbytes(layout, feed, sizes, workers.threads) + sum(each.held_nbytes for each in recut)
    together = feed.source is not None
    tasks = count_jobs(layout) if together else layout.nunits
    return ZarrPlan(
        layout.nrows,
        layout.grid.unit,
        layout.nunits,
        tasks,
        tuple(ArrayPlan.of(spec, options, schema, sizes) for spec in layout.arrays),
        MemoryBudget.of(workers, tasks, _units(layout, sizes), read, together=together),
        workers.memory_limit,
        recut,
        dataset,
        layout,
        options,
        fingerprint,
    )


def to_zarr(
    arrays: Mapping[str, Any],
    store: Any,
    *,
    component: str | None = None,
    mode: Literal["w", "w-"] = "w-",
    resume: bool = False,
    chunks: int | Mapping[str, int] | None = None,
    shards: int | Mapping[str, int] | None = None,
    target_chunk_bytes: int | str | None = None,
    target_shard_bytes: int | str | None = None,
    compressors: Any = "auto",
    filters: Any = "auto",
    dimension_names: Mapping[str, Sequence[str]] | None = None,
    fill_values: Mapping[str, Any] | None = None,
    consolidated: bool = True,
    memory_limit: int | str | None = "auto",
    compute: bool = True,
    storage_options: Mapping[str, Any] | None = None,
) -> Delayed | None:
    """Write columns to a Zarr group, each chunk or shard by one task, and no rechunking.

    Dense and text columns are one array each. Columns of bytes and of ragged rows are ``NAME.values`` and
    ``NAME.row_splits``, with ``NAME.row_splits_1`` and so on where rows are made of rows, and ``NAME.byte_splits``
    where those are of bytes; arrays of their own shapes have these in ``NAME.shapes``. ``/`` in a name becomes ``.``;
    the group's attributes keep the true names, the schema with its class names, the sources and the release that wrote
    it; each array has its ``feature``, ``feature_class`` and ``class_names``.

    Parameters
    ----------
    arrays : Dataset or mapping of str to array-like
        What is written: a data set, or dask, NumPy or Zarr arrays of as many rows each.
    store : str, Path or zarr store
        A path, a URL or a store.
    component : str, optional
        Path of the group within the store.
    mode : {"w-", "w"}
        ``"w-"`` fails if the group exists, ``"w"`` replaces it.
    resume : bool, default False
        Go on with a conversion that was begun: with the same files, features and options, only what is missing or torn
        is written, and nothing at all where it is complete. What fails from now on is kept, to be gone on with. Where
        nothing was begun it begins.
    chunks : int or mapping of str to int, optional
        Rows of a chunk: of all features, or by feature. All features share a unit of rows, so the chunks and shards
        that are given have to divide the largest of them. In a mapping the name of a flat array that is not cut where
        rows are, such as ``"tokens.values"``, has the number of its entries.
    shards : int or mapping of str to int, optional
        Rows of a shard, a multiple of `chunks`; by default arrays are not sharded.
    target_chunk_bytes : int or str, default "8 MiB"
        Decoded bytes of a chunk in the largest array that is cut where rows are; ``"1 MiB"`` where sharded. All of
        these arrays together have four times as much at most for the same rows, and rows are fewer if bytes and
        ragged columns make them long. A chunk of flat values has no more, and as much as such rows have or a half to
        a quarter of it, so that few records are read for two tasks.
    target_shard_bytes : int or str, optional
        The same for a shard; arrays are sharded if it is given.
    compressors : "auto", None, what `zarr.create_array` takes, or a mapping of such by feature or flat array
        ``"auto"``, which features that a mapping lacks have too, is Blosc with LZ4 and byte shuffling.
    filters : "auto", None, what `zarr.create_array` takes, or a mapping of such by feature or flat array
        Of dense arrays and values; where rows end is not filtered, unless a mapping names that array. ``"auto"`` is
        none.
    dimension_names : mapping of str to sequence of str, optional
        Names of the axes behind ``record``, by feature: those of a row where it is dense, as ``{"image": ("height",
        "width", "channel")}``, those of an item where rows differ in length. Axes of one name have one length, and no
        name is that of an array. By default those of an xarray Dataset, else ``NAME.dim_1`` and so on.
    fill_values : mapping of str to scalar, optional
        What readers take for chunks that are not there, by feature or flat array; a feature's is that of its dense
        array, or of its values. By default the scalar ``default_value`` of a dense feature, else zero or ``""``. All
        chunks are written, and no value is masked: xarray does that by an attribute that is not set.
    consolidated : bool, default True
        Gather the metadata of all arrays in that of the group, so that it is opened by one request. Without it give
        xarray's `open_zarr` ``consolidated=False``, too.
    memory_limit : int, str or None, default "auto"
        Bytes that a worker may take, such as ``"2 GiB"``. ``"auto"`` is the limit of distributed's workers, and none
        on threads and processes of this machine.
    compute : bool, default True
        Write now; otherwise only the empty arrays are made, and a `Delayed` that writes them is returned. Until that is
        computed the group is marked incomplete, and stays so if computing it fails.
    storage_options : mapping, optional
        What fsspec takes beside a URL.

    Returns
    -------
    None or dask.delayed.Delayed

    Raises
    ------
    FileExistsError
        If the group exists under ``mode="w-"``, or what is there is no Zarr group, or not only that: nothing but arrays
        and groups is ever replaced.
    SchemaError
        If arrays differ in their number of rows, or are of a dtype that no feature has, or that Zarr has no name for,
        which is bfloat16.
    UnknownFeatureError
        If an option names what is neither a feature nor a flat array.
    ValueError
        If rows are not counted, `chunks` and `shards` do not fit each other, names of axes do not fit the arrays or a
        fill value not its dtype, workers have too little memory, or the group would replace the one that the data set
        is read from.
    IncompleteStoreError
        If tasks ran in other processes and wrote to a store that lies in the memory of this one.

    Warns
    -----
    dask.array.PerformanceWarning
        If an array is rechunked, because its chunks are not those of the rows that it stands beside; a plan says so.

    See Also
    --------
    plan_zarr : The same, shown before it is written.

    Notes
    -----
    Sizes of bytes and ragged columns are counted first, which reads them once more; of images that differ in size only
    the headers are looked at. The group is marked incomplete until all of it is written; a conversion that fails
    removes what it wrote. Each task reads its rows in pieces, and holds what it writes and one piece; flat values are
    written with the rows in which most of them lie.

    Examples
    --------
    >>> import dask_tfrecord as dtf
    >>> dtf.read_tfrecord("train-*.tfrecord").to_zarr("train.zarr", mode="w")
    >>> dtf.from_zarr("train.zarr").nrecords > 0
    True
    """
    target = Target.of(store, component, storage_options)
    # What can't be written is not counted first.
    if not resume:
        target.check_free(checked(mode), arrays.origin if isinstance(arrays, Dataset) else {})
    wishes, codecs = Wishes(chunks, shards, target_chunk_bytes, target_shard_bytes), Codecs(compressors, filters)
    dataset, options, fingerprint = _asked(arrays, wishes, codecs, dimension_names, fill_values, consolidated)
    begun = find_begun(target, fingerprint, mode, resume)
    if begun is not None and begun.layout is None:
        return finish(target, begun, compute=compute)
    plan = _plan(dataset, options, fingerprint, memory_limit, begun.layout if begun else None)
    for each in plan.rechunks:
        warnings.warn(str(each), da.PerformanceWarning, stacklevel=2)
    return plan.write(target, begun, mode, resume, compute)


def _units(layout: Layout, sizes: RowSizes) -> dict[str, tuple[int, bool]]:
    """Find the decoded bytes of each kind of unit, and whether it is of shards."""
    rows, sharded, units = 0.0, False, {}
    for spec in layout.arrays:
        entry = entry_nbytes(spec, sizes) + (_STRING_NBYTES if spec.dtype == "string" else 0)
        if spec.by_rows:
            stride = spec.unit // layout.grid.unit if spec.part == "row_splits" else 1
            rows += min(layout.grid.unit * max(stride, 1), spec.shape[0]) * entry
            sharded |= spec.unit != spec.chunk
        else:
            units[spec.name] = int(min(spec.unit, spec.shape[0]) * entry), spec.unit != spec.chunk
    return {"rows": (int(rows), sharded), **units}


def _read_nbytes(layout: Layout, feed: Feed, sizes: RowSizes, threads: int) -> int:
    """Find the decoded bytes of the rows that a task has in hand: as they are read, and as they are made of that."""
    piece = min(layout.grid.most, layout.nrows) * sizes.read
    if layout.tally.items:
        # Borders may lie further apart than a piece should be: a row is never cut.
        piece = max(
            piece, min(PIECE_NBYTES, int(layout.tally.sizes[-1])), int(np.diff(layout.tally.sizes).max(initial=0))
        )
    return int(2 * piece + feed.held(layout.grid.unit, threads) * sizes.read)


register_store("zarr", to_zarr)
register_store("zarr plan", plan_zarr)
