"""Conversions to Zarr: planned, shown, and then written as planned. `to_zarr` is a plan that is written at once."""

from __future__ import annotations

import json
import math
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import numpy as np
from dask.delayed import Delayed

from dask_tfrecord.arrays.dataset import Dataset
from dask_tfrecord.arrays.writable import register_store
from dask_tfrecord.stores.budget import MemoryBudget, Workers
from dask_tfrecord.stores.codecs import Codecs, codec_values
from dask_tfrecord.stores.feed import Feed, RowSizes
from dask_tfrecord.stores.grid import Wishes
from dask_tfrecord.stores.layout import PIECE_NBYTES, ArraySpec, Layout, check_storable, zarr_layout
from dask_tfrecord.stores.plan_display import html_plan, text_plan
from dask_tfrecord.stores.zarr import Target, write_zarr

__all__ = ["ArrayPlan", "ZarrPlan", "plan_zarr", "to_zarr"]

# What a Python string takes beside its letters, which Zarr's codec of strings is handed.
_STRING_NBYTES = 64


@dataclass(frozen=True, slots=True)
class ArrayPlan:
    """One array that will be written.

    Attributes
    ----------
    name : str
        Its name in the group.
    feature : str
        The feature that it belongs to.
    shape : tuple of int
        Its shape.
    dtype : str
        A NumPy dtype, or ``"string"``.
    chunks : tuple of int
        Shape of a chunk.
    shards : tuple of int or None
        Shape of a shard, where it is sharded.
    compressors, filters : tuple
        What zarr is given.
    dimensions : tuple of str
        Names of the axes.
    nbytes : int
        Decoded bytes.
    exact : bool
        Whether `nbytes` is; those of text are judged by the first rows.
    """

    name: str
    feature: str
    shape: tuple[int, ...]
    dtype: str
    chunks: tuple[int, ...]
    shards: tuple[int, ...] | None
    compressors: tuple[Any, ...]
    filters: tuple[Any, ...]
    dimensions: tuple[str, ...]
    nbytes: int
    exact: bool

    @classmethod
    def of(cls, spec: ArraySpec, codecs: Codecs, sizes: RowSizes) -> ArrayPlan:
        """Tell what an array of a layout will be."""
        inner = tuple(max(1, size) for size in spec.shape[1:])
        return cls(
            spec.name,
            spec.feature,
            spec.shape,
            spec.dtype,
            (spec.chunk, *inner),
            (spec.unit, *inner) if spec.unit != spec.chunk else None,
            *codecs.of(spec),
            spec.dimensions,
            int(spec.shape[0] * _entry_nbytes(spec, sizes)),
            spec.dtype != "string",
        )


@dataclass(frozen=True, slots=True, eq=False)
class ZarrPlan:
    """What a conversion to Zarr will write, and what it takes; nothing is written before `to_zarr` is called.

    Made by `plan_zarr`. Shown as a table.

    Attributes
    ----------
    nrecords : int
        Rows.
    unit_rows : int
        Rows of a unit, which one task writes for all features.
    write_units : int
        Units, and so tasks: of rows, and of each flat array.
    arrays : tuple of ArrayPlan
        What will be written.
    memory : MemoryBudget
        Peak memory of a worker, and its arithmetic.
    memory_limit : int or None
        Bytes that a worker may take; None where nobody limits them.

    Examples
    --------
    >>> import dask_tfrecord as dtf
    >>> plan = dtf.read_tfrecord("train-*.tfrecord")[["label", "tokens"]].plan_zarr()
    >>> [(array.name, array.shape) for array in plan.arrays]
    [('label', (20,)), ('tokens.values', (90,)), ('tokens.row_splits', (21,))]
    >>> plan.write_units, plan.nbytes
    (2, 1048)
    """

    nrecords: int
    unit_rows: int
    write_units: int
    arrays: tuple[ArrayPlan, ...]
    memory: MemoryBudget
    memory_limit: int | None
    _dataset: Dataset = field(repr=False)
    _layout: Layout = field(repr=False)
    _codecs: Codecs = field(repr=False)

    @property
    def nbytes(self) -> int:
        """Decoded bytes of all arrays; how far they compress is not known before."""
        return sum(array.nbytes for array in self.arrays)

    @property
    def fits(self) -> bool:
        """Whether a worker has the memory."""
        return self.memory.excess(self.memory_limit) is None

    def check(self) -> None:
        """Refuse a conversion for which workers have too little memory.

        Raises
        ------
        ValueError
            If they have; the numbers and what to change are said.
        """
        excess = self.memory.excess(self.memory_limit)
        if excess is not None:
            raise ValueError(excess)

    def to_zarr(
        self,
        store: Any,
        *,
        component: str | None = None,
        mode: Literal["w", "w-"] = "w-",
        compute: bool = True,
        storage_options: Mapping[str, Any] | None = None,
    ) -> Delayed | None:
        """Write what is planned; nothing is counted again. See `dask_tfrecord.to_zarr` for the arguments and errors.

        Examples
        --------
        >>> import dask_tfrecord as dtf
        >>> plan = dtf.read_tfrecord("train-*.tfrecord").plan_zarr(chunks=5)
        >>> plan.to_zarr("planned.zarr")
        >>> dtf.from_zarr("planned.zarr").npartitions
        4
        """
        target = Target.of(store, component, storage_options)
        opening = target.check_free(_checked(mode), self._dataset.origin)
        self.check()
        # Each conversion has a name of its own, and so have its tasks.
        feed = Feed(self._dataset, uuid.uuid4().hex)
        return write_zarr(target, opening, feed, self._layout, self._codecs, compute=compute)

    def to_json(self) -> str:
        """All that is planned as JSON, sizes in bytes.

        Examples
        --------
        >>> import json
        >>> import dask_tfrecord as dtf
        >>> plan = dtf.read_tfrecord("train-*.tfrecord").plan_zarr()
        >>> json.loads(plan.to_json())["nrecords"]
        20
        """
        arrays = [
            {
                name: codec_values(value) if name in ("compressors", "filters") else value
                for name in ArrayPlan.__slots__
                for value in [getattr(array, name)]
            }
            for array in self.arrays
        ]
        return json.dumps(
            {
                "nrecords": self.nrecords,
                "unit_rows": self.unit_rows,
                "write_units": self.write_units,
                "nbytes": self.nbytes,
                "arrays": arrays,
                "memory": asdict(self.memory) | {"peak_nbytes": self.memory.peak_nbytes},
                "memory_limit": self.memory_limit,
            },
            ensure_ascii=False,
        )

    def __repr__(self) -> str:
        return text_plan(self)

    def _repr_html_(self) -> str:
        return html_plan(self)


def plan_zarr(
    arrays: Mapping[str, Any],
    *,
    chunks: int | Mapping[str, int] | None = None,
    shards: int | Mapping[str, int] | None = None,
    target_chunk_bytes: int | str | None = None,
    target_shard_bytes: int | str | None = None,
    compressors: Any = "auto",
    filters: Any = "auto",
    memory_limit: int | str | None = "auto",
) -> ZarrPlan:
    """Plan a conversion to Zarr: what it will write and what memory it takes, before a byte is written.

    Parameters
    ----------
    arrays : Dataset or mapping of str to array-like
        What is to be written: a data set, or dask or NumPy arrays of as many rows each.
    chunks, shards : int or mapping of str to int, optional
        As for `to_zarr`.
    target_chunk_bytes, target_shard_bytes : int or str, optional
        As for `to_zarr`.
    compressors, filters : "auto", None, what `zarr.create_array` takes, or a mapping of such
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
    dataset = arrays if isinstance(arrays, Dataset) else Dataset.from_arrays(arrays)
    if dataset.nrecords is None:
        raise ValueError("rows have to be counted to be written: open with counts='auto'")
    check_storable(dataset.schema)
    wishes, codecs = Wishes(chunks, shards, target_chunk_bytes, target_shard_bytes), Codecs(compressors, filters)
    codecs.check(dataset.schema)
    workers = Workers.active().limited(memory_limit)
    feed = Feed(dataset, uuid.uuid4().hex)
    sizes = feed.row_sizes()
    grid, cuts = wishes.cut(dataset.schema, dataset.nrecords, sizes)
    layout = zarr_layout(dataset.schema, dataset.nrecords, grid, feed.tally(grid.unit, grid.most), cuts)
    return ZarrPlan(
        dataset.nrecords,
        grid.unit,
        layout.nunits,
        tuple(ArrayPlan.of(spec, codecs, sizes) for spec in layout.arrays),
        MemoryBudget.of(workers.threads, _units(layout, sizes), _read_nbytes(layout, feed, sizes, workers.threads)),
        workers.memory_limit,
        dataset,
        layout,
        codecs,
    )


def to_zarr(
    arrays: Mapping[str, Any],
    store: Any,
    *,
    component: str | None = None,
    mode: Literal["w", "w-"] = "w-",
    chunks: int | Mapping[str, int] | None = None,
    shards: int | Mapping[str, int] | None = None,
    target_chunk_bytes: int | str | None = None,
    target_shard_bytes: int | str | None = None,
    compressors: Any = "auto",
    filters: Any = "auto",
    memory_limit: int | str | None = "auto",
    compute: bool = True,
    storage_options: Mapping[str, Any] | None = None,
) -> Delayed | None:
    """Write columns to a Zarr group, one task per write unit and no rechunking.

    Dense and text columns are one array each. Columns of bytes and of ragged rows are ``NAME.values`` and
    ``NAME.row_splits``, with ``NAME.row_splits_1`` and so on where rows are made of rows, and ``NAME.byte_splits``
    where those are of bytes; arrays of their own shapes have these in ``NAME.shapes``. ``/`` in a name becomes ``.``;
    the group's attributes keep the true names, the schema with its class names, and the sources.

    Parameters
    ----------
    arrays : Dataset or mapping of str to array-like
        What is written: a data set, or dask or NumPy arrays of as many rows each.
    store : str, Path or zarr store
        A path, a URL or a store.
    component : str, optional
        Path of the group within the store.
    mode : {"w-", "w"}
        ``"w-"`` fails if the group exists, ``"w"`` replaces it.
    chunks : int or mapping of str to int, optional
        Rows of a chunk: of all features, or by feature. All features share a unit of rows, so the chunks and shards
        that are given have to divide the largest of them. In a mapping the name of a flat array that is not cut where
        rows are, such as ``"tokens.values"``, has the number of its entries.
    shards : int or mapping of str to int, optional
        Rows of a shard, a multiple of `chunks`; by default arrays are not sharded.
    target_chunk_bytes : int or str, default "4 MiB"
        Decoded bytes that the rows of a chunk take in all arrays that are cut where rows are, and those of a chunk of
        flat values; ``"1 MiB"`` where sharded. Rows are fewer if bytes and ragged columns make them long.
    target_shard_bytes : int or str, optional
        The same for a shard; arrays are sharded if it is given.
    compressors : "auto", None, what `zarr.create_array` takes, or a mapping of such by feature or flat array
        ``"auto"``, which features that a mapping lacks have too, is Blosc with LZ4 and byte shuffling.
    filters : "auto", None, what `zarr.create_array` takes, or a mapping of such by feature or flat array
        Of dense arrays and values; where rows end is not filtered, unless a mapping names that array. ``"auto"`` is
        none.
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
        If rows are not counted, `chunks` and `shards` do not fit each other, workers have too little memory, or the
        group would replace the one that the data set is read from.
    IncompleteStoreError
        If tasks ran in other processes and wrote to a store that lies in the memory of this one.

    See Also
    --------
    plan_zarr : The same, shown before it is written.

    Notes
    -----
    Sizes of bytes and ragged columns are counted first, which reads them once more; of images that differ in size only
    the headers are looked at. The group is marked incomplete until all of it is written; a conversion that fails
    removes what it wrote. Each task reads its rows in pieces, and holds what it writes and one piece.

    Examples
    --------
    >>> import dask_tfrecord as dtf
    >>> dtf.read_tfrecord("train-*.tfrecord").to_zarr("train.zarr", mode="w")
    >>> dtf.from_zarr("train.zarr").nrecords > 0
    True
    """
    # What can't be written is not counted first.
    origin = arrays.origin if isinstance(arrays, Dataset) else {}
    Target.of(store, component, storage_options).check_free(_checked(mode), origin)
    plan = plan_zarr(
        arrays,
        chunks=chunks,
        shards=shards,
        target_chunk_bytes=target_chunk_bytes,
        target_shard_bytes=target_shard_bytes,
        compressors=compressors,
        filters=filters,
        memory_limit=memory_limit,
    )
    return plan.to_zarr(store, component=component, mode=mode, compute=compute, storage_options=storage_options)


def _checked(mode: Literal["w", "w-"]) -> Literal["w", "w-"]:
    if mode not in ("w", "w-"):
        raise ValueError(f"mode is 'w-' (fail if the group exists) or 'w' (replace it); got {mode!r}")
    return mode


def _entry_nbytes(spec: ArraySpec, sizes: RowSizes) -> float:
    """Find the decoded bytes of an entry along the first axis."""
    if spec.dtype == "string":
        return sizes.columns[spec.feature]
    return math.prod(spec.shape[1:]) * np.dtype(spec.dtype).itemsize


def _units(layout: Layout, sizes: RowSizes) -> dict[str, tuple[int, bool]]:
    """Find the decoded bytes of each kind of unit, and whether it is of shards."""
    rows, sharded, units = 0.0, False, {}
    for spec in layout.arrays:
        entry = _entry_nbytes(spec, sizes) + (_STRING_NBYTES if spec.dtype == "string" else 0)
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
