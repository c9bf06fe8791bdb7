"""Plan of a conversion to Zarr: its inputs and options, counts, chunk grid, tasks and memory. Nothing is written."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import Any

import numpy as np

from dask_tfrecord.arrays.dataset import Dataset
from dask_tfrecord.arrays.rows import Rechunked
from dask_tfrecord.errors import SchemaError, UnknownFeatureError, near_misses
from dask_tfrecord.inputs.inputs import Inputs
from dask_tfrecord.runtime.cancellation import run_uninterrupted
from dask_tfrecord.runtime.memory import MemoryBudget, Workers
from dask_tfrecord.schema import Schema
from dask_tfrecord.settings import limits
from dask_tfrecord.stores.rows import RowSizes, RowTasks
from dask_tfrecord.stores.zarr.compat import array_metadata
from dask_tfrecord.stores.zarr.fingerprint import Fingerprint
from dask_tfrecord.stores.zarr.layout import ZarrLayout, count_tasks, zarr_layout
from dask_tfrecord.stores.zarr.options import AxisNames, ChunkRequest, Codecs, FillValues, UserAttributes, ZarrOptions

# Argument of users: for each group, a prefix or the features.
Groups = Mapping[str, str | Sequence[str]]


# Bytes of a Python string besides its characters; Zarr's codec of strings takes Python strings.
_STRING_NBYTES = 64


@dataclass(frozen=True, slots=True, eq=False)
class ConversionRequest:
    """Validated inputs and options of a conversion."""

    dataset: Dataset
    schema: Schema
    options: ZarrOptions
    fingerprint: Fingerprint
    memory_limit: int | str | None


@dataclass(frozen=True, slots=True, eq=False)
class Conversion:
    """A planned conversion."""

    request: ConversionRequest
    layout: ZarrLayout
    sizes: RowSizes
    ntasks: int
    memory: MemoryBudget
    memory_limit: int | None
    rechunks: tuple[Rechunked, ...]

    def check_memory(self) -> None:
        """Raise `ValueError` if the conversion exceeds the memory of a worker."""
        excess = self.memory.excess(self.memory_limit)
        if excess is not None:
            raise ValueError(excess)


def plan_conversion(request: ConversionRequest, layout: ZarrLayout | None = None) -> Conversion:
    """Plan a conversion: count variable-length columns, choose the chunk grid, estimate the memory.

    Parameters
    ----------
    request : ConversionRequest
        Inputs and options.
    layout : ZarrLayout, optional
        Layout of an interrupted conversion; computed if it is not given.
    """
    dataset, options, schema = request.dataset, request.options, request.schema
    workers = Workers.active().with_memory_limit(request.memory_limit)
    row_tasks = RowTasks(dataset, uuid.uuid4().hex, schema)
    sizes = row_tasks.row_sizes()
    if layout is None:
        nrows = dataset.nrows or 0
        grid, overrides = options.chunks.resolve(schema, nrows, sizes)
        border_counts = row_tasks.count_borders(grid.unit, grid.most)
        layout = zarr_layout(schema, nrows, grid, border_counts, overrides, options.names)
        arguments = options.create_arguments(layout, schema)
        run_uninterrupted(lambda: array_metadata(arguments))
    rechunks = dataset._merged().rechunked
    read_nbytes = _read_nbytes(layout, row_tasks, sizes, workers.threads) + sum(each.held_nbytes for each in rechunks)
    shares_reads = row_tasks.source is not None
    ntasks = count_tasks(layout) if shares_reads else layout.nunits
    memory = MemoryBudget.from_units(workers, ntasks, _unit_nbytes(layout, sizes), read_nbytes, together=shares_reads)
    return Conversion(request, layout, sizes, ntasks, memory, workers.memory_limit, rechunks)


def _unit_nbytes(layout: ZarrLayout, sizes: RowSizes) -> dict[str, tuple[int, bool]]:
    """Return the decoded bytes of each kind of unit, and whether it is a shard."""
    row_nbytes, sharded, units = 0.0, False, {}
    for spec in layout.arrays:
        entry = spec.entry_nbytes(sizes.columns) + (_STRING_NBYTES if spec.dtype == "string" else 0)
        if spec.by_rows:
            stride = spec.unit // layout.grid.unit if spec.part == "row_splits" else 1
            row_nbytes += min(layout.grid.unit * max(stride, 1), spec.shape[0]) * entry
            sharded |= spec.unit != spec.chunk
        else:
            units[spec.name] = int(min(spec.unit, spec.shape[0]) * entry), spec.unit != spec.chunk
    return {"rows": (int(row_nbytes), sharded), **units}


def _read_nbytes(layout: ZarrLayout, row_tasks: RowTasks, sizes: RowSizes, threads: int) -> int:
    """Return the decoded bytes of rows that a task holds: the block that it reads, and a copy of it."""
    block = min(layout.grid.most, layout.nrows) * sizes.read
    counts = layout.border_counts
    if counts.items:
        # A row is never split, so the rows between two borders may exceed the size of a block.
        block = max(block, min(limits().read_nbytes, int(counts.sizes[-1])), int(np.diff(counts.sizes).max(initial=0)))
    return int(2 * block + row_tasks.held_rows(layout.grid.unit, threads) * sizes.read)


def group_attributes(request: ConversionRequest, layout: ZarrLayout, identity: str) -> dict[str, Any]:
    """Return the attributes that this library writes to a group, besides those of its completion."""
    try:
        version = metadata.version("dask-tfrecord")
    except metadata.PackageNotFoundError:
        version = None  # the package is imported from a source folder
    return {
        "id": identity,
        "version": version,
        "unit_rows": layout.grid.unit,
        **request.fingerprint.to_attributes(),
    }


def conversion_request(
    arrays: Mapping[str, Any],
    chunks: ChunkRequest,
    codecs: Codecs,
    groups: Groups | None,
    dimension_names: Mapping[str, Sequence[str]] | None,
    fill_values: Mapping[str, Any] | None,
    consolidated: bool,
    memory_limit: int | str | None,
) -> ConversionRequest:
    """Validate the inputs and options of a conversion, before any row is read."""
    inputs = Inputs.from_arrays(arrays)
    dataset = inputs.dataset
    if dataset.nrows is None:
        raise ValueError("rows must be counted before they are written: open with counts='auto'")
    schema = dataset.schema if groups is None else _with_groups(dataset.schema, groups)
    _check_storable(schema)
    names, attributes = AxisNames.from_inputs(inputs, dimension_names), UserAttributes.from_inputs(inputs)
    inputs.warn_of_attributes(attributes.omitted)
    options = ZarrOptions(chunks, codecs, names, FillValues(fill_values), consolidated, attributes)
    options.check(schema)
    fingerprint = Fingerprint.from_dataset(dataset, schema, options.to_json())
    return ConversionRequest(dataset, schema, options, fingerprint, memory_limit)


def _with_groups(schema: Schema, groups: Groups) -> Schema:
    """Return the schema with the groups of the user.

    Raises
    ------
    UnknownFeatureError
        If a name is not a feature, or no ragged feature is below a prefix.
    """
    if not isinstance(groups, Mapping):
        raise TypeError(f"groups maps names to a prefix or a list of features; got {groups!r:.100}")
    ragged = [name for name in schema if schema[name].ragged_rank]
    members: dict[str, Sequence[str]] = {}
    for group, given in groups.items():
        members[group] = list(given)
        if isinstance(given, str):
            prefix = given.rstrip("/")
            members[group] = [name for name in ragged if name == prefix or name.startswith(f"{prefix}/")]
            if not members[group]:
                known = {*ragged, *(name[: name.rindex("/")] for name in ragged if "/" in name)}
                raise UnknownFeatureError(
                    f"group {group!r}: no ragged feature is named {prefix!r} or begins with '{prefix}/'"
                    f"{near_misses(prefix, sorted(known))}"
                )
    return schema.with_groups(members)


def _check_storable(schema: Schema) -> None:
    """Refuse dtypes without a name in Zarr.

    Raises
    ------
    SchemaError
        If a column has one; the message has a conversion.
    """
    for name, feature in schema.items():
        if feature.item_dtype.kind not in "biufcOT":
            block = f"blocks[{name!r}]"
            cast = f"{block}.astype('float32')"
            if feature.ragged_rank == 1:
                cast = f"RaggedBlock({block}.values.astype('float32'), {block}.row_splits)"
            elif feature.block_dtype.kind == "O":
                cast = f"[row.astype('float32') for row in {block}] and a template"
            raise SchemaError(
                f"cannot write column {name!r}: Zarr has no name for dtype {feature.item_dtype}; convert it to float32 "
                f"with map_blocks and {cast}"
            )
