"""The schema of a collection: a frozen mapping from names to features that decoding, planning and stores agree on.

Schemas are plain values: hashable, picklable, and the same after a round trip through JSON.
"""

from __future__ import annotations

import base64
import difflib
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dask_tfrecord import features as feature_classes
from dask_tfrecord.errors import SchemaError, UnknownFeatureError
from dask_tfrecord.features import Feature, from_tensorflow

__all__ = ["Sampling", "Schema", "near_misses"]


@dataclass(frozen=True, slots=True)
class Sampling:
    """What an inferred schema was inferred from.

    Attributes
    ----------
    records : int
        Records looked at.
    shards : int
        Shards they came from.
    present : tuple of (str, int)
        For each feature, the number of those records that set it.
    unset : tuple of str
        Keys that were there, but never with a kind or a value: nothing says what they hold, so they are no columns.
    """

    records: int
    shards: int
    present: tuple[tuple[str, int], ...]
    unset: tuple[str, ...] = ()


class Schema(Mapping[str, Feature]):
    """A frozen, ordered mapping from feature name to feature class.

    Parameters
    ----------
    features : mapping of str to feature
        Feature classes of this library or of `tf.io`, by name; of a SequenceExample those of the context.
    sampling : Sampling, optional
        Set by `infer_schema`: what the features were inferred from.
    sequence_features : mapping of str to feature, optional
        The feature lists of a SequenceExample. Where it is given, empty or not, records are SequenceExamples.
    classes : mapping of str to sequence of str, optional
        Names of the classes that the integers of a feature stand for.
    report : Report, optional
        Set by `infer_schema`: all that was found. It is no part of pickles, of the JSON and of comparisons.

    Raises
    ------
    SchemaError
        If a name is no string or is given twice, or a feature is of no known class or does not go where it stands.

    Examples
    --------
    >>> schema = dtf.Schema({"label": dtf.FixedLenFeature((), "int64")}, classes={"label": ["cat", "dog"]})
    >>> schema["label"]
    FixedLenFeature((), 'int64')
    >>> dtf.Schema.from_json(schema.to_json()) == schema
    True
    """

    __slots__ = ("_features", "_sequences", "classes", "report", "sampling")
    _features: dict[str, Feature]
    _sequences: frozenset[str] | None
    classes: Mapping[str, tuple[str, ...]]
    report: Any
    sampling: Sampling | None

    def __init__(
        self,
        features: Mapping[str, Any],
        sampling: Sampling | None = None,
        *,
        sequence_features: Mapping[str, Any] | None = None,
        classes: Mapping[str, Sequence[str]] | None = None,
        report: Any = None,
    ) -> None:
        known: dict[str, Feature] = {}
        for name, feature in [*features.items(), *(sequence_features or {}).items()]:
            if not isinstance(name, str):
                raise SchemaError(f"feature names are strings; got {name!r}")
            if name in known:
                raise SchemaError(
                    f"feature {name!r} is among the features and the sequence_features: names are distinct"
                )
            known[name] = from_tensorflow(feature, f"feature {name!r}")
        object.__setattr__(self, "_features", known)
        object.__setattr__(self, "_sequences", None if sequence_features is None else frozenset(sequence_features))
        object.__setattr__(self, "sampling", sampling)
        object.__setattr__(self, "report", report)
        object.__setattr__(self, "classes", {name: tuple(names) for name, names in (classes or {}).items()})

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a Schema is frozen: make a new one instead of setting {name!r}")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"a Schema is frozen: {name!r} can't be deleted")

    def __getitem__(self, name: str) -> Feature:
        try:
            return self._features[name]
        except KeyError:
            raise UnknownFeatureError(f"no feature {name!r}{near_misses(name, self._features)}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._features)

    def __len__(self) -> int:
        return len(self._features)

    def __hash__(self) -> int:
        return hash((frozenset(self._features.items()), self._sequences))

    def __eq__(self, other: object) -> bool:
        # Two schemas are the same if they decode the same; how they were found does not matter.
        if isinstance(other, Schema):
            return self._features == other._features and self._sequences == other._sequences
        if isinstance(other, Mapping):
            return self._sequences is None and self._features == dict(other)
        return NotImplemented

    def __reduce__(self) -> tuple[Any, ...]:
        return _schema, (self.context_features, self.sampling, self.sequence_features, self.classes)

    def __dask_tokenize__(self) -> tuple[object, ...]:
        # `sampling` closes a schema against features it has not seen, so it is part of what is read.
        return ("dask_tfrecord.Schema", self.to_json())

    @property
    def context_features(self) -> dict[str, Feature]:
        """The features of an Example, or of the context of a SequenceExample."""
        return {name: feature for name, feature in self._features.items() if name not in (self._sequences or ())}

    @property
    def sequence_features(self) -> dict[str, Feature] | None:
        """The feature lists of a SequenceExample; None where records are Examples."""
        if self._sequences is None:
            return None
        return {name: feature for name, feature in self._features.items() if name in self._sequences}

    @property
    def message(self) -> str:
        """What records are: "Example" or "SequenceExample"."""
        return "Example" if self._sequences is None else "SequenceExample"

    def select(self, names: Iterable[str]) -> Schema:
        """Keep only the features of `names`, in that order.

        Raises
        ------
        UnknownFeatureError
            If the schema lacks one of them; near misses are named.
        """
        return self.replaced({name: self[name] for name in names})

    def replaced(self, features: Mapping[str, Feature]) -> Schema:
        """Make a schema of these features, each where the one of its name stands here."""
        sequences = None
        if self._sequences is not None:
            sequences = {name: feature for name, feature in features.items() if name in self._sequences}
        context = {name: feature for name, feature in features.items() if name not in (self._sequences or ())}
        made = Schema(context, sequence_features=sequences, classes=_only(self.classes, features))
        # In the order given, whatever stands where.
        object.__setattr__(made, "_features", {name: made[name] for name in features})
        return made

    def to_json(self) -> str:
        """Write the schema as JSON text, for attributes of stores and for people."""
        features = [
            {"name": name, "class": type(feature).__name__, **_plain(feature.arguments())}
            for name, feature in self.items()
        ]
        document: dict[str, Any] = {"features": features}
        if self._sequences is not None:
            document["sequence_features"] = [name for name in self if name in self._sequences]
        if self.classes:
            document["classes"] = {name: list(names) for name, names in self.classes.items()}
        if self.sampling is not None:
            document["sampling"] = {
                "records": self.sampling.records,
                "shards": self.sampling.shards,
                "present": [list(pair) for pair in self.sampling.present],
                "unset": list(self.sampling.unset),
            }
        return json.dumps(document, ensure_ascii=False, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> Schema:
        """Read the schema that `to_json` wrote.

        Raises
        ------
        SchemaError
            If the text is something else.
        """
        try:
            document = json.loads(text)
            features = {entry.pop("name"): _made(entry) for entry in document["features"]}
            sequences = document.get("sequence_features")
            sampling = document.get("sampling")
            if sampling is not None:
                present = tuple((name, count) for name, count in sampling["present"])
                sampling = Sampling(sampling["records"], sampling["shards"], present, tuple(sampling["unset"]))
            named = None if sequences is None else {name: features.pop(name) for name in sequences}
            order = [entry["name"] for entry in json.loads(text)["features"]]
            made = cls(features, sampling, sequence_features=named, classes=document.get("classes"))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise SchemaError(f"not the JSON of a Schema ({error!r}): {text[:200]!r}") from error
        object.__setattr__(made, "_features", {name: made[name] for name in order})
        return made

    def rows(self) -> list[tuple[str, str, str, str, str]]:
        """List the schema as rows of text: feature, class, dtype, shape and how many sampled records had it."""
        present = dict(self.sampling.present) if self.sampling else {}
        rows = []
        for name, feature in self.items():
            seen = f"{present.get(name, 0)} of {self.sampling.records}" if self.sampling else ""
            rows.append((name, type(feature).__name__, str(feature.dtype), str(feature.shape), seen))
        for name in self.sampling.unset if self.sampling else ():
            rows.append((name, "(never set)", "", "", f"0 of {self.sampling.records if self.sampling else 0}"))
        return rows

    def __repr__(self) -> str:
        title = f"Schema of {_number(len(self), 'feature')}"
        if self.sampling is not None:
            title += f", inferred from {_number(self.sampling.records, 'record')} of "
            title += _number(self.sampling.shards, "shard")
        header = ("feature", "class", "dtype", "shape", "present")
        table = [header[: 5 if self.sampling else 4], *(row[: 5 if self.sampling else 4] for row in self.rows())]
        return "\n".join([title, *_aligned(table)])

    def __str__(self) -> str:
        return repr(self)


def _number(count: int, noun: str) -> str:
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def _schema(*arguments: Any) -> Schema:
    features, sampling, sequence_features, classes = arguments
    return Schema(features, sampling, sequence_features=sequence_features, classes=classes)


def _only(classes: Mapping[str, Sequence[str]], names: Iterable[str]) -> dict[str, Sequence[str]]:
    return {name: classes[name] for name in names if name in classes}


def _plain(value: Any) -> Any:
    """Arguments of features as JSON values: bytes, floats that are no numbers and partitions are spelled out."""
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if isinstance(value, bytes):
        return {"base64": base64.b64encode(value).decode("ascii")}
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": repr(value)}
    if isinstance(value, feature_classes.UniformRowLength):
        return {"partition": "UniformRowLength", "length": value.length}
    if isinstance(value, feature_classes.KeyedPartition):
        return {"partition": type(value).__name__, "key": value.key}
    return value


def _read(value: Any) -> Any:
    """Arguments that `_plain` made JSON values of."""
    if isinstance(value, list):
        return tuple(_read(item) for item in value)
    if not isinstance(value, dict):
        return value
    if "base64" in value:
        return base64.b64decode(value["base64"])
    if "float" in value:
        return float(value["float"])
    return getattr(feature_classes, value["partition"])(value["key"] if "key" in value else value["length"])


def _made(entry: dict[str, Any]) -> Feature:
    """Make a feature of what `Schema.to_json` wrote of it."""
    cls = getattr(feature_classes, entry.pop("class"))
    if not issubclass(cls, Feature):
        raise ValueError(f"{cls.__name__} is no feature class")
    made: Feature = cls(**{name: _read(value) for name, value in entry.items()})
    return made


def _aligned(table: Sequence[Sequence[str]]) -> list[str]:
    """Rows of cells as lines with aligned columns."""
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in table]


def near_misses(name: object, names: Iterable[str]) -> str:
    """End a sentence with what may have been meant, or with all there is."""
    names = [str(known) for known in names]
    close = difflib.get_close_matches(str(name), names, n=3, cutoff=0.5)
    if close:
        return f"; did you mean {' or '.join(map(repr, close))}?"
    shown = ", ".join(map(repr, names[:10])) + (", …" if len(names) > 10 else "")
    return f"; there are {shown}" if names else "; there are none"
