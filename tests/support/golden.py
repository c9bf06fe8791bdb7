"""Files that TensorFlow wrote, their features, and the arrays that TensorFlow read from them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from oracle import read_payloads
from oracle.messages import SequenceExample

import dask_tfrecord as dtf
from support.bits import bits

CASES = [
    "scalars",
    "scalars_gzip",
    "scalars_zlib",
    "one_record",
    "fixed_shapes",
    "varlen",
    "ragged",
    "decode_raw",
    "unicode_names",
    "empty_file",
    "wire_encodings",
    "defaults",
    "empty_records",
    "fixed_len_sequence",
    "sparse_feature",
    "ragged_partitions",
    "sequence_example",
    "sequence_ragged_gzip",
    "serialized_tensors",
    "images",
]
Columns = Mapping[str, NDArray[Any]]
Features = dict[str, Any]
Arguments = dict[str, Features]


def shard(golden: Path, case: str) -> Path:
    [path] = golden.glob(f"{case}.tfrecord*")
    return path


def spec(golden: Path, case: str) -> Arguments:
    """Return the features of a case, converted from those that TensorFlow parsed it with."""
    stored_spec: dict[str, Any] = json.loads((golden / f"{case}.json").read_text("utf-8"))
    if case == "images":
        return {"features": {name: image(name) for name in stored_spec["features"]}}
    if stored_spec["kind"] == "Example":
        return {"features": {name: feature(given) for name, given in stored_spec["features"].items()}}
    return {
        "features": {name: feature(given) for name, given in stored_spec["context_features"].items()},
        "sequence_features": {name: feature(given) for name, given in stored_spec["sequence_features"].items()},
    }


def feature(given: dict[str, Any]) -> Any:
    given = dict(given)
    if "out_type" in given and "shape" in given:
        return dtf.TensorFeature(given["shape"], given["out_type"])
    if "out_type" in given:
        order = "<" if given.get("little_endian", True) else ">"
        return dtf.RawFeature((4, 5), np.dtype(given["out_type"]).newbyteorder(order))
    cls = getattr(dtf, given.pop("class"))
    if isinstance(given.get("default_value"), dict):
        given["default_value"] = given["default_value"]["bytes"].encode()
    if "partitions" in given:
        given["partitions"] = [partition(part) for part in given["partitions"]]
    return cls(**given)


def partition(given: dict[str, Any]) -> Any:
    given = dict(given)
    return getattr(dtf.RaggedFeature, given.pop("class"))(**given)


def image(name: str) -> dtf.ImageFeature:
    channels = {"png16": 1, "png_gray": 1, "png_rgba": 4}.get(name, 3)
    return dtf.ImageFeature((24, 32, channels), "uint16" if name == "png16" else "uint8")


def expected(golden: Path, case: str) -> dict[str, NDArray[Any]]:
    """Return TensorFlow's arrays; sparse and ragged tensors as object arrays with one array per record."""
    with np.load(golden / f"{case}.npz") as stored:
        arrays = {re.sub("^(context|sequence)/", "", name): stored[name] for name in stored}
    for name in [name.removesuffix(".bytes") for name in arrays if name.endswith(".bytes")]:
        data, splits = arrays.pop(f"{name}.bytes").tobytes(), arrays.pop(f"{name}.byte_splits").tolist()
        values = np.empty(len(splits) - 1, object)
        values[:] = [data[start:stop] for start, stop in pairwise(splits)]
        arrays[name] = values.reshape(arrays.pop(f"{name}.shape"))
    for name in [name.removesuffix(".indices") for name in arrays if name.endswith(".indices")]:
        arrays |= from_sparse(golden, case, name, *(arrays.pop(f"{name}.{part}") for part in SPARSE_ARRAYS))
    for name in [name.removesuffix(".row_splits0") for name in arrays if name.endswith(".row_splits0")]:
        values = arrays.pop(f"{name}.values")
        if f"{name}.row_splits1" in arrays:
            values = split_rows(values, arrays.pop(f"{name}.row_splits1"))
        arrays[name] = split_rows(values, arrays.pop(f"{name}.row_splits0"))
    for name in [name.removeprefix("length/") for name in arrays if name.startswith("length/")]:
        arrays[f"{name}.lengths"] = arrays.pop(f"length/{name}")
    for name in spec(golden, case).get("sequence_features", {}):
        # TensorFlow returns the lengths of dense feature lists only.
        arrays.setdefault(f"{name}.lengths", np.array([len(steps) for steps in arrays[name]], np.int64))
    if case == "wire_encodings":
        # TensorFlow refuses three of the nine encodings; protobuf parses all of them to the same message.
        stored_spec = json.loads((golden / f"{case}.json").read_text("utf-8"))["rows"]
        arrays = {name: np.array([row["protobuf"][name] for row in stored_spec], arrays[name].dtype) for name in arrays}
    return arrays


SPARSE_ARRAYS = ("indices", "values", "dense_shape")


def from_sparse(
    golden: Path, case: str, name: str, indices: NDArray[Any], values: NDArray[Any], shape: NDArray[Any]
) -> dict[str, NDArray[Any]]:
    """Convert a sparse tensor to rows of values, of steps of values, or the three columns of a `SparseFeature`."""
    rows = np.searchsorted(indices[:, 0], np.arange(shape[0] + 1))
    if case == "sparse_feature":
        sizes = np.tile(shape[1:], (shape[0], 1))
        return {
            f"{name}.indices": split_rows(indices[:, 1:], rows),
            f"{name}.values": split_rows(values, rows),
            f"{name}.shape": sizes,
        }
    if len(shape) == 2:
        return {name: split_rows(values, rows)}
    # The tensor omits steps without values at the end of a record.
    found = np.empty(shape[0], object)
    for row, payload in enumerate(read_payloads(shard(golden, case))):
        steps = len(SequenceExample.FromString(payload).feature_lists.feature_list[name].feature)
        here = slice(rows[row], rows[row + 1])
        found[row] = split_rows(values[here], np.searchsorted(indices[here, 1], np.arange(steps + 1)))
    return {name: found}


def split_rows(values: NDArray[Any], splits: NDArray[Any]) -> NDArray[Any]:
    rows = np.empty(len(splits) - 1, object)
    for row, (start, stop) in enumerate(pairwise(splits)):
        rows[row] = values[start:stop]
    return rows


def check(found: Columns, wanted: Columns) -> None:
    assert set(found) == set(wanted)
    for name, array in wanted.items():
        assert found[name].dtype == array.dtype, name
        assert found[name].shape == array.shape, name
        if name == "jpeg":
            # TensorFlow used the accurate DCT; decoders differ by rounding.
            assert np.abs(found[name].astype(int) - array).max() <= 2
        else:
            assert bits(found[name]) == bits(array), name
