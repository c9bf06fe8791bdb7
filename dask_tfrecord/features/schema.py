"""Schema of a data set: a frozen mapping from names to features.

Schemas are hashable, picklable, and equal after a round trip through JSON.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, ItemsView, Iterable, Iterator, Mapping, Sequence, ValuesView
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from dask_tfrecord.advice import no_attribute
from dask_tfrecord.errors import (
    FEATURES,
    Location,
    SchemaError,
    SchemaNotFoundError,
    Spelled,
    UnknownFeatureError,
    near_misses,
    plural,
    printable,
    redact_url,
)
from dask_tfrecord.features import Feature
from dask_tfrecord.features.encoded import EncodedArray
from dask_tfrecord.features.keys import Scope
from dask_tfrecord.features.message_types import MessageType
from dask_tfrecord.features.metadata.tfds_features import read_features_json
from dask_tfrecord.features.metadata.tfmd import format_pbtxt, read_pbtxt
from dask_tfrecord.features.registry import (
    class_digests,
    feature_of_json,
    from_json,
    from_tensorflow,
    json_of_feature,
    to_json,
)
from dask_tfrecord.shards.remote import read_text
from dask_tfrecord.shards.streams import write_file

# Group of the items of an ExampleListWithContext; their features are named `examples/KEY`.
ITEMS = "examples"


@dataclass(frozen=True, slots=True)
class Sampling:
    """Sample of records that an inferred schema is based on.

    Attributes
    ----------
    records : int
        Number of sampled records.
    shards : int
        Number of shards they come from.
    present : tuple of (str, int)
        For each feature, the number of sampled records that set it.
    unset : tuple of str
        Keys that occurred, but never with a kind or a value. Their kind is unknown, so they are not columns.
    """

    records: int
    shards: int
    present: tuple[tuple[str, int], ...]
    unset: tuple[str, ...] = ()


class Schema(Mapping[str, Feature]):
    """Features of records: a frozen, ordered mapping from feature name to feature class.

    Parameters
    ----------
    features : mapping of str to feature
        Feature classes of this library or of `tf.io`, by name. If records have steps or items, these are the features
        of the context.
    sampling : Sampling, optional
        Set by `infer_schema`: the sample of records that the features are based on.
    sequence_features : mapping of str to feature, optional
        The feature lists of a SequenceExample. If not None, even if empty, records are SequenceExamples.
    example_features : mapping of str to feature, optional
        The features of each item of an ExampleListWithContext of TF-Ranking, by key; feature ``KEY`` is named
        ``examples/KEY`` in the schema. If not None, even if empty, records are ExampleListWithContexts. Can't be
        combined with `sequence_features`.
    classes : mapping of str to sequence of str, optional
        Class names of integer features: value ``i`` has name number ``i``.
    groups : mapping of str to sequence of str, optional
        Groups of ragged features, by name. All features of a group have the same number of items in each record, so
        `to_zarr` stores one array of row splits for the group; it verifies the lengths.
    inner_groups : mapping of str to sequence of str, optional
        For nested rows: the groups, the outermost first, that a feature has inside its own group. They become groups
        when you explode that group. Set for fields of messages.
    message : message class, Descriptor or str, optional
        Type of the records, as for `read_tfrecord`, if they are protobuf messages other than Examples. Features are
        then `ProtoFeature`.
    report : Report, optional
        Set by `infer_schema`: a report on all features that were found, selected or not. Pickles, JSON and comparisons
        leave it out.
    records : Schema, optional
        Set by `Dataset.schema`, whose features describe columns: the features of the records that the columns are read
        from, under the present names of the columns. So ``read_tfrecord(other, ds.schema)`` reads the same columns from
        records like those that ``ds.to_tfrecord`` writes. Comparisons leave it out.

    Raises
    ------
    SchemaError
        If a name is not a string or occurs twice, if a feature has an unknown class, if a group names a feature that is
        unknown, not ragged, or in another group, or if you give both `sequence_features` and `example_features`. If a
        feature of a message is not a `ProtoFeature`, or has a message or a key.

    Examples
    --------
    >>> schema = dtf.Schema({"label": dtf.FixedLenFeature((), "int64")}, classes={"label": ["cat", "dog"]})
    >>> schema["label"]
    FixedLenFeature((), 'int64')
    >>> dtf.Schema.from_json(schema.to_json()) == schema
    True
    """

    _features: dict[str, Feature]
    _steps: frozenset[str]
    message: str
    message_type: MessageType | None
    classes: Mapping[str, tuple[str, ...]]
    groups: Mapping[str, tuple[str, ...]]
    inner_groups: Mapping[str, tuple[str, ...]]
    records: Schema | None
    report: Any
    sampling: Sampling | None

    def __init__(
        self,
        features: Mapping[str, Any],
        sampling: Sampling | None = None,
        *,
        sequence_features: Mapping[str, Any] | None = None,
        example_features: Mapping[str, Any] | None = None,
        classes: Mapping[str, Sequence[str]] | None = None,
        groups: Mapping[str, Sequence[str]] | None = None,
        inner_groups: Mapping[str, Sequence[str]] | None = None,
        message: Any = None,
        report: Any = None,
        records: Schema | None = None,
    ) -> None:
        if not isinstance(features, Mapping):
            raise SchemaError(
                f"features must be a mapping of names to features; got {features!r:.100}{picked(features)}"
            )
        known: dict[str, Feature] = {}
        message_name, steps = _steps_of_message(sequence_features, example_features)
        for name, feature in [*features.items(), *steps.items()]:
            if not isinstance(name, str):
                raise SchemaError(f"expected a string as feature name; got {name!r}")
            if any("\ud800" <= char <= "\udfff" for char in name):
                raise SchemaError(f"feature name {name!a} holds a lone surrogate, which is not valid UTF-8")
            if name in known:
                argument = "example_features" if example_features is not None else "sequence_features"
                raise SchemaError(f"feature {name!r} is in both features and {argument}: names must be distinct")
            known[name] = feature if isinstance(feature, Feature) else from_tensorflow(feature, f"feature {name!r}")
        message_type = None if message is None else MessageType.of(message)
        _check_message_types(known, message_type)
        if message_type is not None:
            if message_name != "Example":
                raise SchemaError(
                    "message= describes records that have no sequence_features or example_features; remove them"
                )
            # A message without a package has a leading dot: it may be named Example.
            message_name = message_type.name if "." in message_type.name else f".{message_type.name}"
        self._set(
            _features=known,
            _steps=frozenset(steps),
            message=message_name,
            message_type=message_type,
            sampling=sampling,
            report=report,
            records=records,
            classes=_checked_classes(classes or {}, known),
            groups=_checked_groups(groups or {}, known, message_name),
            inner_groups={name: tuple(inner) for name, inner in (inner_groups or {}).items() if name in known},
        )

    def _set(self, **attributes: Any) -> Schema:
        """Set attributes of a schema that is being made."""
        for name, value in attributes.items():
            object.__setattr__(self, name, value)
        return self

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise no_attribute("schema", self, name)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a Schema is frozen: create a new one instead of setting {name!r}")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"a Schema is frozen: {name!r} cannot be deleted")

    def __getitem__(self, name: str) -> Feature:
        try:
            return self._features[name]
        except KeyError:
            raise UnknownFeatureError(
                f"no feature {name!r}" + (unset_advice(name, self.sampling) or near_misses(name, self._features))
            ) from None

    def __contains__(self, name: object) -> bool:
        # `Mapping` would call `__getitem__`, whose error compares the name with all others.
        return name in self._features

    def __iter__(self) -> Iterator[str]:
        return iter(self._features)

    def __len__(self) -> int:
        return len(self._features)

    def items(self) -> ItemsView[str, Feature]:
        """Return pairs of names and features, which is faster than looking up each name."""
        return self._features.items()

    def values(self) -> ValuesView[Feature]:
        """Return the features."""
        return self._features.values()

    def __hash__(self) -> int:
        return hash((frozenset(self._features.items()), self._steps, self.message, self.message_type))

    def __eq__(self, other: object) -> bool:
        # Schemas are equal if they decode records equally; their sampling does not matter.
        if isinstance(other, Schema):
            parts = (self.message, self.message_type, self._steps) == (other.message, other.message_type, other._steps)
            return parts and self._features == other._features
        if isinstance(other, Mapping):
            return self.message == "Example" and self._features == dict(other)
        return NotImplemented

    def __reduce__(self) -> tuple[Any, ...]:
        steps: dict[str, Any] = {"sequence_features": self.sequence_features, "example_features": self.example_features}
        groups: dict[str, Any] = {"groups": self.groups, "inner_groups": self.inner_groups}
        named = partial(
            Schema, **steps, classes=self.classes, **groups, message=self.message_type, records=self.records
        )
        return named, (self.context_features, self.sampling)

    def __dask_tokenize__(self) -> tuple[object, ...]:
        # Reading refuses keys that an inferred schema does not have, so `sampling` affects the result.
        return ("dask_tfrecord.Schema", self.to_json(), class_digests(self.values()))

    @property
    def context_features(self) -> dict[str, Feature]:
        """An Example's features, or the context's in a SequenceExample or ExampleListWithContext."""
        return {name: feature for name, feature in self._features.items() if name not in self._steps}

    @property
    def sequence_features(self) -> dict[str, Feature] | None:
        """Feature lists of a SequenceExample; None for other records."""
        if self.message != "SequenceExample":
            return None
        return {name: feature for name, feature in self._features.items() if name in self._steps}

    @property
    def example_features(self) -> dict[str, Feature] | None:
        """Features of each item of an ExampleListWithContext, by key; None for other records."""
        if self.message != "ExampleListWithContext":
            return None
        steps = {name: feature for name, feature in self._features.items() if name in self._steps}
        return {split_item_name(name, self.message)[0]: feature for name, feature in steps.items()}

    def has_steps(self, name: str) -> bool:
        """Return whether a feature is a feature list or belongs to items."""
        return name in self._steps

    def scope_of(self, name: str) -> Scope:
        """Return whether a feature describes the values of a record, a step or an item."""
        if name not in self._steps:
            return "value"
        return "step" if self.message == "SequenceExample" else "item"

    def key_of(self, name: str) -> str:
        """Return the key that a feature reads: by default its name, for items without ``examples/``."""
        own = split_item_name(name, self.message)[0] if name in self._steps else name
        key = self._features[name].stored_key
        return own if key is None else key

    def select(self, names: Iterable[str]) -> Schema:
        """Return a schema with only the features `names`, in that order.

        Raises
        ------
        UnknownFeatureError
            If the schema lacks one of them; the message suggests similar names.
        """
        return self.replaced({name: self[name] for name in names})._set(report=self.report)

    def replaced(
        self, features: Mapping[str, Feature], records: Schema | None = None, steps: Collection[str] | None = None
    ) -> Schema:
        """Return a schema with these features for the same message.

        Features are steps if `steps`, by default those of this schema, name them. The records are kept, unless you give
        others.
        """
        own = self._steps if steps is None else steps
        of_steps = {split_item_name(name, self.message)[0]: of for name, of in features.items() if name in own}
        context = {name: feature for name, feature in features.items() if name not in own}
        made = Schema(
            context,
            sequence_features=of_steps if self.message == "SequenceExample" else None,
            example_features=of_steps if self.message == "ExampleListWithContext" else None,
            classes={name: self.classes[name] for name in features if name in self.classes},
            groups=self.groups_of(features),
            inner_groups=self.inner_groups,
            message=self.message_type,
            records=self.records if records is None else records,
        )
        # Keep the given order across context and steps.
        return made._set(_features={name: made[name] for name in features})

    def renamed(self, names: Mapping[str, str], records: Schema | None) -> Schema:
        """Return the schema with columns renamed; `names` gives the present name for each new name."""
        new = {name: renamed for renamed, name in names.items()}
        return Schema(
            {renamed: self[name] for renamed, name in names.items()},
            classes={new[name]: classes for name, classes in self.classes.items() if name in new},
            groups={group: [new[name] for name in held] for group, held in self.groups_of(names.values()).items()},
            inner_groups={new[name]: inner for name, inner in self.inner_groups.items() if name in new},
            records=records,
        )

    def group_of(self, name: str) -> str | None:
        """Return the group of a feature, or None."""
        return next((group for group, names in self.groups.items() if name in names), None)

    def groups_of(self, names: Collection[str]) -> dict[str, tuple[str, ...]]:
        """Return the groups, restricted to these features; a group without any of them is omitted."""
        kept = {group: tuple(name for name in members if name in names) for group, members in self.groups.items()}
        return {group: members for group, members in kept.items() if members}

    def with_groups(self, groups: Mapping[str, Sequence[str]]) -> Schema:
        """Return the same schema with these groups instead of its own.

        Parameters
        ----------
        groups : mapping of str to sequence of str
            Ragged features of each group, by its name.

        Raises
        ------
        SchemaError
            As for the constructor.

        Examples
        --------
        >>> schema = dtf.Schema({"steps/a": dtf.VarLenFeature("int64"), "steps/b": dtf.VarLenFeature("float32")})
        >>> schema.with_groups({"steps": ["steps/a", "steps/b"]}).groups
        {'steps': ('steps/a', 'steps/b')}
        """
        checked = _checked_groups(groups, self._features, self.message)
        return self.replaced(self._features)._set(groups=checked, sampling=self.sampling, report=self.report)

    def with_classes(self, classes: Mapping[str, Sequence[str]]) -> Schema:
        """Return the same schema with these class names, by feature.

        Examples
        --------
        >>> schema = dtf.infer_schema("train-*.tfrecord")
        >>> schema.with_classes({"label": ["ant", "bee", "cat", "dog", "eel"]}).classes["label"][3]
        'dog'
        """
        for name in classes:
            # Raises the error about an unknown feature.
            self[name]
        given = {name: tuple(names) for name, names in classes.items()}
        return self.replaced(self._features)._set(classes=given, sampling=self.sampling, report=self.report)

    def to_json(self) -> str:
        """Return the schema as JSON text."""
        return json.dumps(self._document(), ensure_ascii=False, allow_nan=False)

    def _document(self) -> dict[str, Any]:
        """Return the schema as JSON values."""
        features = [{"name": name, **json_of_feature(feature)} for name, feature in self.items()]
        document: dict[str, Any] = {"features": features}
        if self.message_type is not None:
            document["message"] = to_json(self.message_type)
        elif self.message != "Example":
            argument = "sequence_features" if self.message == "SequenceExample" else "example_features"
            document[argument] = [name for name in self if name in self._steps]
        labels = {"classes": self.classes, "groups": self.groups, "inner_groups": self.inner_groups}
        for label, lists in labels.items():
            if lists:
                document[label] = {name: list(names) for name, names in lists.items()}
        if self.sampling is not None:
            document["sampling"] = asdict(self.sampling)
        if self.records is not None:
            document["records"] = self.records._document()
        return document

    @classmethod
    def from_json(cls, text: str) -> Schema:
        """Read the schema that `to_json` wrote.

        Raises
        ------
        SchemaError
            If the text is not the JSON of a schema.
        """
        try:
            return cls._of_document(json.loads(text))
        except SchemaError as error:
            raise SchemaError(f"not the JSON of a Schema: {error.message}") from error
        except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
            raise SchemaError(f"not the JSON of a Schema ({error!r}); Schema.to_json writes it") from error

    @classmethod
    def _of_document(cls, document: dict[str, Any]) -> Schema:
        """Return the schema of JSON values, whose entries of features are changed."""
        features = {}
        for entry in document["features"]:
            name = entry.pop("name")
            try:
                features[name] = feature_of_json(entry)
            except (SchemaError, TypeError) as error:
                raise SchemaError(f"feature {name!r}: {error}") from error
        order = list(features)
        sequences, items = document.get("sequence_features"), document.get("example_features")
        sampling, records = document.get("sampling"), document.get("records")
        if sampling is not None:
            present = tuple((name, count) for name, count in sampling["present"])
            sampling = Sampling(**{**sampling, "present": present, "unset": tuple(sampling["unset"])})
        named = None if sequences is None else {name: features.pop(name) for name in sequences}
        of_items = None if items is None else {name.removeprefix(f"{ITEMS}/"): features.pop(name) for name in items}
        made = cls(
            features,
            sampling,
            sequence_features=named,
            example_features=of_items,
            classes=document.get("classes"),
            groups=document.get("groups"),
            inner_groups=document.get("inner_groups"),
            message=from_json(document["message"]) if "message" in document else None,
            records=None if records is None else cls._of_document(records),
        )
        return made._set(_features={name: made[name] for name in order})

    @classmethod
    def read(cls, urlpath: str | os.PathLike[str], *, storage_options: Mapping[str, Any] | None = None) -> Schema:
        """Read a schema from a file.

        The format is detected from the text: the JSON that `to_json` returns, a `schema.pbtxt` of TensorFlow Metadata,
        or a `features.json` of TensorFlow Datasets. TFDS stores class names in separate files, which
        ``read_tfrecord(directory)`` reads, too. ``read_tfrecord(…, features=path)`` calls this method.

        As in TFX, a feature in a `schema.pbtxt` that every record has (presence with `min_fraction` 1) becomes a
        `FixedLenFeature` if its shape or its number of values is fixed; every other feature becomes a `VarLenFeature`.
        The struct ``##SEQUENCE##`` becomes the feature lists of a SequenceExample. Sparse features and tensor
        representations become a `SparseFeature`, a `RaggedFeature` or a default value. Domains are ignored.

        Parameters
        ----------
        urlpath : str or os.PathLike
            Path or fsspec URL.
        storage_options : mapping, optional
            Options for the fsspec file system.

        Returns
        -------
        Schema
            Features of the file. For a `features.json`, class names are missing, because they are in other files.

        Raises
        ------
        SchemaNotFoundError
            If the file does not exist. Also a `FileNotFoundError`.
        SchemaError
            If the text is in none of the three formats, or a feature can't be read as a column.

        Examples
        --------
        >>> schema = dtf.infer_schema("train-*.tfrecord")
        >>> schema.to_pbtxt("schema.pbtxt")
        >>> dtf.Schema.read("schema.pbtxt") == schema
        True
        """
        name = str(urlpath)
        if re.search(r"\.tfrecords?(-\d+-of-\d+)?$", name):
            several = Spelled(
                f"to read several shards, write dtf.read_tfrecord([path, {redact_url(name)!r}])",
                "to read several shards, leave out --features",
            )
            raise SchemaError(f"{redact_url(name)!r} is a shard, not a schema: " + several)
        if "\n" in name and not name.lstrip().startswith("{"):
            raise SchemaError("features is Python code, not the path of a schema: paste it, or write report.schema")
        text = read_text(urlpath, storage_options)
        if text is None:
            missing: str = f"no schema file {redact_url(name)!r} exists"
            if name.lstrip().startswith("{"):
                missing += "; write the JSON into a file, and pass its name"
            elif re.search(r"[.*:]", name):
                missing += "; " + Spelled(
                    f"write pathlib.Path({redact_url(name)!r}).write_text(ds.schema.to_json()) to make one",
                    f"write dask-tfrecord schema PATTERN --format json > {redact_url(name)} to make one",
                )
            else:
                missing += ". " + Spelled(
                    f"The argument features is a dict of features, or the path of such a file. To read only the column "
                    f"{name!r}, write columns=[{name!r}]",
                    f"To read only the column {name}, write --columns {name}",
                )
            raise SchemaNotFoundError(missing)
        try:
            # JSON of a schema begins with a brace; protobuf text never does.
            if not text.lstrip().startswith("{"):
                return cls(**read_pbtxt(text))
            try:
                document = json.loads(text)
            except (ValueError, RecursionError) as error:
                raise SchemaError(
                    f"expected the JSON of a schema, as Schema.to_json writes it, and this is not JSON: {error}"
                ) from error
            return cls.from_json(text) if "features" in document else cls(**read_features_json(text))
        except SchemaError as error:
            raise SchemaError(error.message, Location(str(urlpath))) from error

    def to_pbtxt(self, urlpath: str | os.PathLike[str], *, storage_options: Mapping[str, Any] | None = None) -> None:
        """Write the schema as a `schema.pbtxt` for TensorFlow Metadata, replacing an older file.

        The text describes the stored values: kind, shape, presence, default values, and how ragged and sparse tensors
        are composed. TensorFlow Metadata can't express how values are read, so casts, padding and decoding are left
        out; narrower integers, images and text are written as domains. `to_json` keeps everything, including class
        names.

        Parameters
        ----------
        urlpath : str or os.PathLike
            Path or fsspec URL.
        storage_options : mapping, optional
            Options for the fsspec file system.

        Raises
        ------
        SchemaError
            If TensorFlow Metadata can't express a feature.

        Examples
        --------
        >>> import pathlib
        >>> dtf.Schema({"tokens": dtf.VarLenFeature("int64")}).to_pbtxt("schema.pbtxt")
        >>> print(pathlib.Path("schema.pbtxt").read_text(), end="")
        feature {
          name: "tokens"
          type: INT
        }
        """
        write_file(urlpath, pbtxt(self).encode(), storage_options)

    def rows(self) -> list[tuple[str, str, str, str, str]]:
        """List the features as rows of a table: name, class, dtype, shape, and how many sampled records have it."""
        present = dict(self.sampling.present) if self.sampling else {}
        rows = []
        for name, feature in self.items():
            seen = f"{present.get(name, 0):,} of {self.sampling.records:,}" if self.sampling else ""
            rows.append((name, *feature_cells(feature), seen))
        for name in self.sampling.unset if self.sampling else ():
            rows.append((name, "(never set)", "", "", f"0 of {self.sampling.records if self.sampling else 0}"))
        return rows

    def _table(self) -> tuple[str, list[tuple[str, ...]]]:
        """Return the title of the table of features, and its rows with their header."""
        title = f"Schema of {plural(len(self), 'feature')}"
        if self.sampling is not None:
            title += f", inferred from {plural(self.sampling.records, 'record')} of "
            title += plural(self.sampling.shards, "shard")
        header = ("feature", "class", "dtype", "shape", "present")
        return title, [row[: 5 if self.sampling else 4] for row in (header, *self.rows())]

    def __repr__(self) -> str:
        title, table = self._table()
        return "\n".join([title, *align_columns(table), *group_lines(self)])

    def _repr_html_(self) -> str:
        from dask_tfrecord.markup import html_table

        title, (header, *rows) = self._table()
        return html_table(title, header, rows, group_lines(self))

    def __str__(self) -> str:
        return repr(self)


def pbtxt(schema: Schema) -> str:
    """Format a schema as the text of a `schema.pbtxt`: see `Schema.to_pbtxt`."""
    if schema.message == "ExampleListWithContext":
        raise SchemaError("TensorFlow Metadata describe Examples and SequenceExamples, not lists of Examples")
    return format_pbtxt(schema.context_features, schema.sequence_features, schema.classes)


def split_item_name(name: str, message: str) -> tuple[str, bool]:
    """Find a feature's key in a record of type `message`, and whether its name marks a key of items."""
    is_item = message == "ExampleListWithContext" and name.startswith(f"{ITEMS}/")
    return (name.removeprefix(f"{ITEMS}/"), True) if is_item else (name, False)


def unset_keys(name: str, message: str) -> list[tuple[str, bool]]:
    """Return the keys that `Sampling.unset` may mean by a name, each with True for a feature list or items."""
    return [(name, False), (name, True)] if message == "SequenceExample" else [split_item_name(name, message)]


def _steps_of_message(
    sequence_features: Mapping[str, Any] | None, example_features: Mapping[str, Any] | None
) -> tuple[str, Mapping[Any, Any]]:
    """Return the message of the records, and its features that have steps, by name."""
    if sequence_features is not None and example_features is not None:
        raise SchemaError(
            "sequence_features are those of SequenceExamples, example_features those of ExampleListWithContexts: give "
            "one of them"
        )
    if example_features is not None:
        prefixed = {f"{ITEMS}/{key}" if isinstance(key, str) else key: of for key, of in example_features.items()}
        return "ExampleListWithContext", prefixed
    return ("Example", {}) if sequence_features is None else ("SequenceExample", sequence_features)


def _check_message_types(features: Mapping[str, Any], message: MessageType | None) -> None:
    """Refuse fields of messages of an unknown type, and in records that are messages, everything else."""
    for name, feature in features.items():
        has_type = feature.is_message and feature.message is not None
        if message is None and feature.is_message and not has_type:
            raise SchemaError(
                f"feature {name!r}: {feature} lacks the type of its message: give ProtoFeature(M, {feature.path!r}) "
                f"for messages in bytes of Examples, or message=M for records that are messages"
            )
        if message is not None and (not feature.is_message or has_type or feature.key is not None):
            raise SchemaError(
                f"feature {name!r}: records are messages {message.name}, whose fields are read by "
                f"ProtoFeature('path'); got {feature}"
            )


def _checked_classes(classes: Any, features: Mapping[str, Feature]) -> dict[str, tuple[str, ...]]:
    """Check the names of classes of a schema, and return them as tuples."""
    if not isinstance(classes, Mapping):
        raise SchemaError(
            f"classes must be names by feature: write classes={{'label': ['cat', 'dog']}}; got {classes!r:.100}"
        )
    checked: dict[str, tuple[str, ...]] = {}
    for name, given in classes.items():
        # A feature may have several columns, with names after a dot.
        if name not in features and name.rpartition(".")[0] not in features:
            raise UnknownFeatureError(f"classes: no feature {name!r}{near_misses(name, features)}")
        has_order = isinstance(given, Iterable) and not isinstance(given, str | bytes | Mapping | set | frozenset)
        checked[name] = tuple(given) if has_order else ()
        if not has_order or not all(isinstance(each, str) for each in checked[name]):
            # Numbers by names, or names by numbers.
            pairs = [each for pair in given.items() for each in (pair, pair[::-1])] if isinstance(given, dict) else []
            by_number = {number: label for number, label in pairs if isinstance(number, int)}
            names = [by_number.get(number) for number in range(len(pairs) // 2)]
            written = ["cat", "dog"] if not names or None in names else names
            raise SchemaError(
                f"classes of {name!r} must be a list of names, with name i for class i: write classes={{{name!r}: "
                f"{written}}}; got {given!r:.100}"
            )
    return checked


def _checked_groups(
    groups: Mapping[str, Sequence[str]], features: Mapping[str, Feature], message: str
) -> dict[str, tuple[str, ...]]:
    """Check the groups of a schema, and return them as tuples."""
    checked: dict[str, tuple[str, ...]] = {}
    owners: dict[str, str] = {}
    for group, names in groups.items():
        if not isinstance(group, str) or not group or isinstance(names, str) or not names:
            raise SchemaError(f"a group must be a name with a list of features; got {group!r}: {names!r:.100}")
        if message == "ExampleListWithContext" and group == ITEMS:
            raise SchemaError(f"group {ITEMS!r} is reserved for the items of records; give the group another name")
        for name in names:
            if name not in features:
                raise UnknownFeatureError(f"group {group!r}: no feature {name!r}{near_misses(name, features)}")
            if not features[name].ragged_rank:
                raise SchemaError(
                    f"group {group!r}: columns of a group are ragged; the rows of {name!r} are not ragged: it is "
                    f"{features[name]!r}"
                )
            if name in owners:
                raise SchemaError(f"feature {name!r} is in group {owners[name]!r} and again in group {group!r}")
            owners[name] = group
        checked[group] = tuple(names)
    return checked


def lengths_column(name: str, columns: Mapping[str, Feature]) -> str | None:
    """Return the column with the row lengths of a padded column: ``NAME.lengths``, if it is one integer per row."""
    feature = columns.get(f"{name}.lengths")
    if feature is None or feature.ragged_rank or feature.own_shapes or feature.block_shape:
        return None
    return f"{name}.lengths" if feature.block_dtype.kind in "iu" else None


def group_lines(schema: Schema) -> list[str]:
    """Return a line for each group: its name and its features."""
    return [f"group {group!r}: {printable(', '.join(names))}" for group, names in schema.groups.items()]


def feature_cells(feature: Feature) -> tuple[str, str, str]:
    """Return the class, dtype and shape of a feature as cells of a table."""
    shape = feature.shape
    if isinstance(feature, EncodedArray) and feature.count is not None:
        shape = (feature.count, *shape)
    dtype = "text" if feature.block_dtype.kind == "T" else str(feature.dtype)
    return type(feature).__name__, dtype, str(shape)


def align_columns(table: Sequence[Sequence[str]], right: Collection[int] = ()) -> list[str]:
    """Format rows of cells as lines with aligned columns; `right` lists the columns that are aligned to the right."""
    table = [list(map(printable, row)) for row in table]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]

    def line(row: Sequence[str]) -> str:
        cells = zip(row, widths, strict=True)
        return "  ".join(
            cell.rjust(width) if column in right else cell.ljust(width) for column, (cell, width) in enumerate(cells)
        )

    return [line(row).rstrip() for row in table]


def unset_advice(name: object, sampling: Sampling | None) -> str:
    """Return the end of an error about a key that no sampled record sets; empty for other names."""
    if sampling is None or name not in sampling.unset:
        return ""
    seen = plural(sampling.records, "record")
    unset = f": none of the {seen} looked at sets this key, so its kind is unknown; give "
    return unset + FEATURES + " with its class"


def prefix_groups(features: Mapping[str, Feature]) -> dict[str, tuple[str, ...]]:
    """Return the prefixes of names under which there are several ragged features, and these features.

    Of several prefixes of the same features, the longest is returned. Row lengths are not compared.
    """
    prefix_of: dict[tuple[str, ...], str] = {}
    for name in features:
        parts = name.split("/")
        for depth in range(1, len(parts)):
            prefix = "/".join(parts[:depth])
            below = tuple(
                each for each, feature in features.items() if feature.ragged_rank and each.startswith(f"{prefix}/")
            )
            if below[1:]:
                prefix_of[below] = max(prefix_of.get(below, ""), prefix, key=len)
    return {prefix: below for below, prefix in prefix_of.items()}


def prefix_lines(features: Mapping[str, Feature]) -> list[str]:
    """Return a line for each prefix of several ragged features: the prefix and the features."""
    return [f"prefix {prefix!r}: {', '.join(below)}" for prefix, below in prefix_groups(features).items()]


def schema_from_arguments(
    features: Mapping[str, Any] | None,
    sequence_features: Mapping[str, Any] | None,
    example_features: Mapping[str, Any] | None = None,
    message: Any = None,
) -> Schema:
    """Build the schema that the reader's arguments describe; plain Examples without the others."""
    for argument, given in (
        ("features", features),
        ("sequence_features", sequence_features),
        ("example_features", example_features),
    ):
        if given is not None and not isinstance(given, Mapping):
            raise SchemaError(
                f"{argument} must be a mapping of names to features, or a Schema; got {given!r:.100}{picked(given)}"
            )
    if isinstance(features, Schema):
        if sequence_features is None and example_features is None and message is None:
            return features
        if features.message_type not in (None, None if message is None else MessageType.of(message)):
            raise SchemaError(f"the features are a Schema of messages {features.message}, and other arguments differ")
        features = features.select(features.context_features)
        classes, groups = features.classes, features.groups
    else:
        classes = groups = {}
    return Schema(
        features or {},
        sequence_features=sequence_features,
        example_features=example_features,
        classes=classes,
        groups=groups,
        message=message,
    )


def picked(given: Any) -> str:
    """Return the end of an error: a hint at `columns=` if `given` is a sequence of names, and at names otherwise."""
    names = isinstance(given, list | tuple | set | frozenset) and all(isinstance(name, str) for name in given)
    if names:
        return "; columns= picks features by name when shards are read"
    return "; write {'label': FixedLenFeature((), 'int64')}, with the key of each feature"
