"""Text in other encodings than UTF-8; `test_cases.py` sends it through every output."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dask_tfrecord as dtf
from dask_tfrecord.errors import SchemaError


def write(folder: Path, values: list[bytes]) -> str:
    path = f"{folder}/in.tfrecord"
    dtf.to_tfrecord({"t": np.array(values, object)}, path, features={"t": dtf.FixedLenFeature((), "bytes")})
    return path


@pytest.mark.parametrize("encoding", ["latin-1", "cp1252", "utf-16", "shift_jis", "utf-8", "ascii"])
def test_bytes_of_python_are_read_and_written(encoding: str, tmp_path: Path) -> None:
    texts = ["", "plain", *(["日本"] if encoding in ("shift_jis", "utf-8", "utf-16") else [])]
    texts += ["Zürich"] if encoding not in ("ascii", "shift_jis") else []
    stored = [text.encode(encoding) for text in texts]
    feature = dtf.TextFeature(encoding=encoding)
    ds = dtf.read_tfrecord(write(tmp_path, stored), {"t": feature})
    assert ds["t"].compute().tolist() == texts
    ds.to_tfrecord(tmp_path / "out")
    again = dtf.read_tfrecord(tmp_path / "out", {"t": dtf.FixedLenFeature((), "bytes")})
    assert again["t"].compute().tolist() == stored
    assert dtf.Schema.from_json(ds.schema.to_json()) == ds.schema


def test_steps_nested_rows_and_defaults_have_the_encoding(tmp_path: Path) -> None:
    text = dtf.TextFeature(encoding="latin-1")
    words = dtf.RaggedBlock(np.array(["ä", "b", "ü"], np.dtypes.StringDType()), np.array([0, 1, 3]))
    schema = dtf.Schema({}, sequence_features={"t": text})
    dtf.to_tfrecord({"t": words}, tmp_path / "steps.tfrecord", features=schema)
    bytes_of = dtf.Schema({}, sequence_features={"t": dtf.VarLenFeature("bytes")})
    stored = dtf.read_tfrecord(tmp_path / "steps.tfrecord", bytes_of)["t"].compute()
    assert [[item for step in row for item in step] for row in stored] == [[b"\xe4"], [b"b", b"\xfc"]]
    found = dtf.read_tfrecord(tmp_path / "steps.tfrecord", schema)["t"].compute()
    assert [row.tolist() for row in found] == [["ä"], ["b", "ü"]]
    filled = dtf.TextFeature(default_value="ö", encoding="latin-1")
    missing = dtf.read_tfrecord(write(tmp_path, [b"\xe4"]), {"t": text, "other": filled})
    assert missing["other"].compute().tolist() == ["ö"]


def test_errors_name_the_encoding(tmp_path: Path) -> None:
    path = write(tmp_path, [b"ok", b"\xe4"])
    with pytest.raises(dtf.FeatureError, match=r"record 1 .*feature 't' is not valid ascii, but TextFeature"):
        dtf.read_tfrecord(path, {"t": dtf.TextFeature(encoding="ascii")}).compute()
    rows = {"t": np.array(["ok", "日"], np.dtypes.StringDType())}
    with pytest.raises(dtf.FeatureError, match=r"record 1: feature 't' holds '日', for which iso8859-1 has no bytes"):
        dtf.to_tfrecord(rows, tmp_path / "out.tfrecord", features={"t": dtf.TextFeature(encoding="latin-1")})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"encoding": "zlib"}, "no encoding of text"),
        ({"encoding": None}, "no encoding of text"),
        ({"encoding": "ascii", "default_value": "ä"}, "ascii has no bytes for the default value"),
    ],
)
def test_other_arguments_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        dtf.TextFeature(**arguments)
    with pytest.raises(SchemaError, match="text of messages is UTF-8"):
        dtf.ProtoFeature("a", values=dtf.TextFeature(encoding="latin-1"))


@pytest.mark.parametrize(
    ("encoding", "value"),
    [("utf-7", b"+2AA-"), ("unicode_escape", rb"\ud800"), ("idna", b"xn--\xff"), ("utf-16", b"a")],
)
def test_bytes_of_no_characters_name_the_record(encoding: str, value: bytes, tmp_path: Path) -> None:
    ds = dtf.read_tfrecord(write(tmp_path, [b"", value]), {"t": dtf.TextFeature(encoding=encoding)})
    with pytest.raises(dtf.FeatureError, match=r"record 1 .*feature 't' is not valid"):
        ds.compute()


def test_text_that_an_encoding_refuses_as_a_whole_names_the_record(tmp_path: Path) -> None:
    rows = {"t": np.array(["a", "a" * 70], np.dtypes.StringDType())}
    with pytest.raises(dtf.FeatureError, match=r"record 1: feature 't' holds 'aaa"):
        dtf.to_tfrecord(rows, tmp_path / "out.tfrecord", features={"t": dtf.TextFeature(encoding="idna")})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"encoding": "undefined"}, "no encoding of text"),
        ({"encoding": "utf-8\0"}, "no encoding of text"),
        ({"encoding": "ascii", "default_value": b"\xff"}, "default value b'.xff' is not valid ascii"),
    ],
)
def test_encodings_that_fail_by_other_errors_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        dtf.TextFeature(**arguments)
