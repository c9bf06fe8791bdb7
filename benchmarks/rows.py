"""Compare three ways to read scattered rows: `ds.rows[…]`, reading all rows, and seeking each record.

    python benchmarks/rows.py DATA [NAME …] [--rows 20000] [--repeats 3] [--json FILE]

DATA is a directory that `make_data.py` wrote. Selections: the first rows of a random permutation, every second and
every hundredth row, and a random mask of a tenth of the rows. The seeking loop knows the byte offset of every record,
which the sparse index of this library does not store. It seeks the record, checks both CRCs, parses it with protobuf,
and converts the values to NumPy arrays. All three return the same arrays. One thread, files in the page cache; the
figure is the minimum CPU time of the repeats.
"""

from __future__ import annotations

import argparse
import json
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import crc32c
import dask
import numpy as np
from numpy.typing import NDArray

import dask_tfrecord as dtf
from dask_tfrecord.features import Feature
from dask_tfrecord.messages import Example

NAMES = ("tabular", "vectors", "images_raw")
HEADER = "data        rows                  of them   picked rows/s   us a row   all, then pick   seek and parse"

Columns = dict[str, NDArray[Any]]


def masked(data: bytes) -> int:
    """Return the masked CRC-32C of bytes, as TFRecord stores it."""
    crc = crc32c.crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def places_of(paths: Sequence[Path]) -> list[tuple[int, int]]:
    """Return the file and the byte offset of every record."""
    places = []
    for number, path in enumerate(paths):
        with path.open("rb") as file:
            offset = 0
            while head := file.read(8):
                places.append((number, offset))
                offset += 16 + int.from_bytes(head, "little")
                file.seek(offset)
    return places


def seek_and_parse(
    paths: Sequence[Path], places: Sequence[tuple[int, int]], rows: NDArray[np.int64], schema: Mapping[str, Feature]
) -> Columns:
    """Seek and read one record after the other, as a program with a full index does."""
    kinds = {
        name: {"bytes": "bytes_list", "int64": "int64_list"}.get(f.dtype, "float_list") for name, f in schema.items()
    }
    found: dict[str, list[Any]] = {name: [] for name in schema}
    files = [path.open("rb") for path in paths]
    for row in rows.tolist():
        number, offset = places[row]
        file = files[number]
        file.seek(offset)
        head = file.read(12)
        payload = file.read(int.from_bytes(head[:8], "little"))
        length_crc, (payload_crc,) = int.from_bytes(head[8:], "little"), struct.unpack("<I", file.read(4))
        if masked(head[:8]) != length_crc or masked(payload) != payload_crc:
            raise ValueError(f"record {row} is damaged")
        features = Example.FromString(payload).features.feature
        for name, kind in kinds.items():
            found[name].append(getattr(features[name], kind).value)
    for file in files:
        file.close()
    return {name: column_of(schema[name], values) for name, values in found.items()}


def read_all(ds: dtf.Dataset, rows: NDArray[np.int64]) -> Columns:
    """Decode all rows, and select some with NumPy."""
    return {name: column[rows] for name, column in ds.compute().items()}


def column_of(feature: Feature, values: Sequence[Any]) -> NDArray[Any]:
    """Join the values of many records to an array."""
    if feature.dtype == "bytes":
        column = np.empty(len(values), object)
        column[:] = [value[0] for value in values]
        return column
    return np.array(values, feature.block_dtype).reshape(len(values), *feature.block_shape)


def best(repeats: int, work: Callable[[], Columns]) -> tuple[float, Columns]:
    """Return the CPU seconds of a call, and its result."""
    taken = []
    for _ in range(repeats):
        start = time.process_time()
        made = work()
        taken.append(time.process_time() - start)
    return min(taken), made


def selections(nrows: int, rows: int) -> dict[str, NDArray[np.int64]]:
    """Return the selections; `rows` limits the random permutation and every second row."""
    rng = np.random.default_rng(0)
    return {
        "permuted": rng.permutation(nrows)[:rows],
        "every 2nd": np.arange(0, min(nrows, 2 * rows), 2),
        "every 100th": np.arange(0, nrows, 100),
        "mask of a tenth": np.flatnonzero(rng.random(nrows) < 0.1),
    }


def compare(folder: Path, name: str, rows: int, repeats: int) -> list[dict[str, Any]]:
    """Measure all selections of a data set."""
    paths = sorted(folder.glob(f"{name}-*"))
    ds = dtf.read_tfrecord(paths)
    places = places_of(paths)
    figures = []
    for label, picked in selections(ds.nrows or 0, rows).items():
        ours, found = best(repeats, ds.rows[picked].compute)
        everything, expected = best(repeats, partial(read_all, ds, picked))
        loop, parsed = best(repeats, partial(seek_and_parse, paths, places, picked, ds.schema))
        for column in expected:
            np.testing.assert_array_equal(found[column], expected[column])
            np.testing.assert_array_equal(parsed[column], expected[column])
        figures.append(
            {"data": name, "selection": label, "rows": len(picked), "picked": ours, "all": everything, "loop": loop}
        )
    return figures


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table.

    Parameters
    ----------
    arguments : sequence of str, optional
        Arguments; by default those of the command line.
    """
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    figures = []
    print(HEADER)
    with dask.config.set(scheduler="sync"):
        for name in options.names or NAMES:
            for row in compare(options.data, name, options.rows, options.repeats):
                figures.append(row)
                rate, ratios = row["rows"] / row["picked"], (row["all"] / row["picked"], row["loop"] / row["picked"])
                print(
                    f"{row['data']:<12}{row['selection']:<18}{row['rows']:>11,}{rate:>16,.0f}{1e6 / rate:>11.1f}"
                    + "".join(f"{ratio:>15.1f} x" for ratio in ratios)
                )
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
