"""Feature classes are values: equal after repr, pickle and JSON. Invalid arguments are refused."""

from __future__ import annotations

import difflib
import json
import math
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracle import schemas

import dask_tfrecord as dtf
from dask_tfrecord import features
from dask_tfrecord.errors import SchemaError, UnknownFeatureError
from dask_tfrecord.features import Feature
from dask_tfrecord.features.code import schema_code
from dask_tfrecord.features.dtypes import default_array

# A repr names public classes of the package alone.
NAMES = {name: value for name, value in vars(features).items() if isinstance(value, type)} | {
    "nan": math.nan,
    "inf": math.inf,
}

# `schemas` draws features without images.
EXAMPLES = [
    dtf.FixedLenFeature((), "float32", default_value=math.nan),
    dtf.FixedLenFeature((2, 1), "bytes", default_value=[[b"\0'"], ["ä"]]),
    dtf.FixedLenSequenceFeature((), "bytes", allow_missing=True, default_value=b"-"),
    dtf.RawFeature((3,), "bfloat16"),
    dtf.TensorFeature((), np.complex128),
    dtf.ImageFeature(),
    dtf.ImageFeature((-1, 4, 5, 3), "float32"),
    dtf.ImageFeature(size=(4, 5), channels=1, dtype="uint16"),
    dtf.ImageFeature(size=(4, 5), method="lanczos3", antialias=True),
    dtf.TextFeature(default_value="ä"),
]


def pasted(code: str) -> dtf.Schema:
    namespace: dict[str, dtf.Schema] = {}
    exec(code, namespace)
    return namespace["schema"]


def check_round_trips(schema: dtf.Schema) -> None:
    text = json.dumps(json.loads(schema.to_json()), allow_nan=False)
    for again in (pickle.loads(pickle.dumps(schema)), dtf.Schema.from_json(text), pasted(schema_code(schema))):
        assert again == schema
        assert hash(again) == hash(schema)
        assert list(again) == list(schema)
        assert (again.message, again.to_json()) == (schema.message, schema.to_json())
    for feature in schema.values():
        for one in (eval(repr(feature), dict(NAMES)), pickle.loads(pickle.dumps(feature))):
            assert (one, hash(one), repr(one)) == (feature, hash(feature), repr(feature))


@pytest.mark.parametrize("feature", EXAMPLES, ids=repr)
def test_features_round_trip(feature: Feature) -> None:
    in_lists = isinstance(feature, dtf.FixedLenSequenceFeature)
    check_round_trips(dtf.Schema({}, sequence_features={"x": feature}) if in_lists else dtf.Schema({"x\"'\n": feature}))


@given(st.one_of(schemas(min_size=1), schemas(steps=[dtf.VarLenFeature])))
def test_schemas_round_trip(schema: dtf.Schema) -> None:
    check_round_trips(schema)


@pytest.mark.parametrize(
    ("cls", "arguments", "message"),
    [
        ("FixedLenFeature", [(-1,), "int64"], "expected known, non-negative sizes"),
        ("FixedLenFeature", [("2",), "int64"], "expected a sequence of ints"),
        ("FixedLenFeature", [(), "complex64"], "the kinds that an Example stores"),
        ("FixedLenFeature", [(), "int65"], "expected a dtype such as"),
        ("FixedLenFeature", [(2,), "int64", [1, 2, 3]], r"has 3 values; expected one, or 2 for shape \(2,\)"),
        ("FixedLenFeature", [(), "int64", 1.5], "default value 1.5 cannot be stored as int64"),
        ("FixedLenFeature", [(), "int64", 2**63], "cannot be stored as int64"),
        ("FixedLenFeature", [(), "uint8", 256], "default value 256 cannot be stored as uint8"),
        ("FixedLenFeature", [(), "uint8", -1], "cannot be stored as uint8"),
        ("FixedLenFeature", [(), "bool", 2], "cannot be stored as bool"),
        ("FixedLenFeature", [(), "float16", 1e6], "cannot be stored as float16"),
        ("FixedLenFeature", [(), "float32", 1e39], "cannot be stored as float32"),
        ("FixedLenFeature", [(), "float32", "1"], "default value '1' cannot be stored as float32"),
        ("FixedLenFeature", [(), "bytes", 1], "default value 1 cannot be stored as bytes"),
        ("VarLenFeature", ["int64", (4,)], "one argument too many"),
        ("FixedLenSequenceFeature", [(0,), "int64", True], "steps without values"),
        ("FixedLenSequenceFeature", [(), "int64", True, [1, 2]], "has 2 values; expected one"),
        ("SparseFeature", ["ix", "v", "float32", (1, 2)], "one size for each index key"),
        ("SparseFeature", [[], "v", "float32", ()], "one size for each index key"),
        ("SparseFeature", [3, "v", "float32", 1], "expected a string as key"),
        ("RaggedFeature", ["int64", 3], "expected a string as key"),
        ("RaggedFeature", ["int64", None, ["lens"]], r"expected a partition, for example RowLengths\(key\)"),
        ("RawFeature", [(2,), "O"], "expected a numeric or bool dtype"),
        ("RawFeature", [(2,), "S3"], "expected a numeric or bool dtype"),
        ("RawFeature", [(-1, 2, -1), "int8"], "determines only one open size"),
        ("RawFeature", [(2, -2), "int8"], "expected known, non-negative sizes"),
        ("RawFeature", [(-1, 0), "int8"], "rows without bytes"),
        ("RawFeature", [(2,), np.longdouble], "is not portable"),
        ("TensorFeature", [(2,), ">f4"], "one byte order"),
        ("TensorFeature", [(2,), "U3"], "expected a numeric or bool dtype"),
        ("ImageFeature", [(4, 5)], "height, width, channels"),
        ("ImageFeature", [(0, 4, 5, 3)], "any number"),
        ("ImageFeature", [(2, 4, None, 3)], "needs a known shape"),
        ("ImageFeature", [None, "int32"], "expected dtype uint8"),
        ("ImageFeature", [None, "uint8", (4,)], r"expected size \(height, width\)"),
        ("ImageFeature", [None, "uint8", None, 2], "expected channels 0"),
        ("ImageFeature", [(4, 5, 3), "uint8", (5, 4)], "contradicts size="),
        ("ImageFeature", [(4, 5, 3), "uint8", None, 1], "contradicts size="),
        ("ImageFeature", [None, "uint8", (4, 5), 0, False, False, "area"], "expected method bilinear, lanczos3"),
        ("ImageFeature", [None, "uint8", None, 0, False, False, "lanczos3"], "pass size="),
        ("TextFeature", [3], "one argument too many"),
    ],
)
def test_invalid_features_are_refused(cls: str, arguments: list[Any], message: str) -> None:
    with pytest.raises((SchemaError, TypeError), match=message) as caught:
        NAMES[cls](*arguments)
    if isinstance(caught.value, SchemaError):
        assert str(caught.value).startswith(cls)


def test_defaults_have_the_shape_or_are_broadcast() -> None:
    assert dtf.FixedLenFeature((2, 2), "int64", [1, 2, 3, 4]).default_value == ((1, 2), (3, 4))
    assert dtf.FixedLenFeature((), "float32", np.float64(0.5)).default_value == 0.5
    assert dtf.FixedLenFeature((2,), "int64", 7) == dtf.FixedLenFeature([2], np.int64, 7)
    assert default_array((b"a", b"bc"), np.dtype(object), (2,)).tolist() == [b"a", b"bc"]


def test_selected_schemas_keep_classes_and_feature_lists() -> None:
    context = {"id": dtf.FixedLenFeature((), "int64"), "y": dtf.FixedLenFeature((), "uint8")}
    steps = {"frames": dtf.FixedLenSequenceFeature((3,), "float32"), "words": dtf.VarLenFeature("bytes")}
    schema = dtf.Schema(context, sequence_features=steps, classes={"y": ["cat", "dog"]})
    assert (schema.message, schema.context_features, schema.sequence_features) == ("SequenceExample", context, steps)
    few = schema.select(["words", "y"])
    assert list(few) == ["words", "y"]
    assert (few.context_features, few.sequence_features) == ({"y": context["y"]}, {"words": steps["words"]})
    assert few.classes == {"y": ("cat", "dog")}
    assert schema.select(["id"]).classes == {}
    assert schema.select(["id"]).message == "SequenceExample"
    assert dtf.Schema(context) != dtf.Schema(context, sequence_features={})
    with pytest.raises(SchemaError, match="feature 'id' is in both features and sequence_features"):
        dtf.Schema(context, sequence_features={"id": dtf.VarLenFeature("int64")})


def test_of_many_names_a_bounded_number_that_begin_alike_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = []
    matches = difflib.get_close_matches

    def count(word: str, names: list[str], **options: Any) -> list[str]:
        compared.extend(names)
        return matches(word, names, **options)

    monkeypatch.setattr(difflib, "get_close_matches", count)
    names = [f"other-{number}" for number in range(20_000)]
    schema = dtf.Schema(dict.fromkeys([*names, "label"], dtf.FixedLenFeature((), "int64")))
    for name, said in (
        ("Labels", "did you mean 'label'"),
        ("other-1x", "did you mean 'other-1'"),
        ("ather-1", "'ather-1'; there are 'other-0', 'other-1'"),
    ):
        with pytest.raises(UnknownFeatureError, match=said):
            schema[name]
    assert 0 < len(compared) < 5_000


def test_error_for_an_empty_list_recommends_a_default(tmp_path: Path) -> None:
    path = tmp_path / "texts.tfrecord"
    dtf.to_tfrecord({"text": [[b"a"], []]}, path, features={"text": dtf.VarLenFeature("bytes")})
    with pytest.raises(dtf.FeatureError, match=r"record 1 .* holds 0 values, but .* takes 1; a default_value fills"):
        dtf.read_tfrecord(path, {"text": dtf.TextFeature()}).compute()
    assert dtf.read_tfrecord(path, {"text": dtf.TextFeature(default_value="")})["text"].compute().tolist() == ["a", ""]


ENTRY = {"name": "x", "class": "FixedLenFeature", "shape": [], "dtype": "int64"}


@pytest.mark.parametrize("shape", ["[" * 900 + "]" * 900, "[" * 100_000 + "]" * 100_000])
def test_json_that_is_nested_too_deeply_is_refused(shape: str) -> None:
    text = json.dumps({"features": [ENTRY]}).replace("[]", shape)
    for nested in (text, shape):
        with pytest.raises(SchemaError, match="not the JSON of a Schema"):
            dtf.Schema.from_json(nested)


@pytest.mark.parametrize("sizes", [(2**32, 2**32), (2**70,), (2**63,), (2**50,), (0, 2**62), (1,) * 64])
def test_impossible_shapes_are_refused(sizes: tuple[int, ...]) -> None:
    for feature in (dtf.FixedLenFeature, dtf.RawFeature):
        with pytest.raises(SchemaError, match=r"at most 2\*\*48 values per record|at most 63 axes"):
            feature(sizes, "uint8")
    with pytest.raises(SchemaError, match=r"not the JSON of a Schema: feature 'x': FixedLenFeature: "):
        dtf.Schema.from_json(json.dumps({"features": [{**ENTRY, "shape": sizes}]}))
