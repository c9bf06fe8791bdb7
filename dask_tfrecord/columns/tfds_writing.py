"""The texts that TFDS keeps beside records: `features.json` and `dataset_info.json`, and the names of its files.

The way back from `tfds_features`: what is said of features is what `tensorflow_datasets.builder_from_directory` reads
records by. Pure values and text; imports features and schema.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dask_tfrecord.errors import SchemaError
from dask_tfrecord.features import (
    Feature,
    FixedLenFeature,
    FixedLenSequenceFeature,
    ImageFeature,
    RaggedFeature,
    RawFeature,
    RowLengths,
    TextFeature,
    VarLenFeature,
)
from dask_tfrecord.schema import Schema

__all__ = ["TFDSNames", "features_text", "info_text", "label_files"]

_PACKAGE = "tensorflow_datasets.core.features."
_CLASSES = {
    "featuresDict": "features_dict.FeaturesDict",
    "tensor": "tensor_feature.Tensor",
    "classLabel": "class_label_feature.ClassLabel",
    "image": "image_feature.Image",
    "text": "text_feature.Text",
    "sequence": "sequence_feature.Sequence",
}
_TEMPLATE = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"
_SYNTAX = {"name": r"[a-zA-Z_]\w*", "version": r"\d+\.\d+\.\d+", "split": r"[a-zA-Z_]\w*"}
_DTYPES = ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
_FLOATS = ("float16", "float32", "float64")


@dataclass(frozen=True, slots=True)
class TFDSNames:
    """What a TFDS data set and a split of it are called.

    Attributes
    ----------
    name : str
        The data set.
    version : str
        Three numbers.
    split : str
        The split.
    """

    name: str
    version: str
    split: str

    @classmethod
    def of(cls, given: Any) -> TFDSNames:
        """Read what a user says.

        Raises
        ------
        ValueError
            If it is no mapping of these three to names as TFDS takes them.
        """
        valid = "tfds is a mapping such as {'name': 'flowers', 'version': '1.0.0', 'split': 'train'}"
        if not isinstance(given, Mapping) or set(given) != set(_SYNTAX):
            raise ValueError(f"{valid}; got {given!r}")
        for key, syntax in _SYNTAX.items():
            if not isinstance(given[key], str) or not re.fullmatch(syntax, given[key]):
                raise ValueError(f"{valid}; {given[key]!r} is no {key}")
        return cls(**given)

    @property
    def template(self) -> str:
        """Names of the shards, as `to_tfrecord` takes them."""
        return f"{self.name}-{self.split}.tfrecord-{{shard:05d}}-of-{{shards:05d}}"


def features_text(schema: Schema, formats: Mapping[str, str]) -> str:
    """Write a `features.json`.

    Parameters
    ----------
    schema : Schema
        What records hold.
    formats : mapping of str to str
        Formats of the images, by name.

    Raises
    ------
    SchemaError
        If TFDS has no class that reads a feature.
    """
    if schema.message == "SequenceExample":
        raise SchemaError("TFDS reads Examples, and these are SequenceExamples")
    children = {}
    for name, feature in schema.items():
        child = _feature(name, feature, schema.classes.get(name), formats.get(name, "png"))
        if child is None:
            raise SchemaError(f"feature {name!r}: TFDS has no class that reads {feature}")
        children[name] = child
    return json.dumps(_entry("featuresDict", {"features": children}), indent=4, sort_keys=True)


def label_files(schema: Schema) -> dict[str, str]:
    """Name the files of class names, and write their texts."""
    return {
        f"{name.replace('/', '.')}.labels.txt": "".join(f"{label}\n" for label in labels)
        for name, labels in schema.classes.items()
        if _is_label(schema[name])
    }


def info_text(names: TFDSNames, before: str | None, counts: Sequence[int], nbytes: int) -> str:
    """Write a `dataset_info.json`.

    Parameters
    ----------
    names : TFDSNames
        The data set and the split that was written.
    before : str or None
        The text that is there already, of the same data set: its other splits are kept.
    counts : sequence of int
        Records of each shard.
    nbytes : int
        Bytes of all shards.

    Raises
    ------
    SchemaError
        If what is there is another data set or version, or no such text.
    """
    info: dict[str, Any] = {"name": names.name, "version": names.version, "fileFormat": "tfrecord", "splits": []}
    if before is not None:
        try:
            info = json.loads(before)
            there = info["name"], info["version"], info.get("fileFormat") or "tfrecord"
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise SchemaError(f"dataset_info.json can't be read: {error!r}") from error
        if there != (names.name, names.version, "tfrecord"):
            raise SchemaError(
                f"the directory holds {there[0]} {there[1]} ({there[2]}); write {names.name} {names.version} to another"
            )
    split = {
        "name": names.split,
        "filepathTemplate": _TEMPLATE,
        "shardLengths": [str(count) for count in counts],
        "numBytes": str(nbytes),
    }
    info["splits"] = [other for other in info.get("splits", ()) if other.get("name") != names.split] + [split]
    return json.dumps(info, indent=2, sort_keys=True)


def _entry(kind: str, content: Mapping[str, Any], cls: str | None = None) -> dict[str, Any]:
    return {"pythonClassName": _PACKAGE + (cls or _CLASSES[kind]), kind: content}


def _shape(sizes: Sequence[int]) -> dict[str, Any]:
    return {"dimensions": [str(size) for size in sizes]} if sizes else {}


def _tensor(dtype: str, sizes: Sequence[int], encoding: str = "none") -> dict[str, Any] | None:
    if dtype not in (*_DTYPES, *_FLOATS, "bytes"):
        return None
    named = "string" if dtype == "bytes" else dtype
    return _entry("tensor", {"dtype": named, "encoding": encoding, "shape": _shape(sizes)})


def _is_label(feature: Feature) -> bool:
    return isinstance(feature, FixedLenFeature) and feature.shape == () and feature.dtype == "int64"


def _feature(name: str, feature: Feature, labels: Sequence[str] | None, format: str) -> dict[str, Any] | None:
    """Describe a feature; None where TFDS reads nothing like it."""
    match feature:
        case FixedLenFeature() if labels and _is_label(feature):
            return _entry("classLabel", {"numClasses": str(len(labels))})
        case FixedLenFeature():
            return _tensor(feature.dtype, feature.shape)
        case VarLenFeature() if feature.ragged_rank == 1:
            return _tensor(feature.dtype, feature.shape)
        case FixedLenSequenceFeature():
            return _tensor(feature.dtype, (-1, *feature.shape))
        case RawFeature() if feature.stored_dtype.isnative:
            return None if feature.dtype == "bytes" else _tensor(feature.stored_dtype.name, feature.shape, "bytes")
        case TextFeature():
            return _entry("text", {})
        case ImageFeature():
            return _image(feature, format)
        case RaggedFeature():
            return _ragged(name, feature)
    return None


def _image(feature: ImageFeature, format: str) -> dict[str, Any] | None:
    sizes = (feature.shape or (-1, -1, feature.channels or -1))[-3:]
    # TFDS stores floats by bits of their own, and has to know the channels.
    if feature.dtype not in ("uint8", "uint16") or sizes[2] == -1 or format not in ("png", "jpeg"):
        return None
    image = _entry("image", {"shape": _shape(sizes), "dtype": feature.dtype, "encodingFormat": format})
    return _entry("sequence", {"feature": image, "length": "-1"}) if feature.ragged_rank else image


def _ragged(name: str, feature: RaggedFeature) -> dict[str, Any] | None:
    """Sequences within each other, if the keys are those that TFDS names."""
    levels = feature.ragged_rank - 1
    keys = [RowLengths(f"{name}/ragged_row_lengths_{level}") for level in range(levels)]
    if list(feature.partitions[:levels]) != keys or feature.value_key != f"{name}/ragged_flat_values" or not levels:
        return None
    entry = _tensor(feature.dtype, feature.item_shape)
    for _ in range(levels + 1):
        entry = entry and _entry("sequence", {"feature": entry, "length": "-1"})
    return entry
