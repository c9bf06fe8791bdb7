"""Move columns to a GPU: reductions, assigned columns, writers, and batches that are copied while others are decoded.

    python benchmarks/device.py DIRECTORY [--rows 400000] [--backend cupy] [--device cuda] [--cupy]

writes shards of rows of 256 floats to DIRECTORY, once, and compares every result with that of NumPy. A line has the
median of three runs after an untimed one. CuPy is needed, and torch for the loops of batches unless `--cupy` hides it.
`--backend numpy --device ""` runs everything without a GPU, to try the script.

The loops read the same batches: on the host; copied by the loop, which waits for each copy; and by
``batches(device=)``, alone, and with a product of matrices per batch. A loop that overlaps takes about as long as
reading alone, or as the products alone if they take longer.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import dask
import numpy as np
from numpy.typing import NDArray

import dask_tfrecord as dtf

WIDTH, SHARDS, RUNS = 256, 8, 3


def write_data(directory: Path, rows: int) -> None:
    """Write the shards, unless they exist."""
    if directory.joinpath("rows").exists() and directory.joinpath("rows").read_text() == str(rows):
        return
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    rng = np.random.default_rng(0)
    each = rows // SHARDS
    for shard in range(SHARDS):
        columns = {"v": rng.random((each, WIDTH), np.float32), "label": np.arange(shard * each, (shard + 1) * each)}
        dtf.to_tfrecord(columns, directory / f"v-{shard:05d}.tfrecord")
    directory.joinpath("rows").write_text(str(rows))


def host(array: Any) -> NDArray[Any]:
    """Copy an array of any library to the host, which waits for the device."""
    if hasattr(array, "cpu"):
        return np.asarray(array.cpu().numpy())
    return np.asarray(array.get() if hasattr(array, "get") else array)


class Report:
    """Lines of a table, and the figures behind them."""

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self.figures: dict[str, dict[str, Any]] = {}
        print(f"{'':44}{'seconds':>10}{'rows/s':>14}  as NumPy", flush=True)

    def time(self, name: str, step: Callable[[], Any], expected: Any, tolerance: float = 0.0) -> None:
        """Time a step, and compare its result with that of NumPy."""
        seconds = []
        for run in range(RUNS + 1):
            start = time.perf_counter()
            found = host(step())
            if run:
                seconds.append(time.perf_counter() - start)
        median = statistics.median(seconds)
        same = found.shape == np.shape(expected) and bool(np.allclose(found, expected, rtol=tolerance, atol=0))
        self.figures[name] = {"seconds": seconds, "rows_per_second": self.rows / median, "as_numpy": same}
        print(f"{name:44}{median:>10.3f}{self.rows / median:>14,.0f}  {'yes' if same else 'NO'}", flush=True)


def columns(report: Report, ds: dtf.Dataset, backend: str, out: Path) -> None:
    """Time reductions, functions, selections and writers."""
    values = ds.compute()["v"]
    mean, rounding = values.mean(axis=0, dtype=np.float64), 1e-4
    report.time("mean of a column, host", lambda: ds["v"].mean(axis=0).compute(), mean, rounding)
    report.time("mean of a column, device", lambda: ds["v"].to_backend(backend).mean(axis=0).compute(), mean, rounding)
    moved = ds.to_backend(backend)
    report.time("mean after Dataset.to_backend", lambda: moved["v"].mean(axis=0).compute(), mean, rounding)

    def squares(blocks: dict[str, Any]) -> dict[str, Any]:
        return {"s": (blocks["v"] ** 2).sum(axis=1)}

    norms = (values**2).sum(axis=1)
    report.time("map_blocks on the device", lambda: moved.map_blocks(squares).compute()["s"], norms, rounding)
    report.time("assign, compute", lambda: moved.assign(w=moved["v"] * 2).compute()["w"], 2 * values)
    kept = values[:, 0] > 0.5
    mask = moved["v"][:, 0] > 0.5
    report.time("rows[mask on the device]", lambda: moved.rows[mask].compute()["label"], np.flatnonzero(kept))

    def where() -> NDArray[Any]:
        chosen = moved.where(lambda blocks: moved_like(blocks["v"], backend)[:, 0] > 0.5, ["v"])
        return np.asarray(chosen.compute()["label"])

    report.time("where, mask on the device", where, np.flatnonzero(kept))

    def zarr() -> NDArray[Any]:
        moved.assign(w=moved["v"] * 2).to_zarr(out / "w.zarr", mode="w")
        return np.asarray(dtf.from_zarr(out / "w.zarr").compute()["w"])

    def tfrecord() -> NDArray[Any]:
        moved.assign(w=moved["v"] * 2).to_tfrecord(out / "w-{shard}.tfrecord", mode="w")
        return np.asarray(dtf.read_tfrecord(out / "w-*.tfrecord").compute()["w"])

    report.time("assign, to_zarr, from_zarr", zarr, 2 * values)
    report.time("assign, to_tfrecord, read_tfrecord", tfrecord, 2 * values)


def moved_like(block: NDArray[Any], backend: str) -> Any:
    """Move a block as `to_backend` does, for a function of `where`."""
    return dask.array.from_array(block, chunks=-1).to_backend(backend).compute(scheduler="sync")


def loops(report: Report, ds: dtf.Dataset, device: str, size: int, *, cupy: bool) -> None:
    """Time loops over batches of the column `v`, in order."""
    ds = ds[["v"]]
    total = ds.compute()["v"].sum(dtype=np.float64)
    rounding = 1e-3

    def read() -> int:
        return sum(len(batch["v"]) for batch in ds.batches(size))

    report.time("batches on the host", read, report.rows)
    if not device:
        return
    weights = on_device(np.eye(WIDTH, dtype=np.float32), device, cupy=cupy)

    def copied() -> Any:
        added: Any = 0.0
        for batch in ds.batches(size):
            moved = on_device(batch["v"], device, cupy=cupy)
            added = added + moved.sum()
            host(moved[:1, :1])
        return added

    def overlapped(products: int) -> Callable[[], Any]:
        def loop() -> Any:
            added: Any = 0.0
            for batch in ds.batches(size, device=device):
                made = batch["v"]
                for _ in range(products):
                    made = made @ weights
                added = added + made.sum()
            return added

        return loop

    def products_alone(products: int) -> Callable[[], Any]:
        batch = on_device(next(ds.batches(size))["v"], device, cupy=cupy)

        def loop() -> int:
            rows = 0
            while rows < report.rows:
                made, rows = batch, rows + size
                for _ in range(products):
                    made = made @ weights
            host(made[:1, :1])
            return report.rows

        return loop

    report.time("batches, copied by the loop", copied, total, rounding)
    report.time("batches(device=)", overlapped(0), total, rounding)
    for products in (4, 32):
        report.time(f"{products} products a batch alone", products_alone(products), report.rows)
        report.time(f"batches(device=), {products} products a batch", overlapped(products), total, rounding)


def on_device(array: NDArray[Any], device: str, *, cupy: bool) -> Any:
    """Copy an array from pageable memory, as a loop without this library does."""
    if cupy:
        import cupy as library

        return library.asarray(array)
    import torch

    return torch.from_numpy(array).to(device)


def main() -> None:
    """Print the table, and store its figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--rows", type=int, default=400_000)
    parser.add_argument("--backend", default="cupy")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--cupy", action="store_true", help="batches as arrays of CuPy")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    if arguments.cupy:
        # The library takes CuPy where torch is not installed.
        sys.modules["torch"] = None  # type: ignore[assignment]
    dask.config.set({"tfrecord.progress": False})
    rows = arguments.rows - arguments.rows % SHARDS
    write_data(arguments.directory / "data", rows)
    ds = dtf.read_tfrecord(str(arguments.directory / "data" / "v-*.tfrecord"))
    print(f"{rows:,} rows of {4 * WIDTH:,} bytes; backend {arguments.backend}, device {arguments.device or 'none'}")
    report = Report(rows)
    columns(report, ds, arguments.backend, arguments.directory)
    loops(report, ds, arguments.device, arguments.batch, cupy=arguments.cupy or find_spec("torch") is None)
    if arguments.json:
        arguments.json.write_text(json.dumps(report.figures, indent=1))
    if not all(each["as_numpy"] for each in report.figures.values()):
        raise SystemExit("results differ from those of NumPy")


if __name__ == "__main__":
    main()
