"""Columns of random message types, compared with the protobuf package: values of messages, and verdicts on mutants."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import dask
import pytest
from google.protobuf import descriptor_pb2
from oracle import write_oracle
from oracle.message_columns import Column, Refused, Unrolled, listed, sort_maps
from oracle.message_mutants import join, mutant, split
from oracle.message_types import ROOT, message_class, random_message, random_type

import dask_tfrecord as dtf
from dask_tfrecord.errors import TFRecordError

DEPTH = 1
COLUMNS = 200
# Types in one test.
TYPES = 10


def types_of(seed: int, count: int) -> Iterator[tuple[str, descriptor_pb2.FileDescriptorSet, Unrolled]]:
    """Yield random types with a sensible number of columns, and the seed of each."""
    for number in range(count):
        for attempt in range(100):
            drawn = f"{seed}-{number}-{attempt}"
            files = random_type(drawn)
            unrolled = Unrolled(files, ROOT, DEPTH)
            if 0 < unrolled.size <= COLUMNS:
                yield drawn, files, unrolled
                break


def opened(path: Path, cls: type[Any], payloads: Sequence[bytes], **options: Any) -> dtf.Dataset:
    write_oracle(path, payloads)
    return dtf.read_tfrecord(path, message=cls, counts=[len(payloads)], compression=None, **options)


def columns_of(ds: dtf.Dataset, wanted: dict[str, Column], unrolled: Unrolled) -> dict[str, list[Any]]:
    """Compute columns as nested lists, the entries of maps in the order of their keys."""
    computed = ds.compute()
    assert {*computed} == {*wanted}
    found = {name: listed(computed[name], column.dtype, column.rank) for name, column in wanted.items()}
    sort_maps(found, unrolled.maps)
    return found


def difference(ds: dtf.Dataset, messages: Sequence[Any], unrolled: Unrolled) -> str:
    """Compare all columns of the rows with those of the messages; return the first difference."""
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


def verdict(path: Path, cls: type[Any], payload: bytes, unrolled: Unrolled) -> str:
    """Read one record; return the difference from what protobuf says of it, empty if there is none."""
    message = unrolled.parse(payload)
    refused = message is None or not holds(unrolled, message)
    ds = opened(path, cls, [payload])
    if not refused:
        return difference(ds, [message], unrolled)
    try:
        ds.compute()
    except TFRecordError:
        return ""
    return "accepted, but protobuf refuses it" if message is None else "accepted, but a column can't hold it"


def holds(unrolled: Unrolled, message: Any) -> bool:
    """Return whether the columns can hold a message."""
    try:
        unrolled.columns([message])
    except Refused:
        return False
    return True


def reproducer(path: Path, cls: type[Any], payload: bytes, unrolled: Unrolled, seed: str) -> str:
    """Describe a difference by the shortest payload that has one."""
    failing = shrunk(payload, lambda one: bool(verdict(path, cls, one, unrolled)), unrolled)
    return f"type {seed}, payload {failing.hex()}: {verdict(path, cls, failing, unrolled)}"


def shrunk(payload: bytes, fails: Callable[[bytes], bool], unrolled: Unrolled) -> bytes:
    """Drop fields, then bytes, as long as the payload fails."""
    while True:
        for shorter in shorter_ones(payload, unrolled):
            if fails(shorter):
                payload = shorter
                break
        else:
            return payload


def shorter_ones(payload: bytes, unrolled: Unrolled) -> Iterator[bytes]:
    try:
        fields = split(payload, unrolled.root)
    except (AssertionError, IndexError, KeyError):
        fields = ()
    yield from (join(fields[:at] + fields[at + 1 :]) for at in range(len(fields)))
    if len(payload) <= 60:
        yield from (payload[:at] + payload[at + 1 :] for at in range(len(payload)))


@pytest.fixture(autouse=True)
def in_this_thread() -> Iterator[None]:
    with dask.config.set(scheduler="synchronous"):
        yield


@pytest.mark.parametrize("seed", range(20))
def test_the_unrolled_type_has_the_same_encoding(seed: int) -> None:
    for drawn, files, unrolled in types_of(seed, 3):
        cls, rng = message_class(files), random.Random(drawn)
        for _ in range(5):
            written = random_message(cls, rng).SerializePartialToString(deterministic=True)
            # Extensions are fields there, and serialized in another order.
            back = unrolled.parse(written).SerializePartialToString()
            assert cls.FromString(back).SerializePartialToString(deterministic=True) == written
            assert join(split(written, unrolled.root)) == written


@pytest.mark.parametrize(("seed", "count", "rows"), [(seed, TYPES, 20) for seed in range(4)])
def test_columns_equal_protobuf(seed: int, count: int, rows: int, tmp_path: Path) -> None:
    for drawn, files, unrolled in types_of(seed, count):
        cls, rng = message_class(files), random.Random(drawn)
        payloads = [random_message(cls, rng).SerializePartialToString() for _ in range(rows)]
        messages = [unrolled.parse(payload) for payload in payloads]
        found = difference(opened(tmp_path / "a", cls, payloads), messages, unrolled)
        if found:
            wrong = next((one for one in payloads if verdict(tmp_path / "b", cls, one, unrolled)), None)
            assert wrong is None, reproducer(tmp_path / "b", cls, wrong, unrolled, drawn)
            pytest.fail(f"type {drawn}, only rows together: {found}")


def mutants_of(cls: type[Any], unrolled: Unrolled, count: int, seed: str) -> list[bytes]:
    rng = random.Random(f"mutants {seed}")
    written = [random_message(cls, rng).SerializePartialToString() for _ in range(10)]
    return [mutant(*rng.choices(written, k=2), unrolled.root, rng) for _ in range(count)]


def test_mutants_have_the_verdict_of_protobuf(tmp_path: Path) -> None:
    for drawn, files, unrolled in types_of(0, 10):
        cls = message_class(files)
        payloads = mutants_of(cls, unrolled, 200, drawn)
        messages = [unrolled.parse(payload) for payload in payloads]
        legal = [row for row, message in enumerate(messages) if message is not None and holds(unrolled, message)]
        ds = opened(tmp_path / "a", cls, payloads)
        wrong = []
        if difference(ds.rows[legal], [messages[row] for row in legal], unrolled):
            wrong = [row for row in legal if verdict(tmp_path / "b", cls, payloads[row], unrolled)]
            assert wrong, f"type {drawn}: only rows together"
        for row in sorted({*range(len(payloads))} - {*legal}):
            try:
                ds.rows[[row]].compute()
            except TFRecordError as error:
                assert error.place is not None, error
                assert (error.place.file, error.place.record) == (str(tmp_path / "a"), row), error
            else:
                wrong.append(row)
        told = [reproducer(tmp_path / "b", cls, payloads[row], unrolled, drawn) for row in wrong[:3]]
        assert not wrong, f"{len(wrong)} of {len(payloads)} mutants\n" + "\n".join(told)
