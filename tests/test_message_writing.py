"""Messages written from their columns, compared with the messages that were read, as protobuf parses both."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import dask
import pytest
from google.protobuf import descriptor_pb2
from oracle import read_payloads, write_oracle
from oracle.message_columns import Refused, Unrolled
from oracle.message_types import ROOT, message_class, random_message, random_type

import dask_tfrecord as dtf

PROTOS = Path(__file__).parent / "data" / "protos"
REAL = {
    "tensorflow.Event": "event",
    "nucleus.genomics.v1.Variant": "variant",
    "waymo.open_dataset.Scenario": "scenario",
}
BYTES = dtf.FixedLenFeature((), "bytes")


@pytest.fixture(autouse=True)
def in_this_thread() -> Iterator[None]:
    with dask.config.set(scheduler="synchronous"):
        yield


def opened(path: Path, message: Any, payloads: Sequence[bytes], features: Any = None, chunks: int = 7) -> dtf.Dataset:
    write_oracle(path, payloads)
    return dtf.read_tfrecord(path, features, message=message, counts=[len(payloads)], chunks=chunks, compression=None)


def types_of(seed: int, count: int, columns: int = 150) -> Iterator[tuple[str, type[Any], Unrolled]]:
    """Yield random types with a sensible number of columns, and the seed of each."""
    for number in range(count):
        for attempt in range(100):
            drawn = f"writing {seed}-{number}-{attempt}"
            files = random_type(drawn)
            unrolled = Unrolled(files, ROOT, 1)
            if 0 < unrolled.size <= columns:
                yield drawn, message_class(files), unrolled
                break


def legal_messages(cls: type[Any], unrolled: Unrolled, rng: random.Random, count: int) -> list[Any]:
    """Draw messages whose columns hold all of their content."""
    found: list[Any] = []
    while len(found) < count:
        message = random_message(cls, rng)
        try:
            unrolled.columns([unrolled.parse(message.SerializePartialToString())])
        except Refused:
            continue
        found.append(message)
    return found


def with_presence(unrolled: Unrolled, messages: Sequence[bytes]) -> dict[str, dtf.ProtoFeature]:
    """Return the features of all fields, and of the presence of those that have one."""
    parsed = [unrolled.parse(payload) for payload in messages]
    features = {name: dtf.ProtoFeature(name) for name in unrolled.columns(parsed)}
    features |= {name: dtf.ProtoFeature(name, values=BYTES) for name in unrolled.opaque}
    return features | {f"{name} is set": dtf.ProtoFeature(name, presence=True) for name in unrolled.presences(parsed)}


def check_round_trip(folder: Path, message: Any, unrolled: Unrolled, messages: list[Any]) -> None:
    payloads = [one.SerializePartialToString() for one in messages]
    ds = opened(folder / "read", message, payloads, with_presence(unrolled, payloads))
    ds.to_tfrecord(folder / "written-{shard}", mode="w")
    paths = sorted(folder.glob("written-*"), key=lambda path: int(path.name.rpartition("-")[2]))
    written = [payload for path in paths for payload in read_payloads(path)]
    assert len(written) == len(payloads)
    for row, (payload, expected) in enumerate(zip(written, payloads, strict=True)):
        assert unrolled.content(payload) == unrolled.content(expected), f"row {row}: {expected.hex()}, {payload.hex()}"


@pytest.mark.parametrize(
    ("seed", "rows"),
    [(0, 10), (1, 10), *(pytest.param(seed, 40, marks=pytest.mark.slow) for seed in range(2, 30))],
)
def test_messages_are_written_as_they_were_read(seed: int, rows: int, tmp_path: Path) -> None:
    for drawn, cls, unrolled in types_of(seed, 8):
        rng = random.Random(drawn)
        try:
            check_round_trip(tmp_path, cls, unrolled, legal_messages(cls, unrolled, rng, rows))
        except AssertionError as error:
            raise AssertionError(f"type {drawn}: {error}") from error
