"""Hypothesis strategy of equivalent encodings: byte strings that protobuf parses as the same record."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from hypothesis import strategies as st

from oracle import messages
from oracle.values import FIELDS, float_bits, stored_values

Record = TypeVar("Record", messages.Example, messages.SequenceExample, messages.ExampleListWithContext)
_Value = TypeVar("_Value", messages.Feature, messages.FeatureList)

# Deviations from the canonical encoding that do not change the message.
_ODDITIES = (
    "unpacked",  # some or all numbers as separate fields
    "chunked",  # several packed runs, some of them empty
    "shuffled",  # map entries in any order, the value before the key, defaults omitted
    "split",  # a map, the value of an entry or a list in several fields, which protobuf merges
    "overwritten",  # duplicate keys and kinds; protobuf keeps the last
    "unknown",  # unknown fields of every wire type, except directly in a map entry
    "overlong",  # varints with redundant bytes
)


@st.composite
def wire_encodings(draw: st.DrawFn, message: Record) -> tuple[Record, bytes]:
    """Equivalent encodings of one message, with every deviation that protobuf permits."""
    oddities = draw(st.sets(st.sampled_from(_ODDITIES)))
    encoder = WireEncoder(oddities, random.Random(draw(st.integers(0, 2**32 - 1))))
    payload = encoder.record(message)
    parsed = type(message).FromString(payload)
    parsed.DiscardUnknownFields()
    return parsed, payload


_VARINT, _FIXED64, _DELIMITED, _GROUP, _GROUP_END, _FIXED32 = range(6)
# Known fields of a message by number and wire type; every other pair is an unknown field.
_Known = frozenset[tuple[int, int]]
# Field 2 would turn an Example into a SequenceExample, and a map of an item into a plain Example.
_RECORD: _Known = frozenset({(1, _DELIMITED), (2, _DELIMITED)})
_REPEATED: _Known = frozenset({(1, _DELIMITED)})  # a map, and a FeatureList
_FEATURE: _Known = frozenset({(1, _DELIMITED), (2, _DELIMITED), (3, _DELIMITED)})
_LISTS: dict[str, _Known] = {
    "bytes": frozenset({(1, _DELIMITED)}),
    "float32": frozenset({(1, _DELIMITED), (1, _FIXED32)}),
    "int64": frozenset({(1, _DELIMITED), (1, _VARINT)}),
}
# Values of a list that a later one overrides.
_STALE: dict[str, list[Any]] = {"bytes": [b"stale", b""], "float32": [b"\0\0\x80\x3f"] * 3, "int64": [7, -7]}
_NUMBERS = {kind: number for number, kind in enumerate(FIELDS, start=1)}


def _wire_values(feature: messages.Feature, kind: str) -> list[Any]:
    """List the values in the form that `WireEncoder.values` requires: floats as four bytes each."""
    if kind == "float32":
        return [bits.to_bytes(4, "little") for bits in float_bits(feature)]
    values: list[Any] = stored_values(feature, kind).tolist()
    return values


class WireEncoder:
    """Encoder of one record with random deviations from the canonical encoding."""

    def __init__(self, oddities: set[str], rng: random.Random) -> None:
        self.oddities = oddities
        self.rng = rng
        self.maps = _REPEATED

    def often(self, oddity: str) -> bool:
        """Decide at random whether a deviation occurs at this position."""
        return oddity in self.oddities and self.rng.random() < 0.6

    def varint(self, value: int, longest: int) -> bytes:
        """Encode an integer in the required number of bytes, or in up to `longest` bytes."""
        value &= 2**64 - 1
        groups = [value >> shift & 0x7F for shift in range(0, max(value.bit_length(), 1), 7)]
        if self.often("overlong"):
            groups += [0] * self.rng.randint(0, longest - len(groups))
        return bytes([*(group | 0x80 for group in groups[:-1]), groups[-1]])

    def tag(self, number: int, wire_type: int) -> bytes:
        """Encode the tag of a field."""
        return self.varint(number << 3 | wire_type, 5)

    def delimited(self, number: int, content: bytes) -> bytes:
        """Encode a length-delimited field: bytes, text or a message."""
        return self.tag(number, _DELIMITED) + self.varint(len(content), 5) + content

    def unknown(self, known: _Known, depth: int = 0) -> bytes:
        """Encode a random field that is not in `known`."""
        numbers = [1, 2, 3, 4, 15, 16, 2047, 2**29 - 1]
        wire_types = [_VARINT, _FIXED64, _DELIMITED, _GROUP, _FIXED32]
        pairs = [(number, wire) for number in numbers for wire in wire_types if (number, wire) not in known]
        number, wire_type = self.rng.choice(pairs)
        if wire_type == _GROUP:
            inside = [self.unknown(frozenset(), depth + 1) for _ in range(self.rng.randint(0, max(2 - depth, 0)))]
            return self.tag(number, _GROUP) + b"".join(inside) + self.tag(number, _GROUP_END)
        if wire_type == _DELIMITED:
            return self.delimited(number, self.rng.randbytes(self.rng.randint(0, 5)))
        if wire_type == _VARINT:
            return self.tag(number, _VARINT) + self.varint(self.rng.getrandbits(self.rng.choice((1, 32, 64))), 10)
        return self.tag(number, wire_type) + self.rng.randbytes(8 if wire_type == _FIXED64 else 4)

    def message(self, fields: list[bytes], known: _Known) -> bytes:
        """Join the fields in order, with unknown fields inserted at random."""
        fields = list(fields)
        while self.often("unknown"):
            fields.insert(self.rng.randint(0, len(fields)), self.unknown(known))
        return b"".join(fields)

    def split(self, fields: list[bytes], known: _Known) -> list[bytes]:
        """Encode a message as one or several messages, which protobuf merges."""
        cuts = [0, len(fields)]
        while self.often("split"):
            cuts.append(self.rng.randint(0, len(fields)))
        cuts.sort()
        return [self.message(fields[begin:end], known) for begin, end in itertools.pairwise(cuts)]

    def values(self, kind: str, values: list[Any]) -> list[bytes]:
        """Encode the fields of a BytesList, FloatList or Int64List."""
        if kind == "bytes":
            return [self.delimited(1, value) for value in values]
        if kind == "int64":
            numbers, wire_type = [self.varint(value, 10) for value in values], _VARINT
        else:
            numbers, wire_type = values, _FIXED32
        fields = []
        while numbers or self.often("chunked"):
            count = self.rng.randint(0, len(numbers)) if "chunked" in self.oddities else len(numbers)
            run, numbers = numbers[:count], numbers[count:]
            if self.often("unpacked"):
                fields += [self.tag(1, wire_type) + number for number in run]
            else:
                fields.append(self.delimited(1, b"".join(run)))
        return fields

    def kinds(self, feature: messages.Feature) -> list[bytes]:
        """Encode the fields of a Feature: lists that are overridden, and the list that overrides them."""
        field = feature.WhichOneof("kind")
        if field is None:
            return []
        kind = next(kind for kind, name in FIELDS.items() if name == field)
        overridden: list[str] = []
        while self.often("overwritten"):
            overridden.append(self.rng.choice([*FIELDS]))
        if overridden and overridden[-1] == kind:
            # protobuf would merge two lists of the same kind.
            overridden.append(self.rng.choice([other for other in FIELDS if other != kind]))
        lists = [(other, [self.message(self.values(other, _STALE[other]), _LISTS[other])]) for other in overridden]
        lists.append((kind, self.split(self.values(kind, _wire_values(feature, kind)), _LISTS[kind])))
        return [self.delimited(_NUMBERS[kind], piece) for kind, pieces in lists for piece in pieces]

    def feature(self, feature: messages.Feature) -> list[bytes]:
        """Encode the value of a map entry as one or several messages."""
        return self.split(self.kinds(feature), _FEATURE)

    def steps(self, steps: messages.FeatureList) -> list[bytes]:
        """Encode a feature list as one or several messages. A step is never divided: it would become several steps."""
        fields = [self.delimited(1, self.message(self.kinds(step), _FEATURE)) for step in steps.feature]
        return self.split(fields, _REPEATED)

    def entry(self, key: str, value: _Value, encode: Callable[[_Value], list[bytes]]) -> bytes:
        """Encode an entry of a map."""
        keys: list[bytes] = [self.delimited(1, key.encode())]
        if self.often("overwritten"):
            keys.insert(0, self.delimited(1, b"another key"))
        pieces: list[bytes] = [self.delimited(2, piece) for piece in encode(value)]
        if self.often("shuffled"):
            # A missing key or value has its default.
            if not key:
                keys = []
            if not value.ByteSize():
                pieces = []
        fields = [*pieces, *keys] if self.often("shuffled") else [*keys, *pieces]
        # Unknown fields are not added: upb, unlike other parsers, drops an entry that has one.
        return b"".join(fields)

    def example(self, example: messages.Example) -> list[bytes]:
        """Encode an Example of a list, or its context, as one or several messages."""
        return self.split(
            [self.delimited(1, piece) for piece in self.map(example.features.feature, self.feature)], _RECORD
        )

    def example_list(self, record: messages.ExampleListWithContext) -> bytes:
        """Encode an ExampleListWithContext. An item is never divided: it would become several items."""
        held = [*record.examples, record.context]
        if not any(value.ByteSize() for example in held for value in example.features.feature.values()):
            self.oddities = self.oddities - {"shuffled", "unknown"}
        items = [self.delimited(1, b"".join(self.example(item))) for item in record.examples]
        context = (
            [self.delimited(2, piece) for piece in self.example(record.context)] if record.HasField("context") else []
        )
        return self.message(self.interleaved(items, context), _RECORD)

    def map(self, held: Mapping[str, _Value], encode: Callable[[_Value], list[bytes]]) -> list[bytes]:
        """Encode a map as one or several messages."""
        entries = [(key, held[key]) for key in sorted(held)]
        if "shuffled" in self.oddities:
            self.rng.shuffle(entries)
        fields: list[bytes] = []
        for key, value in entries:
            if self.often("overwritten"):
                stale = self.entry(key, self.rng.choice(entries)[1], encode)
                fields.insert(self.rng.randint(0, len(fields)), self.delimited(1, stale))
            fields.append(self.delimited(1, self.entry(key, value, encode)))
        return self.split(fields, self.maps)

    def record(self, record: messages.Example | messages.SequenceExample | messages.ExampleListWithContext) -> bytes:
        """Encode a record."""
        if isinstance(record, messages.ExampleListWithContext):
            self.maps = _RECORD
            return self.example_list(record)
        held: dict[str, messages.Feature] = {}
        steps: dict[str, messages.FeatureList] = {}
        if isinstance(record, messages.Example):
            held.update(record.features.feature)
            has_features, has_lists = record.HasField("features"), False
        else:
            held.update(record.context.feature)
            steps.update(record.feature_lists.feature_list)
            has_features, has_lists = record.HasField("context"), record.HasField("feature_lists")
        if not any(value.ByteSize() for value in (*held.values(), *steps.values())):
            # A message of only unknown fields, or only entries without a value, is detected as another type.
            self.oddities = self.oddities - {"shuffled", "unknown"}
        features = [self.delimited(1, piece) for piece in self.map(held, self.feature)] if has_features else []
        lists = [self.delimited(2, piece) for piece in self.map(steps, self.steps)] if has_lists else []
        return self.message(self.interleaved(features, lists), _RECORD)

    def interleaved(self, features: list[bytes], lists: list[bytes]) -> list[bytes]:
        """Interleave two runs of fields. Each keeps its order, since later fields override earlier ones."""
        if "shuffled" not in self.oddities:
            return [*features, *lists]
        turns = [True] * len(features) + [False] * len(lists)
        self.rng.shuffle(turns)
        runs = {True: iter(features), False: iter(lists)}
        return [next(runs[turn]) for turn in turns]
