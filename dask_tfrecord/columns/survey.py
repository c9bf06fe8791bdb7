"""What records hold, counted: presence, kinds and numbers of values of every feature, and what its bytes look like.

A `Survey` takes record after record in bounded memory. Parts of a collection are surveyed apart, on any worker, and
merged in order; `report.py` says what has been found. Records are parsed by protobuf's own parser: a judgement that a
whole read stands on should not share the columns' decoder.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from dask_tfrecord.columns.looks import Looks, image_looks, looks_like_text, tensor_looks
from dask_tfrecord.columns.recognise import parse_record, refusal
from dask_tfrecord.errors import Place
from dask_tfrecord.messages import Feature

__all__ = ["BytesSeen", "Histogram", "IntegersSeen", "KindSeen", "Survey", "Tally", "survey"]

_KINDS = {"bytes_list": "bytes", "float_list": "float32", "int64_list": "int64"}
# Distinct numbers that are counted one by one, and shards that are named.
_MOST_NUMBERS = 64
_MOST_SHARDS = 10


@dataclass(slots=True)
class Histogram:
    """How often each number was seen: exact up to 64 distinct ones, then by powers of two.

    Attributes
    ----------
    exact : dict of int to int, or None
        How often, by number; None once there were too many.
    ranges : dict of int to int
        Then how often, by the number's bits: 3 stands for 4 to 7.
    low, high, divisor : int
        Smallest, largest, and greatest common divisor, of `ranges` alone.
    """

    exact: dict[int, int] | None = field(default_factory=dict)
    ranges: dict[int, int] = field(default_factory=dict)
    low: int = 0
    high: int = 0
    divisor: int = 0

    def add(self, number: int, times: int = 1) -> None:
        """Count a number."""
        exact = self.exact
        if exact is None:
            self._add_to_ranges(number, times)
        elif number in exact:
            exact[number] += times
        else:
            exact[number] = times
            if len(exact) > _MOST_NUMBERS:
                self._blur()

    def merge(self, other: Histogram) -> None:
        """Count what another one has counted."""
        if other.exact is not None:
            for number, times in other.exact.items():
                self.add(number, times)
            return
        if self.exact == {}:
            self.low = other.low
        if self.exact is not None:
            self._blur()
        for bits, times in other.ranges.items():
            self.ranges[bits] = self.ranges.get(bits, 0) + times
        self._widen(other.low, other.high, other.divisor)

    def extent(self) -> tuple[int, int]:
        """Smallest and largest number."""
        return (min(self.exact), max(self.exact)) if self.exact else (self.low, self.high)

    def common_divisor(self) -> int:
        """Find what divides every number, if at least three distinct ones say so; else 1."""
        if self.exact is None:
            return self.divisor
        return math.gcd(*self.exact) if len(self.exact.keys() - {0}) >= 3 else 1

    def bins(self) -> tuple[tuple[int, int, int], ...]:
        """First and last number, and how often these were seen, in ascending order."""
        if self.exact is not None:
            return tuple((number, number, times) for number, times in sorted(self.exact.items()))
        return tuple((1 << bits >> 1, (1 << bits) - 1, times) for bits, times in sorted(self.ranges.items()))

    def _blur(self) -> None:
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


@dataclass(slots=True)
class KindSeen:
    """Records that hold a feature as one kind.

    Attributes
    ----------
    first : Place
        The first one.
    records : int
        How many.
    shards : dict of str to int
        The first ten shards that have such records, and how many each.
    more : int
        Further shards.
    last : str
        The last of all these shards.
    """

    first: Place
    records: int = 0
    shards: dict[str, int] = field(default_factory=dict)
    more: int = 0
    last: str = ""

    def add(self, file: str, records: int = 1) -> None:
        """Take note of records of a shard; shards come one after the other."""
        self.records += records
        if file in self.shards:
            self.shards[file] += records
        elif len(self.shards) < _MOST_SHARDS:
            self.shards[file] = records
        elif file != self.last:
            self.more += 1
        self.last = file

    def merge(self, other: KindSeen) -> None:
        """Take note of what lies behind."""
        records, last = self.records + other.records, other.last
        for file, count in other.shards.items():
            self.add(file, count)
        self.records, self.more, self.last = records, self.more + other.more, last


@dataclass(slots=True)
class BytesSeen:
    """What the bytes of a feature have in common.

    Attributes
    ----------
    values : int
        How many there are.
    low, high : int
        Bytes of the shortest and of the longest.
    text : bool
        All of them are UTF-8 text.
    image, tensor : Looks, None or False
        What all of them look like; None before the first, False where they do not.
    """

    values: int = 0
    low: int = 0
    high: int = 0
    text: bool = True
    image: Looks | bool | None = None
    tensor: Looks | bool | None = None

    def add(self, values: Iterable[bytes]) -> None:
        """Look at values; what one has been found not to be is not looked for in the next."""
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
                self.text = looks_like_text(value)
            if self.image is not False:
                self.image = _common(self.image, image_looks(value) or False)
            if self.tensor is not False:
                self.tensor = _common(self.tensor, tensor_looks(value) or False)

    def merge(self, other: BytesSeen) -> None:
        """Take what is true of both."""
        if not other.values:
            return
        self.low = min(self.low, other.low) if self.values else other.low
        self.high = max(self.high, other.high)
        self.values += other.values
        self.text = self.text and other.text
        self.image = _common(self.image, other.image)
        self.tensor = _common(self.tensor, other.tensor)


def _common(known: Looks | bool | None, found: Looks | bool | None) -> Looks | bool | None:
    """Find what values have in common, where None is no value yet and False nothing."""
    if known is None or found is None:
        return found if known is None else known
    if isinstance(known, Looks) and isinstance(found, Looks):
        return known.common(found) or False
    return False


@dataclass(slots=True)
class IntegersSeen:
    """Whether the integers of a feature are all 0 or 1.

    Attributes
    ----------
    seen : set of int, or None
        Those that were seen; None once another one was.
    """

    seen: set[int] | None = field(default_factory=set)

    def add(self, values: Iterable[int]) -> None:
        """Look at values, until there was one that is something else."""
        if self.seen is None:
            return
        self.seen.update(values)
        if not self.seen <= {0, 1}:
            self.seen = None

    def merge(self, other: IntegersSeen) -> None:
        """Take what is true of both."""
        self.seen = None if self.seen is None or other.seen is None else self.seen | other.seen


@dataclass(slots=True)
class Tally:
    """One feature, over records.

    Attributes
    ----------
    present : int
        Records that have the key, with a kind; of a feature list, with or without steps.
    unset : int
        Records that have the key with no kind; of a feature list, steps without one.
    kinds : dict of str to KindSeen
        By kind: records that hold it so.
    counts : Histogram
        Numbers of values; of a feature list, of each step.
    steps : Histogram
        Steps of a feature list.
    bytes_seen, integers_seen
        What values have in common.
    """

    present: int = 0
    unset: int = 0
    kinds: dict[str, KindSeen] = field(default_factory=dict)
    counts: Histogram = field(default_factory=Histogram)
    steps: Histogram = field(default_factory=Histogram)
    bytes_seen: BytesSeen = field(default_factory=BytesSeen)
    integers_seen: IntegersSeen = field(default_factory=IntegersSeen)

    def add(self, feature: Feature, place: Place) -> None:
        """Take note of a feature of one record."""
        kind = self._add_values(feature)
        if kind is None:
            self.unset += 1
            return
        self.present += 1
        self._add_kind(kind, place)

    def add_list(self, steps: Iterable[Feature], place: Place) -> None:
        """Take note of a feature list of one record."""
        self.present += 1
        kinds = [self._add_values(step) for step in steps]
        self.steps.add(len(kinds))
        self.unset += kinds.count(None)
        for kind in dict.fromkeys(kind for kind in kinds if kind is not None):
            self._add_kind(kind, place)

    def _add_values(self, feature: Feature) -> str | None:
        name = feature.WhichOneof("kind")
        if name is None:
            return None
        values = getattr(feature, name).value
        self.counts.add(len(values))
        if name == "bytes_list":
            self.bytes_seen.add(values)
        elif name == "int64_list":
            self.integers_seen.add(values)
        return _KINDS[name]

    def _add_kind(self, kind: str, place: Place) -> None:
        seen = self.kinds.get(kind)
        if seen is None:
            seen = self.kinds[kind] = KindSeen(place)
        seen.add(place.file)

    def merge(self, other: Tally) -> None:
        """Take note of what lies behind."""
        self.present += other.present
        self.unset += other.unset
        for kind, seen in other.kinds.items():
            if kind in self.kinds:
                self.kinds[kind].merge(seen)
            else:
                self.kinds[kind] = seen
        self.counts.merge(other.counts)
        self.steps.merge(other.steps)
        self.bytes_seen.merge(other.bytes_seen)
        self.integers_seen.merge(other.integers_seen)


@dataclass(slots=True)
class Survey:
    """Records of a collection, or of a part of it.

    Attributes
    ----------
    records : int
        How many there are.
    sequences : int
        How many of them are SequenceExamples for certain: they have feature lists.
    shards : dict of str to int
        Records by shard.
    context : dict of str to Tally
        Features of Examples, or of the contexts of SequenceExamples.
    lists : dict of str to Tally
        Feature lists of SequenceExamples.
    """

    records: int = 0
    sequences: int = 0
    shards: dict[str, int] = field(default_factory=dict)
    context: dict[str, Tally] = field(default_factory=dict)
    lists: dict[str, Tally] = field(default_factory=dict)

    def add(self, place: Place, payload: bytes) -> None:
        """Take note of a record.

        Raises
        ------
        FeatureError
            If it is neither an Example nor a SequenceExample.
        """
        record = parse_record(payload)
        if record is None:
            raise refusal(payload, place)
        self.records += 1
        self.shards[place.file] = self.shards.get(place.file, 0) + 1
        _add_each(self.context, record.context.feature, Tally.add, place)
        if record.HasField("feature_lists"):
            self.sequences += 1
            lists = {name: steps.feature for name, steps in record.feature_lists.feature_list.items()}
            _add_each(self.lists, lists, Tally.add_list, place)

    def merge(self, other: Survey) -> None:
        """Take note of the part of the collection that follows; the other survey is not to be used any more."""
        self.records += other.records
        self.sequences += other.sequences
        for file, records in other.shards.items():
            self.shards[file] = self.shards.get(file, 0) + records
        for mine, theirs in ((self.context, other.context), (self.lists, other.lists)):
            for name, tally in theirs.items():
                if name in mine:
                    mine[name].merge(tally)
                else:
                    mine[name] = tally


def _add_each(
    tallies: dict[str, Tally], features: Mapping[str, Any], add: Callable[[Tally, Any, Place], None], place: Place
) -> None:
    for name, feature in features.items():
        tally = tallies.get(name)
        if tally is None:
            tally = tallies[name] = Tally()
        add(tally, feature, place)


def survey(payloads: Iterable[tuple[Place, bytes]]) -> Survey:
    """Survey records.

    Parameters
    ----------
    payloads : iterable of (Place, bytes)
        Where each record is, and what it holds.

    Returns
    -------
    Survey

    Raises
    ------
    FeatureError
        If a record is neither an Example nor a SequenceExample.
    """
    found = Survey()
    for place, payload in payloads:
        found.add(place, payload)
    return found
