"""Reports on records: counts, suggestions, and specs."""

from __future__ import annotations

import io
import json
import pickle
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

import dask_tfrecord as dtf
from dask_tfrecord.errors import Location, SchemaError
from dask_tfrecord.inspection.payload_type import detect_image, detect_tensor, is_probably_text
from dask_tfrecord.inspection.report import FeatureReport, Report
from dask_tfrecord.inspection.survey import Histogram, Survey, survey
from dask_tfrecord.messages import (
    BytesList,
    Example,
    Feature,
    FeatureList,
    FeatureLists,
    Features,
    FloatList,
    Int64List,
    SequenceExample,
)

Image = pytest.importorskip("PIL.Image")


def feature(values: Sequence[Any] | None) -> Feature:
    """Return a Feature of ints, floats or bytes; without a kind for None."""
    if values is None:
        return Feature()
    if values and isinstance(values[0], bytes):
        return Feature(bytes_list=BytesList(value=values))
    if values and isinstance(values[0], float):
        return Feature(float_list=FloatList(value=values))
    return Feature(int64_list=Int64List(value=values))


def example(**values: Sequence[Any] | None) -> bytes:
    named = {name: feature(value) for name, value in values.items()}
    return Example(features=Features(feature=named)).SerializeToString()


def sequence(**lists: Sequence[Sequence[Any]]) -> bytes:
    named = {name: FeatureList(feature=[feature(step) for step in steps]) for name, steps in lists.items()}
    return SequenceExample(feature_lists=FeatureLists(feature_list=named)).SerializeToString()


def places(payloads: Sequence[bytes], file: str = "a") -> list[tuple[Location, bytes]]:
    return [(Location(file, number, 0), payload) for number, payload in enumerate(payloads)]


def report(*payloads: bytes) -> Report:
    return Report.from_survey(survey(places(payloads)))


def only(found: Report) -> FeatureReport:
    (feature,) = found.features
    return feature


def suggested(*values: Sequence[Any] | None) -> list[str]:
    """Return the suggestions for a feature of these values; None is a record without it."""
    payloads = [example(x=value) if value is not None else example() for value in values]
    return [str(suggestion) for suggestion in only(report(*payloads)).suggestions]


def encoded(shape: tuple[int, ...], form: str, dtype: str = "uint8", **options: Any) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(np.zeros(shape, dtype)).save(stream, form, **options)
    return stream.getvalue()


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


VALUES = (
    st.none() | st.lists(st.integers(-2, 2), max_size=3) | st.lists(st.sampled_from([b"", b"\x00", b"t"]), max_size=2)
)


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


def test_a_report_has_presence_kinds_counts_and_conflicts() -> None:
    found = Report.from_survey(
        survey(
            [
                *places([example(x=[1], n=None), example(x=[1, 2]), example()], "a"),
                *places([example(x=[0.5], y=[b"t"]), example(x=[3, 4])], "b"),
            ]
        )
    )
    n, x, y = found.features
    assert (found.message, found.records, found.shards, found.unset) == ("Example", 5, 2, ("n",))
    assert (x.present, x.unset, x.counts) == (4, 0, ((1, 1, 2), (2, 2, 2)))
    assert [(kind.kind, kind.records, kind.by_shard) for kind in x.kinds] == [
        ("int64", 3, (("a", 2), ("b", 1))),
        ("float32", 1, (("b", 1),)),
    ]
    assert (n.present, n.unset, n.kinds) == (0, 1, ())
    assert y.present == 1
    assert found.conflicts == (x,)
    with pytest.raises(
        SchemaError, match=r"int64 in 3 records of 2 shards \(a: 2, b: 1\); float32 in 1 record of 1 sh"
    ):
        _ = found.schema
    assert "values of several kinds:\n'x': int64 in 3 records" in repr(found)


def test_the_first_ten_shards_are_named() -> None:
    records = [record for number in range(25) for record in places([example(x=[1])], f"s{number}")]
    kind = only(Report.from_survey(survey(records))).kinds[0]
    assert (kind.shards, len(kind.by_shard)) == (25, 10)
    assert str(kind).endswith("s9: 1, … 15 more)")


def test_steps_and_their_values_are_counted_apart() -> None:
    found = only(report(sequence(s=[[1, 2]] * 3), sequence(s=[[3, 4]]), sequence(s=[])))
    assert (found.counts, found.steps) == (((2, 2, 4),), ((0, 0, 1), (1, 1, 1), (3, 3, 1)))
    assert found.values == "2 in each of 0 to 3 steps"


def test_a_million_lengths_take_the_memory_of_a_few() -> None:
    histogram = Histogram()
    for number in range(0, 3_000_000, 3):
        histogram.add(number)
    assert len(pickle.dumps(histogram)) < 2000
    assert (histogram.extent(), histogram.common_divisor()) == ((0, 2_999_997), 3)


# -- suggestions -------------------------------------------------------------------------------------------------------


def test_text() -> None:
    assert suggested([b"one"], ["größe".encode()]) == ["or dtf.TextFeature(): text, all 2 values"]
    assert suggested([b"one"], [b"\xff"]) == []
    assert suggested([b"a\x00b"], [b"text"]) == []
    assert suggested([b""], [b""]) == []
    assert suggested([b"one", b"two"], [b"three"]) == ["or dtf.TextFeature(count=-1): text, all 3 values"]
    assert suggested([b"one", b"two"]) == ["or dtf.TextFeature(count=2): text, all 2 values"]
    assert suggested([b"one"], None)[0] == 'or dtf.TextFeature(default_value=""): text, the only value'


@given(st.text())
def test_all_text_without_control_characters_is_text(text: str) -> None:
    controls = {chr(code) for code in range(32)} - set("\t\n\f\r") | {"\x7f"}
    try:
        data = text.encode()
    except UnicodeEncodeError:
        return
    assert is_probably_text(data) == (not controls & set(text))


@pytest.mark.parametrize(
    ("form", "what", "options"),
    [
        ("JPEG", "JPEG", {}),
        ("JPEG", "JPEG", {"progressive": True}),
        ("PNG", "PNG", {}),
        ("BMP", "BMP", {}),
        ("WEBP", "WebP", {}),
        ("WEBP", "WebP", {"lossless": True}),
        ("WEBP", "WebP", {"exif": b"Exif\x00\x00MM\x00*\x00\x00\x00\x08\x00\x00\x00\x00\x00\x00"}),
    ],
)
def test_images(form: str, what: str, options: dict[str, Any]) -> None:
    value = encoded((12, 34, 3), form, **options)
    assert suggested([value], [value]) == [
        f"or dtf.ImageFeature(shape=(12, 34, 3)): {what} images of 12 x 34 x 3, all 2 values"
    ]


def test_images_of_other_bands_depths_and_sizes() -> None:
    gray, alpha = encoded((5, 6), "PNG"), encoded((5, 6, 4), "PNG")
    assert suggested([gray]) == ["or dtf.ImageFeature(shape=(5, 6, 1)): PNG images of 5 x 6 x 1, the only value"]
    assert suggested([gray], [alpha]) == ["or dtf.ImageFeature(): PNG images of 5 x 6 x ?, all 2 values"]
    assert suggested([encoded((5, 6, 4), "WEBP", lossless=True)])[0].startswith("or dtf.ImageFeature(shape=(5, 6, ")
    deep = encoded((5, 6), "PNG", "uint16")
    assert suggested([deep])[0].startswith('or dtf.ImageFeature(shape=(5, 6, 1), dtype="uint16"): PNG')
    other = [encoded((5, 6, 3), "PNG")], [encoded((7, 6, 3), "JPEG")], [encoded((7, 6), "GIF")]
    assert suggested(*other) == ["or dtf.ImageFeature(): images of ? x 6 x 3, all 3 values"]
    assert suggested(*other, [b"none"]) == []
    assert suggested([gray] * 2, [gray]) == [
        "or dtf.ImageFeature(shape=(-1, 5, 6, 1)): PNG images of 5 x 6 x 1, all 3 values"
    ]


@pytest.mark.parametrize("value", [b"BM", b"BMW drives", b"RIFF", b"RIFF....WAVEfmt ", b"\x89PNG", b"GIF"])
def test_values_that_only_begin_like_an_image(value: bytes) -> None:
    assert detect_image(value + b" " * 60) is None


@given(form=st.sampled_from(["JPEG", "PNG", "BMP", "GIF", "WEBP"]), keep=st.integers(0, 60), data=st.data())
def test_headers_that_are_cut_or_damaged_do_no_harm(form: str, keep: int, data: st.DataObject) -> None:
    value = bytearray(encoded((9, 9), form))[:keep]
    for _ in range(3):
        if value:
            value[data.draw(st.integers(0, len(value) - 1))] = data.draw(st.integers(0, 255))
    detect_image(bytes(value))
    detect_tensor(bytes(value))


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def tensor(number: int, shape: tuple[int, ...], content: bytes, field: int = 4) -> bytes:
    """A TensorProto, spelled by hand from the wire format."""
    sizes = b"".join(
        b"\x12" + varint(len(dimension)) + dimension for dimension in (b"\x08" + varint(size) for size in shape)
    )
    return (
        b"\x08" + varint(number) + b"\x12" + varint(len(sizes)) + sizes
        + (varint(field << 3 | 2) + varint(len(content)) + content if content else b"")
    )  # fmt: skip


@pytest.mark.parametrize(
    ("value", "code"),
    [
        (tensor(1, (2, 3), bytes(24)), 'dtf.TensorFeature((2, 3), "float32")'),
        (tensor(9, (), bytes(8)), 'dtf.TensorFeature((), "int64")'),
        (tensor(3, (4,), b"\x07", field=7), 'dtf.TensorFeature((4,), "int32")'),  # one repeated value
        (tensor(19, (2,), b"\x80\x78\x01", field=13), 'dtf.TensorFeature((2,), "float16")'),
        (tensor(7, (1,), b"text", field=8), 'dtf.TensorFeature((1,), "bytes")'),
        (tensor(14, (300,), bytes(600)), 'dtf.TensorFeature((300,), "bfloat16")'),
    ],
)
def test_tensors(value: bytes, code: str) -> None:
    assert suggested([value], [value])[0].startswith(f"or {code}: tensors of ")


@pytest.mark.parametrize(
    "value",
    [
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
def test_values_that_are_almost_tensors(value: bytes) -> None:
    assert detect_tensor(value) is None


def test_tensors_of_several_shapes() -> None:
    assert suggested([tensor(1, (2, 3), bytes(24))], [tensor(1, (5, 3), bytes(60))]) == [
        'or dtf.TensorFeature((None, 3), "float32"): tensors of float32, shape (None, 3), all 2 values'
    ]
    assert suggested([tensor(1, (2,), bytes(8))], [tensor(2, (2,), bytes(16))]) == []


def test_raw_arrays_of_one_size() -> None:
    (said,) = suggested([bytes(192)], [b"\xff" * 192])
    assert said == (
        "192 bytes each, all 2 values "
        "(could be uint8 (192,), 16 bit (96,), 32 bit (48,), 64 bit (24,), uint8 (8, 8, 3))"
    )
    assert suggested([bytes(192)], [bytes(191)]) == []
    assert suggested([bytes(3)], [bytes(3)]) == ["3 bytes each, all 2 values (could be uint8 (3,))"]
    assert suggested([bytes(192)]) == []


def test_booleans_only_where_both_were_seen() -> None:
    assert suggested([0], [1]) == ['or dtf.FixedLenFeature((), "bool"): only 0 and 1, all 2 records']
    assert suggested([0, 1], [1, 1])[0].startswith('or dtf.FixedLenFeature((2,), "bool")')
    assert suggested([0], [0]) == suggested([1]) == suggested([0], [1], [2]) == suggested([0], [1], [-1]) == []
    assert suggested([0], None, [1])[0].startswith('or dtf.FixedLenFeature((), "bool", default_value=False)')


def test_rows_only_where_three_numbers_agree() -> None:
    boxes = [[0.5] * number for number in (4, 8, 12)]
    assert suggested(*boxes) == ['or dtf.VarLenFeature("float32", shape=(-1, 4)): multiples of 4 values, all 3 records']
    assert suggested(*boxes, [0.5] * 2)[0].startswith('or dtf.VarLenFeature("float32", shape=(-1, 2))')
    assert suggested(*boxes[:2], [0.5] * 8) == suggested(*boxes, [0.5] * 7) == []


def test_a_default_only_where_numbers_agree() -> None:
    assert suggested([1, 2], None, [3, 4]) == [
        'or dtf.FixedLenFeature((2,), "int64", default_value=0): 2 values in every record that sets it; choose a '
        "default, all 2 records"
    ]
    assert suggested([5, 2], None, [3]) == []


# -- specs and display ---------------------------------------------------------------------------


def pasted(spec: str) -> dtf.Schema:
    namespace: dict[str, Any] = {"dtf": dtf}
    exec(spec, namespace)
    return dtf.Schema(namespace["features"], sequence_features=namespace.get("sequence_features"))


def codes(found: Report) -> list[str]:
    return [each.feature for feature in found.features for each in feature.suggestions if each.feature is not None]


NAMES = st.text(max_size=4)


@given(records=st.lists(st.dictionaries(NAMES, VALUES), min_size=1, max_size=5))
def test_the_spec_is_the_schema(records: list[dict[str, Any]]) -> None:
    found = report(*(example(**{name: value for name, value in record.items()}) for record in records))
    spec = found.spec()
    if not found.conflicts and any(feature.kinds for feature in found.features):
        assert pasted(spec) == found.schema
        assert found.schema.report is found
    for conflict in found.conflicts:
        assert conflict.name not in pasted(spec)
    for code in codes(found):
        eval(code, {"dtf": dtf})


def test_the_spec_of_sequence_examples_is_their_schema() -> None:
    found = report(sequence(s=[[1, 2]], t=[[b"a"], [b"b", b"c"]]), sequence(s=[[3, 4]]))
    assert pasted(found.spec()) == found.schema
    assert found.schema.sequence_features is not None
    assert found.message == "SequenceExample"


def test_the_spec_comments_on_keys_that_are_not_features() -> None:
    lines = report(example(a=None, x=[1]), example(x=[0.5])).spec().splitlines()
    assert lines == ["features = {", '    # "a": never set', '    # "x": int64 in 1 record; float32 in 1 record', "}"]


def test_specs_of_real_files_are_their_schemas(corpus: Path) -> None:
    for name in (
        "octo-models__octo/tests/debug_dataset/bridge_dataset/1.0.0/bridge_dataset-train.tfrecord-00000-of-00001",
        "google__trax/trax/data/testdata/squad/v1.1/3.0.0/squad-train.tfrecord-00000-of-00001",
        "tensorflow__tfx/tfx/components/testdata/tfrecord_sequence/Split-eval/data_tfrecord_eval.gz",
    ):
        found = dtf.inspect_records(corpus / name, sample=None)
        assert pasted(found.spec()) == found.schema == dtf.infer_schema(corpus / name, sample=None)
        for code in codes(found):
            eval(code, {"dtf": dtf})


def test_images_of_a_real_file_are_found(corpus: Path) -> None:
    found = dtf.inspect_records(corpus / "octo-models__octo/tests/debug_dataset/bridge_dataset/1.0.0", sample=None)
    images = [feature for feature in found.features if feature.name.startswith("steps/observation/image_")]
    assert len(images) == 4
    for feature in images:
        (suggestion,) = feature.suggestions
        assert (suggestion.feature, suggestion.number) == ("dtf.ImageFeature(shape=(-1, 64, 64, 3))", 250)


def test_json_has_every_field_of_the_report() -> None:
    found = report(example(a=None, x=[1], b=[b"text"]), example(x=[0.5], b=[b"more"]))
    document = json.loads(found.to_json())
    a, b, x = document["features"]
    assert (document["message"], document["records"], document["shards"]) == ("Example", 2, 1)
    assert a["kinds"] == [] and a["feature"] is None
    assert b["feature"] == "dtf.FixedLenFeature((), 'bytes')"
    assert b["suggestions"] == [
        {"what": "text", "feature": "dtf.TextFeature()", "number": 2, "of": "value", "could_be": []}
    ]
    assert [(kind["kind"], kind["by_shard"]) for kind in x["kinds"]] == [("int64", [["a", 1]]), ("float32", [["a", 1]])]


def test_tensorflow_metadata_has_the_schema(tmp_path: Path) -> None:
    found = report(example(x=[1], t=[b"text"]), example(x=[2, 3], t=[b"more"]))
    found.schema.to_pbtxt(tmp_path / "schema.pbtxt")
    assert 'name: "t"' in (tmp_path / "schema.pbtxt").read_text()


def test_printing_a_report_shows_table_and_spec() -> None:
    found = report(example(x=[1]), sequence(s=[[1]]))
    assert repr(found).startswith(
        "Report on 2 SequenceExamples of 1 shard, 1 record without feature lists\nfeature  kind"
    )
    assert str(found) == f"{found!r}\n\n{found.spec()}"


# -- whole collections -------------------------------------------------------------------------------------------------


def collection(folder: Path, shards: int, records: int) -> str:
    for shard in range(shards):
        payloads = (example(x=[shard] * (record % 5), t=[b"text"]) for record in range(records))
        oracle.write_oracle(folder / f"part-{shard:05d}", payloads)
    return str(folder)


@pytest.mark.parametrize("size", ["128 MiB", "64 kiB"])
def test_a_collection_read_in_parts_is_reported_as_a_whole(tmp_path: Path, size: str) -> None:
    url = collection(tmp_path, 20, 200)
    # The second shard is large enough to be split.
    oracle.write_oracle(tmp_path / "part-00001", (example(big=[bytes(50_000)]) for _ in range(60)))
    with dask.config.set({"array.chunk-size": size, "scheduler": "threads"}):
        found = dtf.inspect_records(url, sample=None)
    whole = Report.from_survey(survey(records(tmp_path)))
    assert found == whole
    assert (found.records, found.shards) == (19 * 200 + 60, 20)


def records(folder: Path) -> list[tuple[Location, bytes]]:
    """Read every record and its location with the oracle."""
    found = []
    for path in sorted(folder.iterdir()):
        offset = 0
        for number, payload in enumerate(oracle.read_payloads(path)):
            found.append((Location(str(path), number, offset), payload))
            offset += len(payload) + 16
    return found


def test_empty_shards_have_a_report_but_not_a_schema(tmp_path: Path) -> None:
    oracle.write_oracle(tmp_path / "empty", [])
    found = dtf.inspect_records(tmp_path, sample=None)
    assert (found.records, found.features) == (0, ())
    with pytest.raises(SchemaError, match="no record to infer features from"):
        _ = found.schema
    assert pasted(found.spec()) == dtf.Schema({})


def test_the_report_of_a_schema_is_not_compared_or_stored(tmp_path: Path) -> None:
    schema = dtf.infer_schema(collection(tmp_path, 2, 6))
    assert isinstance(schema.report, Report)
    assert schema.report.schema == schema
    for copy in (pickle.loads(pickle.dumps(schema)), dtf.Schema.from_json(schema.to_json())):
        assert copy == schema
        assert copy.report is None
