"""Progress of writing: displayed in terminals and notebooks only, with an exact summary at the end."""

from __future__ import annotations

import gzip
import os
import random
import re
import signal
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import dask
import numpy as np
import oracle
import pytest
from distributed import Client
from distributed.utils import key_split
from support.notebooks import executed, needs_jupyter
from support.programs import environment, run_python
from support.terminals import Terminal
from support.waiting import in_background, wait_until
from support.wire import example

import dask_tfrecord as dtf
from dask_tfrecord.rows import progress
from dask_tfrecord.rows.counting import index_shards
from dask_tfrecord.rows.progress import ProgressBar, follow_tasks, show_immediately
from dask_tfrecord.settings import Limits, replaced_limits
from dask_tfrecord.shards.listing import find_shards
from dask_tfrecord.stores.output import WriteSummary, collect_summaries, peak_memory

ROWS = 600
POSIX = pytest.mark.skipif(os.name == "nt", reason="needs pseudo terminals")
# Variables that change what a terminal is given.
PLAIN = ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE")
COMPRESS = {None: bytes, "gzip": gzip.compress, "zlib": zlib.compress}


def record(rng: random.Random, row: int) -> bytes:
    return example(label=[row], tokens=[rng.randrange(1000) for _ in range(rng.randrange(200))])


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, rng = tmp_path_factory.mktemp("shards"), random.Random(3)
    for number in range(3):
        rows = range(200 * number, 200 * number + 200)
        oracle.write_oracle(folder / f"part-{number}.tfrecord", [record(rng, row) for row in rows])
    return folder


@pytest.fixture
def looking(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], Terminal]]:
    """Function that replaces stderr by a terminal until the end of the test."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    for name in PLAIN:
        monkeypatch.delenv(name, raising=False)
    screen = Terminal()

    def look() -> Terminal:
        monkeypatch.setattr(sys, "stderr", screen.stream)
        return screen

    yield look
    monkeypatch.undo()
    screen.close()


def size(folder: Path, pattern: str = "*") -> int:
    return sum(path.stat().st_size for path in folder.rglob(pattern) if path.is_file())


def chunks_size(store: Path) -> int:
    """Return the bytes of the chunks of a store, without metadata."""
    return size(store) - size(store, "zarr.json")


def first_then_wait(flag: Path, blocks: dict[str, Any]) -> dict[str, Any]:
    """Return the first rows at once, and others once a file exists."""
    if len(blocks["label"]):
        try:
            flag.with_suffix(".begun").touch(exist_ok=False)
        except FileExistsError:
            wait_until(flag.exists)
    return blocks


def touch_when_shown(terminal: Terminal, text: str, flag: Path) -> None:
    try:
        terminal.wait_for(text)
    finally:
        flag.touch()


@contextmanager
def waiting(ds: dtf.Dataset, folder: Path, terminal: Terminal, text: str) -> Iterator[dtf.Dataset]:
    """Yield the rows. All but the first wait until a terminal shows a text."""
    function = partial(first_then_wait, folder / "flag")
    with in_background(touch_when_shown, terminal, text, folder / "flag"):
        yield ds.map_blocks(function, {"label": ds.schema["label"]})


def check_summary(terminal: Terminal, store: Path) -> None:
    last = terminal.close().rstrip().splitlines()[-1]
    assert last.startswith(f"Wrote {store}: 600 rows of 1 feature in ")


# -- seen, or not ------------------------------------------------------------------------------------------------------


@POSIX
def test_the_bar_moves_within_a_task(shards: Path, tmp_path: Path, looking: Callable[[], Terminal]) -> None:
    """One task converts all rows; its second span waits until the bar shows the first one."""
    terminal, ds = looking(), dtf.read_tfrecord(shards, columns=["label"], chunks=100)
    # Rows of label take 8 bytes: a span is as many rows as a write unit of this size holds.
    with replaced_limits(write_unit_nbytes=2000), show_immediately(), waiting(ds, tmp_path, terminal, "42%") as rows:
        rows.to_zarr(tmp_path / "some.zarr", chunks=100, shards=ROWS)
    check_summary(terminal, tmp_path / "some.zarr")


@POSIX
def test_a_quick_write_says_what_it_wrote(shards: Path, tmp_path: Path, looking: Callable[[], Terminal]) -> None:
    """It ends before the bar appears, and leaves the same line."""
    terminal, ds = looking(), dtf.read_tfrecord(shards, columns=["label"])
    with replaced_limits(display_delay=3600):
        ds.to_zarr(tmp_path / "quick.zarr")
    check_summary(terminal, tmp_path / "quick.zarr")
    assert "Writing" not in terminal.text


@POSIX
def test_no_bar_is_displayed(
    shards: Path, tmp_path: Path, looking: Callable[[], Terminal], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By setting, in workers, for delayed conversions, and where stderr is a file."""
    terminal = looking()
    assert progress.is_displayed()
    ds = dtf.read_tfrecord(shards, columns=["label"])
    with show_immediately():
        with dask.config.set({"tfrecord.progress": False}):
            ds.to_zarr(tmp_path / "off.zarr", chunks=10)
            ds.to_tfrecord(tmp_path / "off.tfrecord")
        written = ds.to_zarr(tmp_path / "later.zarr", compute=False)
        copied = ds.to_tfrecord(tmp_path / "later.tfrecord", compute=False)
        assert written is not None and copied is not None
        dask.compute(written, copied)
        with monkeypatch.context() as patch:
            patch.setattr("multiprocessing.parent_process", object)
            assert not progress.is_displayed()
            dtf.read_tfrecord(shards)
    assert "Writ" not in terminal.close()
    names = {key_split(key) for each in (written, copied) for key in dict(each.dask)}
    assert {"tfrecord-write-units", "tfrecord-write-shard"} <= names
    # A variable that makes programs treat a file as a terminal with colours.
    monkeypatch.setenv("FORCE_COLOR", "1")
    with (tmp_path / "stderr").open("w") as file, show_immediately():
        monkeypatch.setattr(sys, "stderr", file)
        dtf.read_tfrecord(shards).to_zarr(tmp_path / "file.zarr", chunks=10)
    assert (tmp_path / "stderr").read_bytes() == b""


@POSIX
def test_a_failure_removes_the_bar(shards: Path, tmp_path: Path, looking: Callable[[], Terminal]) -> None:
    terminal = looking()
    ds = dtf.read_tfrecord(shards, columns=["label"])

    def fails(blocks: dict[str, Any]) -> dict[str, Any]:
        terminal.wait_for("Writing")
        raise RuntimeError("no good")

    with show_immediately(), pytest.raises(RuntimeError, match="no good"), dask.config.set(scheduler="sync"):
        ds.map_blocks(fails, {"label": ds.schema["label"]}).to_zarr(tmp_path / "some.zarr")
    assert "Wrote" not in terminal.close()
    assert not progress.Callback.active


@POSIX
def test_counting_has_the_same_bar(
    shards: Path, looking: Callable[[], Terminal], monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = looking()
    draw = ProgressBar.__exit__

    def seen(self: ProgressBar, *error: Any) -> None:
        terminal.wait_for("Counting records")
        draw(self, *error)  # type: ignore[arg-type]

    monkeypatch.setattr(ProgressBar, "__exit__", seen)
    with show_immediately():
        index_shards(find_shards(shards), sidecars=False)
    assert "Counting records" in terminal.close()


@pytest.mark.integration
@POSIX
def test_commands_display_the_bar_at_once_and_print_a_summary(shards: Path, tmp_path: Path) -> None:
    variables = {**environment(), "TERM": "xterm", "COLUMNS": "80"}
    for name in PLAIN:
        variables.pop(name, None)
    command = [sys.executable, "-m", "dask_tfrecord", "to-zarr", str(shards), str(tmp_path / "some.zarr")]
    options = ["--columns", "label", "--chunks", "1"]
    screen = Terminal()
    done = subprocess.run(
        [*command, *options], stdout=subprocess.PIPE, stderr=screen.theirs, env=variables, timeout=120
    )
    shown = screen.close()
    assert done.returncode == 0
    amount = r"[\d.]+ (?:bytes|kB|MB)"
    state = rf"Writing .*?\d+% (\S+)\s+([\d,]+) of 600 rows, {amount} in, {amount} out, {amount}/s"
    states = re.findall(state, shown)
    assert len({records for _, records in states}) > 1
    assert all(re.fullmatch(r"(\d+:)?\d\d:\d\d|--:--", left) for left, _ in states)
    assert states[-1][1] == "600"
    assert "Wrote" not in shown
    assert re.fullmatch(rf"Wrote {tmp_path}/some.zarr: 600 rows of 1 feature in [^\n]*\n", done.stdout.decode())


@pytest.mark.integration
@needs_jupyter
def test_notebooks(shards: Path, tmp_path: Path) -> None:
    code = f"""
import sys, dask_tfrecord as dtf
from dask_tfrecord.rows.progress import show_immediately
assert "ipywidgets" not in sys.modules
ds = dtf.read_tfrecord({str(shards)!r}, columns=["label"])
with show_immediately():
    ds.to_zarr({str(tmp_path / "some.zarr")!r}, chunks=1)
"""
    (outputs,) = executed(tmp_path / "notebooks", code)
    kinds = [message["msg_type"] for message in outputs]
    assert set(kinds) == {"display_data", "update_display_data"}
    # The bar of counting disappears; the last output is the bar of writing.
    pictures = [message["content"]["data"] for message in outputs if "display_data" in message["msg_type"]]
    assert any(re.search(r"Writing .*\d+%.*\s[\d,]+ of 600 rows", picture["text/plain"]) for picture in pictures)
    assert pictures[-1]["text/plain"].startswith(f"Wrote {tmp_path}/some.zarr: 600 rows of 1 feature in ")
    assert pictures[-1]["text/html"].startswith("<pre")
    cells = [message["content"]["transient"]["display_id"] for message in outputs if "display" in message["msg_type"]]
    assert len(set(cells)) == kinds.count("display_data")


# -- with other bars ---------------------------------------------------------------------------------------------------


def test_tasks_of_others_are_not_counted() -> None:
    ended: list[int] = []
    tasks = {("mine", 0): (int, 1), ("mine", 1): (int, 2), ("yours", 0): (int, 3), "mine": (int, 4)}
    with follow_tasks("mine", lambda number, result: ended.append(result)), dask.config.set(scheduler="sync"):
        # A task of a lost worker runs again.
        for _ in range(2):
            dask.get(tasks, list(tasks))
    assert sorted(ended) == [1, 2]
    dask.get(tasks, list(tasks))
    assert len(ended) == 2


# -- the numbers -------------------------------------------------------------------------------------------------------


def test_the_summary_of_arrays_counts_decoded_bytes(tmp_path: Path) -> None:
    with collect_summaries() as found:
        dtf.to_zarr({"x": np.zeros((100, 8))}, tmp_path / "some.zarr", chunks=30)
        dtf.from_zarr(tmp_path / "some.zarr").to_tfrecord(
            tmp_path / "one.tfrecord", features={"x": dtf.RawFeature((8,), "float64")}
        )
    assert [(each.records, each.nbytes_in, each.decoded) for each in found] == [(100, None, 6400)] * 2
    assert found[0].nbytes_out == chunks_size(tmp_path / "some.zarr")
    assert found[1].nbytes_out == (tmp_path / "one.tfrecord").stat().st_size
    assert "6.4 kB decoded, " in str(found[0])


# Numbers of chunks after which a function fails: a set, which belongs to the function and to what is resumed.
FAILING = {2}


def fails_after_two(chunks: Path, blocks: dict[str, Any]) -> dict[str, Any]:
    if chunks.exists() and len(list(chunks.iterdir())) in FAILING and not chunks.with_name("flag").exists():
        raise RuntimeError("not yet")
    return blocks


def test_the_rate_of_a_resumed_conversion_excludes_earlier_units(shards: Path, tmp_path: Path) -> None:
    ds = dtf.read_tfrecord(shards, columns=["label"])
    store = tmp_path / "some.zarr"
    mapped = ds.map_blocks(partial(fails_after_two, store / "label" / "c"), {"label": ds.schema["label"]})
    with dask.config.set(scheduler="sync"), collect_summaries() as found:
        with pytest.raises(RuntimeError, match="not yet"):
            mapped.to_zarr(store, chunks=100, resume=True)
        assert not found
        (store / "label" / "flag").touch()
        mapped.to_zarr(store, chunks=100, resume=True)
        mapped.to_zarr(store, chunks=100, resume=True)
    # The last conversion had no task left.
    (summary,) = found
    assert (summary.records, summary.units, summary.before) == (ROWS, 6, 2)
    (store / "label" / "flag").unlink(missing_ok=True)
    assert (summary.nbytes_in, summary.nbytes_out) == (size(shards), chunks_size(store))
    # Records differ in length; a third of them is about a third of the bytes.
    assert summary.rate * summary.seconds == pytest.approx(size(shards) * 2 / 3, rel=0.2)
    assert "600 rows of 1 feature (2 of 6 write units before) in " in str(summary)


SUMMARY = WriteSummary(  # type: ignore[call-arg]
    location="train.zarr", records=1_200_000, features=18, units=40, before=0, seconds=12.31, nbytes_in=475_000_000,
    decoded=900_000_000, nbytes_out=210_000_000, rate=38.6e6, peak=215_000_000,
)  # fmt: skip


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (
            {},
            "1,200,000 rows of 18 features in 12.3 s; 475.0 MB in, 210.0 MB out, 38.6 MB/s, peak memory 215.0 MB",
        ),
        (
            {"nbytes_out": 950_000_000, "features": None, "peak": 0, "records": 1},
            "1 record in 12.3 s; 475.0 MB in, 950.0 MB out, 38.6 MB/s",
        ),
        (
            {"nbytes_out": 0, "features": 1, "peak": 0, "nbytes_in": None},
            "1,200,000 rows of 1 feature in 12.3 s; 900.0 MB decoded, 0 bytes out, 38.6 MB/s",
        ),
    ],
)
def test_the_text_of_the_summary(changed: dict[str, Any], said: str) -> None:
    assert str(replace(SUMMARY, **changed)) == f"Wrote train.zarr: {said}"


@pytest.mark.integration
def test_peak_memory_includes_freed_memory() -> None:
    code = """
import numpy as np
from dask_tfrecord.stores.output import peak_memory
before = peak_memory()
held = np.ones(1 << 25)
del held
print(peak_memory() - before)
"""
    assert os.name == "nt" or (200 << 20) < int(run_python("-c", code).stdout) < (300 << 20)


# -- on every scheduler ------------------------------------------------------------------------------------------------

CLUSTER = pytest.mark.integration


@pytest.fixture
def scheduler(request: pytest.FixtureRequest) -> Iterator[str]:
    """Activate a scheduler."""
    if request.param == "cluster":
        request.getfixturevalue("client")
        yield request.param
    else:
        with dask.config.set(scheduler=request.param):
            yield request.param


def listeners(dask_scheduler: Any) -> int:
    # distributed does not list the clients that follow a topic; one that stays would get all events.
    return len(dask_scheduler._broker._topics[progress.TOPIC].subscribers)


@POSIX
@pytest.mark.parametrize("scheduler", ["sync", "threads", pytest.param("cluster", marks=CLUSTER)], indirect=True)
def test_the_bar_moves_and_leaves_a_summary(
    scheduler: str,
    shards: Path,
    tmp_path: Path,
    looking: Callable[[], Terminal],
    set_limits: Callable[..., Limits],
    request: pytest.FixtureRequest,
) -> None:
    terminal, ds = looking(), dtf.read_tfrecord(shards, columns=["label"])
    # The bar appears after a delay: rows wait for it.
    set_limits(display_delay=0.2)
    with waiting(ds, tmp_path, terminal, "100 of 600 rows") as rows:
        rows.to_zarr(tmp_path / "some.zarr", chunks=100)
    assert re.search(r"Writing .* \d+% .*\s100 of 600 rows, [\d.]+ kB in, [\d.]+ (bytes|kB) out, ", terminal.text)
    check_summary(terminal, tmp_path / "some.zarr")
    if scheduler == "cluster":
        client = request.getfixturevalue("client")
        wait_until(lambda: client.run_on_scheduler(listeners) == 0)


@pytest.mark.parametrize(
    ("compression", "scheduler"),
    [
        (None, "sync"),
        ("gzip", "threads"),
        pytest.param("zlib", "sync", marks=pytest.mark.slow),
        pytest.param("gzip", "cluster", marks=CLUSTER),
    ],
    indirect=["scheduler"],
)
def test_the_summary_equals_the_written_files(
    compression: str | None, scheduler: str, shards: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    (tmp_path / "in").mkdir()
    for path in shards.iterdir():
        (tmp_path / "in" / path.name).write_bytes(COMPRESS[compression](path.read_bytes()))
    ds, out = dtf.read_tfrecord(tmp_path / "in"), tmp_path / "out"
    with collect_summaries() as found:
        ds.to_zarr(tmp_path / "some.zarr", chunks=70)
        ds.map_blocks(dict).to_zarr(tmp_path / "mapped.zarr", component="a/b")
        ds.to_tfrecord(out / "a-{shard}-{shards}", compression=compression)
        dtf.copy_tfrecord(tmp_path / "in", out / "b-{shard}-{shards}", records_per_shard=170)
        dtf.copy_tfrecord(tmp_path / "in", out / "c", columns=["label"], index=compression != "zlib")
        for number in range(2):
            ds.rows[number::2].to_zarr(tmp_path / f"half-{number}.zarr")
    *found, even, odd = found
    first, mapped, written, resharded, picked = found
    assert [each.nbytes_in for each in found] == [size(tmp_path / "in")] * 5
    assert (even.nbytes_in or 0) + (odd.nbytes_in or 0) == pytest.approx(size(tmp_path / "in"), abs=2)
    assert [each.records for each in found] == [ROWS] * 5
    assert first.nbytes_out == chunks_size(tmp_path / "some.zarr")
    assert mapped.nbytes_out == chunks_size(tmp_path / "mapped.zarr")
    assert written.nbytes_out == size(out, "a-*")
    assert resharded.nbytes_out == size(out, "b-*")
    assert picked.nbytes_out == (out / "c").stat().st_size
    assert (first.features, written.features, picked.features) == (2, 2, None)
    assert (written.units, resharded.units, picked.units) == (3, 4, 1)
    assert first.decoded == sum(array.nbytes for array in ds.plan_zarr(chunks=70).arrays)
    assert all(each.seconds > 0 and each.before == 0 for each in found)
    assert all(each.rate == pytest.approx((each.nbytes_in or 0) / each.seconds) for each in found)
    peaks = request.getfixturevalue("client").run(peak_memory).values() if scheduler == "cluster" else [peak_memory()]
    # Linux counts pages per processor and adds them up occasionally: a later peak may be lower.
    assert all(0 < each.peak <= max(peaks) + (4 << 20) for each in found)


def dies_once(folder: Path, blocks: dict[str, Any]) -> dict[str, Any]:
    """Log the block, and kill the process at the first block of the last sixth of the rows."""
    with (folder / "log").open("a") as log:
        log.write(f"{blocks['label'][0]}\n")
    if (blocks["label"] >= 500).any() and not (folder / "flag").exists():
        (folder / "flag").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return blocks


@POSIX
@pytest.mark.integration
def test_units_of_a_lost_worker_are_written_and_counted_once(shards: Path, tmp_path: Path, client: Client) -> None:
    """Reports of units lie on the worker that wrote them; when it goes, its units need not be written again."""
    ds = dtf.read_tfrecord(shards, columns=["label"])
    mapped = ds.map_blocks(partial(dies_once, tmp_path), {"label": ds.schema["label"]})
    with collect_summaries() as found:
        mapped.to_zarr(tmp_path / "some.zarr", chunks=10)
    (summary,) = found
    assert (tmp_path / "flag").exists()
    # The threads of both workers were at a unit.
    assert len((tmp_path / "log").read_text().split()) <= 60 + 2
    assert (summary.records, summary.units) == (ROWS, 60)
    assert (summary.nbytes_in, summary.nbytes_out) == (size(shards), chunks_size(tmp_path / "some.zarr"))
    wait_until(lambda: client.run_on_scheduler(listeners) == 0)
