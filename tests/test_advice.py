"""Advice in errors and displays for data that inference rejects or infers as plain bytes."""

from __future__ import annotations

import difflib
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

import dask_tfrecord as dtf
from dask_tfrecord.cli.main import tfrecord
from dask_tfrecord.errors import CorruptRecordError, FeatureError, SchemaError, ShardNotFoundError, UnknownFeatureError
from dask_tfrecord.messages import Example, SequenceExample

KINDS = {int: "int64_list", float: "float_list", bytes: "bytes_list"}


def run(*arguments: object) -> Result:
    return CliRunner().invoke(tfrecord, [str(argument) for argument in arguments], prog_name="dask-tfrecord")


def write(path: Path, *messages: Example | SequenceExample) -> Path:
    with dtf.RecordWriter(path) as writer:
        for message in messages:
            writer.write(message.SerializeToString(deterministic=True))
    return path


def example(**features: list[int] | list[float] | list[bytes]) -> Example:
    made = Example()
    for name, values in features.items():
        made.features.feature[name].SetInParent()
        if values:
            getattr(made.features.feature[name], KINDS[type(values[0])]).value.extend(values)
    return made


def sequence(number: int, **lists: list[int | float]) -> SequenceExample:
    made = SequenceExample()
    made.context.feature["id"].int64_list.value.append(number)
    for name, steps in lists.items():
        for value in steps:
            getattr(made.feature_lists.feature_list[name].feature.add(), KINDS[type(value)]).value.append(value)
    return made


def test_error_for_an_empty_list_recommends_a_default(tmp_path: Path) -> None:
    path = tmp_path / "texts.tfrecord"
    dtf.to_tfrecord({"text": [[b"a"], []]}, path, features={"text": dtf.VarLenFeature("bytes")})
    with pytest.raises(FeatureError, match=r"record 1 .* holds 0 values where .* takes 1; a default_value fills it"):
        dtf.read_tfrecord(path, {"text": dtf.TextFeature()}).compute()
    ds = dtf.read_tfrecord(path, {"text": dtf.TextFeature(default_value="")})
    assert ds["text"].compute().tolist() == ["a", ""]


# ------------------------------------------------------------------------------------------- values of several kinds


def test_error_for_steps_of_several_kinds_recommends_to_leave_them_out(tmp_path: Path) -> None:
    path = write(tmp_path / "walks.tfrecord", sequence(1, s=[1, 2.5], t=[1]), sequence(2, s=[3], t=[2, 3]))
    with pytest.raises(SchemaError) as caught:
        dtf.infer_schema(path)
    assert str(caught.value) == (
        f"{path}: record 0 (byte 0): feature 's' holds values of 2 kinds, and a column has one: int64 in 2 records; "
        "float32 in 1 record; steps of one record differ in 1 record. No column holds this feature list: give "
        "features= and sequence_features= without it ({} for no feature lists), as inspect_records(urlpath).spec() "
        "writes them; inspect_records(urlpath, sample=None) reports all records"
    )
    (conflict,) = dtf.inspect_records(path).conflicts
    assert conflict.mixed == 1
    namespace = {"dtf": dtf}
    exec(dtf.inspect_records(path).spec(), namespace)
    ds = dtf.read_tfrecord(
        path,
        features=namespace["features"],
        sequence_features=namespace["sequence_features"],  # type: ignore[arg-type]
    )
    assert ds["id"].compute().tolist() == [1, 2]
    assert [list(map(int, row)) for row in ds["t"].compute()] == [[1, 0], [2, 3]]
    context = dtf.read_tfrecord(path, {"id": dtf.FixedLenFeature((), "int64")}, sequence_features={})
    assert context["id"].compute().tolist() == [1, 2]


def test_shards_of_one_kind_are_recommended_only_if_they_exist(tmp_path: Path) -> None:
    write(tmp_path / "a.tfrecord", example(x=[1]))
    write(tmp_path / "b.tfrecord", example(x=[1.5]))
    both = write(tmp_path / "c.tfrecord", example(x=[1]), example(x=[1.5]))
    apart = [tmp_path / "a.tfrecord", tmp_path / "b.tfrecord"]
    with pytest.raises(SchemaError, match=r"Read the shards of one kind, or give features= without it") as caught:
        dtf.infer_schema(apart)
    assert f"float32 in 1 record of 1 shard ({apart[1]}: 1)" in str(caught.value)
    for paths in (both, [*apart, both]):
        with pytest.raises(SchemaError, match="Read the records of one kind with a feature of that kind, or give"):
            dtf.infer_schema(paths)
    with pytest.raises(SchemaError) as caught:
        dtf.infer_schema(both)
    assert str(caught.value).count(str(both)) == 1


def test_commands_recommend_options(tmp_path: Path) -> None:
    mixed = write(tmp_path / "mixed.tfrecord", sequence(1, s=[1, 2.5]))
    for arguments in ([], ["--sample", "all"]):
        result = run("to-zarr", mixed, tmp_path / "store.zarr", *arguments)
        assert result.exit_code == 1
        assert "give --features the JSON of a Schema without it; info --sample all reports all" in result.stderr
        assert "features=" not in result.stderr
        assert "inspect_records" not in result.stderr
    walks = write(tmp_path / "walks.tfrecord", sequence(1, t=[1]))
    (tmp_path / "schema.json").write_text(dtf.Schema({"id": dtf.FixedLenFeature((), "int64")}).to_json())
    result = run("to-zarr", walks, tmp_path / "store.zarr", "--features", tmp_path / "schema.json")
    assert result.exit_code == 1
    assert "give --features the JSON of a Schema with both parts, context and feature lists" in result.stderr
    assert "read_tfrecord" not in result.stderr


# --------------------------------------------------------------------------------------------------- SequenceExamples


def test_sequence_examples_are_converted_with_and_without_a_sample(tmp_path: Path) -> None:
    path = write(tmp_path / "walks.tfrecord", sequence(1, t=[1]), sequence(2, t=[2, 3]))
    for name, arguments in {"plain": [], "sample": ["--sample", "256"], "all": ["--sample", "all"]}.items():
        result = run("to-zarr", path, tmp_path / f"{name}.zarr", *arguments)
        assert result.exit_code == 0, result.stderr
        stored = dtf.from_zarr(tmp_path / f"{name}.zarr").compute()
        assert stored["id"].tolist() == [1, 2]
        assert stored["t"].tolist() == [[1, 0], [2, 3]]
        assert stored["t.lengths"].tolist() == [1, 2]
    (tmp_path / "both.json").write_text(dtf.infer_schema(path).to_json())
    result = run("to-zarr", path, tmp_path / "given.zarr", "--features", tmp_path / "both.json")
    assert result.exit_code == 0, result.stderr
    assert "feature lists of SequenceExamples" in " ".join(run("to-zarr", "--help").stdout.split())


# ---------------------------------------------------------------------------------------------- keys that are never set


def test_a_key_that_is_never_set_is_reported_as_such(tmp_path: Path) -> None:
    path = write(tmp_path / "unset.tfrecord", example(label=[1], lable=[]), example(label=[2], lable=[]))
    said = (
        "'lable': none of the 2 records looked at sets this key, so its kind is unknown; give features= with its class"
    )
    with pytest.raises(UnknownFeatureError) as caught:
        dtf.read_tfrecord(path, columns=["lable"])
    assert str(caught.value) == f"no feature {said}"
    ds = dtf.read_tfrecord(path)
    for key in ("lable", ["label", "lable"]):
        with pytest.raises(UnknownFeatureError) as caught:
            ds[key]
        assert str(caught.value) == f"no column {said}"
    with pytest.raises(UnknownFeatureError, match="did you mean 'label'"):
        dtf.read_tfrecord(path, columns=["labell"])
    assert [list(row) for row in dtf.read_tfrecord(path, {"lable": dtf.VarLenFeature("int64")})["lable"].compute()] == [
        [],
        [],
    ]


# ------------------------------------------------------------------------------------------- files other than shards


@pytest.fixture
def crowded(tmp_path: Path) -> Path:
    for number in range(2):
        write(tmp_path / f"part-{number}.tfrecord", example(x=[number]))
    dtf.build_index(tmp_path)
    return tmp_path


def test_sidecars_in_lists_are_left_out(crowded: Path) -> None:
    dtf.repair(crowded / "part-0.tfrecord", crowded / "part-2.tfrecord")
    dtf.copy_tfrecord(crowded / "part-0.tfrecord", crowded / "part-3.tfrecord", compression="gzip", index=True)
    paths = sorted(map(str, crowded.iterdir()))
    assert {Path(path).suffix for path in paths} == {".tfrecord", ".idx", ".gzidx", ".json"}
    assert dtf.read_tfrecord(paths)["x"].compute().tolist() == [0, 1, 0, 0]
    assert len(list(dtf.read_records(map(Path, paths)))) == 4  # type: ignore[arg-type]
    result = run("info", *paths, "--json")
    assert result.exit_code == 0, result.stderr
    with pytest.raises(ShardNotFoundError, match=r"the list contains only sidecars of shards: part-0\.tfrecord\.idx"):
        dtf.read_tfrecord([crowded / "part-0.tfrecord.idx"])


@pytest.mark.parametrize("text", ["hi", "This directory holds shards of the first release.\n"])
@pytest.mark.parametrize("counts", ["auto", None])
def test_a_file_that_is_not_a_shard_is_named_with_advice(crowded: Path, text: str, counts: str | None) -> None:
    (crowded / "readme.txt").write_text(text)
    features = {"x": dtf.FixedLenFeature((), "int64")}
    with pytest.raises(CorruptRecordError) as caught:
        dtf.read_tfrecord(crowded, features, counts=counts).compute()
    assert str(caught.value).startswith(f"{crowded}/readme.txt: ")
    assert str(caught.value).endswith(
        f". If the file is not a shard, pass only the shards, for example {crowded}/*.tfrecord"
    )
    assert dtf.read_tfrecord(f"{crowded}/*.tfrecord").nrows == 2


# ------------------------------------------------------------------------------------------------ bytes with a format


def jpeg(value: int) -> bytes:
    image = pytest.importorskip("PIL.Image")
    buffer = io.BytesIO()
    image.fromarray(np.full((4, 6, 3), value, np.uint8)).save(buffer, "JPEG")
    return buffer.getvalue()


def test_a_data_set_hints_at_images_in_bytes(tmp_path: Path) -> None:
    path = write(tmp_path / "images.tfrecord", *(example(image=[jpeg(n)], label=[n], text=[b"text"]) for n in range(3)))
    ds = dtf.read_tfrecord(path)
    hint = (
        "hint: 'image' holds JPEG images of 4 x 6 x 3; decode with "
        "features={**ds.schema, 'image': dtf.ImageFeature(shape=(4, 6, 3))}"
    )
    assert repr(ds).splitlines()[-1] == f"  {hint}"
    assert repr(ds.rows[:2]["image",]).count("hint:") == 0
    assert hint.replace("'", "&#x27;") in ds._repr_html_()
    assert repr(ds.rows[:2][["image"]]).splitlines()[-1] == f"  {hint}"
    assert repr(dtf.read_tfrecord(path, columns=["image"])).splitlines()[-1] == f"  {hint}"
    assert "hint:" not in repr(ds[["label"]])
    assert "hint:" not in repr(ds.assign(image=ds["label"]))
    code = hint.partition("features=")[2]
    decoded = dtf.read_tfrecord(path, eval(code, {"dtf": dtf, "ds": ds}))
    assert decoded["image"].compute().shape == (3, 4, 6, 3)
    assert "hint:" not in repr(decoded)


def test_an_unknown_name_is_compared_with_a_bounded_number_of_names(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = []
    matches = difflib.get_close_matches

    def count(word: str, names: list[str], **options: Any) -> list[str]:
        compared.extend(names)
        return matches(word, names, **options)

    monkeypatch.setattr(difflib, "get_close_matches", count)
    names = [f"other-{number}" for number in range(100_000)]
    schema = dtf.Schema(dict.fromkeys([*names, "label"], dtf.FixedLenFeature((), "int64")))
    with pytest.raises(dtf.TFRecordError, match=r"did you mean 'label'\?"):
        schema["Labels"]
    with pytest.raises(dtf.TFRecordError, match="did you mean 'other-1'"):
        schema["other-1x"]
    assert 0 < len(compared) < 10_000
