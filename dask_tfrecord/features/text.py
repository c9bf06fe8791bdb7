"""Text."""

from __future__ import annotations

import codecs
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from dask_tfrecord._native import Content
from dask_tfrecord.blocks import Block, BytesBlock, RowError, to_text
from dask_tfrecord.errors import SchemaError
from dask_tfrecord.features.base import Feature
from dask_tfrecord.features.encoded import Encoded, checked_count, iter_values
from dask_tfrecord.features.images.pixels import ImageEncoding
from dask_tfrecord.features.keyed_values import KeyedValues, fixed
from dask_tfrecord.features.keys import Decoded, KeySpec, Scope
from dask_tfrecord.features.tfds_entries import Entry, class_entry, sequence_entry


@dataclass(frozen=True, slots=True, repr=False)
class TextFeature(Encoded):
    """Decode text to NumPy's `StringDType`.

    Bytes that are not valid in the encoding raise an error that names the record, and for a sequence feature the step.

    Parameters
    ----------
    default_value : str, optional
        Value for a record that lacks the feature, or whose list is empty or unset.
    count : int, optional
        Number of strings per record; -1 for any number, including zero. By default a record has one, and rows are
        strings.
    encoding : str, default "utf-8"
        Python's name of the text encoding, for example ``"latin-1"``. `to_tfrecord` writes this encoding; other outputs
        contain text.
    value_key : str, optional
        Key of the values in the record, by default the name of the feature. Several features may read the same key.

    Examples
    --------
    >>> TextFeature()
    TextFeature()
    """

    tfmd_domain = "natural_language_domain"
    # Of the stored values, and of one string.
    dtype = "bytes"
    value_shape = ()
    default_value: str | None = field(default=None, kw_only=True)
    count: int | None = field(default=None, kw_only=True)
    encoding: str = field(default="utf-8", kw_only=True)
    value_key: str | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        count = checked_count(self.count, "TextFeature")
        encoding = _checked_encoding(self.encoding)
        default: Any = self.default_value
        if isinstance(default, bytes):
            try:
                default = default.decode(encoding)
            except UnicodeError as error:
                raise SchemaError(f"TextFeature: the default value {default!r:.100} is not valid {encoding}") from error
        if default is not None and not isinstance(default, str):
            raise SchemaError(f"TextFeature: expected text as default value; got {default!r}")
        if default is not None and count is not None:
            raise SchemaError("TextFeature: default_value is for one string per record; remove it, or count")
        try:
            (default or "").encode(encoding)
        except UnicodeError as error:
            raise SchemaError(f"TextFeature: {encoding} has no bytes for the default value {default!r}") from error
        self._set(default_value=default, count=count, encoding=encoding)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one record: a scalar, or a number of strings."""
        return () if self.count is None else (self.count,)

    @property
    def item_dtype(self) -> np.dtype[Any]:
        """The dtype of a decoded array: `numpy.dtypes.StringDType`."""
        return np.dtypes.StringDType()

    def keys(self, key: str, scope: Scope) -> tuple[KeySpec, ...] | None:
        """Return the spec of text, with the default value. The decoder checks UTF-8."""
        if scope == "step" and self.default_value is not None:
            return None
        default = () if self.default_value is None else (self.default_value.encode(self.encoding),)
        content = Content.TEXT if self.encoding == "utf-8" else Content.ANY
        found = Encoded.keys(self, key, scope)
        return found and tuple(replace(each, content=content, default_value=default) for each in found)

    def column(self, scope: Scope) -> Feature:
        """Return the feature, or its variant for any number of strings."""
        return self if scope == "value" else TextFeature(count=-1, encoding=self.encoding)

    def suggestion(self, count: int) -> str:
        """Suggest what reads a different number of strings."""
        return "; a default_value fills it" if not count and not self.shape else Encoded.suggestion(self, count)

    def tfds_entry(self, name: str, labels: Sequence[str] | None, format: str) -> Entry | None:
        """Describe UTF-8 text, or a sequence of texts."""
        if self.count is not None:
            return sequence_entry(self.with_count(None).tfds_entry(name, labels, format), self.count)
        return class_entry("text", {}) if self.encoding == "utf-8" else None

    def assemble(self, decoded: Decoded) -> Block:
        """Assemble strings, one per row or several."""
        values = decoded.keys[0].encoded()
        if self.encoding == "utf-8":
            try:
                return decoded.in_rows(self, to_text(values))
            except UnicodeDecodeError:
                # The first value that is not valid is found below.
                pass
        texts = []
        for number, value in enumerate(iter_values(values)):
            try:
                text = str(value, self.encoding)
                # Some encodings have bytes for halves of surrogate pairs, which are not characters.
                text.encode("utf-8")
                texts.append(text)
            except UnicodeError as error:
                name = "UTF-8" if self.encoding == "utf-8" else self.encoding
                reason = f"is not valid {name}, but {self} takes text; FixedLenFeature((), 'bytes') reads any bytes"
                raise decoded.error(self, number, reason) from error
        return decoded.in_rows(self, np.array(texts, self.item_dtype))

    def encode_block(self, key: str, block: Any, encoding: ImageEncoding) -> list[KeyedValues]:
        """Return the strings, which are given in UTF-8, in the encoding."""
        if self.encoding != "utf-8":
            encoded = []
            each = math.prod(block.shape[1:])
            for number, value in enumerate(iter_values(block)):
                text = str(value, "utf-8")
                try:
                    encoded.append(text.encode(self.encoding))
                except UnicodeError as error:
                    reason = f"holds {text!r:.100}, for which {self.encoding} has no bytes"
                    raise RowError(number // each, reason) from error
            block = BytesBlock.of(encoded, block.shape)
        return [fixed(key, block)]


def _checked_encoding(encoding: Any) -> str:
    """Return the name that Python has for an encoding of text."""
    try:
        name = codecs.lookup(encoding).name
        # Codecs of bytes (zlib) do not encode text.
        "".encode(name)
    except (LookupError, TypeError, ValueError) as error:
        raise SchemaError(f"TextFeature: {encoding!r:.100} is no encoding of text that Python knows") from error
    return name
