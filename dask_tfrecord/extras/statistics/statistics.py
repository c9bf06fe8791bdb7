"""`Statistics` of a data set: computed in one pass, displayed, exported to TensorFlow Metadata, and compared."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from html import escape
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import dask
import numpy as np

from dask_tfrecord.advice import no_attribute
from dask_tfrecord.errors import UnknownFeatureError, clipped, explain_missing, near_misses, plural, printable
from dask_tfrecord.extras.statistics.summaries import EXACT_VALUES, SHOWN_NBYTES, ColumnStatistics, Numbers
from dask_tfrecord.features import Feature
from dask_tfrecord.features.schema import align_columns
from dask_tfrecord.markup import (
    bins_svg,
    fragment,
    html_table,
    json_number,
    page,
    stack_columns,
    table,
    terminal_width,
    time_text,
)
from dask_tfrecord.messages import FeatureStatisticsList, metadata_text
from dask_tfrecord.rows.graph import Chunk, shared
from dask_tfrecord.rows.progress import ProgressBar, follow_tasks, report_progress
from dask_tfrecord.rows.rows import Rows
from dask_tfrecord.rows.task_names import label_key
from dask_tfrecord.shards.streams import write_file

# Summaries that one task merges.
_MERGED = 8
_HEADER = (
    *("column", "dtype", "values", "empty", "NaN", "distinct"),
    *("mean", "std", "min", "median", "max", "sizes", "most frequent"),
)
_RIGHT = range(2, 11)
_LONG = ("sizes", "most frequent")
# Frequent values of a cell, and letters or bytes of each.
_MOST_SHOWN = 3
_LETTERS = 20
_BYTES = 6
_QUANTILES = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99)
_BINS = 20


def describe(rows: Rows) -> Statistics:
    """Summarise all columns; `Dataset.describe` documents it."""
    names = rows.names
    if not names:
        return Statistics(rows.nrows or 0, ())
    features = dict(rows.schema)
    chunks = rows.chunks(names).to_delayed(optimize_graph=False).ravel()
    name = label_key("describe")
    step, option = dask.delayed(_describe_chunk, pure=False), shared(features, "features")
    parts = [step(chunk, option, dask_key_name=(name, number)) for number, chunk in enumerate(chunks)]
    with ProgressBar("Describing", len(parts)) as bar, follow_tasks(name, lambda *_: bar.advance()):
        while len(parts) > 1:
            groups = (parts[start : start + _MERGED] for start in range(0, len(parts), _MERGED))
            parts = [dask.delayed(_merge, pure=False)(group) for group in groups]
        columns = parts[0].compute()
    return Statistics(columns[0].rows, tuple(columns), dict(rows.schema.classes))


def _describe_chunk(chunk: Chunk, features: Mapping[str, Feature]) -> list[ColumnStatistics]:
    columns = [ColumnStatistics.of(name, feature, chunk.blocks[name]) for name, feature in features.items()]
    report_progress()
    return columns


def _merge(parts: Sequence[list[ColumnStatistics]]) -> list[ColumnStatistics]:
    return [ColumnStatistics.merged(columns) for columns in zip(*parts, strict=True)]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Statistics(Mapping[str, ColumnStatistics]):
    """Statistics of the columns of a data set, by name.

    Printing them shows a table. Notebooks display it with histograms.

    Attributes
    ----------
    nrows : int
        Number of rows.
    columns : tuple of ColumnStatistics
        Statistics of each column, in order.
    classes : mapping of str to tuple of str
        Names of classes, by column.

    Examples
    --------
    >>> statistics = dtf.read_tfrecord("train-*.tfrecord").describe()
    >>> statistics["label"].numbers.mean
    2.0
    >>> statistics["tokens"].missing
    2
    """

    nrows: int
    columns: tuple[ColumnStatistics, ...]
    classes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            number = next((column.name for column in self.columns if column.numbers is not None), "label")
            raise no_attribute("statistics", self, name, {"NUMBER": number})

    def __getitem__(self, name: str) -> ColumnStatistics:
        for column in self.columns:
            if column.name == name:
                return column
        raise UnknownFeatureError(f"no column {name!r}{near_misses(name, list(self))}")

    def __iter__(self) -> Iterator[str]:
        return iter([column.name for column in self.columns])

    def __len__(self) -> int:
        return len(self.columns)

    def rows(self) -> list[tuple[str, ...]]:
        """Write each column as a table row, in the header's order."""
        return [_statistics_cells(column, self.classes.get(column.name, ())) for column in self.columns]

    def _table(self) -> tuple[tuple[str, ...], list[tuple[str, ...]], list[int]]:
        """Return header and rows without empty columns, and the numbers of the columns to align to the right."""
        rows = self.rows()
        kept = [number for number in range(len(_HEADER)) if number < 3 or any(row[number] for row in rows)]
        right = [place for place, number in enumerate(kept) if number in _RIGHT]
        picked = [tuple(row[number] for number in kept) for row in (_HEADER, *rows)]
        return picked[0], picked[1:], right

    def __repr__(self) -> str:
        return text_statistics(self, terminal_width())

    def _repr_html_(self) -> str:
        """Show the table, with a picture of each column's distribution."""
        header, rows, right = self._table()
        cells = [[escape(printable(cell)) for cell in row] for row in rows]
        pictures = [_draw_histograms(column, self.classes.get(column.name, ())) for column in self.columns]
        titled = [(name, picture, *rest) for (name, *rest), picture in zip(cells, pictures, strict=True)]
        shifted = [place + 1 for place in right]
        title = f'<p class="dtf-title">{escape(self._title())}</p>'
        return fragment(title, table((header[0], "distribution", *header[1:]), titled, shifted))

    def _title(self) -> str:
        return f"Statistics of {plural(self.nrows, 'row')}, {plural(len(self.columns), 'column')}"

    def to_dict(self) -> dict[str, Any]:
        """Return all numbers as values of JSON, except that floats may be NaN or infinite.

        Returns
        -------
        dict
            ``nrows`` and ``columns``: for each name ``dtype``, ``shape``, ``rows``, ``missing``, ``values``,
            ``distinct``, ``numbers``, ``sizes``, ``lengths`` and ``frequent``. Numbers have ``minimum``, ``maximum``,
            ``mean``, ``std``, ``nan``, ``infinite``, ``zeros``, ``quantiles`` and, along a last axis, ``means``,
            ``stds``, ``minima`` and ``maxima``. Statistics of times are nanoseconds.
        """
        return {"nrows": self.nrows, "columns": {column.name: _statistics_values(column) for column in self.columns}}

    def to_json(self) -> str:
        """Return the values of `to_dict` as JSON text; NaN and infinities are strings, as in the JSON of protobuf."""
        return json.dumps(_json_numbers(self.to_dict()), ensure_ascii=False, allow_nan=False)

    def to_html(self, path: str | os.PathLike[str]) -> None:
        """Write one self-contained HTML file, in the light or dark colours that the reader's browser prefers."""
        write_file(path, page(self._title(), self._repr_html_()).encode())

    def to_dataframe(self) -> Any:
        """Return a table with a row per column of the data set. The extra ``arrow`` is needed.

        Returns
        -------
        pandas.DataFrame
            Single numbers of `to_dict`; quantiles as ``q0.5``, and the range and mean of sizes and lengths as
            ``size_minimum``, ``length_mean`` and so on.

        Raises
        ------
        ImportError
            If pandas is not installed.
        """
        with explain_missing("DataFrames need", "pandas", "arrow"):
            import pandas as pd
        rows = []
        for column in self.columns:
            row = _statistics_values(column)
            numbers, sizes, lengths = (row.pop(part) or {} for part in ("numbers", "sizes", "lengths"))
            del row["shape"], row["frequent"]
            row |= {name: value for name, value in numbers.items() if not isinstance(value, dict | list)}
            row |= {f"q{rank}": value for rank, value in numbers.get("quantiles", {}).items()}
            for part, found in (("size", sizes), ("length", lengths)):
                row |= {f"{part}_{name}": found.get(name) for name in ("minimum", "mean", "maximum")}
            rows.append(row)
        return pd.DataFrame(rows, index=pd.Index(list(self), name="column"))

    def to_pbtxt(
        self, urlpath: str | os.PathLike[str], name: str = "", *, storage_options: Mapping[str, Any] | None = None
    ) -> None:
        """Write the statistics as a `DatasetFeatureStatisticsList` of TensorFlow Metadata, in protobuf text format.

        TensorFlow Data Validation reads the file with `tfdv.load_stats_text`, displays and validates it. Bytes that
        are text have the type STRING, other bytes BYTES. Rows without values are missing. Columns of complex numbers
        are left out.

        Parameters
        ----------
        urlpath : str or os.PathLike
            Path or fsspec URL; an older file is replaced.
        name : str, optional
            Name of the data set, which displays show.
        storage_options : mapping, optional
            Options for the fsspec file system.
        """
        message = FeatureStatisticsList()
        dataset = message.datasets.add(name=name, num_examples=self.nrows)
        for column in self.columns:
            if column.numbers is not None or column.sizes is not None:
                _add_statistics(dataset.features.add(), column)
        write_file(urlpath, metadata_text(message).encode(), storage_options)

    def compare(
        self,
        other: Mapping[str, ColumnStatistics],
        *,
        missing: float = 0.01,
        mean: float = 0.1,
        extent: float = 0.1,
        distribution: float = 0.1,
    ) -> Drift:
        """List how other statistics differ, for example another split's or newer shards'.

        Parameters
        ----------
        other : Statistics
            Statistics of the other data set.
        missing : float, optional
            Difference in the share of rows without values, and in the share of NaN.
        mean : float, optional
            Difference of means, of the numbers (along the last axis, the largest one) and of the values per row, in
            standard deviations of this data set.
        extent : float, optional
            Distance of the other extremes from the range of this data set, in parts of the range.
        distribution : float, optional
            L-infinity distance of distributions: of numbers the largest difference of the shares below a value
            (Kolmogorov-Smirnov), of bytes and text the largest difference in the share of one frequent value.

        Returns
        -------
        Drift
            Differences above the thresholds, new and missing columns, and other dtypes and shapes. It prints as a
            table, and is false without differences.

        Examples
        --------
        >>> ds = dtf.read_tfrecord("train-*.tfrecord")
        >>> ds.rows[:10].describe().compare(ds.rows[10:].describe())
        column  difference    before      after       distance
        tokens  distribution  median 602  median 574     0.156
        """
        if not isinstance(other, Mapping) or not all(isinstance(each, ColumnStatistics) for each in other.values()):
            raise TypeError(f"compare takes Statistics: write other.describe(); got {other!r:.100}")
        differences = [
            Difference(name, "missing column", str(self[name].dtype), "") for name in self if name not in other
        ]
        for name in self:
            if name in other:
                differences += _differences(self[name], other[name], missing, mean, extent, distribution)
        differences += [
            Difference(name, "new column", "", str(other[name].dtype)) for name in other if name not in self
        ]
        return Drift(tuple(differences))


def text_statistics(statistics: Statistics, width: int | None = None) -> str:
    """Return a title and a line per column as text; cells are not broken in a terminal of `width`."""
    header, rows, right = statistics._table()
    lines = align_columns([header, *rows], right)
    if width is not None and max(map(len, lines)) > width:
        apart = [place for place, name in enumerate(header) if name in _LONG]
        lines = stack_columns(header, rows, width, apart, right)
    return "\n".join([statistics._title(), *lines])


@dataclass(frozen=True, slots=True)
class Difference:
    """Difference of a column.

    Attributes
    ----------
    column : str
        Name of the column.
    what : str
        "missing column", "new column", "dtype", "shape", "missing", "NaN", "mean", "mean length", "extent" or
        "distribution".
    before, after : str
        Value of each data set, as text.
    distance : float or None
        Distance that exceeds its threshold.
    """

    column: str
    what: str
    before: str
    after: str
    distance: float | None = None


@dataclass(frozen=True, slots=True, repr=False)
class Drift:
    """Differences of two data sets; false if they agree."""

    differences: tuple[Difference, ...]

    def __bool__(self) -> bool:
        return bool(self.differences)

    def rows(self) -> list[tuple[str, str, str, str, str]]:
        """List the differences as table rows of text."""
        return [
            (each.column, each.what, each.before, each.after, "" if each.distance is None else f"{each.distance:.3g}")
            for each in self.differences
        ]

    def __repr__(self) -> str:
        return "\n".join(align_columns([_DRIFT_HEADER, *self.rows()], [4])) if self else "no differences"

    def _repr_html_(self) -> str:
        return html_table(plural(len(self.differences), "difference"), _DRIFT_HEADER, self.rows(), [], [4])


_DRIFT_HEADER = ("column", "difference", "before", "after", "distance")


def _differences(
    old: ColumnStatistics, new: ColumnStatistics, missing: float, mean: float, extent: float, distribution: float
) -> Iterator[Difference]:
    """Yield the differences of a column that exceed their thresholds."""
    if old.dtype != new.dtype or old.shape != new.shape:
        what = "dtype" if old.dtype != new.dtype else "shape"
        yield Difference(old.name, what, _dtype_cell(old), _dtype_cell(new))
        if old.dtype != new.dtype:
            return
    shares = {"missing": [each.missing / max(1, each.rows) for each in (old, new)]}
    if old.numbers is not None and new.numbers is not None:
        shares["NaN"] = [each.nan / max(1, each.nan + each.count) for each in (old.numbers, new.numbers)]
    for what, (before, after) in shares.items():
        if abs(after - before) > missing:
            yield Difference(old.name, what, f"{before:.2%}", f"{after:.2%}", abs(after - before))
    for what, first, second in (("mean", old.numbers, new.numbers), ("mean length", old.lengths, new.lengths)):
        if first is not None and second is not None and len(first.means) == len(second.means):
            triples = zip(first.means.tolist(), second.means.tolist(), first.stds.tolist(), strict=True)
            distances = [_in_units(abs(after - before), std) for before, after, std in triples]
            worst = int(np.argmax(np.nan_to_num(distances, nan=-1.0)))
            if distances[worst] > mean:
                dtype = old.dtype if what == "mean" else ""
                was, now = (_format_number(float(each.means[worst]), dtype) for each in (first, second))
                yield Difference(old.name, what, was, now, distances[worst])
    first, second = old.numbers, new.numbers
    if first is not None and second is not None and first.count and second.count:
        (low, high), (least, most) = ((float(each.minimum or 0), float(each.maximum or 0)) for each in (first, second))
        distance = _in_units(max(low - least, most - high, 0), high - low)
        if distance > extent:
            yield Difference(
                old.name, "extent", _format_extent(first, old.dtype), _format_extent(second, old.dtype), distance
            )
        points = np.union1d(first.points, second.points)
        furthest = float(np.abs(first.shares_below(points) - second.shares_below(points)).max())
        if furthest > distribution:
            was, now = (f"median {_format_number(float(each.quantile(0.5)), old.dtype)}" for each in (first, second))
            yield Difference(old.name, "distribution", was, now, furthest)
    elif old.frequencies is not None and new.frequencies is not None:
        pairs = ((old.frequencies, max(1, old.values)), (new.frequencies, max(1, new.values)))
        olds, news = (
            dict(zip(each.hashes.tolist(), (each.counts / size).tolist(), strict=True)) for each, size in pairs
        )
        texts = {
            number: text for each, _ in pairs for number, text in zip(each.hashes.tolist(), each.values, strict=True)
        }
        found = [(abs(olds.get(number, 0) - news.get(number, 0)), text, number) for number, text in texts.items()]
        distance, text, number = max(found, default=(0.0, b"", 0))
        if distance > distribution:
            was, now = (f"{_value_text(text)} {each.get(number, 0):.1%}" for each in (olds, news))
            yield Difference(old.name, "distribution", was, now, distance)


def _in_units(distance: float, unit: float) -> float:
    """Return a distance in units; NaN, of infinite numbers, if it is unknown."""
    if not math.isfinite(distance) or not distance:
        return distance
    return distance / unit if unit else math.inf


def _statistics_cells(column: ColumnStatistics, classes: Sequence[str]) -> tuple[str, ...]:
    """Write a column's statistics as the cells of a row; what does not apply is empty."""
    numbers, distinct = column.numbers, column.distinct
    sizes = []
    if column.lengths is not None and column.lengths.count:
        sizes.append(f"{_format_extent(column.lengths)} per row, mean {_format_number(column.lengths.mean)}")
    if column.sizes is not None and column.sizes.count:
        sizes.append(f"{_format_extent(column.sizes)} {'letters' if column.dtype == 'text' else 'bytes'}")
    # Values that occur once are not frequent.
    shown = [] if column.frequencies is None else [each for each in column.frequencies.top(_MOST_SHOWN) if each[1] > 1]
    estimated = "" if column.is_exact else "~"
    measured = [""] * 5
    if numbers is not None and numbers.count:
        # The deviation of moments is a duration.
        deviation = _format_number(numbers.std, column.dtype.replace("datetime", "timedelta"))
        middle = [numbers.minimum, float(numbers.quantile(0.5)), numbers.maximum]
        mean, *others = (_format_number(each, column.dtype) for each in (numbers.mean, *middle))
        measured = [mean, deviation, *others]
    return (
        column.name or "''",
        _dtype_cell(column),
        f"{column.values:,}",
        f"{column.missing:,}" if column.missing else "",
        f"{numbers.nan:,}" if numbers is not None and numbers.nan else "",
        "" if distinct is None else f"{estimated}{distinct:,}",
        *measured,
        "; ".join(sizes),
        ", ".join(f"{_value_text(value)} ({times:,})" for value, times in shown) or _frequent_classes(numbers, classes),
    )


def _frequent_classes(numbers: Numbers | None, classes: Sequence[str]) -> str:
    """Return the names of the most frequent classes with their counts, which are estimates of many values."""
    low, high = (None, None) if numbers is None else (numbers.minimum, numbers.maximum)
    if numbers is None or not isinstance(low, int) or not isinstance(high, int) or not 0 <= low <= high < len(classes):
        return ""
    # A bar for each number.
    frequent = sorted((bar for bar in numbers.bars(high - low + 1) if bar[2]), key=lambda bar: -bar[2])
    about = "" if numbers.count <= EXACT_VALUES else "~"
    return ", ".join(f"{clipped(classes[at], _LETTERS)} ({about}{times:,})" for at, _, times in frequent[:_MOST_SHOWN])


def _dtype_cell(column: ColumnStatistics) -> str:
    shape = ("?", *column.shape) if column.lengths is not None else column.shape
    return f"{column.dtype} ({', '.join(map(str, shape))})" if shape else column.dtype


def _format_number(value: float | None, dtype: str = "") -> str:
    """Return a number with four digits, an integer with all its digits, or a time from its nanoseconds."""
    if value is None:
        return ""
    if dtype.startswith(("datetime64", "timedelta64")):
        nanoseconds = np.int64(round(value))
        return time_text(nanoseconds.view(dtype))
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.0f}" if 1e4 <= abs(value) < 1e15 else f"{value:.4g}"


def _format_extent(numbers: Numbers, dtype: str = "") -> str:
    low, high = _format_number(numbers.minimum, dtype), _format_number(numbers.maximum, dtype)
    return low if low == high else f"{low} to {high}"


def _value_text(value: bytes) -> str:
    """Return a short text, or the hexadecimal digits of the first bytes."""
    text = _decode_text(value)
    if text is None or not (text.isprintable() or text.isspace()):
        return f"0x{value[:_BYTES].hex()}{'…' if len(value) > _BYTES else ''}"
    return f"“{clipped(text, _LETTERS)}”"


def _draw_histograms(column: ColumnStatistics, classes: Sequence[str]) -> str:
    """Draw histograms of the values and of the values per row."""
    drawn = []
    is_time = column.dtype.startswith(("datetime64", "timedelta64"))
    for numbers, label in ((column.numbers or column.sizes, ""), (column.lengths, "<small>per row</small>")):
        if numbers is not None and numbers.count:
            show = partial(_format_number, dtype=column.dtype) if is_time and not label else "{:,}".format
            if classes and not label:
                show = partial(_class_name, classes)
            short = float if is_time else _short_value
            bins = [(short(low), short(high), count) for low, high, count in numbers.bars(_BINS)]
            drawn.append(f"{bins_svg(bins, text=show)}{label}")
    return "".join(drawn)


def _class_name(classes: Sequence[str], value: float) -> str:
    return f"{classes[int(value)]} ({value:,})" if 0 <= value < len(classes) else f"{value:,}"


def _short_value(value: float) -> float:
    short = float(f"{value:.4g}")
    return int(short) if short.is_integer() and abs(short) < 1e15 else short


def _statistics_values(column: ColumnStatistics) -> dict[str, Any]:
    """Return the statistics of a column as JSON values."""
    frequencies = column.frequencies
    frequent = (
        [{"value": value.decode("utf-8", "backslashreplace"), "count": times} for value, times in frequencies.top()]
        if frequencies
        else None
    )
    return {
        "dtype": column.dtype,
        "shape": list(column.shape),
        **{name: getattr(column, name) for name in ("rows", "missing", "values", "distinct")},
        **{name: _number_values(getattr(column, name)) for name in ("numbers", "sizes", "lengths")},
        "frequent": frequent,
    }


def _json_numbers(value: Any) -> Any:
    """Replace NaN and infinities by strings."""
    if isinstance(value, dict):
        return {name: _json_numbers(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_json_numbers(each) for each in value]
    return json_number(value) if isinstance(value, float) else value


def _number_values(numbers: Numbers | None) -> dict[str, Any] | None:
    """List a column's moments and quantiles as JSON values; per component if there are several."""
    if numbers is None:
        return None
    names = ("minimum", "maximum", "mean", "std", "nan", "infinite", "zeros")
    found = {name: getattr(numbers, name) for name in names}
    found["quantiles"] = dict(zip(map(str, _QUANTILES), numbers.quantile(_QUANTILES).tolist(), strict=True))
    if len(numbers.counts) > 1:
        found |= {name: getattr(numbers, name).tolist() for name in ("means", "stds", "minima", "maxima")}
    return found


def _add_statistics(feature: Any, column: ColumnStatistics) -> None:
    """Fill in a `FeatureNameStatistics`."""
    feature.path.step.append(column.name)
    numbers, sizes, frequencies = column.numbers, column.sizes, column.frequencies
    if numbers is not None:
        feature.type = 1 if column.dtype.startswith(("float", "bfloat")) else 0
        stats = feature.num_stats
        stats.num_zeros = numbers.zeros
        if numbers.count:
            stats.mean, stats.std_dev, stats.median = numbers.mean, numbers.std, float(numbers.quantile(0.5))
            stats.min, stats.max = float(numbers.minimum or 0), float(numbers.maximum or 0)
            _add_histograms(stats.histograms, numbers)
    elif sizes is not None and frequencies is not None:
        texts = [(_decode_text(value), times) for value, times in frequencies.top(1000)]
        if column.dtype == "text" or (texts and all(text is not None for text, _ in texts)):
            feature.type, stats = 2, feature.string_stats
            stats.avg_length = sizes.mean if sizes.count else 0
            for rank, (text, times) in enumerate(texts):
                if rank < 20:
                    stats.top_values.add(value=text or "", frequency=times)
                stats.rank_histogram.buckets.add(low_rank=rank, high_rank=rank, label=text or "", sample_count=times)
        else:
            feature.type, stats = 3, feature.bytes_stats
            if sizes.count:
                stats.avg_num_bytes, stats.min_num_bytes, stats.max_num_bytes = sizes.mean, sizes.minimum, sizes.maximum
                stats.max_num_bytes_int = sizes.maximum
        stats.unique = column.distinct or 0
    common, counts = stats.common_stats, column.row_values
    common.num_missing, common.num_non_missing = column.missing, column.rows - column.missing
    common.tot_num_values = column.values
    common.avg_num_values = column.values / max(1, common.num_non_missing)
    each = math.prod(column.shape)
    low, high = (each, each) if counts is None else (int(counts.minimum or 0), int(counts.maximum or 0))
    common.min_num_values, common.max_num_values = low, high


def _add_histograms(histograms: Any, numbers: Numbers) -> None:
    """Fill in two histograms of TensorFlow Data Validation: of equal width, and of equal count."""
    standard, quantiles = histograms.add(num_nan=numbers.nan, type=0), histograms.add(num_nan=numbers.nan, type=1)
    for low, high, count in numbers.histogram(10):
        standard.buckets.add(low_value=low, high_value=high, sample_count=count)
    borders = numbers.quantile(np.arange(11) / 10).tolist()
    for low, high in pairwise(borders):
        quantiles.buckets.add(low_value=low, high_value=high, sample_count=numbers.count / 10)


def _decode_text(value: bytes) -> str | None:
    """Decode bytes as text; None if they are not UTF-8."""
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        # A long value is cut, perhaps within a letter.
        is_cut = len(value) == SHOWN_NBYTES and error.reason == "unexpected end of data"
        return value[: error.start].decode() if is_cut else None
