"""Chunks that are encoded without zarr: each codec and layout gives the bytes that zarr writes."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
import zarr.codecs as codecs
from support.few import mostly_slow

import dask_tfrecord as dtf

# The last chunk, and the last chunk of the last shard, are partial.
ROWS = 70

COMPRESSORS: dict[str, Any] = {
    "none": [],
    "blosc": [codecs.BloscCodec(cname="lz4", shuffle="shuffle")],
    "blosc-bits": [codecs.BloscCodec(cname="zstd", shuffle="bitshuffle", clevel=3)],
    "blosc-typesize": [codecs.BloscCodec(typesize=2)],
    "zstd": [codecs.ZstdCodec(level=3)],
    "zstd-checksum": [codecs.ZstdCodec(level=1, checksum=True)],
    "crc32c": [codecs.Crc32cCodec()],
    "two": [codecs.ZstdCodec(level=1), codecs.Crc32cCodec()],
}


# All of them in shards, and every third in chunks.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "shards"), [*((name, 24) for name in COMPRESSORS), *mostly_slow(((name, None) for name in COMPRESSORS), 3)]
)
def test_files_equal_those_of_zarr(tmp_path: Path, name: str, shards: int | None) -> None:
    """The files of every array have the bytes that zarr writes for the same values and metadata."""
    compressors = COMPRESSORS[name]
    rng = np.random.default_rng(0)
    dtypes = ("int64", "bool", "float16")
    columns: dict[str, Any] = {dtype: rng.integers(0, 9, (ROWS, 3)).astype(dtype) for dtype in dtypes}
    columns["text"] = np.array(["", "é", "long " * 9])[rng.integers(0, 3, (ROWS, 2))].astype(np.dtypes.StringDType())
    store = tmp_path / "ours.zarr"
    dtf.Dataset.from_arrays(columns).to_zarr(store, chunks=8, shards=shards, compressors=compressors)
    for dtype, values in columns.items():
        found: Any = zarr.open_array(store / dtype, mode="r")
        np.testing.assert_array_equal(found[:], values)
        again = zarr.create_array(
            tmp_path / "zarr.zarr" / dtype,
            shape=values.shape,
            dtype=values.dtype,
            chunks=found.chunks,
            shards=found.shards,
            compressors=compressors,
            fill_value=found.fill_value,
            config={"write_empty_chunks": True},
        )
        again[:] = values
        assert chunk_bytes(store / dtype) == chunk_bytes(tmp_path / "zarr.zarr" / dtype), dtype


def chunk_bytes(array: Path) -> dict[str, bytes]:
    """Return the bytes of each chunk or shard of an array."""
    found = {str(path.relative_to(array)): path.read_bytes() for path in array.glob("c/*/*")}
    assert found
    return found


def test_gzip_is_read_back(tmp_path: Path) -> None:
    """Values are equal where the bytes hold a time."""
    values = np.arange(2 * ROWS, dtype="int32").reshape(ROWS, 2)
    dtf.Dataset.from_arrays({"x": values}).to_zarr(tmp_path / "x", chunks=7, compressors=[codecs.GzipCodec(level=4)])
    group: Any = zarr.open_group(tmp_path / "x", mode="r")
    np.testing.assert_array_equal(group["x"][:], values)
