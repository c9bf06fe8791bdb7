"""Rows that are appended to a store: as if all rows had been converted at once, and not at all until they are whole."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
import xarray
import zarr
from cases import COLUMNS
from support.commands import run, shown
from support.faults import Faults, Killed
from support.few import mostly_slow, rising
from support.numbered_shards import write_shards
from support.store_round_trip import assert_same

import dask_tfrecord as dtf
from dask_tfrecord.settings import replaced_limits


def assert_like(store: Any, reference: Any) -> None:
    """Assert that all readers find the same in two stores."""
    found, wanted = dtf.from_zarr(store), dtf.from_zarr(reference)
    assert (found.schema, found.nrows) == (wanted.schema, wanted.nrows)
    assert_same(found.compute(), wanted.compute())
    groups = [zarr.open_group(each, mode="r") for each in (store, reference)]
    first, second = ({name: array[:] for name, array in group.arrays()} for group in groups)
    assert_same(dict(sorted(first.items())), dict(sorted(second.items())))
    for name in second:
        # Chunks of flat values depend on the rows that a store began with.
        one, other = ({**group[name].metadata.to_dict(), "chunk_grid": 0, "codecs": 0} for group in groups)
        assert one == other
    opened = [xarray.open_zarr(each) for each in (store, reference)]
    assert opened[0].sizes == opened[1].sizes
    assert_same(*({str(name): each[name].to_numpy() for name in sorted(each.variables)} for each in opened))


GRIDS: list[dict[str, int]] = [{"chunks": 3}, {"chunks": 2, "shards": 4}]


@pytest.mark.parametrize(
    ("case", "options"),
    [
        *mostly_slow([(case, GRIDS[number % 2]) for number, case in enumerate(["items", *COLUMNS])], 12),
        pytest.param("every layout", GRIDS[1], marks=pytest.mark.slow),
    ],
)
def test_appended_rows_are_those_of_one_conversion(
    case: str, options: dict[str, Any], golden: Path, tmp_path: Path
) -> None:
    build, argument = COLUMNS[case]
    ds = build(golden, argument)
    total = ds.nrows or 0
    cuts = [total // 2, total // 2, max(total - 1, 0)]
    ds.to_zarr(tmp_path / "whole", **options)
    for start, stop in zip([0, *cuts], [*cuts, total], strict=True):
        ds.rows[start:stop].to_zarr(tmp_path / "grown", append_dim="record", **options)
    assert_like(tmp_path / "grown", tmp_path / "whole")


# Rows of a store, and rows that follow: the last chunk of each array holds both.
OLD, NEW = 5, 6


def columns(start: int, stop: int) -> dict[str, Any]:
    """Return rows of numbers, of text and of lists, all different from the fill value."""
    numbers = range(start + 1, stop + 1)
    return {
        "x": np.array(numbers),
        "text": np.array([f"row {number}" for number in numbers], np.dtypes.StringDType()),
        "tokens": [[number] * (1 + number % 3) for number in numbers],
    }


def assert_rows(store: Any, *counts: int) -> None:
    """Assert that every reader finds one of these numbers of rows, with the right values."""
    found = dtf.from_zarr(store).compute()
    assert len(found["x"]) in counts
    opened = xarray.open_zarr(store)
    group = zarr.open_group(store, mode="r")
    for x, text, splits, values in [
        (*(found[name] for name in ("x", "text")), np.append(0, np.cumsum([*map(len, found["tokens"])])), None),
        [opened[name].to_numpy() for name in ("x", "text", "tokens.row_splits", "tokens.values")],
        [group[name][:] for name in ("x", "text", "tokens.row_splits", "tokens.values")],
    ]:
        rows = len(x)
        wanted = columns(0, rows)
        assert rows in counts
        assert x.tolist() == wanted["x"].tolist()
        assert text.tolist() == wanted["text"].tolist()
        assert np.diff(splits).tolist() == [*map(len, wanted["tokens"])]
        assert values is None or values.tolist() == [token for row in wanted["tokens"] for token in row]
    assert [row.tolist() for row in found["tokens"]] == columns(0, len(found["x"]))["tokens"]


def test_what_does_not_fit_is_refused_by_both_sides(tmp_path: Path) -> None:
    store = tmp_path / "x.zarr"
    dtf.to_zarr(columns(0, OLD), store, append_dim="record", chunks=4)
    rest = columns(OLD, OLD + NEW)
    floats = {**rest, "x": rest["x"].astype("float32")}
    with pytest.raises(dtf.errors.SchemaError, match=r"'x' was FixedLenFeature\(.*int64.*now is .*float32"):
        dtf.to_zarr(floats, store, append_dim="record")
    with pytest.raises(dtf.errors.SchemaError, match="'tokens' was removed"):
        dtf.to_zarr({name: rest[name] for name in ("x", "text")}, store, append_dim="record")
    with pytest.raises(ValueError, match="chunks was 4 when the store was written, and now is 5"):
        dtf.to_zarr(rest, store, append_dim="record", chunks=5)
    with pytest.raises(ValueError, match="append_dim='time': the dimension of the rows of the store is 'record'"):
        dtf.to_zarr(rest, store, append_dim="time")
    with pytest.raises(ValueError, match="pass only one of them"):
        dtf.to_zarr(rest, store, append_dim="record", mode="w")
    assert_rows(store, OLD)
    dtf.to_zarr(rest, store, append_dim="record", chunks=4)
    assert_rows(store, OLD + NEW)


def test_few_first_values_do_not_decide_the_chunks(tmp_path: Path) -> None:
    dtf.to_zarr(columns(0, OLD) | {"data": [b"x" * row for row in range(OLD)]}, tmp_path / "x.zarr")
    group: Any = zarr.open_group(tmp_path / "x.zarr", mode="r")
    for name in ("tokens.values", "data.values"):
        assert group[name].chunks[0] * group[name].dtype.itemsize == 128 << 10
        assert group[name].shape[0] < 20


class Pause(Faults):
    """Call of the file system, other than those that write a chunk, at which a function is called."""

    def __init__(self, at: int, act: Callable[[], None], store: Path) -> None:
        # A task makes the folder of a chunk and a temporary file after it has asked whether it may write.
        super().__init__(
            at, Killed, lambda path: re.fullmatch(rf"{store}(?!.*(/c|\.partial)$).*", str(path)) is not None
        )
        self.act = act

    def call(self, path: Any) -> None:
        if self.counts(path):
            self.calls += 1
            if self.calls == self.at:
                self.act()


@pytest.mark.slow
@pytest.mark.parametrize("every", rising(23, 5, 1))
@pytest.mark.parametrize("meanwhile", ["appended", "killed", "replaced"])
def test_a_late_copy_of_a_task_changes_nothing(every: int, meanwhile: str, tmp_path: Path) -> None:
    """A copy of all tasks of an append stops, while the others complete it and another append is written or begun."""
    store, at, cuts = tmp_path / "x.zarr", 1, (OLD, OLD + 2, OLD + 5)
    dtf.to_zarr(columns(0, OLD), tmp_path / "old.zarr", chunks=4)
    while True:
        shutil.copytree(tmp_path / "old.zarr", store)
        tasks = dtf.to_zarr(columns(*cuts[:2]), store, append_dim="record", compute=False)
        assert tasks is not None

        def act(tasks: Any = tasks, at: int = at) -> None:
            if meanwhile != "replaced":
                # Without this, the next append removes what the first one has written.
                tasks.compute()
            rest = columns(dtf.from_zarr(store).nrows or 0, cuts[2])
            if meanwhile == "killed":
                with (
                    suppress(Killed),
                    Faults(20 + at % 40, Killed, lambda path: str(path).startswith(f"{store}")).injected(),
                ):
                    dtf.to_zarr(rest, store, append_dim="record")
            else:
                dtf.to_zarr(rest, store, append_dim="record")

        pause = Pause(at, act, store)
        with (
            dask.config.set(scheduler="synchronous"),
            replaced_limits(owner_check=1e9),
        ):
            with suppress(dtf.errors.TFRecordError, OSError), pause.injected():
                tasks.compute()
            if pause.calls >= at:
                found = dtf.from_zarr(store).nrows
                if found == cuts[1]:
                    assert_rows(store, cuts[1])
                    dtf.to_zarr(columns(cuts[1], cuts[2]), store, append_dim="record", resume=True)
                assert_rows(store, cuts[2])
        shutil.rmtree(store)
        if pause.calls < at:
            break
        at += every
    assert at > 20


def test_an_opened_data_set_keeps_its_rows(tmp_path: Path) -> None:
    store = tmp_path / "x.zarr"
    dtf.to_zarr(columns(0, OLD), store, chunks=4, consolidated=False)
    opened = dtf.from_zarr(store)
    dtf.to_zarr(columns(OLD, OLD + NEW), store, append_dim="record", consolidated=False)
    assert opened["x"].compute().tolist() == columns(0, OLD)["x"].tolist()
    assert dtf.from_zarr(store)["x"].compute().tolist() == columns(0, OLD + NEW)["x"].tolist()


def test_encoded_images_stay_encoded(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (11, 4, 5, 3), np.uint8)
    feature = dtf.ImageFeature((4, 5, 3))
    for number, part in enumerate((pixels[:5], pixels[5:])):
        dtf.to_tfrecord({"image": part}, tmp_path / f"{number}.tfrecord", features={"image": feature})
    for number in range(2):
        ds = dtf.read_tfrecord(tmp_path / f"{number}.tfrecord", {"image": feature})
        ds.to_zarr(tmp_path / "x.zarr", append_dim="record", encoded_images=True, shards=4)
    assert np.array_equal(dtf.from_zarr(tmp_path / "x.zarr")["image"].compute(), pixels)
    assert np.array_equal(zarr.open_group(tmp_path / "x.zarr", mode="r")["image"][:], pixels)


def test_the_command_appends_shards_that_the_store_does_not_hold(tmp_path: Path) -> None:
    store, pattern = tmp_path / "x.zarr", f"{tmp_path}/*.tfrecord"
    for number, (start, stop) in enumerate(((0, 5), (5, 8), (8, 12))):
        dtf.to_tfrecord({"x": np.arange(start, stop)}, tmp_path / f"{number}.tfrecord")
        shown("to-zarr", pattern, store, "--append")
        assert dtf.from_zarr(store)["x"].compute().tolist() == [*range(stop)]
        assert "nothing is left to append" in shown("to-zarr", pattern, store, "--append")
    dtf.to_tfrecord({"x": np.arange(12, 17)}, tmp_path / "3.tfrecord")
    shown("to-zarr", pattern, store, "--append", "--begin", "--parts", 2)
    for step in ("--part=2/2", "--part=1/2", "--finish"):
        assert dtf.from_zarr(store).nrows == 12
        shown("to-zarr", store, step)
    assert dtf.from_zarr(store)["x"].compute().tolist() == [*range(17)]
    dtf.to_tfrecord({"x": np.arange(7)}, tmp_path / "1.tfrecord", mode="w")
    changed = run("to-zarr", pattern, store, "--append")
    assert changed.exit_code
    assert "1.tfrecord" in changed.output
    assert "holds this shard with" in changed.output
    assert run("to-zarr", pattern, store, "--append", "--overwrite").exit_code == 2


@pytest.mark.parametrize(("chunks", "parts"), [(3, 2), (4, 5), pytest.param(1, 3, marks=pytest.mark.slow)])
def test_programs_that_append_write_the_bytes_of_one_call(chunks: int, parts: int, tmp_path: Path) -> None:
    write_shards(tmp_path, 5, 7)
    features = {"label": dtf.FixedLenFeature((), "int64"), "tokens": dtf.VarLenFeature("int64")}
    ds, names = dtf.read_tfrecord(tmp_path, features), {"name": dtf.FixedLenFeature((), "bytes")}
    more = dtf.read_tfrecord(tmp_path, names)
    for store in ("one", "job"):
        ds.rows[:20].to_zarr(tmp_path / store, append_dim="record", chunks=chunks)
    for rows, options in (
        (ds.rows[20:21], {"append_dim": "record"}),
        (ds.rows[21:], {"append_dim": "record"}),
        (more, {"mode": "a"}),
    ):
        rows.to_zarr(tmp_path / "one", **options)
        job = dtf.ZarrJob.begin(rows, tmp_path / "job", parts=parts, **options)
        before = dtf.from_zarr(tmp_path / "job")
        for part in [*reversed(range(parts)), 0]:
            dtf.ZarrJob.open(tmp_path / "job").write(part)
        assert (before.nrows, list(before)) == (
            dtf.from_zarr(tmp_path / "job").nrows,
            list(dtf.from_zarr(tmp_path / "job")),
        )
        job.finish()
        job.finish()
        dtf.ZarrJob.open(tmp_path / "job").finish()
        # Begun again with resume=True, it is there already.
        dtf.ZarrJob.begin(rows, tmp_path / "job", parts=parts, resume=True, **options).write(0)
    assert_like(tmp_path / "job", tmp_path / "one")
    chunks_of = [
        {
            path.relative_to(tmp_path / store): path.read_bytes()
            for path in (tmp_path / store).rglob("c/*")
            if path.is_file()
        }
        for store in ("one", "job")
    ]
    assert chunks_of[0] == chunks_of[1]
