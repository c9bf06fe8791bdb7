"""Detection of the payload type from the wire format: Example, SequenceExample, another message or other data.

protobuf parses almost any message as an Example without features, so a successful parse proves little; this module
also inspects the fields at each level. Schema inference uses it, and so do error messages, which recommend a function
for the detected type. Records that decode never pass through it.
"""

from __future__ import annotations

import base64
import io
import json
import math
import re
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dask_tfrecord.errors import FeatureError, Location, Spelled, plural
from dask_tfrecord.features.images.pixels import read_header
from dask_tfrecord.features.inference.wire import (
    DELIMITED,
    FIXED32,
    FIXED64,
    VARINT,
    NoMessageError,
    spans,
    text_of,
    varint,
)
from dask_tfrecord.features.tensor import TENSOR_DTYPES, tensor_dtype_number
from dask_tfrecord.messages import (
    DecodeError,
    Example,
    ExampleListWithContext,
    SequenceExample,
    TensorProto,
    parse_sequence,
    unknown_fields,
)
from dask_tfrecord.shards.foreign import (
    BASE64,
    HEAD_NBYTES,
    NPY,
    PICKLE,
    URL_SAFE_BASE64,
    WAV,
    ZLIB,
    Format,
    foreign_format,
)

# Pickles of protocol 2 and later begin with their protocol number and end with a dot.
_PICKLES = tuple(bytes([0x80, protocol]) for protocol in (2, 3, 4, 5))

_BAG = "read_bag(urlpath, decode=…) calls a function on every payload"


def _message(name: str, proto: str) -> Spelled:
    """Return advice on messages whose descriptor protoc writes from a .proto file."""
    written = f"protoc --include_imports --descriptor_set_out=file.desc {proto} writes that file"
    return Spelled(
        f'read_tfrecord(urlpath, message="file.desc:{name}") reads the fields as columns, and {written}; '
        "read_bag(urlpath, decode=…) calls a function on every payload",
        f"--message file.desc:{name} reads the fields as columns, and {written}",
    )


_BOTH_PARTS = "give --features the JSON of a Schema with both parts, context and {}, as Schema.to_json writes it"
# Advice on how to read payloads, by payload type.
ADVICE: Mapping[str, str] = {
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
    "a tf.Event": _message("tensorflow.Event", "tensorflow/core/util/event.proto"),
    "a nucleus Variant": _message("nucleus.genomics.v1.Variant", "nucleus/protos/variants.proto"),
    "a Waymo Scenario": _message("waymo.open_dataset.Scenario", "waymo_open_dataset/protos/scenario.proto"),
    "a protobuf message of another kind": _message("package.Message", "file.proto"),
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
# Payload types whose fields are shown by the wire format.
MESSAGES = ("a tf.Event", "a nucleus Variant", "a Waymo Scenario", "a protobuf message of another kind")
# Limits the time spent on a payload that happens to consist of millions of tiny fields.
_MAX_FIELDS = 4_000
# Plausible values of Event.wall_time, in seconds since 1970.
_WALL_TIMES = (1e9, 1e11)
# SequenceExamples without features: with an empty context and empty feature lists, as TensorFlow writes them, or
# with the feature lists alone.
_EMPTY = (b"\x0a\x00\x12\x00", b"\x12\x00")


_CLASSES = {each.DESCRIPTOR.name: each for each in (Example, SequenceExample, ExampleListWithContext)}


def _parsed(cls: type[Any], payload: bytes) -> Any:
    """Parse a payload as a message of a class; return None if that fails."""
    try:
        return cls.FromString(payload)
    # Pure Python protobuf raises UnicodeDecodeError for a key that is not UTF-8.
    except (DecodeError, UnicodeDecodeError):
        return None


def _steps() -> Iterator[int]:
    """Return one step for each field that a detection may read."""
    return iter(range(_MAX_FIELDS))


def is_probably_example(payload: bytes) -> bool:
    """Return whether the outer fields and the first feature of a payload match an Example.

    False for every other message type that is commonly stored in TFRecord files, even if protobuf would parse it; also
    for an empty payload, which can be a message of any type.
    """
    try:
        fields, steps = list(message_fields(memoryview(payload), _steps())), _steps()
        features = [data for number, wire_type, data in fields if (number, wire_type) == (1, DELIMITED)]
        if not features or any((number, wire_type) == (2, DELIMITED) for number, wire_type, _ in fields):
            return False
        # An Example without features consists of an empty Features message alone.
        return any(_is_features(each, steps) for each in features) or (
            not any(features) and len(features) == len(fields)
        )
    except NoMessageError:
        return False


def parse_record(payload: bytes) -> SequenceExample | None:
    """Parse an Example or a SequenceExample; return None for another payload type.

    The features of an Example have the field number of the context of a SequenceExample, so one parser reads both: an
    Example is a context without feature lists. An empty payload can be either message.
    """
    try:
        record = parse_sequence(payload)
    # Pure Python protobuf raises UnicodeDecodeError for a key that is not UTF-8.
    except (DecodeError, UnicodeDecodeError):
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

    A list without features (``0a00``) can be another message too: only other records decide.
    """
    record: ExampleListWithContext | None = _parsed(ExampleListWithContext, payload)
    if record is None or detect_payload_type(payload) == "an ExampleListWithContext":
        return record
    if any(example.features.feature for example in (*record.examples, record.context)):
        return None
    known = ExampleListWithContext()
    known.CopyFrom(record)
    known.DiscardUnknownFields()
    # Fields that such a list lacks belong to another message.
    return record if known.ByteSize() == record.ByteSize() else None


def payload_error(payload: bytes, location: Location, message: str = "Example") -> FeatureError:
    """Return the error for a record that is not the expected message: its detected type, and how to read that type."""
    found = advised = detect_payload_type(payload)
    expected = f"{'a' if message == 'SequenceExample' else 'an'} {message}"
    text = f"expected {expected}, found {found} of {plural(len(payload), 'byte')}"
    if found in (expected, "a damaged Example"):
        text += (
            " that holds fields of another message"
            if _parsed(_CLASSES[message], payload) is not None
            else " that protobuf can't parse as one"
        )
        advised = "a damaged Example"
    # An f-string would lose the advice's text for commands.
    return FeatureError(f"{text}; " + ADVICE[advised], location)


def detect_payload_type(payload: bytes) -> str:
    """Detect the payload type of a record.

    The name has its article, as in "found a tf.Event": a key of `ADVICE`.
    """
    if not payload:
        return "an empty record"
    if is_probably_example(payload):
        return "a damaged Example" if _parsed(Example, payload) is None else "an Example"
    fields = _fields_of(memoryview(payload), _steps())
    first = _contents_of(fields, 1)
    second = _contents_of(fields, 2)
    steps = _steps()
    if any(_is_example(each, steps) for each in (*first, *second)):
        return "an ExampleListWithContext"
    if second and (
        any(_is_features(each, steps) for each in first) or any(_is_feature_lists(each, steps) for each in second)
    ):
        return "a SequenceExample"
    format = foreign_format(payload[:HEAD_NBYTES])
    if format is not None and format.what in ADVICE:
        return format.what
    if payload.startswith(_PICKLES) and payload.endswith(b"."):
        return "a pickle"
    if _is_arrow_stream(payload):
        return "an Arrow stream"
    for name, is_message in _WELL_KNOWN.items():
        if is_message(fields, _steps()):
            return name
    text = text_of(payload)
    if text is not None and _is_json(text):
        return "JSON text"
    # A line feed is also the tag of field 1 if that is a message or a string.
    if text is not None and not (fields and text.startswith("\n")):
        return "UTF-8 text"
    return "a protobuf message of another kind" if fields else "raw bytes"


def message_fields(data: memoryview, steps: Iterator[int]) -> Iterator[tuple[int, int, memoryview]]:
    """Yield the field number, wire type and content of the fields of a message, as long as there are steps."""
    for span in spans(data, steps):
        yield span.number, span.wire_type, data[span.begin : span.end]


Fields = Iterable[tuple[int, int, memoryview]]


def _fields_of(data: memoryview, steps: Iterator[int]) -> list[tuple[int, int, memoryview]]:
    """Return the fields of a message; of other bytes, no fields."""
    try:
        return list(message_fields(data, steps))
    except NoMessageError:
        return []


def _contents_of(fields: Fields, number: int, wire_type: int = DELIMITED) -> list[memoryview]:
    """Return the contents of the fields of a number and wire type."""
    return [data for *key, data in fields if key == [number, wire_type]]


def _has_field(
    data: memoryview, steps: Iterator[int], number: int, accepts: Callable[[memoryview, Iterator[int]], bool]
) -> bool:
    """Return whether `data` is a message with a length-delimited field of that number whose content is accepted."""
    try:
        return any(accepts(field, steps) for *key, field in message_fields(data, steps) if key == [number, DELIMITED])
    except NoMessageError:
        return False


def _is_example(data: memoryview, steps: Iterator[int]) -> bool:
    """Return whether the bytes are an Example with at least one feature."""
    return _has_field(data, steps, 1, _is_features)


def _is_features(data: memoryview, steps: Iterator[int]) -> bool:
    """Return whether the bytes are a Features message with at least one entry that has a value."""
    return _has_field(data, steps, 1, lambda entry, steps: _has_field(entry, steps, 2, _is_feature))


def _is_feature_lists(data: memoryview, steps: Iterator[int]) -> bool:
    """Return whether the bytes are a FeatureLists message with at least one list."""
    return _has_field(data, steps, 1, lambda entry, steps: _has_field(entry, steps, 2, _is_feature_list))


def _is_feature_list(data: memoryview, steps: Iterator[int]) -> bool:
    return not data or _has_field(data, steps, 1, _is_feature)


def _is_feature(data: memoryview, steps: Iterator[int]) -> bool:
    """Return whether the bytes are a Feature: one of the three lists, or empty."""
    return not data or any(_has_field(data, steps, number, _is_list) for number in (1, 2, 3))


def _is_list(data: memoryview, steps: Iterator[int]) -> bool:
    try:
        return not data or any(number == 1 for number, _, _ in message_fields(data, steps))
    except NoMessageError:
        return False


# ------------------------------------------------------------------------------------------------ well-known messages

# A message is named only if its values prove it: every field has a number and a wire type of that message, and values
# of several fields agree in a way that another message has only by an unlikely chance.

# Fields of tf.Event: wall_time, step, and one of file_version, graph_def, summary, …
_EVENT = {(1, FIXED64), (2, VARINT)} | {(number, DELIMITED) for number in range(3, 11)}
# Fields of Summary.Value: tag, simple_value, image, histo, audio, node_name, tensor, metadata.
_SUMMARY = {(2, FIXED32)} | {(number, DELIMITED) for number in (1, 3, 4, 5, 6, 7, 8, 9)}
_VARIANT = {(8, FIXED64), (12, VARINT), (13, VARINT), (16, VARINT)} | {
    (number, DELIMITED) for number in (2, 3, 6, 7, 9, 10, 11, 14, 15)
}
_BASES = re.compile(rb"[ACGTRYSWKMBDHVN]+", re.IGNORECASE)
_SCENARIO = {(1, FIXED64), (4, VARINT), (6, VARINT), (10, VARINT)} | {
    (number, DELIMITED) for number in (2, 5, 7, 8, 11, 12, 13)
}
# Fields of ObjectState: center, size, heading, velocity, valid.
_STATE = {(2, FIXED64), (3, FIXED64), (4, FIXED64), (11, VARINT)} | {(number, FIXED32) for number in range(5, 11)}


def _key_names(fields: Fields) -> set[tuple[int, int]]:
    return {(number, wire_type) for number, wire_type, _ in fields}


def _times(fields: Fields) -> list[float]:
    """Return the numbers of field 1, which both events and scenarios keep as doubles."""
    return [struct.unpack("<d", data)[0] for data in _contents_of(fields, 1, FIXED64)]


def _is_event(fields: Fields, steps: Iterator[int]) -> bool:
    """Return whether the fields are a time and the version of the file, or a time and a summary with tags."""
    times = _times(fields)
    versions = _contents_of(fields, 3)
    summaries = _contents_of(fields, 5)
    if len(times) != 1 or not _WALL_TIMES[0] <= times[0] < _WALL_TIMES[1] or not _key_names(fields) <= _EVENT:
        return False
    if len(versions) + len(summaries) != 1:
        return False
    return all(re.fullmatch(rb"brain\.Event:\d+", version) for version in versions) and all(
        _has_field(summary, steps, 1, _is_summary_value) for summary in summaries
    )


def _is_summary_value(data: memoryview, steps: Iterator[int]) -> bool:
    fields = _fields_of(data, steps)
    tags = _contents_of(fields, 1)
    return len(tags) == 1 and bool(tags[0]) and text_of(bytes(tags[0])) is not None and _key_names(fields) <= _SUMMARY


def _is_variant(fields: Fields, _: Iterator[int]) -> bool:
    """Return whether the interval of the fields is as long as the reference bases."""
    names, bases = _contents_of(fields, 14), _contents_of(fields, 6)
    if len(names) != 1 or len(bases) != 1 or not _key_names(fields) <= _VARIANT or not _BASES.fullmatch(bases[0]):
        return False
    start, end = (sum(varint(data, 0)[0] for data in _contents_of(fields, number, VARINT)[-1:]) for number in (16, 13))
    return text_of(bytes(names[0])) is not None and end - start == len(bases[0])


def _is_scenario(fields: Fields, steps: Iterator[int]) -> bool:
    """Return whether the first track has a state for each of the ascending timestamps."""
    times, tracks = _times(fields), _contents_of(fields, 2)
    if len(times) < 2 or not tracks or times != sorted(set(times)) or not _key_names(fields) <= _SCENARIO:
        return False
    states = _contents_of(_fields_of(tracks[0], steps), 3)
    return len(states) == len(times) and any(_key_names(_fields_of(state, steps)) == _STATE for state in states)


_WELL_KNOWN = {"a tf.Event": _is_event, "a nucleus Variant": _is_variant, "a Waymo Scenario": _is_scenario}


def _is_arrow_stream(payload: bytes) -> bool:
    """Return whether the payload begins like an Arrow stream: a continuation marker and the length of its schema.

    https://arrow.apache.org/docs/format/Columnar.html#encapsulated-message-format
    """
    length = int.from_bytes(payload[4:8], "little")
    return payload.startswith(b"\xff" * 4) and 0 < length <= len(payload) - 8 and length % 8 == 0


def _is_json(text: str) -> bool:
    """Return whether a text is a JSON object or list."""
    # A single number or word counts as text.
    if not text.lstrip().startswith(("{", "[")):
        return False
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


Sizes = tuple[int | None, ...]


def _common_shape(shape: Sizes, other: Sizes) -> Sizes:
    """Return the sizes that two shapes share, None for others."""
    return tuple(size if size == also else None for size, also in zip(shape, other, strict=True))


@dataclass(frozen=True, slots=True)
class BytesContent:
    """Detected format of one or several bytes values, and the array that they decode to."""

    format: str  # "JPEG", "PNG", "BMP", "GIF", "WebP" or "tensor"; "image" for images of several formats
    dtype: str  # of the array
    shape: Sizes  # None for a size that is unknown or differs between values

    def common(self, other: BytesContent) -> BytesContent | None:
        """Return the content that both share, or None if one feature can't read both."""
        format = self.format if self.format == other.format else "image"
        one_kind = (self.format == "tensor") == (other.format == "tensor")
        if not one_kind or len(self.shape) != len(other.shape) or self.dtype != other.dtype:
            return None
        return BytesContent(format, self.dtype, _common_shape(self.shape, other.shape))


# ---------------------------------------------------------------------------------------------------------------- text


def is_probably_text(value: bytes) -> bool:
    """Return whether a value is UTF-8 without control characters; True for an empty value."""
    return text_of(value) is not None


# -------------------------------------------------------------------------------------------------------------- images


def detect_image(value: bytes) -> BytesContent | None:
    """Return format, dtype and shape of an encoded image, or None for other values.

    The shape is (height, width, channels), with None where the header does not specify a size.
    """
    header = read_header(value)
    if header is None:
        return None
    format, depth, shape = header
    return BytesContent(format, f"uint{depth}", shape)


# ------------------------------------------------------------------------------------------------------- other formats

# Base64 of the first bytes of JPEG and PNG, in both alphabets.
_BASE64_PICTURES = (b"/9j/", b"_9j_", b"iVBORw0KGgo")
# Letters of base64 that are decoded to find the header of a picture.
_BASE64_HEADER = 1 << 16
_WAV_DTYPES = {8: "uint8", 16: "int16", 32: "int32"}


@dataclass(frozen=True, slots=True)
class ForeignContent:
    """Format of bytes that needs another library, and the array that its expression makes of a value."""

    format: Format
    dtype: str | None = None  # None if it is unknown or differs
    shape: Sizes | None = None

    def common(self, other: ForeignContent) -> ForeignContent | None:
        """Return the content that both share, or None for two formats."""
        if self.format != other.format:
            return None
        shape = None
        if self.shape is not None and other.shape is not None and len(self.shape) == len(other.shape):
            shape = _common_shape(self.shape, other.shape)
        return ForeignContent(self.format, self.dtype if self.dtype == other.dtype else None, shape)


def detect_foreign(value: bytes) -> ForeignContent | None:
    """Return the format of a value by its first bytes; None for all other bytes."""
    format = foreign_format(value[:HEAD_NBYTES])
    if format is NPY:
        return _npy(value)
    if format is WAV:
        return _wav(value)
    # Text may begin like a file: "ID30".
    if format is not None and not is_probably_text(value[:HEAD_NBYTES]):
        return ForeignContent(format)
    if value.startswith(_BASE64_PICTURES):
        return _base64_picture(value)
    if value.startswith(_PICKLES) and value.endswith(b"."):
        return ForeignContent(PICKLE)
    return ForeignContent(ZLIB) if _looks_zlib(value) else None


def _looks_zlib(value: bytes) -> bool:
    """Return whether a value begins with the header of zlib, and can be inflated."""
    if value[:1] != b"\x78" or int.from_bytes(value[:2], "big") % 31:
        return False
    try:
        return bool(zlib.decompressobj().decompress(value, 64))
    except zlib.error:
        return False


def _npy(value: bytes) -> ForeignContent:
    """Read the header of a .npy file, which names dtype and shape."""
    unknown = ForeignContent(NPY)
    file = io.BytesIO(value)
    try:
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read(file)
    except (ValueError, EOFError):
        return unknown
    # Objects are pickled.
    return replace(unknown, dtype=dtype.name, shape=shape) if dtype.kind in "biufc" and dtype.isnative else unknown


def _wav(value: bytes) -> ForeignContent:
    """Read the header of a WAV file, whose samples are rows of one or several channels."""
    unknown = ForeignContent(WAV)
    if value[12:16] != b"fmt " or len(value) < 36:
        return unknown
    kind, channels = (int.from_bytes(value[at : at + 2], "little") for at in (20, 22))
    dtype = _WAV_DTYPES.get(int.from_bytes(value[34:36], "little"))
    if kind != 1 or dtype is None or not channels:
        return unknown
    return replace(unknown, dtype=dtype, shape=(None,) if channels == 1 else (None, channels))


def _base64_picture(value: bytes) -> ForeignContent:
    """Read the header of a JPEG or PNG in base64; gray pixels lack an axis of channels."""
    is_url_safe = not _URL_SAFE.isdisjoint(value[:_BASE64_HEADER])
    unknown = ForeignContent(URL_SAFE_BASE64 if is_url_safe else BASE64)
    try:
        head = base64.b64decode(value[:_BASE64_HEADER], b"-_" if is_url_safe else None)
    except ValueError:
        return unknown
    found = detect_image(head)
    if found is None or None in found.shape or found.dtype != "uint8":
        return unknown
    return replace(unknown, dtype=found.dtype, shape=found.shape[:2] if found.shape[2] == 1 else found.shape)


_URL_SAFE = frozenset(b"-_")


# ------------------------------------------------------------------------------------------------------------- tensors

# dtypes by their number in the enum tensorflow.DataType.
_NAMES = {tensor_dtype_number(name): name for name in TENSOR_DTYPES}
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
    itemsize, values_field = TENSOR_DTYPES[dtype]
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
