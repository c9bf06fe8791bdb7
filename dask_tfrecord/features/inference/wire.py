"""Fields of a protobuf message without its descriptor, as `protoc --decode_raw` shows them, with candidates of types.

The wire format states numbers and sizes of fields. It lacks their names and types: several types fit most fields. A
limit bounds the number of fields read. Only the first bytes of each value are read.

The wire format is specified at https://protobuf.dev/programming-guides/encoding/.
"""

from __future__ import annotations

import codecs
import heapq
import math
import re
import struct
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import NamedTuple

from dask_tfrecord.errors import plural, printable

VARINT, FIXED64, DELIMITED, GROUP, _GROUP_END, FIXED32 = range(6)
WIRE_TYPES = ("varint", "fixed64", "length-delimited", "group", "end of group", "fixed32")
_WIDTHS = {FIXED64: 8, FIXED32: 4}
# As in protoc: groups within groups of a payload, and messages within messages.
_MAX_GROUPS = 100
_MAX_MESSAGES = 10
# Bytes read, and characters shown, of a value.
_LOOKED_AT = 4096
_SHOWN = 60
# Numbers of an array that are shown.
_SHOWN_NUMBERS = 6
# Longest varint, and longest tag and size.
_VARINT_NBYTES = 10
_TAG_NBYTES = 5
_UINT32 = 0xFFFFFFFF
_UINT64 = 0xFFFFFFFFFFFFFFFF
# Range of likely floating point numbers. Integers whose bytes are read as floats are mostly outside of it.
_LIKELY = (1e-9, 1e15)
# Largest number of a likely enum.
_ENUM = 255
# Control characters other than tab, line feed, form feed and carriage return.
_CONTROLS = re.compile(rb"[\x00-\x08\x0b\x0e-\x1f\x7f]")


class NoMessageError(Exception):
    """Bytes that are not a protobuf message."""


class Span(NamedTuple):
    """Begin and end of a field's tag and content."""

    number: int
    wire_type: int
    start: int
    begin: int
    end: int
    stop: int


class Candidate(NamedTuple):
    """Type that fits a value, and the value as text."""

    type: str
    value: str


@dataclass(frozen=True, slots=True)
class WireField:
    """Field of a message, read from the wire format."""

    path: str  # field numbers from the payload to this field, joined by dots; empty for the payload
    number: int  # 0 for the payload
    wire_type: str  # "varint", "fixed32", "fixed64", "length-delimited" or "group"
    offset: int  # of the tag in the payload
    length: int  # bytes of the tag and the content
    candidates: tuple[Candidate, ...]  # the likeliest first, each with the value as printable text of bounded length
    children: tuple[WireField, ...] = ()  # fields of a group, or of a length-delimited value that is a valid message
    complete: bool = True  # False if the limit of fields was reached before the end of this field

    def descendants(self) -> Iterator[WireField]:
        """Yield the fields at all depths, each before its own fields."""
        for child in self.children:
            yield child
            yield from child.descendants()


def likely_types(types: Sequence[str]) -> list[str]:
    """Drop types that fit most values, unless they are the only ones."""
    # All bytes are bytes; text and messages are seldom packed numbers by chance.
    kept = [name for name in types if name != "bytes"] or ["bytes"]
    return [name for name in kept if not name.startswith("packed")] if kept[0] in ("text", "message") else kept


def wire_lines(field: WireField, indent: str = "") -> Iterator[str]:
    """Yield the fields of a message as text like `protoc --decode_raw`, each with the types that fit."""
    for child in field.children:
        types = likely_types([candidate.type for candidate in child.candidates])
        if types[0] in ("message", "group"):
            yield f"{indent}{child.number} {{"
            yield from wire_lines(child, f"{indent}  ")
            yield f"{indent}}}"
        else:
            yield f"{indent}{child.number}: {child.candidates[0].value}  # {', '.join(types)}"


def varint(data: memoryview, position: int, longest: int = _VARINT_NBYTES) -> tuple[int, int]:
    """Read a varint; return its value and the position after it."""
    value = 0
    for length, byte in enumerate(data[position : position + longest]):
        value |= (byte & 0x7F) << 7 * length
        if byte < 0x80:
            return value & _UINT64, position + length + 1
    raise NoMessageError


def spans(data: memoryview, steps: Iterator[int], nested: int | None = None) -> Iterator[Span]:
    """Yield the fields of a message, groups as a whole, until `steps` is exhausted.

    For values that may be messages, `nested` is the number of groups within groups, and tags and sizes may be longer
    than 5 bytes, as in protoc. Raises NoMessageError at the first byte that no message has there.
    """
    groups: list[Span] = []
    position = 0
    max_groups, longest = (_MAX_GROUPS, _TAG_NBYTES) if nested is None else (nested, _VARINT_NBYTES)
    while position < len(data):
        start = position
        tag, begin = varint(data, start, longest)
        number = (tag & _UINT32) >> 3
        wire_type = tag & 7
        end = begin
        if wire_type != _GROUP_END and next(steps, None) is None:
            return
        if wire_type == VARINT:
            _, end = varint(data, begin)
        elif wire_type == DELIMITED:
            size, begin = varint(data, begin, longest)
            end = begin + (size & _UINT32)
        elif wire_type in _WIDTHS:
            end = begin + _WIDTHS[wire_type]
        elif wire_type not in (GROUP, _GROUP_END):
            raise NoMessageError
        if not number or end > len(data):
            raise NoMessageError
        position = end
        if wire_type == GROUP:
            groups.append(Span(number, wire_type, start, begin, begin, begin))
            if len(groups) > max_groups:
                raise NoMessageError
            continue
        span = Span(number, wire_type, start, begin, end, end)
        if wire_type == _GROUP_END:
            if not groups or groups[-1].number != number:
                raise NoMessageError
            span = groups.pop()._replace(end=start, stop=end)
        # Fields inside a group are not fields of this message.
        if not groups:
            yield span
    if groups:
        raise NoMessageError


@dataclass(slots=True)
class _Node:
    """Field whose children are being read; `children` is a list only if the field is a message."""

    path: str
    span: Span
    # Messages that may still be nested, which is negative inside groups within the deepest message.
    depth: int
    content: memoryview
    children: list[_Node] | None = None
    complete: bool = True


def wire_fields(payload: bytes, limit: int = 10_000) -> WireField | None:
    """Read the fields of one payload from the wire format, as a field with number 0; None if it is not a message.

    Of more than `limit` fields, each path is read about equally often. Length-delimited values have
    children where `protoc --decode_raw` shows a message, up to 10 levels deep.
    """
    view = memoryview(payload)
    steps, order = iter(range(limit)), count()
    root = _Node("", Span(0, DELIMITED, 0, 0, len(view), len(view)), _MAX_MESSAGES + 1, view)
    # The first field of each path is read before the second, so that few fields show the structure of a message.
    queue, seen = [(0, next(order), root)], Counter[str]()
    while queue:
        *_, node = heapq.heappop(queue)
        is_group, top = node.span.wire_type == GROUP, node is root
        most_groups = _MAX_GROUPS if is_group else node.depth
        try:
            fields = list(spans(node.content, steps, None if top else most_groups))
        except NoMessageError:
            continue
        node.complete = (fields[-1].stop if fields else 0) == len(node.content)
        children: list[_Node] = []
        node.children = children if fields or is_group or top else None
        for span in fields:
            path = f"{node.path}.{span.number}" if node.path else str(span.number)
            shifted = Span(*span[:2], *(node.span.begin + each for each in span[2:]))
            child = _Node(path, shifted, node.depth - 1, node.content[span.begin : span.end])
            children.append(child)
            seen[path] += 1
            if span.wire_type == GROUP or (span.wire_type == DELIMITED and child.depth > 0 and len(child.content)):
                heapq.heappush(queue, (seen[path], next(order), child))
    return None if root.children is None else _field(root)


def _field(node: _Node) -> WireField:
    """Make the public field of a node, with the values that its bytes may be."""
    inner = tuple(map(_field, node.children or ()))
    candidates = _candidates(node.span.wire_type, node.content, None if node.children is None else len(inner))
    complete = node.complete and all(child.complete for child in inner)
    name, length = WIRE_TYPES[node.span.wire_type], node.span.stop - node.span.start
    return WireField(node.path, node.span.number, name, node.span.start, length, candidates, inner, complete)


def _candidates(wire_type: int, content: memoryview, nfields: int | None) -> tuple[Candidate, ...]:
    """Return the types that fit a value; `nfields` is the number of its fields if it is a message."""
    if wire_type == VARINT:
        return _integers(varint(content, 0)[0])
    if wire_type == FIXED32:
        return _fixed_width(content, "<I", "<f", "fixed32", "float")
    if wire_type == FIXED64:
        return _fixed_width(content, "<Q", "<d", "fixed64", "double")
    if wire_type == GROUP:
        return (Candidate("group", plural(nfields or 0, "field")),)
    size, start = len(content), bytes(content[:_LOOKED_AT])
    text = text_of(start, is_cut=size > len(start))
    candidates = [] if nfields is None and size else [Candidate("message", plural(nfields or 0, "field"))]
    if text is not None:
        shown = f'"{printable(text[:_SHOWN])}"' + (f"… ({size:,} bytes)" if len(text) > _SHOWN else "")
        # A line feed is also the tag of a field, so only text without one comes before a message.
        candidates.insert(0 if text.isprintable() else len(candidates), Candidate("text", shown))
    candidates += _packed(start, size)
    return (
        *candidates,
        Candidate("bytes", start[: _SHOWN // 3].hex(" ") + f"{' …' * (size > _SHOWN // 3)} ({plural(size, 'byte')})"),
    )


def text_of(value: bytes, *, is_cut: bool = False) -> str | None:
    """Decode UTF-8 without control characters, except those that lay out text; return None for other bytes."""
    if _CONTROLS.search(value):
        return None
    try:
        return codecs.getincrementaldecoder("utf-8")().decode(value, not is_cut)
    except UnicodeDecodeError:
        return None


def _integers(value: int) -> tuple[Candidate, ...]:
    """List what a varint may be, the likeliest first."""
    candidates = [Candidate("int", str(value - (value >> 63 << 64)))]
    if value <= 1:
        candidates.append(Candidate("bool", "true" if value else "false"))
    if value <= _ENUM:
        candidates.append(Candidate("enum", str(value)))
    if value >> 63:
        candidates.append(Candidate("uint", str(value)))
    return (*candidates, Candidate("sint", str((value >> 1) ^ -(value & 1))))


def _fixed_width(content: memoryview, integer: str, real: str, name: str, real_name: str) -> tuple[Candidate, ...]:
    """List what 4 or 8 bytes may be, the likeliest first."""
    (number,), (value,) = struct.unpack(integer, content), struct.unpack(real, content)
    found = [Candidate(name, str(number))]
    if number >> (8 * len(content) - 1):
        found.append(Candidate(f"s{name}", str(number - (1 << 8 * len(content)))))
    found.insert(0 if _is_likely(value) else len(found), Candidate(real_name, _real(value, real)))
    return tuple(found)


def _is_likely(value: float) -> bool:
    return value == 0 or not math.isfinite(value) or _LIKELY[0] <= abs(value) < _LIKELY[1]


def _real(value: float, code: str) -> str:
    return f"{value:.9g}" if code == "<f" else repr(value)


def _packed(start: bytes, size: int) -> Iterator[Candidate]:
    """Yield the kinds of packed numbers that fit; `start` is the first bytes of `size`."""
    for code, width, name in (("<d", 8, "packed double"), ("<f", 4, "packed float")):
        values = [value for (value,) in struct.iter_unpack(code, start[: len(start) // width * width])]
        if size % width == 0 and all(map(_is_likely, values)):
            yield Candidate(name, _array_of([_real(value, code) for value in values], size // width))
    view, position = memoryview(start), 0
    numbers = []
    try:
        while position < size if size == len(start) else position <= len(start) - _VARINT_NBYTES:
            number, position = varint(view, position)
            numbers.append(str(number - (number >> 63 << 64)))
    except NoMessageError:
        return
    yield Candidate("packed varint", _array_of(numbers, len(numbers) if size == len(start) else None))


def _array_of(values: list[str], number: int | None) -> str:
    more = number is None or number > _SHOWN_NUMBERS
    end = ", …" * more + "]" + (f" ({number:,} numbers)" if more and number is not None else "")
    return f"[{', '.join(values[:_SHOWN_NUMBERS])}{end}"
