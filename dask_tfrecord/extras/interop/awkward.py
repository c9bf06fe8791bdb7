"""Awkward arrays of a Dataset: a record array per chunk, without a copy of values and splits.

Copied are text, which NumPy stores string by string, bfloat16, numbers in the other byte order, and arrays that are not
contiguous.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dask_tfrecord.blocks import ArraysBlock, Block, BytesBlock, RaggedBlock, splits_of
from dask_tfrecord.errors import SchemaError, explain_missing
from dask_tfrecord.extras.chunk_iterator import ChunkIterator
from dask_tfrecord.features.schema import Schema
from dask_tfrecord.rows.graph import Chunk, locate_in_chunk
from dask_tfrecord.rows.rows import Rows
from dask_tfrecord.rows.sources import AnySource
from dask_tfrecord.stores.units import check_group_lengths


class AwkwardChunks(ChunkIterator[Any]):
    """Iterator of record arrays, one per chunk, decoded ahead.

    It is closed at its end, by `close`, by ``with``, and when it is deleted.
    """

    def __init__(self, rows: Rows) -> None:
        with explain_missing("to_awkward needs", "awkward", "awkward"):
            import awkward  # noqa: F401
        for group, members in rows.schema.groups.items():
            if group in rows.schema and group not in members:
                raise SchemaError(
                    f"group {group!r} and a column have the same name, and would become the same field: select only "
                    "one of them"
                )
        make = _ArrayMaker(rows.schema, rows.source, rows.borders)
        if not rows.schema and rows.nrows != 0:
            raise SchemaError("rows without columns can't become record arrays: select at least one column")
        super().__init__(rows, rows.names, make)


@dataclass(frozen=True, slots=True)
class _ArrayMaker:
    """Conversion of chunks to record arrays; it pickles."""

    schema: Schema
    source: AnySource | None  # None for rows in memory
    borders: NDArray[np.int64] | None  # first row of each chunk; None if rows are not counted

    def __call__(self, chunk: Chunk, number: int) -> Any:
        """Convert a chunk."""
        import awkward as ak

        blocks, fields = chunk.blocks, dict[str, Any]()
        check_group_lengths(self.schema.groups, blocks, partial(locate_in_chunk, self.source, self.borders, number))
        for name in self.schema:
            group = self.schema.group_of(name)
            if group is None:
                fields[name] = _block_to_content(blocks[name])
            elif group not in fields:
                fields[group] = _group_to_records(group, {each: blocks[each] for each in self.schema.groups[group]})
        rows = min(map(len, blocks.values()))
        return ak.Array(ak.contents.RecordArray(list(fields.values()), list(fields), length=rows))


def _group_to_records(group: str, blocks: Mapping[str, Block]) -> Any:
    """Convert columns that share their row lengths to lists of records."""
    import awkward as ak

    prefix = f"{group}/"
    inner = all(name.startswith(prefix) for name in blocks)
    lists = {name.removeprefix(prefix) if inner else name: _block_to_content(block) for name, block in blocks.items()}
    first = next(iter(lists.values()))
    records = ak.contents.RecordArray([each.content for each in lists.values()], list(lists))
    return ak.contents.ListOffsetArray(first.offsets, records)


def _block_to_content(block: Any) -> Any:
    """Convert a block to a layout of awkward."""
    import awkward as ak

    if isinstance(block, RaggedBlock):
        return ak.contents.ListOffsetArray(ak.index.Index64(block.row_splits), _block_to_content(block.values))
    if isinstance(block, ArraysBlock):
        data = ak.contents.ListOffsetArray(ak.index.Index64(block.row_splits), _block_to_content(block.values))
        return ak.contents.RecordArray([data, _block_to_content(block.shapes)], ["data", "shape"])
    flat = _bytes_content(block.values, block.splits, "byte") if isinstance(block, BytesBlock) else _flat_values(block)
    # Lists of fixed sizes, the innermost first.
    for axis in range(len(block.shape) - 1, 0, -1):
        # A size of 0 does not determine the number of lists.
        lists = int(np.prod(block.shape[:axis], dtype=np.int64))
        flat = ak.contents.RegularArray(flat, block.shape[axis], zeros_length=lists)
    return flat


def _flat_values(block: NDArray[Any]) -> Any:
    """Convert the values of a dense block."""
    import awkward as ak

    flat = np.ascontiguousarray(block).reshape(-1)
    if flat.dtype.kind == "T":
        texts = [text.encode() for text in flat.tolist()]
        data = np.frombuffer(b"".join(texts), np.uint8)
        return _bytes_content(data, splits_of(np.array([len(text) for text in texts], np.int64)), "char")
    # awkward lacks bfloat16, and bytes in the other order.
    dtype = np.dtype(np.float32) if flat.dtype.name == "bfloat16" else flat.dtype.newbyteorder("=")
    return ak.contents.NumpyArray(flat.astype(dtype, copy=False))


def _bytes_content(data: NDArray[np.uint8], splits: NDArray[np.int64], kind: str) -> Any:
    """Return strings (`kind` "char") or bytestrings ("byte")."""
    import awkward as ak

    values = ak.contents.NumpyArray(data, parameters={"__array__": kind})
    name = "string" if kind == "char" else "bytestring"
    return ak.contents.ListOffsetArray(ak.index.Index64(splits), values, parameters={"__array__": name})
