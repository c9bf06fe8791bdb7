"""The plan of a conversion: what it will write, what memory it takes; and it can be written."""

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
from dask_tfrecord.arrays.recut import Recut
from dask_tfrecord.errors import ResumeError
from dask_tfrecord.schema import Schema
from dask_tfrecord.stores.budget import MemoryBudget
from dask_tfrecord.stores.codecs import codec_values
from dask_tfrecord.stores.conversion import Begun, Order, convert, find_begun, finish
from dask_tfrecord.stores.feed import Feed, RowSizes
from dask_tfrecord.stores.fill_values import json_value
from dask_tfrecord.stores.fingerprint import Fingerprint
from dask_tfrecord.stores.layout import ArraySpec, Layout
from dask_tfrecord.stores.options import ZarrOptions
from dask_tfrecord.stores.plan_display import html_plan, text_plan
from dask_tfrecord.stores.zarr import Target

__all__ = ["ArrayPlan", "ZarrPlan", "entry_nbytes"]


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
    fill_value : scalar
        What readers take for chunks that are not there.
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
    fill_value: Any
    nbytes: int
    exact: bool

    @classmethod
    def of(cls, spec: ArraySpec, options: ZarrOptions, schema: Schema, sizes: RowSizes) -> ArrayPlan:
        """Tell what an array of a layout will be."""
        form = options.form(spec, schema)
        return cls(
            spec.name,
            spec.feature,
            spec.shape,
            spec.dtype,
            form["chunks"],
            form["shards"],
            form["compressors"],
            form["filters"],
            spec.dimensions,
            form["fill_value"],
            int(spec.shape[0] * entry_nbytes(spec, sizes)),
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
        Units, of rows and of each flat array: what is written whole, and noted so that it is not written again.
    tasks : int
        Tasks that write them: flat values are written with the rows where most of them lie, unless rows are in memory.
    arrays : tuple of ArrayPlan
        What will be written.
    memory : MemoryBudget
        Peak memory of a worker, and its arithmetic.
    memory_limit : int or None
        Bytes that a worker may take; None where nobody limits them.
    rechunks : tuple of Recut
        Arrays whose chunks are not those of the rows that they stand beside, and are made so.

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
    tasks: int
    arrays: tuple[ArrayPlan, ...]
    memory: MemoryBudget
    memory_limit: int | None
    rechunks: tuple[Recut, ...]
    _dataset: Dataset = field(repr=False)
    _layout: Layout = field(repr=False)
    _options: ZarrOptions = field(repr=False)
    _fingerprint: Fingerprint = field(repr=False)

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
        resume: bool = False,
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
        begun = find_begun(target, self._fingerprint, mode, resume)
        if begun is not None and begun.layout is None:
            return finish(target, begun, compute=compute)
        if begun is not None and begun.layout is not None and begun.layout.arrays != self._layout.arrays:
            raise ResumeError(
                "what was begun there was planned otherwise: to_zarr(…, resume=True) takes its plan", target.place
            )
        return self.write(target, begun, mode, resume, compute)

    def write(
        self, target: Target, begun: Begun | None, mode: Literal["w", "w-"], keep: bool, compute: bool
    ) -> Delayed | None:
        """Write it into a target that is known; gone on with where it was begun."""
        # What was begun without anything written is as good as nothing.
        mode = "w" if keep and begun is None and target.begun() else mode
        opening = mode if begun is not None else target.check_free(mode, self._dataset.origin)
        self.check()
        # Each run has a name of its own, and so have its tasks.
        feed = Feed(self._dataset, uuid.uuid4().hex)
        order = Order(target, feed, self._layout, self._options, self._fingerprint, keep)
        return convert(order, begun, opening, compute=compute)

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
        spelled = {"compressors": codec_values, "filters": codec_values, "fill_value": json_value}
        arrays = [
            {name: spelled[name](value) if name in spelled else value for name, value in _fields(array)}
            for array in self.arrays
        ]
        return json.dumps(
            {
                "nrecords": self.nrecords,
                "unit_rows": self.unit_rows,
                "write_units": self.write_units,
                "tasks": self.tasks,
                "nbytes": self.nbytes,
                "arrays": arrays,
                "consolidated": self._options.consolidated,
                "memory": asdict(self.memory) | {"peak_nbytes": self.memory.peak_nbytes},
                "memory_limit": self.memory_limit,
                "rechunks": [
                    {"name": each.name, "from": each.largest(each.before), "to": each.largest(each.after)}
                    | {"held_nbytes": each.held_nbytes}
                    for each in self.rechunks
                ],
            },
            ensure_ascii=False,
        )

    def __repr__(self) -> str:
        return text_plan(self)

    def _repr_html_(self) -> str:
        return html_plan(self)


def entry_nbytes(spec: ArraySpec, sizes: RowSizes) -> float:
    """Find the decoded bytes of an entry along the first axis."""
    if spec.dtype == "string":
        return sizes.columns[spec.feature]
    return math.prod(spec.shape[1:]) * np.dtype(spec.dtype).itemsize


def _fields(array: ArrayPlan) -> list[tuple[str, Any]]:
    return [(name, getattr(array, name)) for name in ArrayPlan.__slots__]
