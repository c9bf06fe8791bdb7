"""Decoding of records to blocks, compared with protobuf: valid and invalid encodings, damage, threads and misuse."""

from __future__ import annotations

import gzip
import pickle
import random
import struct
import threading
import tracemalloc
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import dask
import numpy as np
import oracle
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from numpy.typing import NDArray
from support.bits import assert_blocks_equal
from support.few import mostly_slow
from support.wire import delimited, entry, example, mutate, wire_fields

import dask_tfrecord as dtf
from dask_tfrecord import _native, messages
from dask_tfrecord._native import Fault, Kind, Stop, ValueLayout
from dask_tfrecord.blocks import Block
from dask_tfrecord.columns.decoder import Decoder, decode
from dask_tfrecord.errors import CorruptRecordError, FeatureError, Location, TFRecordError
from dask_tfrecord.features import Feature
from dask_tfrecord.features.schema import Sampling, Schema
from dask_tfrecord.records.index import RecordRange, full_run, scan_shard
from dask_tfrecord.settings import Limits
from dask_tfrecord.shards.listing import find_shards

BYTES, FLOATS, INT64 = Kind.BYTES, Kind.FLOATS, Kind.INT64
FIXED, RAGGED, RAW, TENSOR = ValueLayout.FIXED, ValueLayout.RAGGED, ValueLayout.RAW, ValueLayout.TENSOR
INTS = delimited(3, delimited(1, b"\x05"))


def read(path: Path, schema: Mapping[str, Feature], count: int | None = None, **options: Any) -> dict[str, Block]:
    """Decode all records of a file; with a count, into arrays of that many rows."""
    [shard] = find_shards(path)
    run = replace(full_run(shard), count=count)
    known = schema if isinstance(schema, Schema) else Schema(schema)
    return decode([run], Decoder(known), list(schema), rows=count, **options)


# ---- legal or not: protobuf and the decoder are of one opinion


def _entries_pool() -> type[Any]:
    # upb drops a map entry that holds an unknown field, but reads it as a repeated message. Floats are 32 bits: as
    # floats of Python, signalling NaNs would turn quiet.
    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="entries.proto", package="entries", syntax="proto3")
    tables = {
        "Ints": [("value", field.TYPE_INT64, True)],
        "Floats": [("value", field.TYPE_FIXED32, True)],
        "Bytes": [("value", field.TYPE_BYTES, True)],
        "Feature": [("bytes", "Bytes", False), ("floats", "Floats", False), ("ints", "Ints", False)],
        "Entry": [("key", field.TYPE_STRING, False), ("value", "Feature", False)],
        "Features": [("entries", "Entry", True)],
        "Example": [("features", "Features", False), ("lists", field.TYPE_BYTES, True)],
    }
    for name, fields in tables.items():
        message = file.message_type.add(name=name)
        if name == "Feature":
            message.oneof_decl.add(name="kind")
        for number, (label, kind, repeated) in enumerate(fields, start=1):
            one = message.field.add(name=label, number=number)
            one.label = field.LABEL_REPEATED if repeated else field.LABEL_OPTIONAL
            one.type = field.TYPE_MESSAGE if isinstance(kind, str) else kind
            if isinstance(kind, str):
                one.type_name = f".entries.{kind}"
            if name == "Feature":
                one.oneof_index = 0
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("entries.Example"))


Entries = _entries_pool()
Lists = dict[str, tuple[Kind, list[Any]]]


def by_protobuf(payload: bytes) -> tuple[bool, Lists] | None:
    """Return whether the message may be other than an Example, and kind and values by key; None if it is malformed."""
    try:
        parsed = Entries.FromString(payload)
    except messages.DecodeError:
        return None
    lists: Lists = {}
    valued = False
    for one in parsed.features.entries:
        kind = one.value.WhichOneof("kind")
        number = Kind(["bytes", "floats", "ints"].index(kind) + 1 if kind else 0)
        lists[one.key] = (number, list(getattr(one.value, kind).value) if kind else [])
        valued = valued or one.HasField("value")
    return bool(parsed.lists) or not valued, lists


def frame(payload: bytes) -> NDArray[np.uint8]:
    """A record, for a decoder that checks no CRC."""
    return np.frombuffer(struct.pack("<QI", len(payload), 0) + payload + bytes(4), np.uint8)


def spec(key: bytes, kind: Kind = INT64, layout: ValueLayout = RAGGED, **options: Any) -> _native.ColumnSpec:
    return _native.ColumnSpec(key, kind, layout, **options)


def by_decoder(payload: bytes, kinds: dict[bytes, Kind]) -> Fault | Lists:
    """Return the fault, or kind and values by key; the decoder itself reports the keys and their kinds."""
    record = frame(payload)
    for _ in range(100):
        columns = [spec(key, kind, ValueLayout.UNSET if kind is Kind.NONE else RAGGED) for key, kind in kinds.items()]
        decoder = _native.Decoder(columns, False, True)
        stop = decoder.feed(record, 0, len(record), 1).stop
        problem = decoder.problem()
        if stop is Stop.LIMIT:
            lists = enumerate(kinds.items())
            return {name.decode(): (kind, values_of(decoder, at, kind)) for at, (name, kind) in lists}
        if problem.fault is Fault.UNKNOWN_KEY:
            kinds[problem.text] = Kind.NONE  # until the decoder reports another
        elif problem.fault is Fault.KIND:
            kinds[list(kinds)[problem.column]] = Kind(problem.found)  # the last one, if a record holds several
        else:
            return problem.fault
    raise AssertionError(f"no end of keys and kinds in {payload!r}")


def values_of(decoder: _native.Decoder, column: int, kind: Kind) -> list[Any]:
    output = decoder.take_output(column)
    if kind is Kind.NONE:
        return []
    values, splits = output.values, output.value_splits
    assert values is not None
    if kind == BYTES:
        assert splits is not None
        data, ends = values.tobytes(), splits.tolist()
        return [data[begin:end] for begin, end in pairwise(ends)]
    return values.view(np.uint32 if kind == FLOATS else np.int64).tolist()


def has_field_0_in_a_group(data: bytes, levels: Sequence[set[int]] = ({1}, {1}, {2}, {1, 2, 3})) -> bool:
    """Return whether an unknown group holds a field number 0: upb skips it, protobuf in C++ and Java refuse it."""
    depth = 0
    for number, wire_type, _, begin, end in wire_fields(data):
        depth += {3: 1, 4: -1}.get(wire_type, 0)
        if depth and not number:
            return True
        known = not depth and wire_type == 2 and bool(levels) and number in levels[0]
        if known and has_field_0_in_a_group(data[begin:end], levels[1:]):
            return True
    return False


def real_payloads(folders: Sequence[Path]) -> list[bytes]:
    """Records of real files; those small enough that a key of them is never cut in an error."""
    payloads = set()
    for folder in folders:
        for path in sorted(path for path in folder.rglob("*") if path.suffix in {".tfrecord", ".record", ".tfr"}):
            if not path.name.startswith("damaged_"):
                payloads.update([payload for payload in oracle.read_payloads(path) if len(payload) < 450][:60])
    return sorted(payloads)


def compare_verdicts(payloads: Sequence[bytes], number: int, seed: int) -> None:
    """Mutate real payloads: what protobuf parses is decoded to the same values, what it refuses is refused."""
    rng = random.Random(seed)
    accepted = refused = foreign = 0
    for _ in range(number):
        payload = rng.choice(payloads)
        for _ in range(rng.choice((1, 1, 1, 2, 3))):
            payload = mutate(payload, rng.choice(payloads), rng)[:990]
        expected, found = by_protobuf(payload), by_decoder(payload, {})
        where = payload.hex()
        if expected is None:
            assert found in (Fault.MALFORMED, Fault.NOT_EXAMPLE), where
            refused += 1
        elif found == Fault.NOT_EXAMPLE:
            # Deliberately strict: a message without any value, or with the lists of a SequenceExample, is refused.
            assert expected[0], where
            foreign += 1
        elif found == Fault.MALFORMED:
            assert has_field_0_in_a_group(payload), where
        else:
            assert found == expected[1], where
            accepted += 1
    assert min(accepted, refused) > number / 10
    assert foreign > 0


strict_protobuf = pytest.mark.skipif(
    by_protobuf(b"\x0a\x80\x80\x80\x80\x80\x00") is not None,
    reason="this protobuf takes a length of six bytes; it is too old to judge what is illegal",
)


@strict_protobuf
@pytest.mark.parametrize(
    ("number", "seed"),
    [
        (6_000, 1),
        *(pytest.param(100_000, seed, marks=pytest.mark.slow) for seed in [10]),
        *(pytest.param(100_000, seed, marks=pytest.mark.nightly) for seed in range(11, 20)),
    ],
)
def test_verdicts_on_mutated_records_are_those_of_protobuf(
    golden: Path, request: pytest.FixtureRequest, number: int, seed: int
) -> None:
    folders = [golden] if number < 100_000 else [golden, request.getfixturevalue("corpus")]
    compare_verdicts(real_payloads(folders), number, seed)


@pytest.mark.parametrize("key", [b"\xff", b"a\x80", b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80"], ids=repr)
def test_keys_that_are_no_utf8_are_refused(key: bytes, tmp_path: Path) -> None:
    entries = [
        entry(key, INTS),
        delimited(1, delimited(2, INTS) + delimited(1, key)),
        delimited(1, delimited(1, key) + delimited(1, b"k") + delimited(2, INTS)),
        delimited(1, delimited(1, key)),
    ]
    for odd in entries:
        payload = delimited(1, odd + entry(b"k", INTS))
        assert by_protobuf(payload) is None
        oracle.write_oracle(tmp_path / "x", [example(k=[1]), payload])
        with pytest.raises(FeatureError, match=r"record 1 .*protobuf can't parse"):
            read(tmp_path / "x", {"k": dtf.FixedLenFeature((), "int64")})


def test_what_is_overridden_has_to_be_legal_too() -> None:
    broken = [delimited(1, b"\x0a\x05a"), delimited(2, b"\x0a\x03abc"), delimited(3, b"\x0a\x01\x80")]
    for odd in broken:
        for payload in (
            delimited(1, entry(b"k", odd + INTS)),
            delimited(1, entry(b"k", odd) + entry(b"k", INTS)),
            delimited(1, delimited(1, delimited(1, b"k") + delimited(2, odd) + delimited(2, INTS))),
        ):
            assert by_protobuf(payload) is None
            assert by_decoder(payload, {b"k": INT64}) == Fault.MALFORMED


# ---- damage

SMALL = [example(i=[row, row + 1], b=[b"bytes"]) for row in range(3)]
SMALL_SCHEMA: dict[str, Feature] = {"i": dtf.FixedLenFeature((2,), "int64"), "b": dtf.VarLenFeature("bytes")}
BORDERS = list(accumulate((len(payload) + 16 for payload in SMALL), initial=0))


@pytest.fixture
def small(tmp_path: Path) -> Path:
    oracle.write_oracle(tmp_path / "small", SMALL)
    return tmp_path / "small"


def refusal(path: Path, record: int, count: int | None, **options: Any) -> CorruptRecordError:
    """The error of a damaged file, which names the record and survives pickling."""
    with pytest.raises(CorruptRecordError) as caught:
        read(path, SMALL_SCHEMA, count, **options)
    error = caught.value
    assert error.place == Location(str(path), record, BORDERS[record])
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), again.place) == (type(error), str(error), error.place)
    return error


@pytest.mark.parametrize("count", [3, None])
def test_every_flipped_byte_is_reported(small: Path, count: int | None) -> None:
    data = small.read_bytes()
    for place in range(len(data)):
        record = sum(border <= place for border in BORDERS) - 1
        small.write_bytes(data[:place] + bytes([data[place] ^ 1 << place % 8]) + data[place + 1 :])
        refusal(small, record, count)


@pytest.mark.parametrize(
    ("check_crc", "compress"), mostly_slow([(True, bytes), (False, bytes), (True, gzip.compress)], 3)
)
def test_every_cut_is_reported(small: Path, check_crc: bool, compress: Callable[[bytes], bytes]) -> None:
    data = small.read_bytes()
    for cut in range(len(data)):
        small.write_bytes(compress(data[:cut]))
        record = sum(border <= cut for border in BORDERS) - 1
        refusal(small, record, 3, check_crc=check_crc)
        if cut not in BORDERS:
            refusal(small, record, None, check_crc=check_crc)
        else:
            # The bytes do not show that records are missing: only counts do.
            assert len(read(small, SMALL_SCHEMA, check_crc=check_crc)["i"]) == record


def test_more_records_than_counted_are_reported(small: Path) -> None:
    assert "more bytes follow" in str(refusal(small, 2, 2))


def test_crcs_that_nobody_checks(small: Path) -> None:
    data, expected = small.read_bytes(), oracle.expected_columns(SMALL, SMALL_SCHEMA)
    for place in range(len(data)):
        record = sum(border <= place for border in BORDERS) - 1
        small.write_bytes(data[:place] + bytes([data[place] ^ 0xFF]) + data[place + 1 :])
        if 8 <= place - BORDERS[record] < 12 or place >= BORDERS[record + 1] - 4:
            assert_blocks_equal(read(small, SMALL_SCHEMA, 3, check_crc=False), expected)
            continue
        try:
            blocks = read(small, SMALL_SCHEMA, 3, check_crc=False)
        except TFRecordError as error:
            assert error.place is not None
            assert error.place.record is not None
            assert error.place.record >= record
        else:
            assert len(blocks["i"]) == len(blocks["b"]) == 3


@pytest.mark.parametrize("length", [2**31, 2**63 - 16, 2**64 - 16, 2**64 - 1])
def test_absurd_lengths(small: Path, length: int) -> None:
    head, data = struct.pack("<Q", length), small.read_bytes()
    header = head + struct.pack("<I", oracle.masked_crc(head))
    small.write_bytes(data[: BORDERS[1]] + header + data[BORDERS[1] + 12 :])
    for count in (3, None):
        assert f"truncated payload: expected {length:,} bytes" in str(refusal(small, 1, count))


@pytest.mark.parametrize("dtype", ["<u1", ">i2", ">u4", ">i8", ">f2", ">f8", ">c8", ">c16", "<c16"])
def test_raw_values_in_either_byte_order(tmp_path: Path, dtype: str) -> None:
    values = np.arange(1, 13, dtype=dtype).reshape(2, 2, 3)
    oracle.write_oracle(tmp_path / "x", [example(one=[row.tobytes()], some=[row.tobytes()]) for row in values])
    features = {"one": dtf.RawFeature((2, 3), values.dtype), "some": dtf.RawFeature((-1, 3), values.dtype)}
    found = dtf.read_tfrecord(tmp_path / "x", features).compute()
    assert found["one"].dtype == found["some"][0].dtype == values.dtype.newbyteorder("=")
    assert found["one"].tolist() == [row.tolist() for row in found["some"]] == values.tolist()


@pytest.mark.parametrize("block", [1, 2, 3, 7, 12, 13, 64, 1000])
def test_blocks_of_any_size(tmp_path: Path, block: int, set_limits: Callable[..., Limits]) -> None:
    set_limits(window_nbytes=block, first_window_nbytes=block)
    schema = {"i": dtf.VarLenFeature("int64"), "t": dtf.TextFeature(), "r": dtf.RawFeature((2,), ">i2")}
    payloads = [example(i=[*range(row)], t=[b"\xc3\xa4" * row], r=[bytes(4)]) for row in range(12)]
    oracle.write_oracle(tmp_path / "x", payloads)
    [shard] = find_shards(tmp_path / "x")
    expected = oracle.expected_columns(payloads, schema)
    assert_blocks_equal(read(tmp_path / "x", schema, 12), expected)
    runs = [RecordRange(shard, first, 3, 0, 0, shard.size, ends_shard=False) for first in (2, 8)]
    rows = [2, 3, 4, 8, 9, 10]
    blocks = decode(runs, Decoder(Schema(schema)), ["t"], rows=6)
    assert_blocks_equal(blocks, {"t": expected["t"][rows]})
    assert scan_shard(shard).count == 12


# ---- intact records that do not match the schema

STRICT = Schema(
    {
        "i": dtf.FixedLenFeature((2,), "int64"),
        "v": dtf.VarLenFeature("float32", shape=(-1, 2)),
        "r": dtf.RawFeature((2,), "<i2"),
        "b": dtf.RawFeature((2,), "bool"),
        "t": dtf.TextFeature(),
    },
    Sampling(records=10, shards=1, present=(), unset=("never",)),
)
FITS = {"i": [1, 2], "v": [0.5, 1.5], "r": [b"abcd"], "b": [b"\0\1"], "t": [b"text"]}
REFUSED = {
    "i missing": ({"i": []}, "i", "feature 'i' is missing"),
    "i count": (
        {"i": [1, 2, 3]},
        "i",
        "feature 'i' holds 3 values, but FixedLenFeature.* takes 2; VarLenFeature.'int64'. reads",
    ),
    "i kind": ({"i": [b"x"]}, "i", "feature 'i' holds a bytes list, but .* takes an int64 list"),
    "v multiple": ({"v": [0.5]}, "v", "feature 'v' holds 1 value, but .* takes a multiple of 2"),
    "v kind": ({"v": [1]}, "v", "feature 'v' holds an int64 list, but .* takes a float list"),
    "r size": ({"r": [b"abc"]}, "r", "feature 'r' holds 3 bytes, but .* takes 4"),
    "r count": (
        {"r": [b"abcd", b"abcd"]},
        "r",
        "feature 'r' holds 2 values, but .* takes 1; RawFeature with count=-1",
    ),
    "b boolean": ({"b": [b"\0\7"]}, "b", "feature 'b' holds a byte 7, but .* takes 0 and 1"),
    "t utf8": ({"t": [b"\xff"]}, "t", "feature 't' is not valid UTF-8"),
    "never": ({"never": [1]}, "never", "feature 'never' holds an int64 list, but no sampled record sets it"),
    "new": ({"größe": [1]}, "größe", "feature 'größe' is not in the schema"),
    "long": ({"ä" * 700: [1]}, "ä" * 500, "feature 'ä+' is not in the schema"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_record_that_contradicts_the_schema(case: str, tmp_path: Path) -> None:
    change, feature, message = REFUSED[case]
    payloads = [example(**FITS), example(**FITS, never=[]), example(**{**FITS, **change}), example(**FITS)]
    oracle.write_oracle(tmp_path / "x", payloads)
    with pytest.raises(FeatureError, match=message) as caught:
        read(tmp_path / "x", STRICT, 4)
    offset = sum(len(payload) + 16 for payload in payloads[:2])
    assert caught.value.place == Location(str(tmp_path / "x"), 2, offset, feature)


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        (example(i=[1]) + delimited(2, b""), "a SequenceExample|a protobuf message|an Example"),
        (b"\x08\x01", "a protobuf message of another kind"),
        (b"\x89PNG\r\n\x1a\n....", "a PNG image"),
        (delimited(1, entry(b"i", delimited(3, delimited(1, b"\x80")))), "a damaged Example"),
        (b"\xff" * 20, "raw bytes"),
    ],
)
def test_a_record_that_is_no_example(payload: bytes, message: str, tmp_path: Path) -> None:
    oracle.write_oracle(tmp_path / "x", [example(i=[1]), payload])
    for feature in (dtf.FixedLenFeature((), "int64"), dtf.VarLenFeature("int64")):
        with pytest.raises(FeatureError, match=f"record 1 .*expected an Example, found ({message})"):
            read(tmp_path / "x", {"i": feature}, 2)


def test_a_feature_is_missing_from_a_record_that_is_damaged_elsewhere(tmp_path: Path) -> None:
    oracle.write_oracle(tmp_path / "x", [delimited(1, entry(b"other", delimited(3, delimited(1, b"\x80"))))])
    with pytest.raises(FeatureError, match=r"'i' is missing, .*; another part of the record is damaged"):
        read(tmp_path / "x", {"i": dtf.FixedLenFeature((), "int64")}, 1)


@pytest.mark.parametrize(
    ("inside", "is_example"),
    [
        (delimited(1, b"a") + b"\x18\x01", True),
        (delimited(1, b"a"), True),
        (delimited(1, b"a") + delimited(2, b"") + b"\x18\x01", True),
        (b"\x18\x01", False),
        (b"", False),
        (delimited(1, entry(b"a", INTS)), False),  # a list of Examples: its entry is a key here
    ],
)
def test_an_entry_without_a_value_is_a_feature_if_it_has_a_key(inside: bytes, is_example: bool, tmp_path: Path) -> None:
    """protobuf reads such an entry as a feature that is not set, alone in its record or not."""
    features = {"a": dtf.VarLenFeature("int64")}
    oracle.write_oracle(tmp_path / "one", [delimited(1, delimited(1, inside))])
    oracle.write_oracle(tmp_path / "two", [delimited(1, delimited(1, inside) + entry(b"b", INTS))])
    assert dtf.read_tfrecord(tmp_path / "two", features).compute()["a"][0].tolist() == []
    if is_example:
        assert dtf.read_tfrecord(tmp_path / "one", features).compute()["a"][0].tolist() == []
        assert str(dtf.inspect_records(tmp_path / "one")).startswith("Report on 1 Example of 1 shard")
    else:
        with pytest.raises(FeatureError, match="expected an Example, found"):
            dtf.read_tfrecord(tmp_path / "one", features).compute()


def test_millions_of_empty_rows_share_one_object(tmp_path: Path) -> None:
    steps = 20_000
    record = messages.SequenceExample()
    for _ in range(steps):
        record.feature_lists.feature_list["s"].feature.add()
    oracle.write_oracle(tmp_path / "x", [record.SerializeToString()] * 2)
    ds = dtf.read_tfrecord(tmp_path / "x", {}, sequence_features={"s": dtf.VarLenFeature("float32")})
    for compute in (lambda: ds.compute()["s"], lambda: ds["s"].compute(scheduler="synchronous")):
        tracemalloc.start()
        rows = compute()
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert [len(row) for row in rows] == [steps, steps] and {row.shape for row in rows[0]} == {(0,)}
        # Splits, and three references to each row: an array of its own would take another 112 bytes.
        assert peak < 2 * steps * 60


# ---- errors


@pytest.mark.parametrize(
    "read",
    [
        lambda paths: dtf.read_tfrecord(
            paths, {"i": dtf.VarLenFeature("int64")}, counts=[2_000] * 4 + [20] * 8
        ).compute(),
        lambda paths: dtf.infer_schema(paths, sample=None),
    ],
    ids=["compute", "infer_schema"],
)
def test_the_first_damaged_shard_in_order_is_named(read: Callable[[list[Path]], Any], tmp_path: Path) -> None:
    """Later shards are small, so that other threads meet their damage first."""
    oracle.write_oracle(tmp_path / "one", [example(i=[1])])
    record = (tmp_path / "one").read_bytes()
    paths = [tmp_path / f"{number:02}" for number in range(12)]
    for number, path in enumerate(paths):
        data = bytearray(record * (2_000 if number < 4 else 20))
        data[-5] ^= 1
        path.write_bytes(data)
    with dask.config.set(scheduler="threads", num_workers=4), pytest.raises(CorruptRecordError) as caught:
        read(paths)
    assert caught.value.place is not None and caught.value.place.file == str(paths[0])


# ---- threads


def a_decoder() -> Callable[[], object]:
    block = np.tile(frame(example(k=[*range(1000)])), 5000)
    decoder = _native.Decoder([spec(b"k")], False, False)
    return lambda: decoder.feed(block, 0, len(block), -1)


def an_encoder() -> Callable[[], object]:
    values = np.full(500_000, -1)
    encoder = _native.Encoder([_native.Field(b"x", INT64, values.view(np.uint8), count=len(values))], 1)
    return lambda: encoder.encode(0, np.zeros(10 * len(values) + 4096, np.uint8))


@pytest.mark.parametrize("make", [a_decoder, an_encoder])
def test_one_thread_at_a_time_works_with_an_object(make: Callable[[], Callable[[], object]]) -> None:
    with ThreadPoolExecutor(2) as threads:
        for _ in range(100):
            work = make()
            calls = [threads.submit(work), threads.submit(work)]
            errors = [error for error in (call.exception() for call in calls) if error is not None]
            if errors:
                break
    assert isinstance(errors[0], RuntimeError) and "in use by another thread" in str(errors[0])


# ---- misuse is an error, whatever it is


def text(*shape: int) -> NDArray[Any]:
    return np.empty(shape, np.dtypes.StringDType())


def test_packed_text() -> None:
    expected = ["", "a", "nul\0nul\0", "é☃\U0001f600", "x" * 15, "y" * 16, "long é" * 100, ""]
    encoded = [text.encode() for text in expected]
    values, ends = np.frombuffer(b"".join(encoded), np.uint8), np.cumsum([0, *map(len, encoded)])
    out = np.array([*["replaced" * 20] * 8, "kept"], np.dtypes.StringDType())
    _native.pack_text(values, ends, out[:8])
    assert out.tolist() == [*expected, "kept"]
    # These splits lie between the bytes of a character.
    for bad, reason in (([0, 0, 8, 10], "unexpected end of data"), ([10, 11], "invalid start byte")):
        with pytest.raises(UnicodeDecodeError, match=reason):
            _native.pack_text(values, np.array(bad), text(len(bad) - 1))


VALUES = np.frombuffer(b"abcdefgh", np.uint8)
OF_SPLITS: dict[str, Callable[[NDArray[np.int64]], object]] = {
    "bytes_rows": lambda splits: _native.bytes_rows(VALUES, splits),
    "array_rows": lambda splits: _native.array_rows(VALUES, splits, False),
    "array_rows, copied": lambda splits: _native.array_rows(VALUES, splits, True),
    "pack_text": lambda splits: _native.pack_text(VALUES, splits, text(len(splits) - 1)),
    "pad_rows": lambda splits: _native.pad_rows(
        [VALUES], [splits], None, None, b"0", 8, np.zeros(8 * len(splits) - 8, np.uint8)
    ),
    "sort_rows": lambda splits: _native.sort_rows(np.zeros(8, np.int64), 1, splits, np.zeros(8, np.int64), [], []),
}


@pytest.mark.parametrize("function", OF_SPLITS)
def test_invalid_splits(function: str) -> None:
    OF_SPLITS[function](np.array([0, 0, 3, 8]))
    for splits in ([0, 9], [2, 1], [-1, 3], [0, 2**62], [0, 2, -(2**62)], [9, 9]):
        with pytest.raises(ValueError, match="splits must ascend"):
            OF_SPLITS[function](np.array(splits))


def test_splits_that_another_thread_changes_stay_within_the_values() -> None:
    """Splits are read without the GIL: rows that changed meanwhile are an error, or rows of the values."""
    values, splits = np.full(1_000, 5, np.uint8), np.arange(1_001)
    index, out, text = np.arange(1_000), np.zeros(2_000, np.uint8), np.empty(1_000, np.dtypes.StringDType())
    done = threading.Event()

    def change() -> None:
        while not done.is_set():
            splits[500] = 2**60
            splits[500] = 500

    writer = threading.Thread(target=change)
    writer.start()
    try:
        for number in range(500):
            out[:] = 0
            with suppress(ValueError):
                _native.take_rows([values], [splits], 1, None, index, out[:1_000])
            with suppress(ValueError):
                _native.pad_rows([values], [splits], None, None, b"\0", 1, out[:1_000])
            if number % 10 == 0:
                with suppress(ValueError):
                    _native.pack_text(values, splits, text)
            assert not out[1_000:].any()
            assert set(out[:1_000].tolist()) <= {0, 5}
        assert set("".join(text.tolist())) == {"\5"}
    finally:
        done.set()
        writer.join()
