"""Reports on messages of a given type, compared with what protobuf says of the records."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import dask
import pytest
from google.protobuf.unknown_fields import UnknownFieldSet
from oracle import write_oracle
from oracle.message_columns import Place, Refused, Unrolled
from oracle.message_types import message_class, random_message
from test_message_oracle import OLD_PROTOBUF, mutants_of, types_of

import dask_tfrecord as dtf


@pytest.fixture(autouse=True)
def in_this_thread() -> Iterator[None]:
    with dask.config.set(scheduler="synchronous"):
        yield


def set_paths(place: Place, prefix: str, message: Any) -> Iterator[str]:
    """Yield the columns whose fields a message sets."""
    listed = {field.name: value for field, value in message.ListFields()}
    for one in place.fields:
        path = f"{prefix}{one.name}"
        if one.attribute not in listed:
            continue
        value = listed[one.attribute]
        if one.is_map:
            assert one.place is not None
            inner = one.place.fields[1]
            yield f"{path}.key"
            if inner.place is None or inner.whole:
                yield f"{path}.value"
            else:
                for each in value.values() if inner.place.fields or inner.place.oneofs else ():
                    yield from set_paths(inner.place, f"{path}.value.", each)
        elif one.place is None or one.whole:
            yield path
        else:
            # Messages without columns are bytes.
            held = value if one.repeated else [value]
            for each in held if one.place.fields or one.place.oneofs else ():
                yield from set_paths(one.place, f"{path}.", each)
    for label, name, _ in place.oneofs:
        if message.WhichOneof(name):
            yield f"{prefix}{label}"


def unknown_fields(place: Place, message: Any) -> int:
    """Count the unknown fields of a message, and of those within it whose fields are columns."""
    found = len(UnknownFieldSet(message))
    listed = {field.name: value for field, value in message.ListFields()}
    for one in place.fields:
        if one.place is None or one.attribute not in listed:
            continue
        value, inner = listed[one.attribute], one.place
        if one.is_map:
            value, inner = [*value.values()], one.place.fields[1].place
        if inner is not None and (inner.fields or inner.oneofs):
            found += sum(unknown_fields(inner, each) for each in (value if one.repeated else [value]))
    return found


def values_of(rows: Any) -> int:
    return sum(map(values_of, rows)) if isinstance(rows, list) else 1


def accepted(unrolled: Unrolled, payload: bytes) -> Any:
    message = unrolled.parse(payload)
    try:
        return message if message is not None and unrolled.columns([message]) else None
    except Refused:
        return None


def check(report: Any, unrolled: Unrolled, payloads: Sequence[bytes]) -> None:
    messages = [accepted(unrolled, payload) for payload in payloads]
    known = [message for message in messages if message is not None]
    assert (report.records, report.refused) == (len(payloads), len(payloads) - len(known))
    present = Counter(path for message in known for path in {*set_paths(unrolled.root, "", message)})
    unknown = [unknown_fields(unrolled.root, message) for message in known]
    assert (report.unknown_records, report.unknown_fields) == (sum(map(bool, unknown)), sum(unknown))
    columns = [unrolled.columns([message]) for message in known]
    assert {each.name for each in report.features} == {*unrolled.columns([])}
    for each in report.features:
        assert each.present == present[each.name], each.name
        numbers = [values_of(column[each.name].rows[0]) for column in columns]
        assert each.extent == (min(numbers), max(numbers)), each.name
        assert each.kind == columns[0][each.name].dtype
    refused = [number for number, message in enumerate(messages) if message is None]
    assert [error.place.record for error in report.refusals] == refused[:10]


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 20))])
def test_counts_equal_those_of_protobuf(seed: int, tmp_path: Path) -> None:
    for drawn, files, unrolled in types_of(seed, 8):
        print(drawn)
        cls, rng = message_class(files), random.Random(drawn)
        payloads = [random_message(cls, rng).SerializePartialToString() for _ in range(20)]
        if not OLD_PROTOBUF:
            payloads += mutants_of(cls, unrolled, 40, drawn)
        path = tmp_path / "a"
        write_oracle(path, payloads)
        report = dtf.inspect_records(path, message=cls)
        check(report, unrolled, payloads)
        assert dtf.inspect_records(path, message=cls, sample=None) == report
