"""From TFRecord shards to dask arrays, to a statistic, to a Zarr store and back.

    python examples/quickstart.py [OUTDIR]

Draws a small set of images with labels, captions and outlines, writes it as eight TFRecord shards, reads them lazily,
computes the mean image of every class on two worker processes, converts all columns to Zarr, checks that the
store holds the same values, and saves the mean images as a picture. Drawing needs Pillow, the `image` extra.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
from distributed import Client, LocalCluster, progress
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

import dask_tfrecord as dtf

SHARDS = 8
RECORDS_PER_SHARD = 300
SIZE = 64

# Features of a record and the columns to decode them to, as in a parsing spec of TensorFlow.
FEATURES: dict[str, dtf.features.Feature] = {
    "image": dtf.RawFeature((SIZE, SIZE, 3), "uint8"),
    "label": dtf.FixedLenFeature((), "int64"),
    "caption": dtf.TextFeature(),
    "outline": dtf.VarLenFeature("float32", shape=(-1, 2)),
}


def main(outdir: Path) -> None:
    """Run all steps, and report each."""
    outdir.mkdir(parents=True, exist_ok=True)
    with timed(f"wrote {SHARDS * RECORDS_PER_SHARD:,} records in {SHARDS} shards"):
        write_shards(outdir)

    # Records are counted and the graph is planned; nothing is decoded yet.
    ds = dtf.read_tfrecord(outdir / "shapes-*.tfrecord", FEATURES)
    print(f"\n{ds}\n")

    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as cluster, Client(cluster) as client:
        with timed("computed the mean image of each class on two worker processes"):
            # Columns that are requested together are decoded in one pass over each chunk.
            image, label = ds["image", "label"]
            means, counts = dask.compute(*class_means(image, label))

        store = outdir / "shapes.zarr"
        with timed(f"converted all of it to {store}"):
            writing = client.compute(ds.to_zarr(store, mode="w", compute=False))
            if sys.stdout.isatty():
                progress(writing)
            writing.result()

        with timed("read the store back and compared every value"):
            stored = dtf.from_zarr(store)
            assert_equal(stored.compute(), ds.compute())
        samples = stored.rows[:200].compute()

    picture = outdir / "class_means.png"
    draw_poster(means, counts, samples).save(picture)
    print(f"saved {picture}")


def class_means(image: da.Array, label: da.Array) -> tuple[da.Array, da.Array]:
    """Give mean image and number of images of each class, lazily."""
    member = label[:, None] == np.arange(len(SHAPES))
    counts = member.sum(axis=0)
    sums = da.tensordot(member.astype("float32"), image.astype("float32"), axes=(0, 0))
    return sums / counts[:, None, None, None], counts


def assert_equal(found: Mapping[str, NDArray[Any]], expected: Mapping[str, NDArray[Any]]) -> None:
    """Fail unless both hold the same columns of the same values; rows of an object array are arrays."""
    assert found.keys() == expected.keys()
    for name, column in expected.items():
        if column.dtype == object:
            assert all(map(np.array_equal, found[name], column)), name
        assert found[name].dtype == column.dtype and len(found[name]) == len(column), name
        assert column.dtype == object or np.array_equal(found[name], column), name


@contextmanager
def timed(what: str) -> Iterator[None]:
    """Say what was done and how long it took."""
    start = time.perf_counter()
    yield
    print(f"{what} in {time.perf_counter() - start:.1f} s")


# -- the data ----------------------------------------------------------------------------------------------------------


def write_shards(outdir: Path) -> None:
    """Write shards without TensorFlow, which TensorFlow reads."""
    records = SHARDS * RECORDS_PER_SHARD
    arrays = draw_records(np.random.default_rng(20), records)
    names = outdir / "shapes-{shard:05d}-of-{shards:05d}.tfrecord"
    dtf.to_tfrecord(arrays, names, features=FEATURES, records_per_shard=RECORDS_PER_SHARD, mode="w")


def draw_records(rng: np.random.Generator, records: int) -> dict[str, Any]:
    """Return a column for each feature: pictures of shapes, and what is known of them."""
    images = np.empty((records, SIZE, SIZE, 3), np.uint8)
    labels = rng.integers(len(SHAPES), size=records)
    captions, outlines = [], []
    for number, label in enumerate(labels):
        name, (shape, colour) = list(SHAPES.items())[label]
        outline = place(shape, rng)
        images[number] = picture_of(outline, colour, rng)
        captions.append(f"a {name} of {len(outline)} points")
        outlines.append(outline.astype("float32"))  # rows of differing length
    return {"image": images, "label": labels, "caption": np.array(captions), "outline": outlines}


def place(shape: NDArray[np.float64], rng: np.random.Generator) -> NDArray[np.float64]:
    """Turn, scale and move a shape a little, into pixels."""
    angle, radius = rng.normal(0, 0.16), SIZE * rng.normal(0.33, 0.03)
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    moved: NDArray[np.float64] = shape @ turn * radius + SIZE / 2 + rng.normal(0, SIZE * 0.035, 2)
    return moved


def picture_of(outline: NDArray[np.float64], colour: str, rng: np.random.Generator) -> NDArray[np.uint8]:
    """Draw a filled shape on a dark ground, with the noise of a camera."""
    fine = 4
    drawn = Image.new("RGB", (SIZE * fine, SIZE * fine), "#1b2033")
    ImageDraw.Draw(drawn).polygon([tuple(point) for point in (outline * fine).tolist()], fill=colour)
    light = np.asarray(drawn.reduce(fine), np.float32) * rng.normal(1, 0.08)
    return np.clip(light + rng.normal(0, 9, light.shape), 0, 255).astype(np.uint8)


def polar(radius: NDArray[np.float64]) -> NDArray[np.float64]:
    """Put points at these distances from the centre, evenly around it, the first at the top."""
    angle = np.linspace(0, 2 * np.pi, len(radius), endpoint=False)
    return np.stack([radius * np.sin(angle), -radius * np.cos(angle)], axis=1)


def heart() -> NDArray[np.float64]:
    """Give the usual curve."""
    t = np.linspace(0, 2 * np.pi, 40, endpoint=False)
    y = 13 * np.cos(t) - 5 * np.cos(2 * t) - 2 * np.cos(3 * t) - np.cos(4 * t)
    return np.stack([16 * np.sin(t) ** 3, -y - 2.5], axis=1) / 15


def moon() -> NDArray[np.float64]:
    """Give a crescent: an arc out, and a flatter one back."""
    t = np.linspace(-2.2, 2.2, 16)
    outer = np.stack([-np.cos(t), np.sin(t)], axis=1)
    inner = np.stack([-0.35 * np.cos(t / 2.2 * np.pi / 2) + 0.59, -0.81 * np.sin(t / 2.2 * np.pi / 2)], axis=1)
    crescent: NDArray[np.float64] = np.concatenate([outer, inner[1:-1]]) + np.array([0.15, 0])
    return crescent


CROSS = np.array([(1, 3), (1, 1), (3, 1), (3, -1), (1, -1), (1, -3)], float) / 3
SHAPES: dict[str, tuple[NDArray[np.float64], str]] = {
    "triangle": (polar(np.full(3, 1.1)), "#f2545b"),
    "square": (polar(np.full(4, 1.15)) @ np.array([[1, -1], [1, 1]]) / np.sqrt(2), "#f79d5c"),
    "star": (polar(np.tile([1.15, 0.5], 5)), "#ffd166"),
    "cross": (np.concatenate([CROSS, -CROSS]), "#8bd17c"),
    "hexagon": (polar(np.full(6, 1.05)), "#3fc1b0"),
    "moon": (moon(), "#5aa9e6"),
    "flower": (polar(0.85 + 0.25 * np.cos(np.arange(60) * 2 * np.pi / 10)), "#9b8cf2"),
    "heart": (heart(), "#f283b6"),
}


# -- the picture -------------------------------------------------------------------------------------------------------

INK, FAINT, GROUND = "#eef1fb", "#8f98b8", "#0f1220"


def draw_poster(
    means: NDArray[np.float32], counts: NDArray[np.int64], samples: Mapping[str, NDArray[Any]]
) -> Image.Image:
    """Draw the mean image of every class, and below it some images of the class."""
    columns, tile, gap, margin, head, foot = 4, 4 * SIZE, 36, 56, 148, 130
    rows = -(-len(SHAPES) // columns)
    width = 2 * margin + columns * tile + (columns - 1) * gap
    height = head + rows * (tile + foot) + margin // 2
    poster = Image.new("RGB", (width, height), GROUND)
    draw = ImageDraw.Draw(poster)
    draw.text((margin, 44), "Class means", INK, ImageFont.load_default(44))
    told = f"{int(counts.sum()):,} images in {SHARDS} TFRecord shards, averaged lazily by dask on two workers"
    draw.text((margin, 100), told, FAINT, ImageFont.load_default(20))
    for label, name in enumerate(SHAPES):
        row, column = divmod(label, columns)
        left, top = margin + column * (tile + gap), head + row * (tile + foot)
        paste_rounded(poster, means[label], (left, top), tile, 18)
        draw.text((left, top + tile + 12), name, INK, ImageFont.load_default(24))
        draw.text((left + tile, top + tile + 15), f"{counts[label]:,}", FAINT, ImageFont.load_default(20), anchor="ra")
        few = samples["image"][samples["label"] == label][:5]
        small, space = 44, (tile - 5 * 44) // 4
        for place_, one in enumerate(few):
            paste_rounded(poster, one, (left + place_ * (small + space), top + tile + 48), small, 6)
    return poster


def paste_rounded(poster: Image.Image, pixels: NDArray[Any], corner: tuple[int, int], size: int, radius: int) -> None:
    """Put a picture on the poster, scaled to a square with rounded corners."""
    fine = 4
    mask = Image.new("L", (size * fine, size * fine))
    ImageDraw.Draw(mask).rounded_rectangle((0, 0, size * fine - 1, size * fine - 1), radius * fine, fill=255)
    scaled = Image.fromarray(np.round(pixels).astype(np.uint8)).resize((size, size), Image.Resampling.BICUBIC)
    poster.paste(scaled, corner, mask.reduce(fine))


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "quickstart"))
