"""Hypothesis strategies of Examples, SequenceExamples and lists of Examples, with or without misfits to a schema."""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any

from hypothesis import strategies as st

from oracle import messages
from oracle.description import Description, Feature, Partition, describe
from oracle.strategies import NAMES, STORED, values_that_fit
from oracle.tensors import LISTS
from oracle.values import FIELDS, kind_of, oracle_dtype

# Content of a record or step for one feature: kind and values by key.
_Held = dict[str, tuple[str, list[Any]]]


def examples(schema: Mapping[str, Any], *, others: bool = False, misfits: bool = False) -> st.SearchStrategy[Any]:
    """Examples that match a schema; with `others`, more features, and with `misfits`, random changes of some."""
    return _examples(describe(schema).features, others, misfits)


def sequence_examples(
    schema: Mapping[str, Any], *, others: bool = False, misfits: bool = False
) -> st.SearchStrategy[Any]:
    """SequenceExamples that match a schema."""
    return _sequence_examples(describe(schema), others, misfits)


def example_lists(schema: Mapping[str, Any], *, others: bool = False, misfits: bool = False) -> st.SearchStrategy[Any]:
    """ExampleListWithContexts that match a schema."""
    return _example_lists(describe(schema), others, misfits)


@st.composite
def _examples(draw: st.DrawFn, features: Mapping[str, Feature], others: bool, misfits: bool) -> Any:
    example = messages.Example()
    _fill_map(draw, example.features.feature, features, others=others)
    if misfits and draw(_SOMETIMES):
        _change_map(draw, example.features.feature, _keys(features))
    return example


@st.composite
def _sequence_examples(draw: st.DrawFn, described: Description, others: bool, misfits: bool) -> Any:
    record = messages.SequenceExample()
    _fill_map(draw, record.context.feature, described.features, others=others)
    lists = record.feature_lists.feature_list
    for name, feature in described.lists.items():
        _fill_lists(draw, lists, name, feature)
    wanted = _keys(described.lists)
    for name in draw(st.lists(NAMES.filter(lambda name: name not in wanted), max_size=1)) if others else ():
        _fill(lists[name].feature.add(), *draw(_ANYTHING))
    if misfits and draw(_SOMETIMES):
        if not wanted or (described.features and draw(st.booleans())):
            _change_map(draw, record.context.feature, _keys(described.features))
        else:
            _change_list(draw, lists, draw(st.sampled_from(wanted)))
    return record


@st.composite
def _example_lists(draw: st.DrawFn, described: Description, others: bool, misfits: bool) -> Any:
    record = messages.ExampleListWithContext()
    has_context: bool = bool(described.features) or draw(st.booleans())
    for _ in range(draw(st.integers(0, 3))):
        record.examples.add().CopyFrom(draw(_examples(described.items, others, misfits)))
    if has_context:
        record.context.CopyFrom(draw(_examples(described.features, others, misfits)))
    return record


_SOMETIMES = st.integers(0, 2).map(lambda number: number == 0)
_ANYTHING = st.sampled_from(sorted(STORED)).flatmap(
    lambda kind: st.tuples(st.just(kind), st.lists(STORED[kind], max_size=3))
)


def _keys(features: Mapping[str, Feature]) -> list[str]:
    """List the keys that features read."""
    keys: list[str] = []
    for name, feature in features.items():
        if feature.kind == "SparseFeature":
            keys += [*feature.index_key, feature.value_key]
        elif feature.kind == "RaggedFeature":
            keys.append(name if feature.value_key is None else feature.value_key)
            keys += [part.key for part in feature.partitions if part.kind != "UniformRowLength"]
        else:
            keys.append(name)
    return keys


def _fill(message: messages.Feature, kind: str, values: Iterable[Any]) -> None:
    listed = getattr(message, FIELDS[kind])
    # Set the kind even if the list is empty.
    listed.SetInParent()
    listed.value.extend(values)


def _fill_map(draw: st.DrawFn, held: Any, features: Mapping[str, Feature], *, others: bool) -> None:
    for name, feature in features.items():
        needed = feature.kind == "FixedLenFeature" and feature.default_value is None
        for key, (kind, values) in _draw_held(draw, name, feature).items():
            form = "list" if values or needed else draw(st.sampled_from(("list", "missing", "unset")))
            if form == "list":
                _fill(held[key], kind, values)
            elif form == "unset":
                held[key].SetInParent()
    wanted = _keys(features)
    for name in draw(st.lists(NAMES.filter(lambda name: name not in wanted), max_size=2)) if others else ():
        _fill(held[name], *draw(_ANYTHING))


def _fill_lists(draw: st.DrawFn, lists: Any, name: str, feature: Feature) -> None:
    count = draw(st.integers(0, min(_longest(feature), 3)))
    needed = feature.kind == "FixedLenSequenceFeature" and not feature.allow_missing
    if not count and not needed and draw(st.booleans()):
        return
    for key in _keys({name: feature}):
        lists[key].SetInParent()
    for _ in range(count):
        for key, (kind, values) in _draw_held(draw, name, feature, step=True).items():
            step, is_set = lists[key].feature.add(), draw(st.booleans())
            if values or is_set:
                _fill(step, kind, values)


def _longest(feature: Feature) -> int:
    """Return the maximum number of steps, or 3 if it is unlimited."""
    length = feature.length if feature.kind == "FixedLenSequenceFeature" else None
    return 3 if length is None else length


def _draw_held(draw: st.DrawFn, name: str, feature: Feature, *, step: bool = False) -> _Held:
    """Draw the content of a record or step for one feature."""
    if feature.kind == "SparseFeature":
        return _draw_sparse(draw, feature)
    if feature.kind == "RaggedFeature":
        return _draw_ragged(draw, name, feature)
    if feature.kind == "TextFeature" and feature.default_value is not None and draw(st.booleans()):
        return {name: ("bytes", [])}
    if feature.is_decoded and feature.count is not None:
        count = draw(st.integers(0, 3)) if feature.count < 0 else feature.count
        return {name: ("bytes", [_draw_bytes(draw, feature) for _ in range(count)])}
    if feature.is_decoded:
        return {name: ("bytes", [_draw_bytes(draw, feature)])}
    if feature.kind == "VarLenFeature":
        count = draw(st.integers(0, 3)) * math.prod(feature.shape[1:])
    elif feature.kind == "FixedLenSequenceFeature":
        count = math.prod(feature.shape) * (1 if step else draw(st.integers(0, min(_longest(feature), 3))))
    else:
        takes_default = feature.default_value is not None and draw(st.booleans())
        count = 0 if takes_default else math.prod(feature.shape)
    return {name: (kind_of(feature.dtype), _draw_values(draw, feature.dtype, count))}


def _draw_values(draw: st.DrawFn, dtype: str, count: int) -> list[Any]:
    return draw(st.lists(values_that_fit(dtype), min_size=count, max_size=count))


def _draw_sparse(draw: st.DrawFn, feature: Feature) -> _Held:
    count = 0 if 0 in feature.size else draw(st.integers(0, 4))
    held: _Held = {}
    for key, size in zip(feature.index_key, feature.size, strict=True):
        held[key] = ("int64", draw(st.lists(st.integers(0, max(size - 1, 0)), min_size=count, max_size=count)))
    held[feature.value_key] = (kind_of(feature.dtype), _draw_values(draw, feature.dtype, count))
    return held


def _draw_ragged(draw: st.DrawFn, name: str, feature: Feature) -> _Held:
    held: _Held = {}
    rows = draw(st.integers(0, 3))
    for partition in feature.partitions:
        if partition.kind == "UniformRowLength":
            rows *= partition.length
            continue
        lengths = draw(st.lists(st.integers(0, 2), min_size=rows, max_size=rows))
        if partition.kind == "ValueRowIds" and lengths:
            lengths[-1] = max(lengths[-1], 1)  # row ids can't express empty rows at the end
        held[partition.key] = ("int64", _encode_partition(partition, lengths))
        rows = sum(lengths)
    key, of = name if feature.value_key is None else feature.value_key, feature.values
    if of is not None:
        return {key: ("bytes", [_draw_bytes(draw, of) for _ in range(rows)]), **held}  # type: ignore[arg-type]
    return {key: (kind_of(feature.dtype), _draw_values(draw, feature.dtype, rows)), **held}


def _encode_partition(partition: Partition, lengths: list[int]) -> list[int]:
    """Convert row lengths to the representation of a partition."""
    splits = list(accumulate(lengths, initial=0))
    if partition.kind == "ValueRowIds":
        return [row for row, length in enumerate(lengths) for _ in range(length)]
    if partition.kind == "RowSplits":
        return splits if lengths else []
    if partition.kind == "RowStarts":
        return splits[:-1]
    return splits[1:] if partition.kind == "RowLimits" else lengths


def _draw_bytes(draw: st.DrawFn, feature: Feature) -> bytes:
    if feature.kind == "TextFeature":
        return draw(NAMES).encode()
    sizes = [draw(st.integers(0, 3)) if size == -1 else size for size in feature.shape]
    if feature.kind == "TensorFeature":
        return _draw_tensor(draw, feature.dtype, sizes)
    items = _draw_items(draw, feature.dtype, math.prod(sizes))
    if feature.compression_type is None:
        return items
    deflate = zlib.compressobj(draw(st.integers(0, 9)), wbits=31 if feature.compression_type == "GZIP" else 15)
    return deflate.compress(items) + deflate.flush()


def _draw_items(draw: st.DrawFn, dtype: str, count: int) -> bytes:
    size = count * oracle_dtype(dtype).itemsize
    stored = draw(st.binary(min_size=size, max_size=size))
    return bytes(byte & 1 for byte in stored) if dtype == "bool" else stored


def _draw_tensor(draw: st.DrawFn, dtype: str, sizes: Sequence[int]) -> bytes:
    """Draw a serialized tensor, with its values as bytes or listed; the last listed value may be repeated."""
    number, field = LISTS[dtype]
    count = math.prod(sizes)
    message = messages.TensorProto(dtype=number)
    message.tensor_shape.SetInParent()
    for size in sizes:
        message.tensor_shape.dim.add(size=size)
    if dtype == "bytes":
        message.string_val.extend(_draw_values(draw, dtype, count))
    elif draw(st.booleans()):
        message.tensor_content = _draw_items(draw, dtype, count)
    else:
        given = draw(st.integers(0, count))
        items = _draw_values(draw, dtype, given) if dtype in _LISTED else _draw_encoded_items(draw, dtype, given)
        getattr(message, field).extend(items)
    return message.SerializeToString(deterministic=True)


_LISTED = ("float32", "int64", "bool", "int8", "int16", "int32", "uint8", "uint16", "uint32")


def _draw_encoded_items(draw: st.DrawFn, dtype: str, count: int) -> list[Any]:
    """Draw numbers of dtypes that are listed as bits or as pairs of floats, or that Examples can't store."""
    one: st.SearchStrategy[Any] = st.floats(width=32 if dtype == "complex64" else 64)
    if dtype in ("float16", "uint64"):
        one = st.integers(0, 2 ** (8 * oracle_dtype(dtype).itemsize) - 1)
    count *= 2 if dtype.startswith("complex") else 1
    items: list[Any] = draw(st.lists(one, min_size=count, max_size=count))
    return items


# ---- random changes

_OUTLIERS: dict[str, tuple[Any, ...]] = {
    "bytes": (b"\xff", b"\2", b"", b"\x08\x01\x12\x00"),
    "float32": (struct.unpack("<f", b"\xff\xff\x7f\x7f")[0], 65520.0, 65519.0, -math.inf),
    "int64": (-1, 0, 1, 2, 5, 128, 1 << 16, 1 << 32, 2**63 - 1, -(2**63)),
}


def _change_map(draw: st.DrawFn, held: Any, keys: Sequence[str]) -> None:
    if not keys:
        return
    key = draw(st.sampled_from(keys))
    if draw(st.integers(0, 4)) == 0:
        held.pop(key, None)
    else:
        _change(draw, held[key])


def _change_list(draw: st.DrawFn, lists: Any, key: str) -> None:
    change = draw(st.sampled_from(("removed", "one more", "one less", *["a step"] * 4)))
    if change == "removed":
        lists.pop(key, None)
        return
    steps = lists[key].feature
    if change == "one more" or not len(steps):
        steps.add()
        if draw(st.booleans()):
            _change(draw, steps[-1])
    elif change == "one less":
        del steps[draw(st.integers(0, len(steps) - 1))]
    else:
        _change(draw, steps[draw(st.integers(0, len(steps) - 1))])


def _change(draw: st.DrawFn, message: messages.Feature) -> None:
    """Change the kind, the number of values or a value of a Feature."""
    field = message.WhichOneof("kind")
    kind = next((kind for kind, name in FIELDS.items() if name == field), draw(st.sampled_from(sorted(FIELDS))))
    values: list[Any] = list(getattr(message, FIELDS[kind]).value)
    change = draw(st.sampled_from(("unset", "empty", "other", "other and empty", "more", "fewer", *["replaced"] * 6)))
    message.Clear()
    if change == "unset":
        return
    if change.startswith("other"):
        kind = draw(st.sampled_from([other for other in sorted(FIELDS) if other != kind]))
        values = [] if change.endswith("empty") else [draw(STORED[kind])]
    outlier = st.sampled_from(_OUTLIERS[kind])
    if change == "empty":
        values = []
    elif change == "more":
        values.append(draw(STORED[kind] | outlier))
    elif change == "fewer":
        values = values[:-1]
    elif change == "replaced" and values:
        values[draw(st.integers(0, len(values) - 1))] = draw(outlier)
    _fill(message, kind, values)
