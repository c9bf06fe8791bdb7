"""Reports on records: counts, conflicts, suggestions, and specs."""

from __future__ import annotations

import base64
import gzip
import io
import json
import pickle
import re
import wave
import zlib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import dask
import numpy as np
import oracle
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from oracle.strategies import CHARACTERS
from support.images import by_pillow
from support.wire import delimited, example, sequence_example, varint

import dask_tfrecord as dtf
from dask_tfrecord.errors import CorruptRecordError, Location, SchemaError
from dask_tfrecord.features.inference.payload_type import detect_image, detect_tensor, is_probably_text
from dask_tfrecord.features.inference.report import FeatureReport, Report
from dask_tfrecord.features.inference.survey import Histogram, Survey, survey


def places(payloads: Sequence[bytes], file: str = "a") -> list[tuple[Location, bytes]]:
    return [(Location(file, number, 0), payload) for number, payload in enumerate(payloads)]


def report(*payloads: bytes) -> Report:
    return Report.from_survey(survey(places(payloads)))


def only(found: Report) -> FeatureReport:
    (feature,) = found.features
    return feature


def encoded(shape: tuple[int, ...], form: str, dtype: str = "uint8", **options: Any) -> bytes:
    return by_pillow(np.zeros(shape, dtype), form, **options)


# -- counting ----------------------------------------------------------------------------------------------------------


@given(parts=st.lists(st.lists(st.integers(0, 300), max_size=120), max_size=4))
def test_merged_histograms_equal_that_of_the_whole(parts: list[list[int]]) -> None:
    merged = Histogram()
    for part in parts:
        histogram = Histogram()
        for number in part:
            histogram.add(number)
        merged.merge(histogram)
    numbers = [number for part in parts for number in part]
    bins = merged.bins()
    assert sum(times for *_, times in bins) == len(numbers)
    for low, high, times in bins:
        assert sum(low <= number <= high for number in numbers) == times
    if numbers:
        assert merged.extent() == (min(numbers), max(numbers))
    if len(set(numbers)) <= 64:
        assert bins == tuple((number, number, times) for number, times in sorted(Counter(numbers).items()))
    else:
        assert len(bins) <= 10


def test_many_lengths_take_the_memory_of_a_few() -> None:
    histogram = Histogram()
    for number in range(0, 150_000, 3):
        histogram.add(number)
    assert len(pickle.dumps(histogram)) < 2000
    assert (histogram.extent(), histogram.common_divisor()) == ((0, 149_997), 3)


VALUES = st.lists(st.integers(-2, 2), max_size=3) | st.lists(st.sampled_from([b"", b"\x00", b"t"]), max_size=2)


@given(
    shards=st.lists(st.lists(st.dictionaries(st.sampled_from("xyz"), VALUES), max_size=6), min_size=1, max_size=14),
    data=st.data(),
)
def test_merged_surveys_equal_that_of_the_whole(shards: list[list[dict[str, Any]]], data: st.DataObject) -> None:
    records = [
        record
        for number, shard in enumerate(shards)
        for record in places([example(**values) for values in shard], f"shard-{number}")
    ]
    cuts = sorted(data.draw(st.lists(st.integers(0, len(records)), max_size=5)))
    merged = Survey()
    for start, stop in zip([0, *cuts], [*cuts, len(records)], strict=True):
        merged.merge(pickle.loads(pickle.dumps(survey(records[start:stop]))))
    assert Report.from_survey(merged) == Report.from_survey(survey(records))


@pytest.mark.parametrize("size", ["128 MiB", "64 kiB"])
def test_a_collection_read_in_parts_is_reported_as_a_whole(tmp_path: Path, size: str) -> None:
    records = []
    for shard in range(20):
        payloads = [example(x=[shard] * (record % 5), t=[b"text"]) for record in range(50)]
        # The second shard is large enough to be split.
        payloads = [example(big=[bytes(50_000)])] * 60 if shard == 1 else payloads
        path = tmp_path / f"part-{shard:05d}"
        oracle.write_oracle(path, payloads)
        offsets = np.cumsum([0, *(len(payload) + 16 for payload in payloads)]).tolist()
        records += [(Location(str(path), number, offsets[number]), each) for number, each in enumerate(payloads)]
    with dask.config.set({"array.chunk-size": size, "scheduler": "threads"}):
        found = dtf.inspect_records(tmp_path, sample=None)
    assert found == Report.from_survey(survey(records))
    assert (found.records, found.shards) == (19 * 50 + 60, 20)


def test_a_report_has_presence_kinds_counts_and_conflicts() -> None:
    first = places([example(x=[1], n=[]), example(x=[1, 2]), example()], "a")
    second = places([example(x=[0.5], y=[b"t"]), example(x=[3, 4])], "b")
    found = Report.from_survey(survey([*first, *second]))
    n, x, y = found.features
    assert (found.message, found.records, found.shards, found.unset) == ("Example", 5, 2, ("n",))
    assert (x.present, x.unset, x.counts) == (4, 0, ((1, 1, 2), (2, 2, 2)))
    assert [(kind.kind, kind.records, kind.by_shard) for kind in x.kinds] == [
        ("int64", 3, (("a", 2), ("b", 1))),
        ("float32", 1, (("b", 1),)),
    ]
    assert (n.present, n.unset, n.kinds, y.present, found.conflicts) == (0, 1, (), 1, (x,))
    with pytest.raises(SchemaError, match=r"int64 in 3 records of 2 shards \(a: 2, b: 1\); float32 in 1 record of 1"):
        _ = found.schema
    assert "values of several kinds:\n'x': int64 in 3 records" in repr(found)
    many = [record for number in range(25) for record in places([example(x=[1])], f"s{number}")]
    assert str(only(Report.from_survey(survey(many))).kinds[0]).endswith("s9: 1, … 15 more)")


def test_steps_and_their_values_are_counted_apart() -> None:
    records = [sequence_example(s=[[1, 2]] * 3), sequence_example(s=[[3, 4]]), sequence_example(s=[])]
    found = only(report(*records))
    assert (found.counts, found.steps) == (((2, 2, 4),), ((0, 0, 1), (1, 1, 1), (3, 3, 1)))
    assert found.values == "2 in each of 0 to 3 steps"
    assert repr(report(example(x=[1]), records[0])).startswith(
        "Report on 2 SequenceExamples of 1 shard, 1 record without feature lists\nfeature  kind"
    )


# ------------------------------------------------------------------------------------------- values of several kinds


def test_error_for_steps_of_several_kinds_recommends_to_leave_them_out(tmp_path: Path) -> None:
    path = tmp_path / "walks.tfrecord"
    walks = [
        sequence_example({"id": [1]}, s=[[1], [2.5]], t=[[1]]),
        sequence_example({"id": [2]}, s=[[3]], t=[[2], [3]]),
    ]
    oracle.write_oracle(path, walks)
    with pytest.raises(SchemaError) as caught:
        dtf.infer_schema(path)
    assert str(caught.value) == (
        f"{path}: record 0 (byte 0): feature 's' holds values of 2 kinds, and a column has one: int64 in 2 records; "
        'float32 in 1 record; steps of one record differ in 1 record. dtf.FixedLenSequenceFeature((), "float64", '
        "mixed=True) reads integers and floats; or give "
        "features= and sequence_features= without it ({} for no feature lists), as inspect_records(urlpath).spec() "
        "writes them; inspect_records(urlpath, sample=None) reports all records"
    )
    ds = dtf.read_tfrecord(path, pasted(dtf.inspect_records(path).spec()))
    assert ds["id"].compute().tolist() == [1, 2]
    assert [list(map(int, row)) for row in ds["t"].compute()] == [[1, 0], [2, 3]]


def test_shards_of_one_kind_are_recommended_only_if_they_exist(tmp_path: Path) -> None:
    first, second, both = (tmp_path / name for name in ("a.tfrecord", "b.tfrecord", "c.tfrecord"))
    for path, payloads in {
        first: [example(x=[1])],
        second: [example(x=[b"1.5"])],
        both: [example(x=[1]), example(x=[b"1.5"])],
    }.items():
        oracle.write_oracle(path, payloads)
    for paths, said in (
        (
            [first, second],
            rf"\({re.escape(str(second))}: 1\)\. Read the shards of one kind, or give features= without it",
        ),
        ([first, second, both], "Read the records of one kind with a feature of that kind, or give"),
        ([both], "Read the records of one kind with a feature of that kind, or give"),
    ):
        with pytest.raises(SchemaError, match=said) as caught:
            dtf.infer_schema(paths)
    assert str(caught.value).count(str(both)) == 1


# -- suggestions -------------------------------------------------------------------------------------------------------


def tensor(number: int, shape: tuple[int, ...], content: bytes, field: int = 4) -> bytes:
    """Serialize a TensorProto whose values are in this field."""
    sizes = b"".join(delimited(2, b"\x08" + varint(size)) for size in shape)
    return b"\x08" + varint(number) + delimited(2, sizes) + (delimited(field, content) if content else b"")


GRAY, DEEP = encoded((5, 6), "PNG"), encoded((5, 6), "PNG", "uint16")
SIZES = [encoded((5, 6, 3), "PNG")], [encoded((7, 6, 3), "JPEG")], [encoded((7, 6), "GIF")]
BOXES = [[0.5] * number for number in (4, 8, 12)]


# Values of `x` in each record, None for a record without it; and the beginning of what is suggested.
def saved(array: NDArray[Any]) -> bytes:
    """Return the bytes of an .npy file."""
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def wav(channels: int) -> bytes:
    """Write a WAV file of 16 bits."""
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setparams((channels, 2, 8_000, 0, "NONE", ""))
        out.writeframes(bytes(8 * channels))
    return file.getvalue()


JPEG = encoded((5, 6, 3), "JPEG")


SUGGESTED: list[tuple[Sequence[Sequence[Any] | None], str]] = [
    ([[b"one"], ["größe".encode()]], "or dtf.TextFeature(): text, all 2 values"),
    ([[b"one"], [b"\xff"]], ""),
    ([[b"a\x00b"], [b"text"]], ""),
    ([[b""], [b""]], ""),
    ([[b"one", b"two"], [b"three"]], "or dtf.TextFeature(count=-1): text, all 3 values"),
    ([[b"one", b"two"]], "or dtf.TextFeature(count=2): text, all 2 values"),
    ([[b"one"], None], 'or dtf.TextFeature(default_value=""): text, the only value'),
    ([[GRAY]], "or dtf.ImageFeature(shape=(5, 6, 1)): PNG images of 5 x 6 x 1, the only value"),
    ([[GRAY], [encoded((5, 6, 4), "PNG")]], "or dtf.ImageFeature(): PNG images of 5 x 6 x ?, all 2 values"),
    ([[encoded((5, 6, 4), "WEBP", lossless=True)]], "or dtf.ImageFeature(shape=(5, 6, "),
    *(
        ([[encoded((12, 34, 3), form, **options)]], f"or dtf.ImageFeature(shape=(12, 34, 3)): {form} images of 12 x 34")
        for form, options in (
            ("JPEG", {}),
            ("JPEG", {"progressive": True}),
            ("PNG", {}),
            ("BMP", {}),
            ("WebP", {}),
            ("WebP", {"lossless": True}),
            ("WebP", {"exif": b"Exif\x00\x00MM\x00*\x00\x00\x00\x08\x00\x00\x00\x00\x00\x00"}),
        )
    ),
    ([[DEEP]], 'or dtf.ImageFeature(shape=(5, 6, 1), dtype="uint16"): PNG'),
    (SIZES, "or dtf.ImageFeature(): images of ? x 6 x 3, all 3 values"),
    ([*SIZES, [b"none"]], ""),
    ([[GRAY] * 2, [GRAY]], "or dtf.ImageFeature(shape=(-1, 5, 6, 1)): PNG images of 5 x 6 x 1, all 3 values"),
    ([[tensor(1, (2, 3), bytes(24))]], 'or dtf.TensorFeature((2, 3), "float32"): tensors of '),
    ([[tensor(9, (), bytes(8))]], 'or dtf.TensorFeature((), "int64"): tensors of '),
    ([[tensor(3, (4,), b"\x07", field=7)]], 'or dtf.TensorFeature((4,), "int32"): '),  # one repeated value
    ([[tensor(19, (2,), b"\x80\x78\x01", field=13)]], 'or dtf.TensorFeature((2,), "float16"): tensors of '),
    ([[tensor(7, (1,), b"text", field=8)]], 'or dtf.TensorFeature((1,), "bytes"): tensors of '),
    ([[tensor(14, (300,), bytes(600))]], 'or dtf.TensorFeature((300,), "bfloat16"): tensors of '),
    (
        [[tensor(1, (2, 3), bytes(24))], [tensor(1, (5, 3), bytes(60))]],
        'or dtf.TensorFeature((None, 3), "float32"): tensors of float32, shape (None, 3), all 2 values',
    ),
    ([[tensor(1, (2,), bytes(8))], [tensor(2, (2,), bytes(16))]], ""),
    (
        [[bytes(192)], [b"\xff" * 192]],
        "192 bytes each, all 2 values (could be uint8 (192,), 16 bit (96,), 32 bit (48,), 64 bit (24,), "
        "uint8 (8, 8, 3))",
    ),
    ([[bytes(3)], [bytes(3)]], "3 bytes each, all 2 values (could be uint8 (3,))"),
    ([[bytes(192)], [bytes(191)]], ""),
    ([[bytes(192)]], ""),
    ([[0], [1]], 'or dtf.FixedLenFeature((), "bool"): only 0 and 1, all 2 records'),
    ([[0, 1], [1, 1]], 'or dtf.FixedLenFeature((2,), "bool")'),
    ([[0], None, [1]], 'or dtf.FixedLenFeature((), "bool", default_value=False)'),
    *(([[number] for number in numbers], "") for numbers in ([0, 0], [1], [0, 1, 2], [0, 1, -1])),
    (BOXES, 'or dtf.VarLenFeature("float32", shape=(-1, 4)): multiples of 4 values, all 3 records'),
    ([*BOXES, [0.5] * 2], 'or dtf.VarLenFeature("float32", shape=(-1, 2))'),
    ([*BOXES[:2], [0.5] * 8], ""),
    ([*BOXES, [0.5] * 7], ""),
    (
        [[1, 2], None, [3, 4]],
        'or dtf.FixedLenFeature((2,), "int64", default_value=0): 2 values in every record that sets it; choose a '
        "default, all 2 records",
    ),
    ([[5, 2], None, [3]], ""),
    *(
        ([[value], [value]], f"or dtf.FunctionFeature(lambda value: {call}" if call else said)
        for value, call, said in (
            (saved(np.arange(3)), 'np.load(io.BytesIO(value)), (3,), "int64")', ""),
            (saved(np.array([None])), "np.load(io.BytesIO(value)), …, …)", ""),
            (b"\x93NUMPY\1\0", "np.load(io.BytesIO(value)), …, …)", ""),
            (b"RIFF\x28\0\0\0WAVEfmt " + bytes(24), "scipy.io.wavfile.read", ""),
            (wav(2), 'scipy.io.wavfile.read(io.BytesIO(value))[1], (None, 2), "int16")', ""),
            (encoded((5, 6, 3), "TIFF"), "np.asarray(Image.open(io.BytesIO(value)))", ""),
            (bytes(128) + b"DICM" + bytes(40), "pydicom.dcmread(io.BytesIO(value)).pixel_array", ""),
            (base64.b64encode(GRAY), "np.asarray(Image.open(io.BytesIO(base64.b64decode(value))))", ""),
            (base64.urlsafe_b64encode(JPEG), "np.asarray(Image.open(io.BytesIO(base64.urlsafe_b64decode(", ""),
            (pickle.dumps({"a": 1}), "", "pickles, all 2 values"),
        )
    ),
    ([[saved(np.arange(3))], [b"text"]], ""),
    ([[pickle.dumps(1)], [base64.b64encode(GRAY)]], ""),
]


@pytest.mark.parametrize(("values", "said"), SUGGESTED, ids=range(len(SUGGESTED)))
def test_suggestions(values: Sequence[Sequence[Any] | None], said: str) -> None:
    found = only(report(*(example() if value is None else example(x=value) for value in values)))
    assert str(found.suggestions[0] if found.suggestions else "").startswith(said)
    assert bool(found.suggestions) == bool(said)


@given(st.text(CHARACTERS))
def test_all_text_without_control_characters_is_text(text: str) -> None:
    controls = {chr(code) for code in range(32)} - set("\t\n\f\r") | {"\x7f"}
    data = text.encode(errors="ignore")
    assert is_probably_text(data) == (not controls & set(text))


@pytest.mark.parametrize(
    "value",
    [
        *(begin + b" " * 60 for begin in (b"BM", b"BMW drives", b"RIFF", b"RIFF....WAVEfmt ", b"\x89PNG", b"GIF")),
        tensor(1, (2, 3), bytes(23)),  # too few bytes
        tensor(99, (2,), bytes(8)),  # an unknown dtype
        tensor(1, (2,), bytes(8)) + b"\x98\x06\x01",  # an unknown field
        tensor(1, (2,), bytes(8), field=7),  # values of another dtype
        tensor(7, (2,), b"text", field=8),  # a string is missing
        tensor(1, (1 << 63,), b""),  # an unknown size
        b"\x08\x01",
        b"",
    ],
)
def test_values_that_are_almost_images_or_tensors(value: bytes) -> None:
    assert detect_image(value) is detect_tensor(value) is None


@given(form=st.sampled_from(["JPEG", "PNG", "BMP", "GIF", "WEBP"]), keep=st.integers(0, 60), data=st.data())
def test_headers_that_are_cut_or_damaged_do_no_harm(form: str, keep: int, data: st.DataObject) -> None:
    value = bytearray(encoded((9, 9), form))[:keep]
    for _ in range(3):
        if value:
            value[data.draw(st.integers(0, len(value) - 1))] = data.draw(st.integers(0, 255))
    detect_image(bytes(value))
    detect_tensor(bytes(value))


# -- specs and display ---------------------------------------------------------------------------


def pasted(spec: str) -> dtf.Schema:
    namespace: dict[str, Any] = {"dtf": dtf}
    exec(spec, namespace)
    return dtf.Schema(namespace["features"], sequence_features=namespace.get("sequence_features"))


def check_spec(found: Report) -> None:
    """Compare the spec with the schema, and evaluate the suggestions."""
    if not found.conflicts and any(feature.kinds for feature in found.features):
        assert pasted(found.spec()) == found.schema
        assert found.schema.report is found
    for conflict in found.conflicts:
        assert conflict.name not in pasted(found.spec())
    for feature in found.features:
        for suggestion in feature.suggestions:
            eval(suggestion.feature or "None", {"dtf": dtf})


@given(records=st.lists(st.dictionaries(st.text(CHARACTERS, max_size=4), VALUES), min_size=1, max_size=5))
def test_the_spec_is_the_schema(records: list[dict[str, Any]]) -> None:
    check_spec(report(*(example(**record) for record in records)))
    lists = [{name: [values] for name, values in record.items() if values} for record in records]
    check_spec(report(*(sequence_example(**each) for each in lists)))


def test_the_spec_comments_on_keys_that_are_not_features() -> None:
    lines = report(example(a=[], x=[1]), example(x=[0.5])).spec().splitlines()
    both = 'or dtf.FixedLenFeature((), "float64", mixed=True): integers and floats, all 2 records'
    kinds = f'    # "x": int64 in 1 record; float32 in 1 record; {both}'
    assert lines == ["features = {", '    # "a": never set', kinds, "}"]


def test_json_has_every_field_of_the_report() -> None:
    found = report(example(a=[], x=[1], b=[b"text"]), example(x=[0.5], b=[b"more"]))
    document = json.loads(found.to_json())
    a, b, x = document["features"]
    assert (document["message"], document["records"], document["shards"]) == ("Example", 2, 1)
    assert a["kinds"] == [] and a["feature"] is None
    assert b["feature"] == "dtf.FixedLenFeature((), 'bytes')"
    assert b["suggestions"] == [
        {"what": "text", "feature": "dtf.TextFeature()", "number": 2, "of": "value", "could_be": []}
    ]
    assert [(kind["kind"], kind["by_shard"]) for kind in x["kinds"]] == [("int64", [["a", 1]]), ("float32", [["a", 1]])]
    assert str(found) == f"{found!r}\n\n{found.spec()}"


def test_the_report_of_a_schema_is_not_compared_or_stored() -> None:
    schema = report(example(x=[1])).schema
    for copy in (pickle.loads(pickle.dumps(schema)), dtf.Schema.from_json(schema.to_json())):
        assert copy == schema
        assert copy.report is None


def test_a_data_set_hints_at_images_in_bytes(tmp_path: Path) -> None:
    path = tmp_path / "images.tfrecord"
    image = encoded((4, 6, 3), "JPEG")
    oracle.write_oracle(path, [example(image=[image], label=[n], text=[b"text"]) for n in range(3)])
    ds = dtf.read_tfrecord(path)
    code = "features={**ds.schema, 'image': dtf.ImageFeature(shape=(4, 6, 3))}"
    hint = f"hint: 'image' holds JPEG images of 4 x 6 x 3; decode with {code}"
    assert hint.replace("'", "&#x27;") in ds._repr_html_()
    for shown in (ds, ds.rows[:2][["image"]], dtf.read_tfrecord(path, columns=["image"])):
        assert repr(shown).splitlines()[-1] == f"  {hint}"
    decoded = dtf.read_tfrecord(path, eval(code.removeprefix("features="), {"dtf": dtf, "ds": ds}))
    assert decoded["image"].compute().shape == (3, 4, 6, 3)
    for silent in (ds[["label"]], ds.assign(image=ds["label"]), decoded, ds.rows[:2]["image",]):
        assert "hint:" not in repr(silent)


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        ([[saved(np.eye(2))], [saved(np.eye(3))]], [np.eye(2), np.eye(3)]),
        ([[saved(np.arange(2)), saved(np.arange(2, 4))]] * 2, [[[0, 1], [2, 3]]] * 2),
        ([[base64.b64encode(encoded((4, 5), "PNG"))], [base64.b64encode(encoded((6, 5), "PNG"))]], None),
        ([[base64.urlsafe_b64encode(JPEG)]] * 2, None),
    ],
)
def test_the_suggested_line_reads_the_values(values: Any, wanted: Any, tmp_path: Path) -> None:
    oracle.write_oracle(tmp_path / "a", [example(x=each) for each in values])
    code = only(dtf.infer_schema(tmp_path / "a").report).suggestions[0].feature
    image = pytest.importorskip("PIL.Image")
    assert code is not None
    feature = eval(code, {"dtf": dtf, "np": np, "io": io, "base64": base64, "Image": image})
    found = dtf.read_tfrecord(tmp_path / "a", {"x": feature})["x"].compute()
    if wanted is None:
        decode = base64.urlsafe_b64decode if "urlsafe" in code else base64.b64decode
        wanted = [np.asarray(image.open(io.BytesIO(decode(each[0])))) for each in values]
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(one, other)


def npz(array: Any) -> bytes:
    file = io.BytesIO()
    np.savez(file, array)
    return file.getvalue()


CONTENTS: dict[str, tuple[bytes, str]] = {
    "npz": (npz(np.arange(3)), "NumPy .npz files"),
    "zlib": (zlib.compress(np.arange(6.0).tobytes()), "zlib data"),
    "mp4": (b"\0\0\0\x1cftypisom\0\0\2\0isomiso2mp41" + bytes(30), "MP4"),
    "webm": (b"\x1aE\xdf\xa3" + bytes(30), "WebM video"),
    "flac": (b"fLaC\0\0\0\x22\x10\0\x10\0" + bytes(30), "FLAC sound"),
    "ogg": (b"OggS\0\2" + bytes(30), "Ogg sound"),
    "mp3": (b"ID3\4\0\0\0\0\0\0" + bytes(30), "MP3 sound"),
    "mp3 frames": (b"\xff\xfb\x90\x44" + bytes(30), "MP3 sound"),
    "pdf": (b"%PDF-1.7\n%\xe2\xe3\xcf\xd3", "PDF documents"),
    "hdf5": (b"\x89HDF\r\n\x1a\n" + bytes(30), "HDF5 files"),
    "gzip": (gzip.compress(b"abc"), "gzip data"),
    "wav": (b"RIFF\x24\0\0\0WAVEfmt " + bytes(20), "WAV sound"),
    "text that begins like a file": (b"ID3004", "text"),
    "words": (b"ORCHID", "text"),
    "an Example": (example(a=[1]), "serialized Example"),
    "no format": (b"x\x9cnot zlib\xff\0", ""),
}


@pytest.mark.parametrize("name", CONTENTS)
def test_contents_of_bytes_are_named_and_so_are_files_of_them(tmp_path: Path, name: str) -> None:
    value, said = CONTENTS[name]
    dtf.to_tfrecord({"x": [value, value]}, tmp_path / "s.tfrecord")
    (row,) = dtf.inspect_records(tmp_path / "s.tfrecord").rows()
    assert said in row[-1] if said else row[-1].endswith("bytes each")
    (tmp_path / "file.tfrecord").write_bytes(value + bytes(20))
    with pytest.raises(CorruptRecordError) as raised:
        dtf.read_tfrecord(tmp_path / "file.tfrecord")
    if name not in ("zlib", "gzip", "no format"):
        assert "unknown format" not in str(raised.value)


def suggested(path: Path) -> dict[str, dtf.Schema]:
    """Return the features that a report suggests, by the keys of their lines."""
    lines = [
        re.match(r'    "(.*?)": .*?# or (dtf\..*?): ', line) for line in dtf.inspect_records(path).spec().split("\n")
    ]
    return {line[1]: eval(line[2].replace("…", "100")) for line in lines if line}


def test_sizes_in_other_keys_are_suggested_with_the_bytes(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    sizes = [(3 + row, 5 + row % 3, 3) for row in range(8)]
    arrays = [rng.integers(0, 255, size, np.uint8) for size in sizes]
    columns = {
        "image/raw": [array.tobytes() for array in arrays],
        "mask": [array[..., 0].tobytes() for array in arrays],
    }
    columns |= {
        name: [size[axis] for size in sizes] for axis, name in enumerate(("image/height", "image/width", "depth"))
    }
    dtf.to_tfrecord(columns | {"odd": [bytes(7 + row) for row in range(8)]}, tmp_path / "s.tfrecord")
    found = suggested(tmp_path / "s.tfrecord")
    assert sorted(found) == ["image/raw", "mask"]
    read = dtf.read_tfrecord(tmp_path / "s.tfrecord", found).compute()
    for row, array in enumerate(arrays):
        assert (read["image/raw"][row] == array).all() and (read["mask"][row] == array[..., 0]).all()


def test_parts_of_ragged_and_sparse_features_of_tfx_are_suggested_together(tmp_path: Path) -> None:
    rows = [
        {"x$ragged_values": [1.0] * 3, "x$row_lengths_1": [2, 1], "s$sparse_values": [5.0], "s$sparse_indices_0": [4]},
        {"x$ragged_values": [1.0], "x$row_lengths_1": [0, 1], "s$sparse_values": [], "s$sparse_indices_0": []},
    ]
    dtf.to_tfrecord(
        rows,
        tmp_path / "s.tfrecord",
        features={name: dtf.VarLenFeature("float32" if "values" in name else "int64") for name in rows[0]},
    )
    found = suggested(tmp_path / "s.tfrecord")
    assert {type(feature) for feature in found.values()} == {dtf.RaggedFeature, dtf.SparseFeature}
    read = dtf.read_tfrecord(
        tmp_path / "s.tfrecord", {"x": found["x$ragged_values"], "s": found["s$sparse_values"]}
    ).compute()
    assert [[row.tolist() for row in each] for each in read["x"]] == [[[1.0, 1.0], [1.0]], [[], [1.0]]]


def test_three_tensors_are_a_sparse_one(tmp_path: Path) -> None:
    def tensor(dtype: str, values: Any) -> bytes:
        dtf.to_tfrecord(
            {"t": [values]},
            tmp_path / "t.tfrecord",
            features={"t": dtf.TensorFeature(np.shape(values), dtype)},
            mode="w",
        )
        (value,) = dtf.read_tfrecord(tmp_path / "t.tfrecord")["t"].compute()
        return bytes(value)

    parts = [tensor("int64", [[0], [2]]), tensor("float32", [1.0, 2.0]), tensor("int64", [5])]
    dtf.to_tfrecord({"s": [parts, parts]}, tmp_path / "s.tfrecord")
    assert "tf.io.serialize_sparse" in dtf.inspect_records(tmp_path / "s.tfrecord").rows()[0][-1]
    dtf.to_tfrecord({"s": [parts, parts[::-1]]}, tmp_path / "s.tfrecord", mode="w")
    assert "tf.io.serialize_sparse" not in dtf.inspect_records(tmp_path / "s.tfrecord").rows()[0][-1]
