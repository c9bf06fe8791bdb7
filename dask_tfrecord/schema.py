"""What a record holds: feature classes under TensorFlow's names, and the schema that maps names to them.

A feature says how the values of one key become an array; a `Schema` is the frozen mapping that decoding, planning
and the stores agree on. Both are plain values: hashable, picklable, and the same after a round trip through JSON.
"""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from dask_tfrecord.errors import SchemaError, UnknownFeatureError

__all__ = [
    "Feature",
    "FixedLenFeature",
    "RawFeature",
    "Sampling",
    "Schema",
    "TextFeature",
    "VarLenFeature",
    "near_misses",
]

# The three lists a Feature message can hold, under every name that tf.io, NumPy and Python users have for them.
_KINDS = {
    "int64": "int64",
    "float32": "float32",
    "float": "float32",
    "bytes": "bytes",
    "string": "bytes",
    "object": "bytes",
}


def _kind(dtype: Any, owner: str) -> str:
    """Name of the value kind for `dtype`: "int64", "float32" or "bytes"."""
    name = dtype if isinstance(dtype, str) else getattr(dtype, "name", None)
    if name not in _KINDS:
        name = "bytes" if dtype in (bytes, object) else _dtype(dtype, owner).name
    if name not in _KINDS:
        raise SchemaError(
            f"{owner} takes dtype int64, float32 or bytes, the kinds an Example stores; got {dtype!r}. "
            f"For arrays stored as bytes use RawFeature(shape, dtype)"
        )
    return _KINDS[name]


def _dtype(dtype: Any, owner: str) -> np.dtype[Any]:
    # TensorFlow's dtypes know the NumPy type they stand for.
    dtype = getattr(dtype, "as_numpy_dtype", dtype)
    try:
        known: np.dtype[Any] = np.dtype(dtype)
        return known
    except TypeError:
        raise SchemaError(f"{owner}: {dtype!r} is no NumPy dtype") from None


def _shape(shape: Any, owner: str, *, ragged: bool = False) -> tuple[int, ...]:
    """`shape` as a tuple of sizes; with `ragged` the first one is -1."""
    if isinstance(shape, int | np.integer):
        shape = (shape,)
    try:
        sizes = tuple(-1 if size is None else int(size) for size in shape)
    except TypeError:
        raise SchemaError(f"{owner}: the shape {shape!r} is no sequence of ints") from None
    fixed = sizes[1:] if ragged else sizes
    if ragged and sizes[:1] != (-1,):
        raise SchemaError(f"{owner}: the shape of one record starts with -1, as in (-1, 4); got {sizes}")
    if any(size < (1 if ragged else 0) for size in fixed):
        raise SchemaError(f"{owner}: every size of the shape is known and positive; got {sizes}")
    return sizes


@dataclass(frozen=True, slots=True)
class FixedLenFeature:
    """A feature with the same number of values in every record, as `tf.io.FixedLenFeature`.

    A record without it, or with another number of values, is an error.

    Parameters
    ----------
    shape : tuple of int
        Shape of one record's values; ``()`` for a scalar.
    dtype : str or dtype
        ``"int64"``, ``"float32"`` or ``"bytes"`` (``"string"``, `bytes` and `object` mean the same).

    Examples
    --------
    >>> FixedLenFeature((), "int64")
    FixedLenFeature((), 'int64')
    """

    kind: ClassVar[str] = "fixed"
    shape: tuple[int, ...]
    dtype: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", _shape(self.shape, "FixedLenFeature"))
        object.__setattr__(self, "dtype", _kind(self.dtype, "FixedLenFeature"))

    @property
    def block_dtype(self) -> np.dtype[Any]:
        """The dtype of a decoded array: object for bytes."""
        return np.dtype(object if self.dtype == "bytes" else self.dtype)

    @property
    def block_shape(self) -> tuple[int, ...]:
        """Shape of one record in a decoded array."""
        return self.shape

    def __repr__(self) -> str:
        return f"FixedLenFeature({self.shape}, {self.dtype!r})"


@dataclass(frozen=True, slots=True)
class VarLenFeature:
    """A feature with any number of values per record, none included, as `tf.io.VarLenFeature`.

    Parameters
    ----------
    dtype : str or dtype
        ``"int64"``, ``"float32"`` or ``"bytes"``.
    shape : tuple of int, default (-1,)
        Shape of one record's array: ``(-1, 4)`` makes rows of four values each (boxes); a number of values that does
        not divide is an error.

    Examples
    --------
    >>> VarLenFeature("float32", shape=(-1, 4))
    VarLenFeature('float32', shape=(-1, 4))
    """

    kind: ClassVar[str] = "varlen"
    dtype: str
    shape: tuple[int, ...] = field(default=(-1,), kw_only=True)

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", _kind(self.dtype, "VarLenFeature"))
        object.__setattr__(self, "shape", _shape(self.shape, "VarLenFeature", ragged=True))

    @property
    def block_dtype(self) -> np.dtype[Any]:
        """The dtype of a decoded array: object, one array per record."""
        return np.dtype(object)

    @property
    def block_shape(self) -> tuple[int, ...]:
        """Shape of one record in a decoded array: it is one object."""
        return ()

    def __repr__(self) -> str:
        shape = "" if self.shape == (-1,) else f", shape={self.shape}"
        return f"VarLenFeature({self.dtype!r}{shape})"


@dataclass(frozen=True, slots=True)
class RawFeature:
    """An array stored as the bytes of one value, as `tf.io.decode_raw` reads it.

    Parameters
    ----------
    shape : tuple of int
        Shape of one record's array; its bytes are in C order.
    dtype : str or dtype
        Any numeric or bool NumPy dtype; it carries the byte order of the file (``">i2"``). Decoded arrays are in
        native order.

    Examples
    --------
    >>> RawFeature((64, 64, 3), "float32").nbytes
    49152
    """

    kind: ClassVar[str] = "raw"
    shape: tuple[int, ...]
    dtype: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", _shape(self.shape, "RawFeature"))
        dtype = _dtype(self.dtype, "RawFeature")
        if dtype.kind not in "biufc" or dtype.hasobject:
            raise SchemaError(f"RawFeature takes a numeric or bool dtype; got {dtype}")
        # One spelling per dtype, so that equal features are equal values.
        native = dtype.isnative
        object.__setattr__(self, "dtype", dtype.name if native else dtype.str)

    @property
    def stored_dtype(self) -> np.dtype[Any]:
        """The dtype in the file, byte order included."""
        return np.dtype(self.dtype)

    @property
    def nbytes(self) -> int:
        """Bytes of one record's value."""
        return math.prod(self.shape) * self.stored_dtype.itemsize

    @property
    def block_dtype(self) -> np.dtype[Any]:
        """The dtype of a decoded array, in native byte order."""
        return self.stored_dtype.newbyteorder("=")

    @property
    def block_shape(self) -> tuple[int, ...]:
        """Shape of one record in a decoded array."""
        return self.shape

    def __repr__(self) -> str:
        return f"RawFeature({self.shape}, {self.dtype!r})"


@dataclass(frozen=True, slots=True)
class TextFeature:
    """One UTF-8 string per record, decoded to NumPy's `StringDType`.

    Bytes that are no UTF-8 are an error that names the record.

    Examples
    --------
    >>> TextFeature()
    TextFeature()
    """

    kind: ClassVar[str] = "text"

    @property
    def dtype(self) -> str:
        """The kind of value in the file: bytes."""
        return "bytes"

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one record's values: a scalar."""
        return ()

    @property
    def block_dtype(self) -> np.dtype[Any]:
        """The dtype of a decoded array: `numpy.dtypes.StringDType`."""
        return np.dtypes.StringDType()

    @property
    def block_shape(self) -> tuple[int, ...]:
        """Shape of one record in a decoded array."""
        return ()


Feature = FixedLenFeature | VarLenFeature | RawFeature | TextFeature
_CLASSES: dict[str, type[Any]] = {
    cls.__name__: cls for cls in (FixedLenFeature, VarLenFeature, RawFeature, TextFeature)
}


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
        `FixedLenFeature`, `VarLenFeature`, `RawFeature` or `TextFeature` by name.
    sampling : Sampling, optional
        Set by `infer_schema`: what the features were inferred from.

    Raises
    ------
    SchemaError
        If a name is no string or a feature is of no known class.

    Examples
    --------
    >>> schema = Schema({"label": FixedLenFeature((), "int64")})
    >>> schema["label"]
    FixedLenFeature((), 'int64')
    >>> Schema.from_json(schema.to_json()) == schema
    True
    """

    __slots__ = ("_features", "sampling")
    _features: dict[str, Feature]
    sampling: Sampling | None

    def __init__(self, features: Mapping[str, Feature], sampling: Sampling | None = None) -> None:
        for name, feature in features.items():
            if not isinstance(name, str):
                raise SchemaError(f"feature names are strings; got {name!r}")
            if not isinstance(feature, Feature):
                raise SchemaError(f"feature {name!r}: expected one of {', '.join(_CLASSES)}; got {feature!r}")
        object.__setattr__(self, "_features", dict(features))
        object.__setattr__(self, "sampling", sampling)

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
        return hash(frozenset(self._features.items()))

    def __eq__(self, other: object) -> bool:
        # Two schemas are the same if they decode the same; how they were found does not matter.
        if isinstance(other, Mapping):
            return self._features == dict(other)
        return NotImplemented

    def __reduce__(self) -> tuple[type[Schema], tuple[dict[str, Feature], Sampling | None]]:
        return Schema, (self._features, self.sampling)

    def __dask_tokenize__(self) -> tuple[object, ...]:
        # `sampling` closes a schema against features it has not seen, so it is part of what is read.
        return ("dask_tfrecord.Schema", self.to_json())

    def select(self, names: Iterable[str]) -> Schema:
        """Keep only the features of `names`, in that order.

        Raises
        ------
        UnknownFeatureError
            If the schema lacks one of them; near misses are named.
        """
        return Schema({name: self[name] for name in names})

    def to_json(self) -> str:
        """Write the schema as JSON text, for attributes of stores and for people."""
        features = [
            {"name": name, "class": type(feature).__name__, **_fields(feature)} for name, feature in self.items()
        ]
        document: dict[str, Any] = {"features": features}
        if self.sampling is not None:
            document["sampling"] = {
                "records": self.sampling.records,
                "shards": self.sampling.shards,
                "present": [list(pair) for pair in self.sampling.present],
                "unset": list(self.sampling.unset),
            }
        return json.dumps(document, ensure_ascii=False)

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
            features = {entry.pop("name"): _CLASSES[entry.pop("class")](**entry) for entry in document["features"]}
            sampling = document.get("sampling")
            if sampling is not None:
                present = tuple((name, count) for name, count in sampling["present"])
                sampling = Sampling(sampling["records"], sampling["shards"], present, tuple(sampling["unset"]))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise SchemaError(f"not the JSON of a Schema ({error!r}): {text[:200]!r}") from error
        return cls(features, sampling)

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


def _fields(feature: Feature) -> dict[str, Any]:
    """Give the arguments that make `feature` again."""
    if isinstance(feature, TextFeature):
        return {}
    return {"shape": list(feature.shape), "dtype": feature.dtype}


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
