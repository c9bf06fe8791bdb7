"""Serialized Examples, and random changes of their bytes."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from oracle import messages


def varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    groups = [value >> shift & 0x7F for shift in range(0, max(value.bit_length(), 1), 7)]
    return bytes([*(group | 0x80 for group in groups[:-1]), groups[-1]])


def delimited(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content


def entry(key: bytes, feature: bytes) -> bytes:
    return delimited(1, delimited(1, key) + delimited(2, feature))


def feature(values: Sequence[Any]) -> messages.Feature:
    """Return a Feature of ints, floats or bytes, unset for an empty list; or `values` itself if it is one."""
    if isinstance(values, messages.Feature):
        return values
    made = messages.Feature()
    if values:
        lists = {int: made.int64_list, float: made.float_list, bytes: made.bytes_list}
        lists[type(values[0])].value.extend(values)
    return made


def features_message(values: Mapping[str, Sequence[Any]]) -> messages.Features:
    return messages.Features(feature={name: feature(each) for name, each in values.items()})


def example(**features: Sequence[Any]) -> bytes:
    """Serialize an Example of ints, floats and bytes; a Feature of an empty list is left unset."""
    message = messages.Example(features=features_message(features))
    return bytes(message.SerializeToString(deterministic=True))


def sequence_example(context: Mapping[str, Sequence[Any]] | None = None, **lists: Sequence[Sequence[Any]]) -> bytes:
    """Serialize a SequenceExample from a context and, for each feature list, the values of its steps."""
    named = {name: messages.FeatureList(feature=map(feature, steps)) for name, steps in lists.items()}
    message = messages.SequenceExample(
        context=None if context is None else features_message(context),
        feature_lists=messages.FeatureLists(feature_list=named),
    )
    return bytes(message.SerializeToString(deterministic=True))


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """Return a varint, and the offset after it."""
    begin = at
    while data[at] >= 0x80:
        at += 1
    return sum((byte & 0x7F) << 7 * place for place, byte in enumerate(data[begin : at + 1])), at + 1


def wire_fields(data: bytes) -> Iterator[tuple[int, int, int, int, int]]:
    """Yield number and wire type of each field, its offset, and the start and end of its content."""
    at = 0
    while at < len(data):
        try:
            tag, begin = read_varint(data, at)
            size = {1: 8, 5: 4}.get(tag & 7, 0)
            if tag & 7 in (0, 2):
                value, begin = read_varint(data, begin)
                size = value if tag & 7 else 0
        except IndexError:
            return
        first, at = at, begin + size
        if at <= len(data):
            yield tag >> 3, tag & 7, first, begin, at


def mutate(payload: bytes, other: bytes, rng: random.Random) -> bytes:
    """Change a nested message of the payload; the lengths of the enclosing messages are mostly adjusted."""
    inner = [field for field in wire_fields(payload) if field[1] == 2]
    if inner and rng.random() < 0.8:
        number, _, first, begin, end = rng.choice(inner)
        return payload[:first] + delimited(number, mutate(payload[begin:end], other, rng)) + payload[end:]
    return mutate_bytes(payload, other, rng)


def mutate_bytes(payload: bytes, other: bytes, rng: random.Random) -> bytes:
    at = rng.randint(0, len(payload))
    to = rng.randint(at, min(len(payload), at + 40))
    donor = rng.randint(0, len(other))
    piece = other[donor : donor + rng.randint(0, 60)]
    wrapped = rng.choice([b"\x0b%b\x0c", b"\x13%b\x14", b"\x0b%b", b"%b\x0c"])
    odd = bytes([rng.choice(b"\0\1\2\x08\x0a\x0b\x0c\x0d\x12\x1a\x7f\x80\xff")])
    choices: list[Callable[[], bytes]] = [
        lambda: payload[:at] + bytes([payload[at] ^ 1 << rng.randrange(8)]) + payload[at + 1 :],
        lambda: payload[:at] + odd + payload[at + 1 :],
        lambda: payload[:at],
        lambda: payload[:at] + payload[to:],
        lambda: payload[:at] + rng.randbytes(rng.randint(1, 6)) + payload[at:],
        lambda: payload[:at] + payload[at:to] * 2 + payload[to:],
        lambda: payload[:at] + piece + payload[at:],
        lambda: payload[:at] + other[donor:],
        lambda: payload + other,
        lambda: payload[:at] + bytes([payload[at] | 0x80, *(0x80,) * rng.randint(0, 9), 0]) + payload[at + 1 :],
        lambda: payload[:at] + wrapped % payload[at:to] + payload[to:],
    ]
    return rng.choice(choices)() if at < len(payload) else payload[:to] + piece
