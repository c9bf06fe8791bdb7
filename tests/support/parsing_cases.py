"""Random parsing specs and random records, encoded by hand, for `test_tensorflow_parsing`.

A spec consists of plain values, from which both libraries construct their features. Most records match it. In half of
the cases, one key of one record is changed, and the reader must decide whether the record still matches.
"""

from __future__ import annotations

import math
import random
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Any

Description = tuple[str, dict[str, Any]]  # class name and arguments of a feature
KINDS = {"string": 1, "float32": 2, "int64": 3}  # field number of the list in a Feature
KEYED = ["RowLengths", "RowSplits", "ValueRowIds", "RowLimits", "RowStarts"]
EXAMPLE = ["FixedLenFeature", "VarLenFeature", "FixedLenSequenceFeature", "SparseFeature", "RaggedFeature"]
CONTEXT = ["FixedLenFeature", "VarLenFeature", "RaggedFeature"]
SEQUENCE = ["FixedLenSequenceFeature", "VarLenFeature", "RaggedFeature"]


@dataclass(frozen=True, slots=True)
class Stored:
    """Feature message: the kind of its list, or None if it is unset, and the values."""

    kind: str | None
    values: tuple[Any, ...] = ()


Record = dict[str, Stored]  # by key, without missing ones
Steps = dict[str, list[Stored]]


@dataclass(frozen=True, slots=True)
class Case:
    """One spec and the payloads to parse."""

    kind: str  # "Example" or "SequenceExample"
    context: dict[str, Description] | None
    sequences: dict[str, Description] | None
    payloads: list[bytes]
    change: str  # description of the change in one record, or ""
    changed: Description | None  # the changed feature
    refused: bool  # TensorFlow may read the changed record, this library never does
    filled: bool  # TensorFlow rejects the changed record, this library uses the default
    steps: dict[str, list[int]] = field(default_factory=dict)  # number of steps of each record, by feature list

    def __str__(self) -> str:
        records = [payload.hex() for payload in self.payloads]
        return f"{self.change} in {self.changed}\ncontext {self.context}\nsequences {self.sequences}\n{records}"


def cases(seed: int, count: int, kind: str) -> list[Case]:
    """Return cases that depend on the seed only."""
    rng = random.Random(seed)
    return [_example_case(rng) if kind == "Example" else _sequence_case(rng) for _ in range(count)]


# --- specs -----------------------------------------------------------------------------------------------------------


def _spec(rng: random.Random, classes: Sequence[str], prefix: str, sequence: bool) -> dict[str, Description]:
    """Draw features that share keys only where TensorFlow permits it."""
    spec: dict[str, Description] = {}
    for place in range(rng.randint(1, 4)):
        name = f"{prefix}{place}"
        cls, kind = rng.choice(classes), rng.choice(list(KINDS))
        arguments: dict[str, Any] = {"dtype": kind}
        if cls == "FixedLenFeature":
            # No sizes of 0: TensorFlow 2.21 crashes on an unpacked float where it expects an empty list.
            arguments["shape"] = rng.choice([(), (1,), (2,), (2, 2)])
            if rng.random() < 0.5:
                arguments["default_value"] = _nested(
                    _values(rng, kind, math.prod(arguments["shape"])), arguments["shape"]
                )
        elif cls == "FixedLenSequenceFeature":
            arguments["shape"] = rng.choice([(), (1,), (3,), (2, 2)])
            arguments["allow_missing"] = not sequence or rng.random() < 0.7
            if not sequence and rng.random() < 0.5:
                [arguments["default_value"]] = _values(rng, kind, 1)
        elif cls == "SparseFeature":
            axes = rng.choice([1, 1, 2])
            earlier = [
                one["index_key"] for other, one in spec.values() if other == cls and isinstance(one["size"], int)
            ]
            if axes == 1:
                key = rng.choice(earlier) if earlier and rng.random() < 0.5 else f"{name}.i"
                arguments |= {"index_key": key, "size": rng.choice([10, 100])}
            else:
                arguments |= {"index_key": [f"{name}.i", f"{name}.j"], "size": [4, 5]}
            arguments |= {"value_key": f"{name}.v", "already_sorted": rng.random() < 0.3}
        elif cls == "RaggedFeature":
            arguments |= {"value_key": f"{name}.v", "validate": True, "partitions": _partitions(rng, name)}
            if not arguments["partitions"] and rng.random() < 0.5:
                arguments["value_key"] = None
        spec[name] = (cls, arguments)
    return spec


def _partitions(rng: random.Random, name: str) -> list[tuple[str, Any]]:
    partitions = []
    for level in range(rng.choice([0, 1, 1, 2, 3])):
        kind = rng.choice([*KEYED, "UniformRowLength"])
        partitions.append((kind, rng.randint(1, 3) if kind == "UniformRowLength" else f"{name}.p{level}"))
    return partitions


def keys(name: str, description: Description) -> list[str]:
    """Return the keys that a feature reads."""
    cls, arguments = description
    if cls == "SparseFeature":
        index = arguments["index_key"]
        return [*([index] if isinstance(index, str) else index), arguments["value_key"]]
    if cls == "RaggedFeature":
        keyed = [key for kind, key in arguments["partitions"] if kind != "UniformRowLength"]
        return [arguments["value_key"] or name, *keyed]
    return [name]


def _nested(values: Sequence[Any], shape: tuple[int, ...]) -> Any:
    if not shape:
        return values[0]
    each = math.prod(shape[1:])
    return [_nested(values[place * each : (place + 1) * each], shape[1:]) for place in range(shape[0])]


# --- matching records ------------------------------------------------------------------------------------------------


def _values(rng: random.Random, kind: str, count: int) -> tuple[Any, ...]:
    if kind == "int64":
        return tuple(rng.choice([0, 1, -1, rng.randrange(-(2**63), 2**63)]) for _ in range(count))
    if kind == "string":
        return tuple(rng.randbytes(rng.choice([0, 1, 3, 20])) for _ in range(count))
    single = [rng.choice([-0.0, math.inf, math.nan, 1e-45, rng.uniform(-1e3, 1e3)]) for _ in range(count)]
    return struct.unpack(f"<{count}f", struct.pack(f"<{count}f", *single))


def _fitting(rng: random.Random, name: str, description: Description) -> Record:
    """Draw the content of an Example or step for one feature."""
    cls, arguments = description
    kind = arguments["dtype"]
    if cls == "FixedLenFeature":
        return {name: Stored(kind, _values(rng, kind, math.prod(arguments["shape"])))}
    if cls == "FixedLenSequenceFeature":
        count = rng.choice([0, 1, 2, 5]) * math.prod(arguments["shape"])
        return {name: Stored(kind, _values(rng, kind, count))}
    if cls == "VarLenFeature":
        return {name: Stored(kind, _values(rng, kind, rng.choice([0, 1, 2, 5])))}
    if cls == "SparseFeature":
        return _fitting_sparse(rng, name, description)
    return _fitting_ragged(rng, name, description)


def _fitting_sparse(rng: random.Random, name: str, description: Description) -> Record:
    arguments = description[1]
    *places, values = keys(name, description)
    sizes = arguments["size"] if isinstance(arguments["size"], list) else [10]
    # Sparse features with shared index keys need equal numbers of values: 3.
    count = 3 if len(places) == 1 else rng.choice([0, 1, 4])
    axes = [[rng.randrange(size) for _ in range(count)] for size in sizes]
    if arguments["already_sorted"]:
        axes = [list(axis) for axis in zip(*sorted(zip(*axes, strict=True)), strict=True)] or axes
    record = {key: Stored("int64", tuple(axis)) for key, axis in zip(places, axes, strict=True)}
    return record | {values: Stored(arguments["dtype"], _values(rng, arguments["dtype"], count))}


def _fitting_ragged(rng: random.Random, name: str, description: Description) -> Record:
    arguments = description[1]
    rows, record = rng.choice([0, 1, 2, 3]), {}
    for kind, key in arguments["partitions"]:
        if kind == "UniformRowLength":
            rows *= key
            continue
        lengths = [rng.choice([0, 1, 2, 3]) for _ in range(rows)]
        if kind == "ValueRowIds" and lengths:
            lengths[-1] = max(lengths[-1], 1)  # row ids can't express empty rows at the end
        record[key] = Stored("int64", tuple(_written(kind, lengths)))
        rows = sum(lengths)
    if not arguments["partitions"]:
        rows = rng.choice([0, 1, 4])
    return {keys(name, description)[0]: Stored(arguments["dtype"], _values(rng, arguments["dtype"], rows))} | record


def _written(kind: str, lengths: list[int]) -> list[int]:
    """Return the integers of a partition for these row lengths."""
    ends = list(accumulate(lengths))
    return {
        "RowLengths": lengths,
        "RowSplits": [0, *ends],
        "ValueRowIds": [row for row, length in enumerate(lengths) for _ in range(length)],
        "RowLimits": ends,
        "RowStarts": [0, *ends][: len(ends)],
    }[kind]


def _lacking(rng: random.Random, description: Description, record: Record, context: bool) -> Record:
    """Remove some keys without values and some features with a default value."""
    cls, arguments = description
    if "default_value" in arguments and cls == "FixedLenFeature" and rng.random() < 0.4:
        # In the context of a SequenceExample, TensorFlow does not use the default for a Feature without a kind.
        return {} if context or rng.random() < 0.5 else {key: Stored(None) for key in record}
    if cls != "FixedLenFeature" and not any(stored.values for stored in record.values()):
        chosen = rng.choice(["as is", "absent", "unset"])
        return record if chosen == "as is" else {} if chosen == "absent" else {key: Stored(None) for key in record}
    return record


# --- random changes -------------------------------------------------------------------------------------------


def _other(rng: random.Random, kind: str) -> str:
    return rng.choice([one for one in KINDS if one != kind])


def _change(rng: random.Random, stored: Stored | None, kind: str) -> tuple[str, Stored | None]:
    """Return a changed Feature."""
    values = stored.values if stored else ()
    changed = [
        ("absent", None),
        ("unset", Stored(None)),
        ("empty", Stored(kind)),
        ("empty list of another kind", Stored(_other(rng, kind))),
        ("one more", Stored(kind, (*values, *_values(rng, kind, 1)))),
    ]
    other = _other(rng, kind)
    changed.append(("another kind", Stored(other, _values(rng, other, max(1, len(values))))))
    if values:
        place = rng.randrange(len(values))
        changed.append(("one less", Stored(kind, values[:place] + values[place + 1 :])))
        if kind == "int64":
            near = min(max(values[place] + rng.choice([-1, 1, 3, 100]), -(2**63)), 2**63 - 1)
            changed += [("another number", Stored(kind, (*values[:place], near, *values[place + 1 :])))] * 3
    return rng.choice(changed)


def _key_kind(name: str, description: Description, key: str) -> str:
    """Return the kind that a feature requires for one of its keys."""
    own = keys(name, description)
    value_key = own[-1] if description[0] == "SparseFeature" else own[0]
    return description[1]["dtype"] if key == value_key else "int64"


def _refused(name: str, description: Description, records: Iterable[Record]) -> bool:
    """Return whether values are out of the range of the feature, which TensorFlow does not always check."""
    cls, arguments = description
    own = keys(name, description)
    for record in records:
        lists = [record[key].values if key in record else () for key in own]
        if cls == "SparseFeature":
            sizes = arguments["size"] if isinstance(arguments["size"], list) else [arguments["size"]]
            for size, indices in zip(sizes, lists, strict=False):
                if not all(isinstance(index, int) and 0 <= index < size for index in indices):
                    return True
        if cls == "RaggedFeature" and not _fits(arguments["partitions"], lists):
            return True
    return False


def _fits(partitions: Sequence[tuple[str, Any]], lists: Sequence[tuple[Any, ...]]) -> bool:
    """Return whether the partitions divide all values without remainder."""
    items, given = len(lists[0]), list(lists[1:])
    for kind, length in reversed(partitions):
        if kind == "UniformRowLength":
            if items % length:
                return False
            items //= length
            continue
        integers = list(given.pop())
        if not all(isinstance(number, int) for number in integers):
            return False
        if kind == "ValueRowIds":
            if len(integers) != items or integers != sorted(integers) or (integers and integers[0] < 0):
                return False
            items = integers[-1] + 1 if integers else 0
            continue
        if kind == "RowLengths":
            lengths = integers
        elif kind == "RowSplits":
            if integers and integers[0] != 0:
                return False
            lengths = [stop - start for start, stop in pairwise(integers)]
        elif kind == "RowLimits":
            lengths = [stop - start for start, stop in pairwise([0, *integers])]
        else:
            if integers and integers[0] != 0:
                return False
            lengths = [stop - start for start, stop in zip(integers, [*integers[1:], items], strict=False)]
        if any(length < 0 for length in lengths) or sum(lengths) != items:
            return False
        items = len(lengths)
    return True


# --- cases -----------------------------------------------------------------------------------------------------------


def _example_case(rng: random.Random) -> Case:
    spec = _spec(rng, EXAMPLE, "f", sequence=False)
    records = [_record(rng, spec, context=False) for _ in range(rng.randint(1, 5))]
    change, changed, refused, filled = "", None, False, False
    if rng.random() < 0.5:
        name = rng.choice(list(spec))
        change, refused, filled = _changed(rng, name, spec, rng.choice(records), context=False)
        changed = spec[name]
    payloads = [_example(rng, record) for record in records]
    return Case("Example", spec, None, payloads, change, changed, refused, filled)


def _record(rng: random.Random, spec: Mapping[str, Description], context: bool) -> Record:
    record: Record = {"unasked": Stored("int64", (1,))}
    for name, description in spec.items():
        record |= _lacking(rng, description, _fitting(rng, name, description), context)
    return record


def _changed(
    rng: random.Random, name: str, spec: Mapping[str, Description], record: Record, context: bool
) -> tuple[str, bool, bool]:
    """Change a record at one key of a feature; return the change and whether the libraries treat it differently."""
    description = spec[name]
    cls, arguments = description
    key = rng.choice(keys(name, description))
    change, stored = _change(rng, record.pop(key, None), _key_kind(name, description, key))
    if stored is not None:
        record[key] = stored
    # Other features may read the same key.
    refused = any(_refused(other, one, [record]) for other, one in spec.items())
    filled = (
        cls == "FixedLenFeature"
        and "default_value" in arguments
        and (change == "empty" or (change == "unset" and context) or (change == "one less" and not stored.values))
    )
    return change, refused, filled


def _sequence_case(rng: random.Random) -> Case:
    context = _spec(rng, CONTEXT, "c", sequence=False) if rng.random() < 0.7 else None
    spec = _spec(rng, SEQUENCE, "s", sequence=True)
    records = [
        (_record(rng, context or {}, context=True), {name: _fitting_steps(rng, name, spec[name]) for name in spec})
        for _ in range(rng.randint(1, 4))
    ]
    change, changed, refused, filled = "", None, False, False
    if rng.random() < 0.5:
        record, lists = rng.choice(records)
        if context and rng.random() < 0.6:
            name = rng.choice(list(context))
            change, refused, filled = _changed(rng, name, context, record, context=True)
            changed = context[name]
        else:
            name = rng.choice(list(spec))
            change, refused = _changed_steps(rng, name, spec[name], lists[name])
            changed = spec[name]
    steps = {name: [len(lists[name].get(keys(name, spec[name])[0], ())) for _, lists in records] for name in spec}
    payloads = [_sequence_example(rng, record, lists) for record, lists in records]
    return Case("SequenceExample", context, spec, payloads, change, changed, refused, filled, steps)


def _fitting_steps(rng: random.Random, name: str, description: Description) -> Steps:
    cls, arguments = description
    if cls == "FixedLenSequenceFeature":
        count, kind = rng.choice([0, 1, 2, 4]), arguments["dtype"]
        if not count and arguments["allow_missing"] and rng.random() < 0.5:
            return {}
        return {name: [Stored(kind, _values(rng, kind, math.prod(arguments["shape"]))) for _ in range(count)]}
    steps = [_fitting(rng, name, description) for _ in range(rng.choice([0, 1, 2, 4]))]
    if not steps and rng.random() < 0.5:
        return {}
    bare = [name for name in range(len(steps)) if not any(stored.values for stored in steps[name].values())]
    for place in bare:
        if rng.random() < 0.5:
            steps[place] = {key: Stored(None) for key in steps[place]}
    return {key: [step[key] for step in steps] for key in keys(name, description)}


def _changed_steps(rng: random.Random, name: str, description: Description, lists: Steps) -> tuple[str, bool]:
    """Change one step, or the number of steps, at one key of a feature list."""
    key = rng.choice(keys(name, description))
    steps = lists.get(key)
    if steps and rng.random() < 0.7:
        place = rng.randrange(len(steps))
        change, stored = _change(rng, steps[place], _key_kind(name, description, key))
        steps[place : place + 1] = [] if stored is None else [stored]
        change = f"a step {change}"
    elif steps and rng.random() < 0.5:
        del lists[key]
        change = "no list"
    else:
        lists.setdefault(key, []).append(Stored(None))
        change = "a step more, unset"
    counts = {len(lists.get(one, ())) for one in keys(name, description)}
    if len(counts) > 1:
        return change, True
    records = [{one: lists[one][place] for one in keys(name, description)} for place in range(counts.pop())]
    return change, _refused(name, description, records)


# --- the wire --------------------------------------------------------------------------------------------------------


def varint(number: int) -> bytes:
    number &= (1 << 64) - 1
    written = []
    while number > 127:
        written.append(number & 127 | 128)
        number >>= 7
    return bytes([*written, number])


def delimited(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content


def encoded(stored: Stored, packed: bool) -> bytes:
    if stored.kind is None:
        return b""
    if stored.kind == "string":
        items = b"".join(delimited(1, value) for value in stored.values)
        return delimited(KINDS["string"], items)
    if stored.kind == "int64":
        tag, written = b"\x08", [varint(value) for value in stored.values]
    else:
        tag, written = b"\x0d", [struct.pack("<f", value) for value in stored.values]
    if packed and written:
        return delimited(KINDS[stored.kind], delimited(1, b"".join(written)))
    return delimited(KINDS[stored.kind], b"".join(tag + value for value in written))


def entry(key: str, content: bytes, swapped: bool) -> bytes:
    parts = [delimited(1, key.encode()), delimited(2, content)]
    return delimited(1, b"".join(reversed(parts) if swapped else parts))


def _features(rng: random.Random, record: Record, swap: bool) -> bytes:
    """Encode a Features message with keys in random order; of duplicate keys, the last one is valid."""
    entries = []
    for key, stored in record.items():
        last = entry(key, encoded(stored, rng.random() < 0.7), swapped=swap and rng.random() < 0.1)
        # TensorFlow does not let an unset Feature override a previous one with the same key.
        if stored.kind is not None and rng.random() < 0.15:
            kind = rng.choice(list(KINDS))
            last = entry(key, encoded(Stored(kind, _values(rng, kind, rng.choice([0, 1, 3]))), True), False) + last
        entries.append(last)
    rng.shuffle(entries)
    return b"".join(entries)


def _unknown(rng: random.Random) -> bytes:
    """Return an unknown field, or nothing."""
    return rng.choice([b"", b"", b"", varint(15 << 3) + b"\x05", delimited(15, b"xx"), varint(14 << 3 | 5) + b"abcd"])


def _example(rng: random.Random, record: Record) -> bytes:
    return _unknown(rng) + delimited(1, _features(rng, record, swap=True)) + _unknown(rng)


def _sequence_example(rng: random.Random, record: Record, lists: Mapping[str, Steps]) -> bytes:
    entries = []
    for key, steps in [item for own in lists.values() for item in own.items()]:
        content = b"".join(delimited(1, encoded(step, rng.random() < 0.7)) for step in steps)
        if rng.random() < 0.1:
            entries.append(entry(key, delimited(1, encoded(Stored("int64", (1, 2)), True)), False))
        entries.append(entry(key, content, swapped=False))
    entries.append(entry("unasked", delimited(1, b""), swapped=False))
    # TensorFlow accepts a value before its key in Examples only.
    parts = [delimited(1, _features(rng, record, swap=False)), delimited(2, b"".join(entries))]
    rng.shuffle(parts)
    return b"".join(parts)
