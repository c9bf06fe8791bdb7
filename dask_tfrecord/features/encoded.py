"""The base of features whose stored values are bytes."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dask_tfrecord._native import ValueLayout
from dask_tfrecord.blocks import ArraysBlock, Block, BytesBlock, RaggedBlock, as_row_error
from dask_tfrecord.errors import SchemaError
from dask_tfrecord.features.base import Feature
from dask_tfrecord.features.images.pixels import ImageEncoding
from dask_tfrecord.features.keyed_values import KeyedValues, in_levels
from dask_tfrecord.features.keys import KeySpec, Scope
from dask_tfrecord.shards.compressions import find_compression


class Encoded(Feature):
    """A feature whose stored values are bytes.

    Attributes
    ----------
    count : int or None
        Bytes values per record: None for one without an axis of its own, -1 for any number.
    """

    __slots__ = ()
    count: Any

    @property
    @abstractmethod
    def value_shape(self) -> tuple[int, ...]:
        """Shape of the array in one bytes value; -1 for an open size."""

    @property
    def item_shape(self) -> tuple[int, ...]:
        """Shape of a row, or of one array in a ragged row; ``()`` if shapes differ."""
        if self.own_shapes:
            return ()
        several = self.count is not None and self.count >= 0
        return (self.count, *self.value_shape) if several else self.value_shape

    @property
    def ragged_rank(self) -> int:
        """1 if a record holds any number of arrays, otherwise 0."""
        return int(self.count == -1)

    def with_count(self, count: int | None) -> Encoded:
        """Return the feature for a different number of values per record: None for one, -1 for any number."""
        other: Any = self
        changed: Encoded = replace(other, count=count)
        return changed

    def keys(self, key: str, scope: Scope) -> tuple[KeySpec, ...] | None:
        """Return the spec of bytes values: one in every step or item, or the number of the feature."""
        if scope != "value":
            one = KeySpec(key, "bytes", ValueLayout.FIXED, steps=True, optional=True)
            return None if self.count is not None else (one,)
        if self.count == -1:
            return (KeySpec(key, "bytes", ValueLayout.RAGGED),)
        return (KeySpec(key, "bytes", ValueLayout.FIXED, 1 if self.count is None else self.count),)

    def column(self, scope: Scope) -> Feature:
        """Return the feature, or its variant for any number of values."""
        return self if scope == "value" else self.with_count(-1)

    @property
    def row_shape(self) -> tuple[int, ...]:
        """Shape of a row, with -1 for sizes that differ between rows."""
        return (*(-1,) * self.ragged_rank, *(self.value_shape if self.own_shapes else self.item_shape))

    def item(self) -> Feature | None:
        """Return the feature that reads one value where there may be any number."""
        return self.with_count(None) if self.count == -1 else None

    def encode_columns(
        self, name: str, key: str, scope: Scope, blocks: Mapping[str, Any], encoding: ImageEncoding
    ) -> list[KeyedValues]:
        """Return the bytes values; several per record if the feature has a count."""
        if scope != "value" or self.count is None:
            return Feature.encode_columns(self, name, key, scope, blocks, encoding)
        made = self.encode_rows(key, in_levels(blocks[name], 1), encoding)
        return made if self.count < 0 else [replace(each, row_splits=None, count=self.count) for each in made]

    def encode_rows(self, key: str, block: RaggedBlock, encoding: ImageEncoding) -> list[KeyedValues]:
        """Encode rows with any number of arrays as bytes values."""
        with as_row_error(block.row_splits, item=True):
            made = self.encode_block(key, block.values, encoding)
        return [replace(each, row_splits=np.ascontiguousarray(block.row_splits)) for each in made]

    def value_bytes(self, block: Any, encoding: ImageEncoding) -> BytesBlock:
        """Return arrays as bytes values, one each."""
        (keyed,) = self.encode_block("", block, encoding)
        assert keyed.value_splits is not None
        values = BytesBlock(keyed.values, keyed.value_splits, (len(keyed.value_splits) - 1,))
        return BytesBlock.of([keyed.prefix + each for each in np.asarray(values).tolist()]) if keyed.prefix else values

    def suggestion(self, count: int) -> str:
        """Suggest what reads a different number of values."""
        return f"; {type(self).__name__} with count=-1 reads any number of them"


class EncodedArray(Encoded):
    """A feature whose bytes values are arrays of `shape`, with -1 for sizes that differ between values."""

    __slots__ = ()

    @property
    def _has_ragged_rows(self) -> bool:
        """Return whether a record holds one array, and only its first size is open."""
        return self.count is None and self.shape[:1] == (-1,) and -1 not in self.shape[1:]

    @property
    def value_shape(self) -> tuple[int, ...]:
        """Shape of one array, without the open length of ragged rows."""
        made: tuple[int, ...] = self.shape[self._has_ragged_rows :]
        return made

    @property
    def ragged_rank(self) -> int:
        """1 if the length or the number of arrays is open, otherwise 0."""
        return int(self._has_ragged_rows or self.count == -1)

    @property
    def own_shapes(self) -> int:
        """Number of axes if arrays differ in another size than the length of ragged rows, otherwise 0."""
        return len(self.shape) if -1 in self.shape and not self._has_ragged_rows else 0


def iter_values(values: BytesBlock) -> Iterator[memoryview]:
    """Yield each bytes value."""
    data = memoryview(values.values.data)
    for start, stop in pairwise(values.splits.tolist()):
        yield data[start:stop]


def checked_compression(compression: Any, owner: str) -> str | None:
    """Return the compression of bytes values, None for none."""
    if compression not in (None, "", "ZLIB", "GZIP"):
        raise SchemaError(f"{owner}: expected compression_type 'ZLIB', 'GZIP' or None; got {compression!r}")
    return compression or None


def deflated(values: BytesBlock, compression: str) -> BytesBlock:
    """Compress each bytes value."""
    made = []
    for value in iter_values(values):
        deflate = find_compression(compression.lower()).compressor()
        made.append(deflate.compress(value) + deflate.flush())
    return BytesBlock.of(made)


def iter_arrays(block: Block) -> Iterator[NDArray[Any]]:
    """Yield a view of each row."""
    if isinstance(block, ArraysBlock):
        values = np.asarray(block.values)
        for shape, (start, stop) in zip(block.shapes.tolist(), pairwise(block.row_splits.tolist()), strict=True):
            yield values[start:stop].reshape(shape)
    else:
        yield from np.asarray(block)


def checked_count(count: Any, owner: str, shape: tuple[int, ...] = ()) -> int | None:
    """Check the number of values per record: None for one, -1 for any number, else of one shape."""
    if count is None:
        return None
    if isinstance(count, bool) or not isinstance(count, int | np.integer) or (count < 1 and count != -1):
        raise SchemaError(
            f"{owner}: expected count=-1 for any number of values per record, a positive number, or None for one; "
            f"got {count!r}"
        )
    if count > 0 and -1 in shape:
        raise SchemaError(f"{owner}: a fixed number of arrays per record needs a known shape; got {shape}")
    return int(count)
