"""TFDS metadata beside shards that were written: looked over before, completed after."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import fsspec

from dask_tfrecord.columns.tfds_writing import TFDSNames, features_text, info_text, label_files
from dask_tfrecord.errors import Place, SchemaError
from dask_tfrecord.schema import Schema
from dask_tfrecord.storage.beside import join, read_text
from dask_tfrecord.storage.streams import open_sink

__all__ = ["TFDSMetadata"]

_INFO, _FEATURES = "dataset_info.json", "features.json"


@dataclass(frozen=True, slots=True)
class TFDSMetadata:
    """What is written beside the shards of a split.

    Attributes
    ----------
    directory : str
        Path or URL.
    names : TFDSNames
        The data set and the split.
    texts : mapping of str to str
        `features.json` and files of class names, by their names.
    """

    directory: str
    names: TFDSNames
    texts: Mapping[str, str]

    @classmethod
    def of(cls, directory: str, names: TFDSNames, schema: Schema, formats: Mapping[str, str]) -> TFDSMetadata:
        """Make the texts.

        Raises
        ------
        SchemaError
            If TFDS has no class that reads a feature.
        """
        return cls(directory, names, {_FEATURES: features_text(schema, formats), **label_files(schema)})

    def check(self, storage_options: Mapping[str, Any]) -> None:
        """Refuse a directory of another data set, or of records that hold other features.

        Raises
        ------
        SchemaError
            If what is there is another data set or version, or has other features.
        """
        before = self._read(_INFO, storage_options)
        self._info(before, (), 0)
        for name, text in self.texts.items():
            there = self._read(name, storage_options)
            others = before is not None and any(
                split.get("name") != self.names.split for split in json.loads(before).get("splits", ())
            )
            if others and there is not None and _value(there) != _value(text):
                raise SchemaError(
                    f"the other splits hold other features: expected {text:.300}", Place(join(self.directory, name))
                )

    def write(self, paths: Sequence[str], counts: Sequence[int], storage_options: Mapping[str, Any]) -> None:
        """Write all of it, the list of splits last."""
        nbytes = 0
        for path in paths:
            fs, inside = fsspec.core.url_to_fs(path, **storage_options)
            fs.invalidate_cache()
            nbytes += int(fs.size(inside))
        info = self._info(self._read(_INFO, storage_options), counts, nbytes)
        for name, text in {**self.texts, _INFO: info}.items():
            sink = open_sink(join(self.directory, name), storage_options)
            try:
                sink.write(text.encode())
                sink.close()
            except BaseException:
                sink.discard()
                raise

    def _read(self, name: str, storage_options: Mapping[str, Any]) -> str | None:
        return read_text(join(self.directory, name), storage_options)

    def _info(self, before: str | None, counts: Sequence[int], nbytes: int) -> str:
        try:
            return info_text(self.names, before, counts, nbytes)
        except SchemaError as error:
            raise SchemaError(error.message, Place(self.directory)) from error


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
