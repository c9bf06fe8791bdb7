"""Summaries of columns that merge: a tree merges the summaries of all chunks.

A summary has a bounded size, whatever the number of values. Counts, extremes, means and standard deviations are exact.
Distinct values, quantiles and, of columns with many different texts, frequencies are estimated from parts of the data:

- distinct values by the smallest hashes, as in https://doi.org/10.1007/3-540-45726-7_1 (algorithm 1);
- quantiles by values at equal distances in the order of a slice, each with a weight;
- frequent texts by counters that are reduced together, as in https://doi.org/10.1145/2213556.2213562.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dask_tfrecord.advice import no_attribute
from dask_tfrecord.blocks import ArraysBlock, Block, BytesBlock, RaggedBlock
from dask_tfrecord.features import Feature, dtype_name

# Values that are converted to float64 at once, and sorted at once: they fit the cache of a core.
_SLICE = 1 << 16
# Size of a summary: points of quantiles, hashes of distinct values, counters of texts, bytes of a kept text.
EXACT_VALUES = 1024
_HASHES = 4096
_COUNTERS = 1024
SHOWN_NBYTES = 256
# Sizes of the last axis that have statistics of their own, and values of a row whose distinct values are counted.
_MOST_DIMENSIONS = 1024
_MOST_SCALARS = 64
# Bytes of a value that are hashed as words of 8 bytes, together with other values.
_SHORT_NBYTES = 64


def _points_of(values: NDArray[Any], *, has_nan: bool) -> NDArray[Any]:
    """Sort values, without NaN, and take some of them at equal distances; all if there are few."""
    # NumPy sorts numbers of 16 bits faster than of 8.
    ordered = np.sort(values.ravel().astype(np.int16) if values.itemsize == 1 else values.ravel())
    if has_nan:
        ordered = ordered[~np.isnan(ordered)]
    number = min(len(ordered), EXACT_VALUES)
    places = (np.arange(number) + 0.5) * (len(ordered) / max(1, number))
    points: NDArray[Any] = ordered[places.astype(np.int64)]
    return points


@dataclass(frozen=True, slots=True, eq=False)
class Numbers:
    """Statistics of numbers. NaN is counted, and left out of everything else; infinities are values.

    Attributes
    ----------
    counts : ndarray of int64, shape (d,)
        Values that are not NaN, along the last axis of a column; d is 1 for scalars, and for axes longer than 1,024.
    means : ndarray of float64, shape (d,)
        Means along the last axis.
    squares : ndarray of float64, shape (d,)
        Sums of squared deviations from the means.
    minima, maxima : ndarray, shape (d,)
        Extremes along the last axis, in the dtype of the column.
    nan, infinite, zeros : int
        Numbers of these values.
    points, weights : ndarray of float64, shape (npoints,)
        Values in ascending order, and the number of values that each represents.
    """

    counts: NDArray[np.int64]
    means: NDArray[np.float64]
    squares: NDArray[np.float64]
    minima: NDArray[Any]
    maxima: NDArray[Any]
    nan: int
    infinite: int
    zeros: int
    points: NDArray[np.float64]
    weights: NDArray[np.float64]

    @classmethod
    def of(cls, values: NDArray[Any]) -> Numbers:
        """Summarise values of shape (n, d)."""
        # Even slices: each has the cost of a merge.
        each = -(-len(values) // max(1, round(values.size / _SLICE))) or 1
        slices = (values[start : start + each] for start in range(0, max(1, len(values)), each))
        return cls.merged([cls._of_slice(part) for part in slices])

    @classmethod
    def _of_slice(cls, values: NDArray[Any]) -> Numbers:
        """Compute the moments of values along the first axis, which may hold NaN and infinities."""
        counts = np.full(values.shape[1], len(values), np.int64)
        nan = infinite = 0
        lowest: np.ufunc = np.minimum
        highest: np.ufunc = np.maximum
        with np.errstate(all="ignore"):
            exact = values.astype(np.float64)
            means = exact.sum(axis=0) / counts
            if not np.isfinite(means).all():
                is_nan = np.isnan(exact)
                nan, infinite = int(np.count_nonzero(is_nan)), int(np.count_nonzero(np.isinf(exact)))
                counts = counts - np.count_nonzero(is_nan, axis=0)
                means = exact.sum(axis=0, where=~is_nan) / counts
                exact = np.where(is_nan, means, exact)
                if nan:
                    # fmin and fmax lose what they met before a signalling NaN.
                    values = np.where(is_nan, values.dtype.type(np.nan), values)
                lowest, highest = np.fmin, np.fmax
            empty = np.zeros(values.shape[1], values.dtype)
            minima = lowest.reduce(values, axis=0) if len(values) else empty
            maxima = highest.reduce(values, axis=0) if len(values) else empty
            means = _clip_means(means, minima, maxima)
            exact -= means
            squares = np.square(exact, out=exact).sum(axis=0)
        points = _points_of(values, has_nan=nan > 0)
        return cls(
            counts,
            means,
            squares,
            minima,
            maxima,
            nan,
            infinite,
            values.size - int(np.count_nonzero(values)),
            points.astype(np.float64),
            np.full(len(points), counts.sum() / max(1, len(points))),
        )

    @classmethod
    def merged(cls, parts: Sequence[Numbers]) -> Numbers:
        """Merge summaries of one column."""
        # Empty slices do not have extremes.
        parts = [part for part in parts if part.counts.any() or part.nan] or parts[:1]
        if len(parts) == 1:
            return parts[0]
        counts = np.stack([part.counts for part in parts])
        total, held = counts.sum(axis=0), counts > 0
        part_means = np.stack([part.means for part in parts])
        with np.errstate(all="ignore"):
            means = np.where(held, part_means * (counts / total), 0).sum(axis=0)
            means[total == 0] = np.nan
            minima = np.fmin.reduce([part.minima for part in parts])
            maxima = np.fmax.reduce([part.maxima for part in parts])
            means = _clip_means(means, minima, maxima)
            shifts = np.where(held, counts * np.square(part_means - means), 0)
            squares = np.where(held, np.stack([part.squares for part in parts]) + shifts, 0).sum(axis=0)
        points = np.concatenate([part.points for part in parts])
        order = np.argsort(points, kind="stable")
        return cls(
            total,
            means,
            squares,
            minima,
            maxima,
            sum(part.nan for part in parts),
            sum(part.infinite for part in parts),
            sum(part.zeros for part in parts),
            *_thin_points(points[order], np.concatenate([part.weights for part in parts])[order]),
        )

    def __repr__(self) -> str:
        facts = {name: getattr(self, name) for name in ("count", "nan", "minimum", "maximum", "mean", "std")}
        return f"Numbers({', '.join(f'{name}={value!r}' for name, value in facts.items())})"

    @property
    def count(self) -> int:
        """Number of values that are not NaN."""
        return int(self.counts.sum())

    @property
    def minimum(self) -> int | float | None:
        """Smallest value; None without values."""
        return np.fmin.reduce(self.minima).item() if self.count else None

    @property
    def maximum(self) -> int | float | None:
        """Largest value; None without values."""
        return np.fmax.reduce(self.maxima).item() if self.count else None

    @property
    def mean(self) -> float:
        """Mean of all values; NaN without values."""
        return float(self._whole[0])

    @property
    def std(self) -> float:
        """Standard deviation of all values, of the population as in NumPy; NaN without values."""
        return float(self._whole[1])

    @property
    def stds(self) -> NDArray[np.float64]:
        """Standard deviations along the last axis, of the population as in NumPy, shape (d,)."""
        with np.errstate(all="ignore"):
            return np.sqrt(self.squares / self.counts)

    @property
    def _whole(self) -> tuple[float, float]:
        """Mean and standard deviation of all dimensions together."""
        held = self.counts > 0
        counts, means = self.counts[held], self.means[held]
        with np.errstate(all="ignore"):
            mean = np.sum(means * (counts / counts.sum())) if self.count else np.nan
            if self.count:
                mean = _clip_means(mean, self.minima[held].min(), self.maxima[held].max())
            squares = np.sum(self.squares[held] + counts * np.square(means - mean))
            return mean, np.sqrt(squares / counts.sum())

    def quantile(self, q: ArrayLike) -> NDArray[np.float64]:
        """Return the values at ranks from 0 to 1; NaN without values.

        Up to 1,024 values they are exact, with linear interpolation as in NumPy. Otherwise the result is the value of
        another rank, which differs by less than 0.01.
        """
        ranks = np.asarray(q, np.float64)
        if not self.points.size:
            return np.full(ranks.shape, np.nan)
        total = self.weights.sum()
        with np.errstate(all="ignore"):
            if total == len(self.points):
                return np.asarray(np.quantile(self.points, ranks))
            at = np.searchsorted(np.cumsum(self.weights), ranks * total).clip(0, len(self.points) - 1)
        return np.select(
            [ranks <= 0, ranks >= 1], [float(self.minimum or 0), float(self.maximum or 0)], self.points[at]
        )

    def shares_below(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the share of the numbers that are at most each value."""
        ends = np.append(0, np.cumsum(self.weights))
        shares: NDArray[np.float64] = ends[np.searchsorted(self.points, values, side="right")] / max(1.0, ends[-1])
        return shares

    def histogram(self, bins: int = 10) -> list[tuple[float, float, float]]:
        """Return buckets of equal width between the extremes: lower and upper border, and estimated number of values.

        Infinities are left out.
        """
        extremes = np.concatenate([self.points, self.minima[self.counts > 0], self.maxima[self.counts > 0]])
        finite = extremes[np.isfinite(extremes)].astype(np.float64)
        if not finite.size:
            return []
        low = finite.min()
        high = finite.max()
        steps = np.arange(bins + 1) / bins
        # The difference of large numbers would be infinite.
        borders = np.append(low * (1 - steps[:-1]) + high * steps[:-1], high) if high > low else np.array([low, high])
        at = np.searchsorted(self.points, borders, side="left")
        at[-1] = np.searchsorted(self.points, borders[-1], side="right")
        counts = np.diff(np.append(0, np.cumsum(self.weights))[at]).tolist()
        return list(zip(borders[:-1].tolist(), borders[1:].tolist(), counts, strict=True))

    def bars(self, bins: int = 10) -> Iterator[tuple[Any, Any, int]]:
        """Yield first value, last value and estimated frequency of each bar of a histogram.

        Values of integers are whole numbers. Of floats, the last value of each bar but the last is the first of the
        next one, and no part of the bar.
        """
        histogram = self.histogram(bins)
        for place, (low, high, count) in enumerate(histogram):
            first: Any = low
            last: Any = high
            if self.minima.dtype.kind in "iu":
                # Borders are floats, which large integers exceed.
                first = math.ceil(low) if place else self.minimum
                last = math.ceil(high) - 1 if place + 1 < len(histogram) else self.maximum
            if first <= last:
                yield first, last, round(count)


def _clip_means(means: Any, minima: Any, maxima: Any) -> Any:
    """Return means that rounding has not moved beyond the extremes: equal values have their value as mean."""
    return np.clip(means, np.asarray(minima, np.float64), np.asarray(maxima, np.float64))


def _thin_points(
    points: NDArray[np.float64], weights: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return at most `EXACT_VALUES` of ascending points, at equal distances of their weights."""
    if len(points) > EXACT_VALUES:
        ends = np.cumsum(weights)
        at = np.searchsorted(ends, (np.arange(EXACT_VALUES) + 0.5) * (ends[-1] / EXACT_VALUES))
        points, weights = points[at.clip(0, len(points) - 1)], np.full(EXACT_VALUES, ends[-1] / EXACT_VALUES)
    return points, weights


def splitmix64(bits: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Hash 64 bits to 64 bits, one to one: the finalizer of https://prng.di.unimi.it/splitmix64.c."""
    bits = bits + np.uint64(0x9E3779B97F4A7C15)
    bits ^= bits >> np.uint64(30)
    bits *= np.uint64(0xBF58476D1CE4E5B9)
    bits ^= bits >> np.uint64(27)
    bits *= np.uint64(0x94D049BB133111EB)
    bits ^= bits >> np.uint64(31)
    return bits


def smallest_hashes(hashes: NDArray[np.uint64], kept: NDArray[np.uint64] | None = None) -> NDArray[np.uint64]:
    """Return the smallest distinct hashes in ascending order, of an array and of those that were `kept` before."""
    if kept is not None and len(kept) == _HASHES:
        hashes = hashes[hashes < kept[-1]]
    elif kept is None and len(hashes) > 8 * _HASHES:
        # The smallest are probably among these few, which are sorted faster.
        few = hashes[hashes < np.uint64(2**66 * _HASHES // len(hashes))]
        # All are kept where a value with a small hash is repeated.
        if len(few) <= len(hashes) // 2 and len(distinct := smallest_hashes(few)) == _HASHES:
            return distinct
    ordered = np.sort(hashes if kept is None else np.concatenate([kept, hashes]))
    is_first = np.append(True, ordered[1:] != ordered[:-1])[: len(ordered)]
    smallest: NDArray[np.uint64] = ordered[is_first][:_HASHES]
    return smallest


def _number_hashes(values: NDArray[Any]) -> NDArray[np.uint64]:
    """Return the smallest hashes of numbers; NaN does not count."""
    kept: NDArray[np.uint64] | None = None
    flat = values.ravel()
    for start in range(0, len(flat), _SLICE):
        part = flat[start : start + _SLICE]
        if part.dtype.kind == "f":
            # Negative zero equals zero.
            part = part[~np.isnan(part)] + part.dtype.type(0)
        bits = part.view(f"u{part.dtype.itemsize}").astype(np.uint64)
        kept = smallest_hashes(splitmix64(bits), kept)
    return np.empty(0, np.uint64) if kept is None else kept


def _bytes_hashes(block: BytesBlock) -> NDArray[np.uint64]:
    """Hash each bytes value."""
    sizes = np.diff(block.splits)
    hashes = splitmix64(sizes.astype(np.uint64))
    short = sizes <= _SHORT_NBYTES
    for start in range(0, len(sizes), _SLICE):
        part = slice(start, start + _SLICE)
        wide = np.where(short[part], sizes[part], 0)
        words = np.zeros((len(wide), -(-int(wide.max(initial=0)) // 8)), np.uint64)
        is_byte = np.arange(words.shape[1] * 8) < wide[:, None]
        first, last = block.splits[start], block.splits[min(start + _SLICE, len(sizes))]
        held = block.values[first:last]
        words.view(np.uint8)[is_byte] = held if short[part].all() else held[np.repeat(short[part], sizes[part])]
        for number, column in enumerate(words.T):
            # Padding for a longer value nearby does not belong to a value.
            hashes[part] = np.where(wide > 8 * number, splitmix64(hashes[part] ^ column), hashes[part])
    for number in np.flatnonzero(~short).tolist():
        value = block.values[block.splits[number] : block.splits[number + 1]]
        hashes[number] = int.from_bytes(hashlib.blake2b(value.tobytes(), digest_size=8).digest(), "little")
    return hashes


@dataclass(frozen=True, slots=True, eq=False)
class Frequencies:
    """Counters of frequent bytes or text values.

    Attributes
    ----------
    hashes : ndarray of uint64, shape (ncounters,)
        Hash of each value, in ascending order.
    counts : ndarray of int64, shape (ncounters,)
        Number of occurrences, too small by at most `error`.
    values : tuple of bytes
        The first 256 bytes of each value.
    error : int
        Largest number of occurrences that a count lacks, and that a value without a counter has; 0 if counts are exact.
    """

    hashes: NDArray[np.uint64]
    counts: NDArray[np.int64]
    values: tuple[bytes, ...]
    error: int

    @classmethod
    def of(cls, block: BytesBlock, hashes: NDArray[np.uint64]) -> Frequencies:
        """Count the values of a block."""
        ordered = np.sort(hashes)
        starts = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1])[: len(ordered)])
        kept, counts, error = _reduced_counters(ordered[starts], np.diff(np.append(starts, len(ordered))))
        at = np.searchsorted(kept, hashes).clip(0, max(0, len(kept) - 1))
        places = np.zeros(len(kept), np.int64)
        if len(kept):
            found = np.flatnonzero(kept[at] == hashes)
            places[at[found]] = found
        first = block.splits[places]
        last = block.splits[places + 1] if len(places) else places
        ends = np.minimum(last, first + SHOWN_NBYTES)
        values = tuple(
            block.values[start:stop].tobytes() for start, stop in zip(first.tolist(), ends.tolist(), strict=True)
        )
        return cls(kept, counts, values, error)

    @classmethod
    def merged(cls, parts: Sequence[Frequencies]) -> Frequencies:
        """Add counters up."""
        hashes, inverse = np.unique(np.concatenate([part.hashes for part in parts]), return_inverse=True)
        counts = np.zeros(len(hashes), np.int64)
        np.add.at(counts, inverse, np.concatenate([part.counts for part in parts]))
        texts = {number: text for part in parts for number, text in zip(part.hashes.tolist(), part.values, strict=True)}
        kept, counts, error = _reduced_counters(hashes, counts)
        values = tuple(texts[number] for number in kept.tolist())
        return cls(kept, counts, values, error + sum(part.error for part in parts))

    def __repr__(self) -> str:
        return f"Frequencies(top={self.top(3)!r})"

    def top(self, n: int = 20) -> list[tuple[bytes, int]]:
        """List the most frequent values with their numbers; equal numbers in the order of the values."""
        pairs = zip(self.values, self.counts.tolist(), strict=True)
        return sorted(pairs, key=lambda pair: (-pair[1], pair[0]))[:n]


def _reduced_counters(hashes: NDArray[np.uint64], counts: NDArray[np.int64]) -> tuple[Any, NDArray[np.int64], int]:
    """Reduce all counters by the largest one that is too many, and return those that are left, and the reduction."""
    if len(counts) <= _COUNTERS:
        return hashes, counts, 0
    error = int(np.partition(counts, -_COUNTERS - 1)[-_COUNTERS - 1])
    left = counts > error
    return hashes[left], counts[left] - error, error


@dataclass(frozen=True, slots=True, eq=False)
class ColumnStatistics:
    """Statistics of a column.

    Attributes
    ----------
    name : str
        Name of the column.
    dtype : str
        Name of the dtype; "bytes" or "text".
    shape : tuple of int
        Shape of a row, or of a value of a ragged row.
    rows : int
        Number of rows.
    missing : int
        Rows of a ragged column without values: the record lacks the feature, or its list is empty. A dense column has
        a value in every row: its default where the record lacks the feature.
    values : int
        Number of values of all rows, NaN included.
    numbers : Numbers or None
        Statistics of the numbers, of times in nanoseconds; None for bytes, text and complex numbers.
    sizes : Numbers or None
        Statistics of the sizes of bytes values in bytes, and of text in characters.
    lengths : Numbers or None
        Statistics of the numbers of values, or of inner rows, of the rows that are not missing; None for dense columns.
    row_values : Numbers or None
        Statistics of the numbers of values in all inner rows together, of the rows that are not missing; None for
        dense columns.
    hashes : ndarray of uint64 or None
        The smallest hashes of the values, at most 4,096; None for rows of more than 64 values.
    frequencies : Frequencies or None
        Frequent values of bytes and text.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    rows: int
    missing: int
    values: int
    numbers: Numbers | None
    sizes: Numbers | None
    lengths: Numbers | None
    row_values: Numbers | None
    hashes: NDArray[np.uint64] | None = field(repr=False)
    frequencies: Frequencies | None

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise no_attribute("column", self, name, {"COLUMN": self.name})

    @classmethod
    def of(cls, name: str, feature: Feature, block: Block) -> ColumnStatistics:
        """Summarise a block."""
        lengths = row_values = None
        missing = 0
        flat: Any = block
        if isinstance(block, RaggedBlock | ArraysBlock):
            counts = np.diff(block.row_splits)
            lengths, missing = Numbers.of(counts[counts > 0][:, None]), int(np.count_nonzero(counts == 0))
            flat = block.flat_values if isinstance(block, RaggedBlock) else block.values
            row_values = Numbers.of(_values_of_rows(block)[counts > 0][:, None])
        shape, dtype = feature.item_shape, feature.item_dtype
        scalar = math.prod(shape) <= _MOST_SCALARS and not feature.own_shapes
        numbers = sizes = hashes = frequencies = None
        if isinstance(flat, BytesBlock) or dtype.kind == "T":
            values, text = (flat, flat.splits) if isinstance(flat, BytesBlock) else _encode_text(flat)
            sizes = Numbers.of(np.diff(text)[:, None])
            each = _bytes_hashes(values)
            hashes, frequencies = smallest_hashes(each), Frequencies.of(values, each)
        elif isinstance(flat, np.ndarray) and dtype.kind != "c":
            array = _native_numbers(flat)
            last = shape[-1] if shape and 0 < shape[-1] <= _MOST_DIMENSIONS else 1
            numbers = Numbers.of(array.reshape(-1, last))
            hashes = _number_hashes(array) if scalar else None
        size = len(flat.splits) - 1 if isinstance(flat, BytesBlock) else np.size(flat)
        return cls(
            name,
            dtype_name(dtype),
            shape,
            len(block),
            missing,
            size,
            numbers,
            sizes,
            lengths,
            row_values,
            hashes,
            frequencies,
        )

    @classmethod
    def merged(cls, parts: Sequence[ColumnStatistics]) -> ColumnStatistics:
        """Merge summaries of one column."""

        def numbers(name: str) -> Numbers | None:
            found = [getattr(part, name) for part in parts]
            return None if found[0] is None else Numbers.merged(found)

        hashes = [part.hashes for part in parts if part.hashes is not None]
        frequencies = [part.frequencies for part in parts if part.frequencies is not None]
        return replace(
            parts[0],
            rows=sum(part.rows for part in parts),
            missing=sum(part.missing for part in parts),
            values=sum(part.values for part in parts),
            numbers=numbers("numbers"),
            sizes=numbers("sizes"),
            lengths=numbers("lengths"),
            row_values=numbers("row_values"),
            hashes=smallest_hashes(np.concatenate(hashes)) if hashes else None,
            frequencies=Frequencies.merged(frequencies) if frequencies else None,
        )

    @property
    def is_exact(self) -> bool:
        """True if `distinct` is exact."""
        return self.hashes is not None and len(self.hashes) < _HASHES

    @property
    def distinct(self) -> int | None:
        """Number of distinct values without NaN: exact below 4,096, otherwise with a standard error of 1.6 %."""
        if self.hashes is None or self.is_exact:
            return None if self.hashes is None else len(self.hashes)
        return round((_HASHES - 1) / (float(self.hashes[-1]) / 2.0**64))


def _values_of_rows(block: RaggedBlock | ArraysBlock) -> NDArray[np.int64]:
    """Return the number of values of each row, in all rows within it."""
    splits, values = block.row_splits, block.values
    while isinstance(values, RaggedBlock | ArraysBlock):
        splits, values = values.row_splits[splits], values.values
    return np.diff(splits) * math.prod(values.shape[1:])


def _native_numbers(values: NDArray[Any]) -> NDArray[Any]:
    """Return numbers of a dtype that NumPy sorts, in the byte order of the machine."""
    if values.dtype.kind == "b":
        return values.view(np.uint8)
    if values.dtype.kind in "mM":
        return np.ascontiguousarray(values).view(np.int64)
    small = values.dtype.name in ("float16", "bfloat16")
    return np.ascontiguousarray(values, np.float32 if small else values.dtype.newbyteorder("="))


def _encode_text(texts: NDArray[Any]) -> tuple[BytesBlock, NDArray[np.int64]]:
    """Return text as UTF-8, and the splits between texts in characters."""
    # NumPy's `str_len` leaves out characters U+0000 at the end.
    listed = texts.ravel().tolist()
    letters = np.cumsum([0, *map(len, listed)])
    return BytesBlock.of([text.encode() for text in listed]), letters
