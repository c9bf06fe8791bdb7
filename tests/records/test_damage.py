"""Damaged shards: intact records are read, lost bytes are reported, and records are never invented."""

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
from oracle import borders, framed, read_payloads, write_oracle
from oracle.messages import Example
from support.any_columns import listed
from support.commands import run
from support.damage import flip
from support.few import mostly_slow
from support.wire import example

import dask_tfrecord as dtf
from dask_tfrecord.records.shard_check import ShardReport, check_shard
from dask_tfrecord.shards.listing import find_shards

Damaged = tuple[str, bytes, list[int]]  # what was done, the bytes, numbers of the records that are whole


def file_of(draw: random.Random) -> bytes:
    """Return a TFRecord file to embed in a record."""
    return framed(draw.randbytes(draw.choice([0, 3, 10, 20, 40])) for _ in range(draw.randrange(1, 5)))


PAYLOADS: dict[str, Callable[[random.Random, int], bytes]] = {
    "examples": lambda draw, number: example(number=[number], text=[draw.randbytes(draw.choice([0, 3, 20]))]),
    "equal": lambda draw, number: b"the same",
    "empty": lambda draw, number: b"",
    "zeros": lambda draw, number: bytes(draw.choice([0, 5, 30])),
    "files": lambda draw, number: file_of(draw),
    "examples of files": lambda draw, number: (
        example(number=[number], text=[file_of(draw)]) + draw.randbytes(draw.randrange(60))
    ),
}


def records_of(kind: str, seed: int = 0) -> list[bytes]:
    draw = random.Random(f"{kind} {seed}")
    return [framed([PAYLOADS[kind](draw, number)]) for number in range(20)]


# Inserted bytes: fewer than a length, a header of 12 bytes, a footer of 4, and more than a record without payload.
SIZES = (1, 2, 4, 7, 8, 9, 12, 13, 15, 16, 17, 40)


def flips(records: list[bytes], step: int) -> Iterator[Damaged]:
    data, ends = b"".join(records), np.cumsum([len(record) for record in records])
    for place in range(0, len(data), step):
        hit = int(np.searchsorted(ends, place, side="right"))
        damaged = bytearray(data)
        damaged[place] ^= 1 << place % 8
        yield f"flip {place}", bytes(damaged), [number for number in range(len(records)) if number != hit]


def truncations(records: list[bytes], step: int) -> Iterator[Damaged]:
    data, ends = b"".join(records), np.cumsum([len(record) for record in records])
    for place in range(0, len(data), step):
        yield f"cut at {place}", data[:place], list(range(int(np.searchsorted(ends, place, side="right"))))


def insertions(records: list[bytes], step: int) -> Iterator[Damaged]:
    data = b"".join(records)
    borders = np.cumsum([0, *(len(record) for record in records)]).tolist()
    draw = random.Random(1)
    for turn, place in enumerate(range(0, len(data) + 1, step)):
        for size in SIZES if step < 5 else [1 + turn % 40]:
            damaged = data[:place] + draw.randbytes(size) + data[place:]
            # Inserted bytes that repeat the following ones may be attributed to either position.
            places = [b for b in borders if damaged[:b] == data[:b] and damaged[b + size :] == data[b:]] or [place]
            whole = [number for number, start in enumerate(borders[:-1]) if not start < places[0] < borders[number + 1]]
            yield f"{size} bytes at {place}", damaged, whole


DAMAGES = {"flips": flips, "truncations": truncations, "insertions": insertions}


def checked(path: Path, data: bytes) -> tuple[ShardReport, list[bytes]]:
    """Return the report and the intact records, after checking that the report covers every byte."""
    path.write_bytes(data)
    (shard,) = find_shards(path, compression=None)
    report = check_shard(shard)
    ranges = [*zip(report.starts.tolist(), report.stops.tolist(), strict=True)]
    ranges += [(lost.start, lost.stop) for lost in report.lost]
    ranges.sort()
    assert [0, *(stop for _, stop in ranges)] == [*(start for start, _ in ranges), len(data)]
    held = []
    for start, stop in zip(report.starts.tolist(), report.stops.tolist(), strict=True):
        while start < stop:
            end = start + 16 + int.from_bytes(data[start : start + 8], "little")
            held.append(data[start:end])
            start = end
    assert len(held) == report.records
    return report, held


RUNS = [
    *((kind, 0, 61) for kind in PAYLOADS),
    *(pytest.param(kind, 0, step, marks=pytest.mark.slow) for kind, step in (("equal", 1), ("examples", 3))),
    *(pytest.param(kind, seed, 1, marks=pytest.mark.nightly) for kind in PAYLOADS for seed in (0, 5, 6)),
]


@pytest.mark.parametrize(("kind", "seed", "step"), RUNS)
@pytest.mark.parametrize("damage", DAMAGES)
def test_exactly_the_undamaged_records_are_intact(kind: str, seed: int, step: int, damage: str, tmp_path: Path) -> None:
    records = records_of(kind, seed)
    for what, data, whole in DAMAGES[damage](records, step):
        report, held = checked(tmp_path / "a.tfrecord", data)
        assert held == [records[number] for number in whole], (what, report.lost)
        if damage == "flips" and step > 1:
            assert report.lost_records in (None, len(records) - len(whole)), (what, report.lost)


FEATURES = {"number": dtf.FixedLenFeature((), "int64", -1), "text": dtf.FixedLenFeature((), "bytes", b"lost")}


@pytest.mark.parametrize("damage", DAMAGES)
def test_skip_fill_and_raise_agree_with_the_intact_records(damage: str, tmp_path: Path) -> None:
    records = records_of("examples")
    texts = [
        bytes(Example.FromString(record[12:-4]).features.feature["text"].bytes_list.value[0]) for record in records
    ]
    for turn, (what, data, whole) in enumerate(DAMAGES[damage](records, 197)):
        path = tmp_path / f"{turn}.tfrecord"
        path.write_bytes(data)
        # Damage in the first bytes may change the detected format.
        options: dict[str, Any] = {"features": FEATURES, "compression": None}
        with dask.config.set(scheduler="synchronous"):
            skipped = dtf.read_tfrecord(path, errors="skip", **options).compute()
            filled = dtf.read_tfrecord(path, errors="fill", **options).compute()
            assert skipped["number"].tolist() == whole, what
            assert skipped["text"].tolist() == [texts[number] for number in whole]
            held = filled["number"] >= 0
            assert filled["number"][held].tolist() == whole, what
            assert set(filled["text"][~held]) <= {b"lost"}
            if len(data) == len(b"".join(records[number] for number in whole)):
                continue
            assert not held.all()
            if damage == "flips":
                assert held.sum() == 19
                assert len(held) == 20
                assert np.flatnonzero(~held).tolist() == sorted({*range(20)} - {*whole})
            with pytest.raises(dtf.CorruptRecordError) as raised:
                dtf.read_tfrecord(path, **options).compute()
        if damage != "insertions":
            assert raised.value.place is not None
            assert raised.value.place.record == min({*range(21)} - {*whole}), what


@pytest.mark.parametrize("kind", ["examples", "equal", "files"])
def test_several_damages_never_invent_a_record(kind: str, tmp_path: Path) -> None:
    records = records_of(kind)
    draw = random.Random(4)
    missed = 0
    for turn in range(100):
        data, owners = bytearray(b"".join(records)), [n for n, record in enumerate(records) for _ in record]
        hit = set()
        for mask in (0x55, 0x2A, 0x11):
            place = draw.randrange(len(data))
            # Damage to a payload and the next header, or to one bit. Records between two damages have to be found.
            size = draw.choice([1, 60])
            data[place : place + size] = bytes(byte ^ mask for byte in data[place : place + size])
            hit |= {*owners[place : place + size]}
        report, held = checked(tmp_path / f"{turn}.tfrecord", bytes(data))
        whole = [record for number, record in enumerate(records) if number not in hit]
        rest = iter(whole)
        assert all(record in rest for record in held), report.lost
        missed += len(whole) - len(held)
    assert missed == 0 or kind == "files"


def test_an_index_determines_the_number_of_lost_records(tmp_path: Path) -> None:
    records, path = records_of("examples"), tmp_path / "a.tfrecord"
    data = b"".join(records)
    path.write_bytes(data)
    dtf.build_index(path)
    at = np.cumsum([0, *map(len, records)]).tolist()
    damaged = bytearray(data)
    for first, last in ((3, 5), (9, 10), (15, 20)):
        damaged[at[first] : at[last]] = bytes(at[last] - at[first])
    path.write_bytes(damaged)
    (report,) = dtf.verify(path).files
    assert [(lost.start, lost.stop, lost.records) for lost in report.lost] == [
        *((at[3], at[5], 2), (at[9], at[10], 1), (at[15], at[20], 5))
    ]
    assert {lost.reason for lost in report.lost} == {"the CRC of the length does not match"}
    filled = dtf.read_tfrecord(path, FEATURES, errors="fill").compute()
    assert filled["number"].tolist() == [0, 1, 2, -1, -1, 5, 6, 7, 8, -1, *range(10, 15), *[-1] * 5]
    # After truncation or insertion, intact and lost records still add up to the records of the index.
    path.write_bytes(data[: at[12] + 3])
    assert dtf.verify(path).lost_records == 8
    path.write_bytes(data[: at[4]] + b"junk between records" + data[at[4] :])
    assert dtf.verify(path).lost_records == 0
    assert dtf.read_tfrecord(path, FEATURES, errors="fill").nrows == 20


@pytest.mark.parametrize(
    "text", ["0 1\n5 x\n", "5\n", "records: many", "1" * 200, "99999999999999999999 1\n", "directory"]
)
def test_an_index_that_cannot_be_read_changes_nothing(text: str, tmp_path: Path) -> None:
    records = records_of("examples")
    path = tmp_path / "a.tfrecord"
    path.write_bytes(b"".join(records[:4]) + bytes(len(records[4])) + b"".join(records[5:]))
    without = dtf.verify(path)
    assert [lost.records for lost in without.files[0].lost] == [None]
    index = Path(f"{path}.idx")
    index.write_text(text) if text != "directory" else index.mkdir()
    assert dtf.verify(path).to_json() == without.to_json()


@pytest.mark.parametrize("compression", mostly_slow(["gzip", "zlib"], 2))
def test_all_damaged_data_that_inflates_is_read(compression: str, tmp_path: Path) -> None:
    draw = random.Random(3)
    path = tmp_path / "a.tfrecord"
    texts = [draw.randbytes(50) for _ in range(400)]
    write_oracle(path, (example(number=[row], text=[text]) for row, text in enumerate(texts)), compression)
    stored = path.read_bytes()
    for place in range(5000, len(stored), len(stored) // 2):
        damaged = bytearray(stored)
        damaged[place] ^= 0x10
        for data in (bytes(damaged), stored[:place]):
            path.write_bytes(data)
            (report,) = dtf.verify(path).files
            assert report.lost[-1].stop is None
            assert compression in report.lost[-1].reason
            arrays = dtf.read_tfrecord(path, FEATURES, errors="skip", chunks=100).compute()
            numbers = arrays["number"].tolist()
            assert len(numbers) == report.records > 30
            assert numbers == sorted(set(numbers))
            assert arrays["text"].tolist() == [texts[number] for number in numbers]


LOST = (0, 100, 101, 250, 399)


def damaged_shards(folder: Path) -> Path:
    """Write three shards of 400 records, and damage the beginning, the middle and the end."""
    for shard in range(3):
        payloads = [example(number=[1000 * shard + number], text=[b"x" * (number % 50)]) for number in range(400)]
        at, path = borders(payloads), folder / f"{shard}.tfrecord"
        write_oracle(path, payloads)
        flip(path, *(at[number] + 14 for number in LOST))
    return folder


@pytest.mark.parametrize("chunks", ["auto", "shard", 37, "8 KiB"])
def test_rows_are_the_same_however_they_are_cut_and_picked(chunks: str | int, tmp_path: Path) -> None:
    path = damaged_shards(tmp_path)
    expected = np.array([1000 * s + n for s in range(3) for n in range(400) if n not in LOST])
    skipped = dtf.read_tfrecord(path, FEATURES, errors="skip", chunks=chunks)
    assert skipped["number"].compute().tolist() == expected.tolist()
    assert skipped.rows[390:800:3]["number"].compute().tolist() == expected[390:800:3].tolist()
    picked = [1184, 5, 5, 394, 395, 0]
    assert skipped.rows[picked].compute()["number"].tolist() == expected[picked].tolist()
    filling = np.array([-1 if n in LOST else 1000 * s + n for s in range(3) for n in range(400)])
    filled = dtf.read_tfrecord(path, FEATURES, errors="fill", chunks=chunks)
    assert filled.nrows == 1200
    assert filled.compute()["number"].tolist() == filling.tolist()
    assert filled.rows[95:260:5]["number"].compute().tolist() == filling[95:260:5].tolist()
    picked = [1199, 100, 100, 399, 400, 401, 0]
    assert filled.rows[picked].compute()["number"].tolist() == filling[picked].tolist()
    if isinstance(chunks, int):
        assert set(filled.chunks[:-1]) == {chunks}
    if chunks == "shard":
        assert list(filled.chunks) == [400, 400, 400]
        assert list(skipped.chunks) == [395, 395, 395]


# Feature, rows, the value of a lost row, that row, and a value that does not fit.
FILLED: dict[str, tuple[Any, Any, Any, Any, Any]] = {
    "dense": (dtf.FixedLenFeature((2,), "int64"), np.arange(6).reshape(3, 2), [7, 8], [7, 8], [1, 2, 3]),
    "small": (dtf.FixedLenFeature((), "uint8"), np.arange(3, dtype=np.uint8), 9, 9, 300),
    "text": (dtf.TextFeature(), ["a", "b", "c"], "none", "none", 3),
    "ragged": (dtf.VarLenFeature("float32"), [[], [1.5], [1.5, 1.5]], [0.5, 0.25], [0.5, 0.25], None),
    "array": (dtf.RawFeature((2, 2), "uint8"), np.arange(12, dtype="u1").reshape(3, 2, 2), 255, [[255] * 2] * 2, "x"),
}


def test_filled_rows_of_every_kind_of_column(tmp_path: Path) -> None:
    path = tmp_path / "a.tfrecord"
    features = {name: feature for name, (feature, *_) in FILLED.items()}
    dtf.to_tfrecord({name: rows for name, (_, rows, *_) in FILLED.items()}, path, features=features)
    whole = dtf.read_tfrecord(path, features).compute()
    flip(path, 20)
    values = {name: value for name, (_, _, value, _, _) in FILLED.items()}

    def filled(fill_values: dict[str, Any]) -> dict[str, Any]:
        return dtf.read_tfrecord(path, features, errors="fill", fill_values=fill_values).compute()

    for name, column in filled(values).items():
        assert listed(column) == [FILLED[name][3], *listed(whole[name])[1:]]
    with pytest.raises(dtf.SchemaError, match=r"'ragged'.*fill_values"):
        filled({name: value for name, value in values.items() if name != "ragged"})
    with pytest.raises(dtf.SchemaError, match="no column 'smal'"):
        filled({**values, "smal": 1})
    for name, (_, _, _, _, wrong) in FILLED.items():
        if wrong is not None:
            with pytest.raises(dtf.SchemaError, match=f"'{name}'"):
                filled({**values, name: wrong})


def test_an_intact_record_that_cannot_be_decoded_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "a.tfrecord"
    path.write_bytes(framed([example(number=[1], text=[b""]), b"no Example"]))
    for errors in ("skip", "fill"):
        with pytest.raises(dtf.FeatureError, match="record 1"):
            dtf.read_tfrecord(path, FEATURES, errors=errors).compute()


@pytest.mark.parametrize(
    "options",
    [
        {"errors": "ignore"},
        {"errors": "skip", "check_crc": False},
        {"errors": "fill", "counts": None},
        {"errors": "fill", "counts": [1]},
        {"errors": "skip", "fill_values": {"number": 1}},
        {"fill_values": {"number": 1}},
    ],
    ids=str,
)
def test_arguments_that_contradict_each_other(options: dict[str, Any], golden: Path) -> None:
    with pytest.raises(ValueError, match=r"errors|fill_values"):
        dtf.read_tfrecord(golden / "scalars.tfrecord", **options)


def test_a_data_set_verifies_its_files(tmp_path: Path) -> None:
    path = damaged_shards(tmp_path)
    for errors in ("skip", "fill"):
        report = dtf.read_tfrecord(path, FEATURES, errors=errors).map_blocks(lambda blocks: blocks).verify()
        assert (report.records, report.lost_records, report.ok) == (1185, 15, False)
    assert "damage in 3: 15 records lost" in repr(report)
    # Features are inferred from intact records.
    inferred = dtf.read_tfrecord(path, errors="skip")
    assert (list(inferred), inferred.nrows) == (["number", "text"], 3 * 395)
    with pytest.raises(ValueError, match="do not come from TFRecord files"):
        dtf.read_tfrecord(path, FEATURES, errors="skip").persist().verify()


@pytest.mark.parametrize("compression", ["same", "gzip"])
def test_repair_writes_the_intact_records(compression: str, tmp_path: Path) -> None:
    source = damaged_shards(tmp_path) / "1.tfrecord"
    target = tmp_path / "repaired"
    report = dtf.repair(source, target, compression=compression)
    assert report.records == 395
    numbers = [
        Example.FromString(payload).features.feature["number"].int64_list.value[0] for payload in read_payloads(target)
    ]
    assert numbers == [1000 + number for number in range(400) if number not in LOST]
    assert dtf.verify(target).ok
    beside = json.loads((tmp_path / "repaired.damage.json").read_text())
    assert beside["records"] == 395
    assert [each["records"] for each in beside["lost"]] == [1, 2, 1, 1]
    with pytest.raises(dtf.TFRecordError, match="replace the damaged shard"):
        dtf.repair(source, source)
    with pytest.raises(dtf.TFRecordError, match="names 3"):
        dtf.repair(str(tmp_path / "*.tfrecord"), target)
    with pytest.raises(ValueError, match="compression"):
        dtf.repair(source, target, compression="zip")


def test_commands(tmp_path: Path) -> None:
    folder = damaged_shards(tmp_path)
    found = run("verify", folder / "*.tfrecord")
    assert found.exit_code == 1
    assert found.output.startswith("3 files, 1,185 records, damage in 3: 15 records lost\n")
    assert "0.tfrecord: bytes 0 to " in found.output
    found = run("verify", "--json", folder / "*.tfrecord")
    assert found.exit_code == 1
    assert json.loads(found.output)["lost_records"] == 15
    found = run("repair", folder / "2.tfrecord", folder / "repaired")
    assert found.exit_code == 0, found.output
    assert "395 records; 4 ranges of bytes lost" in found.output
    found = run("repair", "--json", folder / "2.tfrecord", folder / "again")
    assert json.loads(found.output)["records"] == 395
    found = run("verify", folder / "repaired")
    assert (found.exit_code, found.output) == (0, "1 file, 395 records, no damage\n")
