"""TFDS data sets, read by means of their metadata: splits, counts, features, names of classes.

tensorflow-datasets 4.9.10 wrote and read the files: `data/tfds/every` holds each feature class,
`every.npz` the values that TFDS reads from it, and `splits.json` the records that TFDS selects for some hundred splits.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
from oracle import write_oracle
from oracle.partitions import objects
from support.commands import shown
from support.corpus import TRAX
from support.images import png
from support.paths import TESTS
from support.tasks import tasks_of
from support.wire import example

import dask_tfrecord as dtf
from dask_tfrecord.errors import CorruptRecordError, SchemaError, ShardNotFoundError
from dask_tfrecord.features import (
    Feature,
    FixedLenFeature,
    ImageFeature,
    RawFeature,
    TextFeature,
    VarLenFeature,
)
from dask_tfrecord.features.metadata.splits import TFDSFolder, TFDSSelection, TFDSSplit, find_tfds
from dask_tfrecord.features.metadata.tfds_features import read_features_json

DATA = TESTS / "data" / "tfds"
EVERY = DATA / "every" / "1.0.0"
OCTO = "octo-models__octo/tests/debug_dataset/bridge_dataset"


def schema_from_features(*text: Any) -> dtf.Schema:
    return dtf.Schema(**read_features_json(*text))


def scalar(dtype: str) -> FixedLenFeature:
    return FixedLenFeature((), dtype)


def found(path: Any, **options: Any) -> TFDSFolder:
    folder = find_tfds(path, options)
    assert folder is not None
    return folder


def features_of(path: Path) -> dtf.Schema:
    schema = found(path).schema()
    assert schema is not None
    return schema


# -- features


def test_texts_and_class_names() -> None:
    """`test_values_equal_those_of_tfds` compares dtype and shape of every feature."""
    schema = features_of(EVERY)
    texts = {name for name, feature in schema.items() if isinstance(feature, TextFeature)}
    sequences = {"sequence/text", "sequence/text_fixed", "sequence/dict/name", "steps/instruction"}
    various = {"various/language", "various/translation"}
    assert texts == {"text", "translation/de", "translation/en"} | sequences | various
    assert dict(schema.classes) == {
        "label": ("cat", "dog", "rabbit hole"),
        "segments": ("sky", "ground"),
        "sequence/label": ("up", "down"),
        "ragged/box/label": ("a", "b"),
    }
    some = dtf.read_tfrecord(EVERY, split="test", columns=["label", "text"]).schema
    assert dict(some.classes) == {"label": ("cat", "dog", "rabbit hole")}


def old(cls: str, content: Any, proto: str | None = None) -> dict[str, Any]:
    """Return a feature in the format of 2020."""
    made = {"type": f"tensorflow_datasets.core.features.some.{cls}", "content": content}
    return made if proto is None else {**made, "proto_cls": f"tensorflow_datasets.{proto}"}


OLD: dict[str, tuple[dict[str, Any], Feature]] = {
    "id": (old("Tensor", {"shape": [], "dtype": "int64"}), scalar("int64")),
    "name": (old("Tensor", {"shape": [], "dtype": "string", "encoding": "none"}), scalar("bytes")),
    "open": (old("Tensor", {"shape": [None, 2], "dtype": "uint8"}), VarLenFeature("uint8", shape=(-1, 2))),
    "raw": (old("Tensor", {"shape": [2], "dtype": "int64", "encoding": "bytes"}), RawFeature((2,), "int64")),
    "text": (old("Text", {}), TextFeature()),
    "words": (old("Text", {"use_encoder": True}), VarLenFeature("int64")),
    "label": (old("ClassLabel", {"num_classes": 3}), scalar("int64")),
    "box": (old("BBoxFeature", {}), FixedLenFeature((4,), "float32")),
    "image": (
        old("Image", {"shape": [28, 28, 1], "dtype": "uint8", "encoding_format": "png", "use_colormap": None}),
        ImageFeature((28, 28, 1), channels=1),
    ),
    "sound": (old("Audio", {"file_format": None, "shape": [None], "dtype": "int64"}), VarLenFeature("int64")),
    "flac": (old("Audio", {"file_format": "flac", "dtype": "int16", "lazy_decode": True}), scalar("bytes")),
    "film": (
        old("Video", {"shape": [None, 4, 4, 3], "encoding_format": "png", "ffmpeg_extra_args": []}),
        ImageFeature((-1, 4, 4, 3), channels=3),
    ),
    "faces": (
        old("Sequence", {"feature": old("BBoxFeature", {}), "length": None}),
        VarLenFeature("float32", shape=(-1, 4)),
    ),
    "pair": (
        old("Sequence", {"feature": old("Tensor", {"shape": [], "dtype": "int32"}), "length": 2}),
        FixedLenFeature((2,), "int32"),
    ),
    "proto": (
        old("Image", {"shape": {"dimensions": ["4", "-1", "3"]}, "dtype": "uint8"}, "ImageFeature"),
        ImageFeature((4, None, 3), channels=3),
    ),
    "proto_text": (old("ClassLabel", '{"numClasses": "3"}', "ClassLabel"), scalar("int64")),
    # Files of the time between hold features in the current format, too.
    "current": (
        {"pythonClassName": "x.Image", "image": {"shape": {"dimensions": ["-1", "-1", "1"]}, "dtype": "uint8"}},
        ImageFeature((None, None, 1), channels=1),
    ),
}


def test_the_older_form_of_the_file_is_read() -> None:
    given = {name: feature for name, (feature, _) in OLD.items()}
    for tree in (
        old("FeaturesDict", given),
        old("FeaturesDict", {"features": given}, "FeaturesDict"),
        old("FeaturesDict", json.dumps({"features": given}), "FeaturesDict"),
    ):
        assert schema_from_features(json.dumps(tree)) == {name: wanted for name, (_, wanted) in OLD.items()}


def test_nested_names_and_their_files_of_labels() -> None:
    label = old("ClassLabel", {"num_classes": 2})
    tree = old("FeaturesDict", {"a": old("FeaturesDict", {"b/c": label, "d": label}), "e": label})
    asked: list[str] = []

    def labels(stem: str) -> list[str] | None:
        asked.append(stem)
        return ["x", "y"] if stem == "a-b.c" else None

    schema = schema_from_features(json.dumps(tree), labels)
    assert list(schema) == ["a/b/c", "a/d", "e"]
    assert asked == ["a-b.c", "a-d", "e"]
    assert dict(schema.classes) == {"a/b/c": ("x", "y")}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "Expecting value"),
        ("[]", "features.json can't be read"),
        ("[" * 100_000, "RecursionError"),
        (json.dumps(old("Text", {})), "the outermost feature of a data set must be a FeaturesDict; got text"),
        (
            json.dumps(old("FeaturesDict", {"x": old("MyFeature", {})})),
            "the storage format of class 'MyFeature' is unknown",
        ),
        (
            '{"featuresDict": {"features": {"x": {"pythonClassName": "my.Own", "jsonFeature": {"json": "{}"}}}}}',
            "the storage format of class 'Own' is unknown",
        ),
        (
            json.dumps(old("FeaturesDict", {"x": old("Image", {"shape": [4], "dtype": "uint8"})})),
            "feature 'x': an image must have a shape (height, width, channels)",
        ),
        (
            json.dumps(old("FeaturesDict", {"x": old("Tensor", {"shape": [], "dtype": "complex64"})})),
            "feature 'x': FixedLenFeature: expected dtype",
        ),
    ],
)
def test_unreadable_features_are_reported(text: str, reason: str) -> None:
    with pytest.raises(SchemaError, match="infer_schema") as caught:
        schema_from_features(text)
    assert reason in str(caught.value)


# -- splits


def test_splits_select_the_records_of_tfds() -> None:
    golden = json.loads((DATA / "splits.json").read_text())
    splits = tuple(
        TFDSSplit(name, tuple(f"/d/x-{name}.tfrecord-{i:05d}-of-{len(n):05d}" for i in range(len(n))), tuple(n))
        for name, n in golden["lengths"].items()
    )
    folder = TFDSFolder("/d", splits, {})
    answers: Mapping[str, Any] = golden["splits"]
    assert sum(bool(answer) for answer in answers.values()) > 100
    for spec, answer in answers.items():
        wanted = [(file, number) for file, skip, take in answer or () for number in range(skip, skip + take)]
        if wanted:
            selection = folder.select(spec)
            counted = zip(selection.files, selection.counts or (), strict=True)
            rows = [(Path(file).name, number) for file, count in counted for number in range(count)]
            spans = selection.spans or [(0, len(rows))]
            assert [row for start, stop in spans for row in rows[start:stop]] == wanted, spec
        else:
            with pytest.raises(SchemaError):
                folder.select(spec)


def test_a_slice_opens_only_its_own_files() -> None:
    folder = found(EVERY)
    names = [f"every-train.tfrecord-{shard:05d}-of-00003" for shard in range(3)]
    assert [Path(file).name for file in folder.select("train").files] == names
    assert folder.select("train") == TFDSSelection(tuple(str(EVERY / name) for name in names), (2, 3, 2), None)
    assert folder.select("train[2:5]") == TFDSSelection((str(EVERY / names[1]),), (3,), None)
    assert folder.select("train[3:4]") == TFDSSelection((str(EVERY / names[1]),), (3,), ((1, 2),))
    both = folder.select("test+train[-1:]")
    assert (both.counts, both.spans) == ((1, 1, 1, 2), ((0, 3), (4, 5)))


@pytest.mark.parametrize(
    ("split", "reason"),
    [
        (None, "a TFDS data set with 2 splits: give split=, one of 'train', 'test'"),
        ("trian", r"split 'trian' does not exist; the splits are 'train' \(7 records\), 'test' \(3 records\)"),
        ("train[:8]", "reaches past the end: there are 7 records"),
        ("train[:101%]", "percentages must be from -100 to 100"),
        ("train[3]", r"\[3\] is not a slice: a split is a name, NAME\[from:to\]"),
        ("train[2:2]", "holds no records"),
        ("all[:2]", "'all' can't be sliced"),
        ("train[", r"'train\[' is not a split"),
        (3, "split must be a string"),
    ],
)
def test_the_error_for_an_invalid_split_lists_the_splits(split: Any, reason: str) -> None:
    with pytest.raises(SchemaError, match=reason) as caught:
        found(EVERY).select(split)
    if isinstance(split, str) or split is None:
        assert caught.value.place is not None
        assert caught.value.place.file == str(EVERY)


# -- directories


@pytest.fixture
def copy(tmp_path: Path) -> Callable[..., Path]:
    """Function that copies the directory and changes its metadata."""

    def make(**changes: Any) -> Path:
        folder = tmp_path / "every" / "1.0.0"
        shutil.copytree(EVERY, folder, dirs_exist_ok=True)
        info = json.loads((EVERY / "dataset_info.json").read_text())
        (folder / "dataset_info.json").write_text(json.dumps({**info, **changes}))
        return folder

    return make


def test_the_only_version_is_found_in_the_directory_above(copy: Callable[..., Path]) -> None:
    folder = copy()
    assert found(folder.parent) == found(folder)
    # Directories that are not versions, and versions without metadata, are ignored.
    (folder.parent / "2.0.0").mkdir()
    (folder.parent / "incomplete.1.0.1").mkdir()
    assert found(folder.parent) == found(folder)
    shutil.copytree(folder, folder.parent / "1.1.0")
    with pytest.raises(SchemaError, match=r"several versions of a TFDS data set: open one of 1\.0\.0, 1\.1\.0"):
        find_tfds(folder.parent)
    assert find_tfds(folder.parent.parent) is None
    assert find_tfds(folder / "features.json") is None
    assert find_tfds(folder / "not_there") is None


def test_templates_name_the_shards(copy: Callable[..., Path]) -> None:
    def files(template: str | None, count: int, name: str = "every") -> list[str]:
        split = {"name": "train", "shardLengths": ["1"] * count}
        folder = copy(name=name, splits=[split if template is None else {**split, "filepathTemplate": template}])
        return [str(Path(file).relative_to(folder)) for file in found(folder).select("train").files[-2:]]

    assert files(None, 2) == ["every-train.tfrecord-00000-of-00002", "every-train.tfrecord-00001-of-00002"]
    assert files("", 1, "other") == ["other-train.tfrecord-00000-of-00001"]
    assert files("{SPLIT}/part.{FILEFORMAT}-{SHARD_INDEX}", 2) == [
        "train/part.tfrecord-00000",
        "train/part.tfrecord-00001",
    ]
    assert files("{SHARD_INDEX}_{NUM_SHARDS}", 100_000)[-1] == "099999_100000"
    alternative = found(copy(fileFormat="array_record", alternativeFileFormats=["tfrecord"]))
    assert alternative.select("test").files[0].endswith("every-test.tfrecord-00000-of-00003")
    assert files("100% {}-{SHARD_INDEX}-{SHARD_X_OF_Y}", 1, "%s") == ["100% {}-00000-00000-of-00001"]
    with pytest.raises(SchemaError, match="has field 'SHARD'; known are DATASET, SPLIT"):
        files("{SHARD}", 1)


def test_unknown_counts(copy: Callable[..., Path]) -> None:
    """Old data sets may have the number of shards without record counts."""
    folder = found(copy(splits=[{"name": "train", "numShards": "3"}, {"name": "test", "shardLengths": ["2"]}]))
    assert folder.select("train").counts is None
    assert len(folder.select("train").files) == 3
    assert folder.select("all").counts is None
    assert folder.select("train+test[:2]") == TFDSSelection(folder.select("all").files, None, None)
    with pytest.raises(SchemaError, match="lacks the record counts of 'train'"):
        folder.select("train[:1]")
    with pytest.raises(SchemaError, match="read slices one by one"):
        folder.select("train+test[:1]")


# Templates of paths outside of the directory.
TEMPLATES = [
    *("../secret/{DATASET}", "a/../../secret/d", "/etc/passwd", "..", "..\\secret\\d", "C:\\d"),
    *("file:///etc/passwd", "simplecache::d", "{SPLIT}/../../secret/d", 5, ["a"]),
]
LENGTHS = [[2**70], [-5], ["-5"], [3.5], [True], [None], ["4"] * 3 + [str(2**63 - 1)], [[1]], ["many"]]
NUMBERS = (-1, 2**70, 1.5, [2], "1000000000000")


@pytest.mark.parametrize(
    ("split", "reason"),
    [
        *(({"filepathTemplate": each}, "(the metadata name|a filepathT)") for each in TEMPLATES),
        ({"name": "../../secret/d", "filepathTemplate": "{SPLIT}"}, "not within the directory of the data set"),
        *(({"shardLengths": each}, "shardLengths|invalid literal") for each in LENGTHS),
        *(({"shardLengths": [], "numShards": each}, "numShards|up to 1,000,000 shards") for each in NUMBERS),
        ({"splits": [{"shardLengths": ["1"]}]}, "'name'"),
        ({"fileFormat": "array_record"}, "in the format 'array_record'"),
        ({"splits": 3}, "not iterable"),
    ],
    ids=str,
)
def test_metadata_of_other_files_and_impossible_numbers_are_refused(
    copy: Callable[..., Path], split: dict[str, Any], reason: str
) -> None:
    whole = split if split.keys() & {"fileFormat", "splits"} else {}
    folder = copy(**{"splits": [{"name": "train", "shardLengths": ["7"], **split}], **whole})
    (folder.parent / "secret").mkdir()
    (folder.parent / "secret" / "d").write_text("not to be listed")
    with pytest.raises(SchemaError, match=reason) as caught:
        dtf.read_tfrecord(folder)
    assert str(folder / "dataset_info.json") in str(caught.value) and "not to be listed" not in str(caught.value)


def test_files_in_directories_of_the_data_set_and_links_are_read(copy: Callable[..., Path]) -> None:
    folder = copy(splits=[{"name": "test", "shardLengths": ["3"], "filepathTemplate": "shards/{SHARD_X_OF_Y}"}])
    (folder / "shards").mkdir()
    dtf.copy_tfrecord(folder / "every-test*", folder / "other.tfrecord")
    (folder / "shards" / "00000-of-00001").symlink_to(folder / "other.tfrecord")
    assert dtf.read_tfrecord(folder, columns=["label"]).compute()["label"].shape == (3,)


def test_corpus_directories(corpus: Path) -> None:
    octo = found(corpus / OCTO)
    assert [(split.name, split.counts) for split in octo.splits] == [("train", (25,)), ("val", (25,))]
    old = found(corpus / TRAX / "para_crawl" / "ende")
    assert old.schema() == dtf.Schema({"de": TextFeature(), "en": TextFeature()})
    # Data sets before 2020 lack features.json.
    older = found(corpus / TRAX / "squad" / "v1.1")
    assert older.schema() is None
    assert older.select("validation").counts == (10,)


def test_classes_without_features_are_read_from_their_files(copy: Callable[..., Path]) -> None:
    folder = copy()
    written = dtf.read_tfrecord(folder, split="train").schema
    assert written.classes["label"]
    (folder / "features.json").unlink()
    (folder / "label.labels.txt").write_text("ant\nbee\n")
    (folder / "unknown.labels.txt").write_text("cat\n")
    inferred = dtf.read_tfrecord(folder, split="train").schema
    assert inferred.sampling is not None and inferred.classes["label"] == ("ant", "bee")
    # So are the classes of a list of labels, whose file has a nested name.
    assert inferred.classes["sequence/label"] == written.classes["sequence/label"]
    assert "2: ant, bee" in shown("schema", folder, "--split", "train", columns=400)
    with pytest.raises(dtf.errors.UnknownFeatureError, match="labl"):
        inferred.with_classes({"labl": ["ant"]})


# -- reading

# TFDS converts these features further; a user does so with these functions.
STEPS: dict[str, Callable[[Any], Any]] = {
    "open_second": lambda row: row.reshape(2, -1),
}
# Images of any size in a row are compared one by one; tensors of several unknown sizes become shape and values.
PARTS = ("json", "values", "shapes", "lengths")
APART = {"sequence/image_any", "ragged/video", "raw_dynamic", "raw_dynamic/shape", "raw_dynamic/value"}


def recorded_rows(split: str, name: str) -> list[Any]:
    """Return the rows that TFDS read: an array each, or nested lists of ragged tensors with bytes as latin-1."""
    with np.load(DATA / "every.npz") as stored:
        parts = {part: stored[f"{split}:{name}:{part}"] for part in PARTS if f"{split}:{name}:{part}" in stored}
    if "json" in parts:
        made: list[Any] = json.loads(parts["json"].tobytes())
        return made
    values, shapes = parts["values"], parts["shapes"]
    if "lengths" in parts:
        ends = np.cumsum(parts["lengths"]).tolist()
        values = objects([values[start:end].tobytes() for start, end in pairwise([0, *ends])])
    cuts = np.cumsum([int(np.prod(shape)) for shape in shapes])[:-1]
    return [row.reshape(shape) for row, shape in zip(np.split(values, cuts), shapes, strict=True)]


def plain(row: Any) -> Any:
    """Convert a row of ragged values to nested lists."""
    if isinstance(row, np.ndarray):
        return [plain(item) for item in row] if row.dtype == object else row.tolist()
    return row.decode("latin-1") if isinstance(row, bytes) else row


def check_row(found: Any, wanted: Any, name: str) -> None:
    if isinstance(wanted, list):
        assert plain(found) == wanted, name
        return
    if isinstance(found, str):
        found = np.array(found.encode(), object)
    if isinstance(found, np.ndarray) and found.dtype.kind == "T":
        found = np.array([text.encode() for text in found.tolist()], object)
    if wanted.dtype == object:
        found = np.array(found, object)
    assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape), name
    assert np.array_equal(found, wanted), name


@pytest.mark.parametrize("split", ["train", "test"])
def test_values_equal_those_of_tfds(split: str) -> None:
    ds = dtf.read_tfrecord(EVERY, split=split)
    assert ds.nrows == {"train": 7, "test": 3}[split]
    keys = [key.split(":") for key in np.load(DATA / "every.npz")]
    assert set(ds) - APART == {name for of, name, _ in keys if of == split} - APART
    columns = ds.compute()
    for name in set(ds) - APART:
        wanted = recorded_rows(split, name)
        step = STEPS.get(name, lambda row: row)
        assert len(columns[name]) == len(wanted)
        for row, answer in zip(columns[name], wanted, strict=True):
            check_row(step(row), answer, name)
    for images, answer in zip(columns["sequence/image_any"], recorded_rows(split, "sequence/image_any"), strict=True):
        assert len(images) == len(answer)
        assert all(map(np.array_equal, images, answer))
    for shape, values in zip(columns["raw_dynamic/shape"], columns["raw_dynamic/value"], strict=True):
        assert np.array_equal(values.reshape(shape).ravel(), np.arange(np.prod(shape), dtype=np.uint8))


def test_slices_are_cut_from_the_records() -> None:
    everything = np.concatenate([dtf.read_tfrecord(EVERY, split=each)["a/b"].compute() for each in ("train", "test")])
    train, test = everything[:7], everything[7:]
    for split, wanted in {
        "all": everything,
        "test+train": np.concatenate([test, train]),
        "train[:30%]": train[:2],
        "train[-3:]": train[-3:],
        "train[1shard]": train[2:5],
        "train[3:5]+test+train[:4]": np.concatenate([train[3:5], test, train[:4]]),
    }.items():
        for chunks in ("auto", "shard", 2, "1 KiB"):
            ds = dtf.read_tfrecord(EVERY, split=split, columns=["a/b"], chunks=chunks)
            assert ds.nrows == len(wanted)
            assert np.array_equal(ds["a/b"].compute(), wanted), (split, chunks)
            assert np.array_equal(ds.compute()["a/b"], wanted), (split, chunks)
    # Uniform chunks are counted from the start of the slice.
    assert dtf.read_tfrecord(EVERY, split="train[1:]", chunks=4).chunks == (4, 2)
    assert dtf.read_tfrecord(EVERY, split="train[1:]", chunks="shard").chunks == (1, 3, 2)


def test_counts_of_the_metadata_are_used() -> None:
    with tasks_of("tfrecord:counting") as counted:
        wanted = dtf.read_tfrecord(EVERY, split="train", columns=["label"], counts="scan")["label"].compute()
    assert counted
    with tasks_of("tfrecord:counting") as counted:
        ds = dtf.read_tfrecord(EVERY, split="train", columns=["label"])
        assert ds.nrows == 7
        assert np.array_equal(ds["label"].compute(), wanted)
        uncounted = dtf.read_tfrecord(EVERY, split="train", columns=["label"], counts=None)
    assert not counted
    assert uncounted.nrows is None
    assert np.array_equal(uncounted["label"].compute(), wanted)
    with pytest.raises(ValueError, match="a part of a split needs counted records"):
        dtf.read_tfrecord(EVERY, split="train[:1]", counts=None)


def test_metadata_that_do_not_fit_the_shards(copy: Callable[..., Path]) -> None:
    folder = copy(splits=[{"name": "train", "shardLengths": ["2", "4", "2"]}])
    for path in sorted(folder.glob("every-train*")):
        shutil.copy(EVERY / path.name, path)
    with pytest.raises(CorruptRecordError, match=r"every-train\.tfrecord-00001-of-00003") as caught:
        dtf.read_tfrecord(folder, columns=["label"]).compute()
    assert "4" in str(caught.value)
    # Counting reports the actual records, except for a slice.
    assert dtf.read_tfrecord(folder, columns=["label"], counts="scan").nrows == 7
    with pytest.raises(SchemaError, match="expected 4 records by the metadata, found 3; the split is defined by"):
        dtf.read_tfrecord(folder, split="train[:3]", counts="scan")


def test_arguments_override_the_metadata(copy: Callable[..., Path], tmp_path: Path) -> None:
    folder = copy()
    ds = dtf.read_tfrecord(folder, {"label": scalar("int64"), "text": scalar("bytes")}, split="test")
    assert ds.schema == {"label": scalar("int64"), "text": scalar("bytes")}
    assert list(dtf.read_tfrecord(folder, split="test", columns=["text", "label"])) == ["text", "label"]
    dtf.Schema({"label": scalar("int64")}).to_pbtxt(tmp_path / "own.pbtxt")
    by_file = dtf.read_tfrecord(folder, tmp_path / "own.pbtxt", split="test")
    assert np.array_equal(by_file["label"].compute(), ds["label"].compute())
    # An invalid features.json is ignored if features are given.
    (folder / "features.json").write_text("{}")
    with pytest.raises(SchemaError, match=r"features\.json can't be read"):
        dtf.read_tfrecord(folder, split="test")
    assert list(dtf.read_tfrecord(folder, {"label": scalar("int64")}, split="test")) == ["label"]
    (folder / "features.json").unlink()
    with pytest.raises(SchemaError, match="unknown column"):
        dtf.read_tfrecord(folder, split="test", columns=["unknown column"])
    assert dtf.read_tfrecord(folder, split="test", columns=["label"]).schema["label"] == scalar("int64")


def test_directories_of_tfds_are_detected(copy: Callable[..., Path], tmp_path: Path) -> None:
    folder = copy()
    for path in (folder, folder.parent):
        with pytest.raises(SchemaError, match="give split=, one of 'train', 'test'"):
            dtf.read_tfrecord(path)
    # A glob, a list or a file does not use the metadata.
    assert dtf.read_tfrecord(folder / "every-test*", columns=["label"]).nrows == 3
    only = copy(splits=[{"name": "test", "shardLengths": ["1", "1", "1"]}])
    for path in (only, only.parent, str(only) + "/", f"file://{only}"):
        assert dtf.read_tfrecord(path, columns=["text"])["text"].dtype == np.dtypes.StringDType()
    for path in (tmp_path, tmp_path / "not_there", folder / "features.json"):
        with pytest.raises(ShardNotFoundError, match="split='train' requires a TFDS data set: expected a directory"):
            dtf.read_tfrecord(path, split="train")
    with pytest.raises(SchemaError, match="got a list of paths"):
        dtf.read_tfrecord([folder], split="train")
    with pytest.raises(SchemaError, match="the split has no shards"):
        dtf.read_tfrecord(copy(splits=[{"name": "train"}]), split="train")
    with pytest.raises(ShardNotFoundError, match="every-val"):
        dtf.read_tfrecord(copy(splits=[{"name": "val", "shardLengths": ["1"]}]), split="val")


def test_directories_of_hugging_face_are_ignored(copy: Callable[..., Path]) -> None:
    folder = copy(splits={"train": {"name": "train", "num_examples": 10}})
    for path in folder.glob("*.txt"):
        path.unlink()
    assert dtf.read_tfrecord(folder, {"label": scalar("int64")}).nrows == 10
    with pytest.raises(ShardNotFoundError, match=r"expected a directory with a dataset_info\.json"):
        dtf.read_tfrecord(folder, split="train")


def test_metadata_and_records_on_another_file_system() -> None:
    fs = fsspec.filesystem("memory")
    for path in EVERY.iterdir():
        fs.pipe_file(f"/tfds-read/every/1.0.0/{path.name}", path.read_bytes())
    try:
        wanted = dtf.read_tfrecord(EVERY, split="test+train[:2]", columns=["text"]).compute()["text"]
        for url in ("memory://tfds-read/every", "memory://tfds-read/every/", "memory://tfds-read/every/1.0.0"):
            ds = dtf.read_tfrecord(url, split="test+train[:2]")
            assert ds.schema == features_of(EVERY)
            assert (ds["text"].compute() == wanted).all()
            with pytest.raises(SchemaError, match="give split="):
                dtf.read_tfrecord(url)
    finally:
        fs.rm("/tfds-read", recursive=True)


def test_images_in_sequences_of_steps(tmp_path: Path) -> None:
    image = {"pythonClassName": "x.Image", "image": {"shape": {"dimensions": ["1", "2", "3"]}, "dtype": "uint8"}}
    depth = {"pythonClassName": "x.Image", "image": {"shape": {"dimensions": ["1", "2", "1"]}, "dtype": "float32"}}
    any_image = {"pythonClassName": "x.Image", "image": {"shape": {"dimensions": ["-1", "2", "3"]}, "dtype": "uint8"}}

    def sequence(feature: Any) -> dict[str, Any]:
        return {"pythonClassName": "x.Sequence", "sequence": {"feature": feature, "length": "-1"}}

    def named(features: dict[str, Any]) -> dict[str, Any]:
        return {"pythonClassName": "x.FeaturesDict", "featuresDict": {"features": features}}

    views = {"image": sequence(image), "depth": sequence(depth), "any": sequence(any_image)}
    schema = schema_from_features(json.dumps(named({"steps": sequence(named(views))})))
    pixels = np.arange(18, dtype=np.uint8).reshape(3, 1, 2, 3)
    floats = np.float32([[[[0.5], [2]]]] * 3)

    def keys(name: str, files: list[bytes]) -> dict[str, Any]:
        return {f"steps/{name}/ragged_flat_values": files, f"steps/{name}/ragged_row_lengths_0": [2, 0, 1]}

    files = list(map(png, pixels))
    record = keys("image", files) | keys("depth", [png(each.view("uint8")) for each in floats]) | keys("any", files)
    write_oracle(tmp_path / "a", [example(**record)])
    found = {name: column[0] for name, column in dtf.read_tfrecord(tmp_path / "a", schema).compute().items()}
    assert [each.shape for each in found["steps/image"]] == [(2, 1, 2, 3), (0, 1, 2, 3), (1, 1, 2, 3)]
    assert np.array_equal(np.concatenate([*found["steps/image"]]), pixels)
    assert np.array_equal(np.concatenate([*found["steps/depth"]]), floats)
    assert [list(each) for each in found["steps/any"]] == [files[:2], [], files[2:]]
    frames = dtf.read_tfrecord(tmp_path / "a", schema).explode("steps")
    assert [len(each) for each in frames["steps/image"].compute()] == [2, 0, 1]
