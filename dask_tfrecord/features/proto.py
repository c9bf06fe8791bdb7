"""Fields of protobuf messages."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dask_tfrecord.errors import SchemaError
from dask_tfrecord.features.base import Feature, checked_key
from dask_tfrecord.features.encoded import Encoded, checked_compression
from dask_tfrecord.features.listed import FixedLenFeature
from dask_tfrecord.features.message_types import MessageType
from dask_tfrecord.features.raw import RawFeature
from dask_tfrecord.features.text import TextFeature


def _check_message_values(values: Any) -> None:
    """Check the feature of the values of a `ProtoFeature`."""
    serialized = isinstance(values, FixedLenFeature) and values == FixedLenFeature((), "bytes")
    if not serialized and not isinstance(values, Encoded | ProtoFeature):
        raise SchemaError(
            "ProtoFeature: values must be a RawFeature, TensorFeature, ImageFeature, TextFeature or ProtoFeature, or "
            f"FixedLenFeature((), 'bytes') for bytes as they are stored; got {values!r}"
        )
    if isinstance(values, Encoded) and (values.count is not None or getattr(values, "default_value", None) is not None):
        raise SchemaError(f"ProtoFeature: values describe one value, without count and default_value; got {values!r}")
    if isinstance(values, RawFeature) and values.size_keys:
        raise SchemaError(f"ProtoFeature: fields of messages have no keys for sizes; got {values!r}")
    if isinstance(values, TextFeature) and values.encoding != "utf-8":
        raise SchemaError(f"ProtoFeature: text of messages is UTF-8; got {values!r}")
    if isinstance(values, ProtoFeature) and (values.message is None or values.key is not None):
        raise SchemaError(f"ProtoFeature: values need a message of their own and no key; got {values!r}")


@dataclass(frozen=True, slots=True, repr=False)
class ProtoFeature(Feature):
    """Read a field of a protobuf message, or all fields below it.

    If records are messages, ``read_tfrecord(…, message=M)`` reads them, and the feature gives a path in ``M``. If
    records are Examples or SequenceExamples, the feature reads messages from the bytes of a key, and gives their type.

    A scalar field becomes one column. The path of a message becomes a column for each field below it, named after the
    feature and the rest of the path, joined by dots. The fields of a repeated message become ragged columns, with a row
    of items per record; each repeated field on the path adds a level of rows. A field that is missing in a message has
    its default value.

    Parameters
    ----------
    message : message class, Descriptor or str, optional
        Type of the messages: a generated class, its descriptor, ``"file.desc:package.Message"`` or
        ``"file.proto:package.Message"``. Leave it out if you pass it as ``read_tfrecord(…, message=M)``; the only
        argument is then the path.
    path : str
        Names of fields, joined by dots: ``"tracks.states.center_x"``. An extension is written ``[package.name]``, an
        entry of a map has ``key`` and ``value``, and the name of a oneof is a column that names its set field. The
        empty path is the message itself.
    values : RawFeature, TensorFeature, ImageFeature, TextFeature or ProtoFeature, optional
        Feature that decodes each bytes value. `TextFeature` also turns the values of an enum into their names. A
        `ProtoFeature` decodes messages in bytes, or messages of its type in an ``Any``.
        ``FixedLenFeature((), "bytes")`` keeps a message, or text, as the bytes that are stored.
    presence : bool, default False
        Make a column of flags: whether the field is set, instead of its values.
    depth : int, default 1
        Number of levels that become columns in a recursive message, which contains messages of its own type. Deeper
        levels become columns of bytes.
    key : str, optional
        Key of an Example that contains the messages, by default the name of the feature.
    compression_type : {"ZLIB", "GZIP"}, optional
        Compression of each bytes value that contains a message, as `tf.io.decode_compressed` reads it. Only if the
        feature has a `message`: for the bytes of an Example, or as `values`. Empty bytes are a message without fields.

    Examples
    --------
    >>> ProtoFeature("tracks.states.center_x")
    ProtoFeature('tracks.states.center_x')
    >>> ProtoFeature("frames.jpeg", values=dtf.ImageFeature(channels=3)).path
    'frames.jpeg'
    >>> from google.protobuf.duration_pb2 import Duration
    >>> ProtoFeature("took", values=ProtoFeature(Duration, "", compression_type="ZLIB")).values.compression_type
    'ZLIB'
    """

    is_message = True
    # Of the stored bytes; columns have dtypes and shapes of their own.
    dtype = "bytes"
    shape = ()
    item_dtype = np.dtype(object)
    item_shape = ()
    message: Any
    path: Any = None
    values: Any = field(default=None, kw_only=True)
    presence: bool = field(default=False, kw_only=True)
    depth: int = field(default=1, kw_only=True)
    key: str | None = field(default=None, kw_only=True)
    compression_type: str | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        message, path = self.message, self.path
        if path is None:
            message, path = (None, message) if isinstance(message, str) else (message, "")
        checked_key(path, "ProtoFeature")
        if message is not None:
            message = MessageType.of(message, "ProtoFeature: message")
        if self.values is not None:
            _check_message_values(self.values)
        if self.presence and self.values is not None:
            raise SchemaError("ProtoFeature: presence=True reads no values; remove values=")
        if isinstance(self.depth, bool) or not isinstance(self.depth, int) or self.depth < 0:
            raise SchemaError(f"ProtoFeature: depth must be a number of levels from 0 on; got {self.depth!r}")
        compression = checked_compression(self.compression_type, "ProtoFeature")
        if compression is not None and message is None:
            raise SchemaError(
                f"ProtoFeature: compression_type is that of messages in bytes: give their type, as in "
                f'ProtoFeature("path.to.bytes", values=ProtoFeature(M, "", compression_type={compression!r}))'
            )
        self._set(message=message, path=path, presence=bool(self.presence), compression_type=compression)

    @property
    def stored_key(self) -> str | None:
        """Key of the records that holds the messages; None for the name of the feature."""
        return self.key

    def arguments(self) -> dict[str, Any]:
        """Return the arguments that construct an equal feature, without defaults."""
        given = Feature.arguments(self)
        if self.message is None:
            del given["path"]
            given["message"] = self.path
        return given
