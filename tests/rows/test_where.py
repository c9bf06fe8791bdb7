"""`Dataset.where` and `read_tfrecord(filters=)`, compared with masks of the computed columns."""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.any_columns import COMPARISONS, rows_of
from support.commands import run
from support.damage import flip
from support.few import mostly_slow
from support.message_files import write_times
from support.remedies import calls, conditions

import dask_tfrecord as dtf
from dask_tfrecord.errors import SchemaError, UnknownFeatureError
from dask_tfrecord.rows.where import as_stored, condition_text, parse_expression
from dask_tfrecord.settings import Limits

ROWS = 60
FEATURES = {
    "label": dtf.FixedLenFeature((), "int64"),
    "score": dtf.FixedLenFeature((), "float32"),
    "pair": dtf.FixedLenFeature((2,), "int64"),
    "name": dtf.FixedLenFeature((), "bytes"),
    "word": dtf.TextFeature(),
    "tokens": dtf.VarLenFeature("int64"),
    "keys": dtf.VarLenFeature("bytes"),
}


def row(number: int) -> dict[str, Any]:
    """Return the values of a record."""
    return {
        "label": number % 5,
        "score": number / 8,
        "pair": [number, number % 3],
        "name": b"ab"[: number % 3],
        "word": "xyz"[number % 3],
        "tokens": list(range(number % 4)),
        "keys": [b"a", b"bb", b"", b"a"][: number % 5],
    }


TABLE = [row(number) for number in range(ROWS)]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("filters")
    columns = {name: [values[name] for values in TABLE] for name in FEATURES}
    template = folder / "f-{shard:05d}-of-{shards:05d}.tfrecord"
    dtf.to_tfrecord(columns, template, features=FEATURES, records_per_shard=20)
    return folder


def holds(values: Mapping[str, Any], condition: tuple[str, str, Any]) -> bool:
    """Return whether a condition holds for a row, value by value."""
    column, comparison, value = condition
    meaning = COMPARISONS[comparison]
    if "(" not in column:
        return meaning(values[column], value)
    reduction, name = column[:-1].split("(")
    if reduction == "len":
        return meaning(len(values[name]), value)
    return (any if reduction == "any" else all)(meaning(each, value) for each in values[name])


def expected_rows(filters: Any, table: list[dict[str, Any]] = TABLE) -> list[dict[str, Any]]:
    """Return the rows that filters keep."""
    alternatives = filters if isinstance(filters[0], list) else [filters]
    return [values for values in table if any(all(holds(values, each) for each in every) for every in alternatives)]


# `test_dataset_states` draws conditions of other columns.
CONDITIONS: list[Any] = [
    [("score", ">=", 2.5), ("score", "!=", 3.0)],
    [("name", "in", [b"a", b"\0", b""])],
    [("name", "<", b"a\0"), ("word", "<", "y\0")],
    [("any(keys)", "==", b"bb"), ("len(keys)", "<", 4)],
    [("all(keys)", "not in", [b"", b"c"])],
    [("any(pair)", ">", 40), ("len(pair)", "<=", 2)],
    [[("word", "==", "x")], [("label", "<", 2), ("all(tokens)", "<", 2)]],
]


@pytest.mark.parametrize("counts", ["auto", None])
@pytest.mark.parametrize("filters", CONDITIONS, ids=str)
def test_conditions_of_every_kind_of_column(files: Path, filters: Any, counts: Any) -> None:
    wanted = expected_rows(filters)
    assert 0 < len(wanted) < ROWS
    ds = dtf.read_tfrecord(files, FEATURES, filters=filters, counts=counts)
    assert ds.nrows == (len(wanted) if counts else None)
    assert rows_of(ds.compute()) == wanted
    some = dtf.read_tfrecord(files, FEATURES, columns=["name", "pair"], filters=filters, counts=counts)
    assert rows_of(some.compute()) == [{name: each[name] for name in ("name", "pair")} for each in wanted]


def test_function(files: Path) -> None:
    ds = dtf.read_tfrecord(files, FEATURES, chunks=11)
    seen: list[tuple[str, ...]] = []

    def odd(blocks: dict[str, Any]) -> Any:
        seen.append(tuple(blocks))
        return blocks["label"] % 2 == 1

    with dask.config.set(scheduler="sync"):
        kept = ds.where(odd, columns=["label"])
    assert set(seen) == {("label",)}
    assert rows_of(kept.compute()) == [each for each in TABLE if each["label"] % 2]
    assert ds.where(lambda blocks: np.diff(blocks["tokens"].row_splits) > 2).nrows == ROWS // 4
    assert ds.where(lambda blocks: blocks["label"] > 9).compute()["pair"].shape == (0, 2)


def test_damaged_records_are_skipped_first(files: Path, tmp_path: Path) -> None:
    path = shutil.copy(files / "f-00000-of-00003.tfrecord", tmp_path)
    flip(Path(path), 20)  # in the first record
    ds = dtf.read_tfrecord(path, FEATURES, errors="skip", filters=[("label", "==", 0)])
    assert rows_of(ds.compute()) == expected_rows([("label", "==", 0)], TABLE[1:20])


def test_values_of_float32_are_compared_as_such() -> None:
    ds = dtf.Dataset.from_arrays({"x": np.array([0.1, 0.2, np.nan], np.float32)})
    for condition, rows in [(("==", 0.1), 1), (("in", [0.1, 0.2]), 2), (("<", 1e300), 2), (("!=", 0.1), 2)]:
        assert ds.where([("x", *condition)]).nrows == rows


@pytest.mark.parametrize("dtype", ["int8", "int64", "uint64"])
@pytest.mark.parametrize(
    "listed",
    [
        [2**53 + 1, 0.5],
        [2**63, 2**63 - 1],
        [2**64 - 1, -1, 2**70],
        [np.uint64(2**63), np.int64(-(2**63)), True],
        [2**53 + 1, np.nan, 1.0, 1e300],
        [],
    ],
)
def test_listed_integers_are_compared_as_integers(dtype: str, listed: list[Any]) -> None:
    limits = np.iinfo(dtype)
    numbers = {-(2**63), -1, 0, 1, 2**53, 2**53 + 1, 2**63 - 1, 2**63, 2**63 + 1, 2**64 - 1}
    x = np.array([number for number in sorted(numbers) if limits.min <= number <= limits.max], dtype)
    expected = np.logical_or.reduce([x == value for value in listed]) if listed else np.zeros(len(x), bool)
    ds = dtf.Dataset.from_arrays({"x": x})
    assert ds.where([("x", "in", listed)])["x"].compute().tolist() == x[expected].tolist()
    assert ds.where([("x", "not in", listed)])["x"].compute().tolist() == x[~expected].tolist()


@pytest.mark.parametrize(
    ("filters", "error", "message"),
    [
        ("label", ValueError, "a list of tuples"),
        ([], ValueError, "a list of tuples"),
        ([("label", "==")], ValueError, "a tuple of column, operator and value"),
        ([[("label", "==", 1)], ("label", "==", 2)], ValueError, "a tuple of column, operator and value"),
        ([("label", "~", 1)], ValueError, "the operator must be one of"),
        ([("label", "in", 1)], ValueError, "takes a list of values"),
        ([("labl", "==", 1)], UnknownFeatureError, "did you mean 'label'"),
        ([("len(token)", "==", 1)], UnknownFeatureError, "did you mean 'tokens'"),
        ([("tokens", "==", 1)], SchemaError, r"compare len\(tokens\), any\(tokens\) or all\(tokens\)"),
        ([("len(label)", "==", 1)], SchemaError, "with one value per row"),
        ([("label", "==", "1")], SchemaError, "'label' holds int64; got '1'; compare it with 1"),
        ([("name", "==", "a")], SchemaError, "holds bytes; got 'a'; compare it with b'a'"),
        ([("word", "in", ["a", b"b"])], SchemaError, "holds text; got b'b'"),
        ([("len(tokens)", ">", "1")], SchemaError, "the length of 'tokens' is a number; got '1'; compare it with 1"),
    ],
)
def test_refused_filters(files: Path, filters: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        dtf.read_tfrecord(files, FEATURES, filters=filters)


def test_refused_functions(files: Path) -> None:
    ds = dtf.read_tfrecord(files, FEATURES)
    with pytest.raises(SchemaError, match="expected a mask of the rows"):
        ds.where(lambda blocks: blocks["label"], columns=["label"])
    with pytest.raises(UnknownFeatureError, match="no column 'x'"):
        ds.where(lambda blocks: blocks["x"], columns=["x"])
    with pytest.raises(SchemaError, match="at least one column"):
        ds.where(lambda blocks: True, columns=[])
    with pytest.raises(TypeError, match="conditions name their columns"):
        ds.where([("label", "==", 1)], columns=["label"])
    with pytest.raises(KeyError) as caught:
        ds.where(lambda blocks: blocks["x"], columns=["label"])
    assert any("where: the function failed on" in note for note in caught.value.__notes__)


@pytest.mark.parametrize("counts", ["auto", None])
def test_functions_of_uncounted_rows(files: Path, counts: Any) -> None:
    ds = dtf.read_tfrecord(files, FEATURES, counts=counts)
    kept = ds.where(lambda blocks: blocks["label"] % 2 == 1, columns=["label"])
    for names in (["label"], ["tokens"], ["word", "label"]):
        assert rows_of(kept[names].compute()) == [
            {name: each[name] for name in names} for each in TABLE if each["label"] % 2
        ]
    again = kept.where([("score", "<", 3.0)]).where(lambda blocks: blocks["label"] == 3)
    assert rows_of(again.compute()) == [each for each in TABLE if each["label"] == 3 and each["score"] < 3]


@pytest.mark.parametrize("counts", ["auto", None])
def test_errors_of_tested_columns_name_the_record(files: Path, counts: Any) -> None:
    wrong = {**FEATURES, "name": dtf.RawFeature((2,), "uint8")}
    ds = dtf.read_tfrecord(files / "f-00000-of-00003.tfrecord", wrong, counts=counts, chunks="shard")
    with pytest.raises(dtf.FeatureError, match=r"f-00000-of-00003.tfrecord: record 0 \(byte 0\): feature 'name'"):
        ds.where(lambda blocks: blocks["name"][:, 0] > 0, columns=["name"])[["label"]].compute()


@pytest.mark.parametrize("chunks", ["shard", "1 GiB"])
@pytest.mark.parametrize("record", [7, 203, 399])
def test_errors_of_kept_rows_name_the_record(
    tmp_path: Path, set_limits: Callable[..., Limits], chunks: str, record: int
) -> None:
    # Windows of a few records; the error is found when the blocks of all of them are assembled.
    set_limits(window_nbytes=700, first_window_nbytes=64)
    written = {"number": np.arange(800), "text": [b"1"] * (400 + record) + [b"x"] + [b"1"] * (399 - record)}
    dtf.to_tfrecord(written, tmp_path / "a-{shard}.tfrecord", records_per_shard=400)
    features = {"number": dtf.FixedLenFeature((), "int64"), "text": dtf.FunctionFeature(int, (), "int64")}
    ds = dtf.read_tfrecord(tmp_path / "a-*.tfrecord", features, counts=None, chunks=chunks)
    assert ds.where([("number", "!=", 400 + record)]).compute()["text"].sum() == 799
    with pytest.raises(dtf.FeatureError, match=rf"a-1.tfrecord: record {record} \(byte .*feature 'text'"):
        ds.where(lambda blocks: blocks["number"] % 4 == 3, columns=["number"]).compute()


def test_commands(files: Path, tmp_path: Path) -> None:
    (tmp_path / "features.json").write_text(dtf.Schema(FEATURES).to_json(), "utf-8")
    texts = ["label in [1, 3]", "len(tokens)>0", "name != 'a'", " word  not in ('x',) "]
    wanted = expected_rows(
        [("label", "in", [1, 3]), ("len(tokens)", ">", 0), ("name", "!=", b"a"), ("word", "not in", ["x"])]
    )
    options = [word for text in texts for word in ("--where", text)]
    reading = [files, "--features", tmp_path / "features.json", *options]
    shown = run("head", *reading, "-n", 99, "--json", "--columns", "label,score").stdout.splitlines()
    assert list(map(json.loads, shown)) == [{name: each[name] for name in ("label", "score")} for each in wanted]
    assert run("to-zarr", files, tmp_path / "a.zarr", *reading[1:]).exit_code == 0
    assert rows_of(dtf.from_zarr(tmp_path / "a.zarr").compute()) == wanted
    written = [tmp_path / "a.zarr", tmp_path / "a-{shard}.tfrecord", "--where", "score < 3", "--columns", "label"]
    assert run("to-tfrecord", *written).exit_code == 0
    found = dtf.read_tfrecord(tmp_path / "a-*.tfrecord").compute()["label"].tolist()
    assert found == [each["label"] for each in wanted if each["score"] < 3]
    done = run("info", files, *options)
    assert f"matching     {len(wanted)}" in done.stdout
    assert json.loads(run("info", files, "--json", *options).stdout)["matching"] == len(wanted)
    pandas = pytest.importorskip("pandas")
    assert run("to-parquet", files, tmp_path / "a", *reading[1:]).exit_code == 0
    assert pandas.read_parquet(tmp_path / "a")["score"].tolist() == [each["score"] for each in wanted]


HOSTILE_NAMES = (
    *("log-in", "a == b", "a/b c", "it's", 'say "x"', "a and b", "in", " padded ", "a'b\"c\\d", "len(x)", "x or y > 3"),
    *("nul\x00\n", "right\u202eto", "1st", "", "and", "'quoted'", "日本 語", "not in"),
)


@pytest.mark.parametrize("name", HOSTILE_NAMES)
def test_conditions_of_any_name_are_written_and_read(tmp_path: Path, name: str) -> None:
    text = f"{condition_text(name, '>=', 1)} and {condition_text(name, '!=', 3)}"
    assert parse_expression(text) == [[(name, ">=", 1), (name, "!=", 3)]]
    assert parse_expression(f"len({name!r}) < 2") == [[(f"len({name})", "<", 2)]]
    dtf.to_tfrecord({name: np.arange(5), "other": np.arange(5)}, tmp_path / "a.tfrecord")
    done = run("head", tmp_path / "a.tfrecord", "--json", "--where", condition_text(name, "==", 4))
    assert [json.loads(line)["other"] for line in done.stdout.splitlines()] == [4], done.stderr


@pytest.mark.parametrize("text", ["'a", "'a') == 3", "len('a' == 3", "'\\N{x}' == 3"])
def test_quotes_that_are_not_closed(text: str) -> None:
    try:
        (((name, _, _),),) = parse_expression(text)
    except ValueError as error:
        assert "Write a name with operators, quotes or spaces in quotes" in str(error)
    else:
        # Without a quoted name, the text before the operator is the name.
        assert name == text.partition(" == ")[0]


NAMES = st.sampled_from(HOSTILE_NAMES) | st.text(st.sampled_from("ab_'\"\\ <=>!()\n"), max_size=6)
SPACES = st.sampled_from([" ", "  ", "\t", " \n "])


@given(
    parts=st.lists(
        st.tuples(
            NAMES,
            st.sampled_from([None, "len", "any"]),
            st.sampled_from([*COMPARISONS]),
            SPACES,
            st.sampled_from(["and", "or"]),
        ),
        min_size=1,
        max_size=4,
    )
)
def test_expressions_are_read_as_they_are_written(parts: list[Any]) -> None:
    """Any white space stands between the words of an expression, and values may contain its words."""
    wanted: list[Any] = [[]]
    text = ""
    for number, (name, reduction, comparison, space, joined) in enumerate(parts):
        value: Any = [" or ", "it's"] if "in" in comparison else f' and {number}"'
        text += f"{space}{joined}{space}" if number else space
        written = f"{reduction}({space}{name!r}{space})" if reduction else repr(name)
        text += f"{written}{space}{comparison.replace(' ', space)}{space}{value!r}"
        if number and joined == "or":
            wanted.append([])
        wanted[-1].append((f"{reduction}({name})" if reduction else name, comparison, value))
    assert parse_expression(text + " ") == wanted


@pytest.mark.parametrize(
    "repeated",
    [
        " ",
        "a ",
        "not ",
        "not  not\t",
        "and ",
        " or ",
        "'",
        "'\\",
        "\\'",
        "\"'",
        "len(",
        "len( ",
        "<",
        "in",
        "in ",
        "a == 1 and ",
    ],
)
@pytest.mark.parametrize("start", mostly_slow(["", "len('b' "], 2))
def test_the_time_to_read_an_expression_is_proportional_to_its_length(start: str, repeated: str) -> None:
    def seconds(times: int) -> float:
        text, found = start + repeated * times, []
        for _ in range(3):
            began = time.thread_time()
            with suppress(ValueError):
                parse_expression(text)
            found.append(time.thread_time() - began)
        return min(found)

    # Eight times the text takes eight times as long; 64 times where the time is quadratic.
    assert seconds(1_200) < 32 * seconds(150) + 1e-3


@pytest.mark.parametrize("text", [" == 3", "\t in [1]", " ", ""])
def test_white_space_is_no_name(text: str) -> None:
    with pytest.raises(ValueError, match="is not a condition"):
        parse_expression(text)


def test_times_are_compared_with_text(tmp_path: Path) -> None:
    moments = np.array(["2001-09-09T01:46:40.5", "2024-01-01", "2261-01-01", "1969-12-31T23:59:59"], "M8[ns]")
    path, message = write_times(tmp_path, moments.astype(int).tolist())
    ds = dtf.read_tfrecord(path, message=message)
    for text, expected in (
        ("at == '2001-09-09T01:46:40.500Z'", [0]),
        ("at >= '2024'", [1, 2]),
        ("at in ['2024-01-01', '2261-01-01T00:00Z']", [1, 2]),
        ("took < '0s'", [3]),
        ("took == '-1.000s'", [3]),
        ("took >= '1000000000.500s'", [0, 1, 2]),
    ):
        kept = ds.where(as_stored(ds.schema, parse_expression(text)))["at"].compute()
        assert kept.tolist() == moments[expected].tolist(), text
        lines = run("head", path, "--message", message, "--json", "--where", text).stdout.splitlines()
        assert len(lines) == len(expected)
    for text in ("at > '9999-01-01'", "at > 'now'", "at > ''", "took > '1'", "took > '99999999999s'"):
        with pytest.raises(ValueError, match=r"expected a (time|duration) like"):
            as_stored(ds.schema, parse_expression(text))


@pytest.mark.parametrize(
    ("text", "code", "message"),
    [
        *(
            (text, 2, "is not a condition")
            for text in ("label", "label = 3", "label == three", "== 3", "label ==", "label == [", "")
        ),
        ("labl == 3", 1, "did you mean 'label'"),
        ("label == 'a'", 1, "holds int64"),
        ("label in 3", 1, "list of values"),
    ],
)
def test_conditions_of_commands_that_are_refused(files: Path, text: str, code: int, message: str) -> None:
    done = run("head", files, "--where", text)
    assert done.exit_code == code
    assert message in done.stderr


def test_the_first_rows_of_a_filter_are_found_without_the_last_shards(tmp_path: Path) -> None:
    dtf.to_tfrecord({"x": np.arange(9000)}, tmp_path / "{shard}.tfrecord", records_per_shard=3000)
    last = tmp_path / "2.tfrecord"
    last.write_bytes(last.read_bytes()[:-5])
    done = run("head", tmp_path / "*.tfrecord", "--json", "--where", "x > 1", "-n", "2")
    assert done.exit_code == 0, done.stderr
    assert [*map(json.loads, done.stdout.splitlines())] == [{"x": 2}, {"x": 3}]


def test_the_number_of_an_item_needs_a_name_of_its_own() -> None:
    episodes = dtf.Dataset.from_arrays({"steps/x": [[1, 2], [3]], "folder": ["a", "b"]})
    with pytest.raises(SchemaError, match="number='folder' is the name of another column"):
        episodes.explode("steps", repeat=["folder"], number="folder")


def test_a_function_replaces_all_joined_conditions(tmp_path: Path) -> None:
    dtf.to_tfrecord({"label": np.arange(3)}, tmp_path / "one")
    with pytest.raises(UnknownFeatureError, match="lambda blocks") as caught:
        dtf.read_tfrecord(tmp_path / "one").where("label > 2 or label % 2 == 0").compute()
    assert "The function replaces the whole condition" in caught.value.__notes__[-1]


# Conditions as SQL, pandas and C write them, and the rows that the advice of their error keeps.
OTHERWISE = {
    "a > 0 && b < 3": [1],
    "a>0&b<3": [1],
    "a == 0 || b == 4": [0, 2],
    "a = 1 AND b = 2": [1],
    "(a = 1) && (text = 'it')": [1],
    "a <> 1": [0, 2],
    "a => 1": [1, 2],
    "1 < b": [1, 2],
    "1 < b <= 2": [1],
    "b between 1 and 3": [1],
    "b.between(1, 3)": [1],
    "b.isin([2, 4])": [1, 2],
    "b IN (2, 4) and a == 1": [1],
    "not flag": [1],
    "flag = true": [0, 2],
    "text = it": [1],
    "text == 'it' and raw == b'it' && a = 1": [1],
    "`log-in` > 1": [1, 2],
    "`log-in` > 1 && a < 2": [1],
    "size(rows) > 1": [1],
    "rows.len() > 1": [1],
    "text == b'it'": [1],
    "a == '1'": [1],
    "part is null": [1],
    "part.notna()": [0, 2],
    "part != nan": [0, 2],
    "part == None": [1],
    "text like '%t'": [1],
    "raw.str.contains('t')": [1],
    "raw contains t": [1],
    "text.startswith('i')": [1],
    "a < b": [1, 2],
    "sqrt(b) > 1": [1, 2],
    "a + b == 3": [1],
    "kind == 'dog'": [1],
}


@pytest.mark.parametrize("text", OTHERWISE)
def test_the_advice_for_a_condition_keeps_the_rows_that_are_meant(text: str) -> None:
    columns = {"a": [0, 1, 2], "b": [0, 2, 4], "text": ["", "it", "x"], "raw": [b"", b"it", b"x"], "kind": [0, 1, 2]}
    columns |= {"part": np.float32([1, np.nan, 3]), "rows": [[], [1, 2], [3]], "flag": [True, False, True]}
    ds = dtf.Dataset.from_arrays({**columns, "log-in": [1, 2, 3]})
    ds = ds.map_blocks(dict, dtf.Schema(dict(ds.schema), classes={"kind": ["cat", "dog", "fox"]}))
    with pytest.raises((ValueError, SchemaError)) as raised:
        ds.where(text)
    said = str(raised.value)
    written = [eval(call, {"ds": ds, "numpy": np}) for call in calls(said)] + list(map(ds.where, conditions(said)))
    if given := re.search("; compare it with (.*)$", said):
        written.append(ds.where(re.sub(r"(?<== )\S+$", lambda _: given[1], text)))
    if numbered := re.search("; write (.* == .*)$|: write (.* == [0-9]*)$", said):
        written.append(ds.where(numbered[1] or numbered[2]))
    assert [each["a"].compute().tolist() for each in written] == [OTHERWISE[text]], said


BEYOND = (-(2**70), -1, 0, 1, 2, 2**63, 2**70, 10**400, -(10**400))


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint64", "float16", "float32", "float64"])
def test_integers_beyond_the_dtype_are_compared_as_integers(dtype: str) -> None:
    values = np.array([0, 1, 0, np.inf] if dtype.startswith("float") else [0, 1, 0, 1], dtype)
    ds, listed = dtf.Dataset.from_arrays({"x": values}), values.tolist()
    for number in BEYOND:
        for comparison, function in COMPARISONS.items():
            if "in" in comparison:
                continue
            found = ds.where([("x", comparison, number)])["x"].compute().tolist()
            assert found == [value for value in listed if function(value, number)], (comparison, number)
        assert ds.where([("x", "in", [number, 1])])["x"].compute().tolist() == [v for v in listed if v in (number, 1)]
