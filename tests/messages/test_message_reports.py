"""Reports on messages of a given type, compared with the results of protobuf; head without a type; times as text."""

from __future__ import annotations

import json
import pickle
import random
import re
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from google.protobuf import duration_pb2, timestamp_pb2
from google.protobuf.unknown_fields import UnknownFieldSet
from oracle import write_oracle
from oracle.message_columns import Place, Unrolled
from oracle.message_types import message_class, random_message
from support.any_columns import listed
from support.commands import run, shown
from support.message_files import write_times
from test_message_columns import Scene, scene_type, scenes
from test_message_columns import check as check_scenes
from test_message_oracle import OLD_PROTOBUF, holds, mutants_of, types_of

import dask_tfrecord as dtf
from dask_tfrecord import ProtoFeature
from dask_tfrecord.extras.preview import json_rows
from dask_tfrecord.extras.view.server import Server

pytestmark = pytest.mark.usefixtures("in_this_thread")


def set_paths(place: Place, prefix: str, message: Any) -> Iterator[str]:
    """Yield the columns whose fields a message sets."""
    listed = {field.name: value for field, value in message.ListFields()}
    for one in place.fields:
        path = f"{prefix}{one.name}"
        if one.attribute not in listed:
            continue
        value = listed[one.attribute]
        if one.is_map:
            assert one.place is not None
            inner = one.place.fields[1]
            yield f"{path}.key"
            if inner.place is None or inner.whole:
                yield f"{path}.value"
            else:
                for each in value.values() if inner.place.fields or inner.place.oneofs else ():
                    yield from set_paths(inner.place, f"{path}.value.", each)
        elif one.place is None or one.whole:
            yield path
        else:
            # Messages without columns are bytes.
            held = value if one.repeated else [value]
            for each in held if one.place.fields or one.place.oneofs else ():
                yield from set_paths(one.place, f"{path}.", each)
    for label, name, _ in place.oneofs:
        if message.WhichOneof(name):
            yield f"{prefix}{label}"


def unknown_fields(place: Place, message: Any) -> int:
    """Count the unknown fields of a message, and of those within it whose fields are columns."""
    found = len(UnknownFieldSet(message))
    listed = {field.name: value for field, value in message.ListFields()}
    for one in place.fields:
        if one.place is None or one.attribute not in listed:
            continue
        value, inner = listed[one.attribute], one.place
        if one.is_map:
            value, inner = [*value.values()], one.place.fields[1].place
        if inner is not None and (inner.fields or inner.oneofs):
            found += sum(unknown_fields(inner, each) for each in (value if one.repeated else [value]))
    return found


def replaces(place: Place) -> bool:
    """Return whether a message may lose fields that it had on the wire: to another one of a oneof, or of a key."""
    return bool(place.oneofs) or any(
        one.is_map or (one.place is not None and replaces(one.place)) for one in place.fields
    )


def values_of(rows: Any) -> int:
    return sum(map(values_of, rows)) if isinstance(rows, list) else 1


def accepted(unrolled: Unrolled, payload: bytes) -> Any:
    message = unrolled.parse(payload)
    return message if message is not None and holds(unrolled, message) else None


def check(report: Any, unrolled: Unrolled, payloads: Sequence[bytes]) -> None:
    messages = [accepted(unrolled, payload) for payload in payloads]
    known = [message for message in messages if message is not None]
    assert (report.records, report.refused) == (len(payloads), len(payloads) - len(known))
    present = Counter(path for message in known for path in {*set_paths(unrolled.root, "", message)})
    unknown = [unknown_fields(unrolled.root, message) for message in known]
    assert report.unknown_records >= sum(map(bool, unknown))
    assert report.unknown_fields >= sum(unknown)
    if not replaces(unrolled.root):
        assert (report.unknown_records, report.unknown_fields) == (sum(map(bool, unknown)), sum(unknown))
    columns = [unrolled.columns([message]) for message in known]
    assert {each.name for each in report.features} == {*unrolled.columns([])}
    for each in report.features:
        assert each.present == present[each.name], each.name
        numbers = [values_of(column[each.name].rows[0]) for column in columns]
        assert each.extent == (min(numbers), max(numbers)), each.name
        assert each.kind == columns[0][each.name].dtype
    refused = [number for number, message in enumerate(messages) if message is None]
    assert [error.place.record for error in report.refusals] == refused[:10]


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 20))])
def test_counts_equal_those_of_protobuf(seed: int, tmp_path: Path) -> None:
    for drawn, files, unrolled in types_of(seed, 3 if seed == 0 else 8):
        cls, rng = message_class(files), random.Random(drawn)
        payloads = [random_message(cls, rng).SerializePartialToString() for _ in range(10)]
        if not OLD_PROTOBUF:
            payloads += mutants_of(cls, unrolled, 20, drawn)
        write_oracle(tmp_path / "a", payloads)
        report = dtf.inspect_records(tmp_path / "a", message=cls)
        check(report, unrolled, payloads)
        assert dtf.inspect_records(tmp_path / "a", message=cls, sample=None) == report


# ---- reports of one type


@pytest.fixture
def path(tmp_path: Path) -> str:
    write_oracle(tmp_path / "scenes.tfrecord", [scene.SerializeToString() for scene in scenes()])
    return str(tmp_path / "scenes.tfrecord")


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    """Two shards of scenes: two unknown fields in one, a text and a time that no column holds in the other."""
    late = Scene()
    late.at.seconds = 10**12
    payloads = [scene.SerializeToString() for scene in scenes()]
    write_oracle(tmp_path / "0.tfrecord", [*payloads, payloads[2] + b"\x98\x06\x01\xa0\x06\x02"])
    write_oracle(tmp_path / "1.tfrecord", [payloads[0], b"\x0a\x02\xff\xff", late.SerializeToString(), payloads[1]])
    return tmp_path


def test_a_report_counts_unknown_fields_and_refused_records(mixed: Path) -> None:
    report = dtf.inspect_records(mixed / "*.tfrecord", message=Scene)
    assert (report.records, report.shards) == (14, 2)
    assert (report.unknown_records, report.unknown_fields, report.refused) == (1, 2, 2)
    places = [(Path(error.place.file).name, error.place.record, error.place.feature) for error in report.refusals]
    assert places == [("1.tfrecord", 1, "id"), ("1.tfrecord", 2, "at")]
    text = str(report)
    assert "2 unknown fields in 1 record, skipped" in text
    assert re.search(r"refused: 2 records; the first: .*1\.tfrecord: record 1 \(byte \d+\): field 'id' at byte 0", text)
    found = json.loads(report.to_json())
    assert (found["unknown_fields"], found["refused"], len(found["refusals"])) == (2, 2, 2)
    assert pickle.loads(pickle.dumps(report)) == report
    assert "record 1" in report._repr_html_()
    schema = report.schema
    assert schema == dtf.Schema({name: ProtoFeature(name) for name in schema}, message=Scene)
    parallel = dtf.inspect_records(mixed / "*.tfrecord", message=Scene, sample=None)
    assert parallel == report
    assert [*map(str, parallel.refusals)] == [*map(str, report.refusals)]
    with pytest.raises(dtf.FeatureError, match=r"1\.tfrecord: record 1 .*field 'id'.*UTF-8"):
        dtf.read_tfrecord(mixed / "*.tfrecord", message=Scene)["id"].compute()


def test_the_code_of_a_report_reads_the_records(path: str) -> None:
    report = dtf.inspect_records(path, message=Scene)
    scope: dict[str, Any] = {"dtf": dtf}
    exec(report.spec(), scope)
    check_scenes(dtf.read_tfrecord(path, scope["features"], message=Scene))
    [kind] = [each.suggestions for each in report.features if each.name == "tracks.kind"]
    assert (kind[0].what, kind[0].feature) == ("CAR, BIKE", 'dtf.ProtoFeature("tracks.kind", values=dtf.TextFeature())')
    named = dtf.read_tfrecord(path, {"kind": eval(kind[0].feature, scope)}, message=Scene)["kind"].compute()
    assert listed(named) == [[("CAR", "BIKE")[track.kind] for track in scene.tracks] for scene in scenes()]


def test_records_of_another_type_have_no_schema(tmp_path: Path) -> None:
    write_oracle(tmp_path / "a", [b"\x0a\x02\xff\xff"])
    with pytest.raises(dtf.FeatureError, match=r"record 0.*field 'id'"):
        _ = dtf.inspect_records(tmp_path / "a", message=Scene).schema
    write_oracle(tmp_path / "a", [])
    assert [*dtf.inspect_records(tmp_path / "a", message=Scene).schema][:2] == ["id", "tracks.id"]


# ---- commands


def test_info_reports_the_fields_of_a_message(mixed: Path, tmp_path: Path) -> None:
    pattern, message = mixed / "*.tfrecord", scene_type(tmp_path)
    text = shown("info", pattern, "--message", message)
    assert "9 fields of demo.Scene, seen in 14 records of 2 shards" in text
    assert "2 unknown fields in 1 record, skipped" in text
    assert re.search(r"tracks\.states\.x +float64 +\d of 14 +0 to 3", text)
    assert "refused: 2 records" in text
    found = json.loads(shown("info", pattern, "--message", message, "--json"))
    assert found["report"] == json.loads(dtf.inspect_records(pattern, message=Scene).to_json())
    assert found["spec"].strip() == shown("info", pattern, "--message", message, "--spec").strip()
    kept = shown("info", mixed / "0.tfrecord", "--message", message, "--where", "len(tracks.id) > 1")
    assert re.search(r"matching +4\n", kept)


def test_head_prints_the_wire_format_of_unknown_messages(mixed: Path) -> None:
    text = shown("head", mixed / "0.tfrecord", "-n", 3)
    assert [line for line in text.splitlines() if line.startswith("record")] == [
        f"record {number}: a protobuf message of another kind, {len(scenes()[number].SerializeToString())} bytes"
        for number in range(3)
    ]
    assert '  1: "s1"  # text' in text
    assert "  2 {\n    2 {\n      1: 1.0  # double, fixed64" in text
    assert "--message file.desc:package.Message reads the fields as columns" in text
    records = [json.loads(line) for line in shown("head", mixed / "0.tfrecord", "-n", 3, "--json").splitlines()]
    assert [each["record"] for each in records] == [0, 1, 2]
    first = records[1]["fields"][0]
    assert (first["number"], first["wire_type"], first["candidates"][0]) == (1, "length-delimited", ["text", '"s1"'])


def test_head_of_other_payloads_is_an_error(tmp_path: Path, mixed: Path) -> None:
    write_oracle(tmp_path / "text", [b"only text"])
    for arguments in (["text"], ["0.tfrecord", "--where", "id == 1"]):
        result = run("head", tmp_path / arguments[0], *arguments[1:])
        assert (result.exit_code, result.stdout) == (1, "")
        assert "expected an Example, found" in result.stderr


def test_view_shows_the_fields_of_a_message(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pages = []

    def load(server: Server) -> None:
        url = f"{server.url}api/rows?start=0&stop=9"
        while len((found := json.load(urllib.request.urlopen(url, timeout=60)))["rows"]) < 9:
            time.sleep(0.05)
        pages.append(found["cells"])

    monkeypatch.setattr(Server, "wait", load)
    shown("view", path, "--message", scene_type(tmp_path), "--no-browser")
    assert [cell["value"] for cell in pages[0]["id"]] == [scene.id for scene in scenes()]


# ---- times


def times() -> list[tuple[Any, Any]]:
    found = []
    for number in (0, 1, 5 * 10**8, -1, -1_500_000_000, 10**18 + 120_000, 2**62, -(2**62), 86_400 * 10**9):
        at, took = timestamp_pb2.Timestamp(), duration_pb2.Duration()
        at.FromNanoseconds(number)
        took.FromNanoseconds(number)
        found.append((at, took))
    return found


@pytest.fixture
def timed(tmp_path: Path) -> dtf.Dataset:
    """Rows with a moment, a duration, and the moments of the rows before."""
    path, message = write_times(tmp_path, [at.ToNanoseconds() for at, _ in times()])
    return dtf.read_tfrecord(path, message=message, chunks=4)


def test_times_are_text_as_in_protobuf(timed: dtf.Dataset, tmp_path: Path) -> None:
    rows = [json.loads(line) for line in json_rows(timed.compute())]
    texts = [at.ToJsonString() for at, _ in times()]
    assert rows == [
        {"at": texts[row], "took": took.ToJsonString(), "ats": texts[:row]} for row, (_, took) in enumerate(times())
    ]
    preview = str(timed.preview(9))
    statistics = timed.describe()
    table = repr(statistics)
    for at, took in times():
        assert at.ToJsonString() in preview
        assert took.ToJsonString() in preview
    for at, took in (min(times(), key=lambda pair: pair[0].ToNanoseconds()), times()[6]):
        assert at.ToJsonString() in table
        assert took.ToJsonString() in table
    assert "<svg" in statistics._repr_html_()
    assert statistics["at"].numbers is not None
    assert statistics["at"].numbers.maximum == 2**62
    assert not statistics.compare(timed.describe())
    assert "1970-01-02T00:00:00Z" in repr(statistics.compare(timed.rows[8:].describe()))
    statistics.to_pbtxt(tmp_path / "statistics.pbtxt")


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        ({"at": np.datetime64("2001-01-01")}, np.datetime64("2001-01-01", "ns")),
        ({"at": np.datetime64("NaT", "s")}, np.datetime64("NaT", "ns")),
        ({"took": np.timedelta64(-5, "s")}, np.timedelta64(-(5 * 10**9), "ns")),
    ],
)
def test_fill_values_are_times(timed: dtf.Dataset, tmp_path: Path, values: dict[str, Any], wanted: Any) -> None:
    timed.to_zarr(tmp_path / "a.zarr", fill_values=values)
    [name] = values
    found = zarr.open_group(tmp_path / "a.zarr")[name]
    assert isinstance(found, zarr.Array)
    assert np.array(found.fill_value, found.dtype).view(np.int64) == wanted.astype(np.int64)
    assert (dtf.from_zarr(tmp_path / "a.zarr")[name].compute() == timed[name].compute()).all()


@pytest.mark.parametrize("value", [5, 1.5, "2001-01-01", np.timedelta64(1, "s"), np.datetime64("3000-01-01"), None])
def test_fill_values_of_another_kind_are_refused(timed: dtf.Dataset, value: Any) -> None:
    with pytest.raises(ValueError, match=r"is not a value of dtype datetime64\[ns\], for example np"):
        timed.plan_zarr(fill_values={"at": value})
