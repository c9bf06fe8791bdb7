"""Round trips: records to Zarr and back to records, arrays to records and back, compared bit for bit.

`test_round_trips_tensorflow` compares the results with TensorFlow's parser.
"""

from __future__ import annotations

import pickle
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from oracle import expected_columns, messages, read_payloads, schemas, write_oracle
from oracle.messages import Example, SequenceExample
from oracle.strategies import ITEMS, STEPS
from support.any_columns import any_features, dataset_of, fitting_rows, listed, written_as
from support.any_records import collections
from support.bits import bits
from support.corpus import EXAMPLES, ROUND_TRIPS, SEQUENCES
from support.few import mostly_slow, rising
from support.golden import shard, spec
from support.store_round_trip import assert_same
from support.wire import example, sequence_example

import dask_tfrecord as dtf
from dask_tfrecord.errors import SchemaError
from dask_tfrecord.features import Feature, ImageFeature

MANY = "{shard:05d}-of-{shards:05d}.tfrecord"
# The default tests read at most this many rows of a file, and two shards of one collection.
SOME = 40
LARGE = [name for name in ROUND_TRIPS if EXAMPLES.get(name, SOME + 1) > SOME]
ALIKE = [name for name in ROUND_TRIPS if "csv_example_gen" in name][2:]

Columns = Mapping[str, NDArray[Any]]


def payloads(folder: Path) -> list[bytes]:
    """Return the payloads of all shards of a folder, in order."""
    return [payload for path in sorted(folder.glob("*.tfrecord")) for payload in read_payloads(path)]


def through_zarr(dataset: dtf.Dataset, folder: Path, grid: Mapping[str, int], **options: Any) -> str:
    """Write a data set to Zarr and the store to shards; return the glob of the shards."""
    dataset.to_zarr(folder / "store.zarr", **grid)
    stored = dtf.from_zarr(folder / "store.zarr")
    assert_same(stored.compute(), dataset.compute())
    stored.to_tfrecord(f"{folder}/{MANY}", **options)
    return f"{folder}/*.tfrecord"


# ----------------------------------------------------------------------------------------------- files of the corpus


@pytest.mark.parametrize(
    ("name", "whole"),
    [
        *mostly_slow(((name, name not in LARGE) for name in ROUND_TRIPS if name not in ALIKE), 9),
        *(pytest.param(name, True, marks=pytest.mark.slow) for name in LARGE),
    ],
)
def test_corpus_files(corpus: Path, name: str, whole: bool, tmp_path: Path) -> None:
    schema = dtf.infer_schema(corpus / name, sample=None)
    ds = dtf.read_tfrecord(corpus / name, schema)
    originals = read_payloads(corpus / name)
    if not whole:
        ds, originals = ds.rows[:SOME], originals[:SOME]
    rows = len(originals) // 3 + 1
    again = dtf.read_tfrecord(through_zarr(ds, tmp_path, {"chunks": rows}, records_per_shard=rows + 1), schema)
    assert_same(again.compute(), ds.compute())
    ds.to_tfrecord(tmp_path / "direct" / "one.tfrecord")
    assert payloads(tmp_path) == payloads(tmp_path / "direct")
    message = SequenceExample if name in SEQUENCES else Example
    for before, after in zip(originals, payloads(tmp_path), strict=True):
        assert lists_of(message.FromString(after)) == lists_of(message.FromString(before))


def lists_of(record: Any) -> dict[str, bytes]:
    """Return the serialized form of every non-empty list and feature list of a record."""
    features = record.features if isinstance(record, Example) else record.context
    found = {} if isinstance(record, Example) else record.feature_lists.feature_list
    steps = {f"list {name}": steps.SerializeToString(deterministic=True) for name, steps in found.items()}
    kinds = {name: feature.WhichOneof("kind") for name, feature in features.feature.items()}
    listed = {
        name: features.feature[name].SerializeToString()
        for name, kind in kinds.items()
        if kind is not None and len(getattr(features.feature[name], kind).value)
    }
    return {name: data for name, data in steps.items() if data} | listed


# -------------------------------------------------------------------------------------------------- drawn by hypothesis


@st.composite
def any_schemas(draw: st.DrawFn) -> dtf.Schema:
    """Schemas of Examples, SequenceExamples or lists of Examples with features of any class."""
    more: dict[str, Any] = draw(st.sampled_from([{}, {"steps": STEPS}, {"items": ITEMS}]))
    schema: dtf.Schema = draw(schemas(min_size=1, max_size=4, **more))
    return schema


@pytest.mark.filterwarnings("ignore:.* ha(s|ve) no feature lists:UserWarning")
@pytest.mark.parametrize("count", rising(4, 15, 150))
def test_records_of_any_schema(count: int) -> None:
    @settings(max_examples=count)
    @given(collections(any_schemas()), st.integers(1, 5), st.integers(1, 7))
    def run(collection: tuple[dtf.Schema, list[bytes]], chunk: int, each: int) -> None:
        schema, records = collection
        assert dtf.Schema.from_json(schema.to_json()) == schema == pickle.loads(pickle.dumps(schema))
        wanted = expected_columns(records, schema)
        with tempfile.TemporaryDirectory() as name, dask.config.set(scheduler="sync"):
            folder = Path(name)
            write_oracle(folder / "old", records)
            ds = dtf.read_tfrecord(folder / "old", schema, chunks=3)
            check_items(ds, wanted)
            again = dtf.read_tfrecord(through_zarr(ds, folder, {"chunks": chunk}, records_per_shard=each), schema)
            assert_same(again.compute(), wanted)
            assert_same(expected_columns(payloads(folder), schema), wanted)

    run()


def check_items(ds: dtf.Dataset, wanted: Columns) -> None:
    """Compare the items of lists of Examples, as rows, with the lists."""
    if ds.schema.message == "ExampleListWithContext":
        items = ds.explode("examples").compute()
        for name in ds.schema.groups["examples"]:
            # repr: NaN differs from itself.
            assert repr(listed(items[name])) == repr([item for row in wanted[name] for item in listed(row)]), name


@pytest.mark.parametrize("count", rising(3, 12, 100))
def test_arrays_of_any_kind(count: int) -> None:
    @settings(max_examples=count)
    @given(
        st.lists(any_features(), min_size=1, max_size=4),
        st.lists(st.sampled_from([0, 1, 2, 5, 11]), min_size=1, max_size=4),
        st.booleans(),
        st.integers(0, 1 << 30),
    )
    def run(features: list[Feature], sizes: list[int], steps: bool, seed: int) -> None:
        with tempfile.TemporaryDirectory() as name, dask.config.set(scheduler="sync"):
            check_arrays(features, sizes, steps, np.random.default_rng(seed), Path(name))

    run()


def check_arrays(
    features: Sequence[Feature], sizes: Sequence[int], steps: bool, rng: np.random.Generator, folder: Path
) -> None:
    """Assert that arrays written directly and through Zarr result in the same bytes, and that the oracle reads them."""
    named = {f"column/{number}": feature for number, feature in enumerate(features)}
    blocks = {name: fitting_rows(feature, sum(sizes), rng) for name, feature in named.items()}
    schema = written_as(named, steps=steps)
    ds = dataset_of(blocks, named, sizes)
    wanted = ds.compute()
    again = dtf.read_tfrecord(through_zarr(ds, folder, {"chunks": 4}, records_per_shard=5, features=schema), schema)
    found = again.compute()
    assert_same({name: found[name] for name in wanted}, wanted)
    dtf.to_tfrecord(wanted, folder / "arrays" / "one.tfrecord", features=schema)
    dtf.to_tfrecord(blocks, folder / "blocks" / "one.tfrecord", features=schema)
    assert payloads(folder / "arrays") == payloads(folder / "blocks") == payloads(folder)
    # The oracle does not decode images.
    others = schema.select(name for name in schema if not isinstance(schema[name], ImageFeature))
    decoded = expected_columns(payloads(folder), others)
    assert_same({name: decoded[name] for name in others}, {name: wanted[name] for name in others})


# ------------------------------------------------------------------------------------------------- NaN and signed zeros

FLOATS = {
    "float16": [0x8000, 0x7C00, 0xFC00, 0x7E00, 0x7C01, 0xFD55, 1, 0x3C01],
    "float32": [1 << 31, 0x7F800000, 0xFF800000, 0x7FC00000, 0x7F800001, 0xFFA12345, 1, 0x3F800001],
    "float64": [
        1 << 63,
        0x7FF << 52,
        0xFFF << 52,
        0x7FF8 << 48,
        (0x7FF << 52) + 1,
        (0xFFF4 << 48) + 77,
        1,
        0x3FF << 52,
    ],
}


@pytest.mark.parametrize("dtype", FLOATS)
def test_nan_payloads_and_signs_of_zeros(dtype: str, tmp_path: Path) -> None:
    values = np.array(FLOATS[dtype], f"u{np.dtype(dtype).itemsize}").view(dtype)
    rows = dtf.RaggedBlock(values, np.array([0, 0, 3, 8]))
    arrays: dict[str, Any] = {"raw": values[:6].reshape(3, 2), "tensor": values[:3], "rows": rows}
    features: dict[str, Any] = {
        "raw": dtf.RawFeature((2,), np.dtype(dtype).newbyteorder(">")),
        "tensor": dtf.TensorFeature((), dtype),
        "rows": dtf.RawFeature((-1,), dtype),
    }
    if dtype != "float64":
        # An Example lists float32, which holds all of float16.
        arrays |= {"listed": values[:3], "listed rows": rows}
        features |= {"listed": dtf.FixedLenFeature((), dtype), "listed rows": dtf.VarLenFeature(dtype)}
    dtf.to_tfrecord(arrays, tmp_path / "x", features=features)
    ds = dtf.read_tfrecord(tmp_path / "x", features)
    again = dtf.read_tfrecord(through_zarr(ds, tmp_path, {"chunks": 2}, records_per_shard=1), features).compute()
    for name, array in arrays.items():
        assert bits(again[name]) == bits(np.asarray(array)), name


def test_bfloat16_is_written_to_records_but_not_to_zarr(tmp_path: Path) -> None:
    brain = pytest.importorskip("ml_dtypes").bfloat16
    values = np.array([0x8000, 0x7F80, 0x7FC0, 0x7F81, 0xFFA5, 0x3F81], np.uint16).view(brain)
    arrays: dict[str, Any] = {"listed": values, "raw": values, "tensor": values.reshape(6, 1)}
    features = {
        "listed": dtf.FixedLenFeature((), "bfloat16"),
        "raw": dtf.RawFeature((), "bfloat16"),
        "tensor": dtf.TensorFeature((1,), "bfloat16"),
    }
    dtf.to_tfrecord(arrays, tmp_path / "x", features=features)
    ds = dtf.read_tfrecord(tmp_path / "x", features)
    ds.to_tfrecord(tmp_path / "y")
    assert read_payloads(tmp_path / "y") == read_payloads(tmp_path / "x")
    assert_same(ds.compute(), arrays)
    with pytest.raises(SchemaError, match="Zarr has no name for dtype bfloat16"):
        ds.to_zarr(tmp_path / "store.zarr")


# ----------------------------------------------------------------------------------- features that a store keeps


@pytest.fixture
def steps(tmp_path: Path) -> dtf.Dataset:
    """SequenceExamples with a sparse and a partitioned feature in the context."""
    lists = {"frames": dtf.VarLenFeature("float32"), "tokens": dtf.FixedLenSequenceFeature((), "int64")}
    context = {
        "label": dtf.FixedLenFeature((), "int64"),
        "sparse": dtf.SparseFeature("at", "of", "float32", 9),
        "cut": dtf.RaggedFeature("int64", "values", [dtf.RaggedFeature.RowLengths("lengths")]),
    }
    of_context = {"label": [1], "at": [2, 5], "of": [0.5, -0.0], "values": [1, 2, 3], "lengths": [2, 0, 1]}
    none = messages.Feature(float_list=messages.FloatList())
    record = sequence_example(of_context, frames=[[0.0, 1.0], none, [0.0]], tokens=[[2], [0], [1]])
    write_oracle(tmp_path / "steps", [record] * 3)
    return dtf.read_tfrecord(tmp_path / "steps", context, sequence_features=lists)


def test_stores_keep_the_features_of_the_records(steps: dtf.Dataset, tmp_path: Path) -> None:
    [wanted, *_] = map(SequenceExample.FromString, read_payloads(tmp_path / "steps"))
    steps.to_zarr(tmp_path / "0.zarr")
    stored = dtf.from_zarr(tmp_path / "0.zarr")
    stored.rows[1:].to_zarr(tmp_path / "1.zarr")
    stored.assign(more=np.arange(3)).to_zarr(tmp_path / "2.zarr")
    for number in range(3):
        dtf.from_zarr(tmp_path / f"{number}.zarr").to_tfrecord(tmp_path / str(number))
        for row, payload in enumerate(read_payloads(tmp_path / str(number))):
            found = SequenceExample.FromString(payload)
            if number == 2:
                assert list(found.context.feature.pop("more").int64_list.value) == [row]
            assert found == wanted
    steps.persist().to_tfrecord(tmp_path / "held")
    assert list(map(SequenceExample.FromString, read_payloads(tmp_path / "held"))) == [wanted] * 3


def test_selected_or_changed_columns_are_written_as_plain_features(steps: dtf.Dataset, tmp_path: Path) -> None:
    steps.to_zarr(tmp_path / "store.zarr")
    stored = dtf.from_zarr(tmp_path / "store.zarr")
    stored[["sparse.values", "tokens", "tokens.lengths"]].to_tfrecord(tmp_path / "some")
    [found, *_] = map(SequenceExample.FromString, read_payloads(tmp_path / "some"))
    assert list(found.context.feature) == ["sparse.values"]
    assert list(found.feature_lists.feature_list) == ["tokens"]
    # Columns that a function returns lose their original features even if the names are the same.
    mapped = stored.map_blocks(lambda blocks: {"label": blocks["label"], "sparse.values": blocks["sparse.values"]})
    mapped.to_zarr(tmp_path / "mapped.zarr")
    for number, dataset in enumerate((mapped, mapped.persist(), dtf.from_zarr(tmp_path / "mapped.zarr"))):
        dataset.to_tfrecord(tmp_path / str(number))
        [plain, *_] = map(Example.FromString, read_payloads(tmp_path / str(number)))
        assert sorted(plain.features.feature) == ["label", "sparse.values"]


def test_rewritten_records_differ_only_where_documented(golden: Path, tmp_path: Path) -> None:
    """Unread keys, defaults, padding, unsorted indices and image encodings change, as docs/how-to/writing.md lists."""
    first, second = example(unread=[1], at=[5, 2], of=[0.5, 1.5], padded=[7, 8]), example(default=[4])
    write_oracle(tmp_path / "old", [first, second])
    features = {
        "default": dtf.FixedLenFeature((), "int64", 3),
        "sparse": dtf.SparseFeature("at", "of", "float32", 9),
        "padded": dtf.FixedLenSequenceFeature((), "int64", allow_missing=True, default_value=-1),
    }
    ds = dtf.read_tfrecord(tmp_path / "old", features)
    again = dtf.read_tfrecord(through_zarr(ds, tmp_path, {}), features)
    assert_same(again.compute(), ds.compute())
    found = [Example.FromString(payload).features.feature for payload in payloads(tmp_path)]
    assert sorted(found[0]) == sorted(found[1]) == ["at", "default", "of", "padded"]
    assert [list(one["default"].int64_list.value) for one in found] == [[3], [4]]
    assert [list(one["padded"].int64_list.value) for one in found] == [[7, 8], [-1, -1]]
    assert (list(found[0]["at"].int64_list.value), list(found[0]["of"].float_list.value)) == ([2, 5], [1.5, 0.5])
    assert (found[1]["at"].WhichOneof("kind"), list(found[1]["at"].int64_list.value)) == ("int64_list", [])
    dtf.read_tfrecord(shard(golden, "images"), **spec(golden, "images")).to_tfrecord(tmp_path / "images")
    for payload in read_payloads(tmp_path / "images"):
        for image in Example.FromString(payload).features.feature.values():
            assert image.bytes_list.value[0].startswith(b"\x89PNG")
