"""Fill the rows of lost records, and values that can't be decoded, or leave out the rows of these.

Values that can't be decoded are found in one pass when a data set is opened. The tasks that find these rows change
nothing, and the source keeps the row numbers. So it reads the same rows however often a task runs, and never decodes or
counts a refused value again.

Only the faults in `_VALUE_FAULTS` of `columns/decoder.py` are such values: a feature that is missing always raises.
"""

from __future__ import annotations

import logging
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
from dask.base import normalize_token
from numpy.typing import NDArray

from dask_tfrecord.blocks import Arrays, Block, block_nbytes, concatenate, splits_of, take_rows, union
from dask_tfrecord.columns.conversions import conform
from dask_tfrecord.columns.decoder import Decoder, rows_of_no_fields
from dask_tfrecord.errors import FeatureValueError, Location, SchemaError, UnknownFeatureError, near_misses, plural
from dask_tfrecord.features import Feature, FixedLenFeature
from dask_tfrecord.features.base import ColumnDecoder
from dask_tfrecord.features.dtypes import default_array
from dask_tfrecord.features.listed import lengths
from dask_tfrecord.features.schema import Schema
from dask_tfrecord.records.shard_check import ShardReport
from dask_tfrecord.rows.calls import compute_with_progress
from dask_tfrecord.rows.collection import Collection, RowKey, RowNumbers, pick_rows, row_numbers
from dask_tfrecord.rows.graph import files_of
from dask_tfrecord.rows.rows import Rows
from dask_tfrecord.rows.sources import CountedRows, GrowingSpans, RecordSource, SameRows, describe_rows, join_into
from dask_tfrecord.settings import limits
from dask_tfrecord.shards.shard import Shards

_log = logging.getLogger(__name__)

MODES = ("raise", "fill", "mark", "skip")
# Decoded bytes of the rows that are checked together; if this fails, the refused value is searched among them.
_SPAN_NBYTES = 1 << 20
# Feature of a column of marks: True where another column has the value of the record.
_VALID = FixedLenFeature((), "bool")


def checked_modes(value_errors: Any, counts: Any) -> Mapping[str, str] | str:
    """Check the argument `value_errors`, before files are opened."""
    modes = value_errors.values() if isinstance(value_errors, Mapping) else (value_errors,)
    for mode in modes:
        if mode not in MODES:
            raise ValueError(
                f"value_errors must be {', '.join(map(repr, MODES))}, or one of them by column; got "
                f"{value_errors!r:.100}"
            )
    if counts is None and any(mode != "raise" for mode in modes):
        raise ValueError(
            f"value_errors={value_errors!r:.100} needs counted records: it cannot be combined with counts=None"
        )
    found: Mapping[str, str] | str = dict(value_errors) if isinstance(value_errors, Mapping) else value_errors
    return found


@dataclass(slots=True)
class _Refused:
    """Rows of some columns whose values can't be decoded, and the first error."""

    rows: dict[str, list[int]] = field(default_factory=dict)  # by the feature of the schema
    first: FeatureValueError | None = None


@dataclass(frozen=True, slots=True)
class ValueErrors:
    """Handling of values that can't be decoded, by column of a decoder."""

    decoder: Decoder
    modes: Mapping[str, str]  # of the columns that may refuse values, without "raise"
    fillers: Mapping[str, Block]  # rows of one value

    @classmethod
    def parse(
        cls,
        decoder: Decoder,
        given: Mapping[str, str] | str,
        fill_values: Mapping[str, Any] | None,
        names: Container[str] | None,
    ) -> ValueErrors:
        """Apply the argument of a user to some columns of a decoder, by default all."""
        columns = decoder.decoders
        if isinstance(given, Mapping):
            for name in given:
                if name not in columns:
                    raise UnknownFeatureError(f"value_errors: no column {name!r}{near_misses(name, tuple(columns))}")
        modes = {name: given.get(name, "raise") if isinstance(given, Mapping) else given for name in columns}
        modes = {
            name: mode
            for name, mode in modes.items()
            if mode != "raise"
            and columns[name].refuses_values
            and columns[name].assembler is not lengths
            and (names is None or name in names)
        }
        filled = dict.fromkeys(
            each for name, mode in modes.items() if mode != "skip" for each in _filled_together(decoder, name)
        )
        made = fillers(decoder, fill_values, filled, f"value_errors={given!r}") if filled else {}
        for name in (name for name, mode in modes.items() if mode == "mark"):
            if f"{name}.valid" in columns:
                raise SchemaError(f"value_errors='mark' adds a column {name + '.valid'!r}, which the records have")
        return cls(decoder, modes, made)

    def apply(self, rows: Rows, names: Iterable[str]) -> Rows:
        """Check some columns of all rows now; fill the values that are refused, and leave rows out."""
        checked = tuple(name for name in names if name in self.modes)
        read = rows.counted_source
        if not checked or read is None:
            return rows
        # Without rows, the columns of marks exist all the same.
        refused = _find_refused(rows, checked) if rows.nrows else _Refused()
        numbers = {name: np.array(refused.rows.get(name, ()), np.int64) for name in checked}
        skipped = [numbers[name] for name in checked if self.modes[name] == "skip"]
        left_out = union([], *skipped)
        _log_refused(rows, refused, numbers, len(left_out))
        source = self._fill_refused(read, {name: numbers[name] for name in checked if self.modes[name] != "skip"})
        if source is not read:
            rows = Rows.of_source(source, rows.borders)
        if not len(left_out):
            return rows
        return rows.select(np.delete(np.arange(rows.nrows or 0), left_out))

    def _fill_refused(self, source: CountedRows, refused: Mapping[str, NDArray[np.int64]]) -> CountedRows:
        """Fill in the refused rows of a source, and mark them where this is wanted."""
        marks = {f"{name}.valid": name for name in refused if self.modes[name] == "mark"}
        spread: dict[str, NDArray[np.int64]] = {}
        for name, numbers in refused.items():
            for each in _filled_together(self.decoder, name) if len(numbers) else ():
                spread[each] = union(spread.get(each, numbers), numbers)
        if not marks and not spread:
            return source
        schema = source.schema
        if marks:
            schema = schema.replaced({**schema, **dict.fromkeys(marks, _VALID)}, records=schema.records)
        return ToleratedSource(source, {name: self.fillers[name] for name in spread}, spread, marks, schema)


def _filled_together(decoder: Decoder, name: str) -> list[str]:
    """Return the columns whose rows are filled together: of one feature, or of one group."""
    column, group = decoder.decoders[name], decoder.columns.group_of(name)
    in_group = () if group is None else decoder.columns.groups[group]
    return [each for each, other in decoder.decoders.items() if other.source == column.source or each in in_group]


def _find_refused(rows: Rows, names: tuple[str, ...]) -> _Refused:
    """Read all rows of some columns, in a task for each chunk; the order of the chunks decides which error is first."""
    assert rows.borders is not None
    calls = [partial(_search_refused, start=start, stop=stop) for start, stop in pairwise(rows.borders.tolist())]
    total = _Refused()
    for each in compute_with_progress(calls, "Checking values", rows.source, names):
        total.first = total.first or each.first
        for name, numbers in each.rows.items():
            total.rows.setdefault(name, []).extend(numbers)
    return total


def _search_refused(source: CountedRows, names: tuple[str, ...], start: int, stop: int) -> _Refused:
    """Return the refused values of a range of rows."""
    refused = _Refused()
    spans = GrowingSpans(start, stop, limits().probe_rows, _SPAN_NBYTES)
    while spans:
        try:
            for blocks in source.read_spans(names, spans):
                spans.adapt(sum(map(block_nbytes, blocks.values())))
        except FeatureValueError:
            _search_halves(source, names, *spans.span, refused)
    return refused


def _search_halves(source: CountedRows, names: tuple[str, ...], start: int, stop: int, refused: _Refused) -> None:
    """Search for the refused values in rows that contain some, by halving the rows."""
    if stop - start == 1:
        left = names
        while left:
            try:
                source.read(left, slice(start, stop))
            except FeatureValueError as error:
                refused.first = refused.first or error
                feature = None if error.place is None else error.place.feature
                failed = [name for name in left if _is_of(source, name, feature)]
                if not failed:
                    raise
                for name in failed:
                    refused.rows.setdefault(name, []).append(start)
                left = tuple(name for name in left if name not in failed)
            else:
                return
        return
    middle = (start + stop) // 2
    for part in ((start, middle), (middle, stop)):
        try:
            source.read(names, slice(*part))
        except FeatureValueError:
            _search_halves(source, names, *part, refused)


def _is_of(source: Any, name: str, feature: str | None) -> bool:
    """Return whether the column belongs to the feature that raised an error."""
    while not hasattr(source, "decoder"):
        source = source.inner
    return feature in (name, source.decoder.decoders[name].source)


def _log_refused(rows: Rows, refused: _Refused, numbers: Mapping[str, NDArray[np.int64]], left_out: int) -> None:
    """Log how many values are refused, if any is."""
    counts = [f"{name!r} in {plural(len(each), 'record')}" for name, each in numbers.items() if len(each)]
    if counts:
        outcome = f"; {plural(left_out, 'row')} left out" if left_out else ""
        text = "%s: values that can't be decoded: %s%s; the first: %s"
        _log.warning(text, files_of(rows.origin), ", ".join(counts), outcome, refused.first)


@dataclass(frozen=True, slots=True, eq=False)
class FilledSource(CountedRows):
    """Rows of intact records, with filled rows in place of lost ones."""

    source: RecordSource  # of the intact records
    collection: Collection  # with lost records included, for planning chunks
    fillers: Mapping[str, Block]  # fill value of each column, as a block of one row
    lost: NDArray[np.int64]  # numbers of the filled rows, ascending, among all rows
    rows: RowNumbers  # numbers of the rows of this source among all rows

    @classmethod
    def from_reports(
        cls, source: RecordSource, reports: Sequence[ShardReport], fill_values: Mapping[str, Any] | None
    ) -> FilledSource:
        """Insert rows for lost records: their number if it is known, else one row per damaged range of bytes."""
        intact = source.collection
        lost, rows = [], 0
        starts = [0]
        for start, report in zip(intact.starts[:-1].tolist(), reports, strict=True):
            before = splits_of(report.counts)
            gap_indices = np.searchsorted(report.starts, [gap.start for gap in report.lost])
            for gap, index in zip(report.lost, gap_indices.tolist(), strict=True):
                number = 1 if gap.records is None else gap.records
                lost.append(np.arange(number) + (start + int(before[index]) + rows))
                rows += number
            starts.append(start + report.records + rows)
        collection = replace(intact, starts=np.array(starts, np.int64))
        numbers = np.concatenate([np.zeros(0, np.int64), *lost])
        return cls(source, collection, fillers(source.decoder, fill_values), numbers, range(starts[-1]))

    def __dask_tokenize__(self) -> object:
        return normalize_token(("dask_tfrecord.FilledSource", self.source, *self._filling))

    @property
    def content(self) -> object:
        """Records of the shards, whatever their paths are, and the filled rows."""
        return self.source.content, *self._filling

    @property
    def _filling(self) -> tuple[object, ...]:
        values = {name: np.asarray(block).tolist() for name, block in self.fillers.items()}
        return values, self.lost, self.rows

    @property
    def decoder(self) -> Decoder:
        """Decoder of the records."""
        return self.source.decoder

    @property
    def schema(self) -> Schema:
        """Schema of the columns."""
        return self.source.schema

    @property
    def shards(self) -> Shards:
        """Shards of the collection."""
        return self.collection.shards

    @property
    def origin(self) -> Mapping[str, Any]:
        """Files with sizes and versions."""
        return self.source.origin

    def select(self, key: RowKey) -> FilledSource:
        """Return a source of the selected rows."""
        return replace(self, rows=pick_rows(self.rows, key))

    def measure(self) -> FilledSource:
        """Return a source of the same rows whose ragged values are not decoded."""
        return replace(self, source=self.source.measure())

    def describe(self, key: RowKey) -> str:
        """Return the files and rows as text, for errors; row numbers include filled rows."""
        return describe_rows(self.collection, pick_rows(self.rows, key), "row")

    def with_memory_limit(self, nbytes: int) -> FilledSource:
        """Limit the memory of blocks of intact records."""
        return replace(self, source=self.source.with_memory_limit(nbytes))

    def locate(self, row: int, feature: str, start: int = 0) -> Location:
        """Return the file of a row and its number there, filled rows included."""
        number, starts = int(self.rows[start + row]), self.collection.starts
        shard = int(np.searchsorted(starts, number, side="right")) - 1
        return Location(self.shards.paths[shard], number - int(starts[shard]), feature=feature)

    def cost(self, spans: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the stored bytes of ranges of rows, estimated between index entries."""
        return self.collection.stored_nbytes(self.rows, spans)

    def read(self, names: Sequence[str], key: RowKey, out: Arrays | None = None) -> dict[str, Block]:
        """Read the intact records among some rows and fill the others."""
        rows = row_numbers(pick_rows(self.rows, key))
        lost_before = np.searchsorted(self.lost, rows)
        inside = lost_before < len(self.lost)
        is_lost = np.zeros(len(rows), bool)
        is_lost[inside] = self.lost[lost_before[inside]] == rows[inside]
        return _read_filled(self.source, names, rows - lost_before, np.flatnonzero(is_lost), self.fillers, out)


def _read_filled(
    source: CountedRows,
    names: Sequence[str],
    rows: NDArray[np.int64],
    lost: NDArray[np.int64],
    fillers: Mapping[str, Block],
    out: Arrays | None,
) -> dict[str, Block]:
    """Read some rows of a source, with fill values at some of their positions, which ascend, instead of its rows."""
    if not len(lost):
        return source.read(names, rows, out)
    numbers = np.arange(len(rows))
    order = numbers - np.searchsorted(lost, numbers, side="right")
    order[lost] = len(rows) - len(lost)
    read = source.read(names, np.delete(rows, lost))
    return join_into([{name: take_rows(concatenate([read[name], fillers[name]]), order) for name in names}], out)


@dataclass(frozen=True, slots=True, eq=False)
class ToleratedSource(SameRows):
    """Rows of another source, with fill values in place of those that it refuses to decode."""

    source: CountedRows
    fillers: Mapping[str, Block]  # fill value of each column with refused values, as a block of one row
    refused: Mapping[str, NDArray[np.int64]]  # their numbers, ascending, among the rows of the source
    marks: Mapping[str, str]  # columns of whether values are valid, and the columns that they are about
    schema: Schema

    def __dask_tokenize__(self) -> object:
        return normalize_token(("dask_tfrecord.ToleratedSource", self.source, self.derivation))

    @property
    def derivation(self) -> object:
        """Refused values, their fill values, and the columns that mark them."""
        filling = {name: np.asarray(block).tolist() for name, block in self.fillers.items()}
        return filling, {name: each.tolist() for name, each in self.refused.items()}, dict(self.marks)

    def select(self, key: RowKey) -> ToleratedSource:
        """Return a source of the selected rows."""
        picks = pick_rows(range(self.nrows), key)
        refused = {name: _positions(each, picks) for name, each in self.refused.items()}
        return replace(self, source=self.source.select(key), refused=refused)

    def read(self, names: Sequence[str], key: RowKey, out: Arrays | None = None) -> dict[str, Block]:
        """Read rows; columns with refused values among them are read without those rows, and filled."""
        picks = pick_rows(range(self.nrows), key)
        refused = {name: _positions(each, picks) for name, each in self.refused.items()}
        # Columns with the same refused rows are read together.
        together: dict[tuple[int, ...], list[str]] = {}
        for name in names:
            if name not in self.marks:
                together.setdefault(tuple(refused[name].tolist()) if name in refused else (), []).append(name)
        blocks: dict[str, Block] = {}
        for lost, columns in together.items():
            if lost:
                blocks |= _read_filled(self.source, columns, row_numbers(picks), np.array(lost), self.fillers, out)
            else:
                blocks |= self.source.read(columns, key, out)
        for name in names:
            if name in self.marks:
                valid = np.ones(len(picks), bool)
                valid[refused.get(self.marks[name], np.zeros(0, np.int64))] = False
                blocks |= join_into([{name: valid}], out)
        return {name: blocks[name] for name in names}


def _positions(numbers: NDArray[np.int64], picks: RowNumbers) -> NDArray[np.int64]:
    """Return the positions of some ascending row numbers among picked rows."""
    if isinstance(picks, range) and picks.step > 0:
        first, past = np.searchsorted(numbers, [picks.start, picks.stop])
        inside = numbers[first:past] - picks.start
        positions: NDArray[np.int64] = inside[inside % picks.step == 0] // picks.step
        return positions
    return np.flatnonzero(np.isin(row_numbers(picks), numbers))


def fillers(
    decoder: Decoder,
    fill_values: Mapping[str, Any] | None,
    names: Iterable[str] | None = None,
    option: str = "errors='fill'",
) -> dict[str, Block]:
    """Return a block of one row per column: its fill value, else the default value of its feature, or no items.

    Parameters
    ----------
    decoder : Decoder
        Decoder of the columns.
    fill_values : mapping of str to value or None
        Values that the user gives, by column.
    names : iterable of str, optional
        Columns that are filled in records whose other columns are read; by default, whole records are filled.
    option : str
        Argument that needs the values, for errors.

    Raises
    ------
    SchemaError
        If the value of a column is missing, or does not fit it.
    """
    given = fill_values or {}
    for name in given:
        if name not in decoder.decoders:
            raise UnknownFeatureError(f"fill_values: no column {name!r}{near_misses(name, tuple(decoder.decoders))}")
    rows = {}
    for name in decoder.decoders if names is None else names:
        column = decoder.decoders[name]
        if name in given:
            rows[name] = _block_of_value(name, column.feature, given[name])
        elif names is not None and (column.scope != "value" or decoder.columns.group_of(name) is not None):
            # A row without items: the fields of a group keep one number of items in every record.
            rows[name] = _block_of_value(name, column.feature, [] if column.feature.ragged_rank else 0)
        elif decoder.schema.message_type is not None:
            try:
                rows[name] = rows_of_no_fields(decoder, name)
            except SchemaError as error:
                raise SchemaError(_no_value(name, option, str(error))) from error
        else:
            rows[name] = _block_of_value(name, column.feature, _default_of(name, column, option))
    return rows


def _no_value(name: str, option: str, reason: str) -> str:
    """Report a column without a fill value, and how to give one."""
    what = "lost records" if option.startswith("errors") else "what can't be decoded"
    return (
        f"column {name!r}: {option} needs a value for {what}, and {reason}; give fill_values={{{name!r}: ...}}, or "
        f"{option.partition('=')[0]}='skip'"
    )


def _default_of(name: str, column: ColumnDecoder, option: str) -> Any:
    """Return the default value of a column's feature; refuse a feature without one."""
    if column.scope == "item":
        return []  # defaults belong to items, which a lost record lacks
    value = getattr(column.parsed, "default_value", None)
    if value is None or name != column.source:
        raise SchemaError(_no_value(name, option, f"{column.parsed} has no default_value"))
    return value


def _block_of_value(name: str, feature: Feature, value: Any) -> Block:
    """Convert a value of a user to a block of one row; refuse one that does not fit the feature."""
    owner = f"fill_values: column {name!r}"
    if feature.ragged_rank or feature.own_shapes:
        return conform(feature, [value], owner)
    shape = (1, *feature.block_shape)
    try:
        if feature.block_dtype.kind in "OT":
            row = np.broadcast_to(np.asarray(value, object), shape)
        else:
            row = default_array(value, feature.block_dtype, shape)
            exact = np.asarray(value)
            if feature.block_dtype.kind in "iub" and (row != exact).any():
                raise SchemaError(f"{owner}: {value!r:.100} does not fit into {feature.block_dtype}")
    except (TypeError, ValueError, OverflowError) as error:
        if isinstance(error, SchemaError):
            raise
        raise SchemaError(f"{owner}: {value!r:.100} is not a value of {feature} ({error})") from error
    return conform(feature, row, owner)
