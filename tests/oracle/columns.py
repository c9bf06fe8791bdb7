"""Columns that the library must return for given records, or the errors that it must raise.

The oracle parses records with the protobuf library and builds columns value by value.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from oracle import messages
from oracle.description import DECODED, Description, Feature, describe
from oracle.partitions import cut, objects
from oracle.tensors import tensor_of
from oracle.values import Mismatch, oracle_dtype, values_of


class Refusal(Exception):
    """A record, or a feature of it, that does not match the schema."""

    def __init__(self, text: str, record: int, feature: str | None) -> None:
        super().__init__(f"record {record}: {text}")
        self.record = record
        self.feature = feature


def expected_columns(payloads: Iterable[bytes], schema: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
    """Build the arrays that the library must return for these records."""
    described = describe(schema)
    rows, refusals = _read(payloads, described)
    if refusals:
        raise refusals[0]
    columns: dict[str, NDArray[Any]] = {}
    for name, feature in described.features.items():
        columns |= columns_of(name, feature, rows[name], is_list=False)
    for name, feature in described.lists.items():
        columns |= columns_of(name, feature, rows[name], is_list=True)
    return columns | {f"examples/{key}": objects(rows[f"examples/{key}"]) for key in described.items}


def expected_refusals(payloads: Iterable[bytes], schema: Mapping[str, Any]) -> list[Refusal]:
    """List the errors of all records and features that do not match the schema."""
    return _read(payloads, describe(schema))[1]


@dataclass(frozen=True, slots=True)
class _Record:
    """Parsed record: features of an Example or of a context, feature lists, and the items of a list of Examples."""

    features: Mapping[str, messages.Feature]
    lists: Mapping[str, messages.FeatureList] = field(default_factory=dict)
    items: Sequence[_Record] = ()

    def values(self, key: str, dtype: str) -> NDArray[Any]:
        return values_of(self.features[key] if key in self.features else messages.Feature(), dtype)

    def is_unset(self, key: str) -> bool:
        return key not in self.features or self.features[key].WhichOneof("kind") is None

    def steps(self, key: str, dtype: str) -> list[NDArray[Any]]:
        return [values_of(step, dtype) for step in self.lists[key].feature] if key in self.lists else []


def _parsed(payload: bytes, described: Description) -> _Record:
    kind: Any = messages.SequenceExample
    if described.message == "ExampleListWithContext":
        kind = messages.ExampleListWithContext
    try:
        record = kind.FromString(payload)
    except messages.DecodeError:
        raise Mismatch("is no protobuf message of its kind") from None
    if described.message == "ExampleListWithContext":
        items = [_Record(item.features.feature) for item in record.examples]
        parsed = _Record(record.context.features.feature, items=items)
    elif described.message == "Example" and record.HasField("feature_lists"):
        raise Mismatch("is a SequenceExample")
    else:
        # The context of a SequenceExample has the field number of the features of an Example.
        parsed = _Record(record.context.feature, record.feature_lists.feature_list)
    known = kind()
    known.CopyFrom(record)
    known.DiscardUnknownFields()
    is_empty = not (parsed.features or parsed.lists or any(item.features for item in parsed.items))
    if is_empty and known.ByteSize() != record.ByteSize():
        raise Mismatch("holds unknown fields alone: it is another message")
    return parsed


def _read(payloads: Iterable[bytes], described: Description) -> tuple[dict[str, list[Any]], list[Refusal]]:
    """Return the rows of every feature and the errors; rows with an error are left out."""
    readers = _readers(described)
    rows: dict[str, list[Any]] = {name: [] for name in readers}
    refusals: list[Refusal] = []
    for number, payload in enumerate(payloads):
        try:
            record = _parsed(payload, described)
        except Mismatch as mismatch:
            refusals.append(Refusal(f"the record {mismatch}", number, None))
            continue
        for name, read in readers.items():
            try:
                rows[name].append(read(record))
            except Mismatch as mismatch:
                refusals.append(Refusal(f"feature {name!r} {mismatch}", number, name))
    return rows, refusals


def _readers(described: Description) -> dict[str, Callable[[_Record], Any]]:
    """Return the function that reads each feature of a record."""
    readers = {name: _reader(_OF_RECORDS, name, feature) for name, feature in described.features.items()}
    readers |= {name: _reader(_OF_LISTS, name, feature) for name, feature in described.lists.items()}
    for key, feature in described.items.items():
        of_item = _reader(_OF_ITEMS, key, feature)
        readers[f"examples/{key}"] = partial(_items, feature=feature, of_item=of_item)
    return readers


def _reader(rules: Mapping[str, _Rule], name: str, feature: Feature) -> Callable[[_Record], Any]:
    rule = rules.get(feature.kind)
    needs_lists = feature.kind == "FixedLenSequenceFeature" and not feature.allow_missing and rules is not _OF_LISTS
    if rule is None or needs_lists:
        raise TypeError(f"feature {name!r}: the oracle reads no {feature} here")
    return lambda record: rule(record, name, feature)


# ---- rows of Examples and contexts


def _fixed(record: _Record, key: str, feature: Feature) -> NDArray[Any]:
    values = record.values(key, feature.dtype)
    if not len(values) and feature.default_value is not None:
        return _spread(feature.default_value, oracle_dtype(feature.dtype), feature.shape)
    if record.is_unset(key):
        raise Mismatch("is missing")
    return _counted(values, feature.shape)


def _spread(value: Any, dtype: np.dtype[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    """Return an array of a default value: nested tuples of the shape, or a single value for every item."""
    array = np.empty(shape, dtype)
    array[...] = np.array(value, dtype).reshape(np.shape(value))
    return array


def _counted(values: NDArray[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    if len(values) != math.prod(shape):
        raise Mismatch(f"holds {len(values)} values, not {shape}")
    return values.reshape(shape)


def _multiple(values: NDArray[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    if len(values) % math.prod(shape):
        raise Mismatch(f"holds {len(values)} values, no multiple of {shape}")
    return values.reshape(-1, *shape)


def _variable(record: _Record, key: str, feature: Feature) -> NDArray[Any]:
    return _multiple(record.values(key, feature.dtype), feature.shape[1:])


def _sequence(record: _Record, key: str, feature: Feature) -> NDArray[Any]:
    return _bounded(_multiple(record.values(key, feature.dtype), feature.shape), feature)


def _bounded(steps: NDArray[Any], feature: Feature) -> NDArray[Any]:
    if feature.length is not None and len(steps) > feature.length:
        raise Mismatch(f"holds {len(steps)} steps, more than {feature.length}")
    return steps


def _sparse(record: _Record, key: str, feature: Feature) -> tuple[NDArray[Any], NDArray[Any]]:
    axes = [record.values(index_key, "int64").tolist() for index_key in feature.index_key]
    values = record.values(feature.value_key, feature.dtype)
    if any(len(axis) != len(values) for axis in axes):
        raise Mismatch(f"holds {[len(axis) for axis in axes]} indices for {len(values)} values")
    points = list(zip(*axes, strict=True))
    for point in points:
        if not all(0 <= index < size for index, size in zip(point, feature.size, strict=True)):
            raise Mismatch(f"holds an index {point} outside of {feature.size}")
    order = list(range(len(points)))
    if not feature.already_sorted:
        order.sort(key=lambda number: points[number])
    indices = np.array([points[number] for number in order], np.int64).reshape(len(order), len(axes))
    return indices, values[np.array(order, np.int64)]


def _ragged(record: _Record, key: str, feature: Feature) -> NDArray[Any]:
    values = record.values(key if feature.value_key is None else feature.value_key, feature.dtype)
    if feature.values is not None:
        values = _decoded(values, feature.values)
    # Read every partition first: a list of another kind is an error even if its values are not needed.
    lengths = {key: record.values(key, "int64").tolist() for key in _partition_keys(feature)}
    return cut(values, feature.partitions, lengths.__getitem__)


def _decode(value: bytes, feature: Feature) -> Any:
    if feature.kind == "TextFeature":
        return _string(value)
    if feature.kind == "TensorFeature":
        return tensor_of(value, feature.dtype, feature.shape)
    return _raw_array(value, feature)


def _decoded(values: Iterable[bytes], feature: Feature) -> NDArray[Any]:
    """Decode each bytes value."""
    decoded = [_decode(value, feature) for value in values]
    if feature.kind == "TextFeature":
        return np.array(decoded, np.dtypes.StringDType())
    if -1 in feature.shape:
        return objects(decoded)
    result = np.empty((len(decoded), *feature.shape), oracle_dtype(feature.dtype).newbyteorder("="))
    for number, array in enumerate(decoded):
        result[number, ...] = array
    return result


def _partition_keys(feature: Feature) -> list[str]:
    return [partition.key for partition in feature.partitions if partition.kind != "UniformRowLength"]


def _encoded(record: _Record, key: str, feature: Feature) -> Any:
    values = record.values(key, "bytes")
    default = feature.default_value
    if not len(values) and default is not None:
        return default
    if feature.count != -1 and record.is_unset(key):
        raise Mismatch("is missing")
    if feature.count is None:
        return _decode(_counted(values, ()).item(), feature)
    if feature.count not in (-1, len(values)):
        raise Mismatch(f"holds {len(values)} values, not {feature.count}")
    return _decoded(values.tolist(), feature)


def _inflated(value: bytes, compression_type: str) -> bytes:
    inflate = zlib.decompressobj(31 if compression_type == "GZIP" else 15)
    try:
        data = inflate.decompress(value) + inflate.flush()
    except zlib.error as error:
        raise Mismatch(f"is not {compression_type} data: {error}") from None
    if not inflate.eof or inflate.unused_data:
        raise Mismatch(f"is not one whole stream of {compression_type} data")
    return data


def _raw_array(value: bytes, feature: Feature) -> NDArray[Any]:
    if feature.compression_type is not None:
        value = _inflated(value, feature.compression_type)
    stored = oracle_dtype(feature.dtype)
    is_open = -1 in feature.shape
    nbytes = math.prod(size for size in feature.shape if size != -1) * stored.itemsize
    if len(value) % nbytes if is_open else len(value) != nbytes:
        raise Mismatch(f"holds {len(value)} bytes, not {'a multiple of ' if is_open else ''}{nbytes}")
    if stored.kind == "b" and any(byte > 1 for byte in value):
        raise Mismatch("holds a byte that is no bool")
    return np.frombuffer(bytearray(value), stored).astype(stored.newbyteorder("=")).reshape(feature.shape)


def _string(value: bytes) -> str:
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError as error:
        raise Mismatch(f"is not UTF-8: {error}") from None


# ---- rows of feature lists


def _fixed_steps(record: _Record, key: str, feature: Feature) -> NDArray[Any]:
    if key not in record.lists and not feature.allow_missing:
        raise Mismatch("is missing")
    steps = [_counted(values, feature.shape) for values in record.steps(key, feature.dtype)]
    array = np.empty((len(steps), *feature.shape), oracle_dtype(feature.dtype))
    for number, step in enumerate(steps):
        array[number, ...] = step
    return _bounded(array, feature)


def _variable_steps(record: _Record, key: str, feature: Feature) -> NDArray[Any]:
    return objects([_multiple(values, feature.shape[1:]) for values in record.steps(key, feature.dtype)])


def _encoded_steps(record: _Record, key: str, feature: Feature) -> NDArray[Any]:
    return _decoded([_counted(values, ()).item() for values in record.steps(key, "bytes")], feature)


def _ragged_steps(record: _Record, key: str, feature: Feature) -> NDArray[Any]:
    steps = record.steps(key if feature.value_key is None else feature.value_key, feature.dtype)
    read = {key: record.steps(key, "int64") for key in _partition_keys(feature)}
    if any(len(other) != len(steps) for other in read.values()):
        raise Mismatch("has another number of steps in a partition")

    def cut_step(number: int) -> NDArray[Any]:
        return cut(steps[number], feature.partitions, lambda key: read[key][number].tolist())

    return objects([cut_step(number) for number in range(len(steps))])


# ---- rows of items


def _items(record: _Record, feature: Feature, of_item: Callable[[_Record], Any]) -> NDArray[Any]:
    items = []
    for number, item in enumerate(record.items):
        try:
            items.append(of_item(item))
        except Mismatch as mismatch:
            raise Mismatch(f"in item {number} {mismatch}") from None
    return column_of(feature, items)


_Rule = Callable[[_Record, str, Feature], Any]
_OF_RECORDS: dict[str, _Rule] = {
    "FixedLenFeature": _fixed,
    "VarLenFeature": _variable,
    "FixedLenSequenceFeature": _sequence,
    "SparseFeature": _sparse,
    "RaggedFeature": _ragged,
    **dict.fromkeys(DECODED, _encoded),
}
_OF_LISTS: dict[str, _Rule] = {
    "FixedLenSequenceFeature": _fixed_steps,
    "VarLenFeature": _variable_steps,
    "RaggedFeature": _ragged_steps,
    **dict.fromkeys(DECODED, _encoded_steps),
}
# Each item is read as a record of its own.
_OF_ITEMS = {
    kind: rule for kind, rule in _OF_RECORDS.items() if kind not in ("FixedLenSequenceFeature", "SparseFeature")
}


# ---- columns of rows


def columns_of(name: str, feature: Feature, rows: Sequence[Any], *, is_list: bool) -> dict[str, NDArray[Any]]:
    """Return the columns of the rows of a feature, or of a feature list."""
    if feature.kind == "SparseFeature":
        return {
            f"{name}.indices": objects([indices for indices, _ in rows]),
            f"{name}.values": objects([values for _, values in rows]),
            f"{name}.shape": np.array([feature.size] * len(rows), np.int64).reshape(len(rows), len(feature.size)),
        }
    lengths = {f"{name}.lengths": np.array([len(row) for row in rows], np.int64)} if is_list else {}
    if feature.is_decoded and (is_list or feature.count == -1):
        return {name: objects(rows), **lengths}
    return {name: column_of(feature, rows), **lengths}


def column_of(feature: Feature, rows: Sequence[Any]) -> NDArray[Any]:
    """Return the array of the rows of a feature."""
    several = () if feature.count is None else (feature.count,)
    if feature.kind == "TextFeature":
        return np.array(rows, np.dtypes.StringDType()).reshape(len(rows), *several)
    if feature.kind == "FixedLenSequenceFeature":
        return _padded(feature, rows)
    if not feature.is_open:
        column = np.empty((len(rows), *several, *feature.shape), oracle_dtype(feature.dtype).newbyteorder("="))
        for number, row in enumerate(rows):
            column[number, ...] = row
        return column
    return objects(rows)


def _padded(feature: Feature, rows: Sequence[NDArray[Any]]) -> NDArray[Any]:
    length = max(map(len, rows), default=0) if feature.length is None else feature.length
    column = np.empty((len(rows), length, *feature.shape), oracle_dtype(feature.dtype))
    padding = b"" if feature.dtype == "bytes" else 0
    column[...] = padding if feature.default_value is None else feature.default_value
    for number, row in enumerate(rows):
        column[number, : len(row)] = row
    return column
