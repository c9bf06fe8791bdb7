"""What TFDS writes for each of its feature classes: a `features.json` becomes the `Schema` that reads the records.

Nested names are joined by "/", sequences of sequences are stored as flat values and row lengths, and whatever is no
integer, float or string goes through one of them. The rules are those of `tensorflow_datasets.core.example_serializer`
and of the `get_serialized_info` of each class; both forms of the file are read, that of 2020 ("type", "content") and
that of today ("pythonClassName" and a field by kind). Looks at text alone and imports features and schema.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from dask_tfrecord.errors import SchemaError
from dask_tfrecord.features import (
    Feature,
    FixedLenFeature,
    ImageFeature,
    RaggedFeature,
    RawFeature,
    RowLengths,
    TextFeature,
    UniformRowLength,
    VarLenFeature,
)
from dask_tfrecord.schema import Schema

__all__ = ["Labels", "schema_of_features"]

# From the stem of a file of labels to the names in it, or None if there is no such file.
Labels = Callable[[str], Sequence[str] | None]

# The field that holds a feature today, by the name of its class.
_KINDS = {
    "FeaturesDict": "featuresDict",
    "Tensor": "tensor",
    "Scalar": "tensor",
    "ClassLabel": "classLabel",
    "Image": "image",
    "LabeledImage": "image",
    "Video": "video",
    "Audio": "audio",
    "BBoxFeature": "boundingBox",
    "Text": "text",
    "Translation": "translation",
    "TranslationVariableLanguages": "translation",
    "Sequence": "sequence",
    "Dataset": "sequence",
}
_STRINGS = ("string", "str", "bytes", "object")
_RAGGED_VALUES, _ROW_LENGTHS = "ragged_flat_values", "ragged_row_lengths_"


def schema_of_features(text: str, labels: Labels = lambda stem: None) -> Schema:
    """Make the schema that reads what TFDS wrote.

    Parameters
    ----------
    text : str
        The text of a `features.json`.
    labels : callable, optional
        Gives the class names of a feature by the stem of their file (``objects-label`` of
        ``objects-label.labels.txt``), or None.

    Returns
    -------
    Schema
        Features by their names in the records, with the names of classes.

    Raises
    ------
    SchemaError
        If the text is no `features.json`, or a class is unknown or stored as nothing here can read.

    Examples
    --------
    >>> schema_of_features('{"pythonClassName": "Translation", "translation": {"languages": ["de", "en"]}}')
    Schema of 2 features
    feature  class        dtype  shape
    de       TextFeature  bytes  ()
    en       TextFeature  bytes  ()
    """
    try:
        kind, content = _kind(json.loads(text))
        if kind not in ("featuresDict", "translation"):
            raise SchemaError(f"the outermost feature of a data set is a FeaturesDict; got {kind}")
        walk = _Walk(labels)
        walk.visit(kind, content, "", "", ())
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        reason = error if isinstance(error, SchemaError) else repr(error)
        raise SchemaError(
            f"features.json can't be read: {reason}; give features=, for which infer_schema(urlpath) makes a proposal"
        ) from error
    return Schema(walk.features, classes=walk.classes)


def _kind(feature: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Which kind a feature is of, and what the file says of it, in the names of today's form."""
    if "type" not in feature:
        cls = str(feature.get("pythonClassName", "")).rpartition(".")[2]
        kind = next((kind for kind in _KINDS.values() if kind in feature), None)
        if kind is not None:
            return kind, {**feature[kind], "class": cls}
        content = json.loads(feature["jsonFeature"]["json"]) if "jsonFeature" in feature else {}
    else:
        cls = str(feature["type"]).rpartition(".")[2]
        content = feature["content"]
        content = json.loads(content) if isinstance(content, str) else content
    if cls not in _KINDS:
        raise SchemaError(f"nothing is known of how class {cls!r} is stored")
    if cls == "FeaturesDict" and "proto_cls" not in feature:
        return "featuresDict", {"features": content}
    # In the older form keys are as in Python: encoding_format for encodingFormat.
    named = {_camel(key): value for key, value in (content or {}).items()}
    return _KINDS[cls], {**named, "class": cls}


def _camel(key: str) -> str:
    first, *rest = key.split("_")
    return first + "".join(part.title() for part in rest)


def _shape(value: Any, otherwise: tuple[int, ...] = ()) -> tuple[int, ...]:
    """Read a shape of either form, -1 where a size is open."""
    if value is None:
        return otherwise
    sizes = value.get("dimensions", ()) if isinstance(value, Mapping) else value
    return tuple(-1 if size is None else int(size) for size in sizes)


def _dtype(value: Any) -> str:
    return "bytes" if value in _STRINGS else str(value)


class _Walk:
    """The features met on the way through the tree.

    Attributes
    ----------
    features : dict of str to Feature
        By their names in the records.
    classes : dict of str to sequence of str
        Names of classes.
    """

    def __init__(self, labels: Labels) -> None:
        self.features: dict[str, Feature] = {}
        self.classes: dict[str, Sequence[str]] = {}
        self._labels = labels

    def visit(self, kind: str, content: dict[str, Any], name: str, stem: str, lengths: tuple[int, ...]) -> None:
        """Take a feature and all within.

        `stem` is what its file of labels is called, `lengths` has a size for each sequence around it, the outermost
        first, -1 where it is open.
        """
        if kind == "featuresDict":
            for child, feature in content.get("features", {}).items():
                # As TFDS names files: "/" of a name is ".", levels are joined by "-".
                below = child.replace("/", ".")
                below = "-".join([*stem.split("/"), below]) if stem else below
                self.visit(*_kind(feature), f"{name}/{child}" if name else child, below, lengths)
        elif kind == "sequence":
            length = content.get("length", 0)
            size = -1 if length is None else int(length)
            self.visit(*_kind(content["feature"]), name, stem, (*lengths, size))
        elif kind == "translation":
            self._translation(content, name, lengths)
        else:
            try:
                self._leaf(kind, content, name, lengths)
                self._names(kind, content, name, stem)
            except SchemaError as error:
                raise SchemaError(f"feature {name!r}: {error}") from None

    def _translation(self, content: dict[str, Any], name: str, lengths: tuple[int, ...]) -> None:
        various = content["class"] == "TranslationVariableLanguages" or content.get("variableLanguagesPerExample")
        keys = ("language", "translation") if various else content["languages"]
        for key in keys:
            self._text({}, f"{name}/{key}" if name else key, (*lengths, -1) if various else lengths)

    def _leaf(self, kind: str, content: dict[str, Any], name: str, lengths: tuple[int, ...]) -> None:
        if kind == "classLabel":
            self._values(name, "int64", (), lengths)
        elif kind == "boundingBox":
            self._values(name, "float32", (4,), lengths)
        elif kind == "text":
            self._text(content, name, lengths)
        elif kind == "image":
            self._image(content, name, _shape(content.get("shape"), (-1, -1, 3)), lengths)
        elif kind == "video":
            frames, *frame = _shape(content.get("shape")) or (-1, -1, -1, 3)
            self._image(content, name, tuple(frame), (*lengths, frames))
        elif kind == "audio" and content.get("lazyDecode"):
            # The file as it was: FLAC, MP3 or such.
            self._values(name, "bytes", (), lengths)
        else:
            shape = _shape(content.get("shape"), (-1,) if kind == "audio" else ())
            self._tensor(content, name, shape, lengths)

    def _text(self, content: dict[str, Any], name: str, lengths: tuple[int, ...]) -> None:
        if content.get("useEncoder"):
            self._values(name, "int64", (-1,), lengths)
        elif lengths:
            self._values(name, "bytes", (), lengths)
        else:
            self._add(name, TextFeature("" if content.get("optional") else None))

    def _image(self, content: dict[str, Any], name: str, shape: tuple[int, ...], lengths: tuple[int, ...]) -> None:
        dtype = str(content.get("dtype") or "uint8")
        if len(shape) != 3:
            raise SchemaError(f"an image has height, width and channels; got shape {shape}")
        if dtype == "float32":
            # One float a pixel, its four bytes stored as four channels.
            shape, dtype = (*shape[:2], 4), "uint8"
        channels = shape[2] if shape[2] in (1, 3, 4) else 0
        if not lengths:
            self._add(name, ImageFeature(shape, dtype, channels=channels))
        elif len(lengths) == 1 and -1 not in shape:
            self._add(name, ImageFeature((-1, *shape), dtype, channels=channels))
        else:
            self._values(name, "bytes", (), lengths)

    def _tensor(self, content: dict[str, Any], name: str, shape: tuple[int, ...], lengths: tuple[int, ...]) -> None:
        dtype = _dtype(content.get("dtype", "int64"))
        encoding = str(content.get("encoding") or "none").lower()
        if shape.count(-1) > 1:
            # Of several open sizes the record says all.
            self._values(f"{name}/shape", "int32", (len(shape),), lengths)
            name = f"{name}/value"
        if encoding == "none":
            self._values(name, dtype, shape, lengths, _missing(dtype, shape) if content.get("optional") else None)
        elif encoding == "bytes" and not lengths:
            sizes = shape if -1 not in shape[1:] else (-1,)
            self._add(name, RawFeature(sizes, np.dtype(dtype).newbyteorder("<").str))
        else:
            self._values(name, "bytes", (), lengths)

    def _values(
        self, name: str, dtype: str, shape: tuple[int, ...], lengths: tuple[int, ...], default: Any = None
    ) -> None:
        """Add values that the record lists, in the shape that they had before they were written flat."""
        sizes = (*lengths, *shape)
        if len(lengths) > 1:
            self._ragged(name, dtype, shape, len(lengths))
        elif -1 not in sizes:
            self._add(name, FixedLenFeature(sizes, dtype, default))
        elif sizes[0] == -1 and -1 not in sizes[1:]:
            self._add(name, VarLenFeature(dtype, shape=sizes))
        else:
            # Which sizes they had can't be told from their number.
            self._add(name, VarLenFeature(dtype))

    def _ragged(self, name: str, dtype: str, shape: tuple[int, ...], rank: int) -> None:
        lengths = (RowLengths(f"{name}/{_ROW_LENGTHS}{level}") for level in range(rank - 1))
        uniform = (UniformRowLength(size) for size in shape)
        self._add(name, RaggedFeature(dtype, f"{name}/{_RAGGED_VALUES}", (*lengths, *uniform)))

    def _add(self, name: str, feature: Feature) -> None:
        if name in self.features:
            raise SchemaError("two features have this name")
        self.features[name] = feature

    def _names(self, kind: str, content: dict[str, Any], name: str, stem: str) -> None:
        """Take note of the names of classes."""
        if kind == "classLabel" or content.get("class") == "LabeledImage" or "label" in content:
            names = content.get("names") or content.get("labels") or self._labels(stem)
            if names and not isinstance(names, int):
                self.classes[name] = tuple(names)


def _missing(dtype: str, shape: tuple[int, ...]) -> Any:
    """Give what TFDS gives for an optional tensor that a record lacks: the least value, no bytes, False."""
    if dtype == "bytes":
        return b""
    found = np.dtype(dtype)
    if found.kind == "b":
        return False
    return int(np.iinfo(found).min) if found.kind in "iu" else float(np.finfo(found).min)
