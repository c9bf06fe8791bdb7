"""The many legal encodings of one message: all that protobuf reads as the same Example or SequenceExample."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from hypothesis import strategies as st

from dask_tfrecord import messages
from dask_tfrecord.testing.values import FIELDS, float_bits, stored_values

__all__ = ["Encoder", "wire_encodings"]

Record = TypeVar("Record", messages.Example, messages.SequenceExample)
_Value = TypeVar("_Value", messages.Feature, messages.FeatureList)

# What may be odd about an encoding and still mean the same.
_ODDITIES = (
    "unpacked",  # numbers one by one, or some of them
    "chunked",  # several packed runs, empty ones too
    "shuffled",  # a map's entries in any order, its value before its key, its defaults left out
    "split",  # a map, an entry's value or a list in several pieces, which protobuf merges
    "overwritten",  # keys and kinds written twice: the last one counts
    "unknown",  # unknown fields of every wire type, anywhere but in a map's entry itself
    "overlong",  # varints longer than they need be
)


@st.composite
def wire_encodings(draw: st.DrawFn, message: Record) -> tuple[Record, bytes]:
    """Legal encodings of one message, as odd as protobuf allows.

    Parameters
    ----------
    message : Example or SequenceExample
        The message; each encoding is built to mean this one, less its unknown fields. Of a message without one value
        only those are made that the library does not take for a message of another type.

    Returns
    -------
    strategy of (Example or SequenceExample, bytes)
        What protobuf's own parser, the judge, makes of the bytes (unknown fields dropped); and the bytes. The judge is
        upb, protobuf's default: pure Python protobuf does not know over-long tags.
    """
    oddities = draw(st.sets(st.sampled_from(_ODDITIES)))
    encoder = Encoder(oddities, random.Random(draw(st.integers(0, 2**32 - 1))))
    payload = encoder.record(message)
    parsed = type(message).FromString(payload)
    parsed.DiscardUnknownFields()
    return parsed, payload


_VARINT, _FIXED64, _DELIMITED, _GROUP, _GROUP_END, _FIXED32 = range(6)
# Fields that a level knows, by number and wire type; every other pair is an unknown field there.
_Known = frozenset[tuple[int, int]]
# In an Example, a length-delimited field 2 would make a SequenceExample of it.
_RECORD: _Known = frozenset({(1, _DELIMITED), (2, _DELIMITED)})
_REPEATED: _Known = frozenset({(1, _DELIMITED)})  # a map, and a FeatureList
_FEATURE: _Known = frozenset({(1, _DELIMITED), (2, _DELIMITED), (3, _DELIMITED)})
_LISTS: dict[str, _Known] = {
    "bytes": frozenset({(1, _DELIMITED)}),
    "float32": frozenset({(1, _DELIMITED), (1, _FIXED32)}),
    "int64": frozenset({(1, _DELIMITED), (1, _VARINT)}),
}
# What an overridden list holds.
_STALE: dict[str, list[Any]] = {"bytes": [b"stale", b""], "float32": [b"\0\0\x80\x3f"] * 3, "int64": [7, -7]}
_NUMBERS = {kind: number for number, kind in enumerate(FIELDS, start=1)}


def _wire_values(feature: messages.Feature, kind: str) -> list[Any]:
    """List the values as `Encoder.values` takes them: floats as the four bytes that they are."""
    if kind == "float32":
        return [bits.to_bytes(4, "little") for bits in float_bits(feature)]
    values: list[Any] = stored_values(feature, kind).tolist()
    return values


class Encoder:
    """Encodes one message, oddly; a message is a list of encoded fields, in order.

    Parameters
    ----------
    oddities : set of str
        What may be odd.
    rng : random.Random
        Where it is.
    """

    def __init__(self, oddities: set[str], rng: random.Random) -> None:
        self.oddities = oddities
        self.rng = rng

    def often(self, oddity: str) -> bool:
        """Whether to be odd here."""
        return oddity in self.oddities and self.rng.random() < 0.6

    def varint(self, value: int, longest: int) -> bytes:
        """Encode an integer in as many bytes as it takes, or in more of them."""
        value &= 2**64 - 1
        groups = [value >> shift & 0x7F for shift in range(0, max(value.bit_length(), 1), 7)]
        if self.often("overlong"):
            groups += [0] * self.rng.randint(0, longest - len(groups))
        return bytes([*(group | 0x80 for group in groups[:-1]), groups[-1]])

    def tag(self, number: int, wire_type: int) -> bytes:
        """Encode what a field begins with."""
        return self.varint(number << 3 | wire_type, 5)

    def delimited(self, number: int, content: bytes) -> bytes:
        """Encode a field of bytes, text or a message."""
        return self.tag(number, _DELIMITED) + self.varint(len(content), 5) + content

    def unknown(self, known: _Known, depth: int = 0) -> bytes:
        """One field that `known` does not name."""
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
        """Join the fields in their order, unknown ones strewn among them."""
        fields = list(fields)
        while self.often("unknown"):
            fields.insert(self.rng.randint(0, len(fields)), self.unknown(known))
        return b"".join(fields)

    def pieces(self, fields: list[bytes], known: _Known) -> list[bytes]:
        """Encode the message in one piece or several, which protobuf merges."""
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
        """Encode the fields of a Feature: its list, after other lists that it overrides."""
        field = feature.WhichOneof("kind")
        if field is None:
            return []
        kind = next(kind for kind, name in FIELDS.items() if name == field)
        overridden: list[str] = []
        while self.often("overwritten"):
            overridden.append(self.rng.choice([*FIELDS]))
        if overridden and overridden[-1] == kind:
            # The same kind would merge.
            overridden.append(self.rng.choice([other for other in FIELDS if other != kind]))
        lists = [(other, [self.message(self.values(other, _STALE[other]), _LISTS[other])]) for other in overridden]
        lists.append((kind, self.pieces(self.values(kind, _wire_values(feature, kind)), _LISTS[kind])))
        return [self.delimited(_NUMBERS[kind], piece) for kind, pieces in lists for piece in pieces]

    def feature(self, feature: messages.Feature) -> list[bytes]:
        """Encode the value of a map entry, in pieces."""
        return self.pieces(self.kinds(feature), _FEATURE)

    def steps(self, steps: messages.FeatureList) -> list[bytes]:
        """Encode a feature list, in pieces; a step in pieces would be several steps."""
        fields = [self.delimited(1, self.message(self.kinds(step), _FEATURE)) for step in steps.feature]
        return self.pieces(fields, _REPEATED)

    def entry(self, key: str, value: _Value, encode: Callable[[_Value], list[bytes]]) -> bytes:
        """Encode one entry of a map."""
        keys: list[bytes] = [self.delimited(1, key.encode())]
        if self.often("overwritten"):
            keys.insert(0, self.delimited(1, b"another key"))
        pieces: list[bytes] = [self.delimited(2, piece) for piece in encode(value)]
        if self.often("shuffled"):
            # What is left out has its default.
            if not key:
                keys = []
            if not value.ByteSize():
                pieces = []
        fields = [*pieces, *keys] if self.often("shuffled") else [*keys, *pieces]
        # Without unknown fields: upb, unlike protobuf in other languages, drops an entry that has one.
        return b"".join(fields)

    def map(self, held: Mapping[str, _Value], encode: Callable[[_Value], list[bytes]]) -> list[bytes]:
        """Encode a map, in pieces."""
        entries = [(key, held[key]) for key in sorted(held)]
        if "shuffled" in self.oddities:
            self.rng.shuffle(entries)
        fields: list[bytes] = []
        for key, value in entries:
            if self.often("overwritten"):
                stale = self.entry(key, self.rng.choice(entries)[1], encode)
                fields.insert(self.rng.randint(0, len(fields)), self.delimited(1, stale))
            fields.append(self.delimited(1, self.entry(key, value, encode)))
        return self.pieces(fields, _REPEATED)

    def record(self, record: messages.Example | messages.SequenceExample) -> bytes:
        """Encode a whole record."""
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
            # Unknown fields and map entries without a value make another message of one that has nothing else.
            self.oddities = self.oddities - {"shuffled", "unknown"}
        features = [self.delimited(1, piece) for piece in self.map(held, self.feature)] if has_features else []
        lists = [self.delimited(2, piece) for piece in self.map(steps, self.steps)] if has_lists else []
        return self.message(self.interleaved(features, lists), _RECORD)

    def interleaved(self, features: list[bytes], lists: list[bytes]) -> list[bytes]:
        """Put two runs of fields in one; each keeps its order, for later ones override."""
        if "shuffled" not in self.oddities:
            return [*features, *lists]
        turns = [True] * len(features) + [False] * len(lists)
        self.rng.shuffle(turns)
        runs = {True: iter(features), False: iter(lists)}
        return [next(runs[turn]) for turn in turns]
