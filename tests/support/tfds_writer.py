"""Script that writes `data/tfds` to a given directory, in an environment with tensorflow-datasets.

`every` holds each feature class, in two splits of three shards; `every.npz` is what TFDS itself reads from it, and
`splits.json` which records it takes for some hundred splits. Nothing of this library is imported.
"""

from __future__ import annotations

import json
import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ["CUDA_VISIBLE_DEVICES"], os.environ["TF_CPP_MIN_LOG_LEVEL"] = "-1", "3"

import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402
import tensorflow_datasets as tfds  # noqa: E402
from tensorflow_datasets import features as f  # noqa: E402
from tensorflow_datasets.core import naming, splits  # noqa: E402

INTEGERS = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64")
FLOATS = ("float16", "float32", "float64")
IMAGE = (4, 5, 3)


def tree() -> dict[str, Any]:
    """Return features of every class."""
    tensor, sequence = f.Tensor, f.Sequence
    return {
        **{f"scalar/{dtype}": f.Scalar(np.dtype(dtype)) for dtype in ("bool", *INTEGERS, "uint64", *FLOATS)},
        "string": f.Scalar(np.str_),
        "a/b": np.int64,
        "tensor": tensor(shape=(2, 3), dtype=np.float32),
        "tensor_bool": tensor(shape=(4,), dtype=np.bool_),
        "tensor_string": tensor(shape=(2,), dtype=np.str_),
        "open": tensor(shape=(None,), dtype=np.int32),
        "open_rows": tensor(shape=(None, 2), dtype=np.float64),
        "open_second": tensor(shape=(2, None), dtype=np.int32),
        "raw": tensor(shape=(2, 3), dtype=np.float64, encoding="bytes"),
        "raw_bool": tensor(shape=(3,), dtype=np.bool_, encoding="bytes"),
        "raw_open": tensor(shape=(None, 2), dtype=np.int16, encoding="bytes"),
        "raw_dynamic": tensor(shape=(None, None, 2), dtype=np.uint8, encoding="bytes"),
        "zlib": tensor(shape=(2, 3), dtype=np.int64, encoding="zlib"),
        "label": f.ClassLabel(names=["cat", "dog", "rabbit hole"]),
        "label_unnamed": f.ClassLabel(num_classes=7),
        "text": f.Text(),
        "translation": f.Translation(["de", "en"]),
        "various": f.TranslationVariableLanguages(["de", "en", "fr"]),
        "box": f.BBoxFeature(),
        "png": f.Image(shape=IMAGE, encoding_format="png"),
        "png_any": f.Image(shape=(None, None, 3)),
        "png_gray": f.Image(shape=(4, 5, 1), encoding_format="png"),
        "png_alpha": f.Image(shape=(4, 5, 4), encoding_format="png"),
        "png16": f.Image(shape=(4, 5, 1), dtype=np.uint16, encoding_format="png"),
        "png_float": f.Image(shape=(4, 5, 1), dtype=np.float32, encoding_format="png"),
        "segments": f.LabeledImage(labels=["sky", "ground"], shape=(4, 5, 1)),
        "video": f.Video(shape=(None, *IMAGE)),
        "video_fixed": f.Video(shape=(2, *IMAGE)),
        "audio": f.Audio(shape=(None,), dtype=np.int64, sample_rate=8000),
        "audio_stereo": f.Audio(shape=(None, 2), dtype=np.int32),
        "missing_int": tensor(shape=(), dtype=np.int32, optional=True),
        "missing_float": tensor(shape=(), dtype=np.float32, optional=True),
        "missing_bool": tensor(shape=(), dtype=np.bool_, optional=True),
        "missing_uint8": tensor(shape=(2,), dtype=np.uint8, optional=True),
        "missing_string": f.Scalar(np.str_, optional=True),
        "sequence": {
            "int": sequence(np.int32),
            "fixed": sequence(np.int32, length=3),
            "text": sequence(f.Text()),
            "text_fixed": sequence(f.Text(), length=2),
            "bool": sequence(np.bool_),
            "tensor": sequence(tensor(shape=(2,), dtype=np.float32)),
            "box": sequence(f.BBoxFeature()),
            "label": sequence(f.ClassLabel(names=["up", "down"])),
            "image": sequence(f.Image(shape=IMAGE)),
            "image_any": sequence(f.Image()),
            "dict": sequence({"id": np.int64, "name": f.Text(), "deep": {"x": np.float32}}),
            "raw": sequence(tensor(shape=(2,), dtype=np.int16, encoding="bytes")),
        },
        "ragged": {
            "two": sequence(sequence(np.int32)),
            "three": sequence(sequence(sequence(np.int64))),
            "text": sequence(sequence(f.Text())),
            "tensor": sequence(sequence(tensor(shape=(2, 2), dtype=np.float32))),
            "box": sequence({"boxes": sequence(f.BBoxFeature()), "label": f.ClassLabel(names=["a", "b"])}),
            "video": sequence(f.Video(shape=(None, *IMAGE))),
        },
        "steps": f.Dataset(
            {
                "action": tensor(shape=(3,), dtype=np.float32),
                "is_last": np.bool_,
                "instruction": f.Text(),
                "observation": {"image": f.Image(shape=IMAGE), "words": sequence(f.Text())},
            }
        ),
    }


def image(number: int, shape: tuple[int, int, int]) -> np.ndarray:
    height, width, bands = (np.arange(size) for size in shape)
    return ((3 * height[:, None, None] + 5 * width[:, None] + 7 * bands + 11 * number) % 256).astype(np.uint8)


def images(number: int, count: int, shape: tuple[int, int, int] = IMAGE) -> np.ndarray:
    return np.array([image(number + place, shape) for place in range(count)], np.uint8).reshape(count, *shape)


def example(number: int) -> dict[str, Any]:
    """Return one record; `count` is the length of variable-length values."""
    rng, count = np.random.default_rng(number), number % 4

    def boxes(many: int) -> list[f.BBox]:
        return [f.BBox(*np.sort(rng.random(4)).tolist()) for _ in range(many)]

    return {
        **{f"scalar/{name}": integer(rng, name) for name in INTEGERS},
        "scalar/bool": bool(number % 2),
        "scalar/uint64": np.uint64(rng.integers(0, 2**62)),
        "scalar/float16": np.float16(rng.random()),
        "scalar/float32": np.float32(rng.random()),
        "scalar/float64": float(rng.random()),
        "string": f"s\u00fc{number}",
        "a/b": number,
        "tensor": rng.random((2, 3), np.float32),
        "tensor_bool": rng.random(4) < 0.5,
        "tensor_string": np.array([f"a{number}", ""], object),
        "open": np.arange(count, dtype=np.int32),
        "open_rows": rng.random((count, 2)),
        "open_second": np.arange(2 * count, dtype=np.int32).reshape(2, count),
        "raw": rng.random((2, 3)),
        "raw_bool": rng.random(3) < 0.5,
        "raw_open": np.arange(2 * count, dtype=np.int16).reshape(count, 2),
        "raw_dynamic": np.arange(2 * count * (count + 1), dtype=np.uint8).reshape(count, count + 1, 2),
        "zlib": np.arange(6).reshape(2, 3) + number,
        "label": ["cat", "dog", "rabbit hole"][number % 3],
        "label_unnamed": number % 7,
        "text": f"\u00e9t\u00e9 {number}",
        "translation": {"de": f"der {number}", "en": f"the {number}"},
        "various": {"de": "ja", "fr": ["oui", "si"]} if count else {"en": "yes"},
        "box": boxes(1)[0],
        "png": image(number, IMAGE),
        "png_any": image(number, (2 + count, 3, 3)),
        "png_gray": image(number, (4, 5, 1)),
        "png_alpha": image(number, (4, 5, 4)),
        "png16": image(number, (4, 5, 1)).astype(np.uint16) * 200 + 3,
        "png_float": image(number, (4, 5, 1)).astype(np.float32) / 7,
        "segments": image(number, (4, 5, 1)) % 2,
        "video": images(number, count),
        "video_fixed": images(number, 2),
        "audio": np.arange(3 * count),
        "audio_stereo": np.arange(2 * count, dtype=np.int32).reshape(count, 2),
        "missing_int": None if count == 0 else number,
        "missing_float": None if count == 1 else number / 3,
        "missing_bool": None if count == 2 else True,
        "missing_uint8": None if count == 3 else np.array([1, number], np.uint8),
        "missing_string": None if count == 2 else f"m{number}",
        "sequence": {
            "int": list(range(count)),
            "fixed": [number, 2, 3],
            "text": [f"w{place}" for place in range(count)],
            "text_fixed": ["x", f"y{number}"],
            "bool": [place % 2 == 0 for place in range(count)],
            "tensor": rng.random((count, 2), np.float32),
            "box": boxes(count),
            "label": ["up", "down", "up"][:count],
            "image": list(images(number, count)),
            "image_any": list(images(number, count, (2, 3, 3))),
            "dict": [{"id": place, "name": f"n{place}", "deep": {"x": place / 2}} for place in range(count)],
            "raw": [np.array([place, number], np.int16) for place in range(count)],
        },
        "ragged": {
            "two": [list(range(place)) for place in range(count)],
            "three": [[list(range(inner)) for inner in range(place)] for place in range(count)],
            "text": [[f"{place}{inner}" for inner in range(place)] for place in range(count)],
            "tensor": [
                [np.full((2, 2), place + inner, np.float32) for inner in range(place)] for place in range(count)
            ],
            "box": [{"boxes": boxes(place), "label": place % 2} for place in range(count)],
            "video": [images(number, place + 1) for place in range(count)],
        },
        "steps": [
            {
                "action": rng.random(3, np.float32),
                "is_last": place == count,
                "instruction": f"go {place}",
                "observation": {
                    "image": image(number + place, IMAGE),
                    "words": [f"w{inner}" for inner in range(place)],
                },
            }
            for place in range(count + 1)
        ],
    }


def integer(rng: np.random.Generator, name: str) -> Any:
    limits = np.iinfo(name)
    return rng.integers(limits.min, limits.max, dtype=name, endpoint=True)


class Every(tfds.core.GeneratorBasedBuilder):
    """Data set with every feature class."""

    VERSION = tfds.core.Version("1.0.0")
    pkg_dir_path = Path(__file__).parent

    def _info(self) -> tfds.core.DatasetInfo:
        return tfds.core.DatasetInfo(builder=self, features=f.FeaturesDict(tree()))

    def _split_generators(self, _: Any) -> dict[str, Any]:
        return {"train": self._generate_examples(range(7)), "test": self._generate_examples(range(100, 103))}

    def _generate_examples(self, numbers: range) -> Iterator[tuple[int, dict[str, Any]]]:
        return ((number, example(number)) for number in numbers)


def flat(item: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Return values by key of the records; nested data sets become a list of steps."""
    if isinstance(item, dict):
        for key, value in item.items():
            yield from flat(value, f"{name}/{key}" if name else key)
    elif isinstance(item, tf.data.Dataset):
        steps = [dict(flat(step)) for step in item]
        for key in steps[0]:
            yield f"{name}/{key}", [step[key] for step in steps]
    else:
        yield name, item


def plain(value: Any) -> Any:
    """Return an array, or nested lists for ragged values."""
    if isinstance(value, tf.RaggedTensor):
        return value.to_list()
    if isinstance(value, list):
        if len({tuple(item.shape) for item in value}) > 1:
            return [plain(item).tolist() for item in value]
        return np.stack([plain(item) for item in value])
    array = value.numpy()
    return np.array(array, object) if isinstance(array, bytes) else array


def text(value: Any) -> Any:
    """Convert bytes in nested lists to text, as latin-1."""
    if isinstance(value, list):
        return [text(item) for item in value]
    return value.decode("latin-1") if isinstance(value, bytes) else value


def answers(folder: Path) -> dict[str, np.ndarray]:
    """Return the values that TFDS reads: concatenated values and shapes, or JSON for ragged values."""
    builder, arrays = tfds.builder_from_directory(folder), {}
    for split in builder.info.splits:
        in_order = tfds.ReadConfig(interleave_cycle_length=1)
        rows = [dict(flat(row)) for row in builder.as_dataset(split=split, read_config=in_order, shuffle_files=False)]
        for name in rows[0].keys() - {"ragged/video"}:
            key, values = f"{split}:{name}", [plain(row[name]) for row in rows]
            if any(isinstance(value, list) for value in values):
                lists = [text(value if isinstance(value, list) else value.tolist()) for value in values]
                arrays[f"{key}:json"] = np.frombuffer(json.dumps(lists).encode(), np.uint8)
                continue
            shapes = np.array([value.shape for value in values], np.int16)
            arrays[f"{key}:shapes"] = shapes.reshape(len(values), values[0].ndim)
            joined = np.concatenate([value.ravel() for value in values])
            if joined.dtype == object:
                arrays[f"{key}:lengths"] = np.array([len(value) for value in joined], np.int16)
                joined = np.frombuffer(b"".join(joined), np.uint8)
            arrays[f"{key}:values"] = joined
    return dict(sorted(arrays.items()))


LENGTHS = {"train": [5, 0, 7, 3], "test": [10], "val-2": [333, 334, 333], "big": [1, 2, 3, 4, 5, 6]}
SPECS = [
    "all", "all+train", "train + test", "train+train[:3]", "all[:3]", "", "train[", "train[]", "train[:]", "train[3]",
    "train[10%]", "trian", "train[1:2:3]", "train[a:b]", "train[1.5:3]", "train[1_0:]", "val-2[:0.05%]", "big[-1shard]",
    "train[0:0]", "train[50%:50%]", "big[2shard:-1shard]", "train[.:3]", " train", "train ", "train[ :3]", "train+",
    "+train", "val-2[:33%]+val-2[33%:66%]+val-2[66%:]", "train[--3:]",
]  # fmt: skip


def term(rng: random.Random) -> str:
    """Return a random split or slice, which may be invalid."""
    name, chance = rng.choice(list(LENGTHS)), rng.random()
    if chance < 0.15:
        return name
    if chance < 0.2:
        return f"{name}[{rng.randint(-4, 5)}shard]"
    unit, total = rng.choice(["", "%", "shard"]), sum(LENGTHS[name])

    def bound() -> str:
        if rng.random() < 0.25:
            return ""
        percent = rng.choice([rng.randint(-100, 100), round(rng.uniform(-100, 100), 2), 0, 100, 101])
        value = {"": rng.randint(-total - 1, total + 1), "%": percent, "shard": rng.randint(-4, 5)}[unit]
        return f"{value}{unit if rng.random() < 0.9 else ''}"

    return f"{name}[{bound()}:{bound()}]"


def split_answers() -> dict[str, Any]:
    """Return file, first record and number of records for each split; None if TFDS raises an error."""
    template = naming.ShardedFileTemplate(data_dir="/d", dataset_name="x", filetype_suffix="tfrecord")
    infos = [
        splits.SplitInfo(name=name, shard_lengths=counts, num_bytes=0, filename_template=template.replace(split=name))
        for name, counts in LENGTHS.items()
    ]
    known, rng, found = splits.SplitDict(infos), random.Random(3), {}
    specs = [rng.choice(["+", " + "]).join(term(rng) for _ in range(rng.choice([1, 1, 1, 2, 3]))) for _ in range(370)]
    for spec in [*SPECS, *specs]:
        try:
            parts = [] if spec in known else splits._make_absolute_instructions(infos, spec)
            ends = [sum(LENGTHS[part.splitname]) if part.to is None else part.to for part in parts]
            # TFDS reads wrong records, or a negative number of them, for a slice that ends before it begins.
            if any((part.from_ or 0) > end for part, end in zip(parts, ends, strict=True)):
                continue
            found[spec] = [[Path(each.filename).name, each.skip, each.take] for each in known[spec].file_instructions]
        except (ValueError, NotImplementedError):
            found[spec] = None
    return {"lengths": LENGTHS, "splits": found}


def main(target: Path) -> None:
    builder = Every(data_dir=target)
    builder.download_and_prepare(download_config=tfds.download.DownloadConfig(num_shards=3))
    np.savez_compressed(target / "every.npz", **answers(target / "every" / "1.0.0"))
    (target / "splits.json").write_text(json.dumps(split_answers(), separators=(",", ":")))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
