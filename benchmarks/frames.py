"""Compare the conversion of frames like those of the Waymo Open Dataset to Zarr with a loop over frames.

    python benchmarks/frames.py [--frames 8] [--turns 3]

A frame has five JPEG of cameras, 100 boxes, and two range images of each of five lidars: MatrixFloat messages of
64 x 2650 x 4 and 200 x 600 x 4 floats in bytes that zlib compressed. Contents are random, a part of the pixels of range
images is empty. Four parts are converted: the boxes, the pictures of the front camera, both returns of the lidar on the
roof, and the first return of all lidars.

- `dask_tfrecord`: `explode`, `where`, `map_blocks` and `to_zarr`, as on the page "Waymo frames";
- `loop`: protobuf parses each frame, zlib inflates the matrices and Pillow decodes pictures; NumPy joins them, and the
  arrays are written by zarr with the same chunks and codecs.

All run on one thread, in turn, in this process. Times are CPU seconds, opening included; ratios are of the same turn,
and the table has their medians.
"""

import argparse
import io
import shutil
import statistics
import tempfile
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask
import numpy as np
import zarr
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from PIL import Image

import dask_tfrecord as dtf

LABELS = [("laser_labels", 6, "Label*")]
MESSAGES = {
    "MatrixShape": [("dims", 1, "int32*")],
    "MatrixFloat": [("data", 1, "float*"), ("shape", 2, "MatrixShape")],
    "RangeImage": [("range_image_compressed", 2, "bytes")],
    "Laser": [("name", 1, "int32"), ("ri_return1", 2, "RangeImage"), ("ri_return2", 3, "RangeImage")],
    "CameraImage": [("name", 1, "int32"), ("image", 2, "bytes")],
    "Box": [("center_x", 1, "double"), ("center_y", 2, "double"), ("center_z", 3, "double"), ("heading", 7, "double")],
    "Label": [("box", 1, "Box"), ("type", 3, "int32"), ("id", 4, "string")],
    "Frame": [("timestamp_micros", 2, "int64"), ("images", 4, "CameraImage*"), ("lasers", 5, "Laser*"), *LABELS],
}
TYPES = {"double": 1, "float": 2, "int64": 3, "int32": 5, "string": 9, "bytes": 12}
TOP, FRONT = (64, 2650, 4), (1280, 1920, 3)
CHUNK = 2  # frames


def classes() -> dict[str, Any]:
    """Return the classes of the messages."""
    file = descriptor_pb2.FileDescriptorProto(name="frame.proto", package="frames", syntax="proto2")
    for name, fields in MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, number, kind in fields:
            made = message.field.add(name=field, number=number, label=3 if kind.endswith("*") else 1)
            made.type = TYPES.get(kind.rstrip("*"), 11)  # type: ignore[assignment]
            if made.type == 11:
                made.type_name = f".frames.{kind.rstrip('*')}"
            if kind == "float*":
                made.options.packed = True
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"frames.{name}")) for name in MESSAGES}


def write_frames(path: Path, made: dict[str, Any], frames: int) -> None:
    """Write frames of random content."""
    rng = np.random.default_rng(0)
    small = rng.integers(0, 255, (FRONT[0] // 16, FRONT[1] // 16, 3), np.uint8)
    picture = io.BytesIO()
    Image.fromarray(small).resize((FRONT[1], FRONT[0])).save(picture, "JPEG", quality=90)

    def matrix(shape: tuple[int, ...]) -> bytes:
        values = np.round(rng.random(shape, np.float32), 3)
        values[rng.random(shape[:2]) < 0.3] = -1
        message = made["MatrixFloat"](data=values.ravel(), shape={"dims": shape})
        return zlib.compress(message.SerializeToString())

    with dtf.RecordWriter(path) as writer:
        for number in range(frames):
            frame = made["Frame"](timestamp_micros=number)
            for camera in range(1, 6):
                frame.images.add(name=camera, image=picture.getvalue())
            for laser in range(1, 6):
                shape = TOP if laser == 1 else (200, 600, 4)
                held = frame.lasers.add(name=laser)
                held.ri_return1.range_image_compressed = matrix(shape)
                held.ri_return2.range_image_compressed = matrix(shape)
            for label in range(100):
                box = dict(zip(("center_x", "center_y", "center_z", "heading"), rng.random(4).tolist(), strict=True))
                frame.laser_labels.add(box=box, type=1, id=f"{number} {label}")
            writer.write(frame.SerializeToString())


def by_library(path: Path, made: dict[str, Any], target: Path) -> dict[str, float]:
    """Convert by this library; return the CPU seconds of each part."""
    matrix = dtf.ProtoFeature(made["MatrixFloat"], "", compression_type="ZLIB")
    ranges = {
        name: dtf.ProtoFeature(f"lasers.ri_return{number}.range_image_compressed", values=matrix)
        for number, name in ((1, "first"), (2, "second"))
    }
    features = ranges | {
        "camera": dtf.ProtoFeature("images.name"),
        "image": dtf.ProtoFeature("images.image", values=dtf.ImageFeature(FRONT)),
        "laser": dtf.ProtoFeature("lasers.name"),
        "box": dtf.ProtoFeature("laser_labels.box"),
    }

    def opened(*names: str) -> dtf.Dataset:
        picked = {name: features[name] for name in names}
        return dtf.read_tfrecord(path, picked, message=made["Frame"], chunks=CHUNK)

    def boxes() -> None:
        opened("box").explode("laser_labels").to_zarr(target / "boxes")

    def front() -> None:
        kept = opened("camera", "image").explode("images").where([("camera", "==", 1)])
        kept[["image"]].to_zarr(target / "front")

    def top() -> None:
        kept = opened("laser", *ranges).explode("lasers").where([("laser", "==", 1)])
        form = {name: dtf.FixedLenFeature(TOP, "float32") for name in ranges}
        kept.map_blocks(
            lambda rows: {name: rows[f"{name}.data"].values.reshape(-1, *TOP) for name in form}, form
        ).to_zarr(target / "top")

    def every() -> None:
        opened("first").explode("lasers").to_zarr(target / "every")

    return {part.__name__: seconds(part) for part in (boxes, front, top, every)}


def by_loop(path: Path, made: dict[str, Any], target: Path) -> dict[str, float]:
    """Convert by a loop over frames; return the CPU seconds of each part."""

    def frames() -> Any:
        return (made["Frame"].FromString(payload) for payload in dtf.read_records(path))

    def write(part: str, arrays: dict[str, Any], rows: int) -> None:
        group = zarr.create_group(target / part)
        for name, values in arrays.items():
            joined = np.array(values)
            group.create_array(name, data=joined, chunks=(min(rows, len(joined)), *joined.shape[1:]))

    def boxes() -> None:
        names = ("center_x", "center_y", "center_z", "heading")
        found = [each.box for frame in frames() for each in frame.laser_labels]
        write("boxes", {name: [getattr(box, name) for box in found] for name in names}, 100 * CHUNK)

    def front() -> None:
        pictures = (each.image for frame in frames() for each in frame.images if each.name == 1)
        write("front", {"image": [np.asarray(Image.open(io.BytesIO(one))) for one in pictures]}, CHUNK)

    def top() -> None:
        found: dict[str, list[Any]] = {"first": [], "second": []}
        for frame in frames():
            for laser in frame.lasers:
                if laser.name != 1:
                    continue
                for name, held in (("first", laser.ri_return1), ("second", laser.ri_return2)):
                    message = made["MatrixFloat"].FromString(zlib.decompress(held.range_image_compressed))
                    found[name].append(np.array(message.data, np.float32).reshape(message.shape.dims))
        write("top", found, CHUNK)

    def every() -> None:
        values, sizes, shapes = list[Any](), [0], list[Any]()
        for frame in frames():
            for laser in frame.lasers:
                stored = zlib.decompress(laser.ri_return1.range_image_compressed)
                message = made["MatrixFloat"].FromString(stored)
                values.append(np.array(message.data, np.float32))
                sizes.append(len(values[-1]))
                shapes.append(list(message.shape.dims))
        group = zarr.create_group(target / "every")
        joined = np.concatenate(values)
        group.create_array("values", data=joined, chunks=(len(joined) // (len(values) // 10) + 1,))
        group.create_array("splits", data=np.cumsum(sizes))
        group.create_array("shapes", data=np.array(shapes))

    return {part.__name__: seconds(part) for part in (boxes, front, top, every)}


def seconds(part: Callable[[], None]) -> float:
    """Return the CPU seconds of a call."""
    before = time.process_time()
    part()
    return time.process_time() - before


def main() -> None:
    """Write frames, convert them in turn, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--frames", type=int, default=8)
    parser.add_argument("--turns", type=int, default=3)
    given = parser.parse_args()
    made, found = classes(), list[tuple[dict[str, float], dict[str, float]]]()
    with tempfile.TemporaryDirectory() as directory, dask.config.set({"scheduler": "sync", "tfrecord.progress": False}):
        path, target = Path(directory) / "frames.tfrecord", Path(directory) / "out"
        write_frames(path, made, given.frames)
        print(f"{given.frames} frames of {path.stat().st_size / given.frames / 1e6:.1f} MB")
        for _ in range(given.turns):
            turn = []
            for convert in (by_library, by_loop):
                shutil.rmtree(target, ignore_errors=True)
                target.mkdir()
                turn.append(convert(path, made, target))
            found.append((turn[0], turn[1]))
    print("| part | CPU seconds per frame | loop | ratio |\n| --- | --- | --- | --- |")
    for part in found[0][0]:
        own = statistics.median(turn[0][part] for turn in found) / given.frames
        loop = statistics.median(turn[1][part] for turn in found) / given.frames
        ratio = statistics.median(turn[1][part] / turn[0][part] for turn in found)
        print(f"| {part} | {own:.3f} | {loop:.3f} | {ratio:.2f} |")


if __name__ == "__main__":
    main()
