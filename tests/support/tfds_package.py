"""Script that lets tensorflow-datasets write and read data sets, in an interpreter without this library.

Standard input is a pickle ``(seeds, written, read)``. For each seed, the package writes a data set of random nested
features below the folder `written`; the seed "steps" is a fixed one. Then it reads them, and the folders `read`.

Standard output is a pickle ``{folder: (leaves, ways)}``. `leaves` describes the features by the keys of their records.
`ways` holds the rows that each reading function of the package returns, or the text of its error: ``as_dataset``,
``load``, ``as_data_source``; and ``written``, the rows that it was given. A row maps keys to values:
``("array", dtype, shape, data)``, ``("bytes", shape, [bytes…])``, ``("scalar", value)`` without a dtype, or
``("list", [value…])`` for the items of a sequence.
"""

from __future__ import annotations

import os
import pickle
import random
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ.update(CUDA_VISIBLE_DEVICES="-1", TF_CPP_MIN_LOG_LEVEL="3", TFDS_DISABLE_PROGRESS_BAR="1")
answers_to = os.fdopen(os.dup(1), "wb")
os.dup2(2, 1)  # TensorFlow may print messages to standard output

import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402
import tensorflow_datasets as tfds  # noqa: E402
from tensorflow_datasets import features as f  # noqa: E402

tfds.disable_progress_bar()

RECORDS = 7
NUMBERS = ("bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
FLOATS = ("float16", "float32", "float64")
WORDS = ("", "a", "\u00e9t\u00e9", "\u4e2d\u6587", "x" * 300)


# ---- features


def steps() -> dict[str, Any]:
    """Return the features of episodes, and of other data sets with nested sequences."""
    step = {
        "observation": {
            "image": f.Image(shape=(6, 5, 3), encoding_format="png"),
            "image_any": f.Image(shape=(None, None, 3), encoding_format="png"),
            "depth": f.Image(shape=(6, 5, 1), dtype=np.uint16, encoding_format="png"),
            "state": f.Tensor(shape=(8,), dtype=np.float32),
            "raw": f.Tensor(shape=(2, 3), dtype=np.float64, encoding="bytes"),
            "zlib": f.Tensor(shape=(4,), dtype=np.int16, encoding="zlib"),
            "boxes": f.Sequence(f.BBoxFeature()),
            "words": f.Sequence(f.Text()),
        },
        "action": {"pose": f.Tensor(shape=(2, 3), dtype=np.float64), "gripper": np.bool_},
        "reward": np.float32,
        "instruction": f.Text(),
        "label": f.ClassLabel(names=["pick", "place", "wait a bit"]),
        "number": np.uint64,
        "is_last": np.bool_,
    }
    objects = {
        "box": f.BBoxFeature(),
        "label": f.ClassLabel(num_classes=9),
        "area": np.int64,
        "name": f.Text(),
        "mask": f.Tensor(shape=(3,), dtype=np.uint8, encoding="bytes"),
        "crop": f.Image(shape=(None, None, 1), encoding_format="png"),
        "points": f.Sequence(f.Tensor(shape=(2,), dtype=np.float32)),
    }
    return {
        "steps": f.Dataset(step),
        "episode_metadata": {"file_path": f.Text(), "episode_id": np.int32, "deep": {"er": {"still": np.float16}}},
        "objects": f.Sequence(objects),
        "two": f.Sequence({"x": np.int32, "y": f.Tensor(shape=(2,), dtype=np.float64)}, length=2),
        "photo": f.Image(shape=(None, None, 3), encoding_format="png"),
        "caption": f.Sequence(f.Text()),
        "tree": f.Sequence(f.Sequence(f.Sequence(np.int64))),
        "video": f.Video(shape=(None, 4, 5, 3)),
        "segments": f.LabeledImage(labels=["sky", "ground"], shape=(4, 5, 1), encoding_format="png"),
        "packed": f.Tensor(shape=(None, None), dtype=np.int32, encoding="zlib"),
    }


class Features:
    """Random features, and values that fit them."""

    def __init__(self, seed: Any) -> None:
        self.random, self.numbers = random.Random(str(seed)), np.random.default_rng(zlib.crc32(str(seed).encode()))

    def tree(self, depth: int = 0, *, dataset: bool = True) -> dict[str, Any]:
        """Return a dictionary of random features."""
        names = self.random.sample(["a", "b", "c", "d", "e_1", "F", "x/y", "label", "values", "shape"], 4)
        return {name: self.feature(depth, dataset=dataset) for name in names[: self.random.randint(1, 4)]}

    def feature(self, depth: int, *, dataset: bool) -> Any:
        """Return a random feature; nested data sets only where the package reads them."""
        kind = self.random.choice(["leaf", "leaf", "sequence", "list", "dict", "dataset"]) if depth < 3 else "leaf"
        if kind == "dict":
            return self.tree(depth + 1, dataset=dataset)
        if kind == "dataset" and dataset:
            return f.Dataset(self.tree(depth + 1, dataset=False))
        if kind == "sequence":
            return f.Sequence(self.tree(depth + 1, dataset=False), length=self.random.choice([None, None, None, 2]))
        if kind == "list":
            return f.Sequence(self.feature(depth + 1, dataset=False), length=self.random.choice([None, None, None, 2]))
        return self.leaf()

    def leaf(self) -> Any:
        choose = self.random.choice
        dtype = np.dtype(choose([*NUMBERS, *FLOATS]))
        sizes = tuple(self.random.randint(1, 3) for _ in range(self.random.randint(0, 2)))
        return choose(
            [
                lambda: f.Scalar(dtype),
                lambda: f.Scalar(np.str_),
                lambda: f.Tensor(shape=sizes, dtype=dtype, encoding=choose(["none", "bytes", "zlib"])),
                lambda: f.Tensor(shape=(None, *sizes), dtype=dtype, encoding=choose(["none", "bytes", "zlib"])),
                lambda: f.Tensor(shape=(None, None), dtype=dtype, encoding=choose(["bytes", "zlib"])),
                lambda: f.Tensor(shape=sizes, dtype=np.str_),
                f.Text,
                f.BBoxFeature,
                lambda: f.ClassLabel(names=["cat", "dog", "rabbit"]),
                lambda: f.Image(shape=(4, 3, choose([1, 3, 4])), encoding_format="png"),
                lambda: f.Image(shape=(None, None, 3), encoding_format="png"),
                lambda: f.Image(shape=(4, 3, 1), dtype=np.uint16, encoding_format="png"),
            ]
        )()

    def value(self, feature: Any, *, alike: bool = False) -> Any:
        """Return a random value of a feature; `alike` gives open sizes one value.

        `as_dataset` stacks the items of a sequence, so they need one size. It does not stack the steps of a data set.
        """
        if isinstance(feature, dict | f.FeaturesDict):
            return {name: self.value(inner, alike=alike) for name, inner in feature.items()}
        if isinstance(feature, f.Dataset | f.Sequence) and not isinstance(feature, f.Video):
            length = feature._length
            length = self.random.choice([0, 1, 2, 5]) if length is None else length
            alike = alike or not isinstance(feature, f.Dataset)
            return [self.value(feature.feature, alike=alike) for _ in range(length)]
        if isinstance(feature, f.Video):
            shape = (self.random.randint(0, 3), *feature.shape[1:])
            return self.numbers.integers(0, 256, shape).astype(np.uint8)
        if isinstance(feature, f.Text):
            return self.random.choice(WORDS)
        if isinstance(feature, f.ClassLabel):
            return self.random.randrange(feature.num_classes)
        if isinstance(feature, f.BBoxFeature):
            low, high = np.sort(self.numbers.random((2, 2), np.float32), 0).tolist()
            return f.BBox(*low, *high)
        if isinstance(feature, f.Image):
            shape = self.shape(feature, 1, alike)
            top = 2 if isinstance(feature, f.LabeledImage) else 256 if feature.np_dtype == np.uint8 else 65536
            return self.numbers.integers(0, top, shape).astype(feature.np_dtype)
        return self.tensor(feature, self.shape(feature, 0, alike))

    def shape(self, feature: Any, least: int, alike: bool) -> tuple[int, ...]:
        return tuple(
            size if size is not None else 2 if alike else self.random.randint(least, 5) for size in feature.shape
        )

    def tensor(self, feature: Any, shape: tuple[int, ...]) -> Any:
        dtype = np.dtype(feature.np_dtype)
        if dtype.kind in "OSU":
            words = [self.random.choice(WORDS) for _ in range(int(np.prod(shape)))]
            return np.array(words, object).reshape(shape) if shape else words[0]
        if dtype.kind == "b":
            made = self.numbers.random(shape) < 0.5
        elif dtype.kind in "iu":
            # The package stores uint64 above the range of int64 as negative integers, which this library refuses.
            limits = np.iinfo(np.int64 if dtype == np.uint64 else dtype)
            least = 0 if dtype.kind == "u" else limits.min
            made = self.numbers.integers(least, limits.max, shape, dtype, endpoint=True)
        else:
            # Records list float32.
            made = self.numbers.standard_normal(shape).astype(np.float16 if dtype == np.float16 else np.float32)
        return np.asarray(made).astype(dtype)


def leaves(feature: Any, name: str = "", lengths: tuple[Any, ...] = ()) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the key and the description of each feature that has a key of its own."""
    if isinstance(feature, dict | f.FeaturesDict):
        for child, inner in feature.items():
            yield from leaves(inner, f"{name}/{child}" if name else child, lengths)
    elif isinstance(feature, f.Dataset | f.Sequence) and not isinstance(feature, f.Video):
        yield from leaves(feature.feature, name, (*lengths, feature._length))
    else:
        encoding = getattr(feature, "_encoding", None)
        yield (
            name,
            {
                "class": type(feature).__name__,
                "dtype": np.dtype(feature.np_dtype).name,
                "shape": feature.shape,
                "lengths": lengths,
                "encoding": getattr(encoding, "value", "none"),
            },
        )


# ---- writing and reading


def write(seed: Any, folder: Path) -> tuple[Path, list[Any]] | None:
    """Write three shards, and again in the format that data sources read; None if the package refuses the features."""
    made = Features(seed)
    try:
        features = f.FeaturesDict(steps() if seed == "steps" else made.tree())
        examples = [made.value(features) for _ in range(RECORDS)]
        for file_format in ("array_record", "tfrecord"):
            builder = tfds.dataset_builders.store_as_tfds_dataset(
                name=f"set_{seed}",
                version="1.0.0",
                features=features,
                split_datasets={"train": list(enumerate(examples))},
                data_dir=folder / file_format,
                download_config=tfds.download.DownloadConfig(num_shards=3),
                file_format=file_format,
                disable_shuffling=True,
            )
    except (NotImplementedError, ValueError, AssertionError, TypeError) as error:
        print(f"{seed}: {type(error).__name__}: {error}", file=sys.stderr)
        return None
    return Path(builder.data_dir), [dict(given(features, example)) for example in examples]


def given(feature: Any, value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield what was written, by key."""
    if isinstance(feature, dict | f.FeaturesDict):
        for child, inner in feature.items():
            yield from given(inner, value[child], f"{name}/{child}" if name else child)
    elif isinstance(feature, f.Dataset | f.Sequence) and not isinstance(feature, f.Video):
        items = [dict(given(feature.feature, item, name)) for item in value]
        for key, _ in leaves(feature.feature, name):
            yield key, ("list", [item[key] for item in items])
    elif isinstance(feature, f.BBoxFeature):
        yield name, plain(np.array([value.ymin, value.xmin, value.ymax, value.xmax], np.float32))
    elif isinstance(value, str):
        yield name, plain(value)
    else:
        yield name, plain(np.asarray(value, feature.np_dtype))


def plain(value: Any) -> Any:
    """Convert a value of any reading function to plain values."""
    if type(value).__name__ == "RaggedTensor":
        return ("list", [plain(item) for item in value])
    if hasattr(value, "numpy"):
        value = value.numpy()
    if isinstance(value, list | tuple):
        return ("list", [plain(item) for item in value])
    if isinstance(value, bytes | str | bool | int | float):
        return ("scalar", value.encode() if isinstance(value, str) else value)
    array = np.asarray(value)
    if array.dtype.kind in "OSU":
        items = [item.encode() if isinstance(item, str) else item for item in array.ravel().tolist()]
        if all(isinstance(item, bytes) for item in items):
            return ("bytes", array.shape, items)
        return ("list", [plain(item) for item in array])
    return ("array", array.dtype.name, array.shape, array.tobytes())


def flat(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values of a row by key; the steps of a nested data set become lists."""
    if isinstance(value, dict):
        for child, inner in value.items():
            yield from flat(inner, f"{name}/{child}" if name else child)
    elif hasattr(value, "element_spec") or type(value).__name__ == "PythonDataSource":
        rows = [dict(flat(step)) for step in value]
        for child in rows[0] if rows else ():
            yield f"{name}/{child}", ("list", [row[child] for row in rows])
        if not rows:
            yield name, ("list", [])
    else:
        yield name, plain(value)


def read(folder: Path) -> dict[str, Any]:
    """Read the split "train" in every way of the package, in the order of the records."""
    builder = tfds.builder_from_directory(folder)
    in_order = tfds.ReadConfig(interleave_cycle_length=1)

    def as_dataset() -> list[dict[str, Any]]:
        return [dict(flat(row)) for row in builder.as_dataset(split="train", read_config=in_order)]

    def load() -> list[dict[str, Any]]:
        name, version = folder.parts[-2:]
        rows = tfds.load(
            f"{name}:{version}", split="train", data_dir=folder.parent.parent, read_config=in_order, download=False
        )
        return [dict(flat(row)) for row in tfds.as_numpy(rows)]

    def as_data_source() -> list[dict[str, Any]]:
        # Data sources need random access, which TFRecord files lack; without a copy, the records are read in order.
        copy = folder.parents[2] / "array_record" / Path(*folder.parts[-2:])
        if copy.is_dir():
            source = tfds.builder_from_directory(copy).as_data_source(split="train")
            return [dict(flat(row)) for row in source]
        records = tf.data.TFRecordDataset(sorted(map(str, folder.glob("*.tfrecord-*"))))
        return [dict(flat(builder.info.features.deserialize_example_np(each.numpy()))) for each in records]

    ways: dict[str, Any] = {}
    for way in (as_dataset, load, as_data_source):
        try:
            ways[way.__name__] = way()
        except Exception as error:  # Each way lacks other features; its error is the answer.
            ways[way.__name__] = f"{type(error).__name__}: {error}"
    return ways


def main() -> None:
    seeds, written, others = pickle.load(sys.stdin.buffer)
    made = dict(pair for seed in seeds if (pair := write(seed, Path(written))) is not None)
    answers = {}
    for folder in [*made, *map(Path, others)]:
        features = tfds.builder_from_directory(folder).info.features
        known = {"written": made[folder]} if folder in made else {}
        answers[str(folder)] = (dict(leaves(features)), known | read(folder))
    pickle.dump(answers, answers_to)
    answers_to.close()


if __name__ == "__main__":
    main()
