"""Survey records: how often each feature is present, its kinds and value counts, and what its bytes are.

A `Survey` adds one record after the other in bounded memory. Workers survey parts of a collection independently, and
the surveys are merged in order; `report.py` turns the result into a `Report`. Records are parsed by the protobuf
library, so that inference is independent of the column decoder.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dask_tfrecord.errors import FeatureError, Location
from dask_tfrecord.features.inference.payload_type import (
    MESSAGES,
    BytesContent,
    ForeignContent,
    detect_foreign,
    detect_image,
    detect_payload_type,
    detect_tensor,
    is_probably_text,
    parse_example_list,
    parse_record,
    payload_error,
)
from dask_tfrecord.features.inference.wire import WireField, wire_fields
from dask_tfrecord.messages import ExampleListWithContext, Feature

# Limit of the distinct numbers.
_MAX_NUMBERS = 64


@dataclass(slots=True)
class Histogram:
    """Frequencies of numbers: exact for up to 64 distinct numbers, then by powers of two."""

    # Frequency by number; None after the 65th distinct number.
    exact: dict[int, int] | None = field(default_factory=dict)
    # Frequency by bit length after that: key 3 counts the numbers 4 to 7.
    ranges: dict[int, int] = field(default_factory=dict)
    low: int = 0  # minimum of the numbers in `ranges`
    high: int = 0  # maximum of them
    divisor: int = 0  # greatest common divisor of them

    def add(self, number: int, times: int = 1) -> None:
        """Count a number `times` times."""
        exact = self.exact
        if exact is None:
            self._add_to_ranges(number, times)
        elif number in exact:
            exact[number] += times
        else:
            exact[number] = times
            if len(exact) > _MAX_NUMBERS:
                self._switch_to_ranges()

    def merge(self, other: Histogram) -> None:
        """Add the frequencies of another histogram."""
        if other.exact is not None:
            for number, times in other.exact.items():
                self.add(number, times)
            return
        if self.exact == {}:
            self.low = other.low
        if self.exact is not None:
            self._switch_to_ranges()
        for bits, times in other.ranges.items():
            self.ranges[bits] = self.ranges.get(bits, 0) + times
        self._widen(other.low, other.high, other.divisor)

    def extent(self) -> tuple[int, int]:
        """Return the minimum and the maximum."""
        return (min(self.exact), max(self.exact)) if self.exact else (self.low, self.high)

    def common_divisor(self) -> int:
        """Return the greatest common divisor, or 1 if fewer than three distinct non-zero numbers were counted."""
        if self.exact is None:
            return self.divisor
        return math.gcd(*self.exact) if len(self.exact.keys() - {0}) >= 3 else 1

    def bins(self) -> tuple[tuple[int, int, int], ...]:
        """Return (first number, last number, frequency) of each bin in ascending order."""
        if self.exact is not None:
            return tuple((number, number, times) for number, times in sorted(self.exact.items()))
        return tuple((1 << bits >> 1, (1 << bits) - 1, times) for bits, times in sorted(self.ranges.items()))

    def _switch_to_ranges(self) -> None:
        """Count ranges from now on, since there are too many distinct numbers."""
        exact, self.exact = self.exact or {}, None
        if exact:
            self.low = self.high = next(iter(exact))
        for number, times in exact.items():
            self._add_to_ranges(number, times)

    def _add_to_ranges(self, number: int, times: int) -> None:
        bits = number.bit_length()
        self.ranges[bits] = self.ranges.get(bits, 0) + times
        self._widen(number, number, number)

    def _widen(self, low: int, high: int, divisor: int) -> None:
        self.low, self.high = min(self.low, low), max(self.high, high)
        self.divisor = math.gcd(self.divisor, divisor)


_KINDS = {"bytes_list": "bytes", "float_list": "float32", "int64_list": "int64"}
_BITS = {0, 1}
# Limit of the shards that are listed by name.
_MAX_SHARDS = 10


@dataclass(slots=True)
class KindCounts:
    """Number and location of the records in which a feature has one kind."""

    first: Location  # first record
    records: int = 0
    shards: dict[str, int] = field(default_factory=dict)  # records by shard, for the first ten shards
    more: int = 0  # shards after the first ten
    last: str = ""  # last shard that was counted

    def add(self, file: str, records: int = 1) -> None:
        """Count records of a shard. Each shard's records are consecutive."""
        self.records += records
        if file in self.shards:
            self.shards[file] += records
        elif len(self.shards) < _MAX_SHARDS:
            self.shards[file] = records
        elif file != self.last:
            self.more += 1
        self.last = file

    def merge(self, other: KindCounts) -> None:
        """Add the counts of the part of the collection that follows."""
        records, last = self.records + other.records, other.last
        for file, count in other.shards.items():
            self.add(file, count)
        self.records, self.more, self.last = records, self.more + other.more, last


@dataclass(slots=True)
class BytesSummary:
    """Properties that all bytes values of a feature share."""

    values: int = 0
    low: int = 0  # bytes of the shortest value
    high: int = 0  # bytes of the longest value
    text: bool = True  # all values are UTF-8 text
    # Content that all values share; None before the first value, False if they share none.
    image: BytesContent | bool | None = None
    tensor: BytesContent | bool | None = None
    foreign: ForeignContent | bool | None = None  # format that needs another library

    def add(self, values: Iterable[bytes]) -> None:
        """Add values. A content type that one value has ruled out is not tested again."""
        for value in values:
            size = len(value)
            if not self.values:
                self.low = self.high = size
            elif size < self.low:
                self.low = size
            elif size > self.high:
                self.high = size
            self.values += 1
            if self.text:
                self.text = is_probably_text(value)
            if self.image is not False:
                self.image = _common_content(self.image, detect_image(value) or False)
            if self.tensor is not False:
                self.tensor = _common_content(self.tensor, detect_tensor(value) or False)
            if self.foreign is not False:
                self.foreign = _common_content(self.foreign, detect_foreign(value) or False)

    def merge(self, other: BytesSummary) -> None:
        """Restrict to the properties that hold for both."""
        if not other.values:
            return
        self.low = min(self.low, other.low) if self.values else other.low
        self.high = max(self.high, other.high)
        self.values += other.values
        self.text = self.text and other.text
        self.image = _common_content(self.image, other.image)
        self.tensor = _common_content(self.tensor, other.tensor)
        self.foreign = _common_content(self.foreign, other.foreign)


def _common_content(known: Any, found: Any) -> Any:
    """Return the content or format of both operands, where None means no values yet and False that they share none."""
    if known is None or found is None:
        return found if known is None else known
    is_shared = type(known) is type(found) and not isinstance(known, bool)
    return (is_shared and known.common(found)) or False


def merge_each(mine: dict[Any, Any], theirs: Mapping[Any, Any]) -> None:
    """Merge counts by name."""
    for name, counts in theirs.items():
        if name in mine:
            mine[name].merge(counts)
        else:
            mine[name] = counts


@dataclass(slots=True)
class FeatureCounts:
    """Counts of one feature or feature list."""

    present: int = 0  # records with the key and a kind; of a feature list, records with the key
    unset: int = 0  # records that have the key without a kind; of a feature list, steps without a kind
    kinds: dict[str, KindCounts] = field(default_factory=dict)  # records by kind
    mixed: int = 0  # records whose feature list has steps of several kinds
    value_counts: Histogram = field(default_factory=Histogram)  # values per record, or per step
    steps: Histogram = field(default_factory=Histogram)  # steps of a feature list
    bytes_summary: BytesSummary = field(default_factory=BytesSummary)
    # Distinct int64 values, as long as all are 0 or 1, and the values of the first record with others.
    integers: set[int] = field(default_factory=set)
    filled: set[str] = field(default_factory=set)  # kinds of lists with values
    # All lists are the three tensors that tf.io.serialize_sparse writes; None before the first list.
    sparse_tensors: bool | None = None

    def add(self, feature: Feature, location: Location) -> None:
        """Count a feature of one record."""
        kind = self._add_values(feature)
        if kind is None:
            self.unset += 1
            return
        self.present += 1
        self._add_kind(kind, location)

    def add_list(self, steps: Iterable[Feature], location: Location) -> None:
        """Count a feature list of one record."""
        self.present += 1
        kinds = [self._add_values(step) for step in steps]
        self.steps.add(len(kinds))
        self.unset += kinds.count(None)
        distinct = dict.fromkeys(kind for kind in kinds if kind is not None)
        self.mixed += len(distinct) > 1
        for kind in distinct:
            self._add_kind(kind, location)

    def _add_values(self, feature: Feature) -> str | None:
        """Count the values of a feature of an Example, and return the name of its list."""
        name = feature.WhichOneof("kind")
        if name is None:
            return None
        values = getattr(feature, name).value
        self.value_counts.add(len(values))
        if values:
            self.filled.add(_KINDS[name])
        if name == "bytes_list":
            self.bytes_summary.add(values)
            if self.sparse_tensors is not False:
                self.sparse_tensors = _is_sparse_tensor(values)
        elif name == "int64_list" and self.integers <= _BITS:
            self.integers.update(values)
        return _KINDS[name]

    def _add_kind(self, kind: str, location: Location) -> None:
        counts = self.kinds.get(kind)
        if counts is None:
            counts = self.kinds[kind] = KindCounts(location)
        counts.add(location.file)

    def kinds_of_values(self) -> dict[str, KindCounts]:
        """Return the kinds that hold values, or, if all lists are empty, the most frequent one."""
        chosen = self.filled or set(sorted(self.kinds, key=lambda kind: -self.kinds[kind].records)[:1])
        return {kind: counts for kind, counts in self.kinds.items() if kind in chosen}

    def merge(self, other: FeatureCounts) -> None:
        """Add the counts of the part of the collection that follows."""
        self.present += other.present
        self.unset += other.unset
        self.mixed += other.mixed
        merge_each(self.kinds, other.kinds)
        self.filled |= other.filled
        self.value_counts.merge(other.value_counts)
        self.steps.merge(other.steps)
        self.bytes_summary.merge(other.bytes_summary)
        known = {self.sparse_tensors, other.sparse_tensors} - {None}
        self.sparse_tensors = known == {True} if known else None
        if self.integers <= _BITS:
            self.integers |= other.integers


def _is_sparse_tensor(values: Sequence[bytes]) -> bool:
    """Return whether values are indices, values and shape of a sparse tensor."""
    found = [detect_tensor(value) for value in values] if len(values) == 3 else [None]
    if None in found:
        return False
    indices, _, shape = (each for each in found if each is not None)
    is_like = indices.dtype == shape.dtype == "int64" and len(indices.shape) == 2 and len(shape.shape) == 1
    return is_like and indices.shape[1] == shape.shape[0]


# Limits of the fields of a message that are counted, and of the paths.
_MAX_FIELDS = 1_000
_MAX_PATHS = 1_000


@dataclass(slots=True)
class PathCounts:
    """Counts of the fields of one path and wire type, in messages without a descriptor."""

    records: int = 0  # with the field
    values: int = 0  # number of fields
    low: int = 0  # smallest number of fields in a record that has one
    high: int = 0  # largest number of them
    fits: Counter[str] = field(default_factory=Counter)  # fields that each type fits
    likely: Counter[str] = field(default_factory=Counter)  # fields for which each type is the likeliest
    example: dict[str, str] = field(default_factory=dict)  # a value as text, by type

    def add(self, fields: Sequence[WireField]) -> None:
        """Count the fields of one record."""
        self._add_record(1, len(fields), len(fields))
        self.values += len(fields)
        for each in fields:
            self.fits.update(candidate.type for candidate in each.candidates)
            # An empty value has every type.
            if each.length > 2 or not each.wire_type.startswith("length"):
                self.likely[each.candidates[0].type] += 1
                self.example = self.example or dict(each.candidates)

    def merge(self, other: PathCounts) -> None:
        """Add the counts of other records."""
        self._add_record(other.records, other.low, other.high)
        self.values += other.values
        self.fits += other.fits
        self.likely += other.likely
        self.example = self.example or other.example

    def _add_record(self, records: int, low: int, high: int) -> None:
        self.low = min(self.low, low) if self.records else low
        self.high = max(self.high, high)
        self.records += records

    def types(self) -> tuple[str, ...]:
        """Return the types that fit all fields, the likeliest first."""
        fitting = [name for name, number in self.fits.items() if number == self.values]
        return tuple(sorted(fitting, key=lambda name: -self.likely[name]))


@dataclass(slots=True)
class Survey:
    """Counts over the records of a collection, or of a part."""

    records: int = 0
    sequences: int = 0  # records with feature lists, which are SequenceExamples for certain
    item_count: int = 0  # counting items of records that may be another message
    first_list: Location | None = None  # first ExampleListWithContext
    first_other: Location | None = None  # first record that is another message; messages without features are neither
    shards: dict[str, int] = field(default_factory=dict)  # records by shard
    context: dict[str, FeatureCounts] = field(default_factory=dict)  # features of Examples, or of contexts
    lists: dict[str, FeatureCounts] = field(default_factory=dict)  # feature lists of SequenceExamples
    items: dict[str, FeatureCounts] = field(default_factory=dict)  # features of the items of ExampleListWithContexts
    # Fields of protobuf messages of other types, by path and wire type.
    paths: dict[tuple[str, str], PathCounts] = field(default_factory=dict)
    # Keys of the sizes of an array and bytes of an item, that fit the bytes of a key in all records.
    sizes: dict[str, set[tuple[tuple[str, ...], int]]] = field(default_factory=dict)
    partial: int = 0  # messages with more fields than are counted
    other_type: str = ""  # payload type of the first message of another type
    refusal: FeatureError | None = None  # error of readers of Examples for it

    def add(self, location: Location, payload: bytes) -> None:
        """Count a record.

        Raises FeatureError if it is not a protobuf message, or the records are of several message types.
        """
        record = parse_record(payload)
        examples = parse_example_list(payload) if self.first_list is not None or record is None else None
        if examples is not None:
            self._add_list(examples, location)
        elif record is None:
            self._add_message(payload, location)
        else:
            _add_each(self.context, record.context.feature, FeatureCounts.add, location)
            self._add_sizes(record.context.feature)
            if record.context.feature or record.feature_lists.feature_list:
                self.first_other = self.first_other or location
            elif (unclear := parse_example_list(payload)) is not None:
                self.item_count += len(unclear.examples)
            if record.HasField("feature_lists"):
                self.sequences += 1
                lists = {name: steps.feature for name, steps in record.feature_lists.feature_list.items()}
                _add_each(self.lists, lists, FeatureCounts.add_list, location)
        self._check_messages()
        self.records += 1
        self.shards[location.file] = self.shards.get(location.file, 0) + 1

    def _add_sizes(self, features: Mapping[str, Feature]) -> None:
        """Keep size keys whose product counts the items in another key's bytes, in every record."""
        numbers = {
            key: feature.int64_list.value[0]
            for key, feature in features.items()
            if _SIZE_NAME.search(key) and len(feature.int64_list.value) == 1
        }
        if len(numbers) < 2:
            return
        for key, feature in features.items():
            if len(feature.bytes_list.value) != 1 or self.sizes.get(key) == set():
                continue
            fits = set(_fitting_sizes(len(feature.bytes_list.value[0]), numbers))
            self.sizes[key] = fits if key not in self.sizes else self.sizes[key] & fits

    def _add_list(self, record: ExampleListWithContext, location: Location) -> None:
        """Count the features of a list of Examples: of the context, and of all items together."""
        self.first_list = self.first_list or location
        self.item_count += len(record.examples)
        _add_each(self.context, record.context.features.feature, FeatureCounts.add, location)
        items: dict[str, list[Feature]] = {}
        for example in record.examples:
            for key, feature in example.features.feature.items():
                items.setdefault(key, []).append(feature)
        _add_each(self.items, items, FeatureCounts.add_list, location)

    def _add_message(self, payload: bytes, location: Location) -> None:
        """Count the fields of a message of another kind, by their numbers."""
        payload_type = detect_payload_type(payload)
        message = wire_fields(payload, _MAX_FIELDS) if payload_type in MESSAGES else None
        if message is None:
            raise payload_error(payload, location)
        if self.refusal is None:
            self.refusal, self.other_type = payload_error(payload, location), payload_type
        self.partial += not message.complete
        fields: dict[tuple[str, str], list[WireField]] = {}
        for each in message.descendants():
            fields.setdefault((each.path, each.wire_type), []).append(each)
        for path, found in fields.items():
            if path in self.paths or len(self.paths) < _MAX_PATHS:
                self.paths.setdefault(path, PathCounts()).add(found)

    def _check_messages(self) -> None:
        """Refuse records of several types."""
        if self.refusal is not None and (self.first_list or self.first_other) is not None:
            raise self.refusal
        if self.first_list is not None and self.first_other is not None:
            raise FeatureError(
                f"this record is an ExampleListWithContext, and another message is at {self.first_other}: read the "
                f"shards of one message",
                self.first_list,
            )

    def merge(self, other: Survey) -> None:
        """Add the survey of the part of the collection that follows. The other survey must not be used afterwards."""
        self.records += other.records
        self.sequences += other.sequences
        self.item_count += other.item_count
        self.first_list = self.first_list or other.first_list
        self.first_other = self.first_other or other.first_other
        if self.refusal is None:
            self.refusal, self.other_type = other.refusal, other.other_type
        self.partial += other.partial
        self._check_messages()
        for file, records in other.shards.items():
            self.shards[file] = self.shards.get(file, 0) + records
        for key, fits in other.sizes.items():
            self.sizes[key] = self.sizes[key] & fits if key in self.sizes else fits
        merge_each(self.context, other.context)
        merge_each(self.lists, other.lists)
        merge_each(self.items, other.items)
        merge_each(self.paths, other.paths)


# Names of the sizes of arrays, in the order of their axes.
_SIZE_NAMES = (
    *("frames|num_frames|length", "height|rows|h"),
    *("width|cols|columns|w", "depth|channels|num_channels|channel|c"),
)
_SIZE_NAME = re.compile(rf"(?:^|[/_.-])(?:{'|'.join(_SIZE_NAMES)})$")
_SIZE_AXES = tuple(re.compile(rf"(?:^|[/_.-])(?:{names})$") for names in _SIZE_NAMES)


def _fitting_sizes(nbytes: int, numbers: Mapping[str, int]) -> Iterator[tuple[tuple[str, ...], int]]:
    """Yield keys (height, width and so on) that explain how many bytes there are, and an item's bytes."""
    axes = [next((key for key in numbers if name.search(key)), None) for name in _SIZE_AXES]
    for first, last in ((0, 4), (1, 4), (1, 3), (0, 3)):
        keys = tuple(key for key in axes[first:last] if key is not None)
        items = math.prod(numbers[key] for key in keys)
        if len(keys) == last - first and items > 0 and nbytes % items == 0 and nbytes // items in (1, 2, 4, 8):
            yield keys, nbytes // items


def _add_each(
    counts_by_name: dict[str, FeatureCounts],
    features: Mapping[str, Any],
    add: Callable[[FeatureCounts, Any, Location], None],
    location: Location,
) -> None:
    """Count features by name; a name that is new begins with counts of zero."""
    for name, feature in features.items():
        counts = counts_by_name.get(name)
        if counts is None:
            counts = counts_by_name[name] = FeatureCounts()
        add(counts, feature, location)


def survey(payloads: Iterable[tuple[Location, bytes]]) -> Survey:
    """Survey records.

    Raises FeatureError if a record is not a protobuf message, or the records are of several message types.
    """
    found = Survey()
    for location, payload in payloads:
        found.add(location, payload)
    return found
