"""Columns of random message types, compared with the protobuf package: values of messages, and verdicts on mutants."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import descriptor_pb2
from google.protobuf.message import DecodeError
from oracle import read_payloads, write_oracle
from oracle.message_columns import Column, Refused, Unrolled, listed, sort_maps
from oracle.message_mutants import join, mutant, split
from oracle.message_types import ROOT, message_class, random_message, random_type
from support.few import mostly_slow
from support.message_files import PROTOS, REAL, real_type

import dask_tfrecord as dtf
from dask_tfrecord.errors import TFRecordError

pytestmark = pytest.mark.usefixtures("in_this_thread")
DEPTH = 1
COLUMNS = 200
# Types in one test.
TYPES = 10


def types_of(
    seed: object, count: int, columns: int = COLUMNS
) -> Iterator[tuple[str, descriptor_pb2.FileDescriptorSet, Unrolled]]:
    """Yield random types with a sensible number of columns, and the seed of each."""
    for number in range(count):
        for attempt in range(100):
            drawn = f"{seed}-{number}-{attempt}"
            files = random_type(drawn)
            unrolled = Unrolled(files, ROOT, DEPTH)
            if 0 < unrolled.size <= columns:
                yield drawn, files, unrolled
                break


def opened(path: Path, message: Any, payloads: Sequence[bytes], **options: Any) -> dtf.Dataset:
    write_oracle(path, payloads)
    return dtf.read_tfrecord(
        path, message=message, counts=[len(payloads)], chunks=max(len(payloads), 1), compression=None, **options
    )


def columns_of(ds: dtf.Dataset, wanted: dict[str, Column], unrolled: Unrolled) -> dict[str, list[Any]]:
    """Compute columns as nested lists, the entries of maps in the order of their keys."""
    computed = ds.compute()
    assert {*computed} == {*wanted}
    found = {name: listed(computed[name], column.dtype, column.rank) for name, column in wanted.items()}
    sort_maps(found, unrolled.maps)
    return found


def difference(ds: dtf.Dataset, messages: Sequence[Any], unrolled: Unrolled) -> str:
    """Compare all columns of the rows with the messages; return the first difference."""
    wanted = unrolled.columns(messages)
    try:
        found = columns_of(ds, wanted, unrolled)
    except TFRecordError as error:
        return f"refused: {error}"
    for name, column in wanted.items():
        if found[name] != column.rows:
            pairs = zip(found[name], column.rows, strict=True)
            row, (got, expected) = next((row, pair) for row, pair in enumerate(pairs) if pair[0] != pair[1])
            return f"row {row}, column {name!r}: expected {expected!r}, got {got!r}"
    return ""


def holds(unrolled: Unrolled, message: Any) -> bool:
    """Return whether the columns can hold a message."""
    try:
        unrolled.columns([message])
    except Refused:
        return False
    return True


@pytest.mark.parametrize("seed", range(5))
def test_the_unrolled_type_has_the_same_encoding(seed: int) -> None:
    for drawn, files, unrolled in types_of(seed, 3):
        cls, rng = message_class(files), random.Random(drawn)
        for _ in range(5):
            written = random_message(cls, rng).SerializePartialToString(deterministic=True)
            # Extensions are fields there, and serialized in another order.
            back = unrolled.parse(written).SerializePartialToString()
            assert cls.FromString(back).SerializePartialToString(deterministic=True) == written
            assert join(split(written, unrolled.root)) == written


# Numbers that the seeds of one test have in common: types, and messages or mutants of each.
VALUES = [
    (0, 20),
    *(pytest.param(seed, 50, marks=pytest.mark.slow) for seed in range(4)),
    *(pytest.param(seed, 50, marks=pytest.mark.nightly) for seed in range(4, 100)),
]
MUTANTS = [
    (0, 60),
    *(pytest.param(seed, 200, marks=pytest.mark.slow) for seed in range(4)),
    *(pytest.param(seed, 200, marks=pytest.mark.nightly) for seed in range(4, 100)),
]


def check_values(path: Path, message: Any, unrolled: Unrolled, payloads: Sequence[bytes]) -> str:
    """Compare the columns of legal records; return the first difference."""
    return difference(opened(path, message, payloads), [unrolled.parse(one) for one in payloads], unrolled)


def check_mutants(path: Path, message: Any, unrolled: Unrolled, payloads: Sequence[bytes]) -> str:
    """Compare the values of legal records and the verdicts on others; return what differs."""
    messages = [unrolled.parse(payload) for payload in payloads]
    legal = [row for row, parsed in enumerate(messages) if parsed is not None and holds(unrolled, parsed)]
    ds = opened(path, message, payloads)
    found = difference(ds.rows[legal], [messages[row] for row in legal], unrolled) if legal else ""
    accepted = []
    for row in sorted({*range(len(payloads))} - {*legal}):
        try:
            ds.rows[[row]].compute()
        except TFRecordError as error:
            assert error.place is not None, error
            assert (error.place.file, error.place.record) == (str(path), row), error
        else:
            accepted.append(payloads[row].hex())
    return found or (f"{len(accepted)} mutants are accepted: {accepted[:3]}" if accepted else "")


@pytest.mark.parametrize(("seed", "rows"), VALUES)
def test_columns_equal_protobuf(seed: int, rows: int, tmp_path: Path) -> None:
    for drawn, files, unrolled in types_of(seed, TYPES):
        cls, rng = message_class(files), random.Random(drawn)
        payloads = [random_message(cls, rng).SerializePartialToString() for _ in range(rows)]
        assert not (found := check_values(tmp_path / "a", cls, unrolled, payloads)), f"type {drawn}: {found}"


def _takes_a_length_of_six_bytes() -> bool:
    try:
        descriptor_pb2.FileDescriptorProto.FromString(b"\x0a\x80\x80\x80\x80\x80\x00")
    except DecodeError:
        return False
    return True


# A protobuf this old does not decide what is illegal.
OLD_PROTOBUF = _takes_a_length_of_six_bytes()


@pytest.mark.skipif(OLD_PROTOBUF, reason="this protobuf takes a length of six bytes")
@pytest.mark.parametrize(("seed", "count"), MUTANTS)
def test_mutants_have_the_verdict_of_protobuf(seed: int, count: int, tmp_path: Path) -> None:
    for drawn, files, unrolled in types_of(seed, TYPES):
        cls = message_class(files)
        payloads = mutants_of(cls, unrolled, count, drawn)
        assert not (found := check_mutants(tmp_path / "a", cls, unrolled, payloads)), f"type {drawn}: {found}"


def mutants_of(cls: type[Any], unrolled: Unrolled, count: int, seed: str) -> list[bytes]:
    rng = random.Random(f"mutants {seed}")
    written = [random_message(cls, rng).SerializePartialToString() for _ in range(10)]
    return [mutant(*rng.choices(written, k=2), unrolled.root, rng) for _ in range(count)]


@pytest.mark.parametrize("seed", range(3))
def test_selected_fields_and_presence(seed: int, tmp_path: Path) -> None:
    for drawn, files, unrolled in types_of(seed, TYPES):
        cls, rng = message_class(files), random.Random(drawn)
        payloads = [random_message(cls, rng).SerializePartialToString() for _ in range(10)]
        messages = [unrolled.parse(payload) for payload in payloads]
        values = unrolled.columns(messages)
        presences = {f"{name} is set": column for name, column in unrolled.presences(messages).items()}
        known = values | presences
        picked = rng.sample([*known], min(len(known), 5))
        keys = [f"{path}.key" for path in unrolled.maps if any(name.startswith(f"{path}.") for name in picked)]
        wanted = {name: known[name] for name in dict.fromkeys([*picked, *keys])}
        features = {name: dtf.ProtoFeature(name.removesuffix(" is set"), presence=name in presences) for name in wanted}
        for name in unrolled.opaque & {*wanted}:
            features[name] = dtf.ProtoFeature(name, values=dtf.FixedLenFeature((), "bytes"))
        ds = opened(tmp_path / "a", cls, payloads, features=features)
        assert [*ds] == [*wanted], drawn
        found = columns_of(ds, wanted, unrolled)
        for name, column in wanted.items():
            assert found[name] == column.rows, (drawn, name)


@pytest.mark.parametrize("seed", range(2))
def test_repeated_messages_are_groups(seed: int, tmp_path: Path) -> None:
    for drawn, files, unrolled in types_of(seed, TYPES):
        cls, rng = message_class(files), random.Random(drawn)
        payloads = [random_message(cls, rng).SerializePartialToString() for _ in range(10)]
        values = unrolled.columns([unrolled.parse(payload) for payload in payloads])
        ds = opened(tmp_path / "a", cls, payloads)
        for group, names in unrolled.groups.items():
            wanted = {
                name: Column(
                    values[name].dtype, values[name].rank - 1, [item for row in values[name].rows for item in row]
                )
                for name in names
            }
            exploded = ds.explode(group)
            assert [*exploded] == [*(name for name in ds if name in wanted), "record"]
            computed = exploded.compute()
            found = {name: listed(computed[name], column.dtype, column.rank) for name, column in wanted.items()}
            sort_maps(found, {path: rank - 1 for path, rank in unrolled.maps.items() if path.startswith(f"{group}.")})
            assert found == {name: column.rows for name, column in wanted.items()}, drawn


# ---- types of other projects


@pytest.mark.parametrize("name", mostly_slow(REAL, 3))
def test_types_of_other_projects(name: str, tmp_path: Path) -> None:
    message, cls, unrolled = real_type(name)
    rng = random.Random(name)
    payloads = [random_message(cls, rng, fill=0.8).SerializeToString() for _ in range(20)]
    assert not check_values(tmp_path / "a", message, unrolled, payloads)
    if not OLD_PROTOBUF:
        assert not check_mutants(tmp_path / "a", message, unrolled, mutants_of(cls, unrolled, 50, name))


def test_variants_of_the_corpus(corpus: Path) -> None:
    path = corpus / "google__nucleus/nucleus/testdata/test_sites.vcf.golden.tfrecord"
    message, _, unrolled = real_type("nucleus.genomics.v1.Variant")
    messages = [unrolled.parse(payload) for payload in read_payloads(path)]
    assert len(messages) == 5
    ds = dtf.read_tfrecord(path, message=message)
    assert not difference(ds, messages, unrolled)
    assert ds["reference_name"].compute().tolist()[0] == "chr4"


@pytest.mark.integration
@pytest.mark.parametrize("name", sorted({*REAL.values()}))
def test_descriptor_sets_are_those_of_the_protos(name: str, tmp_path: Path) -> None:
    pytest.importorskip("grpc_tools")
    made = tmp_path / "made.desc"
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{PROTOS}", "--include_imports"]
    subprocess.run([*command, f"--descriptor_set_out={made}", str(PROTOS / f"{name}.proto")], check=True)
    assert made.read_bytes() == (PROTOS / f"{name}.desc").read_bytes()
