"""Report on a survey of records: the inferred schema, conflicts, suggestions, and a spec to paste into code.

The inferred schema reads values in the form in which they are stored. Detected content, for example an image, is a
suggestion and never part of the schema.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from html import escape
from typing import Any

from dask_tfrecord.errors import FEATURES, FeatureError, Location, SchemaError, Spelled, joined, plural, printable, span
from dask_tfrecord.features import Feature, FixedLenFeature, FixedLenSequenceFeature, VarLenFeature
from dask_tfrecord.features.code import feature_code, python_code
from dask_tfrecord.features.inference.payload_type import (
    ADVICE,
    BytesContent,
    ForeignContent,
    parse_record,
    payload_error,
)
from dask_tfrecord.features.inference.survey import BytesSummary, FeatureCounts, KindCounts, Survey, survey
from dask_tfrecord.features.inference.wire import likely_types
from dask_tfrecord.features.message_types import MessageType
from dask_tfrecord.features.schema import ITEMS, Sampling, Schema, align_columns, split_item_name
from dask_tfrecord.markup import bins_svg, fragment, html_table, presence_bar, table
from dask_tfrecord.records.index import RecordRange, full_run, iterate_payloads
from dask_tfrecord.shards.shard import Shard, Shards

# Default value in a suggestion, by dtype.
_DEFAULTS = {"bytes": 'b""', "float32": "0.0", "int64": "0", "bool": "False"}
# Item sizes in bytes of raw arrays, and numbers of channels of square images.
_ITEM_SIZES = {"uint8": 1, "16 bit": 2, "32 bit": 4, "64 bit": 8}
_CHANNELS = (1, 3, 4)
# Keys that a note about different shards names.
_NAMED = 5


@dataclass(frozen=True, slots=True)
class Suggestion:
    """Interpretation that fits all values of a feature.

    Attributes
    ----------
    what : str
        Detected content: for example "text" or "JPEG images of 8 x 8 x 3".
    feature : str or None
        Python code of the feature that reads the values as this content; None if its arguments can't be inferred.
    number : int
        Number of values, records or steps that were seen; all of them fit.
    of : str
        Counted unit: "value", "record" for the values of a record together, or "step" in feature lists.
    could_be : tuple of str
        Arrays of the common size, if all bytes values have one size.
    """

    what: str
    feature: str | None
    number: int
    of: str
    could_be: tuple[str, ...] = ()

    @property
    def agreed(self) -> str:
        """Number of values that were seen, as text."""
        return f"all {self.number:,} {self.of}s" if self.number != 1 else f"the only {self.of}"

    def __str__(self) -> str:
        text = (f"or {self.feature}: " if self.feature else "") + f"{self.what}, {self.agreed}"
        return text + (f" (could be {', '.join(self.could_be)})" if self.could_be else "")


def suggestions(counts: FeatureCounts, feature: Feature) -> tuple[Suggestion, ...]:
    """Suggest other features that fit all counted values, which have one kind, than the inferred one."""
    (kind,) = counts.kinds_of_values()
    low, high = counts.value_counts.extent()
    in_lists = bool(counts.steps.bins())
    optional = isinstance(feature, VarLenFeature) and low == high > 0 and not in_lists
    candidates: list[Suggestion | None] = []
    if kind == "bytes" and counts.sparse_tensors:
        candidates.append(
            Suggestion("indices, values and shape of tf.io.serialize_sparse", None, _units(counts), "record")
        )
    elif kind == "bytes":
        candidates.append(suggested_content(counts, feature, optional=optional and low == 1, in_lists=in_lists))
    elif counts.integers == {0, 1}:
        candidates.append(_booleans(counts, feature, optional=optional))
    if optional:
        number = f"{plural(low, 'value')} in every record that sets it; choose a default"
        candidates.append(Suggestion(number, _fixed_length(low, kind, default=True), _units(counts), "record"))
    if isinstance(feature, VarLenFeature) and kind != "bytes" and not in_lists:
        candidates.append(_row_guesses(counts, kind))
    return tuple(suggestion for suggestion in candidates if suggestion is not None)


# Items of arrays in bytes, by their size.
_ITEMS = {1: "uint8", 2: "uint16", 4: "float32", 8: "float64"}


def _with_keys_together(features: Sequence[FeatureReport], survey: Survey) -> Iterator[FeatureReport]:
    """Add suggestions that several keys make: sizes next to bytes, and parts of ragged and sparse features of TFX."""
    names = {feature.name for feature in features}
    for each in features:
        suggestions = list(each.suggestions)
        number = each.present
        plain = isinstance(each.feature, FixedLenFeature) and each.kind == "bytes" and not each.in_lists
        if plain and all(known.feature is None for known in suggestions) and (fits := survey.sizes.get(each.name)):
            keys, nbytes = min(fits)
            code = f'dtf.RawFeature({keys}, "{_ITEMS[nbytes]}")'
            suggestions = [Suggestion(f"arrays with sizes in {', '.join(keys)}", code, number, "value")]
        base, _, part = each.name.rpartition("$")
        if part == "ragged_values" and f"{base}$row_lengths_1" in names:
            levels = sorted(name for name in names if name.startswith(f"{base}$row_lengths_"))
            lengths = ", ".join(f'dtf.RaggedFeature.RowLengths("{name}")' for name in levels)
            code = f'dtf.RaggedFeature("{each.kind}", value_key="{each.name}", partitions=[{lengths}])'
            suggestions.insert(0, Suggestion(f"values of {base}", code, number, "record"))
        if part == "sparse_values" and f"{base}$sparse_indices_0" in names:
            indices = sorted(name for name in names if name.startswith(f"{base}$sparse_indices_"))
            given = f'"{indices[0]}"' if len(indices) == 1 else str(indices)
            code = f'dtf.SparseFeature({given}, "{each.name}", "{each.kind}", {"…" if len(indices) == 1 else ["…"]})'
            suggestions.insert(0, Suggestion(f"values of {base}", code, number, "record"))
        yield replace(each, suggestions=tuple(suggestions)) if suggestions != list(each.suggestions) else each


def _fixed_length(number: int, dtype: str, *, default: bool) -> str:
    shape = () if number == 1 else (number,)
    return f'dtf.FixedLenFeature({shape}, "{dtype}"' + (f", default_value={_DEFAULTS[dtype]})" if default else ")")


def _units(counts: FeatureCounts) -> int:
    """Count the records, or a feature list's steps, that set a kind."""
    return sum(times for _, _, times in counts.value_counts.bins())


def _row_guesses(counts: FeatureCounts, kind: str) -> Suggestion | None:
    """Suggest rows with a fixed length (boxes, points) if it divides every value count."""
    length = counts.value_counts.common_divisor()
    if length < 2:
        return None
    code = f'dtf.VarLenFeature("{kind}", shape=(-1, {length}))'
    return Suggestion(f"multiples of {length} values", code, _units(counts), "record")


def _booleans(counts: FeatureCounts, feature: Feature, *, optional: bool) -> Suggestion:
    low, _ = counts.value_counts.extent()
    fixed = optional or isinstance(feature, FixedLenFeature)
    code = _fixed_length(low, "bool", default=optional) if fixed else None
    return Suggestion("only 0 and 1", code, _units(counts), "step" if counts.steps.bins() else "record")


def suggested_content(
    counts: FeatureCounts, feature: Feature, *, optional: bool = False, in_lists: bool = False
) -> Suggestion | None:
    """Suggest the content of bytes: image, tensor, text or arrays of one size, whichever fits first."""
    seen = counts.bytes_summary
    if not seen.high:
        return None
    scalar = isinstance(feature, FixedLenFeature) and feature.shape == ()
    if isinstance(seen.image, BytesContent):
        return _image(seen, seen.image, scalar=scalar, several=not scalar and not in_lists)
    if isinstance(seen.tensor, BytesContent):
        dtype, shape = seen.tensor.dtype, seen.tensor.shape
        # A NumPy array has at most 64 dimensions, one of them for the rows.
        code = f'dtf.TensorFeature({shape}, "{dtype}")' if scalar and len(shape) < 64 else None
        return Suggestion(f"tensors of {dtype}, shape {shape}", code, seen.values, "value")
    if isinstance(seen.foreign, ForeignContent):
        return _foreign(seen, seen.foreign, feature, several=not scalar and not in_lists, optional=optional)
    if seen.text:
        several = not scalar and not optional
        argument = 'default_value=""' if optional else ""
        if several:
            argument = f"count={_values_per_record(feature)}"
        code = None if several and in_lists else f"dtf.TextFeature({argument})"
        return Suggestion("text", code, seen.values, "value")
    if seen.low == seen.high and seen.values > 1:
        return Suggestion(f"{seen.low:,} bytes each", None, seen.values, "value", _array_guesses(seen.low))
    return None


def _values_per_record(feature: Feature) -> int:
    """Return the number of bytes values per record; -1 if it differs."""
    return math.prod(feature.shape) if isinstance(feature, FixedLenFeature) else -1


def _foreign(
    seen: BytesSummary, content: ForeignContent, feature: Feature, *, several: bool, optional: bool
) -> Suggestion:
    """Suggest a function that decodes values in the format of another library, such as NumPy files."""
    contents, decoded = content.format.contents, content.format.decoded
    if decoded is None:
        return Suggestion(contents, None, seen.values, "value")
    shape = "…" if content.shape is None else str(content.shape)
    dtype = "…" if content.dtype is None else f'"{content.dtype}"'
    count = f", count={_values_per_record(feature)}" if several else ""
    # A fixed number of arrays needs a known shape, and each record one array.
    known = content.shape is None or None not in content.shape or not several or _values_per_record(feature) == -1
    code = f"dtf.FunctionFeature(lambda value: {decoded}, {shape}, {dtype}{count})" if known and not optional else None
    return Suggestion(contents, code, seen.values, "value")


def _image(seen: BytesSummary, content: BytesContent, *, scalar: bool, several: bool) -> Suggestion:
    """Suggest an ImageFeature, with a shape if all images have one."""
    known = None not in content.shape
    shape = (-1, *content.shape) if several else content.shape
    arguments = [f"shape={shape}"] if known else []
    if content.dtype != "uint8":
        arguments.append(f'dtype="{content.dtype}"')
    # ImageFeature reads several images per record only if all of them have one shape.
    code = f"dtf.ImageFeature({', '.join(arguments)})" if scalar or (known and several) else None
    sizes = " x ".join("?" if size is None else str(size) for size in content.shape)
    # "image" stands for several formats.
    kind = "images" if content.format == "image" else f"{content.format} images"
    return Suggestion(f"{kind} of {sizes}", code, seen.values, "value")


def _array_guesses(nbytes: int) -> tuple[str, ...]:
    """List flat arrays and square images of this size."""
    flat = [f"{item} ({nbytes // size},)" for item, size in _ITEM_SIZES.items() if nbytes % size == 0]
    square = []
    for item, size in list(_ITEM_SIZES.items())[:3]:
        for channels in _CHANNELS:
            side = math.isqrt(nbytes // (size * channels))
            if side > 7 and side * side * size * channels == nbytes:
                square.append(f"{item} ({side}, {side}{f', {channels}' if channels > 1 else ''})")
    return (*flat, *square)


HEADER = ("feature", "kind", "present", "values", "looks like")
_Bins = tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, slots=True)
class KindReport:
    """Records in which a feature has one kind.

    Attributes
    ----------
    kind : str
        "bytes", "float32" or "int64"; of a field of messages the dtype of its column, or "text".
    records : int
        Number of records.
    shards : int
        Number of shards with at least one of these records.
    by_shard : tuple of (str, int)
        The first ten of these shards: path and number of records.
    first : Location
        Location of the first record.
    """

    kind: str
    records: int
    shards: int
    by_shard: tuple[tuple[str, int], ...]
    first: Location

    @classmethod
    def from_counts(cls, kind: str, counts: KindCounts) -> KindReport:
        """Return the report of the counts of one kind."""
        shards = tuple(counts.shards.items())
        return cls(kind, counts.records, len(shards) + counts.more, shards, counts.first)

    def __str__(self) -> str:
        named = ", ".join(f"{file}: {records:,}" for file, records in self.by_shard)
        more = f", … {self.shards - len(self.by_shard):,} more" if self.shards > len(self.by_shard) else ""
        return f"{self.kind} in {plural(self.records, 'record')} of {plural(self.shards, 'shard')} ({named}{more})"


@dataclass(frozen=True, slots=True)
class FeatureReport:
    """Report on one feature or feature list.

    Attributes
    ----------
    name : str
        Key of the feature; ``examples/KEY`` for a feature of items of ExampleListWithContexts; path of a field.
    in_lists : bool
        True for a feature list of SequenceExamples, and for a feature of items.
    present : int
        Number of records that set the feature. A field without presence is set if it differs from its default.
    unset : int
        Number of records that have the key without a kind; for a feature list, number of steps without a kind; for a
        feature of items, number of items that have the key without a kind.
    kinds : tuple of KindReport
        Kinds of the values, the most frequent first. A column can hold only one kind.
    counts : tuple of (int, int, int)
        Histogram of the number of values per record, or per step of a feature list: first number, last number and
        frequency of each bin. Exact up to 64 distinct numbers, then by powers of two.
    steps : tuple of (int, int, int)
        Histogram of the numbers of steps in a feature list, or of items that have the key.
    extent : (int, int)
        Minimum and maximum number of values.
    feature : FixedLenFeature, VarLenFeature, FixedLenSequenceFeature, ProtoFeature or None
        Inferred feature, or the feature of a field; None if its values are unset or of several kinds.
    suggestions : tuple of Suggestion
        Other features that fit all values.
    mixed : int
        Number of records whose steps or items have several kinds.
    in_items : bool
        True for a feature of items of ExampleListWithContexts.
    """

    name: str
    in_lists: bool
    present: int
    unset: int
    kinds: tuple[KindReport, ...]
    counts: _Bins
    steps: _Bins
    extent: tuple[int, int]
    feature: Feature | None
    suggestions: tuple[Suggestion, ...]
    mixed: int = 0
    in_items: bool = False

    @classmethod
    def from_counts(
        cls, name: str, counts: FeatureCounts, records: int, *, in_lists: bool, items: int | None = None
    ) -> FeatureReport:
        """Report one feature from what was counted over records or items."""
        of_values = counts.kinds_of_values()
        kinds = sorted(of_values.items(), key=lambda item: -item[1].records)
        feature, suggested = None, tuple[Suggestion, ...]()
        if len(kinds) == 1:
            feature = _inferred(kinds[0][0], counts, records, in_lists=in_lists, items=items)
            suggested = suggestions(counts, feature)
        elif of_values.keys() == {"int64", "float32"}:
            both: Any = _inferred("float64", counts, records, in_lists=in_lists, items=items)
            of = "step" if counts.steps.bins() else "record"
            code = feature_code(replace(both, mixed=True))
            suggested = (Suggestion("integers and floats", code, _units(counts), of),)
        return cls(
            name=name,
            in_lists=in_lists,
            present=counts.present,
            unset=counts.unset,
            kinds=tuple(KindReport.from_counts(kind, of_kind) for kind, of_kind in kinds),
            counts=counts.value_counts.bins(),
            steps=counts.steps.bins(),
            extent=counts.value_counts.extent(),
            feature=feature,
            suggestions=suggested,
            mixed=counts.mixed,
            in_items=items is not None,
        )

    @property
    def kind(self) -> str:
        """Kind of the values, or several kinds separated by commas."""
        return ", ".join(kind.kind for kind in self.kinds)

    @property
    def values(self) -> str:
        """The numbers of values and steps, as text."""
        values = span(*self.extent)
        if not self.in_lists or not self.steps:
            return values
        fewest, most = self.steps[0][0], self.steps[-1][1]
        unit = "item" if self.in_items else "step"
        steps = plural(most, unit) if fewest == most else f"{fewest:,} to {plural(most, unit)}"
        return f"{values} in each of {steps}"

    def conflict(self) -> SchemaError:
        """Return the error for values of several kinds."""
        files = [file for kind in self.kinds for file, _ in kind.by_shard]
        together = len(set(files)) == 1
        # The location of the error already names the file.
        kinds = [f"{kind.kind} in {plural(kind.records, 'record')}" if together else str(kind) for kind in self.kinds]
        text = (
            f"feature {self.name!r} holds values of {len(self.kinds)} kinds, and a column has one: {'; '.join(kinds)}"
        )
        without = "features="
        if self.in_lists:
            without = "features= and example_features=" if self.in_items else "features= and sequence_features="
        no_lists = " ({} for no feature lists)" if self.in_lists and not self.in_items else ""
        if self.mixed:
            units, held = ("items", "feature") if self.in_items else ("steps", "feature list")
            text += f"; {units} of one record differ in {plural(self.mixed, 'record')}"
            lead = f". A column can't hold this {held}:"
        elif len(set(files)) == len(files):
            lead = ". Read the shards of one kind, or"
        else:
            lead = ". Read the records of one kind with a feature of that kind, or"
        for both in self.suggestions:
            lead = f". {both.feature} reads integers and floats; or"
        remedy = Spelled(
            f"{lead} give {without} without it{no_lists}, as inspect_records(urlpath).spec() writes them; "
            f"inspect_records(urlpath, sample=None) reports all records",
            f"{lead} give --features the JSON of a Schema without it; info --sample all reports all records",
        )
        return SchemaError(text + remedy, replace(self.kinds[-1].first, feature=self.name))


def _inferred(kind: str, counts: FeatureCounts, records: int, *, in_lists: bool, items: int | None) -> Feature:
    """Infer a feature with a dtype, for records or for items, without a default value."""
    low, high = counts.value_counts.extent()
    shape = () if low == 1 else (low,)
    if low != high or low == 0:
        return VarLenFeature(kind)
    if items is not None:
        is_in_each = sum(times for _, _, times in counts.value_counts.bins()) == items
        return FixedLenFeature(shape, kind) if is_in_each else VarLenFeature(kind)
    if in_lists:
        steps = FixedLenSequenceFeature(shape, kind, allow_missing=counts.present < records)
        return VarLenFeature(kind) if counts.unset else steps
    return FixedLenFeature(shape, kind) if counts.present == records else VarLenFeature(kind)


FIELDS_HEADER = ("field", "wire type", "present", "values", "could be", "example")


@dataclass(frozen=True, slots=True)
class PathReport:
    """Report on the fields of one path and wire type, in messages without a descriptor.

    Attributes
    ----------
    path : str
        Field numbers from the payload to the field, joined by dots.
    wire_type : str
        "varint", "fixed32", "fixed64", "length-delimited" or "group".
    present : int
        Number of records with the field.
    extent : (int, int)
        Smallest and largest number of fields in a record that has one.
    types : tuple of str
        Types that fit all fields, the likeliest first.
    example : str
        A value as printable text.
    """

    path: str
    wire_type: str
    present: int
    extent: tuple[int, int]
    types: tuple[str, ...]
    example: str

    @classmethod
    def from_survey(cls, survey: Survey) -> Iterator[PathReport]:
        """Yield reports in the order of field numbers, without fields of values that are not messages."""
        order = sorted(survey.paths, key=lambda key: (*(map(int, key[0].split("."))),))
        messages = {""}
        for path, wire_type in order:
            counts = survey.paths[path, wire_type]
            types = counts.types()
            if path.rpartition(".")[0] not in messages:
                continue
            if types[0] in ("message", "group"):
                messages.add(path)
            example = "" if types[0] in ("message", "group") else counts.example.get(types[0], "")
            yield cls(path, wire_type, counts.records, (counts.low, counts.high), types, example)


@dataclass(frozen=True, slots=True, repr=False)
class Report:
    """Features of records: presence, kinds, numbers of values, conflicts and suggestions.

    Printing a report shows a table and a spec. Notebooks display it with bars of presence and histograms of the numbers
    of values.

    Attributes
    ----------
    message : str
        "Example", "SequenceExample" or "ExampleListWithContext". For other protobuf messages the full name of the given
        type, or the detected type of the first record, for example "tf.Event".
    records : int
        Number of records read.
    sequences : int
        Number of these records that have feature lists.
    shards : int
        Number of shards the records came from.
    features : tuple of FeatureReport
        All keys sorted by name; keys of contexts precede keys of feature lists.
    searched : tuple of str
        Paths of the shards if all of them were empty.
    paths : tuple of PathReport
        Fields of other protobuf messages, by their wire format.
    partial : int
        Number of messages with more than 1,000 fields. The first fields of each path are counted.
    refusal : FeatureError or None
        For other protobuf messages, the error for a reader that expects an Example. It states the next step.
    message_type : MessageType or None
        Type of the messages, if it was given: features are fields then.
    unknown_records, unknown_fields : int
        Number of records with fields that the type lacks, and of these fields. Readers skip them. As in protobuf,
        a field of another wire type, and a number that a closed enum lacks, are unknown fields too. Those of a value
        that a later one replaces, in a oneof or a map, count as well.
    refused : int
        Number of records that cannot be read as messages of the type; no feature counts them.
    refusals : tuple of FeatureError
        Errors of the first ten of these records.

    Examples
    --------
    >>> report = dtf.inspect_records("train-*.tfrecord", sample=None)
    >>> print(report.spec())
    features = {
        "image": dtf.FixedLenFeature((), "bytes"),  # 192 bytes each, all 20 values (could be ..., uint8 (8, 8, 3))
        "label": dtf.FixedLenFeature((), "int64"),
        "text": dtf.FixedLenFeature((), "bytes"),  # or dtf.TextFeature(): text, all 20 values
        "tokens": dtf.VarLenFeature("int64"),
    }
    """

    message: str
    records: int
    sequences: int
    shards: int
    features: tuple[FeatureReport, ...]
    searched: tuple[str, ...] = ()
    paths: tuple[PathReport, ...] = ()
    partial: int = 0
    refusal: FeatureError | None = field(default=None, compare=False)
    message_type: MessageType | None = None
    unknown_records: int = 0
    unknown_fields: int = 0
    refused: int = 0
    refusals: tuple[FeatureError, ...] = field(default=(), compare=False)

    @classmethod
    def from_survey(cls, survey: Survey, searched: Sequence[str] = ()) -> Report:
        """Return the report on a survey of the shards `searched`."""
        features = [
            FeatureReport.from_counts(name, counts[name], survey.records, in_lists=in_lists)
            for counts, in_lists in ((survey.context, False), (survey.lists, True))
            for name in sorted(counts)
        ]
        features = list(_with_keys_together(features, survey))
        features += [
            FeatureReport.from_counts(f"{ITEMS}/{key}", counts, survey.records, in_lists=True, items=survey.item_count)
            for key, counts in sorted(survey.items.items())
        ]
        message = "SequenceExample" if survey.sequences else "Example"
        if survey.first_list is not None:
            message = "ExampleListWithContext"
        empty = () if survey.records else tuple(searched)
        sequences = survey.sequences if message == "SequenceExample" else 0
        if survey.refusal is not None:
            message, paths = survey.other_type.removeprefix("a "), tuple(PathReport.from_survey(survey))
            return cls(message, survey.records, 0, len(survey.shards), (), (), paths, survey.partial, survey.refusal)
        return cls(message, survey.records, sequences, len(survey.shards), tuple(features), empty)

    @property
    def conflicts(self) -> tuple[FeatureReport, ...]:
        """Features with values of several kinds."""
        return tuple(feature for feature in self.features if len(feature.kinds) > 1)

    @property
    def unset(self) -> tuple[str, ...]:
        """Keys that occur, but never with a kind."""
        return tuple(sorted({feature.name for feature in self.features if not feature.kinds}))

    @property
    def schema(self) -> Schema:
        """Inferred schema.

        Raises
        ------
        FeatureError
            If the records are other protobuf messages, or none of them is a message of the given type.
        SchemaError
            If no schema can be inferred: a feature holds values of several kinds, a key occurs in contexts and in
            feature lists, or no record sets a feature.
        """
        if self.refusal is not None:
            raise self.refusal
        if self.message_type is not None:
            if self.refusals and self.refused == self.records:
                raise self.refusals[0]
            fields = {feature.name: feature.feature for feature in self.features if feature.feature is not None}
            return Schema(fields, message=self.message_type, report=self)
        if not self.records:
            shards = f" (all {len(self.searched):,} shards are empty)" if len(self.searched) > 1 else ""
            raise SchemaError(
                "found no record to infer features from: give " + FEATURES + shards,
                Location(self.searched[0]) if self.searched else None,
            )
        for conflict in self.conflicts:
            raise conflict.conflict()
        known = [feature for feature in self.features if feature.feature is not None]
        if not known:
            raise SchemaError(f"no feature is set in {plural(self.records, 'record')}: give " + FEATURES)
        context = {feature.name: feature.feature for feature in known if not feature.in_lists}
        lists = {feature.name: feature.feature for feature in known if feature.in_lists}
        for name in context.keys() & lists.keys():
            raise SchemaError(
                f"{name!r} is both a context feature and a feature list, but column names must be unique: give "
                + Spelled("features= and sequence_features=", "--features both parts")
                + f", with {name!r} in one of them"
            )
        present = tuple((feature.name, feature.present) for feature in known)
        sampling = Sampling(self.records, self.shards, present, self.unset)
        if self.message == "ExampleListWithContext":
            items = {split_item_name(name, self.message)[0]: feature for name, feature in lists.items()}
            return Schema(context, sampling, example_features=items, report=self)
        sequences = lists if self.message == "SequenceExample" else None
        return Schema(context, sampling, sequence_features=sequences, report=self)

    def spec(self) -> str:
        """Format the inferred features as Python code, with suggestions as comments at the ends of lines.

        Returns
        -------
        str
            Code that assigns `features`, and `sequence_features` for SequenceExamples or `example_features` for
            ExampleListWithContexts, to be passed to `read_tfrecord`. Features with no kind or several kinds are
            comments. For messages of a given type, `features` are all fields.
        """
        parts = [_mapping("features", [feature for feature in self.features if not feature.in_lists])]
        if self.message in ("SequenceExample", "ExampleListWithContext"):
            argument = "sequence_features" if self.message == "SequenceExample" else "example_features"
            parts.append(_mapping(argument, [feature for feature in self.features if feature.in_lists]))
        return "\n".join(parts)

    def to_json(self) -> str:
        """Serialize the report as JSON text."""
        document = {
            "message": self.message,
            "records": self.records,
            "sequences": self.sequences,
            "shards": self.shards,
            "features": [
                asdict(each) | {"feature": None if each.feature is None else f"dtf.{each.feature!r}"}
                for each in self.features
            ],
            "fields": [asdict(each) for each in self.paths],
        }
        if self.message_type is not None:
            document |= {"unknown_records": self.unknown_records, "unknown_fields": self.unknown_fields}
            document |= {"refused": self.refused, "refusals": list(map(str, self.refusals))}
        return json.dumps(document, ensure_ascii=False)

    def rows(self) -> list[tuple[str, str, str, str, str]]:
        """List the features as table rows of text: name, kinds, records that set it, numbers of values, suggestions."""
        return [
            (
                feature.name or "''",
                feature.kind or "(never set)",
                f"{feature.present:,} of {self.records:,}",
                feature.values if feature.kinds else "",
                "; ".join(suggestion.what for suggestion in feature.suggestions),
            )
            for feature in self.features
        ]

    def table(self) -> tuple[tuple[str, ...], Sequence[tuple[str, ...]]]:
        """Make the table's header and rows: features, or fields of other messages by their wire format."""
        if self.refusal is None:
            return HEADER, self.rows()
        return FIELDS_HEADER, [
            (
                each.path,
                each.wire_type,
                f"{each.present:,} of {self.records:,}",
                span(*each.extent),
                ", ".join(likely_types(each.types)),
                each.example,
            )
            for each in self.paths
        ]

    def notes(self) -> list[str]:
        """Return the lines below the table: features of several kinds, unknown fields, or how to read messages."""
        if self.message_type is not None:
            unknown = (
                f"{plural(self.unknown_fields, 'unknown field')} in {plural(self.unknown_records, 'record')}, skipped"
            )
            lines = [unknown] if self.unknown_fields else ["no unknown fields"]
            if self.refused:
                first = printable(str(self.refusals[0]))
                lines.append(f"refused: {plural(self.refused, 'record')}; the first: {first}")
            return lines
        if self.refusal is None:
            conflicts = [printable(f"{each.name!r}: {'; '.join(map(str, each.kinds))}") for each in self.conflicts]
            return [*(["values of several kinds:", *conflicts] if conflicts else []), *self.different_shards()]
        partial = [f"{plural(self.partial, 'record')} with more than 1,000 fields, counted in part"] * bool(
            self.partial
        )
        return [*partial, ADVICE[f"a {self.message}"]]

    def different_shards(self) -> list[str]:
        """Describe keys that only some shards have while others have other keys: data sets that were mixed."""
        groups: dict[tuple[str, ...], list[str]] = {}
        for each in self.features:
            if (
                len(each.kinds) == 1
                and each.present < self.records
                and each.kinds[0].shards <= len(each.kinds[0].by_shard)
            ):
                groups.setdefault(tuple(path for path, _ in each.kinds[0].by_shard), []).append(each.name)
        apart = [one for one in groups if all(one == other or not {*one} & {*other} for other in groups)]
        if len(apart) < 2:
            return []
        lines = ["shards of different keys; open each kind on its own:"]
        for paths in apart:
            names = joined(list(map(repr, groups[paths])), _NAMED)
            more = f" and {plural(len(paths) - 1, 'other')}" if len(paths) > 1 else ""
            lines.append(printable(f"  only in {paths[0]}{more}: {names}"))
        return lines

    def __repr__(self) -> str:
        header, rows = self.table()
        return "\n".join([self._title(), *align_columns([header, *rows]), *self.notes()])

    def _repr_html_(self) -> str:
        """Show the table with bars of presence and counts, and the features as code."""
        if self.refusal is not None:
            return html_table(self._title(), *self.table(), self.notes())
        title = f'<p class="dtf-title">{escape(self._title())}</p>'
        notes = "".join(f"<p>{escape(line)}</p>" for line in self.notes())
        rows = []
        for cells, feature in zip(self.rows(), self.features, strict=True):
            name, kind, present, values, looks = (escape(printable(cell)) for cell in cells)
            bar = f"{presence_bar(feature.present, self.records)}<br><small>{present}</small>"
            counts = f"{bins_svg(feature.counts)}<small>{values}</small>" if feature.kinds else ""
            if feature.in_lists and feature.steps:
                counts = f"{bins_svg(feature.steps)}<small>steps</small>{counts}"
            rows.append((name, kind, bar, counts, looks))
        spec = f"<details><summary>spec</summary><pre>{escape(self.spec())}</pre></details>"
        return fragment(title, table(HEADER, rows), notes, spec)

    def _title(self) -> str:
        """Name the kind and the number of records in the report."""
        shards = plural(self.shards, "shard")
        if self.refusal is not None:
            return f"Report on {plural(self.records, 'record')} of {shards}, the first is a {self.message}"
        if self.message_type is not None:
            return f"Report on {plural(self.records, 'record')} of {shards}, messages {self.message}"
        title = f"Report on {plural(self.records, self.message)} of {shards}"
        if 0 < self.sequences < self.records:
            title += f", {plural(self.records - self.sequences, 'record')} without feature lists"
        return title

    def __str__(self) -> str:
        return repr(self) if self.refusal is not None else f"{self!r}\n\n{self.spec()}"


def _mapping(name: str, features: Sequence[FeatureReport]) -> str:
    return "\n".join([f"{name} = {{", *(f"    {_line(feature)}" for feature in features), "}"])


def _line(feature: FeatureReport) -> str:
    """Format one feature as a line of a dict."""
    name = python_code(feature.name.removeprefix(f"{ITEMS}/") if feature.in_items else feature.name)
    if not feature.kinds:
        return f"# {name}: never set"
    if feature.feature is None:
        kinds = "; ".join(f"{kind.kind} in {plural(kind.records, 'record')}" for kind in feature.kinds)
        others = "".join(f"; {suggestion}" for suggestion in feature.suggestions)
        return printable(f"# {name}: {kinds}{others}")
    comment = printable("; ".join(map(str, feature.suggestions)))
    return f"{name}: {feature_code(feature.feature)}," + (f"  # {comment}" if comment else "")


Records = Iterable[tuple[Location, bytes]]
# Runs of the records of a shard, by its number.
RunsOf = Callable[[int], Iterable[RecordRange]]
# Number of shards that a sample is spread over.
_SAMPLED_SHARDS = 8


def infer_examples(records: Generator[tuple[Location, bytes], None, None], shards: Shards) -> Schema:
    """Infer the features of Examples from some records, and close their generator.

    Raises FeatureError for a record that is not an Example; SequenceExamples are read with `infer_schema` instead.
    """
    with closing(records):
        return Report.from_survey(survey(_examples(records)), shards.paths).schema


def _examples(records: Iterable[tuple[Location, bytes]]) -> Iterator[tuple[Location, bytes]]:
    """Yield the records; raise FeatureError for one that has feature lists, or is another message."""
    for location, payload in records:
        record = parse_record(payload)
        if record is None or record.HasField("feature_lists"):
            raise payload_error(payload, location)
        yield location, payload


def survey_sample(
    shards: Sequence[Shard], sample: int, take: Callable[[Records], Any] = survey, runs_of: RunsOf | None = None
) -> Any:
    """Survey the first records of up to eight shards; see `sample_records`."""
    with closing(sample_records(shards, sample, runs_of)) as records:
        return take(records)


def sample_records(
    shards: Sequence[Shard], sample: int, runs_of: RunsOf | None = None
) -> Generator[tuple[Location, bytes], None, None]:
    """Yield the first records of evenly spaced shards, the first and the last included.

    Records of the other shards are read only if the selected shards are empty. `runs_of` returns the runs of the
    records of a shard, for example the intact ones; by default all are read, and the first damaged one raises.
    """
    runs_of = runs_of or (lambda index: [full_run(shards[index])])
    spread = min(len(shards), _SAMPLED_SHARDS)
    chosen = [round(turn * (len(shards) - 1) / max(spread - 1, 1)) for turn in range(spread)]
    left = sample
    for turn, index in enumerate(chosen):
        # Later shards make up for a shard with fewer records than its share.
        share = math.ceil(left / (spread - turn))
        for record in itertools.islice(iterate_payloads(runs_of(index)), share):
            left -= 1
            yield record
    if left == sample:
        others = (runs_of(index) for index in range(len(shards)) if index not in set(chosen))
        yield from itertools.islice(iterate_payloads(itertools.chain.from_iterable(others)), sample)
