"""What a payload is, by its wire format: an Example, another message, or no message at all.

protobuf reads almost any message as an Example without features, so a parse that succeeds says little; the fields of
each level have to be looked at. This serves inference and the text of errors, which say what to use instead; it never
sees the records that decode.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator

from dask_tfrecord.errors import FeatureError, Place
from dask_tfrecord.messages import DecodeError, Example, SequenceExample

__all__ = [
    "NoMessageError",
    "describe_payload",
    "looks_like_example",
    "message_fields",
    "parse_example",
    "parse_record",
    "refusal",
    "varint",
    "what_to_use",
]

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
# Protocols of pickles that begin with their number; they end with a dot.
_PICKLES = tuple(bytes([0x80, protocol]) for protocol in (2, 3, 4, 5))

_BAG = "to_bag(urlpath, decode=…) calls a function on every payload"
_MESSAGE = (
    "to_bag(urlpath, decode=…) calls a function on every payload, which may parse it by {} and return plain values"
)
# What reads payloads that are no Examples, by what they look like.
_USES = {
    "an Example": "features= describes Examples, sequence_features= only SequenceExamples",
    "a damaged Example": "what wrote it is at fault; read_records(urlpath) gives the payloads as they are",
    "a SequenceExample": (
        "read_tfrecord(urlpath, infer_schema(urlpath)) reads SequenceExamples; or give features= for the context and "
        "sequence_features= for the feature lists"
    ),
    "an ExampleListWithContext": _MESSAGE.format("dask_tfrecord.messages.ExampleListWithContext.FromString"),
    "a tf.Event": _MESSAGE.format("Event.FromString of tensorboard.compat.proto.event_pb2"),
    "a protobuf message of another kind": _MESSAGE.format("the FromString of its own class"),
    "JSON text": "to_bag(urlpath, decode=json.loads) parses every payload",
    "UTF-8 text": "to_bag(urlpath, decode=bytes.decode) gives every payload as a string",
    "a PNG image": f"{_BAG}, such as one that opens images",
    "a JPEG image": f"{_BAG}, such as one that opens images",
    "a GIF image": f"{_BAG}, such as one that opens images",
    "gzip data": "to_bag(urlpath, decode=gzip.decompress) inflates every payload",
    "a NumPy .npy file": "to_bag(urlpath, decode=lambda payload: numpy.load(io.BytesIO(payload))) gives the arrays",
    "a pickle": "to_bag(urlpath, decode=pickle.loads) gives the objects; a pickle runs code of whoever wrote it",
    "an Arrow file": f"{_BAG}, such as pyarrow.ipc.open_file",
    "an Arrow stream": f"{_BAG}, such as pyarrow.ipc.open_stream",
    "an Avro file": f"{_BAG}, such as one that reads Avro",
    "a Parquet file": f"{_BAG}, such as one that reads Parquet",
    "a zip archive": f"{_BAG}, such as one that opens archives",
    "raw bytes": f"read_records(urlpath) gives the payloads as they are, and {_BAG}",
    "an empty record": "read_records(urlpath) gives the payloads as they are",
}
# tf.Event as TensorBoard's logs hold it: wall_time, step, and then one of file_version, graph_def, summary, …
_EVENT = {(1, _FIXED64), (2, _VARINT)} | {(number, _DELIMITED) for number in range(3, 11)}
# A payload that happens to be millions of tiny fields is not walked to its end.
_MOST_FIELDS = 100_000
# Seconds since 1970 that a clock can have shown.
_WALL_TIMES = (0.0, 1e11)
# SequenceExamples without any feature: what TensorFlow writes, and the half of it.
_EMPTY = (b"\x0a\x00\x12\x00", b"\x12\x00")


class NoMessageError(Exception):
    """The bytes are no protobuf message."""


def looks_like_example(payload: bytes) -> bool:
    """Whether a record is an Example, as far as its outer fields and its first feature tell.

    Parameters
    ----------
    payload : bytes
        The record. An empty one is not recognised: it can be anything.

    Returns
    -------
    bool
        False for every other message that is known to go about in TFRecord files, even where protobuf would parse it.
    """
    try:
        fields = list(message_fields(memoryview(payload)))
        features = [data for number, wire_type, data in fields if (number, wire_type) == (1, _DELIMITED)]
        if not features or any((number, wire_type) == (2, _DELIMITED) for number, wire_type, _ in fields):
            return False
        # No feature at all is fine if nothing else speaks against it.
        return any(map(_is_features, features)) or (not any(features) and len(features) == len(fields))
    except NoMessageError:
        return False


def parse_example(payload: bytes) -> Example | None:
    """Parse a record by protobuf's own parser, or return None if it is no Example.

    Parameters
    ----------
    payload : bytes
        The record; an empty one is an Example without features.
    """
    if payload and not looks_like_example(payload):
        return None
    try:
        return Example.FromString(payload)
    # Of a key that is no UTF-8, pure Python protobuf says so in its own way.
    except (DecodeError, UnicodeDecodeError):
        return None


def parse_record(payload: bytes) -> SequenceExample | None:
    """Parse a record that is an Example or a SequenceExample, or return None.

    The features of an Example are where the context of a SequenceExample is, so one parser serves both.

    Parameters
    ----------
    payload : bytes
        The record; an empty one can be either.

    Returns
    -------
    SequenceExample or None
        Of an Example without feature lists: nothing there tells it from a SequenceExample that has none.
    """
    try:
        record = SequenceExample.FromString(payload)
    # Of a key that is no UTF-8, pure Python protobuf says so in its own way.
    except (DecodeError, UnicodeDecodeError):
        return None
    # A value that is set can't be there by chance; without one the fields have to be looked at.
    for feature in record.context.feature.values():
        if feature.WhichOneof("kind") is not None:
            return record
    for steps in record.feature_lists.feature_list.values():
        if any(step.WhichOneof("kind") is not None for step in steps.feature):
            return record
    if not payload or payload in _EMPTY or describe_payload(payload) in ("an Example", "a SequenceExample"):
        return record
    return None


def what_to_use(looks: str) -> str:
    """Say what reads payloads of that look; see `describe_payload`."""
    return _USES[looks]


def refusal(payload: bytes, place: Place, message: str = "Example") -> FeatureError:
    """Make the error for a record that is not what was expected.

    Parameters
    ----------
    payload : bytes
        The record.
    place : Place
        Where it is.
    message : str, default "Example"
        What it should have been: "Example" or "SequenceExample".

    Returns
    -------
    FeatureError
        It says what the record looks like, and what reads such records.
    """
    looks = describe_payload(payload)
    expected = f"{'an' if message == 'Example' else 'a'} {message}"
    said = f"expected {expected}, found {looks} of {len(payload)} bytes"
    if looks in (expected, "a damaged Example"):
        said += " that protobuf can't parse as one"
        looks = "a damaged Example"
    return FeatureError(f"{said}; {what_to_use(looks)}", place)


def describe_payload(payload: bytes) -> str:
    """Say what a payload looks like.

    Parameters
    ----------
    payload : bytes
        What a record holds.

    Returns
    -------
    str
        With its article, as in "found a tf.Event": "an Example", "a damaged Example", "a SequenceExample",
        "an ExampleListWithContext", "a tf.Event", "a protobuf message of another kind", "JSON text", "UTF-8 text",
        "a PNG image", "a JPEG image", "a GIF image", "gzip data", "a NumPy .npy file", "a pickle", "an Arrow file",
        "an Arrow stream", "an Avro file", "a Parquet file", "a zip archive", "raw bytes" or "an empty record".
    """
    if not payload:
        return "an empty record"
    if looks_like_example(payload):
        return "a damaged Example" if parse_example(payload) is None else "an Example"
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
    # A line feed is also the tag of a first field that is a message or a string.
    if text is not None and not (fields and text.startswith("\n")):
        return "UTF-8 text"
    return "a protobuf message of another kind" if fields else "raw bytes"


def message_fields(data: memoryview) -> Iterator[tuple[int, int, memoryview]]:
    """Walk a message: number, wire type and content of each field; a group comes as its bare start."""
    groups: list[int] = []
    at = walked = 0
    while at < len(data) and walked < _MOST_FIELDS:
        tag, at = varint(data, at)
        number, wire_type, begin = tag >> 3, tag & 7, at
        if wire_type == _VARINT:
            _, at = varint(data, at)
        elif wire_type == _DELIMITED:
            size, begin = varint(data, at)
            at = begin + size
        elif wire_type in _WIDTHS:
            at += _WIDTHS[wire_type]
        elif wire_type == _GROUP:
            groups.append(number)
        elif wire_type != _GROUP_END or not groups or groups.pop() != number:
            raise NoMessageError
        if not 0 < number < 2**29 or at > len(data):
            raise NoMessageError
        # What lies in a group is not a field of this message.
        if wire_type != _GROUP_END and len(groups) == (wire_type == _GROUP):
            yield number, wire_type, data[begin:at]
        walked += 1
    if groups:
        raise NoMessageError


def varint(data: memoryview, at: int) -> tuple[int, int]:
    """Read a varint: the value, and where it ends."""
    value = 0
    for length, byte in enumerate(data[at : at + 10]):
        value |= (byte & 0x7F) << 7 * length
        if byte < 0x80:
            return value, at + length + 1
    raise NoMessageError


def _holds(data: memoryview, number: int, fits: Callable[[memoryview], bool]) -> bool:
    """Whether a message has a length-delimited field of that number that fits; not so if it is no message."""
    try:
        return any(fits(field) for *key, field in message_fields(data) if key == [number, _DELIMITED])
    except NoMessageError:
        return False


def _is_example(data: memoryview) -> bool:
    """Whether the message is an Example with at least one feature."""
    return _holds(data, 1, _is_features)


def _is_features(data: memoryview) -> bool:
    """Whether the message is a Features with at least one feature: an entry that has a value."""
    return _holds(data, 1, lambda entry: _holds(entry, 2, _is_feature))


def _is_feature_lists(data: memoryview) -> bool:
    """Whether the message is a FeatureLists with at least one list."""
    return _holds(data, 1, lambda entry: _holds(entry, 2, _is_feature_list))


def _is_feature_list(data: memoryview) -> bool:
    return not data or _holds(data, 1, _is_feature)


def _is_feature(data: memoryview) -> bool:
    """Whether the message is a Feature: one of three lists, or nothing."""
    return not data or any(_holds(data, number, _is_list) for number in (1, 2, 3))


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
    """Whether the payload begins with a message of Arrow's: a mark, and the length of a schema padded to 8 bytes."""
    length = int.from_bytes(payload[4:8], "little")
    return payload.startswith(b"\xff" * 4) and 0 < length <= len(payload) - 8 and length % 8 == 0


def _text(payload: bytes) -> str | None:
    """Decode the payload, or return None if it is no text."""
    try:
        text = payload.decode("utf-8")
    except UnicodeDecodeError:
        return None
    return text if all(char.isprintable() or char in "\t\n\r" for char in text) else None


def _is_json(text: str) -> bool:
    # A lone number or word is text.
    if not text.lstrip().startswith(("{", "[")):
        return False
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True
