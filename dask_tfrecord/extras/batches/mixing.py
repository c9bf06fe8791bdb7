"""Order, mixing and padding of the rows of batches.

An epoch is a stream of units. A unit is a range of rows that one thread reads: consecutive rows, rows of a permutation,
or a chunk whose rows are not counted. With a window, each row of the stream moves forward by a random distance below
the window, and rows are delivered in the order of their new positions. The order is a function of seed, epoch and
options, computed from row numbers alone: it does not depend on the threads that read units.

An example of three records with a window of 3: if the distances of records 0, 1 and 2 are 2, 0 and 1, their new
positions are 2, 1 and 3, and they are delivered as 1, 0, 2. Record 1 is delivered once record 2 is known to come later:
a window of rows is in memory, never all of them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dask_tfrecord.blocks import (
    ArraysBlock,
    Block,
    BytesBlock,
    gather_padded,
    gather_rows,
    gather_splits,
    pad_levels,
    to_array,
)
from dask_tfrecord.errors import FeatureError, UnknownFeatureError, near_misses
from dask_tfrecord.extras.batches.row_order import EpochUnits, RowOrder
from dask_tfrecord.extras.batches.row_reader import RowReader
from dask_tfrecord.features import ImageFeature
from dask_tfrecord.features.images.codecs import ImageError
from dask_tfrecord.features.images.pixels import decode_image
from dask_tfrecord.features.schema import Schema, unset_advice
from dask_tfrecord.rows.functions import UserBlocks
from dask_tfrecord.rows.ragged_arrays import check_ragged, padding_value

Batch = dict[str, Any]
# Waits for the images of a batch, and returns it.
Finish = Callable[[], Batch]


@dataclass(frozen=True, slots=True)
class Pad:
    """Pad a column in batches: ragged rows, or arrays with different shapes, like images.

    Parameters
    ----------
    length : int, None or tuple of these, optional
        Number of values in each row, for each level of rows. For arrays, the sizes of the first axes, for example
        height and width. None takes the length of the longest row in the batch, or the largest size.
    value : scalar, optional
        Padding, by default 0 or ``b""``.
    truncate : bool, default False
        Cut rows that are longer than `length`. By default, such rows raise `FeatureError`.

    Examples
    --------
    >>> ds = dtf.read_tfrecord("train-*.tfrecord", columns=["tokens"])
    >>> batch = next(ds.batches(4, pad={"tokens": dtf.Pad(2, value=-1, truncate=True)}))
    >>> batch["tokens"].shape
    (4, 2)
    """

    length: int | Sequence[int | None] | None = None
    value: Any = None
    truncate: bool = False


@dataclass(frozen=True, slots=True)
class ColumnPadding:
    """Checked padding of one column."""

    name: str
    lengths: tuple[int | None, ...]  # of each level of rows, outermost first; None is the longest row of the batch
    value: Any  # in the dtype of the column
    truncate: bool

    def _gather_arrays(self, gathered: ArraysBlock, describe: Callable[[int], str]) -> NDArray[Any]:
        """Pad arrays at the ends of their axes."""
        largest = gathered.shapes.max(axis=0, initial=0).tolist()
        sizes = [size if length is None else length for length, size in zip(self.lengths, largest, strict=True)]
        arrays = to_array(gathered)
        out = np.full((len(gathered), *sizes), self.value, to_array(gathered.values).dtype)
        for row, array in enumerate(arrays):
            if not self.truncate and any(had > size for had, size in zip(array.shape, sizes, strict=True)):
                raise FeatureError(
                    f"{describe(row)}: column {self.name!r} has an array of shape {array.shape}, but pad= allows "
                    f"{tuple(sizes)}: give larger sizes, None for the largest of each batch, or Pad(…, truncate=True)"
                )
            places = tuple(slice(min(had, size)) for had, size in zip(array.shape, sizes, strict=True))
            padded = out[row]
            padded[places] = array[places]
        return out

    def gather(
        self,
        blocks: Sequence[Any],
        owners: NDArray[np.int64] | None,
        rows: NDArray[np.int64],
        describe: Callable[[int], str],
    ) -> NDArray[Any]:
        """Gather a batch's rows, ragged or arrays, and pad them."""
        if isinstance(blocks[0], ArraysBlock):
            return self._gather_arrays(gather_rows(blocks, owners, rows), describe)
        values, length = blocks[0].values, self.lengths[0]
        if isinstance(values, np.ndarray) and values.dtype.kind not in "OT":
            longest = int(np.diff(gather_splits([each.row_splits for each in blocks], owners, rows)).max(initial=0))
            if length is None or longest <= length:
                return gather_padded(blocks, owners, rows, longest if length is None else length, self.value)

        def refuse(row: int, held: str, length: int) -> FeatureError:
            return FeatureError(
                f"{describe(row)}: column {self.name!r} has {held}, but pad= allows {length}: give a larger length, "
                f"None for the longest row of each batch, or Pad({length}, truncate=True)"
            )

        gathered = gather_rows(blocks, owners, rows)
        return pad_levels(gathered, self.lengths, self.value, refuse, truncate=self.truncate)


def column_paddings(pad: Mapping[str, Any] | None, schema: Schema) -> dict[str, ColumnPadding]:
    """Check the option `pad`."""
    if pad is None:
        return {}
    if not isinstance(pad, Mapping):
        raise TypeError(
            f"pad must be a mapping from columns to a length, None or Pad; got {pad!r:.100}: write "
            f"pad={{'tokens': None}}"
        )
    paddings = {}
    for name, given in pad.items():
        if name not in schema:
            raise UnknownFeatureError(
                f"pad: no column {name!r}{unset_advice(name, schema.sampling) or near_misses(name, schema)}"
            )
        feature = schema[name]
        option = given if isinstance(given, Pad) else Pad(given)
        if feature.own_shapes and not feature.ragged_rank:
            lengths = _padded_sizes(option.length, name, feature.own_shapes)
        else:
            check_ragged(name, feature)
            lengths = _row_lengths(option.length, name, feature.ragged_rank)
        if not isinstance(option.truncate, bool):
            raise TypeError(f"pad: truncate of {name!r} must be True or False; got {option.truncate!r:.100}")
        value = padding_value(option.value, feature.item_dtype, name)
        paddings[name] = ColumnPadding(name, lengths, value, option.truncate)
    return paddings


def _padded_sizes(length: Any, name: str, axes: int) -> tuple[int | None, ...]:
    """Fix all axis sizes; the ones not given become the batch's largest."""
    given = [] if length is None else [length]
    if isinstance(length, Sequence):
        given = [*length]
    if len(given) > axes:
        raise ValueError(f"pad: the arrays of column {name!r} have {axes} axes; got the sizes {length!r:.100}")
    return _row_lengths((*given, *(None,) * (axes - len(given))), name, axes)


def _row_lengths(length: Any, name: str, levels: int) -> tuple[int | None, ...]:
    """Check the lengths to pad the rows of a column to: one per level, None for a batch's largest."""
    if length is None:
        return (None,) * levels
    given = tuple(length) if isinstance(length, Sequence) and not isinstance(length, str) else (length,)
    if not all(
        each is None or (isinstance(each, int | np.integer) and not isinstance(each, bool) and each >= 0)
        for each in given
    ):
        advice = f": write dtf.Pad(None, value={length}) to pad with this value" if isinstance(length, int) else ""
        raise ValueError(f"pad: a length of {name!r} must be a non-negative int or None; got {length!r:.100}{advice}")
    if len(given) != levels:
        raise ValueError(
            f"pad: column {name!r} has {levels} levels of rows: give a tuple of as many lengths; got {length!r}"
        )
    return tuple(None if each is None else int(each) for each in given)


@dataclass(frozen=True, slots=True)
class Position:
    """Position between two batches."""

    epoch: int = 0
    batch: int = 0  # batches of the epoch that were delivered
    unit: int = 0  # first unit of the epoch with rows that were not delivered
    start: int = 0  # position of its first row in the stream
    key: int = -1  # of the last row that was delivered, see `EpochUnits.places`; -1 before the first one


@dataclass(slots=True, eq=False)
class _HeldUnit:
    """A unit that was read, or whose reading failed, with rows that were not delivered."""

    number: int
    start: int
    size: int
    left: int
    key: Any
    order: NDArray[np.int64] | None
    blocks: dict[str, Block] | None

    def rows(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return positions of the stream as rows of the block."""
        rows = positions - self.start
        return rows if self.order is None else self.order[rows]

    def numbers(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return rows of the block as rows of the data set."""
        numbers: NDArray[np.int64] = self.key.start + rows if isinstance(self.key, slice) else self.key[rows]
        return numbers


@dataclass(frozen=True, slots=True, eq=False)
class BatchMixer:
    """Batches of all epochs after a position."""

    reader: RowReader
    units: RowReader  # reader of units, whose rows hold the bytes of images
    images: Mapping[str, Any]
    order: RowOrder
    paddings: Mapping[str, ColumnPadding]
    batch_size: int
    drop_remainder: bool
    epochs: int | None
    ahead: int  # units that are read ahead
    scheduler: Any  # of existing chunks

    @property
    def batches_per_epoch(self) -> int | None:
        """Number of batches of an epoch; None if rows are not counted."""
        order, size = self.order, self.batch_size
        if order.span is None or order.nrows is None:
            return None
        # Shards differ by at most one row. Without remainders all of them have the same number of batches.
        rows = order.nrows // order.shard[1] if self.drop_remainder else order.span[1] - order.span[0]
        return rows // size if self.drop_remainder else -(-rows // size)

    def batches(self, position: Position, pool: Executor) -> Generator[tuple[Finish, Position], None, None]:
        """Yield functions that return the batches after a position, each with the position after it.

        An epoch without batches ends the iteration.
        """
        while self.epochs is None or position.epoch < self.epochs:
            last = position
            for batch, last in self._batches_of_epoch(position, pool):
                yield batch, last
            is_whole_epoch = position == Position(position.epoch)
            if is_whole_epoch and last == position:
                # Too few rows for a batch.
                return
            # If no batch ended the epoch, batches are not counted, or the last one was delivered before.
            position = last if last.epoch > position.epoch else Position(position.epoch + 1)

    def _batches_of_epoch(self, position: Position, pool: Executor) -> Iterator[tuple[Finish, Position]]:
        """Yield the batches of an epoch after a position, each with the position after it."""
        units = self.order.epoch(position.epoch)
        loaded = self._load_units(units, position.unit, pool)
        held: list[_HeldUnit] = []
        keys = np.zeros(0, np.int64)
        following, start, made = position.unit, position.start, position.batch
        last = self.batches_per_epoch
        while made != last:
            unit = next(loaded, None)
            if unit is not None:
                unit.start = start
                # Rows up to this key were delivered before the first position.
                places = units.places(unit.number, start, unit.size)
                places = places[np.searchsorted(places, position.key, side="right") :]
                unit.left = len(places)
                held += [unit] if unit.left else []
                following, start = following + 1, start + unit.size
                keys = np.concatenate([keys, places])
                keys.sort()
            # Rows of the next units are delivered after these.
            ready = len(keys) if unit is None else int(np.searchsorted(keys, start * self.order.window))
            # Smaller batches only at the end of an epoch.
            least = 1 if unit is None and not self.drop_remainder else self.batch_size
            for first in range(0, ready - least + 1, self.batch_size):
                if made == last:
                    break
                taken = keys[first : min(first + self.batch_size, ready)]
                positions = units.positions(taken)
                owners = np.searchsorted([each.start for each in held], positions, side="right") - 1
                batch = self._gather(held, owners, positions, pool)
                for each, count in zip(held, np.bincount(owners, minlength=len(held)).tolist(), strict=True):
                    each.left -= count
                held = [each for each in held if each.left]
                made += 1
                oldest = (held[0].number, held[0].start) if held else (following, start)
                after = Position(position.epoch, made, *oldest, int(taken[-1]))
                yield batch, (Position(position.epoch + 1) if made == last else after)
            if unit is None:
                return
            keys = keys[ready - ready % self.batch_size :]

    def _load_units(self, units: EpochUnits, first: int, pool: Executor) -> Iterator[_HeldUnit]:
        """Yield the units of an epoch from one on, read ahead by the threads of the pool."""
        pending: deque[Future[_HeldUnit]] = deque()
        try:
            for number in range(first, len(units)):
                pending.append(pool.submit(self._read_unit, units, number))
                if len(pending) > self.ahead:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            for future in pending:
                future.cancel()

    def _read_unit(self, units: EpochUnits, number: int) -> _HeldUnit:
        """Read a unit. If that fails and its rows are counted, its batches are read one by one."""
        key, order = units.key(number)
        blocks: dict[str, Block] | None = None
        try:
            blocks = self.units.read(key, self.scheduler)
        except Exception:
            if self.order.nrows is None:
                raise
        size = int(units.stops[number] - units.starts[number]) if blocks is None else len(next(iter(blocks.values())))
        return _HeldUnit(number, 0, size, size, key, order, blocks)

    def _gather(
        self, held: list[_HeldUnit], owners: NDArray[np.int64], positions: NDArray[np.int64], pool: Executor
    ) -> Finish:
        """Gather the rows of a batch, pad its columns, and begin to decode its images."""
        numbers, owners = np.unique(owners, return_inverse=True)
        units = [held[number] for number in numbers.tolist()]
        places = [np.flatnonzero(owners == number) for number in range(len(units))]
        sources, rows = list[Mapping[str, Block]](), np.empty(len(owners), np.int64)
        for unit, place in zip(units, places, strict=True):
            blocks, rows[place] = unit.blocks, unit.rows(positions[place])
            if blocks is None:
                # The unit failed: rows are read for this batch.
                blocks = self.reader.read_scattered(unit.numbers(rows[place]), self.scheduler)
                rows[place] = np.arange(len(place))
            sources.append(blocks)

        def describe(row: int) -> str:
            unit = units[owners[row]]
            if isinstance(unit.key, int):
                return f"row {int(positions[row]) - unit.start} of {self.reader.describe(unit.key)}"
            return self.reader.describe(int(unit.numbers(unit.rows(positions[row : row + 1]))[0]))

        batch: dict[str, Any] = {}
        files: list[_File] = []
        for name in self.reader.names:
            if (image := self.images.get(name)) is not None:
                batch[name] = out = np.empty((len(positions), *image.item_shape), image.item_dtype)
                for blocks, place in zip(sources, places, strict=True):
                    block = blocks[name]
                    if isinstance(block, BytesBlock):
                        pairs = zip(rows[place].tolist(), place.tolist(), strict=True)
                        files += [_File(image, block, *pair, out) for pair in pairs]
                    else:
                        out[place] = np.asarray(block)[rows[place]]
                continue
            column: list[Any] = [blocks[name] for blocks in sources]
            gathered = column, owners if column[1:] else None, rows
            padding = self.paddings.get(name)
            batch[name] = gather_rows(*gathered) if padding is None else padding.gather(*gathered, describe)
        made = dict(UserBlocks(batch))
        decoding = [pool.submit(_decode_into, files[part :: self.ahead]) for part in range(min(self.ahead, len(files)))]

        def finish() -> Batch:
            try:
                for part in decoding:
                    part.result()
            except ImageError:
                # The error has to name a file and a record.
                for unit, place in zip(units, places, strict=True):
                    found = self.reader.read_scattered(unit.numbers(unit.rows(positions[place])), self.scheduler)
                    for name in self.images:
                        made[name][place] = found[name]
            return made

        return finish


class _File(NamedTuple):
    """The file of an image in a block, and the place of its pixels."""

    image: ImageFeature
    block: BytesBlock
    row: int  # of the block
    place: int  # in `out`
    out: NDArray[Any]


def _decode_into(files: Sequence[_File]) -> None:
    """Decode images to their places."""
    for image, block, row, place, out in files:
        start, stop = block.splits[row : row + 2].tolist()
        decode_image(block.values.data[start:stop], image, out[place])
