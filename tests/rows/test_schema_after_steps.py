"""A data set knows its records after every step: `read_tfrecord(written, ds.schema)` returns what was written.

Records are serialized by protobuf's classes. What the columns hold after a step follows from the values that went into
them, by operations on lists.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from google.protobuf import descriptor_pb2
from google.protobuf.field_mask_pb2 import FieldMask
from google.protobuf.wrappers_pb2 import Int64Value
from oracle import write_oracle
from oracle.message_types import Field, message_class
from support.wire import delimited, example, sequence_example

import dask_tfrecord as dtf

Row = dict[str, Any]
WORDS = ("", "a", "bä", "ccc")


@dataclass(frozen=True)
class Expected:
    """Values of each column, in the order of the columns.

    Files determine to how many steps records are padded: padding of all of them does not count. No step is zero.
    """

    columns: Mapping[str, list[Any]]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Expected) and self._items() == other._items()

    def _items(self) -> list[tuple[str, list[Any]]]:
        return [(name, trimmed(held)) for name, held in self.columns.items()]


def trimmed(rows: list[Any]) -> list[Any]:
    while all(isinstance(row, list) and row and row[-1] == [0, 0] for row in rows):
        rows = [row[:-1] for row in rows]
    return rows


def listed(value: Any) -> Any:
    """Return arrays as lists, all the way down."""
    if isinstance(value, np.ndarray):
        return [listed(each) for each in value] if value.dtype == object or value.dtype.kind == "T" else value.tolist()
    return value


def found(ds: dtf.Dataset) -> Expected:
    return Expected({name: listed(column) for name, column in ds.compute().items()})


def draw_row(rng: random.Random) -> Row:
    few = lambda most: [rng.randint(0, 9) for _ in range(rng.randint(0, most))]  # noqa: E731
    places = sorted(rng.sample(range(12), rng.randint(0, 3)))
    return {
        "id": rng.randint(-9, 9),
        "word": rng.choice(WORDS),
        "open": few(3),
        "places": places,
        "values": [rng.randint(1, 9) / 2 for _ in places],
        "paths": [rng.choice(WORDS) for _ in range(rng.randint(0, 2))],
        "number": rng.randint(-9, 9),
        "steps": [[rng.randint(1, 9), rng.randint(1, 9)] for _ in range(rng.randint(0, 3))],
        "lists": [few(2) for _ in range(rng.randint(0, 3))],
        "scores": few(3),
        "tags": few(0),
    }


def sparse_columns(rows: list[Row]) -> dict[str, list[Any]]:
    return {
        "s.indices": [[[place // 4, place % 4] for place in row["places"]] for row in rows],
        "s.values": [row["values"] for row in rows],
        "s.shape": [[3, 4] for _ in rows],
    }


def keys_of_sparse(row: Row) -> Row:
    return {
        "row": [place // 4 for place in row["places"]],
        "column": [place % 4 for place in row["places"]],
        "value": row["values"],
    }


CONTEXT = {
    "id": dtf.FixedLenFeature((), "int32"),
    "word": dtf.TextFeature(),
    "open": dtf.VarLenFeature("int64"),
    "s": dtf.SparseFeature(("row", "column"), "value", "float32", (3, 4)),
    "mask": dtf.ProtoFeature(FieldMask, "paths", key="proto"),
    "whole": dtf.ProtoFeature(Int64Value, ""),
}


def of_context(row: Row) -> Row:
    return {
        "id": [row["id"]],
        "word": [row["word"].encode()],
        "open": row["open"],
        **keys_of_sparse(row),
        "proto": [FieldMask(paths=row["paths"]).SerializeToString()],
        "whole": [Int64Value(value=row["number"]).SerializeToString()],
    }


def context_columns(rows: list[Row]) -> dict[str, list[Any]]:
    return {
        "id": [row["id"] for row in rows],
        "word": [row["word"] for row in rows],
        "open": [row["open"] for row in rows],
        **sparse_columns(rows),
        "mask": [row["paths"] for row in rows],
        "whole.value": [row["number"] for row in rows],
    }


def padded(rows: list[Row]) -> list[Any]:
    longest = max(len(row["steps"]) for row in rows)
    return [row["steps"] + [[0, 0]] * (longest - len(row["steps"])) for row in rows]


Form = tuple[Callable[[Row], bytes], dict[str, Any], Callable[[list[Row]], dict[str, list[Any]]]]


def example_form() -> Form:
    steps = dtf.FixedLenSequenceFeature((2,), "int64", allow_missing=True)
    return (
        lambda row: example(**of_context(row), steps=[value for step in row["steps"] for value in step]),
        {"features": {**CONTEXT, "steps": steps}},
        lambda rows: {**context_columns(rows), "steps": padded(rows)},
    )


def sequence_form() -> Form:
    lists = {"steps": dtf.FixedLenSequenceFeature((2,), "int64"), "lists": dtf.VarLenFeature("int64")}
    return (
        lambda row: sequence_example(of_context(row), steps=row["steps"], lists=row["lists"]),
        {"features": CONTEXT, "sequence_features": lists},
        lambda rows: {
            **context_columns(rows),
            "steps": padded(rows),
            "steps.lengths": [len(row["steps"]) for row in rows],
            "lists": [row["lists"] for row in rows],
            "lists.lengths": [len(row["lists"]) for row in rows],
        },
    )


def items_form() -> Form:
    items = {"score": dtf.FixedLenFeature((), "int64"), "tags": dtf.VarLenFeature("int64")}

    def record(row: Row) -> bytes:
        parts = [delimited(1, example(score=[score], tags=[score] * (score % 3))) for score in row["scores"]]
        return b"".join(parts) + delimited(2, example(**of_context(row)))

    return (
        record,
        {"features": CONTEXT, "example_features": items},
        lambda rows: {
            **context_columns(rows),
            "examples/score": [row["scores"] for row in rows],
            "examples/tags": [[[score] * (score % 3) for score in row["scores"]] for row in rows],
        },
    )


@functools.cache
def scene_class() -> Any:
    files = descriptor_pb2.FileDescriptorSet()
    file = files.file.add(name="scene.proto", package="scene", syntax="proto3")
    scene, track = file.message_type.add(name="Scene"), file.message_type.add(name="Track")
    scene.field.add(name="id", number=1, type=Field.TYPE_INT64, label=Field.LABEL_OPTIONAL)
    scene.field.add(name="open", number=2, type=Field.TYPE_INT64, label=Field.LABEL_REPEATED)
    kind = {"type": Field.TYPE_MESSAGE, "type_name": ".scene.Track", "label": Field.LABEL_REPEATED}
    scene.field.add(name="tracks", number=3, **kind)
    track.field.add(name="score", number=1, type=Field.TYPE_INT64, label=Field.LABEL_OPTIONAL)
    track.field.add(name="values", number=2, type=Field.TYPE_INT64, label=Field.LABEL_REPEATED)
    return message_class(files, "scene.Scene")


def message_form() -> Form:
    def record(row: Row) -> bytes:
        scene = scene_class()(id=row["id"], open=row["open"])
        for score in row["scores"]:
            scene.tracks.add(score=score, values=[score] * (score % 3))
        return bytes(scene.SerializeToString())

    return (
        record,
        {"message": scene_class()},
        lambda rows: {
            "id": [row["id"] for row in rows],
            "open": [row["open"] for row in rows],
            "tracks.score": [row["scores"] for row in rows],
            "tracks.values": [[[score] * (score % 3) for score in row["scores"]] for row in rows],
        },
    )


FORMS = {"Example": example_form, "SequenceExample": sequence_form, "ELWC": items_form, "message": message_form}
Step = Callable[[dtf.Dataset, Expected, random.Random], tuple[dtf.Dataset, Expected]]


def rename(ds: dtf.Dataset, wanted: Expected, rng: random.Random) -> tuple[dtf.Dataset, Expected]:
    """Rename some columns, or all columns of a feature together; an item may get the name of none."""
    names: dict[str, str] = {}
    for name in rng.sample(sorted(wanted.columns), min(len(wanted.columns), rng.randint(1, 3))):
        prefix = name.partition(".")[0]
        if prefix != name and rng.random() < 0.7:
            common = f"new{rng.randint(0, 999)}{prefix}"
            together = [each for each in wanted.columns if each.startswith(f"{prefix}.")]
            names |= {each: common + each[len(prefix) :] for each in together}
        elif name.startswith("examples/") and rng.random() < 0.7:
            names[name] = f"examples/n{rng.randint(0, 999)}{name[9:]}"
        else:
            names[name] = f"n{rng.randint(0, 999)}{name.replace('/', '-')}"
    if len(set(names.values())) < len(names):
        return ds, wanted
    return ds.rename(names), Expected({names.get(name, name): held for name, held in wanted.columns.items()})


def assign(ds: dtf.Dataset, wanted: Expected, rng: random.Random) -> tuple[dtf.Dataset, Expected]:
    name, count = f"added{rng.randint(0, 99)}", len(next(iter(wanted.columns.values())))
    values = [rng.randint(0, 9) for _ in range(count)]
    columns = {**wanted.columns, name: values}
    return ds.assign({name: np.array(values)}), replace(wanted, columns=columns)


def drop(ds: dtf.Dataset, wanted: Expected, rng: random.Random) -> tuple[dtf.Dataset, Expected]:
    if len(wanted.columns) < 3:
        return ds, wanted
    names = rng.sample(sorted(wanted.columns), rng.randint(1, 2))
    return ds.drop(*names), Expected({name: held for name, held in wanted.columns.items() if name not in names})


def select(ds: dtf.Dataset, wanted: Expected, rng: random.Random) -> tuple[dtf.Dataset, Expected]:
    names = rng.sample(sorted(wanted.columns), rng.randint(1, len(wanted.columns)))
    return ds[names], Expected({name: wanted.columns[name] for name in names})


def map_all(ds: dtf.Dataset, wanted: Expected, rng: random.Random) -> tuple[dtf.Dataset, Expected]:
    return ds.map_blocks(dict), wanted


def map_more(ds: dtf.Dataset, wanted: Expected, rng: random.Random) -> tuple[dtf.Dataset, Expected]:
    count = len(next(iter(wanted.columns.values())))

    def function(blocks: dict[str, Any]) -> dict[str, Any]:
        rows = len(next(iter(blocks.values())))
        return {"first": np.full(rows, 7), **blocks}

    return ds.map_blocks(function), Expected({"first": [7] * count, **wanted.columns})


def persist(ds: dtf.Dataset, wanted: Expected, rng: random.Random) -> tuple[dtf.Dataset, Expected]:
    return ds.persist(scheduler="sync"), wanted


def rows(ds: dtf.Dataset, wanted: Expected, rng: random.Random) -> tuple[dtf.Dataset, Expected]:
    count = len(next(iter(wanted.columns.values())))
    picked = rng.sample(range(count), max(1, count - 1))
    return ds.rows[picked], Expected({name: [held[row] for row in picked] for name, held in wanted.columns.items()})


STEPS: tuple[Step, ...] = (rename, assign, drop, select, map_all, map_more, persist, rows)


def check(folder: Path, form: str, seed: int) -> str:
    """Read random records, take random steps, write and read again; return the refusal of a step, or no text."""
    rng = random.Random(seed)
    record, options, columns_of = FORMS[form]()
    held = [draw_row(rng) for _ in range(4)]
    write_oracle(folder / "a", [record(row) for row in held])
    ds = dtf.read_tfrecord(folder / "a", **options, chunks=rng.choice([2, 4]))
    wanted = Expected(columns_of(held))
    assert found(ds) == wanted
    taken = []
    for step in rng.choices(STEPS, k=rng.randint(0, 4)):
        taken.append(step.__name__)
        ds, wanted = step(ds, wanted, rng)
    assert found(ds) == wanted, taken
    try:
        ds.to_tfrecord(folder / "b", mode="w")
        again = dtf.read_tfrecord(folder / "b", dtf.Schema.from_json(ds.schema.to_json()))
    except dtf.SchemaError as error:
        # The error names columns that no record lists; they were items, or steps of bytes, under other names.
        assert any(repr(name) in str(error) for name in wanted.columns), (taken, error)
        return str(error)
    assert found(again) == wanted, taken
    return ""


@pytest.mark.parametrize("count", [8, pytest.param(100, marks=pytest.mark.slow)])
@pytest.mark.parametrize("form", FORMS)
def test_the_schema_reads_what_the_data_set_writes(form: str, count: int, tmp_path: Path) -> None:
    refused = [check(tmp_path, form, seed) for seed in range(count)]
    # Messages lack a field for columns that are added.
    assert sum(map(bool, refused)) < len(refused) * (0.75 if form == "message" else 0.5), refused
