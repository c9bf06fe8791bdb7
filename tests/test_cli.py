"""Commands: output, written files, errors, and availability in dask's own command line."""

import gzip
import json
import os
import pickle
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import oracle
import pytest
import zarr
from click.testing import CliRunner, Result
from support.waiting import PATIENCE, wait_until

import dask_tfrecord as dtf
from dask_tfrecord import messages
from dask_tfrecord.cli.main import tfrecord

POSIX = pytest.mark.skipif(os.name == "nt", reason="needs POSIX signals, limits or terminals")


def run(*arguments: object) -> Result:
    # Wide tables have one line per feature.
    runner = CliRunner(env={"COLUMNS": "200"})
    return runner.invoke(tfrecord, [str(argument) for argument in arguments], prog_name="dask-tfrecord")


def assert_one_line_of_error(result: Result, *said: str) -> None:
    assert result.exit_code == 1
    (line,) = result.stderr.strip().splitlines()
    assert line.startswith("Error: ")
    for part in said:
        assert part in line


def script(name: str) -> str:
    path = shutil.which(name, path=str(Path(sys.executable).parent))
    assert path, f"{name} not found next to {sys.executable}: install the package there"
    return path


def examples(number: int, start: int = 0) -> Iterator[bytes]:
    rng = np.random.default_rng(start)
    for record in range(start, start + number):
        example = messages.Example()
        feature = example.features.feature
        feature["image"].bytes_list.value.append(rng.integers(0, 256, (8, 8, 3), np.uint8).tobytes())
        feature["label"].int64_list.value.append(record % 5)
        feature["tokens"].int64_list.value.extend(range(record % 7))
        yield example.SerializeToString(deterministic=True)


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory of two shards, 12 and 8 records."""
    directory = tmp_path_factory.mktemp("shards")
    oracle.write_oracle(directory / "train-00000-of-00002.tfrecord", examples(12))
    oracle.write_oracle(directory / "train-00001-of-00002.tfrecord", examples(8, 12))
    return directory


def facts(result: Result) -> dict[str, str]:
    """The lines above the table, by their first word."""
    assert result.exit_code == 0, result.stderr
    above = result.stdout.split("\n\n")[0]
    return {line.split()[0]: line.split(maxsplit=1)[1].strip() for line in above.splitlines()}


def features(result: Result) -> dict[str, list[str]]:
    """Rows of the table, by the name of the feature."""
    (table,) = re.findall(r"^feature .*\n─+\n((?:.+\n)+)", result.stdout, re.MULTILINE)
    return {line.split()[0]: re.split(r"  +", line.strip())[1:] for line in table.splitlines()}


# -- info --------------------------------------------------------------------------------------------------------------


def test_info_shows_shards_records_bytes_compression_and_features(shards: Path) -> None:
    result = run("info", shards / "train-*.tfrecord")
    nbytes = sum(path.stat().st_size for path in shards.iterdir())
    found = facts(result)
    assert found["shards"] == "2"
    assert found["records"] == "20, 8 to 12 per shard"
    assert found["bytes"] == f"{nbytes:,}"
    assert found["compression"] == "none"
    assert "3 features, inferred from 20 records of 2 shards" in result.stdout
    image, label, tokens = (features(result)[name] for name in ("image", "label", "tokens"))
    assert image == ["FixedLenFeature", "bytes", "()", "20 of 20", "1", "192 bytes each"]
    assert label == ["FixedLenFeature", "int64", "()", "20 of 20", "1"]
    assert tokens == ["VarLenFeature", "int64", "(-1,)", "20 of 20", "0 to 6"]
    assert result.stderr == ""


def test_info_accepts_an_expanded_glob_a_directory_and_a_template(shards: Path) -> None:
    by_glob = run("info", shards / "train-*.tfrecord").stdout
    assert run("info", *sorted(shards.iterdir())).stdout == by_glob
    assert run("info", shards).stdout == by_glob
    assert run("info", shards / "train@2.tfrecord").stdout == by_glob


def test_info_finds_compression_in_the_bytes(shards: Path, tmp_path: Path) -> None:
    plain, other = sorted(shards.iterdir())
    shutil.copy(plain, tmp_path / "a.gz")
    (tmp_path / "b").write_bytes(gzip.compress(other.read_bytes()))
    found = facts(run("info", tmp_path))
    assert found["compression"] == "none (1 shard), gzip (1 shard)"
    stored = sum(path.stat().st_size for path in tmp_path.iterdir())
    inflated = sum(path.stat().st_size for path in shards.iterdir())
    assert found["bytes"] == f"{stored:,}, {inflated:,} inflated"
    assert_one_line_of_error(run("info", tmp_path, "--compression", "gzip"), "a.gz")


def test_info_inspects_the_specified_number_of_records(shards: Path) -> None:
    result = run("info", shards, "--sample", 2)
    assert features(result)["label"][-2] == "2 of 2"
    every = run("info", shards, "--sample", "all", "--threads", 1)
    assert "3 features, inferred from 20 records of 2 shards" in every.stdout
    assert every.stdout == run("info", shards, "--threads", 1).stdout
    for senseless in ("0", "-1", "some", "1.5"):
        refused = run("info", shards, "--sample", senseless)
        assert (refused.exit_code, "neither a number of records" in refused.stderr) == (2, True)


@pytest.mark.integration
@pytest.mark.slow
def test_info_reads_all_records_in_processes(shards: Path, tmp_path: Path) -> None:
    # Without the limit, these shards are too small for processes.
    limit = "common._PROCESSES_NBYTES"
    code = f"from dask_tfrecord.cli import common, main; assert {limit}; {limit} = 0; main()"
    command = [sys.executable, "-c", code, "info", str(shards)]
    options = ["--sample", "all", "--threads", "2"]
    # Outside the source tree, so that the installed package is imported.
    place = {"cwd": tmp_path, "env": {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}}
    done = subprocess.run([*command, *options], **place, capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == run("info", shards).stdout


def test_info_prints_a_spec_to_paste(shards: Path) -> None:
    result = run("info", shards, "--spec")
    namespace = {"dtf": dtf}
    exec(result.stdout, namespace)
    assert namespace["features"] == dict(dtf.infer_schema(shards))
    assert result.stdout.startswith("features = {\n")


def test_info_as_json(shards: Path, golden: Path) -> None:
    document = json.loads(run("info", shards, "--json").stdout)
    assert [(shard["records"], shard["compression"]) for shard in document["shards"]] == [(12, None), (8, None)]
    assert [shard["path"] for shard in document["shards"]] == [str(path) for path in sorted(shards.iterdir())]
    assert document["report"] == json.loads(dtf.infer_schema(shards).report.to_json())
    assert document["spec"] == dtf.infer_schema(shards).report.spec()
    empty = json.loads(run("info", golden / "empty_file.tfrecord", "--json").stdout)
    assert (empty["shards"][0]["records"], empty["report"], empty["spec"]) == (0, None, None)
    assert run("info", shards, "--json", "--spec").exit_code == 2


def test_info_shows_conflicts_instead_of_failing(tmp_path: Path) -> None:
    for number, kind in enumerate(("int64_list", "float_list")):
        example = messages.Example()
        getattr(example.features.feature["x"], kind).value.append(1)
        example.features.feature["never"].SetInParent()
        oracle.write_oracle(tmp_path / f"part-{number}", [example.SerializeToString()])
    result = run("info", tmp_path)
    assert features(result)["x"][:2] == ["(several kinds)", "int64, float32"]
    assert features(result)["never"] == ["(never set)", "0 of 2"]
    assert "1 feature, inferred from 2 records" in result.stdout
    assert f"float32 in 1 record of 1 shard ({tmp_path / 'part-1'}: 1)" in result.stdout
    assert '# "x": ' in run("info", tmp_path, "--spec").stdout


def test_items_of_a_prefix_are_shown_and_written(tmp_path: Path) -> None:
    payloads = []
    for number, count in enumerate([2, 0, 3]):
        message = messages.Example()
        for name in ("a/b/x", "a/b/y"):
            message.features.feature[name].int64_list.value.extend(range(count))
        message.features.feature["id"].int64_list.value.append(number)
        payloads.append(message.SerializeToString())
    oracle.write_oracle(tmp_path / "x.tfrecord", payloads)
    assert "prefix 'a/b': a/b/x, a/b/y" in run("info", tmp_path / "x.tfrecord").output
    for explode in ("a/b", "a/b/x,a/b/y"):
        command = ["to-zarr", tmp_path / "x.tfrecord", tmp_path / "s.zarr", "--explode", explode]
        result = run(*command, "--repeat", "id", "--overwrite")
        assert result.exit_code == 0, result.output
        found = dtf.from_zarr(tmp_path / "s.zarr").compute()
        assert {name: column.tolist() for name, column in found.items()} == {
            "a/b/x": [0, 1, 0, 1, 2],
            "a/b/y": [0, 1, 0, 1, 2],
            "id": [0, 0, 2, 2, 2],
            "record": [0, 0, 2, 2, 2],
        }
    assert "a.b.x" in run(*command, "--plan").output
    assert_one_line_of_error(run(*command[:3], "--overwrite", "--explode", "a/c"), "no group or column 'a/c'", "'a/b'")
    assert_one_line_of_error(run(*command[:3], "--overwrite", "--explode", "id"), "--repeat repeats it for each item")
    assert run(*command[:3], "--repeat", "id").exit_code == 2


def test_info_of_splits_without_files_names_the_option(tmp_path: Path) -> None:
    splits = [{"name": name, "shardLengths": ["1"]} for name in ("train", "val")]
    (tmp_path / "dataset_info.json").write_text(json.dumps({"name": "x", "version": "1.0.0", "splits": splits}))
    (tmp_path / "features.json").write_text("{}")
    oracle.write_oracle(tmp_path / "x-train.tfrecord-00000-of-00001", examples(1))
    missing = run("info", tmp_path)
    assert_one_line_of_error(missing, "splits 'train', 'val' is missing; give --split to read one", "x-val")
    assert "records      1" in run("info", tmp_path, "--split", "train").stdout


def test_info_of_sequence_examples(tmp_path: Path) -> None:
    record = messages.SequenceExample()
    record.context.feature["id"].int64_list.value.append(1)
    steps = record.feature_lists.feature_list["steps"].feature
    for step in range(3):
        steps.add().float_list.value.extend([step, step])
    oracle.write_oracle(tmp_path / "sequences", [record.SerializeToString()] * 2)
    result = run("info", tmp_path)
    assert "2 features, inferred from 2 SequenceExamples of 1 shard" in result.stdout
    assert features(result)["steps"][:3] == ["FixedLenSequenceFeature", "float32", "(2,)"]
    assert "sequence_features = {" in run("info", tmp_path, "--spec").stdout


def test_info_of_other_payloads_names_the_function_to_use(tmp_path: Path) -> None:
    oracle.write_oracle(tmp_path / "lines", [b'{"label": 3}'])
    result = run("info", tmp_path)
    assert_one_line_of_error(result, "expected an Example, found JSON text", "read_bag(urlpath, decode=json.loads)")


def test_info_of_no_records_is_no_error(golden: Path) -> None:
    result = run("info", golden / "empty_file.tfrecord")
    assert facts(result)["records"] == "0"
    assert "feature" not in result.stdout


def test_names_from_files_do_not_reach_the_terminal_as_they_are(tmp_path: Path) -> None:
    example = messages.Example()
    example.features.feature["\x1b[31m red"].int64_list.value.append(1)
    example.features.feature[""].int64_list.value.append(1)
    oracle.write_oracle(tmp_path / "a\x1b[31m", [example.SerializeToString()])
    result = run("info", tmp_path)
    assert result.exit_code == 0
    assert r"\x1b[31m red" in result.stdout
    assert "''" in result.stdout
    assert "\x1b" not in result.stdout
    missing = run("info", tmp_path, "--compression", "gzip")
    assert_one_line_of_error(missing, r"a\x1b[31m")


def test_piped_info_fits_80_columns(tmp_path: Path) -> None:
    example = messages.Example()
    for number in range(3):
        example.features.feature[f"observation/of/a/long/name/{number}"].bytes_list.value.append(b"\xff\xd8\xff" * 9)
    oracle.write_oracle(tmp_path / "a.tfrecord", [example.SerializeToString()])
    piped = CliRunner(env={"COLUMNS": None}).invoke(tfrecord, ["info", str(tmp_path / "a.tfrecord")]).stdout
    assert "observation/of/a/long/name/2" in piped
    assert max(map(len, piped.splitlines())) <= 80


# -- to-zarr -----------------------------------------------------------------------------------------------------------


def assert_same(store: Path, source: object, **arguments: object) -> None:
    stored = dtf.from_zarr(store).compute()
    for name, column in dtf.read_tfrecord(source, **arguments).compute().items():
        for found, expected in zip(stored.pop(name), column, strict=True):
            np.testing.assert_array_equal(found, expected)
    assert not stored


def test_to_zarr_writes_what_read_tfrecord_reads(shards: Path, tmp_path: Path) -> None:
    store = tmp_path / "train.zarr"
    result = run("to-zarr", shards / "train-*.tfrecord", store)
    assert result.exit_code == 0, result.stderr
    assert re.fullmatch(rf"Wrote {re.escape(str(store))}: 20 rows of 3 features in [\d.]+ s; .*\n", result.stdout)
    # A bar is displayed only in a terminal.
    assert not result.stderr
    assert_same(store, shards)


def test_to_zarr_accepts_an_expanded_glob(shards: Path, tmp_path: Path) -> None:
    assert run("to-zarr", *sorted(shards.iterdir()), tmp_path / "train.zarr").exit_code == 0
    assert_same(tmp_path / "train.zarr", shards)


def test_a_split_of_a_tfds_data_set(tmp_path: Path) -> None:
    folder = Path(__file__).parent / "data" / "tfds" / "every" / "1.0.0"
    store = tmp_path / "train.zarr"
    assert run("to-zarr", folder, store, "--split", "train[2:5]", "--columns", "label").exit_code == 0
    wanted = dtf.read_tfrecord(folder, split="train", columns=["label"])["label"].compute()
    np.testing.assert_array_equal(dtf.from_zarr(store)["label"].compute(), wanted[2:5])
    document = json.loads(run("info", folder, "--split", "train", "--json").stdout)
    assert sum(shard["records"] for shard in document["shards"]) == len(wanted)
    assert_one_line_of_error(run("info", folder, "--split", "validation"), "validation")


def test_to_zarr_options(shards: Path, tmp_path: Path) -> None:
    store = tmp_path / "train.zarr"
    options = ["--chunks", 2, "--shards", 6, "--columns", "label,tokens", "--component", "some/where", "--threads", 1]
    assert run("to-zarr", shards, store, *options).exit_code == 0
    label = zarr.open_array(store, path="some/where/label", mode="r")
    assert (label.chunks, label.shards) == ((2,), (6,))
    stored = dtf.from_zarr(store, component="some/where")
    assert set(stored) == {"label", "tokens"}
    assert run("to-zarr", shards, tmp_path / "b.zarr", "--columns", "label", "--columns", "image").exit_code == 0
    assert set(dtf.from_zarr(tmp_path / "b.zarr")) == {"label", "image"}


def test_to_zarr_takes_features_from_a_file_and_sizes_in_bytes(shards: Path, tmp_path: Path) -> None:
    store, schema = tmp_path / "train.zarr", dtf.Schema({"label": dtf.FixedLenFeature((), "float32")})
    wrong, right = tmp_path / "wrong.json", tmp_path / "schema.json"
    wrong.write_text(schema.to_json())
    assert_one_line_of_error(run("to-zarr", shards, store, "--features", wrong), "label", "int64")
    right.write_text(dtf.infer_schema(shards).select(["label"]).to_json())
    sizes = ["--chunks", "16 B", "--shards", "48 B"]
    assert run("to-zarr", shards, store, "--features", right, *sizes).exit_code == 0
    label = zarr.open_array(store, path="label", mode="r")
    assert (label.chunks, label.shards) == ((2,), (6,))
    assert set(dtf.from_zarr(store)) == {"label"}


def test_to_zarr_reads_all_records_to_infer_what_a_sample_does_not_show(tmp_path: Path) -> None:
    rows = [messages.Example() for _ in range(300)]
    for row in rows[:-1]:
        row.features.feature["label"].int64_list.value.append(1)
    oracle.write_oracle(tmp_path / "shard", [row.SerializeToString() for row in rows])
    store = tmp_path / "all.zarr"
    said = "'label' is missing", "--sample all reads all of them, or give --features"
    assert_one_line_of_error(run("to-zarr", tmp_path / "shard", store), *said)
    assert run("to-zarr", tmp_path / "shard", store, "--sample", "all").exit_code == 0
    assert dtf.from_zarr(store)["label"].compute()[-2:].tolist()[0].tolist() == [1]
    both = run("to-zarr", tmp_path / "shard", store, "--sample", 3, "--features", "schema.json")
    assert both.exit_code == 2
    assert "give one of them" in both.stderr


# -- errors ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["info", "to-zarr"])
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("damaged_not_a_tfrecord", "this is not a TFRecord file"),
        ("damaged_truncated_header", "truncated header"),
        ("damaged_truncated_payload", "truncated payload"),
        ("damaged_truncated_footer", "truncated footer"),
        ("damaged_length_bit", "CRC of the length"),
        ("damaged_payload_bit", "CRC of the payload"),
        ("damaged_huge_length", ""),
        ("damaged_trailing_garbage", ""),
        ("nothing_of_that_name", "no file or directory"),
    ],
)
def test_bad_files_are_one_line_of_error(command: str, name: str, said: str, golden: Path, tmp_path: Path) -> None:
    store = tmp_path / "some.zarr"
    result = run(command, golden / f"{name}.tfrecord", *([store] if command == "to-zarr" else []))
    assert_one_line_of_error(result, name, said)
    assert not store.exists()


def test_records_that_are_no_examples_are_counted_and_then_refused(tmp_path: Path) -> None:
    oracle.write_oracle(tmp_path / "lines", [b'{"label": 1}'] * 3)
    result = run("info", tmp_path / "lines")
    assert re.search(r"^records +3$", result.stdout, re.MULTILINE)
    assert_one_line_of_error(result, "JSON text")


def test_feature_lists_are_shown(tmp_path: Path) -> None:
    sequence = messages.SequenceExample()
    sequence.feature_lists.feature_list["steps"].feature.add().int64_list.value.append(1)
    oracle.write_oracle(tmp_path / "sequences", [sequence.SerializeToString()] * 3)
    result = run("info", tmp_path / "sequences")
    assert result.exit_code == 0
    assert re.search(r"^records +3$", result.stdout, re.MULTILINE)
    assert re.search(r"^steps +FixedLenSequenceFeature +int64", result.stdout, re.MULTILINE)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--columns", "lable"], "did you mean 'label'"),
        (["--chunks", "0"], "chunks"),
        (["--chunks", "3", "--shards", "4"], "multiple"),
        (["--features", "nowhere.json"], "nowhere.json"),
    ],
)
def test_wrong_values_are_one_line_of_error(arguments: list[str], said: str, shards: Path, tmp_path: Path) -> None:
    assert_one_line_of_error(run("to-zarr", shards, tmp_path / "some.zarr", *arguments), said)
    assert not (tmp_path / "some.zarr").exists()


def test_wrong_usage_is_clicks_own_error() -> None:
    some = ["to-zarr", "one", "two", "--chunks", "some"]
    for arguments in (["info"], ["to-zarr", "one"], some, ["info", "x", "--compression", "zip"], ["nothing"]):
        result = run(*arguments)
        assert result.exit_code == 2
        assert "Usage: dask-tfrecord" in result.stderr


def test_an_existing_store_stays_without_overwrite(shards: Path, tmp_path: Path) -> None:
    store = tmp_path / "train.zarr"
    assert run("to-zarr", shards, store, "--columns", "label").exit_code == 0
    assert_one_line_of_error(run("to-zarr", shards, store), "train.zarr exists", "--overwrite", "--component NAME")
    assert set(dtf.from_zarr(store)) == {"label"}
    assert run("to-zarr", shards, store, "--overwrite").exit_code == 0
    assert_same(store, shards)


@pytest.mark.parametrize("options", [[], ["--overwrite"]])
def test_a_directory_of_other_things_is_never_overwritten(options: list[str], shards: Path, tmp_path: Path) -> None:
    directory = tmp_path / "mine"
    shutil.copytree(shards, directory)
    assert_one_line_of_error(run("to-zarr", directory, directory, *options), "mine", "is not a Zarr group")
    assert sorted(path.name for path in directory.iterdir()) == sorted(path.name for path in shards.iterdir())


def test_a_record_that_breaks_in_the_middle_leaves_no_store(tmp_path: Path) -> None:
    path = tmp_path / "broken"
    oracle.write_oracle(path, examples(600))
    damaged = bytearray(path.read_bytes())
    damaged[-100] ^= 1
    path.write_bytes(damaged)
    store = tmp_path / "some.zarr"
    result = run("to-zarr", path, store, "--columns", "label", "--chunks", 10)
    assert result.exit_code == 1
    *bar, line = result.stderr.strip().splitlines()
    # At most one bar; its state when the task failed is not deterministic.
    assert len(bar) <= 1 and all("%" in text for text in bar)
    assert line.startswith(f"Error: {path}: record 599 (byte ")
    assert not store.exists()


@pytest.mark.integration
@POSIX
def test_a_full_disk_is_one_line_and_leaves_no_store(tmp_path: Path) -> None:
    import resource

    oracle.write_oracle(tmp_path / "noise", examples(4000))
    store = tmp_path / "noise.zarr"

    def limit() -> None:
        # Limit the files of this process to 100 kB, like a full disk.
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))

    done = subprocess.run(
        [script("dask-tfrecord"), "to-zarr", str(tmp_path / "noise"), str(store)],
        preexec_fn=limit,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert re.search(r"^Error: .*File too large", done.stderr, re.MULTILINE)
    assert "Traceback" not in done.stderr
    assert not store.exists()


@pytest.mark.integration
@pytest.mark.slow
@POSIX
@pytest.mark.parametrize(
    "command", [["dask-tfrecord"], pytest.param(["dask", "tfrecord"], marks=pytest.mark.slow)], ids=" ".join
)
def test_an_interrupt_exits_with_status_130_and_can_be_resumed(command: list[str], tmp_path: Path) -> None:
    oracle.write_oracle(tmp_path / "many", examples(2000))
    store = tmp_path / "many.zarr"
    options = ["--columns", "label", "--chunks", "1"]
    arguments = [script(command[0]), *command[1:], "to-zarr", str(tmp_path / "many"), str(store), *options]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        wait_until(lambda: any(store.glob(".dask_tfrecord/*/units/*.json")) or process.poll() is not None)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    assert errors.splitlines()[-2:] == ["Interrupted", "written units are kept: --resume continues it"]
    assert "Traceback" not in errors
    written = len(list((store / "label" / "c").iterdir()))
    begun = run("to-zarr", tmp_path / "many", store, *options)
    assert_one_line_of_error(begun, "an interrupted conversion: --resume continues it, --overwrite replaces it")
    other = run("to-zarr", tmp_path / "many", store, "--columns", "label", "--chunks", 2, "--resume")
    assert_one_line_of_error(other, "chunks was 1 and now is 2", "Pass --overwrite to start over")
    unread = run("to-tfrecord", store, tmp_path / "again.tfrecord")
    assert_one_line_of_error(unread, "never finished: to-zarr --resume continues it, --overwrite starts over")
    resumed = run("to-zarr", tmp_path / "many", store, *options, "--resume")
    found = re.search(r"2,000 rows of 1 feature \(([\d,]+) of 2,000 write units before\) in ", resumed.stdout)
    # The interrupted write unit is not in the checkpoint.
    assert found and 0 < int(found[1].replace(",", "")) <= written
    assert_same(store, tmp_path / "many", columns=["label"])
    assert run("to-zarr", tmp_path / "many", store, *options, "--resume").stdout.endswith(
        "complete: nothing was left to write\n"
    )


def test_a_failed_resume_keeps_the_written_units(tmp_path: Path) -> None:
    lost = tmp_path / "lost.tfrecord"
    # After the records that features are inferred from.
    oracle.write_oracle(lost, examples(400))
    whole = lost.read_bytes()
    lost.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    store, options = tmp_path / "some.zarr", ["--columns", "label", "--chunks", 50, "--threads", 1, "--resume"]
    result = run("to-zarr", lost, store, *options)
    assert result.exit_code == 1
    error, note = result.stderr.splitlines()
    assert error.startswith("Error: ") and note == "written units are kept: --resume continues it"
    assert store.exists()


def test_overwrite_and_resume_exclude_each_other(shards: Path, tmp_path: Path) -> None:
    result = run("to-zarr", shards, tmp_path / "some.zarr", "--overwrite", "--resume")
    assert result.exit_code == 2
    assert "give one of them" in result.stderr
    assert not (tmp_path / "some.zarr").exists()


@pytest.mark.parametrize("where", [0, 1])
def test_debug_raises_before_and_after_the_command(where: int, golden: Path) -> None:
    arguments: list[object] = ["info", golden / "damaged_truncated_header.tfrecord"]
    arguments.insert(2 * where, "--debug")
    result = run(*arguments)
    assert isinstance(result.exception, dtf.CorruptRecordError)


# -- programs ----------------------------------------------------------------------------------------------------------


def program(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([script(arguments[0]), *arguments[1:]], capture_output=True, text=True, timeout=120)


@pytest.mark.integration
def test_dask_has_the_same_commands(shards: Path, tmp_path: Path) -> None:
    ours = program("dask-tfrecord", "info", str(shards))
    dasks = program("dask", "tfrecord", "info", str(shards))
    assert ours.returncode == dasks.returncode == 0, ours.stderr + dasks.stderr
    assert ours.stdout == dasks.stdout
    assert "20, 8 to 12 per shard" in ours.stdout
    assert ours.stderr == dasks.stderr == ""
    done = program("dask", "tfrecord", "to-zarr", str(shards), str(tmp_path / "train.zarr"))
    assert done.returncode == 0, done.stderr
    assert_same(tmp_path / "train.zarr", shards)


@pytest.mark.integration
@pytest.mark.parametrize(
    "command", [["dask-tfrecord"], pytest.param(["dask", "tfrecord"], marks=pytest.mark.slow)], ids=" ".join
)
def test_programs_fail_with_one_line_and_show_the_traceback_with_debug(command: list[str], golden: Path) -> None:
    bad = str(golden / "damaged_not_a_tfrecord.tfrecord")
    done = program(*command, "info", bad)
    assert (done.returncode, done.stdout) == (1, "")
    assert len(done.stderr.splitlines()) == 1
    assert "this is not a TFRecord file" in done.stderr
    debugged = program(*command, "info", bad, "--debug")
    assert debugged.returncode == 1
    assert "Traceback (most recent call last)" in debugged.stderr
    assert "CorruptRecordError" in debugged.stderr


def test_help_and_version_print_text() -> None:
    assert "to-zarr" in run("--help").stdout
    assert "--overwrite" in run("to-zarr", "--help").stdout
    assert re.match(r"dask-tfrecord, version \d", run("--version").stdout)


@pytest.mark.parametrize("options", [[], ["--sample", "all"]])
def test_to_zarr_refuses_a_target_before_it_reads(tmp_path: Path, options: list[str]) -> None:
    """The damaged shard would be an error of its own if a record was read or counted."""
    damaged, store = tmp_path / "damaged.tfrecord", tmp_path / "store.zarr"
    damaged.write_bytes(b"damaged")
    store.mkdir()
    (store / "notes.txt").write_text("mine")
    result = run("to-zarr", damaged, store, *options)
    assert_one_line_of_error(result, "not a Zarr group")
    assert (store / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize(("errors", "labels"), [("skip", [1, 2]), ("fill", [0, 1, 2])])
def test_errors_of_damage_name_options_that_convert_the_rest(tmp_path: Path, errors: str, labels: list[int]) -> None:
    path = tmp_path / "a.tfrecord"
    oracle.write_oracle(path, examples(3))
    data = bytearray(path.read_bytes())
    data[30] ^= 1
    path.write_bytes(data)
    schema = dtf.Schema({"label": dtf.FixedLenFeature((), "int64", default_value=0)})
    (tmp_path / "schema.json").write_text(schema.to_json())
    store = tmp_path / "a.zarr"
    options = ["--features", tmp_path / "schema.json", "--columns", "label"]
    refused = run("to-zarr", path, store, *options)
    assert_one_line_of_error(refused, "to-zarr --errors skip", "command repair")
    assert "errors=" not in refused.stderr
    with pytest.raises(dtf.CorruptRecordError, match=r'errors="skip"') as raised:
        dtf.read_tfrecord(path, schema).compute()
    again = pickle.loads(pickle.dumps(raised.value))
    assert (str(again), again.for_commands()) == (str(raised.value), raised.value.for_commands())
    assert run("to-zarr", path, store, *options, "--errors", errors).exit_code == 0
    assert dtf.from_zarr(store)["label"].compute().tolist() == labels
