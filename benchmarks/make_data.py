"""Write the data sets of the benchmarks: about 475 MB each in 8 shards, with the same bytes in every run.

`tabular` holds 18 small features a record, `vectors` 256 floats, `images_raw` arrays of 48 KiB as bytes, `tokens` 20 to
512 integers; `sequences` are SequenceExamples of 10 to 50 steps, `mixed` has defaults, casts, boxes and sparse values,
`tensors` serialized tensors, `jpeg` and `png` images (these need Pillow); `tabular_gz` is the first quarter of
`tabular` compressed. TensorFlow is not needed.

    python benchmarks/make_data.py DATA [NAME …] [--scale 0.01]
"""

import argparse
import io
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dask_tfrecord import RecordWriter, messages, read_records

RECORDS = {
    "tabular": 1_200_000,
    "vectors": 400_000,
    "images_raw": 10_000,
    "tokens": 600_000,
    "sequences": 150_000,
    "mixed": 800_000,
    "tensors": 30_000,
    "jpeg": 20_000,
    "png": 8_000,
}
SHARDS = 8
GZIP_SHARDS = 2
# Flags, small and large categories, counts, times, signed differences and hashes: varints of one to ten bytes.
INT_RANGES = (
    (0, 2),
    (0, 128),
    (0, 1000),
    (0, 100_000),
    (0, 2**31),
    (1_600_000_000, 1_800_000_000),
    (-100, 100),
    (-(2**62), 2**62),
)


def example(
    ints: Mapping[str, Sequence[int]], floats: Mapping[str, Sequence[float]], raw: Mapping[str, bytes]
) -> bytes:
    """Serialize an Example of these features."""
    message = messages.Example()
    feature = message.features.feature
    for name, whole in ints.items():
        feature[name].int64_list.value.extend(whole)
    for name, reals in floats.items():
        feature[name].float_list.value.extend(reals)
    for name, value in raw.items():
        feature[name].bytes_list.value.append(value)
    return message.SerializeToString()


def tabular(rng: np.random.Generator, count: int, first: int) -> Iterator[bytes]:
    """Yield records of eight integers, eight floats and two short byte strings, about 400 bytes each."""
    columns = [rng.integers(low, high, count) for low, high in INT_RANGES]
    ints = np.stack(columns, axis=1).tolist()
    floats = rng.standard_normal((count, 8), np.float32).tolist()
    sizes = rng.integers(8, 21, (count, 2)).tolist()
    for whole, reals, lengths in zip(ints, floats, sizes, strict=True):
        yield example(
            {f"int_{k}": [value] for k, value in enumerate(whole)},
            {f"float_{k}": [value] for k, value in enumerate(reals)},
            {f"str_{k}": rng.bytes(length) for k, length in enumerate(lengths)},
        )


def vectors(rng: np.random.Generator, count: int, first: int) -> Iterator[bytes]:
    """Yield embeddings of 256 floats, each with a label and a name."""
    for record in range(first, first + count):
        embedding = rng.standard_normal(256, np.float32).tolist()
        yield example({"label": [int(rng.integers(1000))]}, {"embedding": embedding}, {"id": b"item-%010d" % record})


def images_raw(rng: np.random.Generator, count: int, first: int) -> Iterator[bytes]:
    """Yield images of 64 by 64 by 3 floats as the bytes of the array, each with a label."""
    for _ in range(count):
        image = rng.random((64, 64, 3), np.float32).tobytes()
        yield example({"label": [int(rng.integers(1000))]}, {}, {"image": image})


def tokens(rng: np.random.Generator, count: int, first: int) -> Iterator[bytes]:
    """Yield sequences of 20 to 512 token numbers, each with a label."""
    for _ in range(count):
        sequence = rng.integers(50_000, size=int(rng.integers(20, 513))).tolist()
        yield example({"tokens": sequence, "label": [int(rng.integers(2))]}, {}, {})


def sequences(rng: np.random.Generator, count: int, first: int) -> Iterator[bytes]:
    """Yield SequenceExamples: a label, and 10 to 50 steps of 16 floats and of one to five words."""
    for _ in range(count):
        message = messages.SequenceExample()
        message.context.feature["label"].int64_list.value.append(int(rng.integers(1000)))
        steps = int(rng.integers(10, 51))
        frames = rng.standard_normal((steps, 16), np.float32).tolist()
        sizes = rng.integers(1, 6, steps).tolist()
        lists = message.feature_lists.feature_list
        for frame, size in zip(frames, sizes, strict=True):
            lists["frames"].feature.add().float_list.value.extend(frame)
            lists["words"].feature.add().int64_list.value.extend(rng.integers(50_000, size=size).tolist())
        yield message.SerializeToString()


def mixed(rng: np.random.Generator, count: int, first: int) -> Iterator[bytes]:
    """Yield detections: a small label, a score that half of the records lack, up to 16 boxes, 20 sparse values."""
    for _ in range(count):
        boxes = rng.random(4 * int(rng.integers(0, 17)), np.float32).tolist()
        places = rng.choice(10_000, 20, replace=False).tolist()
        floats = {"boxes": boxes, "value": rng.standard_normal(20, np.float32).tolist()}
        if rng.random() < 0.5:
            floats["score"] = [float(rng.random())]
        yield example({"label": [int(rng.integers(100))], "index": places}, floats, {})


def tensors(rng: np.random.Generator, count: int, first: int) -> Iterator[bytes]:
    """Yield serialized tensors of 32 by 32 by 4 floats, each with a label."""
    for _ in range(count):
        tensor = messages.TensorProto(dtype=1, tensor_content=rng.random((32, 32, 4), np.float32).tobytes())
        for size in (32, 32, 4):
            tensor.tensor_shape.dim.add(size=size)
        yield example({"label": [int(rng.integers(1000))]}, {}, {"tensor": tensor.SerializeToString()})


def jpeg(rng: np.random.Generator, count: int, first: int) -> Iterator[bytes]:
    """Yield JPEG images of 256 by 256 pixels, smooth with some noise, each with a label."""
    return images(rng, count, "JPEG", quality=90)


def png(rng: np.random.Generator, count: int, first: int) -> Iterator[bytes]:
    """Yield PNG images of the same kind of pixels."""
    return images(rng, count, "PNG")


def images(rng: np.random.Generator, count: int, kind: str, **options: Any) -> Iterator[bytes]:
    """Yield encoded images of 256 by 256 pixels."""
    from PIL import Image

    for _ in range(count):
        coarse = Image.fromarray(rng.integers(0, 256, (16, 16, 3), np.uint8)).resize((256, 256))
        pixels = np.asarray(coarse, np.int16) + rng.integers(-8, 9, (256, 256, 3), np.int16)
        buffer = io.BytesIO()
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(buffer, kind, **options)
        yield example({"label": [int(rng.integers(1000))]}, {}, {"image": buffer.getvalue()})


MAKERS = {
    "tabular": tabular,
    "vectors": vectors,
    "images_raw": images_raw,
    "tokens": tokens,
    "sequences": sequences,
    "mixed": mixed,
    "tensors": tensors,
    "jpeg": jpeg,
    "png": png,
}


def write(out: Path, name: str, scale: float) -> None:
    """Write the shards of one data set."""
    if name == "tabular_gz":
        for shard in range(GZIP_SHARDS):
            plain = out / f"tabular-{shard:05d}-of-{SHARDS:05d}.tfrecord"
            packed = out / f"tabular_gz-{shard:05d}-of-{GZIP_SHARDS:05d}.tfrecord.gz"
            with RecordWriter(packed, "gzip") as writer:
                for payload in read_records(plain):
                    writer.write(payload)
        return
    count = max(1, round(RECORDS[name] * scale / SHARDS))
    for shard in range(SHARDS):
        # One generator per shard, seeded with its name, so that a shard does not depend on the others.
        rng = np.random.default_rng([*name.encode(), shard])
        with RecordWriter(out / f"{name}-{shard:05d}-of-{SHARDS:05d}.tfrecord") as writer:
            for payload in MAKERS[name](rng, count, shard * count):
                writer.write(payload)


def main() -> None:
    """Write the data sets of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="directory to write to")
    known = [*MAKERS, "tabular_gz"]
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(known)}; default: all")
    parser.add_argument("--scale", type=float, default=1.0, help="fraction of the records to write, for a quick test")
    arguments = parser.parse_args()
    for name in arguments.names:
        if name not in known:
            parser.error(f"unknown data set {name!r}; choose from {', '.join(known)}")
    arguments.out.mkdir(parents=True, exist_ok=True)
    for name in arguments.names or known:
        write(arguments.out, name, arguments.scale)
        print(name, flush=True)


if __name__ == "__main__":
    main()
