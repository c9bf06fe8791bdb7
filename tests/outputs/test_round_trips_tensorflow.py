"""Records that this library writes, or that do not match their schema, read by it and by TensorFlow: bit for bit equal.

`tf.data.TFRecordDataset` reads the shards, plain and compressed, and `support/tensorflow_parser.py` parses them in the
interpreter at ``DASK_TFRECORD_TENSORFLOW``.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

import dask
import numpy as np
import pytest
from hypothesis import Phase, assume, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from oracle import examples, expected_columns, schemas, sequence_examples, write_oracle
from oracle.encodings import WireEncoder
from oracle.messages import Example, SequenceExample
from oracle.strategies import CLASSES, STEPS
from oracle.values import FIELDS
from support.any_records import collections
from support.corpus import ROUND_TRIPS
from support.golden import CASES, shard, spec
from support.parsing_compare import Description, Request, bits, columns, parse_with_tensorflow, rows, walk

import dask_tfrecord as dtf
from dask_tfrecord.errors import FeatureError
from dask_tfrecord.features import (
    Encoded,
    Feature,
    FixedLenFeature,
    FixedLenSequenceFeature,
    ImageFeature,
    RaggedFeature,
    RawFeature,
    SparseFeature,
    TensorFeature,
    TextFeature,
    VarLenFeature,
)
from dask_tfrecord.features.row_partitions import KeyedPartition

pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.filterwarnings("ignore:.* ha(s|ve) no feature lists:UserWarning"),
]

MANY = "{shard:05d}-of-{shards:05d}.tfrecord"
LISTED = (FixedLenFeature, VarLenFeature, FixedLenSequenceFeature, SparseFeature, RaggedFeature)
# Unsigned dtypes that `tf.io.decode_raw` lacks, and the signed ones of the same size.
SIGNED = {"uint32": "int32", "uint64": "int64"}
# Classes that TensorFlow parses in the context of a SequenceExample; the last three as bytes.
LISTED_CONTEXT = (FixedLenFeature, VarLenFeature, RaggedFeature)
CONTEXT = (*LISTED_CONTEXT, RawFeature, TensorFeature, TextFeature)


@dataclass(frozen=True, slots=True)
class Trip:
    """Written shards and the columns that TensorFlow must find in them."""

    name: str
    schema: dtf.Schema
    arrays: Mapping[str, NDArray[Any]]
    # TensorFlow's name of the compression and the shards: each time they were written, and where they were read from.
    files: Sequence[tuple[str, Sequence[str]]]
    original: tuple[str, Sequence[str]] | None = None


def check_trips(tensorflow: str, trips: Sequence[Trip]) -> int:
    """Assert that TensorFlow reads the columns of all trips; return the number of originals that it parses."""
    requests = [request_for(trip.schema, files) for trip in trips for files in (*trip.files, trip.original) if files]
    answers = iter(parse_with_tensorflow(tensorflow, requests, alone=False))
    parsed = 0
    for trip in trips:
        for files in (*trip.files, trip.original):
            if files is None:
                continue
            verdict, found = next(answers)
            # TensorFlow raises an error for some originals that this library reads.
            assert verdict == "read" or files is trip.original, (trip.name, files, trip.schema, found)
            if verdict == "read":
                compare(trip, found)
                parsed += files is trip.original
    return parsed


def request_for(schema: dtf.Schema, payloads: Any) -> Request:
    context, lists = descriptions(schema.context_features), schema.sequence_features
    if lists is None:
        return "Example", context, None, payloads
    return "SequenceExample", context or None, descriptions(lists, steps=True), payloads


def descriptions(features: Mapping[str, Feature], *, steps: bool = False) -> dict[str, Description]:
    return {name: describe(feature_of_records(feature) if steps else feature) for name, feature in features.items()}


def feature_of_records(feature: Feature) -> Feature:
    """Return the feature of records that hold any number of what a step holds; other features as they are."""
    if isinstance(feature, RawFeature | TensorFeature | TextFeature):
        return replace(feature, count=-1)
    return replace(feature, shape=(-1, *feature.value_shape)) if isinstance(feature, ImageFeature) else feature


def describe(feature: Any) -> Description:
    """Return class name and arguments of the equivalent TensorFlow feature, which reads the stored dtype."""
    arguments = dict(feature.arguments())
    for name in ("length", "partitions"):
        arguments.pop(name, None)
    match feature:
        case FixedLenFeature() | VarLenFeature() | FixedLenSequenceFeature() | RaggedFeature() | SparseFeature():
            arguments["dtype"] = feature.stored.replace("bytes", "string")
            if isinstance(feature, VarLenFeature):
                arguments.pop("shape", None)
            if isinstance(feature, FixedLenFeature) and feature.default_value is not None:
                # TensorFlow requires one default value per item.
                default = np.array(feature.default_value, object)
                arguments["default_value"] = np.broadcast_to(default, feature.shape).tolist()
        case TensorFeature():
            dtype = feature.dtype.replace("bytes", "string")
            arguments = {"shape": feature.shape, "dtype": dtype, "count": feature.count}
        case RawFeature():
            dtype, compression = SIGNED.get(feature.dtype, feature.dtype), feature.compression_type
            arguments = {"shape": feature.shape, "dtype": dtype, "compression": compression, "count": feature.count}
        case ImageFeature():
            shape = None if feature.shape is None else feature.value_shape
            arguments = {"shape": shape, "dtype": feature.dtype, "count": feature.count}
        case TextFeature():
            arguments = {"count": feature.count}
        case _:
            arguments = {}
    if isinstance(feature, SparseFeature) and len(feature.size) == 1:
        arguments |= {"index_key": feature.index_key[0], "size": feature.size[0]}
    elif isinstance(feature, SparseFeature):
        arguments |= {"index_key": list(feature.index_key), "size": list(feature.size)}
    if isinstance(feature, RaggedFeature):
        arguments["validate"] = True
        arguments["partitions"] = [
            (type(one).__name__, one.key if isinstance(one, KeyedPartition) else one.length)  # type: ignore[attr-defined]
            for one in feature.partitions
        ]
    if isinstance(feature, RawFeature) and -1 in feature.shape:
        return "RawRows", arguments
    return type(feature).__name__, arguments


def compare(trip: Trip, answer: Mapping[str, Any]) -> None:
    """Assert that TensorFlow's columns equal the arrays, in the dtypes that an Example stores."""
    steps = {name: trip.arrays[f"{name}.lengths"].tolist() for name in trip.schema.sequence_features or {}}
    found = columns(answer, descriptions(trip.schema), steps)
    assert set(found) == set(trip.arrays)
    for name, (levels, values) in found.items():
        feature = trip.schema.get(name, trip.schema.get(name.rpartition(".")[0]))
        wanted = stored(trip.arrays[name], feature)
        if isinstance(feature, FixedLenSequenceFeature) and levels == 0 and not name.endswith(".lengths"):
            # TensorFlow pads to the longest record of its batch, this library to the requested length.
            default = b"" if feature.is_bytes else 0
            padding = default if feature.default_value is None else feature.default_value
            wanted, past = wanted[:, : values.shape[1]], wanted[:, values.shape[1] :]
            assert bits(past) == bits(np.full(past.shape, padding, past.dtype)), (trip.name, name, feature)
        wanted = rows(wanted, levels)
        if isinstance(feature, SparseFeature) and name.endswith(".values") and not feature.already_sorted:
            indices = trip.arrays[name.removesuffix("values") + "indices"]
            wanted, values = ([*map(settled, each, indices)] for each in (wanted, values))
        if isinstance(values, np.ndarray) and values.dtype.kind != "O" and np.asarray(wanted).dtype.kind == "O":
            # The rows have one shape by chance.
            wanted = np.stack([*wanted])
        assert walk(wanted, bits) == walk(values, bits), (trip.name, name, feature)


def settled(row: NDArray[Any], indices: NDArray[Any]) -> NDArray[Any]:
    """Sort values with equal indices: TensorFlow's sort is stable only for batches of up to 16 values."""
    order = sorted(range(len(row)), key=lambda at: (indices[at].tolist(), bits(row[at : at + 1])))
    return row[order]


def stored(array: NDArray[Any], feature: Feature | None) -> NDArray[Any]:
    """Convert an array to TensorFlow's form: text as bytes, numbers in the stored dtype, variable lengths flat."""
    if array.dtype.kind == "T":
        return objects([text.encode() for text in array.ravel().tolist()]).reshape(array.shape)
    if array.dtype.kind == "O" and array.size and isinstance(array.flat[0], np.ndarray):
        return objects([stored(row, feature) for row in array])
    if array.dtype.kind != "O" and isinstance(feature, LISTED):
        with np.errstate(all="ignore"):
            array = array.astype(np.int64 if array.dtype.kind in "biu" else np.float32)
    if isinstance(feature, RawFeature):
        array = array.view(SIGNED.get(array.dtype.name, array.dtype))
    return array.reshape(-1) if isinstance(feature, VarLenFeature) else array


def objects(items: Sequence[Any]) -> NDArray[Any]:
    made = np.empty(len(items), object)
    made[:] = items
    return made


# -------------------------------------------------------------------------------------------------- written shards


KINDS = {None: "", "gzip": "GZIP", "zlib": "ZLIB"}


def written(
    folder: Path, each: int, compressions: Iterable[str | None], write: Callable[..., object]
) -> list[tuple[str, list[str]]]:
    """Write several shards in each compression by ``write(template, …)``; return TensorFlow's name and the shards."""
    made = []
    for compression in compressions:
        part = folder / str(compression)
        write(f"{part}/{MANY}", compression=compression, records_per_shard=each)
        made.append((KINDS[compression], sorted(str(path) for path in part.glob("*.tfrecord"))))
    return made


def trip_of(path: Path, kind: str, schema: dtf.Schema, folder: Path, compressions: Sequence[str | None]) -> Trip:
    """Write the columns of a file to shards, directly and through Zarr."""
    ds = dtf.read_tfrecord(path, schema)
    each = (ds.nrows or 0) // 3 + 1
    ds.to_zarr(folder / "store.zarr", chunks=each)
    files = written(folder / "direct", each, compressions, ds.to_tfrecord)
    files += written(folder / "stored", each + 1, compressions[::-1], dtf.from_zarr(folder / "store.zarr").to_tfrecord)
    return Trip(str(path), schema, ds.compute(), files, (kind, [str(path)]))


def test_golden_files(tensorflow: str, golden: Path, tmp_path: Path) -> None:
    trips = {}
    for case in CASES:
        path = shard(golden, case)
        kind = {".gz": "GZIP", ".zlib": "ZLIB"}.get(path.suffix, "")
        features = spec(golden, case)
        schema = dtf.Schema(features["features"], sequence_features=features.get("sequence_features"))
        trips[case] = trip_of(path, kind, schema, tmp_path / case, tuple(KINDS))
    # TensorFlow can't parse an empty batch.
    del trips["empty_file"]
    # One of the images is a JPEG, which decoders round differently; it is written as a PNG.
    check_trips(tensorflow, [replace(trips.pop("images"), original=None)])
    # TensorFlow rejects some legal encodings of a message.
    assert check_trips(tensorflow, list(trips.values())) == len(trips) - 1


def test_corpus_files(tensorflow: str, corpus: Path, tmp_path: Path) -> None:
    trips = []
    for number, name in enumerate(ROUND_TRIPS):
        path = corpus / name
        kind = {b"\x1f\x8b": "GZIP", b"\x78\x9c": "ZLIB"}.get(path.read_bytes()[:2], "")
        compressions = tuple(KINDS) if number % 3 == 0 else (list(KINDS)[number % 3],)
        trips.append(trip_of(path, kind, dtf.infer_schema(path, sample=None), tmp_path / str(number), compressions))
    assert check_trips(tensorflow, trips) == len(ROUND_TRIPS)


_Made = TypeVar("_Made")


def made_by_hypothesis(strategy: st.SearchStrategy[Any], make: Callable[[Any], _Made], least: int = 100) -> list[_Made]:
    """Apply a function to each value that a strategy draws."""
    made: list[_Made] = []

    @settings(database=None, phases=[Phase.generate], max_examples=max(least, settings.default.max_examples))
    @given(strategy)
    def run(drawn: Any) -> None:
        made.append(make(drawn))

    with dask.config.set(scheduler="sync"):
        run()
    return made


def is_compared(feature: Feature, *, is_step: bool = False) -> bool:
    """Return False for what takes a loop per record in TensorFlow: lists of arrays of any size, decoded partitions."""
    if isinstance(feature, Encoded) and (is_step or feature.count is not None):
        return -1 not in feature.value_shape and not (is_step and -1 in (feature.shape or ()))
    return getattr(feature, "values", None) is None


@st.composite
def schemas_for_tensorflow(draw: st.DrawFn) -> dtf.Schema:
    """Schemas that TensorFlow accepts: without empty keys, unsupported context classes, and default values of steps."""
    steps = STEPS if draw(st.booleans()) else None
    schema: dtf.Schema = draw(schemas(min_size=1, max_size=4, of=CLASSES if steps is None else CONTEXT, steps=steps))
    assume('""' not in schema.to_json())
    lists = schema.sequence_features or {}
    assume(all(is_compared(feature, is_step=name in lists) for name, feature in schema.items()))
    # TensorFlow can't read float16 from the original, which this library rounds.
    assume(not any(isinstance(feature, LISTED) and feature.dtype == "float16" for feature in schema.values()))
    if steps is None:
        return schema
    lists = {
        name: replace(feature, default_value=None) if isinstance(feature, FixedLenSequenceFeature) else feature
        for name, feature in (schema.sequence_features or {}).items()
    }
    return dtf.Schema(schema.context_features, sequence_features=lists)


def test_records_of_any_schema(tensorflow: str, tmp_path: Path) -> None:
    numbers = count()

    def make(collection: tuple[dtf.Schema, list[bytes]]) -> Trip:
        schema, payloads = collection
        number = next(numbers)
        folder = tmp_path / str(number)
        folder.mkdir()
        write_oracle(folder / "old", payloads)
        one, other = (list(KINDS)[of % 3] for of in (number, number + 1))
        trip = trip_of(folder / "old", "", schema, folder, [one])
        # Also write the arrays of the oracle.
        arrays = expected_columns(payloads, schema)
        files = written(folder / "arrays", 2, [other], partial(dtf.to_tfrecord, arrays, features=schema))
        return replace(trip, arrays=arrays, files=[*trip.files, *files])

    trips = made_by_hypothesis(collections(schemas_for_tensorflow(), min_size=1), make)
    assert len(trips) > 60
    # TensorFlow raises an error for some records for which this library uses the default.
    assert check_trips(tensorflow, trips) > len(trips) // 2


# ------------------------------------------------------------------------------------------------ records that misfit


@st.composite
def collections_with_misfits(draw: st.DrawFn) -> tuple[dtf.Schema, list[bytes]]:
    """Schemas that TensorFlow parses itself, and records, some with one changed detail."""
    steps = (FixedLenSequenceFeature, VarLenFeature, RaggedFeature) if draw(st.booleans()) else None
    schema = draw(schemas(min_size=1, max_size=4, of=LISTED if steps is None else LISTED_CONTEXT, steps=steps))
    assume('""' not in schema.to_json())
    context = {name: of_tensorflow(feature) for name, feature in schema.context_features.items()}
    lists = {name: of_tensorflow(feature, is_step=True) for name, feature in (schema.sequence_features or {}).items()}
    schema = dtf.Schema(context, sequence_features=None if steps is None else lists)
    one = (examples if steps is None else sequence_examples)(schema, others=True, misfits=True)
    rng = random.Random(draw(st.integers(0, 1 << 32)))
    return schema, [
        WireEncoder({"unpacked"}, rng).record(record) for record in draw(st.lists(one, min_size=1, max_size=4))
    ]


def of_tensorflow(feature: Any, *, is_step: bool = False) -> Feature:
    """Return a feature in the dtype that is stored, without what this library adds to it."""
    dtype = feature.stored
    if isinstance(feature, VarLenFeature):
        return VarLenFeature(dtype)
    default = getattr(feature, "default_value", None)
    if dtype == "float32" and default is not None and np.any(np.signbit(default) & (np.asarray(default) == 0)):
        # Eager TensorFlow keeps one scalar for both zeros.
        default, feature = None, replace(feature, default_value=None)
    if isinstance(feature, FixedLenSequenceFeature):
        default = None if is_step else feature.default_value
        return replace(feature, dtype=dtype, length=None, default_value=default)
    if isinstance(feature, RaggedFeature):
        return replace(feature, dtype=dtype, values=None)
    if isinstance(feature, FixedLenFeature) and 0 in feature.shape:
        # TensorFlow dies of unpacked floats where it expects no values.
        shape = tuple(size or 1 for size in feature.shape)
        return replace(feature, dtype=dtype, shape=shape, default_value=None)
    return replace(feature, dtype=dtype)


def keys_of(name: str, feature: Any) -> list[tuple[str, str]]:
    """Pair the keys that a feature reads with the kind of list that it expects there."""
    match feature:
        case SparseFeature():
            integers = list(feature.index_key)
        case RaggedFeature():
            integers = [one.key for one in feature.partitions if isinstance(one, KeyedPartition)]
        case _:
            integers = []
    key = getattr(feature, "value_key", None) or name
    return [(key, FIELDS[feature.stored]), *((one, FIELDS["int64"]) for one in integers)]


def has_empty_list(schema: dtf.Schema, payloads: Sequence[bytes]) -> bool:
    """Return whether a record has an empty list of another kind, or one where there is a default value.

    TensorFlow refuses them, and this library reads no values, or the default.
    """
    is_example = schema.sequence_features is None
    for payload in payloads:
        record = Example.FromString(payload) if is_example else SequenceExample.FromString(payload)
        held = (record.features if is_example else record.context).feature
        steps = {} if is_example else {name: each.feature for name, each in record.feature_lists.feature_list.items()}
        for name, feature in schema.items():
            in_steps = name in (schema.sequence_features or {})
            has_default = getattr(feature, "default_value", None) is not None
            for key, stored_kind in keys_of(name, feature):
                for each in steps.get(key, ()) if in_steps else (held[key],) if key in held else ():
                    kind = each.WhichOneof("kind")
                    if kind is None:
                        if has_default and not is_example and not in_steps:
                            return True
                    elif not getattr(each, kind).value and (kind != stored_kind or has_default):
                        return True
    return False


def test_records_that_may_not_match(tensorflow: str, tmp_path: Path) -> None:
    """`test_oracle` and `test_decode` prove which records this library refuses; here, that TensorFlow does too."""

    def make(drawn: tuple[dtf.Schema, list[bytes]]) -> tuple[dtf.Schema, list[bytes], Any]:
        schema, payloads = drawn
        write_oracle(tmp_path / "x", payloads)
        try:
            return schema, payloads, dtf.read_tfrecord(tmp_path / "x", schema, chunks=2).compute()
        except FeatureError as error:
            return schema, payloads, error

    cases = made_by_hypothesis(collections_with_misfits(), make, 800)
    requests = [request_for(schema, payloads) for schema, payloads, _ in cases]
    # Each record alone: in a batch, TensorFlow checks the total of counts, so that one record can make up for another.
    answers = parse_with_tensorflow(tensorflow, requests, alone=True)
    seen: Counter[tuple[str, str]] = Counter()
    differences = []
    for (schema, payloads, ours), (verdict, answer) in zip(cases, answers, strict=True):
        refused = isinstance(ours, FeatureError)
        seen[verdict, "refused" if refused else "read"] += 1
        if verdict == "read" and not refused:
            compare(Trip(str(payloads), schema, ours, []), answer)
        elif verdict == "refused" and not refused and not has_empty_list(schema, payloads):
            differences.append((schema.to_json(), payloads, answer))
        elif verdict == "read" and not isinstance(schema[ours.place.feature], SparseFeature | RaggedFeature):
            # TensorFlow does not always check whether indices and row lengths are in range.
            differences.append((schema.to_json(), payloads, ours))
    assert not differences, f"{len(differences)} differ, the first: {differences[:2]}"
    assert min(seen["read", "read"], seen["refused", "refused"]) > 100, seen
    assert seen["refused", "read"] >= 8 and seen["read", "refused"], seen
