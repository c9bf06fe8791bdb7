"""Functions of users get a dict of arrays, however they ask for them; rows of bytes become objects when they do."""

from __future__ import annotations

import copy
import pickle
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.any_columns import every_column, listed
from support.few import mostly_slow

import dask_tfrecord as dtf
from dask_tfrecord.blocks import RaggedBlock

Blocks = dict[str, Any]


def keywords(**blocks: Any) -> Blocks:
    return blocks


def popped(blocks: Blocks) -> Blocks:
    return {name: blocks.pop(name) for name in list(blocks)}


def popped_items(blocks: Blocks) -> Blocks:
    return dict(blocks.popitem() for _ in range(len(blocks)))


def updated(blocks: Blocks) -> Blocks:
    made: Blocks = {}
    made.update(blocks)
    return made


def merged(blocks: Blocks) -> Blocks:
    made: Blocks = {"other": 1}
    made |= blocks
    del made["other"]
    return made


def rows(columns: Blocks) -> Blocks:
    return {name: repr(listed(column)) for name, column in columns.items()}


WAYS: dict[str, Callable[[Blocks], Blocks]] = {
    "names": lambda blocks: {name: blocks[name] for name in blocks},
    "get": lambda blocks: {name: blocks.get(name) for name in blocks.keys()},  # noqa: SIM118
    "setdefault": lambda blocks: {name: blocks.setdefault(name) for name in blocks},
    "items": lambda blocks: {name: block for name, block in blocks.items()},
    "values": lambda blocks: dict(zip(blocks, blocks.values(), strict=True)),
    "dict": dict,
    "unpacked": lambda blocks: {**blocks},
    "keywords": lambda blocks: keywords(**blocks),
    "or": lambda blocks: blocks | {},
    "or behind": lambda blocks: {} | blocks,
    "updated": updated,
    "merged": merged,
    "method copy": lambda blocks: blocks.copy(),
    "copy": copy.copy,
    "pickle": lambda blocks: pickle.loads(pickle.dumps(blocks)),
    "pop": popped,
    "popitem": popped_items,
}


@pytest.mark.parametrize("way", mostly_slow(WAYS, 2))
def test_a_function_gets_arrays_however_it_asks(way: str) -> None:
    ds = every_column((3, 2))
    ask, schema = WAYS[way], ds.schema

    def function(blocks: Blocks) -> Blocks:
        assert isinstance(blocks, dict)
        found = ask(blocks)
        assert {type(block) for block in found.values()} <= {np.ndarray, RaggedBlock}
        assert {name: len(block) for name, block in found.items()} == dict.fromkeys(schema, len(found["dense"]))
        return found

    with_objects = ds.map_blocks(function, template=schema).compute(scheduler="sync")
    assert rows(with_objects) == rows(ds.compute(scheduler="sync"))


def test_a_function_may_change_the_dict() -> None:
    ds = every_column((3, 2))

    def function(blocks: Blocks) -> Blocks:
        assert "missing" not in blocks
        assert blocks.get("missing") is None
        with pytest.raises(KeyError, match="missing"):
            blocks["missing"]
        with pytest.raises(KeyError, match="missing"):
            blocks.pop("missing")
        assert blocks.pop("missing", 1) == 1
        assert blocks.setdefault("new", 2) == 2
        assert "array(" in repr(blocks)
        assert "Block(" not in repr(blocks["bytes"])
        blocks["bytes"][:] = b"changed"
        blocks["new"] = blocks["bytes"] + blocks["bytes"]
        del blocks["dense"]
        return blocks

    schema = {name: feature for name, feature in ds.schema.items() if name != "dense"}
    template = {**schema, "new": dtf.FixedLenFeature((), "bytes")}
    made, expected = ds.map_blocks(function, template=template).compute(scheduler="sync"), ds.compute(scheduler="sync")
    assert made.pop("bytes").tolist() == [b"changed"] * 5
    assert made.pop("new").tolist() == [b"changedchanged"] * 5
    assert rows(made) == rows({name: expected[name] for name in made})


def test_dicts_are_compared_as_dicts_of_arrays() -> None:
    one = every_column((1,))[["bytes"]]
    kept: list[Blocks] = []
    for _ in range(2):
        one.where(lambda blocks: kept.append(blocks) or np.array([True])).count()
    array = one["bytes"].compute(scheduler="sync")
    assert kept[0] == kept[1]
    assert kept[0] == {"bytes": array} == kept[1]
    assert kept[0] != {"bytes": array + b"more"}
    assert kept[0] != 1


NUMBERS = np.arange(100_000)


@pytest.fixture(scope="module")
def names_and_numbers(tmp_path_factory: pytest.TempPathFactory) -> dtf.Dataset:
    path: Path = tmp_path_factory.mktemp("rows") / "a.tfrecord"
    names = np.array([b"%015d" % number for number in NUMBERS], object)
    dtf.Dataset.from_arrays({"name": names, "number": NUMBERS}).to_tfrecord(path)
    return dtf.read_tfrecord(
        path, {"name": dtf.FixedLenFeature((), "bytes"), "number": dtf.FixedLenFeature((), "int64")}
    )


def peak_of(compute: Callable[[], object]) -> int:
    """Return the most bytes that Python and NumPy allocate meanwhile; buffers of the native decoder are not counted."""
    compute()
    tracemalloc.start()
    try:
        compute()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_objects_are_made_for_a_function_that_asks(names_and_numbers: dtf.Dataset) -> None:
    ds = names_and_numbers
    template = {"number": ds.schema["number"]}
    unasked = ds.map_blocks(lambda blocks: {"number": blocks["number"] + 1}, template)["number"]
    asked = ds.map_blocks(lambda blocks: {"number": blocks["number"] + len(blocks["name"])}, template)["number"]
    assert (unasked.compute(scheduler="sync") == NUMBERS + 1).all()
    assert (asked.compute(scheduler="sync") == NUMBERS + len(NUMBERS)).all()
    # An object takes 48 bytes and its pointer 8; the numbers of a row take 16.
    objects = 56 * len(NUMBERS)
    assert peak_of(lambda: asked.compute(scheduler="sync")) > objects
    assert peak_of(lambda: unasked.compute(scheduler="sync")) < objects / 2


def test_rows_that_a_filter_or_function_returns_unchanged_need_no_objects(names_and_numbers: dtf.Dataset) -> None:
    def add(blocks: Blocks) -> Blocks:
        blocks["next"] = blocks["number"] + 1
        return blocks

    ds = names_and_numbers
    kept = ds.where(lambda blocks: blocks["number"] < 10)
    assert kept["name"].compute(scheduler="sync").tolist() == [b"%015d" % number for number in range(10)]
    assert peak_of(lambda: kept["name"].compute(scheduler="sync")) < 28 * len(NUMBERS)
    made = ds.map_blocks(add, {**ds.schema, "next": ds.schema["number"]})
    assert (made["next"].compute(scheduler="sync") == NUMBERS + 1).all()
    assert made["name"].compute(scheduler="sync")[-1] == b"%015d" % NUMBERS[-1]
    assert peak_of(lambda: made["next"].compute(scheduler="sync")) < 28 * len(NUMBERS)
