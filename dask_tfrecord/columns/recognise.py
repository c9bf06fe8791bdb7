"""What a payload is, by its wire format: an Example, another message, or no message at all.

protobuf reads almost any message as an Example without features, so a parse that succeeds says little; the fields of
each level have to be looked at. This serves inference and the text of errors; it never sees the records that decode.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator

from dask_tfrecord.messages import DecodeError, Example

__all__ = ["describe_payload", "looks_like_example", "parse_example"]

_VARINT, _FIXED64, _DELIMITED, _GROUP, _GROUP_END, _FIXED32 = range(6)
_WIDTHS = {_FIXED64: 8, _FIXED32: 4}

_SIGNATURES = (
    (b"\x89PNG\r\n\x1a\n", "a PNG image"),
    (b"\xff\xd8\xff", "a JPEG image"),
    (b"GIF8", "a GIF image"),
    (b"\x1f\x8b\x08", "gzip data"),
    (b"\x93NUMPY", "a NumPy .npy file"),
)
# tf.Event as TensorBoard's logs hold it: wall_time, step, and then one of file_version, graph_def, summary, …
_EVENT = {(1, _FIXED64), (2, _VARINT)} | {(number, _DELIMITED) for number in range(3, 11)}
# A payload that happens to be millions of tiny fields is not walked to its end.
_MOST_FIELDS = 100_000
# Seconds since 1970 that a clock can have shown.
_WALL_TIMES = (0.0, 1e11)


class _NoMessageError(Exception):
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
        fields = list(_fields(memoryview(payload)))
        features = [data for number, wire_type, data in fields if (number, wire_type) == (1, _DELIMITED)]
        if not features or any((number, wire_type) == (2, _DELIMITED) for number, wire_type, _ in fields):
            return False
        # No feature at all is fine if nothing else speaks against it.
        return any(map(_is_features, features)) or (not any(features) and len(features) == len(fields))
    except _NoMessageError:
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
        "a PNG image", "a JPEG image", "a GIF image", "gzip data", "a NumPy .npy file", "raw bytes" or
        "an empty record".
    """
    if not payload:
        return "an empty record"
    if looks_like_example(payload):
        return "a damaged Example" if parse_example(payload) is None else "an Example"
    try:
        fields = list(_fields(memoryview(payload)))
    except _NoMessageError:
        fields = []
    first, second = ([data for *key, data in fields if key == [number, _DELIMITED]] for number in (1, 2))
    if any(map(_is_example, [*first, *second])):
        return "an ExampleListWithContext"
    if second and (any(map(_is_features, first)) or any(map(_is_feature_lists, second))):
        return "a SequenceExample"
    for signature, name in _SIGNATURES:
        if payload.startswith(signature):
            return name
    if _is_event(fields):
        return "a tf.Event"
    text = _text(payload)
    if text is not None and _is_json(text):
        return "JSON text"
    # A line feed is also the tag of a first field that is a message or a string.
    if text is not None and not (fields and text.startswith("\n")):
        return "UTF-8 text"
    return "a protobuf message of another kind" if fields else "raw bytes"


def _fields(data: memoryview) -> Iterator[tuple[int, int, memoryview]]:
    """Walk a message: number, wire type and content of each field; a group comes as its bare start."""
    groups: list[int] = []
    at = walked = 0
    while at < len(data) and walked < _MOST_FIELDS:
        tag, at = _varint(data, at)
        number, wire_type, begin = tag >> 3, tag & 7, at
        if wire_type == _VARINT:
            _, at = _varint(data, at)
        elif wire_type == _DELIMITED:
            size, begin = _varint(data, at)
            at = begin + size
        elif wire_type in _WIDTHS:
            at += _WIDTHS[wire_type]
        elif wire_type == _GROUP:
            groups.append(number)
        elif wire_type != _GROUP_END or not groups or groups.pop() != number:
            raise _NoMessageError
        if not 0 < number < 2**29 or at > len(data):
            raise _NoMessageError
        # What lies in a group is not a field of this message.
        if wire_type != _GROUP_END and len(groups) == (wire_type == _GROUP):
            yield number, wire_type, data[begin:at]
        walked += 1
    if groups:
        raise _NoMessageError


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    """Read a varint: the value, and where it ends."""
    value = 0
    for length, byte in enumerate(data[at : at + 10]):
        value |= (byte & 0x7F) << 7 * length
        if byte < 0x80:
            return value, at + length + 1
    raise _NoMessageError


def _holds(data: memoryview, number: int, fits: Callable[[memoryview], bool]) -> bool:
    """Whether a message has a length-delimited field of that number that fits; not so if it is no message."""
    try:
        return any(fits(field) for *key, field in _fields(data) if key == [number, _DELIMITED])
    except _NoMessageError:
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
        return not data or any(number == 1 for number, _, _ in _fields(data))
    except _NoMessageError:
        return False


def _is_event(fields: list[tuple[int, int, memoryview]]) -> bool:
    if not fields or not {(number, wire_type) for number, wire_type, _ in fields} <= _EVENT:
        return False
    times = [struct.unpack("<d", data)[0] for number, _, data in fields if number == 1]
    return bool(times) and all(_WALL_TIMES[0] <= time < _WALL_TIMES[1] for time in times)


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
