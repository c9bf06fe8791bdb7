"""Items: values of ragged rows as rows, their features, and how `RaggedFeature` divides them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from dask_tfrecord.blocks import (
    Arrays,
    ArraysBlock,
    Block,
    BytesBlock,
    RaggedBlock,
    RowError,
    concatenate,
    first_true,
    rows_of,
    splits_of,
    take_rows,
    to_array,
)
from dask_tfrecord.errors import Spelled, plural
from dask_tfrecord.features import Feature, FixedLenFeature
from dask_tfrecord.features.listed import is_padded
from dask_tfrecord.features.schema import Schema, lengths_column

# Column of the record that an item belongs to.
RECORD = "record"
# Column that marks the steps of a window, but not its padding.
MASK = "mask"


def row_lengths(block: Block) -> NDArray[Any]:
    """Count the items in each row: ragged values, entries along the first axis, or as listed."""
    if isinstance(block, RaggedBlock):
        return np.diff(block.row_splits)
    if isinstance(block, ArraysBlock):
        return block.shapes[:, 0]
    return to_array(block)


def _block_items(block: Block, lengths: NDArray[np.int64], feature: Feature) -> Block:
    """Make a block whose rows are the items in all rows."""
    if isinstance(block, RaggedBlock):
        values = block.values
        if isinstance(values, ArraysBlock) and not feature.own_shapes:
            # Only ragged rows have an open size.
            each = math.prod(feature.item_shape)
            return RaggedBlock(to_array(values.values).reshape(-1, *feature.item_shape), values.row_splits // each)
        return values
    if isinstance(block, ArraysBlock):
        if feature.own_shapes:
            shapes = np.repeat(block.shapes[:, 1:], lengths, axis=0)
            return ArraysBlock(block.values, splits_of(shapes.prod(axis=1)), shapes)
        return block.values.reshape((int(lengths.sum()), *feature.item_shape))
    kept = np.arange(block.shape[1]) < lengths[:, None]
    if isinstance(block, BytesBlock):
        return block.reshape((kept.size, *feature.item_shape)).take(np.flatnonzero(kept))
    items: NDArray[np.generic] = to_array(block)[kept]
    return items


@dataclass(frozen=True, slots=True)
class StepWindow:
    """Items around each item of a record, `stride` items apart."""

    past: int
    future: int
    stride: int
    pad: Literal["edge", "zero", "drop"]

    def rows(self, lengths: NDArray[np.int64]) -> slice | NDArray[np.int64]:
        """Choose the items that become rows, given the lengths of records."""
        if self.pad != "drop":
            return slice(0, int(lengths.sum()))
        before = self.past * self.stride
        # An example: of records of 5 and 4 items, a window of one item before and one after leaves items 1 to 3 and 6
        # to 7: three and two are kept, and the first ones are the starts of the records plus one.
        kept = np.maximum(lengths - before - self.future * self.stride, 0)
        first = splits_of(lengths)[:-1] + before - splits_of(kept)[:-1]
        return np.repeat(first, kept) + np.arange(kept.sum())

    def positions(
        self, lengths: NDArray[np.int64], items: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Return the positions of the steps around some items, and where they are within the record.

        Both have the shape (items, steps). A position before or after the record is replaced by its first or last item.
        """
        splits = splits_of(lengths)
        record = np.searchsorted(splits, items, side="right") - 1
        wanted = items[:, None] + np.arange(-self.past, self.future + 1) * self.stride
        held = np.clip(wanted, splits[record][:, None], splits[record + 1][:, None] - 1)
        return held, held == wanted

    def around(self, items: Block, positions: NDArray[np.int64], inside: NDArray[np.bool_]) -> Block:
        """Return windows of a block of items."""
        number, steps = positions.shape
        if isinstance(items, np.ndarray):
            made = items[positions]
            if self.pad == "zero":
                made[~inside] = np.zeros((), items.dtype)
            return made
        if self.pad == "zero":
            # Padding is one more item.
            items, positions = concatenate([items, _empty_item(items)]), np.where(inside, positions, len(items))
        picked = take_rows(items, positions.ravel())
        if isinstance(picked, BytesBlock):
            return picked.reshape((number, steps, *picked.shape[1:]))
        return RaggedBlock(picked, np.arange(number + 1) * steps)


def _empty_item(items: Any) -> Block:
    """Make an empty item in the form of a block's items: empty bytes, or an array without values."""
    if isinstance(items, BytesBlock):
        each = math.prod(items.shape[1:])
        return BytesBlock(items.values[:0], np.zeros(each + 1, np.int64), (1, *items.shape[1:]))
    values: Any = rows_of(items.values, 0, 0)
    splits = np.zeros(2, np.int64)
    if isinstance(items, ArraysBlock):
        return ArraysBlock(values, splits, np.zeros_like(items.shapes, shape=(1, items.shapes.shape[1])))
    return RaggedBlock(values, splits)


@dataclass(frozen=True, slots=True, eq=False)
class ItemColumns:
    """Which record columns each item column is made from."""

    group: tuple[str, ...]
    repeated: tuple[str, ...]
    records: Schema
    item_schema: Schema
    schema: Schema  # of the rows: the schema of the items unless rows are windows
    encoded: tuple[str, ...] = ()  # images that are read as bytes, to decode only the images of requested items
    window: StepWindow | None = None
    number: str | None = None  # column of the number of each item in its record
    unwindowed: tuple[str, ...] = ()  # columns of the group without a window

    def __dask_tokenize__(self) -> object:
        schemas = self.records.__dask_tokenize__(), self.schema.__dask_tokenize__()
        window = () if self.window is None else (astuple(self.window),)
        added = () if self.number is None and not self.unwindowed else (self.number, self.unwindowed)
        return "dask_tfrecord.ItemColumns", self.group, self.repeated, schemas, self.encoded, *window, *added

    def rows(self, lengths: NDArray[np.int64]) -> slice | NDArray[np.int64]:
        """Return the items of records of some lengths that are rows: all, or those with a window."""
        return slice(0, int(lengths.sum())) if self.window is None else self.window.rows(lengths)

    @property
    def origin(self) -> Mapping[str, Any]:
        """Origin of the rows as JSON values."""
        window = {} if self.window is None else {"window": asdict(self.window)}
        unwindowed = {"alone": [*self.unwindowed]} if self.unwindowed else {}
        return {"exploded": [*self.group], **window, **unwindowed}

    def lengths_of(self, name: str) -> str:
        """Return the column that determines the row lengths of a column of the group."""
        if not is_padded(self.records[name]):
            return name
        return lengths_column(name, self.records) or name

    def undecoded(self, names: Sequence[str]) -> ItemColumns:
        """List the row columns that hold the bytes of encoded images."""
        files = dict.fromkeys(names, FixedLenFeature((), "bytes"))
        encoded = tuple(name for name in self.encoded if name not in names)
        item_schema, schema = (each.replaced({**each, **files}) for each in (self.item_schema, self.schema))
        return replace(self, encoded=encoded, item_schema=item_schema, schema=schema)

    def needs_values(self, names: Sequence[str]) -> bool:
        """Return True if item columns need ragged values, not only their sizes."""
        features = [self.item_schema[name] for name in names if name in self.group]
        return any(not (of.ragged_rank or of.own_shapes or of.is_bytes) for of in features)

    def needed(self, names: Sequence[str], *, counted: bool) -> tuple[str, ...]:
        """Return the columns of records to read for some columns of items; lengths are read if they are not counted."""
        found = [name for name in names if name in self.records]
        found += [self.lengths_of(name) for name in found if name in self.group]
        if not counted and not any(name in self.group for name in names):
            found.append(self.lengths_of(self.group[0]))
        return tuple(dict.fromkeys(found))

    def items(
        self,
        names: Sequence[str],
        blocks: Mapping[str, Block],
        lengths: NDArray[np.int64],
        picked: slice | NDArray[np.int64],
        first_record: int | NDArray[np.int64] = 0,
        decode: Callable[[str, Block, slice | NDArray[np.int64]], Block] | None = None,
    ) -> dict[str, Block]:
        """Find the rows for picked items, or for windows around them.

        `decode` is called with the name, the files and the positions of items of an `encoded` column.
        """

        def items_at(wanted: Sequence[str], at: slice | NDArray[np.int64]) -> dict[str, Block]:
            items: dict[str, Block] = {}
            if any(name not in self.group for name in wanted):
                records: NDArray[np.int64] = np.repeat(np.arange(len(lengths)), lengths)[at]
            for name in wanted:
                if name == RECORD and isinstance(first_record, np.ndarray):
                    items[name] = first_record[records]
                elif name == RECORD:
                    items[name] = first_record + records
                elif name == self.number:
                    items[name] = np.arange(int(lengths.sum()))[at] - splits_of(lengths)[records]
                elif name in self.group:
                    block = _pick_items(_block_items(blocks[name], lengths, self.item_schema[name]), at)
                    items[name] = decode(name, block, at) if decode and name in self.encoded else block
                else:
                    items[name] = take_rows(blocks[name], records)
            return items

        window = self.window
        if window is None:
            return items_at(names, picked)
        around = [name for name in names if name in self.group and name not in self.unwindowed]
        own = [name for name in names if name not in around and (name != MASK or name in self.records)]
        made = items_at(own, picked)
        items = np.arange(picked.start, picked.stop) if isinstance(picked, slice) else picked
        places, inside = window.positions(lengths, items)
        steps: slice | NDArray[np.int64]
        if isinstance(picked, slice) and places.size:
            steps = slice(int(places[0, 0]), int(places[-1, -1]) + 1)
            places = places - steps.start
        else:
            steps, places = np.unique(places, return_inverse=True)
            places = places.reshape(inside.shape)
        for name, block in items_at(around, steps).items():
            made[name] = window.around(block, places, inside)
        if MASK in names and MASK not in self.records:
            made[MASK] = inside
        return {name: made[name] for name in names}

    def flat_outputs(self, out: Arrays) -> dict[str, NDArray[Any]]:
        """Choose arrays in `out` that flat ragged values may be decoded into."""
        return {
            name: array
            for name, array in out.items()
            if name in self.group
            and self.window is None
            and self.records[name].ragged_rank == 1
            and self.records[name].item_dtype == array.dtype
        }

    def common_lengths(self, blocks: Mapping[str, Block], expected: NDArray[np.int64] | None) -> NDArray[np.int64]:
        """Return the row lengths that the columns of the group have in common, and `expected` if given.

        Raises LengthError if a column among the blocks has other ones.
        """
        other = ""
        for name in self.group:
            at = self.lengths_of(name)
            if at not in blocks:
                continue
            lengths = row_lengths(blocks[at])
            if at != name:
                lengths = self._within_padding(name, at, lengths)
            if expected is None:
                expected, other = lengths, name
            if (row := first_true(lengths != expected)) is not None:
                raise LengthError(row, name, _describe_unequal(int(expected[row]), int(lengths[row]), other))
        assert expected is not None
        return expected

    def _within_padding(self, name: str, lengths_name: str, lengths: NDArray[Any]) -> NDArray[np.int64]:
        """Check the stated lengths of a padded column: none is negative or exceeds the padded steps."""
        most = self.records[name].item_shape[0]
        if (row := first_true((lengths < 0) | (lengths > most))) is not None:
            steps = plural(most, "step")
            raise LengthError(
                row,
                name,
                f"holds {steps}, padding included, and its length in {lengths_name!r} is {int(lengths[row]):,}; "
                f"expected 0 to {most:,}",
            )
        return lengths.astype(np.int64, copy=False)


class LengthError(RowError):
    """Report a row whose length differs from its group's."""

    def __init__(self, row: int, name: str, message: str) -> None:
        super().__init__(row, message)
        self.name = name


def _describe_unequal(expected: int, found: int, other: str) -> str:
    """Describe a length that differs from the length in column `other`, or from the counted one."""
    message = f"holds {plural(found, 'item')}; expected {expected:,}, "
    if other:
        return message + (
            f"as in {other!r}: columns that are exploded together must have the same length in every record; give "
            + Spelled("explode a list of columns", "--explode a list of features")
            + " that share theirs"
        )
    return (
        message + "as counted by explode: the rows have changed since, or a function returns different rows each time"
    )


def _pick_items(block: Block, picked: slice | NDArray[np.int64]) -> Block:
    """Pick items by a slice or by numbers; a few items do not keep the others in memory."""
    if not isinstance(picked, slice):
        return take_rows(block, picked)
    if 2 * (picked.stop - picked.start) < len(block):
        # A view of a few items would keep all of them in memory.
        return take_rows(block, np.arange(picked.start, picked.stop))
    return rows_of(block, picked.start, picked.stop)
