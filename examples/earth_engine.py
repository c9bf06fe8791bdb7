"""From an Earth Engine export to a georeferenced xarray Dataset.

    python examples/earth_engine.py [DIRECTORY]

`Export.image` with `fileFormat="TFRecord"` writes a scene as patches: compressed shards with a record per patch and a
list of numbers per band, and `NAMEmixer.json` with the projection, the size of a patch and the patches per row. This
script writes such an export, and assembles its patches lazily to one `(y, x)` array per band with coordinates. Missing
libraries: `pip install "dask-tfrecord[xarray]"`.
"""

import json
import sys
from pathlib import Path

import numpy as np
import xarray as xr

import dask_tfrecord as dtf


def export(directory: Path, rows: int, columns: int, width: int = 16, height: int = 12) -> dict[str, np.ndarray]:
    """Write `rows` by `columns` patches like Earth Engine; return the scene of each band."""
    rng = np.random.default_rng(6)
    shape = (rows * height, columns * width)
    scene = {"B4": rng.random(shape, np.float32), "B8": rng.random(shape, np.float32)}
    patches = {
        band: pixels.reshape(rows, height, columns, width).swapaxes(1, 2).reshape(-1, height, width)
        for band, pixels in scene.items()
    }
    name = directory / "scene-{shard:05d}.tfrecord.gz"
    dtf.to_tfrecord(patches, name, records_per_shard=2 * columns, compression="gzip", mode="w")
    mixer = {
        "projection": {
            "crs": "EPSG:32633",
            "affine": {"doubleMatrix": [10.0, 0.0, 399960.0, 0.0, -10.0, 4600020.0]},
        },
        "patchDimensions": [width, height],
        "patchesPerRow": columns,
        "totalPatches": rows * columns,
    }
    (directory / "scene-mixer.json").write_text(json.dumps(mixer), "utf-8")
    return scene


def open_export(directory: Path, name: str, bands: list[str]) -> xr.Dataset:
    """Open an export.

    Parameters
    ----------
    directory : Path
        Folder of the shards and of the mixer.
    name : str
        Prefix of their names.
    bands : list of str
        Bands to read, of float32.

    Returns
    -------
    xarray.Dataset
        A lazy array `(y, x)` per band, whose chunks are rows of patches. `x` and `y` are the centres of pixels;
        `spatial_ref` has the projection, as rioxarray reads it.

    Raises
    ------
    ValueError
        If the shards hold another number of patches than the mixer states, or the grid is rotated.
    """
    mixer = json.loads((directory / f"{name}mixer.json").read_text("utf-8"))
    width, height = mixer["patchDimensions"]
    columns, total = mixer["patchesPerRow"], mixer["totalPatches"]
    features = {band: dtf.FixedLenFeature((height, width), "float32") for band in bands}
    ds = dtf.read_tfrecord(directory / f"{name}*.tfrecord.gz", features, chunks=columns)
    if ds.nrows != total or total % columns:
        raise ValueError(f"{name}mixer.json states {total} patches, {columns} per row; the shards hold {ds.nrows}")
    rows = total // columns

    x_scale, x_shear, x_origin, y_shear, y_scale, y_origin = mixer["projection"]["affine"]["doubleMatrix"]
    if x_shear or y_shear:
        raise ValueError("the grid is rotated: x and y are not coordinates of columns and rows")
    crs = mixer["projection"]["crs"]
    transform = f"{x_origin} {x_scale} {x_shear} {y_origin} {y_shear} {y_scale}"
    coords = {
        "y": y_origin + y_scale * (np.arange(rows * height) + 0.5),
        "x": x_origin + x_scale * (np.arange(columns * width) + 0.5),
        "spatial_ref": ((), 0, {"crs_wkt": crs, "GeoTransform": transform}),
    }
    variables = {
        # A chunk is a row of patches, so no values move between chunks.
        band: (("y", "x"), patches.reshape(rows, columns, height, width).swapaxes(1, 2).reshape(rows * height, -1))
        for band, patches in ((band, ds[band]) for band in bands)
    }
    return xr.Dataset(variables, coords).assign_attrs(crs=crs)


def main(directory: Path, rows: int = 6, columns: int = 5) -> xr.Dataset:
    """Write an export, open it, and compute a vegetation index."""
    directory.mkdir(parents=True, exist_ok=True)
    scene = export(directory, rows, columns)
    ds = open_export(directory, "scene-", ["B4", "B8"])
    for band, pixels in scene.items():
        assert np.array_equal(ds[band], pixels), band
    index = (ds["B8"] - ds["B4"]) / (ds["B8"] + ds["B4"])
    print(f"{ds}\nmean vegetation index: {float(index.mean()):.3f}")
    return ds


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "earth-engine"))
