"""`Dataset.windows`: the steps around each step of a record, compared with slices of the lists of the records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.any_columns import rows_of
from support.few import mostly_slow
from support.images import png
from support.store_round_trip import assert_identity, assert_same

import dask_tfrecord as dtf
from dask_tfrecord.errors import FeatureError, SchemaError, UnknownFeatureError

LENGTHS = (3, 0, 5, 1, 0, 7, 2)
GROUP = ("steps/action", "steps/text", "steps/words", "steps/image")
FEATURES = {
    "steps/action": dtf.VarLenFeature("float32", shape=(-1, 2)),
    "steps/text": dtf.VarLenFeature("bytes"),
    "steps/words": dtf.RaggedFeature("int64", "words", [dtf.RaggedFeature.RowLengths("word_lengths")]),
    "steps/image": dtf.ImageFeature((-1, 2, 3, 1)),
    "id": dtf.FixedLenFeature((), "int64"),
}
PADDING = {"steps/action": [0.0, 0.0], "steps/text": b"", "steps/words": [], "steps/image": [[[0]] * 3] * 2}
Window = tuple[int, int, int, str]


def episode(number: int, steps: int) -> dict[str, Any]:
    """Return the values of a record."""
    return {
        "steps/action": [[float(number), step] for step in range(steps)],
        "steps/text": [b"%d of %d" % (step, number) * (step % 3) for step in range(steps)],
        "steps/words": [[number] * ((number + step) % 3) for step in range(steps)],
        "steps/image": [[[[number], [step], [9]]] * 2 for step in range(steps)],
        "id": 7 * number,
    }


RECORDS = [episode(number, steps) for number, steps in enumerate(LENGTHS)]


def expected_rows(window: Window, records: Sequence[Mapping[str, Any]] = RECORDS) -> list[dict[str, Any]]:
    """Return the windows of records, by loops over lists."""
    past, future, stride, pad = window
    rows = []
    for number, values in enumerate(records):
        count = len(values["steps/text"])
        for step in range(count):
            places = range(step - past * stride, step + future * stride + 1, stride)
            mask = [0 <= place < count for place in places]
            if pad == "drop" and not all(mask):
                continue
            row: dict[str, Any] = {"id": values["id"], "record": number}
            for name in GROUP:
                row[name] = [
                    PADDING[name] if pad == "zero" and not held else values[name][min(max(place, 0), count - 1)]
                    for place, held in zip(places, mask, strict=True)
                ]
            rows.append(row if pad == "drop" else {**row, "mask": mask})
    return rows


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("episodes")
    columns: dict[str, Any] = {name: [values[name] for values in RECORDS] for name in FEATURES}
    columns["steps/image"] = [np.array(pixels, np.uint8).reshape(-1, 2, 3, 1) for pixels in columns["steps/image"]]
    dtf.to_tfrecord(columns, folder / "e-{shard}.tfrecord", features=FEATURES, records_per_shard=3)
    return folder


def computed(way: str, shards: Path, window: Window) -> dict[str, Any]:
    """Return the windows of rows that are opened or read in some way."""
    past, future, stride, pad = window
    options: dict[str, Any] = {"counts": None} if way == "uncounted" else {"chunks": 2}
    ds = dtf.read_tfrecord(shards, FEATURES, **options)
    if way == "persisted":
        ds = ds.persist()
    windows = ds.windows(GROUP, past, future, stride, pad, repeat="id")  # type: ignore[arg-type]
    if way == "backwards":
        return {name: array[::-1] for name, array in windows.rows[::-1].compute().items()}
    if way == "batched" and windows.nrows:
        found = list(windows.batches(4))
        return {name: np.concatenate([batch[name] for batch in found]) for name in windows}
    made = windows.compute()
    # The numbers of the records are not known.
    return {**made, "record": made["id"] // 7} if way == "uncounted" else made


@pytest.mark.parametrize(
    ("way", "window"),
    mostly_slow(
        (
            (way, (past, future, stride, pad))
            for way in ("counted", "uncounted", "persisted", "backwards", "batched")
            for past, future, stride in [(0, 0, 1), (1, 0, 1), (0, 2, 1), (1, 2, 2), (9, 0, 3)]
            for pad in ("edge", "zero", "drop")
        ),
        4,
    ),
    ids=str,
)
def test_windows(shards: Path, way: str, window: Window) -> None:
    made = computed(way, shards, window)
    wanted = expected_rows(window)
    assert rows_of(made) == [{name: row[name] for name in made} for row in wanted]
    assert ("mask" in made) == (window[-1] != "drop")


@given(
    lengths=st.lists(st.integers(0, 6), min_size=1, max_size=6),
    past=st.integers(0, 3),
    future=st.integers(0, 3),
    stride=st.integers(1, 3),
    pad=st.sampled_from(["edge", "zero", "drop"]),
    data=st.data(),
)
def test_any_window_of_any_rows(
    lengths: list[int], past: int, future: int, stride: int, pad: Any, data: st.DataObject
) -> None:
    records = [episode(number, steps) for number, steps in enumerate(lengths)]
    columns: dict[str, Any] = {"steps/text": dtf.VarLenFeature("bytes"), "id": dtf.FixedLenFeature((), "int64")}
    blocks = {name: [values[name] for values in records] for name in columns}
    ds = dtf.Dataset.from_arrays(blocks, features=columns)
    windows = ds.windows("steps", past, future, stride, pad, repeat="id")
    wanted = expected_rows((past, future, stride, pad), records)
    assert windows.nrows == len(wanted)
    picked = data.draw(st.lists(st.integers(0, len(wanted) - 1), max_size=5)) if wanted else []
    for ds, rows in ((windows, wanted), (windows.rows[picked], [wanted[row] for row in picked])):
        made = ds.compute()
        assert rows_of(made) == [{name: row[name] for name in made} for row in rows]


def test_schema_and_chunks(shards: Path) -> None:
    ds = dtf.read_tfrecord(shards, FEATURES)
    windows = ds.windows("steps", past=2, repeat="id")
    assert {name: (array.shape, array.dtype) for name, array in windows.items()} == {
        "steps/action": ((18, 3, 2), np.dtype("float32")),
        "steps/text": ((18, 3), np.dtype(object)),
        "steps/words": ((18,), np.dtype(object)),
        "steps/image": ((18, 3, 2, 3, 1), np.dtype("uint8")),
        "id": ((18,), np.dtype("int64")),
        "record": ((18,), np.dtype("int64")),
        "mask": ((18, 3), np.dtype(bool)),
    }
    assert windows.chunks == ds.explode("steps").chunks == (8, 8, 2)
    # Rows of the first chunk have three windows; two are complete.
    assert ds.windows("steps", past=2, pad="drop").chunks == (1 + 3, 5)
    with dask.config.set(scheduler="sync"):
        action, mask = dask.compute(windows["steps/action"][4:6], windows["mask"][4:6])
    assert action[:, :, 1].tolist() == [[0, 0, 1], [0, 1, 2]]
    assert mask.tolist() == [[False, True, True], [True, True, True]]


def test_stores(shards: Path, tmp_path: Path) -> None:
    windows = dtf.read_tfrecord(shards, FEATURES).windows("steps", past=1, future=1, pad="zero", repeat="id")
    back = assert_identity(windows, tmp_path / "a.zarr", chunks=4, shards=8)
    assert_same(back.rows[::-2].compute(), windows.rows[::-2].compute())
    assert "'window'" in str(windows.origin)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"past": -1}, ValueError, "past must be an int from 0 on"),
        ({"future": -1}, ValueError, "future must be an int from 0 on"),
        ({"stride": 0}, ValueError, "stride must be an int from 1 on"),
        ({"pad": "wrap"}, ValueError, "pad must be 'edge', 'zero' or 'drop'"),
        ({"group": "step"}, UnknownFeatureError, "no group or column 'step'"),
        ({"group": "id"}, SchemaError, "have no items"),
    ],
)
def test_arguments(shards: Path, options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        dtf.read_tfrecord(shards, FEATURES).windows(**{"group": "steps", **options})


def test_refusals() -> None:
    ds = dtf.Dataset.from_arrays({"a": [[1, 2], [3]], "b": [[1], [2, 2]], "mask": [[1, 2], [3]]})
    with pytest.raises(SchemaError, match="column 'mask' would be replaced"):
        ds.windows(["a", "mask"])
    assert ds.windows(["a", "mask"], pad="drop").compute()["mask"].tolist() == [[1], [2], [3]]
    with pytest.raises(FeatureError, match="expected"):
        ds.windows(["a", "b"]).compute()


@pytest.mark.parametrize("pad", ["edge", "zero", "drop"])
@pytest.mark.parametrize("from_files", [True, False])
def test_items_without_windows_are_those_of_explode(shards: Path, pad: Any, from_files: bool) -> None:
    ds = dtf.read_tfrecord(shards, FEATURES, chunks=2)
    ds = ds if from_files else ds.persist()
    alone = [name for name in GROUP if name != "steps/action"]
    both = ds.windows(["steps/action"], 1, 2, 1, pad, items=alone, repeat=["id"], number="step")
    windows = ds.windows(["steps/action"], 1, 2, 1, pad, repeat=["id"])
    items = ds.explode(GROUP, number="step").compute()
    steps = [step for length in LENGTHS for step in range(length)]
    ends = [length for length in LENGTHS for _ in range(length)]
    rows = [at for at, step in enumerate(steps) if pad != "drop" or (step >= 1 and step + 2 < ends[at])]
    found = both.compute()
    assert items["step"].tolist() == steps
    assert_same(
        {name: found[name] for name in (*alone, "step")}, {name: items[name][rows] for name in (*alone, "step")}
    )
    assert_same({name: found[name] for name in windows}, windows.compute())
    assert_same(both.rows[3:5].compute(), {name: column[3:5] for name, column in found.items()})
    with pytest.raises(SchemaError, match="'steps/text' is in group and in items"):
        ds.windows("steps", 1, items=["steps/text"])


def test_batches_decode_the_images_of_their_rows_alone(tmp_path: Path) -> None:
    files = [[png(np.array(pixels, np.uint8)) for pixels in values["steps/image"]] for values in RECORDS]
    # The image of one step of each long episode cannot be decoded.
    files[2][3] = files[5][3] = b"no image"
    columns = {"steps/action": [values["steps/action"] for values in RECORDS], "steps/image": files}
    stored = FEATURES | {"steps/image": dtf.VarLenFeature("bytes")}
    dtf.to_tfrecord(columns, tmp_path / "x.tfrecord", features={name: stored[name] for name in columns})
    ds = dtf.read_tfrecord(tmp_path / "x.tfrecord", {name: FEATURES[name] for name in columns})
    rows = ds.windows(["steps/action"], future=2, items=["steps/image"], number="step")
    kept = rows.where([("step", "!=", 3)])
    found = np.concatenate([batch["steps/image"] for batch in kept.batches(4, shuffle="full", seed=0)])
    wanted = [image for values in RECORDS for step, image in enumerate(values["steps/image"]) if step != 3]
    assert sorted(found.tolist()) == sorted(wanted)
    batches = rows.batches(4)
    assert next(batches)["steps/image"].tolist() == wanted[:4]
    for _ in range(2):
        # The iterator stays at the batch.
        with pytest.raises(FeatureError, match=r"x\.tfrecord: record 2 .*feature 'steps/image' holds bytes"):
            next(batches)
    mixture = dtf.sample_from_datasets([rows.where([("step", "==", 2)]), rows.where([("step", "==", 3)])], seed=0)
    with pytest.raises(FeatureError, match=r"x\.tfrecord: record 2 .*feature 'steps/image' holds bytes"):
        list(mixture.batches(4))
