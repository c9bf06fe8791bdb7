"""Detection of the payload type from the wire format: Example, SequenceExample, another message or other data.

protobuf parses almost any message as an Example without features, so a successful parse proves little; this module
also inspects the fields at each level. Schema inference uses it, and so do error messages, which recommend a function
for the detected type. Records that decode never pass through it.

The wire format is specified at https://protobuf.dev/programming-guides/encoding/.
"""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from dask_tfrecord.errors import FeatureError, Location, Spelled, plural
from dask_tfrecord.features import TENSOR_DTYPES
from dask_tfrecord.images.pixels import read_header
from dask_tfrecord.messages import (
    DecodeError,
    Example,
    ExampleListWithContext,
    SequenceExample,
    TensorProto,
    delimited,
    has_dropped_entries,
    unknown_fields,
)

_VARINT, _FIXED64, _DELIMITED, _GROUP, _GROUP_END, _FIXED32 = range(6)
_WIDTHS = {_FIXED64: 8, _FIXED32: 4}

_SIGNATURES = (
    (b"\x89PNG\r\n\x1a\n", "a PNG image"),
    (b"\xff\xd8\xff", "a JPEG image"),
    (b"GIF8", "a GIF image"),
    (b"\x1f\x8b\x08", "gzip data"),
    (b"\x93NUMPY", "a NumPy .npy file"),
    (b"ARROW1", "an Arrow file"),
    (b"Obj\x01", "an Avro file"),
    (b"PAR1", "a Parquet file"),
    (b"PK\x03\x04", "a zip archive"),
)
# Pickles of protocol 2 and later begin with their protocol number and end with a dot.
_PICKLES = tuple(bytes([0x80, protocol]) for protocol in (2, 3, 4, 5))

_BAG = "read_bag(urlpath, decode=…) calls a function on every payload"
_MESSAGE = (
    "read_bag(urlpath, decode=…) calls a function on every payload, which may parse it by {} and return plain values"
)
_BOTH_PARTS = "give --features the JSON of a Schema with both parts, context and {}, as Schema.to_json writes it"
# Advice on how to read payloads, by payload type.
_ADVICE: Mapping[str, str] = {
    "an Example": Spelled(
        "features= describes Examples; sequence_features= and example_features= describe other messages",
        "the file of --features describes another message; give it features of Examples",
    ),
    "a damaged Example": "the writer produced an invalid message; read_records(urlpath) returns the payloads unparsed",
    "a SequenceExample": Spelled(
        "read_tfrecord(urlpath, infer_schema(urlpath)) reads SequenceExamples; or give features= for the context and "
        "sequence_features= for the feature lists",
        _BOTH_PARTS.format("feature lists"),
    ),
    "an ExampleListWithContext": Spelled(
        "read_tfrecord(urlpath, infer_schema(urlpath)) reads lists of Examples; or give features= for the context "
        "and example_features= for the items",
        _BOTH_PARTS.format("items"),
    ),
    "a tf.Event": _MESSAGE.format("Event.FromString of tensorboard.compat.proto.event_pb2"),
    "a protobuf message of another kind": _MESSAGE.format("the FromString of its own class"),
    "JSON text": "read_bag(urlpath, decode=json.loads) parses every payload",
    "UTF-8 text": "read_bag(urlpath, decode=bytes.decode) returns every payload as a string",
    **dict.fromkeys(["a PNG image", "a JPEG image", "a GIF image"], f"{_BAG}, for example one that opens images"),
    "gzip data": "read_bag(urlpath, decode=gzip.decompress) inflates every payload",
    "a NumPy .npy file": "read_bag(urlpath, decode=lambda payload: numpy.load(io.BytesIO(payload))) returns the arrays",
    "a pickle": "read_bag(urlpath, decode=pickle.loads) returns the objects; unpickling runs code chosen by the writer",
    "an Arrow file": f"{_BAG}, for example pyarrow.ipc.open_file",
    "an Arrow stream": f"{_BAG}, for example pyarrow.ipc.open_stream",
    "an Avro file": f"{_BAG}, for example one that reads Avro",
    "a Parquet file": f"{_BAG}, for example one that reads Parquet",
    "a zip archive": f"{_BAG}, for example one that opens archives",
    "raw bytes": f"read_records(urlpath) returns the payloads unparsed, and {_BAG}",
    "an empty record": "read_records(urlpath) returns the payloads unparsed",
}
# Fields of tf.Event in TensorBoard logs: wall_time, step, and one of file_version, graph_def, summary, …
_EVENT = {(1, _FIXED64), (2, _VARINT)} | {(number, _DELIMITED) for number in range(3, 11)}
# Limits the time spent on a payload that happens to consist of millions of tiny fields.
_MAX_FIELDS = 100_000
# Plausible values of Event.wall_time, in seconds since 1970.
_WALL_TIMES = (0.0, 1e11)
# SequenceExamples without features: with an empty context and empty feature lists, as TensorFlow writes them, or
# with the feature lists alone.
_EMPTY = (b"\x0a\x00\x12\x00", b"\x12\x00")


_CLASSES = {each.DESCRIPTOR.name: each for each in (Example, SequenceExample, ExampleListWithContext)}


def _parsed(cls: type[Any], payload: bytes) -> Any:
    """Parse a payload as a message of a class; return None if it is not one."""
    try:
        return cls.FromString(payload)
    # Pure Python protobuf raises UnicodeDecodeError for a key that is not UTF-8.
    except (DecodeError, UnicodeDecodeError):
        return None


class NoMessageError(Exception):
    """Bytes that are not a protobuf message."""


def is_probably_example(payload: bytes) -> bool:
    """Return whether the outer fields and the first feature of a payload are those of an Example.

    Parameters
    ----------
    payload : bytes
        Payload of a record. An empty one returns False, since it can be a message of any type.

    Returns
    -------
    bool
        False for every other message type that is commonly stored in TFRecord files, even if protobuf would parse it.
    """
    try:
        fields = list(message_fields(memoryview(payload)))
        features = [data for number, wire_type, data in fields if (number, wire_type) == (1, _DELIMITED)]
        if not features or any((number, wire_type) == (2, _DELIMITED) for number, wire_type, _ in fields):
            return False
        # An Example without features consists of an empty Features message alone.
        return any(map(_is_features, features)) or (not any(features) and len(features) == len(fields))
    except NoMessageError:
        return False


def parse_record(payload: bytes) -> SequenceExample | None:
    """Parse an Example or a SequenceExample; return None for another payload type.

    The features of an Example have the field number of the context of a SequenceExample, so one parser reads both.

    Parameters
    ----------
    payload : bytes
        Payload of a record. An empty one can be either message.

    Returns
    -------
    SequenceExample or None
        An Example is returned as a context without feature lists. The bytes of an Example and of a SequenceExample
        without feature lists do not differ.
    """
    record: SequenceExample | None = _parsed(SequenceExample, payload)
    try:
        if record is not None and has_dropped_entries(record):
            record = _parsed(SequenceExample, _known_entries(payload))
    except NoMessageError:
        return None
    if record is None:
        return None
    # A typed list at this depth is conclusive; without one, the fields decide.
    for feature in record.context.feature.values():
        if feature.WhichOneof("kind") is not None:
            return record
    for steps in record.feature_lists.feature_list.values():
        if any(step.WhichOneof("kind") is not None for step in steps.feature):
            return record
    # A key without a value is a feature, as in the decoder.
    if any(key >= " " for key in (*record.context.feature, *record.feature_lists.feature_list)):
        return record
    if not payload or payload in _EMPTY or detect_payload_type(payload) in ("an Example", "a SequenceExample"):
        return record
    return None


def parse_example_list(payload: bytes) -> ExampleListWithContext | None:
    """Parse an ExampleListWithContext; return None for another payload type.

    A list without features, such as ``0a00``, can be another message too: only other records decide.
    """
    record: ExampleListWithContext | None = _parsed(ExampleListWithContext, payload)
    if record is None or detect_payload_type(payload) == "an ExampleListWithContext":
        return record
    if any(example.features.feature for example in (*record.examples, record.context)):
        return None
    known = ExampleListWithContext()
    known.CopyFrom(record)
    known.DiscardUnknownFields()
    return record if known.ByteSize() == record.ByteSize() else None


def _known_entries(payload: bytes) -> bytes:
    """Remove unknown fields from map entries.

    The upb parser of protobuf treats an entry with an unknown field as an unknown entry, so its key is lost. Other
    parsers, and the column decoder, skip the field alone.
    """
    kept = bytearray()
    for number, wire_type, entries in message_fields(memoryview(payload), None):
        if wire_type != _DELIMITED or number not in (1, 2):
            continue
        known_entries = bytearray()
        for *key, entry in message_fields(entries, None):
            if key == [1, _DELIMITED]:
                known = bytearray()
                for field, field_type, data in message_fields(entry, None):
                    if field in (1, 2) and field_type == _DELIMITED:
                        known += delimited(field, data)
                known_entries += delimited(1, known)
        kept += delimited(number, known_entries)
    return bytes(kept)


def payload_error(payload: bytes, location: Location, message: str = "Example") -> FeatureError:
    """Return the error for a record of an unexpected payload type.

    Parameters
    ----------
    payload : bytes
        Payload of the record.
    location : Location
        Location of the record.
    message : str, default "Example"
        Expected message: "Example", "SequenceExample" or "ExampleListWithContext".

    Returns
    -------
    FeatureError
        Reports the expected and the detected type, and how to read records of that type.
    """
    found = detect_payload_type(payload)
    expected = f"{'a' if message == 'SequenceExample' else 'an'} {message}"
    text = f"expected {expected}, found {found} of {plural(len(payload), 'byte')}"
    if found in (expected, "a damaged Example"):
        text += (
            " that holds fields of another message"
            if _parsed(_CLASSES[message], payload) is not None
            else " that protobuf can't parse as one"
        )
        found = "a damaged Example"
    return FeatureError(f"{text}; " + _ADVICE[found], location)


def detect_payload_type(payload: bytes) -> str:
    """Detect the payload type of a record.

    Parameters
    ----------
    payload : bytes
        Payload of the record.

    Returns
    -------
    str
        Name with its article, as in the message "found a tf.Event": "an Example", "a damaged Example",
        "a SequenceExample", "an ExampleListWithContext", "a tf.Event", "a protobuf message of another kind",
        "JSON text", "UTF-8 text", "a PNG image", "a JPEG image", "a GIF image", "gzip data", "a NumPy .npy file",
        "a pickle", "an Arrow file", "an Arrow stream", "an Avro file", "a Parquet file", "a zip archive", "raw bytes"
        or "an empty record".
    """
    if not payload:
        return "an empty record"
    if is_probably_example(payload):
        return "a damaged Example" if _parsed(Example, payload) is None else "an Example"
    try:
        fields = list(message_fields(memoryview(payload)))
    except NoMessageError:
        fields = []
    first, second = ([data for *key, data in fields if key == [number, _DELIMITED]] for number in (1, 2))
    if any(map(_is_example, [*first, *second])):
        return "an ExampleListWithContext"
    if second and (any(map(_is_features, first)) or any(map(_is_feature_lists, second))):
        return "a SequenceExample"
    for signature, name in _SIGNATURES:
        if payload.startswith(signature):
            return name
    if payload.startswith(_PICKLES) and payload.endswith(b"."):
        return "a pickle"
    if _is_arrow_stream(payload):
        return "an Arrow stream"
    if _is_event(fields):
        return "a tf.Event"
    text = _text(payload)
    if text is not None and _is_json(text):
        return "JSON text"
    # A line feed is also the tag of field 1 if that is a message or a string.
    if text is not None and not (fields and text.startswith("\n")):
        return "UTF-8 text"
    return "a protobuf message of another kind" if fields else "raw bytes"


def message_fields(data: memoryview, limit: int | None = _MAX_FIELDS) -> Iterator[tuple[int, int, memoryview]]:
    """Yield the field number, wire type and content of the first fields of a message; of a group, an empty content."""
    groups: list[int] = []
    position = walked = 0
    while position < len(data) and (limit is None or walked < limit):
        tag, position = varint(data, position)
        number, wire_type, begin = tag >> 3, tag & 7, position
        if wire_type == _VARINT:
            _, position = varint(data, position)
        elif wire_type == _DELIMITED:
            size, begin = varint(data, position)
            position = begin + size
        elif wire_type in _WIDTHS:
            position += _WIDTHS[wire_type]
        elif wire_type == _GROUP:
            groups.append(number)
        elif wire_type != _GROUP_END or not groups or groups.pop() != number:
            raise NoMessageError
        if not 0 < number < 2**29 or position > len(data):
            raise NoMessageError
        # Fields inside a group are not fields of this message.
        if wire_type != _GROUP_END and len(groups) == (wire_type == _GROUP):
            yield number, wire_type, data[begin:position]
        walked += 1
    if groups:
        raise NoMessageError


def varint(data: memoryview, position: int) -> tuple[int, int]:
    """Read a varint; return its value and the position after it."""
    value = 0
    for length, byte in enumerate(data[position : position + 10]):
        value |= (byte & 0x7F) << 7 * length
        if byte < 0x80:
            return value, position + length + 1
    raise NoMessageError


def _has_field(data: memoryview, number: int, accepts: Callable[[memoryview], bool]) -> bool:
    """Return whether `data` is a message with a length-delimited field of that number whose content is accepted."""
    try:
        return any(accepts(field) for *key, field in message_fields(data) if key == [number, _DELIMITED])
    except NoMessageError:
        return False


def _is_example(data: memoryview) -> bool:
    """Return whether the bytes are an Example with at least one feature."""
    return _has_field(data, 1, _is_features)


def _is_features(data: memoryview) -> bool:
    """Return whether the bytes are a Features message with at least one entry that has a value."""
    return _has_field(data, 1, lambda entry: _has_field(entry, 2, _is_feature))


def _is_feature_lists(data: memoryview) -> bool:
    """Return whether the bytes are a FeatureLists message with at least one list."""
    return _has_field(data, 1, lambda entry: _has_field(entry, 2, _is_feature_list))


def _is_feature_list(data: memoryview) -> bool:
    return not data or _has_field(data, 1, _is_feature)


def _is_feature(data: memoryview) -> bool:
    """Return whether the bytes are a Feature: one of the three lists, or empty."""
    return not data or any(_has_field(data, number, _is_list) for number in (1, 2, 3))


def _is_list(data: memoryview) -> bool:
    try:
        return not data or any(number == 1 for number, _, _ in message_fields(data))
    except NoMessageError:
        return False


def _is_event(fields: list[tuple[int, int, memoryview]]) -> bool:
    if not fields or not {(number, wire_type) for number, wire_type, _ in fields} <= _EVENT:
        return False
    times = [struct.unpack("<d", data)[0] for number, _, data in fields if number == 1]
    return bool(times) and all(_WALL_TIMES[0] <= time < _WALL_TIMES[1] for time in times)


def _is_arrow_stream(payload: bytes) -> bool:
    """Return whether the payload begins like an Arrow stream: a continuation marker and the length of its schema.

    https://arrow.apache.org/docs/format/Columnar.html#encapsulated-message-format
    """
    length = int.from_bytes(payload[4:8], "little")
    return payload.startswith(b"\xff" * 4) and 0 < length <= len(payload) - 8 and length % 8 == 0


def _text(payload: bytes) -> str | None:
    """Decode the payload as UTF-8; return None if it is not printable text."""
    try:
        text = payload.decode("utf-8")
    except UnicodeDecodeError:
        return None
    return text if all(char.isprintable() or char in "\t\n\r" for char in text) else None


def _is_json(text: str) -> bool:
    # A single number or word counts as text.
    if not text.lstrip().startswith(("{", "[")):
        return False
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


Sizes = tuple[int | None, ...]


@dataclass(frozen=True, slots=True)
class BytesContent:
    """Detected format of one or several bytes values, and the array that they decode to.

    Attributes
    ----------
    format : str
        "JPEG", "PNG", "BMP", "GIF", "WebP" or "tensor"; "image" for images of several formats.
    dtype : str
        Dtype of the decoded array.
    shape : tuple of int or None
        Shape of the decoded array; None for a size that is unknown or differs between values.
    """

    format: str
    dtype: str
    shape: Sizes

    def common(self, other: BytesContent) -> BytesContent | None:
        """Return the content that both share, or None if one feature can't read both."""
        format = self.format if self.format == other.format else "image"
        if (self.format == "tensor") != (other.format == "tensor") or len(self.shape) != len(other.shape):
            return None
        if self.dtype != other.dtype:
            return None
        shape = (size if size == also else None for size, also in zip(self.shape, other.shape, strict=True))
        return BytesContent(format, self.dtype, tuple(shape))


# ---------------------------------------------------------------------------------------------------------------- text

# Control characters other than tab, line feed, form feed and carriage return.
_CONTROLS = re.compile(rb"[\x00-\x08\x0b\x0e-\x1f\x7f]")


def is_probably_text(value: bytes) -> bool:
    """Return whether a value is UTF-8 without control characters; True for an empty value."""
    if _CONTROLS.search(value):
        return False
    try:
        value.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


# -------------------------------------------------------------------------------------------------------------- images


def detect_image(value: bytes) -> BytesContent | None:
    """Return format, dtype and shape of an encoded image, or None if the value is not one.

    The shape is (height, width, channels), with None where the header does not specify a size.
    """
    header = read_header(value)
    if header is None:
        return None
    dtype = "uint16" if header.depth == 16 else "uint8"
    return BytesContent(header.format, dtype, (header.height, header.width, header.channels))


# ------------------------------------------------------------------------------------------------------------- tensors

# dtypes by their number in the enum tensorflow.DataType.
_NAMES = {dtype.number: name for name, dtype in TENSOR_DTYPES.items()}
_TENSOR_CONTENT = 4


def detect_tensor(value: bytes) -> BytesContent | None:
    """Detect a serialized TensorProto; return None for other bytes.

    The check is strict because many byte strings parse as some protobuf message: the dtype must be known, the shape
    complete, no other field may be set, and the number of values must fit the shape.
    """
    tensor = _parsed(TensorProto, value)
    if tensor is None:
        return None
    shape = tuple(dim.size for dim in tensor.tensor_shape.dim)
    known_shape = not tensor.tensor_shape.unknown_rank and all(0 <= size < 1 << 62 for size in shape)
    if tensor.dtype not in _NAMES or not known_shape or unknown_fields(tensor) or unknown_fields(tensor.tensor_shape):
        return None
    dtype = _NAMES[tensor.dtype]
    _, itemsize, values_field = TENSOR_DTYPES[dtype]
    listed = {field.number: values for field, values in tensor.ListFields() if field.number > _TENSOR_CONTENT}
    if listed.keys() - {values_field}:
        return None
    size = math.prod(shape)
    if tensor.tensor_content:
        fits = not listed and len(tensor.tensor_content) == size * itemsize
    else:
        # Complex numbers are listed as pairs. The last listed number is repeated to fill the shape; strings are not.
        count = len(listed.get(values_field, ())) // (2 if dtype.startswith("complex") else 1)
        fits = count == size or (0 < count < size and dtype != "bytes")
    return BytesContent("tensor", dtype, shape) if fits else None
