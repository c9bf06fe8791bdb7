"""Columns of random messages do not depend on which others are read, nor on what holds the messages."""

from __future__ import annotations

import gzip
import random
import zlib
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from google import protobuf
from google.protobuf import any_pb2, descriptor_pb2, wrappers_pb2
from oracle import write_oracle
from oracle.message_columns import Column, Unrolled, listed, sort_maps
from oracle.message_mutants import mutant
from oracle.message_types import Field, message_class, random_message
from support.wire import delimited, example, sequence_example
from test_message_oracle import columns_of, holds, opened, types_of

import dask_tfrecord as dtf

pytestmark = pytest.mark.usefixtures("in_this_thread")
BYTES = dtf.FixedLenFeature((), "bytes")


def legal_payloads(cls: type[Any], unrolled: Unrolled, count: int, seed: str) -> list[bytes]:
    """Draw records that protobuf accepts, most of them changed as other writers write."""
    rng = random.Random(f"legal {seed}")
    written = [random_message(cls, rng).SerializePartialToString() for _ in range(8)]
    drawn = [mutant(*rng.choices(written, k=2), unrolled.root, rng) for _ in range(count)]
    parsed = [(one, unrolled.parse(one)) for one in drawn]
    return [one for one, message in parsed if message is not None and holds(unrolled, message)]


# Seeds, types, and records of each.
SEEDS = [
    (0, 4, 30),
    *(pytest.param(seed, 30, 100, marks=pytest.mark.slow) for seed in range(1, 3)),
    # Another one in each run.
    *(pytest.param(f"fresh {number}", 50, 100, marks=pytest.mark.nightly) for number in range(10)),
]


def fresh(seed: object) -> object:
    """Replace the seed of a nightly test by one that was not drawn before, and print it."""
    if not isinstance(seed, str):
        return seed
    drawn = random.SystemRandom().getrandbits(32)
    print(f"seed {drawn}")
    return drawn


# Earlier releases accept mutated records with over-long varints, which later ones and this library refuse.
@pytest.mark.skipif(
    tuple(map(int, protobuf.__version__.split(".")[:2])) < (5, 27), reason="protobuf accepts over-long varints"
)
@pytest.mark.parametrize(("seed", "count", "rows"), SEEDS)
def test_every_subset_has_the_values_of_all_columns(seed: object, count: int, rows: int, tmp_path: Path) -> None:
    seed = fresh(seed)
    for drawn, files, unrolled in types_of(f"subsets {seed}", count, columns=60):
        cls, rng = message_class(files), random.Random(drawn)
        payloads = legal_payloads(cls, unrolled, rows, drawn)
        messages = [unrolled.parse(one) for one in payloads]
        ds = opened(tmp_path / "a", cls, payloads)
        wanted = unrolled.columns(messages)
        assert columns_of(ds, wanted, unrolled) == {name: column.rows for name, column in wanted.items()}, drawn
        presences = unrolled.presences(messages)
        features: dict[str, Any] = {name: dtf.ProtoFeature(name) for name in wanted}
        features |= {name: dtf.ProtoFeature(name, values=BYTES) for name in unrolled.opaque}
        # Messages as bytes, and the fields that they hold.
        paths = {name.rpartition(".")[0] for name in wanted} - {""}
        # The name of an extension has dots.
        paths = {path for path in paths if path.count("[") == path.count("]")}
        features |= {f"bytes of {path}": dtf.ProtoFeature(path, values=BYTES) for path in sorted(paths)}
        features |= {f"{name} is set": dtf.ProtoFeature(name, presence=True) for name in presences}
        every = opened(tmp_path / "a", cls, payloads, features=features)
        together = every.compute()
        for name, column in presences.items():
            assert together[f"{name} is set"].dtype == (object if column.rank else bool), drawn
        for size in [1, 1, 1, 1, 2, 2, 3, len(features) // 2]:
            names = rng.sample([*features], max(size, 1) if size <= len(features) else 1)
            found = every[names].compute()
            alone = dtf.read_tfrecord(tmp_path / "a", {name: features[name] for name in names}, message=cls)
            for part in (found, alone.compute()):
                assert {*part} == {*names}
                for name in names:
                    assert same(part[name], together[name]), (drawn, name, names)
            check_filter(every, together, names, drawn)


def same(one: Any, other: Any) -> bool:
    """Compare computed columns, rows of rows too."""
    if one.dtype != other.dtype or len(one) != len(other):
        return False
    if one.dtype == object:
        pairs = zip(one, other, strict=True)
        return all(same(a, b) if isinstance(a, np.ndarray) else a == b for a, b in pairs)
    return bool(np.array_equal(one, other, equal_nan=one.dtype.kind in "fmM"))


def check_filter(ds: dtf.Dataset, together: dict[str, Any], names: Sequence[str], drawn: str) -> None:
    """A filter keeps the same rows while other columns are read as while all are."""
    name = names[0]
    values = together[name]
    if not len(values) or values.dtype.kind in "fmM":
        return
    if values.dtype != object:
        value = values[len(values) // 2]
        kept, filtered = values == value, ds.where([(name, "==", value if values.dtype.kind == "T" else value.item())])
    elif isinstance(values[0], np.ndarray):
        size = len(values[len(values) // 2])
        kept, filtered = np.array([len(row) == size for row in values]), ds.where([(f"len({name})", "==", size)])
    else:
        return
    assert filtered.nrows == kept.sum(), (drawn, name)
    for each in names[1:]:
        assert same(filtered[each].compute(), together[each][kept]), (drawn, name, each)


def closed_enum_type() -> type[Any]:
    """Return a message with values of a closed enum, in a oneof and in a map."""
    files = descriptor_pb2.FileDescriptorSet()
    file = files.file.add(name="closed.proto", package="closed", syntax="proto2")
    enum, message = file.enum_type.add(name="Kind"), file.message_type.add(name="M")
    for number, name in enumerate(["A", "B"]):
        enum.value.add(name=name, number=number)
    message.oneof_decl.add(name="which")
    of_enum = {"type": Field.TYPE_ENUM, "type_name": ".closed.Kind", "label": Field.LABEL_OPTIONAL}
    message.field.add(name="kind", number=1, oneof_index=0, **of_enum)
    message.field.add(name="x", number=2, oneof_index=0, type=Field.TYPE_INT32, label=Field.LABEL_OPTIONAL)
    entry = message.nested_type.add(name="KindsEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=Field.TYPE_INT32, label=Field.LABEL_OPTIONAL)
    entry.field.add(name="value", number=2, **of_enum)
    message.field.add(
        name="kinds", number=3, type=Field.TYPE_MESSAGE, label=Field.LABEL_REPEATED, type_name=".closed.M.KindsEntry"
    )
    return message_class(files, "closed.M")


def test_unknown_numbers_of_a_closed_enum_set_nothing_whatever_is_read(tmp_path: Path) -> None:
    cls = closed_enum_type()
    entries = b"".join(delimited(3, one) for one in (b"\x08\x07\x10\x01", b"\x08\x08\x10\x63", b"\x08\x07\x10\x00"))
    payloads = [b"\x08\x01" + entries, b"\x08\x63", b"\x10\x07\x08\x63", b"\x10\x07"]
    parsed = [cls.FromString(one) for one in payloads]
    ds = opened(tmp_path / "a", cls, payloads)
    together = ds.compute()
    assert together["which"].tolist() == [one.WhichOneof("which") or "" for one in parsed] == ["kind", "", "x", "x"]
    assert [dict(one.kinds) for one in parsed] == [{7: 0}, {}, {}, {}]
    for name in ds:
        assert same(ds[name].compute(), together[name]), name
    assert ds.where([("which", "==", "kind")]).nrows == 1
    assert ds.where([("len(kinds.key)", "==", 1)]).nrows == 1
    bytes_of = opened(tmp_path / "b", cls, payloads, features={"entry": dtf.ProtoFeature("kinds", values=BYTES)})
    assert [row.tolist() for row in bytes_of["entry"].compute()] == [[b"\x08\x07\x10\x00"], [], [], []]


def test_a_message_and_its_field_are_read_but_not_written_together(tmp_path: Path) -> None:
    cls = outer_class()
    items = [{"one": b"a"}, {"one": b"", "many": [b"b", b"c"]}]
    payload = cls(items=items, wrapped={"value": b"w"}).SerializeToString()
    features = {name: dtf.ProtoFeature(name, values=BYTES) for name in ("items", "wrapped")}
    features |= {"one": dtf.ProtoFeature("items.one"), "w": dtf.ProtoFeature("wrapped")}
    ds = opened(tmp_path / "a", cls, [payload, b""], features=features)
    computed = ds.compute()
    assert [row.tolist() for row in computed["one"]] == [[b"a", b""], []]
    assert computed["items"][0].tolist() == [cls().items.add(**each).SerializeToString() for each in items]
    assert computed["w"].tolist() == [b"w", b""]
    assert computed["wrapped"].tolist() == [b"\x0a\x01w", b""]
    with pytest.raises(
        dtf.SchemaError, match="columns 'items' and 'one' hold the bytes and a field of message 'items'"
    ):
        ds[["items", "one"]].to_tfrecord(tmp_path / "b")
    ds[["items", "wrapped"]].to_tfrecord(tmp_path / "b")
    assert [*dtf.read_records(tmp_path / "b")] == [payload, b""]


# ---- messages in bytes

Holder = Callable[[Path, Any, list[list[bytes]]], tuple[dtf.Dataset, str]]


def outer_class() -> type[Any]:
    """Return a message that holds bytes: one, many, in an Any or in a wrapper, and in each of many items."""
    files = descriptor_pb2.FileDescriptorSet()
    imported = [any_pb2.DESCRIPTOR, wrappers_pb2.DESCRIPTOR]
    for each in imported:
        each.CopyToProto(files.file.add())
    file = files.file.add(name="outer.proto", package="outer", syntax="proto3")
    file.dependency.extend(each.name for each in imported)
    outer, item = file.message_type.add(name="Outer"), file.message_type.add(name="Item")
    for message in (outer, item):
        message.field.add(name="one", number=1, type=Field.TYPE_BYTES, label=Field.LABEL_OPTIONAL)
        message.field.add(name="many", number=2, type=Field.TYPE_BYTES, label=Field.LABEL_REPEATED)
        any_field = message.field.add(name="any", number=3, type=Field.TYPE_MESSAGE, label=Field.LABEL_OPTIONAL)
        any_field.type_name = ".google.protobuf.Any"
        wrapped = message.field.add(name="wrapped", number=5, type=Field.TYPE_MESSAGE, label=Field.LABEL_OPTIONAL)
        wrapped.type_name = ".google.protobuf.BytesValue"
    outer.field.add(
        name="items", number=4, type=Field.TYPE_MESSAGE, label=Field.LABEL_REPEATED, type_name=".outer.Item"
    )
    return message_class(files, "outer.Outer")


def compressed(name: str, hold: Holder, path: Path, cls: Any, rows: list[list[bytes]]) -> tuple[dtf.Dataset, str]:
    """Hold messages in compressed bytes."""
    deflate = {"ZLIB": zlib.compress, "GZIP": gzip.compress}[name]
    return hold(path, dtf.ProtoFeature(cls, "", compression_type=name), [[deflate(one) for one in row] for row in rows])


def of_messages(cls: Any) -> dtf.ProtoFeature:
    return cls if isinstance(cls, dtf.ProtoFeature) else dtf.ProtoFeature(cls, "")


def in_steps(path: Path, cls: Any, rows: list[list[bytes]]) -> tuple[dtf.Dataset, str]:
    payloads = [sequence_example(p=[[one] for one in row]) for row in rows]
    return _read(path, payloads, sequence_features={"p": of_messages(cls)}), "p"


def in_items(path: Path, cls: Any, rows: list[list[bytes]]) -> tuple[dtf.Dataset, str]:
    payloads = [b"".join(delimited(1, example(p=[one])) for one in row) for row in rows]
    return _read(path, payloads, example_features={"p": of_messages(cls)}), "examples/p"


def in_message(field: str, path: Path, cls: Any, rows: list[list[bytes]]) -> tuple[dtf.Dataset, str]:
    outer = outer_class()
    made = []
    for row in rows:
        record = outer()
        if field == "many":
            record.many.extend(row)
        for one in row if field != "many" else ():
            held = record.items.add()
            if field == "any":
                held.any.type_url, held.any.value = f"type.googleapis.com/{cls.DESCRIPTOR.full_name}", one
            elif field == "wrapped":
                held.wrapped.value = one
            else:
                held.one = one
        made.append(record.SerializeToString())
    where = "many" if field == "many" else f"items.{field}"
    features = {"p": dtf.ProtoFeature(where, values=of_messages(cls))}
    return _read(path, made, features, message=outer), "p"


def _read(path: Path, payloads: list[bytes], *args: Any, **options: Any) -> dtf.Dataset:
    write_oracle(path, payloads)
    return dtf.read_tfrecord(path, *args, counts=[len(payloads)], chunks=max(len(payloads), 1), **options)


HOLDERS: dict[str, Holder] = {
    "steps": in_steps,
    "items of ELWC": in_items,
    "repeated bytes": partial(in_message, "many"),
    "bytes of repeated messages": partial(in_message, "one"),
    "Any of repeated messages": partial(in_message, "any"),
    "BytesValue of repeated messages": partial(in_message, "wrapped"),
    "compressed steps": partial(compressed, "ZLIB", in_steps),
    "compressed items of ELWC": partial(compressed, "GZIP", in_items),
    "compressed repeated bytes": partial(compressed, "GZIP", partial(in_message, "many")),
    "compressed bytes of repeated messages": partial(compressed, "ZLIB", partial(in_message, "one")),
}


@pytest.mark.parametrize("holder", HOLDERS)
@pytest.mark.parametrize(
    ("seed", "count", "rows"), [(0, 2, 20), pytest.param(1, 20, 60, marks=pytest.mark.slow), *SEEDS[3:]]
)
def test_messages_in_lists_of_bytes(holder: str, seed: object, count: int, rows: int, tmp_path: Path) -> None:
    seed = fresh(seed)
    for drawn, files, unrolled in types_of(f"held {seed}", count, columns=60):
        cls, rng = message_class(files), random.Random(drawn)
        payloads = legal_payloads(cls, unrolled, rows, drawn)
        counts = [rng.choice([0, 1, 1, 2, 5]) for _ in range(len(payloads))]
        left = iter(payloads)
        held = [[one for one, _ in zip(left, range(size), strict=False)] for size in counts]
        flat = [unrolled.parse(one) for row in held for one in row]
        ds, prefix = HOLDERS[holder](tmp_path / "a", cls, held)
        wanted = {}
        for name, column in unrolled.columns(flat).items():
            values = iter(column.rows)
            wanted[name] = Column(column.dtype, column.rank + 1, [[next(values) for _ in row] for row in held])
        assert {*ds} == {f"{prefix}.{name}" for name in wanted}
        together = ds.compute()
        for some in (ds, *(ds[[name]] for name in rng.sample([*ds], min(2, len(ds))))):
            computed = some.compute()
            assert all(same(values, together[name]) for name, values in computed.items()), drawn
        found = {name: listed(together[f"{prefix}.{name}"], one.dtype, one.rank) for name, one in wanted.items()}
        sort_maps(found, {path: rank + 1 for path, rank in unrolled.maps.items()})
        assert found == {name: column.rows for name, column in wanted.items()}, drawn
