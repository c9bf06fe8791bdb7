"""`Dataset.to_polars`: queries of polars and DuckDB give the answers that they give for the computed rows."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from functools import cache
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

import dask
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.few import mostly_slow, rising
from support.polars_plans import plan, sql

import dask_tfrecord as dtf

pl = pytest.importorskip("polars")
duckdb = pytest.importorskip("duckdb")
testing = pytest.importorskip("polars.testing")

ROWS = 60
FEATURES = {
    "label": dtf.FixedLenFeature((), "int64"),
    "small": dtf.FixedLenFeature((), "uint8"),
    "score": dtf.FixedLenFeature((), "float32"),
    "half": dtf.FixedLenFeature((), "float16"),
    "pair": dtf.FixedLenFeature((2, 2), "int64"),
    "name": dtf.FixedLenFeature((), "bytes"),
    "word": dtf.TextFeature(),
    "tokens": dtf.VarLenFeature("int64"),
}
TABLE: list[dict[str, Any]] = [
    {
        "label": number % 5,
        "small": number,
        "score": float("nan") if number % 9 == 4 else number / 10,
        "half": number / 10,
        "pair": [[number, 1], [2, number % 3]],
        "name": b"ab"[: number % 3],
        "word": "xyz"[number % 3],
        "tokens": [*range(number % 4)],
    }
    for number in range(ROWS)
]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("polars")
    for number, start in enumerate(range(0, ROWS, 20)):
        arrays = {name: [row[name] for row in TABLE[start : start + 20]] for name in FEATURES}
        dtf.to_tfrecord(arrays, folder / f"p-{number:05d}-of-00003.tfrecord", features=FEATURES)
    return folder


def expected() -> Any:
    """Return the rows as a DataFrame that polars makes from lists."""
    types = {
        "label": pl.Int64,
        "small": pl.UInt8,
        "score": pl.Float32,
        "half": pl.Float16,
        "pair": pl.Array(pl.Int64, (2, 2)),
        "name": pl.Binary,
        "word": pl.String,
        "tokens": pl.List(pl.Int64),
    }
    return pl.DataFrame(TABLE, schema=types)


OPENED: dict[str, Callable[[Path], dtf.Dataset]] = {
    "counted": lambda files: dtf.read_tfrecord(files, FEATURES, chunks=7),
    "uncounted": lambda files: dtf.read_tfrecord(files, FEATURES, counts=None),
    "persisted": lambda files: dtf.read_tfrecord(files, FEATURES, chunks=7).persist(),
    "reversed": lambda files: dtf.read_tfrecord(files, FEATURES).rows[::-1].rows[::-1],
    "mapped": lambda files: dtf.read_tfrecord(files, FEATURES).map_blocks(lambda blocks: blocks, FEATURES),
}
QUICK = [
    opened if opened in ("counted", "uncounted") else pytest.param(opened, marks=pytest.mark.slow) for opened in OPENED
]


@cache
def open_once(files: Path, opened: str) -> dtf.Dataset:
    return OPENED[opened](files)


OPERANDS: dict[str, tuple[Any, st.SearchStrategy[Any]]] = {
    "label": (pl.col("label"), st.integers(-1, 6) | st.sampled_from([0.5, 2.0])),
    "small": (pl.col("small"), st.integers(0, 255)),
    "score": (pl.col("score"), st.sampled_from([0.1, 0.5, 2.5, float("nan"), 1e300]) | st.integers(0, 6)),
    "half": (pl.col("half"), st.sampled_from([0.1, 0.5, 2.5])),
    "name": (pl.col("name"), st.sampled_from([b"", b"a", b"ab", b"c"])),
    "word": (pl.col("word"), st.sampled_from(["x", "y", "zz", ""])),
    "tokens": (pl.col("tokens").list.len(), st.integers(0, 4)),
    "sum": (pl.col("label") + pl.col("small"), st.integers(0, 60)),
}
OPERATORS = [operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge]


@st.composite
def leaves(draw: st.DrawFn) -> Any:
    """Draw a comparison, written in either order, or a membership."""
    column, values = OPERANDS[draw(st.sampled_from(sorted(OPERANDS)))]
    if draw(st.booleans()):
        wanted = draw(st.lists(values, min_size=1, max_size=3))
        try:
            return column.is_in(pl.Series(wanted))
        except TypeError:  # integers and floats
            return column.is_in(pl.Series(list(map(float, wanted))))
    compare, value = draw(st.sampled_from(OPERATORS)), draw(values)
    return compare(pl.lit(value), column) if draw(st.booleans()) else compare(column, pl.lit(value))


PREDICATES = st.recursive(
    leaves(),
    lambda inner: (
        st.tuples(inner, inner).map(lambda two: two[0] & two[1])
        | st.tuples(inner, inner).map(lambda two: two[0] | two[1])
        | inner.map(lambda one: ~one)
    ),
    max_leaves=4,
)


def agrees(frame: Any, predicate: Any, query: Callable[[Any], Any]) -> None:
    """Compare the result of a query of the lazy rows with the result for the DataFrame, or their refusals."""
    try:
        wanted = query(expected().lazy().filter(predicate)).collect()
    except pl.exceptions.PolarsError as error:
        with pytest.raises(type(error)):
            query(frame.filter(predicate)).collect()
        return
    testing.assert_frame_equal(query(frame.filter(predicate)).collect(), wanted)


@pytest.mark.parametrize("opened", QUICK)
@given(predicate=PREDICATES, columns=st.lists(st.sampled_from(sorted(FEATURES)), min_size=1, unique=True))
def test_any_predicate(files: Path, opened: str, predicate: Any, columns: list[str]) -> None:
    frame = open_once(files, opened).to_polars()
    with dask.config.set(scheduler="sync"):
        agrees(frame, predicate, lambda rows: rows)
        agrees(frame, predicate, lambda rows: rows.select(columns).head(3))
        agrees(frame, predicate, lambda rows: rows.group_by("word").agg(pl.len()).sort("word"))


# Kinds of the columns that plans use: not float16, whose NumPy and DuckDB types differ.
KINDS = {
    "label": "int",
    "small": "int",
    "score": "float",
    "pair": "array",
    "name": "bytes",
    "word": "text",
    "tokens": "list",
}


def unoptimised(plan: str) -> Any:
    """Return the result of a plan for the DataFrame, step by step."""
    names = {"pl": pl, "functools": functools, "operator": operator}
    made = eval(plan, {**names, "rows": expected().select(list(KINDS)).lazy()})
    return made.collect(optimizations=pl.QueryOptFlags.none(), engine="in-memory")


START = Random().randrange(1 << 40)
SEEDS = rising(range(8), range(8, 100), range(START, START + 10_000))


@pytest.mark.parametrize("seeds", SEEDS, ids=str)
@pytest.mark.parametrize("opened", QUICK)
def test_any_plan(files: Path, opened: str, seeds: range) -> None:
    """A plan gives the rows that it gives for the DataFrame, whichever of its steps polars leaves to the source."""
    rows = open_once(files, opened)[list(KINDS)].to_polars()
    for seed in seeds:
        text, columns = plan(rng := Random(seed), KINDS)
        wanted = unoptimised(text)
        with dask.config.set(scheduler="sync"), duckdb.connect() as database:
            lazy = eval(text, {"pl": pl, "rows": rows})
            try:
                found = lazy.collect(engine=rng.choice(["in-memory", "streaming"]))
            except pl.exceptions.PanicException:
                # Streams of polars 2.1 panic at some slices of joins, with any source.
                with pytest.raises(pl.exceptions.PanicException):
                    eval(text, {"pl": pl, "rows": rows.collect().lazy()}).collect(engine="streaming")
                continue
            testing.assert_frame_equal(found, wanted, check_exact=True)
            query = sql(rng, columns)
            answers = []
            for shown in (lazy, wanted):
                database.register("shown", shown)
                answers.append(sorted(map(repr, database.sql(query).fetchall())))
        assert answers[0] == answers[1], f"{query} of {text}"


ORDERS = [
    "rows.head(3).filter(pl.col('label') == 4)",
    "pl.concat([rows, rows.head(4)]).filter(pl.col('label') >= 2)",
    "rows.filter(pl.when(pl.col('label') == 1).then(pl.col('label').is_null()).otherwise(pl.col('label') >= 2))",
    "rows.filter(~pl.when(pl.col('label') == 1).then(pl.col('label').is_null()))",
    "rows.filter(pl.when((pl.col('label') // 0).is_null()).then(pl.col('label') == 1).otherwise(pl.lit(False)))",
    "rows.with_row_index('n').select('n')",
    "rows.with_row_index('n').select(pl.len())",
    "rows.head(7).with_row_index('n').filter(pl.col('n') > 2).select('n')",
    "rows.filter(pl.len() > 3)",
    "rows.filter(pl.col('label').is_in([]) | (pl.col('small') > 50))",
    "rows.filter(pl.any_horizontal(*(pl.col('small') == number for number in range(0, 60, 7))))",
    "rows.filter(functools.reduce(operator.or_, [pl.col('small') == number for number in range(0, 700, 7)]))",
    "rows.filter(pl.struct('label', 'small').map_elements(lambda row: row['label'] > 2, pl.Boolean))",
]


@pytest.mark.parametrize(
    ("opened", "text"),
    [
        *(("counted", text) for text in ORDERS),
        *mostly_slow((pair for pair in product(OPENED, ORDERS) if pair[0] != "counted"), 12),
    ],
)
def test_plans_whose_order_decides(files: Path, opened: str, text: str) -> None:
    rows = open_once(files, opened)[list(KINDS)].to_polars()
    made = eval(text, {"pl": pl, "rows": rows, "functools": functools, "operator": operator})
    with dask.config.set(scheduler="sync"):
        for engine in ("in-memory", "streaming"):
            testing.assert_frame_equal(made.collect(engine=engine), unoptimised(text))


@pytest.mark.parametrize("names", [("^a.*$", "a", "ab"), ("*", "a"), ("", "a"), ("", "column_0"), ("^", "$"), (".*",)])
@pytest.mark.parametrize("counts", ["auto", None])
def test_names_that_polars_takes_for_patterns(tmp_path: Path, names: tuple[str, ...], counts: Any) -> None:
    columns = {name: [10 * number, 10 * number + 1] for number, name in enumerate(names)}
    dtf.to_tfrecord(columns, tmp_path / "a.tfrecord")
    frame = dtf.read_tfrecord(tmp_path, counts=counts)[[*names]].to_polars()
    wanted = pl.DataFrame([pl.Series(f"{number}", each) for number, each in enumerate(columns.values())])
    wanted.columns = list(names)
    testing.assert_frame_equal(frame.collect(), wanted)
    testing.assert_frame_equal(frame.filter(pl.nth(0) == 1).collect(), wanted[1:])
    testing.assert_frame_equal(frame.select(pl.nth(-1)).head(1).collect(), wanted[[names[-1]]][:1])
    with duckdb.connect() as database:
        database.register("shown", frame)
        assert database.sql("SELECT count(*) FROM shown").fetchall() == [(2,)]


def decoding(*names: str) -> dict[str, dtf.Feature]:
    """Make features so that only `names` can be decoded: records list fewer values than the others need."""
    return {
        name: feature if name in names else dtf.FixedLenFeature((11,), getattr(feature, "stored", "bytes"))
        for name, feature in FEATURES.items()
    }


def test_queries_read_what_they_need(files: Path) -> None:
    assert dtf.read_tfrecord(files, FEATURES).to_polars().collect_schema() == expected().schema
    frame = dtf.read_tfrecord(files, decoding("label", "small"), chunks=20).to_polars()
    total = sum(row["small"] for row in TABLE if row["label"] == 3)
    assert frame.filter(pl.col("label") == 3).select(pl.col("small").sum()).collect().item() == total
    assert frame.select(pl.len()).collect().item() == ROWS
    with duckdb.connect() as database:
        database.register("rows", frame)
        assert database.sql("SELECT sum(small) FROM rows WHERE label = 3").fetchall() == [(total,)]
    with pytest.raises(dtf.FeatureError, match=r"feature '\w+' holds \d+ values?, but FixedLenFeature"):
        frame.collect()
    calls = []

    def counted(blocks: dict[str, Any]) -> dict[str, Any]:
        calls.append(len(blocks["word"]))
        return blocks

    words = dtf.read_tfrecord(files, decoding("word"), chunks=20)[["word"]].map_blocks(
        counted, {"word": FEATURES["word"]}
    )
    assert words.to_polars().head(3).collect().rows() == [("x",), ("y",), ("z",)]
    assert len(calls) == 1


@pytest.mark.parametrize("counts", ["auto", None])
@pytest.mark.parametrize(
    "wrong", [dtf.TensorFeature((2,), "int64"), dtf.RawFeature((2,), "uint8", compression_type="ZLIB")], ids=str
)
def test_kept_rows_alone_are_decoded(files: Path, counts: Any, wrong: Any) -> None:
    """Bytes that cannot be decoded are an error of the first record that is kept."""
    ds = dtf.read_tfrecord(files, {**FEATURES, "name": wrong}, counts=counts, chunks="shard")
    frame = ds.to_polars()
    assert frame.filter(pl.col("label") > 9).collect().height == 0
    with pytest.raises(dtf.TFRecordError, match=r"p-00001-of-00003.tfrecord: record 13 \(byte \d+\): feature 'name'"):
        frame.filter(pl.col("small") == 33).collect()


SQL = [
    "label = 3 AND score > 0.5",
    "label IN (1, 2) OR name = 'a'::BLOB",
    "word NOT IN ('x', 'y')",
    "score BETWEEN 0.5 AND 2.5",
    "len(tokens) > 1 AND NOT (label < 2)",
    "label + small > 20",
    "score >= 0.1 AND small <> 7",
]


@pytest.mark.parametrize(
    ("opened", "condition"), mostly_slow(((opened, condition) for opened in OPENED for condition in SQL), 4)
)
def test_duckdb(files: Path, opened: str, condition: str) -> None:
    # DuckDB lacks float16.
    ds = open_once(files, opened)[[name for name in FEATURES if name != "half"]]
    query = f"SELECT label, small, word, len(tokens) FROM shown WHERE {condition} ORDER BY small"
    with duckdb.connect() as database:
        database.register("shown", expected().drop("half"))
        wanted = database.sql(query).fetchall()
        assert 0 < len(wanted) < ROWS
        for rows in (ds.to_polars(), ds):
            database.unregister("shown")
            database.register("shown", rows)
            assert database.sql(query).fetchall() == wanted


def test_several_frames_at_once(files: Path) -> None:
    """Queries of polars wait for threads of dask, which must not wait for polars."""
    frame = dtf.read_tfrecord(files, FEATURES, chunks=3).to_polars()
    parts = [frame.filter(pl.col("label") == label).select("small") for label in range(5)]
    joined = functools.reduce(lambda one, other: one.join(other, on="small", how="full", coalesce=True), parts)
    assert sorted(joined.collect().get_column("small")) == [*range(ROWS)]
    assert [each.height for each in pl.collect_all(parts)] == [12] * 5
