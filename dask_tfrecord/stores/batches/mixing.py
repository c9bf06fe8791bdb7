"""Batches of one epoch: units are read ahead in threads, mixed, cut into batches, gathered and padded.

`BatchMixer` runs in one thread. The order of its batches does not depend on the threads that read units.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator, Mapping
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dask_tfrecord.arrays.sources import user_blocks
from dask_tfrecord.columns.blocks import Block, RaggedBlock, concatenate, rows_of, take_rows
from dask_tfrecord.stores.batches.epoch_order import EpochUnits, RowOrder
from dask_tfrecord.stores.batches.padding import ColumnPadding
from dask_tfrecord.stores.batches.row_reader import RowReader

__all__ = ["Batch", "BatchMixer", "Position"]

Batch = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Position:
    """Position between two batches.

    Attributes
    ----------
    epoch : int
        Number of the epoch.
    batch : int
        Batches of the epoch that were delivered.
    unit : int
        First unit of the epoch with rows that were not delivered.
    start : int
        Position of its first row in the stream.
    key : int
        Key of the last row that was delivered, see `EpochUnits.places`; -1 before the first row.
    """

    epoch: int = 0
    batch: int = 0
    unit: int = 0
    start: int = 0
    key: int = -1


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
    """Batches of all epochs after a position.

    Attributes
    ----------
    reader : RowReader
        Reader of the rows.
    order : RowOrder
        Order of the rows.
    paddings : mapping of str to ColumnPadding
        Columns that are padded.
    batch_size : int
        Rows of a batch.
    drop_remainder : bool
        Leave out the last batch of an epoch if it is smaller.
    batches_per_epoch : int or None
        Number of batches; None if rows are not counted.
    epochs : int or None
        Number of epochs; None for any number.
    ahead : int
        Units that are read ahead.
    scheduler : Any
        Scheduler of existing chunks.
    """

    reader: RowReader
    order: RowOrder
    paddings: Mapping[str, ColumnPadding]
    batch_size: int
    drop_remainder: bool
    batches_per_epoch: int | None
    epochs: int | None
    ahead: int
    scheduler: Any

    def batches(self, position: Position, pool: Executor) -> Generator[tuple[Batch, Position], None, None]:
        """Yield the batches after a position, each with the position after it.

        An epoch without batches ends the iteration.
        """
        while self.epochs is None or position.epoch < self.epochs:
            start = position
            for batch, position in self._epoch(start, pool):
                yield batch, position
            if position == start == Position(start.epoch):
                return
            if position.epoch == start.epoch:
                position = Position(start.epoch + 1)

    def _epoch(self, position: Position, pool: Executor) -> Iterator[tuple[Batch, Position]]:
        """Yield the batches of an epoch after a position, each with the position after it."""
        units = self.order.epoch(position.epoch)
        loaded = self._load(units, position.unit, pool)
        held: list[_HeldUnit] = []
        keys = np.zeros(0, np.int64)
        following, start, made = position.unit, position.start, position.batch
        while made != self.batches_per_epoch:
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
            for taken in self._cut(keys[:ready], last=unit is None):
                if made == self.batches_per_epoch:
                    break
                positions = units.positions(taken)
                owners = np.searchsorted([each.start for each in held], positions, side="right") - 1
                batch = self._gather(held, owners, positions)
                for each, count in zip(held, np.bincount(owners, minlength=len(held)).tolist(), strict=True):
                    each.left -= count
                held = [each for each in held if each.left]
                made += 1
                first = (held[0].number, held[0].start) if held else (following, start)
                after = Position(position.epoch, made, *first, int(taken[-1]))
                yield batch, (Position(position.epoch + 1) if made == self.batches_per_epoch else after)
            if unit is None:
                return
            keys = keys[ready - ready % self.batch_size :]

    def _cut(self, keys: NDArray[np.int64], *, last: bool) -> Iterator[NDArray[np.int64]]:
        """Yield the keys of each batch; smaller batches only at the end of an epoch."""
        for first in range(0, len(keys), self.batch_size):
            taken = keys[first : first + self.batch_size]
            if len(taken) == self.batch_size or (last and not self.drop_remainder):
                yield taken

    def _load(self, units: EpochUnits, first: int, pool: Executor) -> Iterator[_HeldUnit]:
        """Yield the units of an epoch from one on, read ahead by the threads of the pool."""
        pending: deque[Future[_HeldUnit]] = deque()
        try:
            for number in range(first, len(units)):
                pending.append(pool.submit(self._read, units, number))
                if len(pending) > self.ahead:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            for future in pending:
                future.cancel()

    def _read(self, units: EpochUnits, number: int) -> _HeldUnit:
        """Read a unit. If that fails and its rows are counted, its batches are read one by one."""
        key, order = units.key(number)
        size = units.size(number)
        blocks: dict[str, Block] | None = None
        try:
            blocks = self.reader.read(key, self.scheduler)
        except Exception:
            if size is None:
                raise
        if size is None:
            assert blocks is not None
            size = len(next(iter(blocks.values())))
        return _HeldUnit(number, 0, size, size, key, order, blocks)

    def _gather(self, held: list[_HeldUnit], owners: NDArray[np.int64], positions: NDArray[np.int64]) -> Batch:
        """Gather the rows of a batch, and pad its columns.

        Parameters
        ----------
        held : list of _HeldUnit
            Units that were read.
        owners : ndarray of int64
            Index in `held` of the unit of each row.
        positions : ndarray of int64
            Position of each row in the stream.
        """
        sorting = np.argsort(owners, kind="stable")
        borders = np.flatnonzero(np.diff(owners[sorting], prepend=-1, append=len(held)))
        places = [sorting[start:stop] for start, stop in pairwise(borders.tolist())]
        sources = [held[owners[place[0]]] for place in places]
        rows = [unit.rows(positions[place]) for unit, place in zip(sources, places, strict=True)]
        blocks = [
            unit.blocks if unit.blocks is not None else self.reader.read_scattered(unit.numbers(each), self.scheduler)
            for unit, each in zip(sources, rows, strict=True)
        ]
        # The rows of a failed unit were read for this batch alone.
        rows = [
            each if unit.blocks is not None else np.arange(len(each)) for unit, each in zip(sources, rows, strict=True)
        ]

        def describe(row: int) -> str:
            unit = held[owners[row]]
            if isinstance(unit.key, int):
                return f"row {int(positions[row]) - unit.start} of {self.reader.describe(unit.key)}"
            return self.reader.describe(int(unit.numbers(unit.rows(positions[row : row + 1]))[0]))

        batch: dict[str, Any] = {}
        for name in self.reader.names:
            padding = self.paddings.get(name)
            parts = [_picked(each[name], row, padding is None) for each, row in zip(blocks, rows, strict=True)]
            block = parts[0] if len(parts) == 1 else _merged(parts, places)
            if padding is not None:
                assert isinstance(block, RaggedBlock)
                block = padding.apply(block, describe)
            batch[name] = block
        return user_blocks(batch)


def _picked(block: Block, rows: NDArray[np.int64], owned: bool) -> Block:
    """Return rows of a block; they share memory with it only if `owned` is False."""
    first = int(rows[0])
    if int(rows[-1]) - first + 1 == len(rows) and (np.diff(rows) == 1).all():
        view = rows_of(block, first, first + len(rows))
        if not owned:
            return view
        if isinstance(view, np.ndarray):
            return view.copy()
    return take_rows(block, rows)


def _merged(parts: list[Block], places: list[NDArray[np.int64]]) -> Block:
    """Merge blocks, whose rows have these places in the result."""
    first = parts[0]
    if isinstance(first, np.ndarray) and first.dtype.kind != "T":
        out = np.empty((sum(map(len, parts)), *first.shape[1:]), first.dtype)
        for part, place in zip(parts, places, strict=True):
            out[place] = part
        return out
    order = np.concatenate(places)
    index = np.empty(len(order), np.int64)
    index[order] = np.arange(len(order))
    return take_rows(concatenate(parts), index)
