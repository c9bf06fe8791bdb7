"""Read the features of a TFDS data set from its `features.json`."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from dask_tfrecord.errors import FEATURES, SchemaError
from dask_tfrecord.features import (
    Encoded,
    Feature,
    FixedLenFeature,
    FloatImageFeature,
    ImageFeature,
    RaggedFeature,
    RawFeature,
    RowLengths,
    TextFeature,
    UniformRowLength,
    VarLenFeature,
)

RAGGED_VALUES = "ragged_flat_values"
# Returns the class names in a label file, given the stem of its name, or None if the file does not exist.
ReadLabels = Callable[[str], Sequence[str] | None]

# Field of the current format that holds a feature, by class name.
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
_ROW_LENGTHS = "ragged_row_lengths_"


def read_features_json(text: str, labels: ReadLabels = lambda stem: None) -> dict[str, Any]:
    """Read a `features.json`.

    Parameters
    ----------
    text : str
        Text of the `features.json`.
    labels : callable, optional
        Returns the class names of a feature, given the stem of their file (``objects-label`` for
        ``objects-label.labels.txt``), or None.

    Returns
    -------
    dict
        Arguments of `Schema`: features by their keys in the records, the class names, and groups. Fields of a sequence
        are a group if its items are dictionaries: the steps of an episode.

    Raises
    ------
    SchemaError
        If the text is not a `features.json`, or a feature class is unknown or its storage format can't be read.

    Examples
    --------
    >>> read_features_json('{"pythonClassName": "Translation", "translation": {"languages": ["de", "en"]}}')["features"]
    {'de': TextFeature(), 'en': TextFeature()}
    """
    try:
        kind, content = _kind(json.loads(text))
        if kind not in ("featuresDict", "translation"):
            raise SchemaError(f"the outermost feature of a data set must be a FeaturesDict; got {kind}")
        collector = _FeatureCollector(labels)
        collector.visit(kind, content, "", "", ())
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        reason = error if isinstance(error, SchemaError) else repr(error)
        raise SchemaError(
            f"features.json can't be read: {reason}; give " + FEATURES + ", for example those of infer_schema(urlpath)"
        ) from error
    return {"features": collector.features, "classes": collector.classes, "groups": collector.groups}


def _kind(feature: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the kind of a feature and its description, with the field names of the current format."""
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
        if not cls:
            raise SchemaError(
                "it has neither the 'pythonClassName' or 'type' that TFDS writes, nor the 'features' of a Schema"
            )
        raise SchemaError(f"the storage format of class {cls!r} is unknown")
    if cls == "FeaturesDict" and "proto_cls" not in feature:
        return "featuresDict", {"features": content}
    # The older format has names in snake case: encoding_format for encodingFormat.
    named = {_camel(key): value for key, value in (content or {}).items()}
    return _KINDS[cls], {**named, "class": cls}


def _camel(key: str) -> str:
    first, *rest = key.split("_")
    return first + "".join(part.title() for part in rest)


def _tfds_shape(value: Any, otherwise: tuple[int, ...] = ()) -> tuple[int, ...]:
    """Read a shape in either format; an unknown size is -1."""
    if value is None:
        return otherwise
    sizes = value.get("dimensions", ()) if isinstance(value, Mapping) else value
    return tuple(-1 if size is None else int(size) for size in sizes)


class _FeatureCollector:
    """Visitor that collects the features of a tree of TFDS features, their class names, and their groups.

    A group holds the fields of a sequence of variable length whose items are dictionaries.
    """

    def __init__(self, labels: ReadLabels) -> None:
        self.features: dict[str, Feature] = {}
        self.classes: dict[str, Sequence[str]] = {}
        self.groups: dict[str, list[str]] = {}
        self._labels = labels
        # The outermost sequence around the visited feature.
        self._group: str | None = None

    def visit(self, kind: str, content: dict[str, Any], name: str, stem: str, lengths: tuple[int, ...]) -> None:
        """Add a feature of a kind and all features nested in it.

        `name` is its key in the records, and the name of its label file begins with `stem`. `lengths` has the length of
        each sequence around it, the outermost first; -1 if one varies.
        """
        if kind == "featuresDict":
            for child, feature in content.get("features", {}).items():
                # TFDS replaces "/" in the name of a label file by "." and joins levels by "-".
                below = child.replace("/", ".")
                below = "-".join([*stem.split("/"), below]) if stem else below
                self.visit(*_kind(feature), f"{name}/{child}" if name else child, below, lengths)
        elif kind == "sequence":
            length = content.get("length", 0)
            size = -1 if length is None else int(length)
            inner, described = _kind(content["feature"])
            if not lengths and name:
                self._group = name if size == -1 and inner == "featuresDict" else None
            self.visit(inner, described, name, stem, (*lengths, size))
            if not lengths:
                self._group = None
        elif kind == "translation":
            self._translation(content, name, lengths)
        else:
            try:
                self._leaf(kind, content, name, lengths)
                self._add_classes(kind, content, name, stem)
            except SchemaError as error:
                raise SchemaError(f"feature {name!r}: {error}") from None

    def _translation(self, content: dict[str, Any], name: str, lengths: tuple[int, ...]) -> None:
        various = content["class"] == "TranslationVariableLanguages" or content.get("variableLanguagesPerExample")
        keys = ("language", "translation") if various else content["languages"]
        for key in keys:
            self._text({}, f"{name}/{key}" if name else key, (*lengths, -1) if various else lengths)

    def _leaf(self, kind: str, content: dict[str, Any], name: str, lengths: tuple[int, ...]) -> None:
        """Add the feature of a class that holds values, in as many levels of sequences as `lengths` has."""
        if kind == "classLabel":
            self._add_listed(name, "int64", (), lengths)
        elif kind == "boundingBox":
            self._add_listed(name, "float32", (4,), lengths)
        elif kind == "text":
            self._text(content, name, lengths)
        elif kind == "image":
            self._image(content, name, _tfds_shape(content.get("shape"), (-1, -1, 3)), lengths)
        elif kind == "video":
            frames, *frame = _tfds_shape(content.get("shape")) or (-1, -1, -1, 3)
            self._image(content, name, tuple(frame), (*lengths, frames))
        elif kind == "audio" and content.get("lazyDecode"):
            # The encoded audio file: FLAC, MP3 or another format.
            self._add_listed(name, "bytes", (), lengths)
        else:
            shape = _tfds_shape(content.get("shape"), (-1,) if kind == "audio" else ())
            self._tensor(content, name, shape, lengths)

    def _text(self, content: dict[str, Any], name: str, lengths: tuple[int, ...]) -> None:
        """Add texts, or the integers that an old encoder made of them."""
        if content.get("useEncoder"):
            self._add_listed(name, "int64", (-1,), lengths)
        elif len(lengths) == 1 and lengths[0]:
            self._add(name, TextFeature(count=lengths[0]))
        elif lengths:
            self._add_listed(name, "bytes", (), lengths)
        else:
            self._add(name, TextFeature(default_value="" if content.get("optional") else None))

    def _image(self, content: dict[str, Any], name: str, shape: tuple[int, ...], lengths: tuple[int, ...]) -> None:
        """Add images, or bytes where images of open sizes are nested."""
        dtype = str(content.get("dtype") or "uint8")
        if len(shape) != 3:
            raise SchemaError(f"an image must have a shape (height, width, channels); got {shape}")
        channels = shape[2] if shape[2] in (1, 3, 4) else 0
        is_float = dtype == "float32"
        image = FloatImageFeature(shape) if is_float else ImageFeature(shape, dtype, channels=channels)
        if not lengths:
            self._add(name, image)
        elif lengths == (-1,) or (len(lengths) == 1 and lengths[0] and -1 not in shape):
            self._add(name, image.with_count(lengths[0]))
        elif len(lengths) > 1 and -1 not in shape:
            self._ragged(name, "bytes", (), len(lengths), image)
        else:
            self._add_listed(name, "bytes", (), lengths)

    def _tensor(self, content: dict[str, Any], name: str, shape: tuple[int, ...], lengths: tuple[int, ...]) -> None:
        """Add numbers: listed, or as the bytes of arrays if they are encoded."""
        dtype = str(content.get("dtype", "int64"))
        if dtype in _STRINGS:
            dtype = "bytes"
        encoding = str(content.get("encoding") or "none").lower()
        if shape.count(-1) > 1:
            # Records store the shape if more than one size is unknown.
            self._add_listed(f"{name}/shape", "int32", (len(shape),), lengths)
            name = f"{name}/value"
        if encoding == "none":
            self._add_listed(name, dtype, shape, lengths, _tfds_default(dtype) if content.get("optional") else None)
        elif dtype == "bytes" or len(lengths) > 1 or 0 in lengths or (lengths not in ((), (-1,)) and -1 in shape):
            self._add_listed(name, "bytes", (), lengths)
        else:
            self._add(
                name,
                RawFeature(
                    shape if shape.count(-1) <= 1 else (-1,),
                    np.dtype(dtype).newbyteorder("<").str,
                    count=lengths[0] if lengths else None,
                    compression_type="ZLIB" if encoding == "zlib" else None,
                ),
            )

    def _add_listed(
        self, name: str, dtype: str, shape: tuple[int, ...], lengths: tuple[int, ...], default: Any = None
    ) -> None:
        """Add a feature of listed values, with the shape that the array had before TFDS flattened it."""
        sizes = (*lengths, *shape)
        if len(lengths) > 1:
            self._ragged(name, dtype, shape, len(lengths))
        elif -1 not in sizes:
            self._add(name, FixedLenFeature(sizes, dtype, default))
        elif sizes[0] == -1 and -1 not in sizes[1:]:
            self._add(name, VarLenFeature(dtype, shape=sizes))
        else:
            # The number of values does not determine the sizes, so rows of this column are not a sequence.
            self._add(name, VarLenFeature(dtype), is_flat=True)

    def _ragged(self, name: str, dtype: str, shape: tuple[int, ...], rank: int, values: Encoded | None = None) -> None:
        lengths = (RowLengths(f"{name}/{_ROW_LENGTHS}{level}") for level in range(rank - 1))
        uniform = (UniformRowLength(size) for size in shape)
        self._add(name, RaggedFeature(dtype, f"{name}/{RAGGED_VALUES}", (*lengths, *uniform), values=values))

    def _add(self, name: str, feature: Feature, *, is_flat: bool = False) -> None:
        """Add a feature under a new name, and to its group if its rows vary in length."""
        if name in self.features:
            raise SchemaError("two features have this name")
        self.features[name] = feature
        if self._group is not None and feature.ragged_rank and not is_flat:
            self.groups.setdefault(self._group, []).append(name)

    def _add_classes(self, kind: str, content: dict[str, Any], name: str, stem: str) -> None:
        """Add the class names of a feature, if it has any."""
        if kind == "classLabel" or content.get("class") == "LabeledImage" or "label" in content:
            names = content.get("names") or content.get("labels") or self._labels(stem)
            if names and not isinstance(names, int):
                self.classes[name] = tuple(names)


def _tfds_default(dtype: str) -> Any:
    """Return the value TFDS reads for a missing optional tensor: the minimum of the dtype, b"" or False."""
    if dtype == "bytes":
        return b""
    found = np.dtype(dtype)
    if found.kind == "b":
        return False
    return int(np.iinfo(found).min) if found.kind in "iu" else float(np.finfo(found).min)
