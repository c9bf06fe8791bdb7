"""What a survey of records has found, said: the inferred schema, conflicts, suggestions, and a spec to paste into code.

What bytes stand for is suggested here and never assumed: the schema takes values as they are stored.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from dask_tfrecord.columns.suggest import Suggestion, suggestions
from dask_tfrecord.columns.survey import KindSeen, Survey, Tally
from dask_tfrecord.columns.tfmd_writing import to_tfmd
from dask_tfrecord.errors import Place, SchemaError
from dask_tfrecord.features import Feature, FixedLenFeature, FixedLenSequenceFeature, VarLenFeature
from dask_tfrecord.schema import Sampling, Schema

__all__ = ["FeatureReport", "KindReport", "Report"]

_Bins = tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, slots=True)
class KindReport:
    """Records that hold a feature as one kind.

    Attributes
    ----------
    kind : str
        "bytes", "float32" or "int64".
    records : int
        How many.
    shards : int
        Of how many shards.
    by_shard : tuple of (str, int)
        Records of each of these shards, of the first ten.
    first : Place
        The first one.
    """

    kind: str
    records: int
    shards: int
    by_shard: tuple[tuple[str, int], ...]
    first: Place

    @classmethod
    def of(cls, kind: str, seen: KindSeen) -> KindReport:
        """Freeze what was seen."""
        return cls(kind, seen.records, len(seen.shards) + seen.more, tuple(seen.shards.items()), seen.first)

    def __str__(self) -> str:
        named = ", ".join(f"{file}: {records}" for file, records in self.by_shard)
        more = f", … {self.shards - len(self.by_shard)} more" if self.shards > len(self.by_shard) else ""
        return f"{self.kind} in {_many(self.records, 'record')} of {_many(self.shards, 'shard')} ({named}{more})"


@dataclass(frozen=True, slots=True)
class FeatureReport:
    """One feature.

    Attributes
    ----------
    name : str
        Its key.
    in_lists : bool
        It is a feature list of SequenceExamples.
    present : int
        Records that set it.
    unset : int
        Records that have its key without a kind; of a feature list, its steps without one.
    kinds : tuple of KindReport
        Kinds of its values, those of most records first; a column has one.
    counts : tuple of (int, int, int)
        Values per record, of a feature list per step: first and last number, and how often these were seen. Exact, or
        by powers of two past 64 distinct numbers.
    steps : tuple of (int, int, int)
        The same for the steps of a feature list.
    extent : (int, int)
        Fewest and most values.
    feature : FixedLenFeature, VarLenFeature, FixedLenSequenceFeature or None
        What it is inferred as; None if it has no kind, or several.
    suggestions : tuple of Suggestion
        What else it could be read as.
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

    @classmethod
    def of(cls, name: str, tally: Tally, records: int, *, in_lists: bool) -> FeatureReport:
        """Say what a feature is, given that so many records were looked at."""
        kinds = sorted(tally.kinds.items(), key=lambda item: -item[1].records)
        feature = _inferred(tally, records, in_lists=in_lists) if len(kinds) == 1 else None
        return cls(
            name=name,
            in_lists=in_lists,
            present=tally.present,
            unset=tally.unset,
            kinds=tuple(KindReport.of(kind, seen) for kind, seen in kinds),
            counts=tally.counts.bins(),
            steps=tally.steps.bins(),
            extent=tally.counts.extent(),
            feature=feature,
            suggestions=() if feature is None else suggestions(tally, feature),
        )

    @property
    def kind(self) -> str:
        """The kind of its values, or all of them."""
        return ", ".join(kind.kind for kind in self.kinds)

    @property
    def values(self) -> str:
        """Say how many values there are."""
        low, high = self.extent
        values = f"{low:,}" if low == high else f"{low:,} to {high:,}"
        if not self.in_lists or not self.steps:
            return values
        fewest, most = self.steps[0][0], self.steps[-1][1]
        steps = f"{fewest:,}" if fewest == most else f"{fewest:,} to {most:,}"
        return f"{values} in each of {steps} steps"

    def conflict(self) -> SchemaError:
        """Make the error for values of several kinds."""
        odd = self.kinds[-1].first
        return SchemaError(
            f"feature {self.name!r} holds values of {len(self.kinds)} kinds, and a column has one: "
            f"{'; '.join(map(str, self.kinds))}. Read the shards of one kind, or give features= with the kind that the "
            f"records to read have; inspect_records(urlpath, sample=None) reports all records",
            replace(odd, feature=self.name),
        )


def _inferred(tally: Tally, records: int, *, in_lists: bool) -> Feature:
    """Say what a feature of one kind is; no default is invented."""
    (kind,) = tally.kinds
    low, high = tally.counts.extent()
    fixed = low == high and low > 0 and not (in_lists and tally.unset)
    shape = () if low == 1 else (low,)
    if fixed and in_lists:
        return FixedLenSequenceFeature(shape, kind, allow_missing=tally.present < records)
    if fixed and tally.present == records:
        return FixedLenFeature(shape, kind)
    return VarLenFeature(kind)


@dataclass(frozen=True, slots=True, repr=False)
class Report:
    """What records hold: presence, kinds and numbers of values, conflicts, and what bytes may stand for.

    It prints as a table and a spec.

    Attributes
    ----------
    message : str
        "Example" or "SequenceExample".
    records : int
        Records looked at.
    sequences : int
        Those of them that have feature lists.
    shards : int
        Shards they came from.
    features : tuple of FeatureReport
        Every key, in the order of the names; those of contexts before those of feature lists.

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

    @classmethod
    def of(cls, survey: Survey) -> Report:
        """Say what a survey has found."""
        features = [
            FeatureReport.of(name, tallies[name], survey.records, in_lists=in_lists)
            for tallies, in_lists in ((survey.context, False), (survey.lists, True))
            for name in sorted(tallies)
        ]
        message = "SequenceExample" if survey.sequences else "Example"
        return cls(message, survey.records, survey.sequences, len(survey.shards), tuple(features))

    @property
    def conflicts(self) -> tuple[FeatureReport, ...]:
        """Features that hold values of several kinds."""
        return tuple(feature for feature in self.features if len(feature.kinds) > 1)

    @property
    def unset(self) -> tuple[str, ...]:
        """Keys that were there, but never with a kind."""
        return tuple(sorted({feature.name for feature in self.features if not feature.kinds}))

    @property
    def schema(self) -> Schema:
        """The inferred schema.

        Raises
        ------
        SchemaError
            If there is none: a feature holds values of two kinds, a key is in contexts and in feature lists, or
            nothing was found.
        """
        if not self.records:
            raise SchemaError("there is no record to infer features from: give features=")
        for conflict in self.conflicts:
            raise conflict.conflict()
        known = [feature for feature in self.features if feature.feature is not None]
        if not known:
            raise SchemaError(f"none of the {self.records} records looked at sets a feature: give features=")
        context = {feature.name: feature.feature for feature in known if not feature.in_lists}
        lists = {feature.name: feature.feature for feature in known if feature.in_lists}
        for name in context.keys() & lists.keys():
            raise SchemaError(
                f"{name!r} is the name of a feature in contexts and of a feature list, and a column has one name: give "
                f"features= and sequence_features=, with {name!r} in one of them"
            )
        present = tuple((feature.name, feature.present) for feature in known)
        sampling = Sampling(self.records, self.shards, present, self.unset)
        sequences = lists if self.message == "SequenceExample" else None
        return Schema(context, sampling, sequence_features=sequences, report=self)

    def spec(self) -> str:
        """Write the inferred features as Python code, with suggestions as comments beside the lines.

        Returns
        -------
        str
            It assigns `features`, and `sequence_features` for SequenceExamples, as `read_tfrecord` takes them. What
            has no kind, or several, is a comment.
        """
        parts = [_mapping("features", [feature for feature in self.features if not feature.in_lists])]
        if self.message == "SequenceExample":
            parts.append(_mapping("sequence_features", [feature for feature in self.features if feature.in_lists]))
        return "\n".join(parts)

    def to_json(self) -> str:
        """Write the report as JSON text, for programs."""
        document = {
            "message": self.message,
            "records": self.records,
            "sequences": self.sequences,
            "shards": self.shards,
            "features": [_plain(feature) for feature in self.features],
        }
        return json.dumps(document, ensure_ascii=False)

    def to_tfmd(self) -> str:
        """Write the inferred schema as the text of a `schema.pbtxt` of TensorFlow Metadata; see `to_tfmd`."""
        return to_tfmd(self.schema)

    def rows(self) -> list[tuple[str, str, str, str, str]]:
        """List the features as rows of text: name, kinds, in how many records, numbers of values, suggestions."""
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

    def __repr__(self) -> str:
        title = f"Report on {_many(self.records, self.message)} of {_many(self.shards, 'shard')}"
        if 0 < self.sequences < self.records:
            title += f", {_many(self.records - self.sequences, 'record')} without feature lists"
        table = [("feature", "kind", "present", "values", "looks like"), *self.rows()]
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in table]
        conflicts = [f"{feature.name!r}: {'; '.join(map(str, feature.kinds))}" for feature in self.conflicts]
        return "\n".join([title, *lines, *(["values of several kinds:", *conflicts] if conflicts else [])])

    def __str__(self) -> str:
        return f"{self!r}\n\n{self.spec()}"


def _mapping(name: str, features: Sequence[FeatureReport]) -> str:
    return "\n".join([f"{name} = {{", *(f"    {_line(feature)}" for feature in features), "}"])


def _line(feature: FeatureReport) -> str:
    """One feature as a line of a dict."""
    # Whatever a name holds stays within its quotes.
    name = repr(feature.name)
    if name.startswith("'") and '"' not in name:
        name = f'"{name[1:-1]}"'
    if not feature.kinds:
        return f"# {name}: never set"
    if feature.feature is None:
        kinds = "; ".join(f"{kind.kind} in {_many(kind.records, 'record')}" for kind in feature.kinds)
        return f"# {name}: {kinds}"
    comment = "; ".join(map(str, feature.suggestions))
    code = repr(feature.feature).replace("'", '"')
    return f"{name}: dtf.{code}," + (f"  # {comment}" if comment else "")


def _plain(feature: FeatureReport) -> dict[str, Any]:
    """Spell out what is known of a feature, as JSON values."""
    document = asdict(feature)
    document["feature"] = None if feature.feature is None else f"dtf.{feature.feature!r}"
    return document


def _many(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")
