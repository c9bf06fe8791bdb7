"""Sources: objects that read rows of columns as blocks, in any process.

A source is small, picklable and tokenised. It is sent to each worker once, and its token identifies its rows.
`RecordSource` reads TFRecord shards. The other sources are `MappedSource`, `FilledSource`, `UncountedSource` and the
reader of Zarr stores.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from dask.base import tokenize
from numpy.typing import NDArray

from dask_tfrecord.arrays.collection import Collection, RowNumbers, finer_borders, pick_rows, row_runs
from dask_tfrecord.columns.blocks import ArraysBlock, Block, BytesBlock, RaggedBlock, block_nbytes, take_rows, to_array
from dask_tfrecord.columns.column_plan import SchemaPlan, SizePlan
from dask_tfrecord.columns.decode import decode, decode_blocks
from dask_tfrecord.columns.memory_limit import MemoryLimit
from dask_tfrecord.errors import redact_url
from dask_tfrecord.records.index import check_count
from dask_tfrecord.records.splits import Run
from dask_tfrecord.runtime.dask_private import worker_memory
from dask_tfrecord.schema import Schema
from dask_tfrecord.settings import full_name, read_nbytes, read_setting
from dask_tfrecord.storage.listing import Shards

__all__ = [
    "OutputBuffer",
    "Outputs",
    "RecordSource",
    "Source",
    "describe_rows",
    "fill",
    "memory_limit",
    "parts",
    "probe_rows",
    "shards_origin",
]

# Returns memory for the flat values of a span of rows, or None. A source may ignore it.
OutputBuffer = Callable[[tuple[int, int]], NDArray[Any] | None]
# Output of each column: an array that is filled, or an output buffer for flat values of rows that differ in size.
Outputs = Mapping[str, NDArray[Any] | OutputBuffer]

_SETTING = "decode.memory-limit"
# Rows that are read to estimate their size: borders of spans, and decoded bytes after which the probe stops.
_PROBE_CUTS = (0, 1, 4, 16, 64)
_PROBE_NBYTES = 8 << 20
# Share of the memory of a worker that one column of a block may take.
_SHARE = 0.5
_CGROUPS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


class Source(Protocol):
    """Rows that a `Dataset` reads on demand."""

    @property
    def schema(self) -> Schema:
        """Schema of the columns."""

    @property
    def nrows(self) -> int | None:
        """Number of rows; None if they are not counted."""

    @property
    def rows(self) -> RowNumbers | None:
        """Numbers of the stored rows that are rows of this source; None if they are not counted."""

    @property
    def origin(self) -> Mapping[str, Any]:
        """Origin of the rows as JSON values, for the repr and for attributes of stores."""

    def read(self, names: Sequence[str], key: Any, out: Mapping[str, NDArray[Any]] | None = None) -> dict[str, Block]:
        """Read rows of some columns in one pass.

        `key` is a slice, a list of ints or a mask over the rows. If rows are not counted, it is the number of a chunk.
        Arrays of `out` are filled and returned for dense columns.
        """

    def read_spans(
        self, names: Sequence[str], spans: Iterable[tuple[int, int]], out: Outputs | None = None
    ) -> Iterator[dict[str, Block]]:
        """Yield the rows ``start`` to ``stop`` of each span, read in one pass if spans ascend.

        Arrays of `out` are filled span by span from their start. An `OutputBuffer` is called before each span.
        """

    def sizes_only(self) -> Source:
        """Return a source of the same rows for callers that need sizes only: values of ragged rows may be zeros."""

    def with_memory_limit(self, nbytes: int) -> Source:
        """Return a source of the same rows that raises `MemoryLimitError` for larger columns of a block, if it can."""

    def select(self, key: Any) -> Source:
        """Return a source of the selected rows."""

    def describe(self, key: Any) -> str:
        """Return the files and records of rows as text, for errors; `key` is that of `read`."""

    def refine(self, borders: NDArray[np.int64], nbytes: int) -> NDArray[np.int64]:
        """Add chunk borders about `nbytes` of stored data apart, where reading can start at no cost."""


@dataclass(frozen=True, slots=True, eq=False)
class RecordSource:
    """Rows of TFRecord shards whose records are counted.

    Attributes
    ----------
    collection : Collection
        Shards, record counts and index entries.
    plan : SchemaPlan
        Plan that decodes records to columns.
    rows : range or ndarray of int64
        Numbers of the rows in the collection.
    check_crc : bool
        Check the CRCs of records that are read.
    token : str
        Identity of the attributes above.
    most_nbytes : int or None
        Limit of the bytes of a column of a block, if lower than the setting.
    """

    collection: Collection
    plan: SchemaPlan
    rows: RowNumbers
    check_crc: bool
    token: str
    most_nbytes: int | None = None

    @classmethod
    def from_collection(
        cls, collection: Collection, plan: SchemaPlan, rows: RowNumbers, check_crc: bool
    ) -> RecordSource:
        """Create a source and its token."""
        # Index entries follow from the shards; counts may be those of the user.
        token = tokenize(collection.shards, collection.starts, plan, rows, check_crc)
        return cls(collection, plan, rows, check_crc, token)

    def __dask_tokenize__(self) -> str:
        return self.token

    @property
    def schema(self) -> Schema:
        """Schema of the columns."""
        return self.plan.columns

    @property
    def nrows(self) -> int:
        """Number of rows."""
        return len(self.rows)

    @property
    def origin(self) -> Mapping[str, Any]:
        """Files with sizes and versions, and the schema of the records."""
        return {**shards_origin(self.collection.shards), "schema": json.loads(self.plan.schema.to_json())}

    def sizes_only(self) -> RecordSource:
        """Return a source of the same rows that counts the values of ragged rows without decoding them."""
        # Every task calls this, so the token is not computed from all shards again.
        token = f"{self.token}-sized"
        return replace(self, plan=SizePlan(self.plan.schema), token=token)

    def with_memory_limit(self, nbytes: int) -> RecordSource:
        """Return a source of the same rows with a lower memory limit."""
        return replace(self, most_nbytes=nbytes)

    def select(self, key: Any) -> RecordSource:
        """Return a source of the selected rows."""
        return RecordSource.from_collection(self.collection, self.plan, pick_rows(self.rows, key), self.check_crc)

    def describe(self, key: Any) -> str:
        """Return the files and records of rows as text, for errors."""
        return describe_rows(self.collection, pick_rows(self.rows, key), "record")

    def refine(self, borders: NDArray[np.int64], nbytes: int) -> NDArray[np.int64]:
        """Add borders at index entries."""
        return finer_borders(self.collection, self.rows, borders, nbytes)

    def read(self, names: Sequence[str], key: Any, out: Mapping[str, NDArray[Any]] | None = None) -> dict[str, Block]:
        """Read rows of some columns; only those records are decoded."""
        rows = pick_rows(self.rows, key)
        ascending: RowNumbers = rows
        order: NDArray[np.int64] | None = None
        if not (isinstance(rows, range) and rows.step > 0) and (np.diff(rows) <= 0).any():
            # A record that is selected twice is decoded once.
            ascending, order = np.unique(rows, return_inverse=True)
        into = out if order is None else None
        blocks = decode(
            self._runs(ascending),
            self.plan,
            names,
            rows=len(ascending),
            check_crc=self.check_crc,
            out=into,
            limit=memory_limit(self.most_nbytes),
        )
        if order is None:
            return blocks
        return fill({name: take_rows(block, order) for name, block in blocks.items()}, out)

    def read_spans(
        self, names: Sequence[str], spans: Iterable[tuple[int, int]], out: Outputs | None = None
    ) -> Iterator[dict[str, Block]]:
        """Yield the rows of each span; each shard is opened once if rows ascend."""
        if not (isinstance(self.rows, range) and self.rows.step > 0):
            return (self.read(names, key, into) for key, into in parts(spans, out))
        everything = self.rows == range(self.collection.nrows)
        runs = (
            (self._runs(self.rows[key], everything=everything), key.stop - key.start, into)
            for key, into in parts(spans, out)
        )
        limit = memory_limit(self.most_nbytes)
        return decode_blocks(runs, self.plan, names, check_crc=self.check_crc, limit=limit)

    def _runs(self, rows: RowNumbers, *, everything: bool = False) -> Iterator[Run]:
        """Yield runs of ascending rows; check counts of the user if no run reaches the end of the shard."""
        for run in row_runs(self.collection, rows):
            if run.total is not None and not everything:
                check_count(run.shard, run.total, check_crc=self.check_crc)
            yield run


def parts(spans: Iterable[tuple[int, int]], out: Outputs | None) -> Iterator[tuple[slice, dict[str, NDArray[Any]]]]:
    """Yield each span as a slice, with the slices of output arrays or the output buffers of its rows."""
    done = 0
    for start, stop in spans:
        filled = slice(done, done + stop - start)
        into = {
            name: into[filled] if isinstance(into, np.ndarray) else into((start, stop))
            for name, into in (out or {}).items()
        }
        yield slice(start, stop), {name: memory for name, memory in into.items() if memory is not None}
        done = filled.stop


def describe_rows(collection: Collection, rows: RowNumbers, noun: str) -> str:
    """Return the shards and records of rows as text."""
    if not len(rows):
        return f"no {noun}s"
    first, last = (rows[0], rows[-1]) if isinstance(rows, range) else (rows.min(), rows.max())
    first, last = min(int(first), int(last)), max(int(first), int(last))
    shards = np.searchsorted(collection.starts, [first, last], side="right") - 1
    (path, other), starts = (collection.shards.paths[shard] for shard in shards), collection.starts[shards]
    start, stop = first - int(starts[0]), last - int(starts[1])
    some = "" if last - first + 1 == len(rows) else f"{len(rows):,} of the {noun}s: "
    if path != other:
        return f"{some}{path}: {noun} {start} to {other}: {noun} {stop}"
    return f"{some}{path}: {noun} {start}" if start == stop else f"{some}{path}: {noun}s {start} to {stop}"


def fill(blocks: dict[str, Block], out: Mapping[str, NDArray[Any]] | None) -> dict[str, Block]:
    """Copy dense blocks to the output arrays."""
    for name, array in (out or {}).items():
        # Flat values are not copied: an output buffer is only an offer.
        if name in blocks and not isinstance(blocks[name], RaggedBlock | BytesBlock | ArraysBlock):
            array[:] = to_array(blocks[name])
            blocks[name] = array
    return blocks


def shards_origin(shards: Shards) -> Mapping[str, Any]:
    """Return files, sizes and versions; URLs are without credentials."""
    return {
        "files": list(map(redact_url, shards.paths)),
        "sizes": shards.sizes.tolist(),
        "versions": list(shards.versions),
    }


def probe_rows(source: Source, names: Sequence[str]) -> tuple[int, dict[str, int]]:
    """Read a few rows of a source with counted rows to estimate their size; fewer if they are large.

    Returns
    -------
    rows : int
        Number of rows read.
    nbytes : dict of str to int
        Decoded bytes of each column.
    """
    rows, found = 0, dict.fromkeys(names, 0)
    cuts = [min(cut, source.nrows or 0) for cut in _PROBE_CUTS]
    spans = ((start, stop) for start, stop in pairwise(cuts) if start < stop)
    # Values of ragged rows are not decoded: small records may decode to large ones.
    for blocks in source.sizes_only().read_spans(names, spans):
        found = {name: nbytes + block_nbytes(blocks[name]) for name, nbytes in found.items()}
        rows += len(next(iter(blocks.values())))
        if sum(found.values()) >= _PROBE_NBYTES:
            break
    return rows, found


def memory_limit(most: int | None = None) -> MemoryLimit | None:
    """Return the memory limit of one column of a block; None without limit.

    Parameters
    ----------
    most : int, optional
        Lower limit of the caller.

    Raises
    ------
    ValueError
        If the setting is not a number of bytes.
    """
    given = read_setting(_SETTING)
    if given == "auto":
        memory = worker_memory() or _machine_memory()
        nbytes = None if memory is None else int(memory * _SHARE)
    elif given is None:
        nbytes = None
    else:
        nbytes = read_nbytes(_SETTING, ", 'auto' or None")
    known = [each for each in (nbytes, most) if each is not None]
    return MemoryLimit(min(known), full_name(_SETTING)) if known else None


@cache
def _machine_memory() -> int | None:
    """Return the memory of the machine, or of its control group if lower."""
    found = []
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        found.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    for path in _CGROUPS:
        try:
            text = Path(path).read_text("ascii").strip()
        except (OSError, ValueError):
            continue
        if text.isdecimal():
            found.append(int(text))
    return min(found, default=None)
