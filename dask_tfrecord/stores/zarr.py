"""Writing Zarr stores: one task per write unit, and each writes what it alone writes.

The only module that imports zarr. What a store looks like is decided in `dask_tfrecord.stores.layout`.
"""

from __future__ import annotations

import json
import shutil
import threading
import uuid
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import dask
import numpy as np
import zarr
import zarr.codecs
import zarr.errors
import zarr.storage
from dask.delayed import Delayed
from numpy.typing import NDArray

from dask_tfrecord.arrays.dataset import Dataset, register_store
from dask_tfrecord.columns.blocks import Block, BytesBlock, RaggedBlock
from dask_tfrecord.errors import IncompleteStoreError, Place
from dask_tfrecord.schema import Schema
from dask_tfrecord.stores.feed import Feed, Fetch, count_granules
from dask_tfrecord.stores.layout import (
    CHUNK_NBYTES,
    UNIT_NBYTES,
    ArraySpec,
    Layout,
    Unit,
    is_flat,
    row_units,
    splits_per_row,
    tally,
    zarr_layout,
)

__all__ = ["FORMAT", "Target", "WriteReport", "to_zarr"]

_ATTRIBUTE = "dask_tfrecord"
FORMAT = 1
# By one of these a directory is known as Zarr's.
_MARKS = {"zarr.json", ".zgroup", ".zarray", ".zmetadata"}
_EXISTS = "{} exists: mode='w' replaces it, component= writes beside it"
# Granules of a unit: how finely it is known where the values of flat features lie.
_GRANULES = 16
# Rows that are read to learn how large they are.
_PROBE_ROWS = 64

Compressors = Any


@dataclass(frozen=True, slots=True)
class WriteReport:
    """What one task has written.

    Attributes
    ----------
    records : int
        Rows; none for a unit of flat values.
    nbytes : int
        Decoded bytes.
    """

    records: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Target:
    """Where a group is, in a form that travels to workers.

    Attributes
    ----------
    store : object
        A path, a URL or a zarr store.
    component : str or None
        The group's path in it.
    storage_options : dict or None
        For a URL.
    """

    store: Any
    component: str | None
    storage_options: dict[str, Any] | None

    @classmethod
    def of(cls, store: Any, component: str | None, storage_options: Mapping[str, Any] | None) -> Target:
        """Make the target that a user's arguments mean."""
        if isinstance(store, str) and "://" not in store and "::" not in store:
            store = Path(store)
        if isinstance(store, Path):
            store = str(store.expanduser().absolute())  # workers may stand in another directory
        return cls(store, component, None if storage_options is None else dict(storage_options))

    def __str__(self) -> str:
        return f"{self.store}" + (f"/{self.component}" if self.component else "")

    @property
    def directory(self) -> Path | None:
        """The group's directory, where it is one of this machine."""
        local = isinstance(self.store, str) and "://" not in self.store and "::" not in self.store
        return Path(self.store, self.component or "") if local else None

    def open(self, mode: Literal["r", "r+", "w", "w-"]) -> zarr.Group:
        """Open or make the group.

        Raises
        ------
        FileExistsError
            If it is there and `mode` is ``"w-"``.
        FileNotFoundError
            If it is not there and is to be read.
        """
        try:
            return zarr.open_group(
                self.store, mode=mode, path=self.component, storage_options=self.storage_options, zarr_format=3
            )
        except (zarr.errors.ContainsGroupError, FileExistsError) as error:
            raise FileExistsError(_EXISTS.format(self)) from error
        except (zarr.errors.GroupNotFoundError, FileNotFoundError) as error:
            raise FileNotFoundError(f"no Zarr group at {self}") from error

    def check_free(self, mode: Literal["w", "w-"]) -> None:
        """Refuse to write before anything is read for it.

        Raises
        ------
        FileExistsError
            If the group is there and `mode` is ``"w-"``, or a directory of other things: zarr would empty it under
            ``"w"``, whatever is in it.
        """
        directory = self.directory
        inside = {path.name for path in directory.iterdir()} if directory is not None and directory.is_dir() else set()
        if directory is not None and inside and all((directory / name / "c").is_dir() for name in inside):
            shutil.rmtree(directory)  # nothing but chunks: a worker went on for a moment after its conversion failed
            inside.clear()
        if (inside and not inside & _MARKS) or (directory is not None and directory.is_file()):
            raise FileExistsError(f"{self} is there and is no Zarr group: give another path")
        with suppress(FileNotFoundError):
            if mode == "w-" and self.open("r") is not None:
                raise FileExistsError(_EXISTS.format(self))

    def attributes(self, group: zarr.Group) -> dict[str, Any]:
        """Look up what `to_zarr` noted on the group."""
        attributes = group.attrs.asdict().get(_ATTRIBUTE)
        return dict(attributes) if isinstance(attributes, Mapping) else {}

    def read(self, group: zarr.Group, name: str, start: int, stop: int) -> NDArray[Any]:
        """Entries of one array of the group."""
        array = group[name]
        if not isinstance(array, zarr.Array):
            raise IncompleteStoreError(f"{name!r} is no array of the group", Place(str(self)))
        return np.asarray(array[start:stop])


@dataclass(slots=True)
class _Writer:
    """The plan of a conversion; it travels once to each worker and opens the group there.

    Attributes
    ----------
    target : Target
        The group.
    layout : Layout
        Its arrays.
    schema : Schema
        The features.
    """

    target: Target
    layout: Layout
    schema: Schema
    opened: dict[str, Any] = field(default_factory=dict)
    gate: threading.Condition = field(default_factory=threading.Condition)
    writing: int = 0
    closed: bool = False

    def __getstate__(self) -> tuple[Any, ...]:
        return self.target, self.layout, self.schema

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.__init__(*state)  # type: ignore[misc]

    @contextmanager
    def admitted(self) -> Iterator[None]:
        """Write within this: nothing is written any more once the conversion has failed."""
        with self.gate:
            if self.closed:
                raise IncompleteStoreError("another task of this conversion has failed", Place(str(self.target)))
            self.writing += 1
        try:
            yield
        finally:
            with self.gate:
                self.writing -= 1
                self.gate.notify_all()

    def close(self) -> None:
        """Let nobody write any more, and wait for those of this process who do: they outlive a failed compute."""
        with self.gate:
            self.closed = True
            self.gate.wait_for(lambda: not self.writing)

    def array(self, name: str) -> Any:
        """One array of the group, opened once per process."""
        if name not in self.opened:
            self.opened[name] = self.target.open("r+")[name]
        return self.opened[name]

    def write(self, unit: Unit, blocks: dict[str, Block]) -> WriteReport:
        """Write a unit from the rows that were read for it."""
        if unit.array is not None:
            block = blocks[unit.array.feature]
            return WriteReport(0, self._write_flat(unit.array, unit.start, unit.stop, block, unit.rows[0]))
        nbytes = 0
        for array in self.layout.arrays:
            block = blocks[array.feature]
            if array.part == "dense":
                self.array(array.name)[unit.start : unit.stop] = block
                nbytes += block.nbytes
            elif array.part == "row_splits":
                per_row = splits_per_row(self.schema, array.feature)
                last = 1 if unit.stop == self.layout.nrows else 0
                nbytes += self._write_flat(array, unit.start * per_row, unit.stop * per_row + last, block, unit.rows[0])
        return WriteReport(unit.stop - unit.start, nbytes)

    def _write_flat(self, array: ArraySpec, start: int, stop: int, block: Block, first_row: int) -> int:
        """Write entries of a flat array from rows that begin at `first_row`, and count their bytes."""
        granule = first_row // self.layout.tally.granule
        values = int(self.layout.tally.values[array.feature][granule])
        nbytes = int(self.layout.tally.nbytes[array.feature][granule])
        flat = block.values if isinstance(block, RaggedBlock) else block
        if array.part == "values":
            before = nbytes if isinstance(flat, BytesBlock) else values
            entries: Any = flat.values if isinstance(flat, BytesBlock) else flat
        elif array.part == "row_splits" and isinstance(block, RaggedBlock):
            before, entries = first_row, block.row_splits + values
        elif isinstance(flat, BytesBlock):
            per_row = splits_per_row(self.schema, array.feature)
            each = int(np.prod(flat.shape[1:]))
            before = first_row * per_row if array.part == "row_splits" else values * each
            entries = flat.splits + nbytes
        written = entries[start - before : stop - before]
        self.array(array.name)[start:stop] = written
        return int(written.nbytes)


def _write(writer: _Writer, unit: Unit, fetch: Fetch, *arguments: Any) -> WriteReport:
    blocks = fetch(*arguments)
    with writer.admitted():
        return writer.write(unit, blocks)


def _finish(target: Target, reports: Sequence[WriteReport]) -> None:
    group = target.open("r+")
    group.attrs[_ATTRIBUTE] = {**target.attributes(group), "complete": True}
    with warnings.catch_warnings():
        # Consolidated metadata works and xarray asks for it; zarr warns that the specification is not out yet.
        warnings.filterwarnings("ignore", "Consolidated metadata is currently not part", UserWarning)
        zarr.consolidate_metadata(group.store, path=target.component or None, zarr_format=3)


def to_zarr(
    arrays: Mapping[str, Any],
    store: Any,
    *,
    component: str | None = None,
    mode: Literal["w", "w-"] = "w-",
    chunks: int | None = None,
    shards: int | None = None,
    compressors: Compressors = "auto",
    compute: bool = True,
    storage_options: Mapping[str, Any] | None = None,
) -> Delayed | None:
    """Write columns to a Zarr group, one task per write unit and no rechunking.

    Dense and text columns are one array each; bytes and ragged ones are ``NAME.values`` and ``NAME.row_splits`` (and
    ``NAME.byte_splits`` for ragged bytes). ``/`` in a name becomes ``.``; the group's attributes keep the true names,
    the schema and the sources.

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
    chunks : int, optional
        Rows of a chunk; by default about 8 MiB of all columns together (1 MiB where sharded).
    shards : int, optional
        Rows of a shard, a multiple of `chunks`; by default arrays are not sharded.
    compressors : "auto", None or what `zarr.create_array` takes
        ``"auto"`` is Blosc with LZ4 and byte shuffling.
    compute : bool, default True
        Write now; otherwise only the empty arrays are made, and a `Delayed` that writes them is returned.
    storage_options : mapping, optional
        What fsspec takes beside a URL.

    Returns
    -------
    None or dask.delayed.Delayed

    Raises
    ------
    FileExistsError
        If the group exists under ``mode="w-"``, or what is there is no Zarr group.
    SchemaError
        If arrays differ in their number of rows, or are of a dtype that no feature has.
    ValueError
        If rows are not counted, or `chunks` and `shards` do not fit each other.

    Notes
    -----
    Sizes of bytes and ragged columns are counted first, which reads them once more. The group is marked incomplete
    until all of it is written; a conversion that fails removes what it wrote.

    Examples
    --------
    >>> import dask_tfrecord as dtf
    >>> dtf.read_tfrecord("train-*.tfrecord").to_zarr("train.zarr", mode="w")
    >>> dtf.from_zarr("train.zarr").nrecords > 0
    True
    """
    if mode not in ("w", "w-"):
        raise ValueError(f"mode is 'w-' (fail if the group exists) or 'w' (replace it); got {mode!r}")
    dataset = arrays if isinstance(arrays, Dataset) else Dataset.from_arrays(arrays)
    if dataset.nrecords is None:
        raise ValueError("rows have to be counted to be written: open with counts='auto'")
    target = Target.of(store, component, storage_options)
    target.check_free(mode)
    feed = Feed(dataset, uuid.uuid4().hex)
    unit_rows, chunk_rows = _row_grid(dataset, chunks, shards)
    layout = _layout(dataset, feed, chunk_rows, unit_rows)
    writer = _Writer(target, layout, dataset.schema)
    group = target.open(mode)
    try:
        _create(group, dataset, layout, compressors)
        written = _tasks(writer, feed)
        if not compute:
            return written
        dask.compute(written)
    except BaseException:
        writer.close()
        _remove(target)
        raise
    return None


def _tasks(writer: _Writer, feed: Feed) -> Delayed:
    schema, token = writer.schema, feed.token
    shared = dask.delayed(writer, name=f"tfrecord-writer-{token}", traverse=False)
    reports = []
    for number, unit in enumerate(writer.layout.units(schema)):
        names = tuple(schema) if unit.array is None else (unit.array.feature,)
        reports.append(feed.task(_write, (shared, unit), names, unit.rows, f"write-{token}-{number}"))
    return dask.delayed(_finish, pure=False)(writer.target, reports, dask_key_name=f"tfrecord-finish-{token}")


def _layout(dataset: Dataset, feed: Feed, chunk_rows: int, unit_rows: int) -> Layout:
    """Count what the flat features hold, and lay the arrays out."""
    schema, rows = dataset.schema, dataset.nrecords or 0
    granule = next(unit_rows // parts for parts in range(_GRANULES, 0, -1) if unit_rows % parts == 0)
    flat = [name for name, feature in schema.items() if is_flat(feature)]
    counted: tuple[Any, ...] = ()
    if flat:
        tasks = [
            feed.task(count_granules, (granule,), flat, unit, f"count-{feed.token}-{number}")
            for number, unit in enumerate(row_units(rows, unit_rows))
        ]
        counted = dask.compute(*tasks)
    return zarr_layout(schema, rows, chunk_rows, unit_rows, tally(granule, counted, schema))


def _row_grid(dataset: Dataset, chunks: int | None, shards: int | None) -> tuple[int, int]:
    """Rows of a write unit and of a chunk."""
    for name, value in (("chunks", chunks), ("shards", shards)):
        if value is not None and (not isinstance(value, int | np.integer) or isinstance(value, bool) or value < 1):
            raise ValueError(f"{name} is a number of rows; got {value!r}")
    rows = dataset.nrecords or 0
    if shards is None:
        unit = chunks or min(max(1, int(UNIT_NBYTES // _row_nbytes(dataset))), max(rows, 1))
        return int(unit), int(unit)
    if chunks is None:
        wanted = max(1, int(CHUNK_NBYTES // _row_nbytes(dataset)))
        chunks = max(size for size in range(1, min(wanted, shards) + 1) if shards % size == 0)
    if shards % chunks:
        raise ValueError(f"a shard is a whole number of chunks; {shards} rows are no multiple of {chunks}")
    return int(shards), int(chunks)


def _row_nbytes(dataset: Dataset) -> float:
    """Find the decoded bytes of a row, of the first ones where they differ."""
    features = dataset.schema.values()
    if all(feature.block_dtype.kind in "biufc" for feature in features):
        return max(1.0, float(sum(f.block_dtype.itemsize * np.prod(f.block_shape) for f in features)))
    probe = dataset.rows[:_PROBE_ROWS]
    if probe.source is None or not probe.nrecords:
        return float(CHUNK_NBYTES / 1024)
    blocks = probe.source.read(tuple(dataset), slice(None))
    return max(1.0, sum(block.nbytes for block in blocks.values()) / probe.nrecords)


def _create(group: zarr.Group, dataset: Dataset, layout: Layout, compressors: Compressors) -> None:
    group.attrs[_ATTRIBUTE] = {
        "format": FORMAT,
        "complete": False,
        "id": uuid.uuid4().hex,
        "records": layout.nrows,
        "unit_rows": layout.unit_rows,
        "schema": json.loads(dataset.schema.to_json()),
        "source": dict(dataset.origin),
    }
    if isinstance(compressors, str) and compressors == "auto":
        compressors = zarr.codecs.BloscCodec(cname="lz4", clevel=5, shuffle="shuffle")
    for array in layout.arrays:
        inner = tuple(max(1, size) for size in array.shape[1:])
        group.create_array(
            array.name,
            shape=array.shape,
            dtype=array.dtype,
            chunks=(array.chunk, *inner),
            shards=(array.unit, *inner) if array.unit != array.chunk else None,
            compressors=compressors,
            dimension_names=array.dimensions,
        )


def _remove(target: Target) -> None:
    """Leave nothing of a group that was not finished; where a store can't, an empty group that says so stays."""
    if target.directory is not None:
        shutil.rmtree(target.directory, ignore_errors=True)
        return
    target.open("w").attrs[_ATTRIBUTE] = {"format": FORMAT, "complete": False}


register_store("zarr", to_zarr)
