"""Items of ragged rows as rows of their own, and windows around them: `Dataset.explode` and `Dataset.windows`."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise, repeat
from typing import Any, Literal

import numpy as np
from dask.base import normalize_token
from numpy.typing import NDArray

from dask_tfrecord.blocks import (
    Arrays,
    Block,
    BytesBlock,
    RowError,
    allocating,
    block_nbytes,
    splits_of,
    take_rows,
    union,
    zero_rows,
)
from dask_tfrecord.columns.conversions import feature_of
from dask_tfrecord.columns.decoder import located_error
from dask_tfrecord.columns.items import MASK, RECORD, ItemColumns, LengthError, StepWindow
from dask_tfrecord.errors import (
    FeatureError,
    Location,
    MemoryLimitError,
    SchemaError,
    Spelled,
    UnknownFeatureError,
    near_misses,
)
from dask_tfrecord.features import Feature, FixedLenFeature
from dask_tfrecord.features.keys import Decoded
from dask_tfrecord.features.listed import is_padded
from dask_tfrecord.features.schema import Schema, lengths_column, prefix_groups
from dask_tfrecord.rows.calls import compute_with_progress
from dask_tfrecord.rows.collection import RowKey, RowNumbers, pick_rows, row_numbers
from dask_tfrecord.rows.memory import block_limit
from dask_tfrecord.rows.rows import Rows
from dask_tfrecord.rows.sources import CountedRows, DerivedRows, GrowingSpans, Outputs, RecordSource, join_into, parts
from dask_tfrecord.rows.steps import Place, Step
from dask_tfrecord.settings import limits

# Records between two cumulative counts.
_GROUP = 1024


@dataclass(frozen=True, slots=True, eq=False)
class ItemCounts:
    """Number of items of each record."""

    lengths: NDArray[Any]  # items of each record, in the smallest dtype
    starts: NDArray[np.int64]  # items before every 1024th record, and the number of items

    @classmethod
    def from_lengths(cls, lengths: NDArray[Any]) -> ItemCounts:
        """Count the items before some of the records."""
        sums = np.add.reduceat(lengths, np.arange(0, len(lengths), _GROUP), dtype=np.int64) if len(lengths) else lengths
        return cls(lengths, splits_of(sums))

    def splits(self, first: int, past: int) -> NDArray[np.int64]:
        """Return the items before the records `first` to `past`."""
        group = first // _GROUP
        before = int(self.starts[group]) + int(self.lengths[group * _GROUP : first].sum(dtype=np.int64))
        return before + splits_of(self.lengths[first:past])

    def before(self, records: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the items before some records."""
        return self.splits(0, len(self.lengths))[records]

    def records_of(self, start: int, stop: int) -> tuple[int, int]:
        """Find the first record in a range of items, and the end of its records."""
        first, last = self.locate(np.array([start, stop - 1]))[0].tolist()
        return first, last + 1

    def locate(self, items: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the record of each item, and the number of the item in its record."""
        low = int(np.searchsorted(self.starts, items.min(), side="right")) - 1
        high = int(np.searchsorted(self.starts, items.max(), side="right"))
        splits = self.splits(low * _GROUP, min(high * _GROUP, len(self.lengths)))
        # Records without items share their split with the next one.
        found = np.searchsorted(splits, items, side="right") - 1
        return found + low * _GROUP, items - splits[found]


@dataclass(frozen=True, slots=True, eq=False)
class Exploded(Step):
    """Items of all records of a block."""

    item_columns: ItemColumns

    keeps_rows = False

    @property
    def schema(self) -> Schema:
        """Schema of the columns of items."""
        return self.item_columns.schema

    @property
    def derivation(self) -> object:
        """Columns of items."""
        return self.item_columns, None

    def origin(self, origin: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the origin of the records, without their schema: items are other rows."""
        kept = {name: value for name, value in origin.items() if name != "schema"}
        return {**kept, **self.item_columns.origin}

    def needs(self, names: Sequence[str]) -> tuple[str, ...]:
        """Return the columns of records to read, among them one with the lengths."""
        return self.item_columns.needed(names, counted=False)

    def lengths(self, blocks: Mapping[str, Block], place: Place) -> NDArray[np.int64]:
        """Return the number of items in each record, which is the same for all columns of the group."""
        try:
            return self.item_columns.common_lengths(blocks, None)
        except LengthError as error:
            at = (
                f"{place.describe()}: row {error.row} of the chunk"
                if place.rows is None
                else f"row {place.rows[error.row]}"
            )
            raise FeatureError(f"{at}: feature {error.name!r} " + error.message) from None

    def count(self, blocks: Mapping[str, Block], place: Place) -> NDArray[np.int64]:
        """Count the rows that records are divided into, as an array of one number."""
        rows = self.item_columns.rows(self.lengths(blocks, place))
        return np.array([rows.stop if isinstance(rows, slice) else len(rows)])

    def apply(self, blocks: Mapping[str, Block], names: Sequence[str], place: Place) -> dict[str, Block]:
        """Divide records into items."""
        lengths = self.lengths(blocks, place)
        first = 0 if place.rows is None or not len(place.rows) else int(place.rows[0])
        return self.item_columns.items(names, blocks, lengths, self.item_columns.rows(lengths), first)


class _RecordReader:
    """Reader of consecutive items that decodes each record once, in one pass over the source of the records.

    An example of three records with 2, 3 and 1 items, read in spans of 4 items: the first span reads records 0 and 1,
    and keeps record 1, because one of its items is left. The second span takes that item and reads record 2.
    """

    def __init__(self, source: CountedRows, names: Sequence[str]) -> None:
        self._span = (0, 0)
        # A source takes a span when its rows are requested: the one that `read` has just set.
        self._blocks = source.read_spans(names, self._spans()) if names else repeat(dict[str, Block]())
        # The last record if some of its items are left, or -1.
        self.kept_record = -1
        self.kept_blocks: Mapping[str, Block] = {}

    def _spans(self) -> Iterator[tuple[int, int]]:
        while True:
            yield self._span

    def read(self, start: int, stop: int) -> dict[str, Block]:
        """Read the records `start` to `stop`."""
        self._span = start, stop
        return next(self._blocks)


@dataclass(frozen=True, slots=True, eq=False)
class ExplodedSource(DerivedRows):
    """Items of the rows of another source.

    Counted items are more than a step, because any of them is read by its number, from its record alone.

    An example of three records with 2, 0 and 3 items: items 1 to 3 are the last one of record 0 and the first one of
    record 2, so these two records are decoded.
    """

    source: CountedRows
    item_columns: ItemColumns
    counts: ItemCounts  # items of each row of `source`
    rows: RowNumbers  # numbers of the items that are rows of this source, among all items of `source`
    sized: CountedRows | None = None  # source of the same records that is read where sizes are enough, if any

    def __dask_tokenize__(self) -> object:
        # Counts follow from the records.
        return normalize_token(("dask_tfrecord.ExplodedSource", self.source, self.item_columns, self.rows, self.sized))

    @property
    def schema(self) -> Schema:
        """Schema of the columns of items."""
        return self.item_columns.schema

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns of records that are read."""
        return tuple(self.item_columns.records)

    @property
    def origin(self) -> Mapping[str, Any]:
        """Origin of the items."""
        return Exploded(self.item_columns).origin(self.source.origin)

    @property
    def derivation(self) -> object:
        """Columns of items, and the items that are rows."""
        return self.item_columns, self.rows

    @property
    def most_items(self) -> int:
        """Most items of a record, which are all decoded to read one; 0 for images, which are held as bytes."""
        return 0 if self.item_columns.encoded else int(self.counts.lengths.max(initial=0))

    def measure(self) -> ExplodedSource:
        """Return a source of the same items; values are zeros where all columns that are read vary in size."""
        return replace(self, sized=self.source.measure())

    @property
    def images(self) -> Mapping[str, Any]:
        """Images of the items, without windows of images."""
        item_columns = self.item_columns
        names = [
            name for name in item_columns.encoded if item_columns.window is None or name in item_columns.unwindowed
        ]
        return {name: each for name in names if (each := item_columns.item_schema[name]).is_image}

    def encoded(self, names: Sequence[str]) -> ExplodedSource:
        """Return a source that reads the bytes of images."""
        return replace(self, item_columns=self.item_columns.undecoded(names))

    def with_memory_limit(self, nbytes: int) -> ExplodedSource:
        """Limit the blocks of records."""
        sized = None if self.sized is None else self.sized.with_memory_limit(nbytes)
        return replace(self, source=self.source.with_memory_limit(nbytes), sized=sized)

    def _source_of(self, names: Sequence[str]) -> CountedRows:
        """Return the source of the records to read: dense items need the values of ragged rows."""
        return self.source if self.sized is None or self.item_columns.needs_values(names) else self.sized

    def describe(self, key: RowKey) -> str:
        """Return the files and records of items as text, for errors."""
        items = row_numbers(pick_rows(self.rows, key))
        return self.source.describe(union(self.counts.locate(items)[0]) if items.size else slice(0))

    def locate(self, row: int, feature: str, start: int = 0) -> Location:
        """Return the location of the record of an item."""
        record = int(self.counts.locate(np.array([self.rows[start + row]]))[0][0])
        return self.source.locate(record, feature)

    def cost(self, spans: NDArray[np.int64]) -> NDArray[np.float64] | None:
        """Return the stored bytes of the records that hold ranges of items."""
        records = np.zeros_like(spans)
        for number, (start, stop) in enumerate(spans.tolist()):
            items = row_numbers(self.rows[start:stop])
            if items.size:
                records[number] = self.counts.records_of(int(items.min()), int(items.max()) + 1)
        return self.source.cost(records)

    def refine(self, borders: NDArray[np.int64], nbytes: int) -> NDArray[np.int64]:
        """Add the source's borders to the borders between records."""
        rows, counts = self.rows, self.counts
        if not (isinstance(rows, range) and rows.step == 1) or not len(rows):
            return borders
        first, past = counts.records_of(rows.start, rows.stop)
        records = self.source.refine(np.array([first, past]), nbytes)
        before = counts.splits(first, past)[records - first] - rows.start
        return union(borders, before[(before > borders[0]) & (before < borders[-1])])

    def read(self, names: Sequence[str], key: RowKey, out: Arrays | None = None) -> dict[str, Block]:
        """Read items; only the records that hold them are decoded."""
        counts = self.counts
        items = pick_rows(self.rows, key)
        if not len(items):
            return join_into([{name: zero_rows(self.schema[name]) for name in names}], out)
        needed = self.item_columns.needed(names, counted=True)
        if isinstance(items, range) and items.step == 1:
            first, past = counts.records_of(items.start, items.stop)
            splits, records = counts.splits(first, past), slice(first, past)
            picked = slice(items.start - int(splits[0]), items.stop - int(splits[0]))
            # The values of whole records are decoded to their places.
            whole = picked == slice(0, int(splits[-1] - splits[0]))
            offered = self.item_columns.flat_outputs(out or {}) if whole else {}
            lengths = np.diff(splits)
            blocks = self._source_of(names).read(needed, records, offered) if needed else {}
            self._checked_lengths(blocks, lengths, records)
            return join_into([self._divide_records(names, blocks, lengths, picked, first, out)], out)
        numbers, within = counts.locate(row_numbers(items))
        # A record with several of the items is decoded once.
        ascending, order = np.unique(numbers, return_inverse=True)
        lengths = counts.lengths[ascending].astype(np.int64)
        blocks = self._source_of(names).read(needed, ascending) if needed else {}
        self._checked_lengths(blocks, lengths, ascending)
        positions = splits_of(lengths)[order] + within
        return join_into([self._divide_records(names, blocks, lengths, positions, ascending, out)], out)

    def read_spans(
        self, names: Sequence[str], spans: Iterable[tuple[int, int]], out: Outputs | None = None
    ) -> Iterator[dict[str, Block]]:
        """Yield the items of each span; a record that consecutive spans divide is decoded once."""
        rows = self.rows
        if not (isinstance(rows, range) and rows.step == 1):
            yield from (self.read(names, key, into) for key, into in parts(spans, out))
            return
        needed = self.item_columns.needed(names, counted=True)
        reader = _RecordReader(self._source_of(names), needed)
        for key, into in parts(spans, out):
            if key.start == key.stop:
                yield join_into([{name: zero_rows(self.schema[name]) for name in names}], into)
            else:
                yield join_into(self._read_span(names, rows.start + key.start, rows.start + key.stop, reader), into)

    def _read_span(self, names: Sequence[str], start: int, stop: int, reader: _RecordReader) -> list[dict[str, Block]]:
        """Return a range of items in one or two parts; the reader keeps the last record if more of its items follow."""
        first, past = self.counts.records_of(start, stop)
        between = first + (first == reader.kept_record)
        made: list[dict[str, Block]] = []
        for begin, end in ((first, between), (between, past)):
            if begin == end:
                continue
            splits = self.counts.splits(begin, end)
            lengths = np.diff(splits)
            if begin == reader.kept_record:
                blocks = reader.kept_blocks
            else:
                blocks = reader.read(begin, end)
                self._checked_lengths(blocks, lengths, slice(begin, end))
            picked = slice(max(start - int(splits[0]), 0), int(min(stop, splits[-1]) - splits[0]))
            made.append(self._divide_records(names, blocks, lengths, picked, begin))
        if stop == splits[-1]:
            reader.kept_record, reader.kept_blocks = -1, {}
            return made
        if end - begin > 1:
            blocks = {name: take_rows(block, np.array([len(block) - 1])) for name, block in blocks.items()}
        reader.kept_record, reader.kept_blocks = past - 1, blocks
        return made

    def _divide_records(
        self,
        names: Sequence[str],
        blocks: Mapping[str, Block],
        lengths: NDArray[np.int64],
        picked: slice | NDArray[np.int64],
        first_record: int | NDArray[np.int64],
        out: Arrays | None = None,
    ) -> dict[str, Block]:
        """Divide records into items, and decode images of items that are read as bytes."""
        decode = partial(self._decode_images, out or {}, lengths, first_record)
        return self.item_columns.items(names, blocks, lengths, picked, first_record, decode)

    def _decode_images(
        self,
        out: Arrays,
        lengths: NDArray[np.int64],
        first_record: int | NDArray[np.int64],
        name: str,
        files: Block,
        picked: slice | NDArray[np.int64],
    ) -> Block:
        """Decode the images of picked items; an error names the record of the image."""
        feature = self.item_columns.item_schema[name]
        assert isinstance(files, BytesBlock)
        assert isinstance(self.source, RecordSource)
        limit = block_limit(self.source.most_nbytes)
        # Windows of images have more axes.
        array = out.get(name)
        into = array if array is not None and array.shape == (len(files), *feature.item_shape) else None
        try:
            if limit is not None:
                limit.check_rows(len(files), feature)
            with allocating(name, feature):
                return feature.assemble(Decoded.of(files)._replace(out=into))
        except RowError as error:
            record = int(np.repeat(np.arange(len(lengths)), lengths)[picked][error.row])
            number = first_record + record if isinstance(first_record, int) else int(first_record[record])
            raise located_error(error, self.source.locate(number, name)) from None

    def _checked_lengths(
        self, blocks: Mapping[str, Block], expected: NDArray[np.int64] | None, key: RowKey
    ) -> NDArray[np.int64]:
        """Check the row lengths of blocks of the source's rows `key`, and return them."""
        try:
            return self.item_columns.common_lengths(blocks, expected)
        except LengthError as error:
            raise length_error(error, self.source, key) from None


def length_error(error: LengthError, source: CountedRows, key: RowKey) -> FeatureError | MemoryLimitError:
    """Return the public error of a row of a source whose columns differ in length, with its record."""
    row = int(row_numbers(pick_rows(range(source.nrows), key))[error.row])
    return located_error(error, source.locate(row, error.name), kind=FeatureError)


def read_lengths(source: CountedRows, item_columns: ItemColumns, start: int, stop: int) -> NDArray[Any]:
    """Return the items of the rows `start` to `stop` of a source, in the smallest dtype."""
    names = source.without_equal_lengths(tuple(dict.fromkeys(map(item_columns.lengths_of, item_columns.group))))
    counted: list[NDArray[np.int64]] = [np.zeros(0, np.int64)]
    spans = GrowingSpans(start, stop, limits().probe_rows, limits().read_nbytes)
    for blocks in source.measure().read_spans(names, spans):
        try:
            counted.append(item_columns.common_lengths(blocks, None))
        except LengthError as error:
            raise length_error(error, source, slice(*spans.span)) from None
        # Sources that do not count without decoding hold the values of these rows.
        spans.adapt(sum(map(block_nbytes, blocks.values())))
    lengths = np.concatenate(counted)
    return lengths.astype(np.min_scalar_type(lengths.max(initial=0)))


def explode_rows(
    rows: Rows,
    group: str | Sequence[str],
    repeat: str | Sequence[str],
    window: StepWindow | None = None,
    number: str | None = None,
    unwindowed: str | Sequence[str] = (),
) -> Rows:
    """Divide rows into items, or windows around them; see `Dataset.explode`."""
    schema, backend, rows = rows.schema, rows.backend, rows.merged()
    single = _group_columns(schema, unwindowed) if unwindowed else ()
    names = _group_columns(schema, group)
    if both := [name for name in single if name in names]:
        raise SchemaError(f"windows: column {both[0]!r} is in group and in items; give it once")
    item_columns = _columns_of_items(schema, (*names, *single), repeat, number, counted=rows.borders is not None)
    if window is not None:
        item_columns = _with_window(replace(item_columns, unwindowed=single), window)
    source, step = rows.source, Exploded(item_columns)
    if isinstance(source, CountedRows):
        items = _explode_counted(rows, source, item_columns)
    elif rows.borders is None:
        items = rows.apply(step)
    else:
        items = rows.apply(step, _count_chunks(rows, step))
    return replace(items, backend=backend)


def _columns_below(schema: Schema, prefix: str) -> tuple[str, ...]:
    """Return the ragged columns whose names begin with a prefix, or are the prefix."""
    return tuple(
        name
        for name, feature in schema.items()
        if (name == prefix or name.startswith((f"{prefix}/", f"{prefix}."))) and _is_divisible(schema, name)
    )


def _is_divisible(schema: Schema, name: str) -> bool:
    if is_padded(schema[name]) and lengths_column(name, schema) is None:
        return False
    return schema[name].item() is not None


def _columns_of_items(
    schema: Schema, names: tuple[str, ...], repeat: str | Sequence[str], number: str | None, *, counted: bool
) -> ItemColumns:
    """Check the arguments of `explode`, whose group has the columns `names`."""
    repeated = _checked_item_names(schema, [repeat] if isinstance(repeat, str) else repeat, "repeat")
    if both := [name for name in repeated if name in names]:
        raise SchemaError(f"explode: column {both[0]!r} is in group and in repeat; give it once")
    features = {name: schema[name].item() for name in names} | {name: schema[name] for name in repeated}
    if RECORD in features:
        raise SchemaError(
            f"explode: column {RECORD!r} would be replaced by the numbers of the records; "
            f"map_blocks returns it under another name"
        )
    if counted:
        features[RECORD] = FixedLenFeature((), "int64")
    if number is not None:
        if number in features or number == RECORD:
            raise SchemaError(f"explode: number={number!r} is the name of another column; give a new name")
        features[number] = FixedLenFeature((), "int64")
    padded = [name for name in names if is_padded(schema[name])]
    lengths = [found for name in padded if (found := lengths_column(name, schema)) is not None]
    needed = dict.fromkeys([*names, *lengths, *repeated])
    classes = {name: schema.classes[name] for name in features if name in schema.classes}
    groups, inner_groups = schema.groups_of(repeated), dict[str, tuple[str, ...]]()
    for name in (*names, *repeated):
        inner = schema.inner_groups.get(name, ())
        if inner and name in names:
            groups[inner[0]] = (*groups.get(inner[0], ()), name)
            inner = inner[1:]
        if inner:
            inner_groups[name] = inner
    items = Schema(features, classes=classes, groups=groups, inner_groups=inner_groups)
    return ItemColumns(names, repeated, schema.select(needed), items, items, number=number)


def _with_window(item_columns: ItemColumns, window: StepWindow) -> ItemColumns:
    """Return the columns of rows that are windows around the items."""
    items = item_columns.item_schema
    features: dict[str, Feature] = dict(items)
    # The positions of no windows: what `around` makes of them has the dtypes and shapes of windows.
    none = np.zeros((0, 1 + window.past + window.future), np.int64)
    no_mask = np.zeros(none.shape, bool)
    for name in item_columns.group:
        if name in item_columns.unwindowed:
            continue
        features[name] = feature_of(window.around(zero_rows(items[name]), none, no_mask), f"windows: column {name!r}")
    if window.pad != "drop":
        if MASK in features:
            raise SchemaError(
                f"windows: column {MASK!r} would be replaced by the mask of the padding; map_blocks returns it under "
                f"another name"
            )
        features[MASK] = feature_of(no_mask, f"windows: column {MASK!r}")
    return replace(item_columns, schema=Schema(features, groups=items.groups_of(item_columns.repeated)), window=window)


def step_window(past: int, future: int, stride: int, pad: Literal["edge", "zero", "drop"]) -> StepWindow:
    """Check the arguments of `Dataset.windows`."""
    for name, value, least in (("past", past, 0), ("future", future, 0), ("stride", stride, 1)):
        if operator.index(value) < least:
            raise ValueError(f"windows: {name} must be an int from {least} on; got {value!r}")
    if pad not in ("edge", "zero", "drop"):
        raise ValueError(f"windows: pad must be 'edge', 'zero' or 'drop'; got {pad!r:.100}")
    return StepWindow(operator.index(past), operator.index(future), operator.index(stride), pad)


def _group_columns(schema: Schema, group: str | Sequence[str]) -> tuple[str, ...]:
    """Return the columns of a group; all are divisible into items."""
    if isinstance(group, str):
        names = schema.groups.get(group) or _columns_below(schema, group)
        if names:
            return names
        dense = [name for name in schema if name == group or name.startswith(f"{group}/")]
        if not dense:
            prefixes = dict.fromkeys(
                [*schema.groups, *prefix_groups(schema), *(name for name in schema if _is_divisible(schema, name))]
            )
            raise UnknownFeatureError(f"explode: no group or column {group!r}{near_misses(group, prefixes)}")
        raise SchemaError(_dense_message(schema, dense[0]))
    names = _checked_item_names(schema, group, "group")
    if not names:
        raise SchemaError("explode: group needs at least one column")
    for name in names:
        if not _is_divisible(schema, name):
            raise SchemaError(_dense_message(schema, name))
    return names


def _dense_message(schema: Schema, name: str) -> str:
    """Explain why a column lacks items, and how to read or repeat it."""
    feature = schema[name]
    if is_padded(feature):
        lengths = f"{name}.lengths"
        held = f"{lengths!r} is {schema[lengths]}, not" if lengths in schema else f"there is no column {lengths!r} of"
        return (
            f"explode: column {name!r} is padded, and {held} one integer per row, which tells items from padding; read "
            f"it as {feature.unpadded()}"
        )
    return (
        f"explode: column {name!r} is {feature}: its rows do not vary in length, so they have no items; "
        + Spelled("repeat=", "--repeat")
        + " repeats it for each item"
    )


def _checked_item_names(schema: Schema, given: Any, argument: str) -> tuple[str, ...]:
    """Return names of columns; refuse those that do not exist or are given twice."""
    if not isinstance(given, Sequence) or not all(isinstance(name, str) for name in given):
        raise TypeError(f"explode: {argument} must be a name or a list of names of columns; got {given!r:.100}")
    for name in given:
        if name not in schema:
            raise UnknownFeatureError(f"explode: {argument}: no column {name!r}{near_misses(name, schema)}")
    if len(set(given)) < len(given):
        raise SchemaError(f"explode: each column can be given only once; got {argument}={list(given)}")
    return tuple(given)


def _explode_counted(rows: Rows, source: CountedRows, item_columns: ItemColumns) -> Rows:
    """Count the items of all records, so that each can be read by its number."""
    assert rows.borders is not None
    # Images of records are read as bytes if possible: a few items then cost a few images, not all of their records.
    # Counting needs the headers of images that differ in size, so their pixels are decoded with the records.
    if names := tuple(name for name in item_columns.group if name in source.images):
        source = source.encoded(names)
        records = source.schema.select(item_columns.records)
        item_columns = replace(item_columns, records=records, encoded=names)
    calls = [partial(read_lengths, start=start, stop=stop) for start, stop in pairwise(rows.borders.tolist())]
    lengths = compute_with_progress(calls, "Counting items", source, item_columns)
    counts = ItemCounts.from_lengths(np.concatenate(lengths))
    items = ExplodedSource(source, item_columns, counts, range(int(counts.starts[-1])))
    borders = counts.before(rows.borders)
    kept = item_columns.rows(counts.lengths.astype(np.int64))
    if isinstance(kept, slice):
        return Rows.of_source(items, borders)
    return Rows.of_source(items.select(kept), np.searchsorted(kept, borders))


def _count_chunks(rows: Rows, step: Exploded) -> tuple[float, ...]:
    """Count the rows that chunks that exist will have."""
    names, each = step.needs(tuple(step.schema)), (1,) * rows.nchunks
    return tuple(rows.compute_by_chunk(step.count, "Counting items", names, each, np.int64).tolist())
