"""Entries of a `features.json`, as TensorFlow Datasets names the classes that read a feature."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_PACKAGE = "tensorflow_datasets.core.features."
_CLASSES = {
    "featuresDict": "features_dict.FeaturesDict",
    "tensor": "tensor_feature.Tensor",
    "classLabel": "class_label_feature.ClassLabel",
    "image": "image_feature.Image",
    "audio": "audio_feature.Audio",
    "text": "text_feature.Text",
    "sequence": "sequence_feature.Sequence",
}
_DTYPES = ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
_FLOATS = ("float16", "float32", "float64")

Entry = dict[str, Any]


def class_entry(kind: str, content: Mapping[str, Any], cls: str | None = None) -> Entry:
    """Describe a TFDS class, by default the usual one for its kind."""
    return {"pythonClassName": _PACKAGE + (cls or _CLASSES[kind]), kind: content}


def shape_entry(sizes: Sequence[int]) -> Entry:
    """Return the field of a shape, with -1 for unknown sizes."""
    return {"dimensions": [str(size) for size in sizes]} if sizes else {}


def tensor_entry(dtype: str, sizes: Sequence[int], encoding: str = "none") -> Entry | None:
    """Return the entry of a tensor; None if TFDS lacks its dtype."""
    if dtype not in (*_DTYPES, *_FLOATS, "bytes"):
        return None
    named = "string" if dtype == "bytes" else dtype
    return class_entry("tensor", {"dtype": named, "encoding": encoding, "shape": shape_entry(sizes)})


def sequence_entry(item: Entry | None, length: int = -1) -> Entry | None:
    """Describe a sequence, by default with any length; None if its items can't be described."""
    return item and class_entry("sequence", {"feature": item, "length": str(length)})


def values_entry(dtype: str, sizes: Sequence[int], labels: Sequence[str] | None) -> Entry | None:
    """Return the entry of listed values: class labels, or a tensor."""
    if not labels or dtype != "int64" or len(sizes) > 1:
        return tensor_entry(dtype, sizes)
    label = class_entry("classLabel", {"numClasses": str(len(labels))})
    return sequence_entry(label, sizes[0]) if sizes else label
