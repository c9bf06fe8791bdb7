"""An independent judge for tests: records read, written and turned into arrays in plain Python.

Nothing here shares code with what it judges: framing is `struct` and the `crc32c` package, decoding is protobuf's own
parser, and columns are built value by value. Slow, short, and meant to be read. The hypothesis strategies make schemas,
records that fit them, and the many legal encodings of one record; they need the extra ``test``.
"""

from __future__ import annotations

import gzip
import itertools
import math
import random
import struct
import zlib
from collections.abc import Callable, Iterable, Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import crc32c
import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from dask_tfrecord import messages
from dask_tfrecord.errors import CorruptRecordError, FeatureError, Place
from dask_tfrecord.features import Feature, FixedLenFeature, RawFeature, TextFeature, VarLenFeature
from dask_tfrecord.schema import Schema

__all__ = [
    "examples",
    "expected_columns",
    "features",
    "read_oracle",
    "read_payloads",
    "schemas",
    "wire_encodings",
    "write_oracle",
]

_FIELDS = {"bytes": "bytes_list", "float32": "float_list", "int64": "int64_list"}


def _masked_crc(data: bytes) -> int:
    crc: int = crc32c.crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _inflated(stored: bytes) -> bytes:
    """Inflate a shard's bytes if they are compressed: they say so themselves, not the name."""
    if len(stored) >= 12 and _masked_crc(stored[:8]) == struct.unpack_from("<I", stored, 8)[0]:
        return stored
    if stored[:2] == b"\x1f\x8b":
        return gzip.decompress(stored)
    if len(stored) >= 2 and stored[0] & 0x0F == 8 and int.from_bytes(stored[:2], "big") % 31 == 0:
        return zlib.decompress(stored)
    return stored


def read_payloads(path: str | PathLike[str]) -> list[bytes]:
    """Every record's payload of one local file, both CRCs checked.

    Parameters
    ----------
    path : path
        A TFRecord file, plain or compressed by gzip or zlib.

    Returns
    -------
    list of bytes

    Raises
    ------
    CorruptRecordError
        If a record is cut or a CRC does not hold.
    """
    stream, offset = _inflated(Path(path).read_bytes()), 0
    payloads: list[bytes] = []
    while offset < len(stream):
        place = Place(str(path), len(payloads), offset)
        header, end = stream[offset : offset + 12], 0
        if len(header) == 12 and _masked_crc(header[:8]) == int.from_bytes(header[8:], "little"):
            end = offset + 12 + int.from_bytes(header[:8], "little") + 4
        if not 0 < end <= len(stream):
            raise CorruptRecordError("the header is cut, does not hold, or asks for more than there is", place)
        payload = stream[offset + 12 : end - 4]
        if _masked_crc(payload) != int.from_bytes(stream[end - 4 : end], "little"):
            raise CorruptRecordError("the payload's CRC does not hold", place)
        payloads.append(payload)
        offset = end
    return payloads


def read_oracle(path: str | PathLike[str]) -> list[messages.Example]:
    """Every record of one local file as protobuf parses it; `read_payloads` and then ``Example.FromString``."""
    return [messages.Example.FromString(payload) for payload in read_payloads(path)]


def write_oracle(path: str | PathLike[str], payloads: Iterable[bytes], compression: str | None = None) -> None:
    """Write payloads as one TFRecord file.

    Parameters
    ----------
    path : path
        A local file; it is replaced.
    payloads : iterable of bytes
        One per record.
    compression : {None, "gzip", "zlib"}
        Of the whole file.
    """
    records = []
    for payload in payloads:
        length = struct.pack("<Q", len(payload))
        records += [length, struct.pack("<I", _masked_crc(length)), payload, struct.pack("<I", _masked_crc(payload))]
    compress: dict[str | None, Callable[[bytes], bytes]] = {None: bytes, "gzip": gzip.compress, "zlib": zlib.compress}
    Path(path).write_bytes(compress[compression](b"".join(records)))


def expected_columns(payloads: Iterable[bytes], schema: Mapping[str, Feature]) -> dict[str, NDArray[Any]]:
    """Build the arrays that the library must return for these records.

    Parameters
    ----------
    payloads : iterable of bytes
        Serialised Examples.
    schema : mapping of str to feature
        As given to `read_tfrecord`.

    Returns
    -------
    dict of str to ndarray
        Numbers of a fixed length as ``(n, *shape)``, bytes of a fixed length as an object array of that shape, variable
        lengths as ``(n,)`` object arrays with one array per record, raw bytes as ``(n, *shape)`` in native byte order,
        text as ``(n,)`` of `StringDType`. Floats keep their bits, NaN payloads too, unless protobuf is pure Python.

    Raises
    ------
    FeatureError
        If a record does not fit the schema.
    """
    parsed = [messages.Example.FromString(payload).features.feature for payload in payloads]
    columns: dict[str, NDArray[Any]] = {}
    for name, feature in schema.items():
        rows = [
            _row(record[name] if name in record else messages.Feature(), feature, f"payload {number}: feature {name!r}")
            for number, record in enumerate(parsed)
        ]
        columns[name] = np.empty((len(rows), *feature.block_shape), feature.block_dtype)
        for number, row in enumerate(rows):
            columns[name][number] = row
    return columns


def _row(message: messages.Feature, feature: Feature, where: str) -> Any:
    """Make what one record adds to the column of `feature`."""
    field = message.WhichOneof("kind")
    if field is None and not isinstance(feature, VarLenFeature):
        raise FeatureError(f"{where} is missing")
    kind = "bytes" if isinstance(feature, RawFeature | TextFeature) else feature.dtype
    if field not in (None, _FIELDS[kind]):
        raise FeatureError(f"{where} is a {field}, not a {_FIELDS[kind]}")
    values = _values(message, kind)
    if isinstance(feature, VarLenFeature):
        if values.size % math.prod(feature.shape[1:]):
            raise FeatureError(f"{where} holds {values.size} values, no multiple of {feature.shape[1:]}")
        return values.reshape(feature.shape)
    shape = feature.shape if isinstance(feature, FixedLenFeature) else ()
    if values.size != math.prod(shape):
        raise FeatureError(f"{where} holds {values.size} values, not {shape}")
    if isinstance(feature, FixedLenFeature):
        return values.reshape(shape) if shape else values[0]
    return _raw(values[0], feature, where) if isinstance(feature, RawFeature) else _text(values[0], where)


def _values(message: messages.Feature, kind: str) -> NDArray[Any]:
    """Read the values of one Feature message, flat."""
    listed = getattr(message, _FIELDS[kind])
    values = np.empty(len(listed.value), object if kind == "bytes" else kind)
    if kind == "float32" and len(values):
        # Through Python floats a signalling NaN would turn quiet; serialised, a list ends with its packed values.
        bare = messages.FloatList.FromString(listed.SerializeToString())
        bare.DiscardUnknownFields()
        values[:] = np.frombuffer(bare.SerializeToString()[-4 * len(values) :], "<f4")
    else:
        values[:] = list(listed.value)
    return values


def _raw(value: bytes, feature: RawFeature, where: str) -> NDArray[Any]:
    if len(value) != feature.nbytes:
        raise FeatureError(f"{where} holds {len(value)} bytes, not {feature.nbytes}")
    return np.frombuffer(bytearray(value), feature.stored_dtype).reshape(feature.shape)


def _text(value: bytes, where: str) -> str:
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError as error:
        raise FeatureError(f"{where} is no UTF-8: {error}") from None


_NAMES = st.text(st.characters(codec="utf-8"), max_size=8)
_SHAPES = st.lists(st.integers(1, 3), max_size=3).map(tuple)
_RAW_DTYPES = ("bool", "uint8", "int8", "<i2", ">i2", "<u4", ">i8", "<f2", ">f4", "<f8", ">c8")
_VALUES: dict[str, st.SearchStrategy[Any]] = {
    "bytes": st.binary(max_size=12),
    "float32": st.floats(width=32),
    "int64": st.integers(-(2**63), 2**63 - 1),
}


def features() -> st.SearchStrategy[Feature]:
    """Feature classes of every kind, shape and dtype."""
    kinds = st.sampled_from(sorted(_VALUES))
    ragged_shapes = _SHAPES.map(lambda shape: (-1, *shape))
    return st.one_of(
        st.builds(FixedLenFeature, _SHAPES, kinds),
        st.builds(VarLenFeature, kinds, shape=st.just((-1,)) | ragged_shapes),
        st.builds(RawFeature, _SHAPES, st.sampled_from(_RAW_DTYPES)),
        st.builds(TextFeature),
    )


def schemas(*, min_size: int = 0, max_size: int = 5) -> st.SearchStrategy[Schema]:
    """Schemas of `min_size` to `max_size` features, under any name that protobuf takes, the empty one included."""
    return st.dictionaries(_NAMES, features(), min_size=min_size, max_size=max_size).map(Schema)


@st.composite
def examples(draw: st.DrawFn, schema: Mapping[str, Feature], *, others: bool = False) -> messages.Example:
    """Examples that fit a schema.

    Parameters
    ----------
    schema : mapping of str to feature
        What each Example holds; a `VarLenFeature` may be missing, without a kind, or empty.
    others : bool, default False
        Whether features that the schema does not name may be there too.
    """
    example = messages.Example()
    held = example.features.feature
    for name, feature in schema.items():
        shape = feature.shape
        if isinstance(feature, VarLenFeature):
            presence = draw(st.sampled_from(("values", "missing", "unset")))
            if presence != "values":
                if presence == "unset":
                    held[name].SetInParent()
                continue
            shape = (draw(st.integers(0, 3)), *shape[1:])
        if isinstance(feature, RawFeature):
            values = [_raw_bytes(draw, feature)]
        elif isinstance(feature, TextFeature):
            values = [draw(_NAMES).encode()]
        else:
            size = math.prod(shape)
            values = draw(st.lists(_VALUES[feature.dtype], min_size=size, max_size=size))
        kind = "bytes" if isinstance(feature, RawFeature | TextFeature) else feature.dtype
        _fill(held[name], kind, values)
    for name in draw(st.lists(_NAMES.filter(lambda name: name not in schema), max_size=2)) if others else ():
        kind = draw(st.sampled_from(sorted(_VALUES)))
        _fill(held[name], kind, draw(st.lists(_VALUES[kind], max_size=3)))
    return example


def _fill(message: messages.Feature, kind: str, values: list[Any]) -> None:
    listed = getattr(message, _FIELDS[kind])
    # An empty list has a kind too.
    listed.SetInParent()
    listed.value.extend(values)


def _raw_bytes(draw: st.DrawFn, feature: RawFeature) -> bytes:
    if feature.stored_dtype.kind == "b":
        return bytes(draw(st.lists(st.integers(0, 1), min_size=feature.nbytes, max_size=feature.nbytes)))
    return draw(st.binary(min_size=feature.nbytes, max_size=feature.nbytes))


# What may be odd about an encoding and still mean the same.
_ODDITIES = (
    "unpacked",  # numbers one by one, or some of them
    "chunked",  # several packed runs, empty ones too
    "shuffled",  # a map's entries in any order, its value before its key, its defaults left out
    "split",  # `features`, an entry's value or a list in several pieces, which protobuf merges
    "overwritten",  # keys and kinds written twice: the last one counts
    "unknown",  # unknown fields of every wire type, anywhere but in a map's entry itself
    "overlong",  # varints longer than they need be
)


@st.composite
def wire_encodings(draw: st.DrawFn, example: messages.Example) -> tuple[messages.Example, bytes]:
    """Legal encodings of one message, as odd as protobuf allows.

    Parameters
    ----------
    example : Example
        The message; each encoding is built to mean this one, less its unknown fields.

    Returns
    -------
    strategy of (Example, bytes)
        What protobuf's own parser, the judge, makes of the bytes (unknown fields dropped); and the bytes. The judge is
        upb, protobuf's default: pure Python protobuf does not know over-long tags.
    """
    oddities = draw(st.sets(st.sampled_from(_ODDITIES)))
    payload = _Encoder(oddities, random.Random(draw(st.integers(0, 2**32 - 1)))).example(example)
    parsed = messages.Example.FromString(payload)
    parsed.DiscardUnknownFields()
    return parsed, payload


_VARINT, _FIXED64, _DELIMITED, _GROUP, _GROUP_END, _FIXED32 = range(6)
# Fields that a level knows, by number and wire type; every other pair is an unknown field there.
_Known = frozenset[tuple[int, int]]
# In a record, a length-delimited field 2 would make a SequenceExample of it.
_EXAMPLE: _Known = frozenset({(1, _DELIMITED), (2, _DELIMITED)})
_FEATURES: _Known = frozenset({(1, _DELIMITED)})
_FEATURE: _Known = frozenset({(1, _DELIMITED), (2, _DELIMITED), (3, _DELIMITED)})
_LISTS: dict[str, _Known] = {
    "bytes": frozenset({(1, _DELIMITED)}),
    "float32": frozenset({(1, _DELIMITED), (1, _FIXED32)}),
    "int64": frozenset({(1, _DELIMITED), (1, _VARINT)}),
}
# What an overridden list holds.
_STALE: dict[str, list[Any]] = {"bytes": [b"stale", b""], "float32": [b"\0\0\x80\x3f"] * 3, "int64": [7, -7]}
_NUMBERS = {kind: number for number, kind in enumerate(_FIELDS, start=1)}


def _wire_values(feature: messages.Feature, kind: str) -> list[Any]:
    """List the values as `_Encoder.values` takes them: floats as the four bytes that they are."""
    values = _values(feature, kind)
    return [value.astype("<f4").tobytes() for value in values] if kind == "float32" else values.tolist()


class _Encoder:
    """Encodes one message with a set of oddities; a message is a list of encoded fields, in order."""

    def __init__(self, oddities: set[str], rng: random.Random) -> None:
        self.oddities = oddities
        self.rng = rng

    def often(self, oddity: str) -> bool:
        return oddity in self.oddities and self.rng.random() < 0.6

    def varint(self, value: int, longest: int) -> bytes:
        value &= 2**64 - 1
        groups = [value >> shift & 0x7F for shift in range(0, max(value.bit_length(), 1), 7)]
        if self.often("overlong"):
            groups += [0] * self.rng.randint(0, longest - len(groups))
        return bytes([*(group | 0x80 for group in groups[:-1]), groups[-1]])

    def tag(self, number: int, wire_type: int) -> bytes:
        return self.varint(number << 3 | wire_type, 5)

    def delimited(self, number: int, content: bytes) -> bytes:
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
        kind = next(kind for kind, name in _FIELDS.items() if name == field)
        overridden: list[str] = []
        while self.often("overwritten"):
            overridden.append(self.rng.choice([*_FIELDS]))
        if overridden and overridden[-1] == kind:
            # The same kind would merge.
            overridden.append(self.rng.choice([other for other in _FIELDS if other != kind]))
        lists = [(other, [self.message(self.values(other, _STALE[other]), _LISTS[other])]) for other in overridden]
        lists.append((kind, self.pieces(self.values(kind, _wire_values(feature, kind)), _LISTS[kind])))
        return [self.delimited(_NUMBERS[kind], piece) for kind, pieces in lists for piece in pieces]

    def entry(self, key: str, feature: messages.Feature) -> bytes:
        """Encode one entry of the feature map."""
        keys = [self.delimited(1, key.encode())]
        if self.often("overwritten"):
            keys.insert(0, self.delimited(1, b"another key"))
        values = [self.delimited(2, piece) for piece in self.pieces(self.kinds(feature), _FEATURE)]
        if self.often("shuffled"):
            # What is left out has its default.
            keys = keys if key else []
            values = values if feature.WhichOneof("kind") else []
        fields = [*values, *keys] if self.often("shuffled") else [*keys, *values]
        # Without unknown fields: upb, unlike protobuf in other languages, drops an entry that has one.
        return b"".join(fields)

    def example(self, example: messages.Example) -> bytes:
        """Encode a whole record."""
        entries = [(name, example.features.feature[name]) for name in sorted(example.features.feature)]
        if "shuffled" in self.oddities:
            self.rng.shuffle(entries)
        fields: list[bytes] = []
        for name, feature in entries:
            if self.often("overwritten"):
                stale = self.rng.choice(entries)[1]
                fields.insert(self.rng.randint(0, len(fields)), self.delimited(1, self.entry(name, stale)))
            fields.append(self.delimited(1, self.entry(name, feature)))
        pieces = self.pieces(fields, _FEATURES) if example.HasField("features") else []
        return self.message([self.delimited(1, piece) for piece in pieces], _EXAMPLE)
