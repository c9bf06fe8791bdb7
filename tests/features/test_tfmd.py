"""Schemas of TensorFlow Metadata: reading, writing, and reading of corpus records by them."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from google.protobuf.wrappers_pb2 import Int64Value
from oracle import expected_columns, read_payloads, write_oracle
from support.corpus import TFX
from support.paths import DATA
from support.store_round_trip import assert_same
from support.wire import example

import dask_tfrecord as dtf
from dask_tfrecord.errors import SchemaError, SchemaNotFoundError
from dask_tfrecord.features import (
    Feature,
    FixedLenFeature,
    FixedLenSequenceFeature,
    ImageFeature,
    RaggedFeature,
    RawFeature,
    RowLengths,
    RowSplits,
    SparseFeature,
    TensorFeature,
    TextFeature,
    UniformRowLength,
    VarLenFeature,
)
from dask_tfrecord.features.metadata.tfmd import read_pbtxt
from dask_tfrecord.features.schema import Schema, pbtxt


def from_tfmd(text: str) -> Schema:
    return Schema(**read_pbtxt(text))


# -- reading

# A scalar feature that every record has, with more fields; and the feature of a column.
SCALAR = "shape {} presence { min_fraction: 1.0 min_count: 1 } "
PRESENT = SCALAR.removeprefix("shape {} ")
FIXED, ANY, WORDS = FixedLenFeature((), "int64"), VarLenFeature("int64"), FixedLenFeature((), "bytes")
COLUMNS: dict[str, Feature] = {
    f"type: INT value_count {{ min: 1 max: 1 }} {PRESENT}": FIXED,
    f"type: FLOAT value_count {{ min: 3 max: 3 }} {PRESENT}": FixedLenFeature((3,), "float32"),
    f"type: BYTES shape {{ dim {{ size: 2 }} dim {{ size: 3 }} }} {PRESENT}": FixedLenFeature((2, 3), "bytes"),
    f'type: INT shape {{ dim {{ name: "n" }} }} {PRESENT}': ANY,
    f"type: INT {PRESENT}": ANY,
    **{f"type: INT value_count {{ {counts} }} {PRESENT}": ANY for counts in ("min: 1", "min: 1 max: 2", "max: 0")},
    "type: INT value_count { min: 1 max: 1 } presence { min_fraction: 0.5 }": ANY,
    "type: INT value_count { min: 1 max: 1 }": ANY,
    **{f"type: INT {SCALAR} {rest}": ANY for rest in ("deprecated: true", "lifecycle_stage: DEPRECATED")},
    **{f"type: INT {SCALAR} {rest}": FIXED for rest in ("", "lifecycle_stage: PRODUCTION", "bool_domain {}")},
    **{
        f"type: BYTES {SCALAR} {rest}": WORDS
        for rest in (
            'bool_domain { true_value: "yes" }',
            'domain: "payment"',
            "image_domain {}",
            'not_yet_thought_of { a: 1 b: "2" }',  # of a later release
        )
    },
}


@pytest.mark.parametrize("text", COLUMNS)
def test_feature_of_each_description(text: str) -> None:
    schema = from_tfmd(f'feature {{ name: "x" {text} }} string_domain {{ name: "payment" value: "a" }}')
    assert schema == {"x": COLUMNS[text]}


def representation(group: str = "", **tensors: str) -> str:
    """Return the text of a group of tensor representations by name."""
    inner = "".join(f'tensor_representation {{ key: "{name}" value {{ {text} }} }} ' for name, text in tensors.items())
    return f'tensor_representation_group {{ key: "{group}" value {{ {inner} }} }}'


COMPOSITE = "".join(f'feature {{ name: "{name}" type: INT }}' for name in ("ix", "iy", "lens"))
COMPOSITE += 'feature { name: "v" type: FLOAT } '
SPARSE = 'sparse_tensor { dense_shape { dim { size: 5 } } index_column_names: "ix" value_column_name: "v" }'
# Features that replace the columns `ix`, `iy`, `lens` and `v`; None for a column that becomes a part of another.
TENSORS: dict[str, tuple[str, dict[str, Feature | None]]] = {
    "sparse feature": (
        'sparse_feature { name: "s" dense_shape { dim { size: 10 } dim { size: 20 } } is_sorted: true '
        'index_feature { name: "ix" } index_feature { name: "iy" } value_feature { name: "v" } }',
        {
            **dict.fromkeys(["ix", "iy", "v"]),
            "s": SparseFeature(("ix", "iy"), "v", "float32", (10, 20), already_sorted=True),
        },
    ),
    "sparse tensor": (
        representation(s=SPARSE),
        {"ix": None, "v": None, "s": SparseFeature("ix", "v", "float32", 5)},
    ),
    "sparse tensor beside its values": (
        representation(s=SPARSE, v='varlen_sparse_tensor { column_name: "v" }'),
        {"ix": None, "s": SparseFeature("ix", "v", "float32", 5)},
    ),
    "ragged tensor": (
        representation(
            r='ragged_tensor { feature_path { step: "v" } partition { row_length: "lens" } '
            "partition { uniform_row_length: 2 } }"
        ),
        {"lens": None, "v": None, "r": RaggedFeature("float32", "v", (RowLengths("lens"), UniformRowLength(2)))},
    ),
    "rows of a shape, and a default": (
        representation(
            v='ragged_tensor { feature_path { step: "v" } partition { uniform_row_length: 4 } }',
            ix='dense_tensor { column_name: "ix" default_value { int_value: -1 } shape { dim { size: 2 } } }',
        ),
        {"ix": FixedLenFeature((2,), "int64", -1), "v": VarLenFeature("float32", shape=(-1, 4))},
    ),
    "a group for something else": (representation("serving", v='dense_tensor { column_name: "v" }'), {}),
}


@pytest.mark.parametrize("case", TENSORS)
def test_tensors_of_several_columns(case: str) -> None:
    text, changed = TENSORS[case]
    wanted = {"ix": ANY, "iy": ANY, "lens": ANY, "v": VarLenFeature("float32"), **changed}
    assert list(from_tfmd(COMPOSITE + text).items()) == [(name, each) for name, each in wanted.items() if each]


def test_the_length_of_an_axis_from_a_domain() -> None:
    text = (
        'feature { name: "i" type: INT %s } feature { name: "v" type: FLOAT } '
        'sparse_feature { name: "s" index_feature { name: "i" } value_feature { name: "v" } }'
    )
    assert from_tfmd(text % "int_domain { min: 0 max: 99 }") == {"s": SparseFeature("i", "v", "float32", 100)}
    for domain in ("", "int_domain { min: 1 max: 99 }", "int_domain { min: 0 }"):
        with pytest.raises(SchemaError, match="feature 's': the axis of 'i' has an unknown length"):
            from_tfmd(text % domain)


def test_feature_lists() -> None:
    lists = 'feature { name: "##SEQUENCE##" type: STRUCT struct_domain { feature { name: "s" type: BYTES } } }'
    schema = from_tfmd('feature { name: "c" type: INT }' + lists)
    assert schema == Schema({"c": VarLenFeature("int64")}, sequence_features={"s": VarLenFeature("bytes")})
    # An empty struct is a SequenceExample without selected feature lists.
    assert from_tfmd('feature { name: "##SEQUENCE##" type: STRUCT }').sequence_features == {}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("feature { name: 'x' type: STRUCT }", "feature 'x' has type STRUCT, which can't be read as a column"),
        ("feature { name: 'x' }", "feature 'x' has type TYPE_UNKNOWN"),
        ("feature { name: 'x' type: COMPLEX }", r"not a schema file: .*line 1:27 : .*COMPLEX"),
        ("feature {", "not a schema file: .*line 1"),
        ("feature { struct_domain { " * 20_000, "it is nested too deeply"),
        (COMPOSITE + representation(r="ragged_tensor { }"), "feature 'r': feature '' does not exist"),
        ("feature { name: 3 type: INT }", "not a schema file: .*line 1"),
        (
            COMPOSITE + "sparse_feature { name: 's' index_feature { name: 'i' } value_feature { name: 'v' } }",
            "feature 's': feature 'i' does not exist; did you mean",
        ),
        (
            COMPOSITE + representation(r='ragged_tensor { feature_path { step: "a" step: "b" } }'),
            "feature 'r': the values at a/b are in a struct",
        ),
        (
            COMPOSITE + representation(r="quantum_tensor { }"),
            "feature 'r': the kind of its tensor representation is unknown",
        ),
    ],
)
def test_unreadable_schemas_are_reported(text: str, reason: str) -> None:
    with pytest.raises(SchemaError, match=reason) as caught:
        from_tfmd(text)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


# -- writing


def test_the_text_is_what_tfx_writes() -> None:
    columns = {"x": FixedLenFeature((2,), "int64"), "label": FixedLenFeature((), "int64", -1)}
    text = pbtxt(Schema({**columns, "tags": VarLenFeature("bytes")}, classes={"label": ["cat", "dog"]}))
    assert " ".join(text.split()) == (
        'feature { name: "x" type: INT presence { min_fraction: 1.0 min_count: 1 } shape { dim { size: 2 } } } '
        'feature { name: "label" type: INT int_domain { min: 0 max: 1 is_categorical: true } shape { } } '
        'feature { name: "tags" type: BYTES } '
        'tensor_representation_group { key: "" value { tensor_representation { key: "label" value { dense_tensor { '
        'column_name: "label" shape { } default_value { int_value: -1 } } } } } }'
    )


ROUND: dict[str, Feature] = {
    "fixed": FixedLenFeature((), "int64"),
    'name with / and \u00fc "quotes"': FixedLenFeature((2, 3), "float32"),
    "": FixedLenFeature((0,), "bytes"),
    "default": FixedLenFeature((2,), "float32", 0.5),
    "default bytes": FixedLenFeature((), "bytes", b"\x00\xff'\\\"\n\x7f\xc3\xa4"),
    "default int": FixedLenFeature((3,), "int64", -(2**63)),
    "default float": FixedLenFeature((), "float32", 1.1754943508222875e-38),
    "default infinity": FixedLenFeature((), "float32", float("-inf")),
    "default nan": FixedLenFeature((), "float32", float("nan")),
    "\n\t\0": VarLenFeature("float32", shape=(-1, 3, 1)),
    "var": VarLenFeature("bytes"),
    "boxes": VarLenFeature("float32", shape=(-1, 4)),
    "ragged": RaggedFeature("int64"),
    "levels": RaggedFeature("float32", "vals", (RowLengths("outer"), RowLengths("inner"), UniformRowLength(2))),
    "own": RaggedFeature("int64", None, (RowLengths("inner"),)),
    "sparse": SparseFeature(("i", "j"), "v", "bytes", (7, 8), already_sorted=True),
    # A key that others use as well.
    "outer": VarLenFeature("int64"),
    "v": FixedLenFeature((3,), "bytes"),
}


def test_what_is_written_is_read_again() -> None:
    again = from_tfmd(pbtxt(Schema(ROUND)))
    assert again == ROUND
    assert from_tfmd(pbtxt(again)) == again
    lists = Schema({"c": FixedLenFeature((), "int64")}, sequence_features={
        "steps": VarLenFeature("float32"), "r": RaggedFeature("bytes"), "renamed": RaggedFeature("int64", "key")
    })  # fmt: skip
    assert from_tfmd(pbtxt(lists)) == lists


# Features that lose information when written, the feature that is read back, and a part of the text.
LESS: list[tuple[Feature, Feature, str]] = [
    (FixedLenFeature((), "uint8"), FIXED, "int_domain {\n    min: 0\n    max: 255"),
    (VarLenFeature("bool"), ANY, "bool_domain {"),
    (FixedLenFeature((), "float64"), FixedLenFeature((), "float32"), "type: FLOAT"),
    (
        FixedLenSequenceFeature((2,), "float32", True, length=9),
        *(VarLenFeature("float32", shape=(-1, 2)), "uniform_row_length: 2"),
    ),
    (RawFeature((-1, 3), ">i2"), WORDS, "type: BYTES"),
    (TensorFeature((None,), "float64"), WORDS, "type: BYTES"),
    (ImageFeature((8, 8, 3)), WORDS, "image_domain {"),
    (ImageFeature((-1, 8, 8, 3)), VarLenFeature("bytes"), "image_domain {"),
    (TextFeature(), WORDS, "natural_language_domain {"),
    (TextFeature(default_value="\u00fc"), FixedLenFeature((), "bytes", "\u00fc".encode()), "bytes_value"),
    (
        RaggedFeature("int64", None, (UniformRowLength(2),)),
        *(VarLenFeature("int64", shape=(-1, 2)), "uniform_row_length: 2"),
    ),
]


@pytest.mark.parametrize(("feature", "again", "text"), LESS, ids=[repr(feature) for feature, *_ in LESS])
def test_reading_options_are_not_written(feature: Feature, again: Feature, text: str) -> None:
    written = pbtxt(Schema({"x": feature}))
    assert text in written
    assert from_tfmd(written) == {"x": again}


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        (
            Schema({"x": RaggedFeature("int64", "v", (RowSplits("s"),))}),
            r"feature 'x': .* can't express RowSplits\('s'\)",
        ),
        (Schema({"x": FixedLenFeature((2,), "int64", (1, 2))}), "feature 'x': .* one default value for all values"),
        (Schema({"x": VarLenFeature("int64", shape=(-1, -1))}), "feature 'x': .* can't express VarLenFeature"),
        (
            Schema({}, sequence_features={"x": RaggedFeature("int64", "v", (RowLengths("n"),))}),
            "feature 'x': TensorFlow Metadata can't express partitions of feature lists",
        ),
    ],
)
def test_features_that_can_not_be_expressed_are_refused(schema: Schema, reason: str) -> None:
    with pytest.raises(SchemaError, match=reason):
        pbtxt(schema)


# -- files


def test_the_format_of_a_file_is_detected(tmp_path: Path) -> None:
    schema = Schema({"x": FixedLenFeature((), "int64"), "y": RawFeature((2,), "float64")}, classes={"x": ["a", "b"]})
    (tmp_path / "schema.json").write_text(schema.to_json())
    again = Schema.read(tmp_path / "schema.json")
    assert (again, dict(again.classes)) == (schema, {"x": ("a", "b")})
    (tmp_path / "schema.pbtxt").write_text("# by hand\n" + pbtxt(schema))
    assert Schema.read(str(tmp_path / "schema.pbtxt")) == {"x": schema["x"], "y": FixedLenFeature((), "bytes")}
    every = DATA / "tfds" / "every" / "1.0.0" / "features.json"
    assert Schema.read(every)["tensor"] == FixedLenFeature((2, 3), "float32")


@pytest.mark.parametrize(
    ("text", "reason"),
    [("{", "expected the JSON of a schema"), ("{}", "features.json can't be read"), ("x: {", "line 1")],
)
def test_files_without_a_schema_are_reported(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "schema"
    path.write_text(text)
    with pytest.raises(SchemaError, match=reason) as caught:
        Schema.read(path)
    assert caught.value.place is not None
    assert caught.value.place.file == str(path)
    path.unlink()
    with pytest.raises(SchemaNotFoundError, match=r"no schema file '.*schema' exists"):
        Schema.read(path)


@pytest.mark.parametrize(
    ("shards", "schema"),
    [
        ("csv_example_gen/Split-train/data_tfrecord-00003-of-00012.gz", "schema_gen/schema.pbtxt"),
        ("tfrecord_sequence/Split-eval/data_tfrecord_eval.gz", "schema_gen_sequence/schema.pbtxt"),
    ],
)
def test_records_by_their_schema(corpus: Path, shards: str, schema: str) -> None:
    path, described = corpus / TFX / shards, corpus / TFX / schema
    wanted = expected_columns(read_payloads(path), Schema.read(described))
    assert_same(dtf.read_tfrecord(path, described).compute(), wanted)


def test_messages_have_the_key_of_the_records(tmp_path: Path) -> None:
    value = Int64Value(value=3).SerializeToString()
    write_oracle(tmp_path / "a", [example(k=[value], other=[value])])
    keyed = {"p": dtf.ProtoFeature(Int64Value, "value", key="k"), "q": dtf.ProtoFeature(Int64Value, "", key="k")}
    schema = dtf.Schema({**keyed, "other": dtf.ProtoFeature(Int64Value, "value")})
    schema.to_pbtxt(tmp_path / "schema.pbtxt")
    again = dtf.Schema.read(tmp_path / "schema.pbtxt")
    assert sorted(again) == ["k", "other"]
    assert dtf.read_tfrecord(tmp_path / "a", again)["k"].compute().tolist() == [value]
