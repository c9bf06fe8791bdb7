"""Compare the decoding of protobuf messages to columns with protobuf (upb) and with ptars.

    python benchmarks/messages.py DESCRIPTORS [--ptars PYTHON] [--turns 5]
    python benchmarks/messages.py DESCRIPTORS --memory [--scenarios 500]

DESCRIPTORS is the FileDescriptorSet of a scenario of the Waymo Open Motion Dataset, `tests/data/protos/scenario.desc`.
There are two sets of records: messages of 20 scalar fields, and scenarios of about 100 KB. All fields become columns:

- `dask_tfrecord`: framed records to NumPy arrays by the native decoder, without CRCs;
- `upb`: `ParseFromString`, and the same NumPy arrays from the fields of the message;
- `ptars`: payloads to an Arrow record batch. It needs an environment with ptars and protobuf, and is
  skipped if `--ptars` is absent.

All run on one core, in turn. Times are CPU seconds; ratios are of the same turn, and the table has their median.

With `--memory`, it prints the peak resident memory of processes that read a file of scenarios, and one of eight times
as many: to a Zarr store, and block by block with all columns in memory.
"""

import argparse
import json
import os
import random
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from harness import run

SCENARIO = "waymo.open_dataset.Scenario"

# Numbers of FieldDescriptorProto.Type of the flat message, and of their NumPy types.
FLAT_TYPES = (1, 1, 2, 2, 3, 3, 4, 5, 5, 6, 7, 8, 8, 13, 17, 18, 9, 9, 12, 5)
DTYPES = {1: "f8", 2: "f4", 3: "i8", 4: "u8", 5: "i4", 6: "u8", 7: "u4", 8: "?", 13: "u4", 14: "i4", 17: "i4", 18: "i8"}
MESSAGE, TEXTS = 11, (9, 12)


def flat_class() -> Any:
    """Return the class of a proto3 message with 20 scalar fields."""
    file = descriptor_pb2.FileDescriptorProto(name="flat.proto", package="flat", syntax="proto3")
    message = file.message_type.add(name="Flat")
    for number, type_ in enumerate(FLAT_TYPES, 1):
        message.field.add(name=f"field_{number}", number=number, type=type_, label=1)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("flat.Flat"))


def scenario_class(descriptors: Path) -> Any:
    """Return the class of a scenario."""
    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(descriptors.read_bytes()).file:
        pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(SCENARIO))


def flat_payloads(records: int) -> list[bytes]:
    """Return serialised messages of 20 fields."""
    made = random.Random(0)
    flat = flat_class()
    payloads = []
    for _ in range(records):
        message = flat()
        for field in message.DESCRIPTOR.fields:
            values = {9: "a text", 12: b"some bytes", 8: True}
            number = made.random() * 100 if field.type in (1, 2) else made.getrandbits(made.choice((6, 13, 30)))
            setattr(message, field.name, values.get(field.type, number))
        payloads.append(message.SerializeToString())
    return payloads


def scenario_payloads(descriptors: Path, records: int) -> list[bytes]:
    """Return serialised scenarios: 12 tracks of 91 states, lanes, lines and crosswalks."""
    made = random.Random(0)
    scenario = scenario_class(descriptors)
    payloads = []
    for number in range(records):
        message = scenario(scenario_id=f"scenario {number}", sdc_track_index=3, current_time_index=10)
        message.timestamps_seconds.extend(step / 10 for step in range(91))
        for track_id in range(12):
            track = message.tracks.add(id=track_id, object_type=1 + track_id % 3)
            for _ in range(91):
                state = track.states.add(valid=True)
                for field in state.DESCRIPTOR.fields:
                    if field.name != "valid":
                        setattr(state, field.name, made.random() * 1000)
        for step in range(91):
            states = message.dynamic_map_states.add()
            for lane in range(step % 4):
                states.lane_states.add(lane=lane + 100, state=lane + 1).stop_point.x = 5.0
        for feature_id in range(24):
            feature = message.map_features.add(id=feature_id)
            lines = (feature.lane.polyline, feature.road_line.polyline, feature.crosswalk.polygon)
            kind = feature_id % 3
            for _ in range(5 if kind == 2 else 40):
                lines[kind].add(x=made.random(), y=made.random(), z=made.random())
            if kind == 0:
                feature.lane.entry_lanes.extend((1, 200, 3000))
        payloads.append(message.SerializeToString())
    return payloads


def payloads_of(name: str, descriptors: Path, records: dict[str, int]) -> tuple[Any, list[bytes]]:
    """Return the class and the serialised messages of a set."""
    if name == "flat":
        return flat_class(), flat_payloads(records[name])
    return scenario_class(descriptors), scenario_payloads(descriptors, records[name])


class Tables:
    """Field tables of a message type for the native decoder, with a column for each field and presence."""

    def __init__(self, descriptor: Any) -> None:
        self.ncolumns = self.nsplits = 0
        self._fields: list[tuple[list[dict[str, Any]], list[int]]] = []
        self._add(descriptor)

    def _column(self) -> int:
        self.ncolumns += 1
        return self.ncolumns - 1

    def _add(self, descriptor: Any) -> int:
        fields: list[dict[str, Any]] = []
        oneofs = list(descriptor.oneofs)
        index = len(self._fields)
        self._fields.append((fields, [self._column() for _ in oneofs]))
        for field in descriptor.fields:
            made: dict[str, Any] = {"number": field.number, "type": field.type, "repeated": field.is_repeated}
            if field.is_repeated:
                made["splits"] = self.nsplits
                self.nsplits += 1
            if field.containing_oneof is not None:
                made["oneof"] = oneofs.index(field.containing_oneof)
            if field.enum_type is not None and field.enum_type.is_closed:
                made["numbers"] = sorted({value.number for value in field.enum_type.values})
            if field.type == MESSAGE:
                made["message"] = self._add(field.message_type)
            else:
                made["column"] = self._column()
                made["utf8"] = field.type == TEXTS[0] and field.file.name == "flat.proto"
            fields.append(made)
        return index

    def decoder(self) -> Any:
        """Return a new decoder."""
        from dask_tfrecord import _native

        tables = []
        for fields, oneofs in self._fields:
            made = []
            for field in fields:
                options = dict(field)
                number, type_ = options.pop("number"), _native.FieldType(options.pop("type"))
                made.append(_native.MessageField(number, type_, **options))
            tables.append(_native.MessageTable(made, oneofs))
        return _native.MessageDecoder(tables, self.ncolumns, self.nsplits, False)


def ours(message_class: Any, payloads: list[bytes]) -> Callable[[], Any]:
    """Decode framed records with the native decoder."""
    import numpy as np

    records = b"".join(struct.pack("<QI", len(payload), 0) + payload + bytes(4) for payload in payloads)
    buffer = np.frombuffer(records, np.uint8)
    tables = Tables(message_class.DESCRIPTOR)

    def decode() -> Any:
        decoder = tables.decoder()
        walk = decoder.feed(buffer, 0, len(buffer), -1)
        if walk.records != len(payloads):
            raise SystemExit("a record was refused")
        columns = [decoder.take_output(column) for column in range(tables.ncolumns)]
        return columns, [decoder.take_splits(splits) for splits in range(tables.nsplits)]

    return decode


def upb(message_class: Any, payloads: list[bytes]) -> Callable[[], Any]:
    """Parse with protobuf, and make arrays of the fields."""
    import numpy as np

    def plan(descriptor: Any) -> tuple[Any, ...]:
        """Return getters by kind of field, each with a list of values, and of lengths of repeated fields."""
        scalars: list[Any] = []
        many: list[Any] = []
        singles: list[Any] = []
        lists: list[Any] = []
        for field in descriptor.fields:
            if field.type == MESSAGE:
                (lists if field.is_repeated else singles).append((field.name, [], plan(field.message_type)))
            else:
                (many if field.is_repeated else scalars).append((field.name, [], [], field.type))
        return descriptor.name, scalars, many, singles, lists, [(one.name, []) for one in descriptor.oneofs]

    def walk(message: Any, table: tuple[Any, ...]) -> None:
        _, scalars, many, singles, lists, oneofs = table
        for name, values, _, _ in scalars:
            values.append(getattr(message, name))
        for name, values, lengths, _ in many:
            items = getattr(message, name)
            values.extend(items)
            lengths.append(len(items))
        for name, _, inner in singles:
            walk(getattr(message, name), inner)
        for name, lengths, inner in lists:
            items = getattr(message, name)
            lengths.append(len(items))
            for item in items:
                walk(item, inner)
        for name, cases in oneofs:
            cases.append(message.WhichOneof(name))

    def splits_of(lengths: list[int]) -> Any:
        return np.concatenate([[0], np.cumsum(np.array(lengths, np.int64))])

    def arrays(table: tuple[Any, ...], out: list[Any]) -> None:
        _, scalars, many, singles, lists, _ = table
        for _, values, lengths, type_ in (*scalars, *many):
            if type_ in TEXTS:
                encoded = [value.encode() for value in values] if type_ == TEXTS[0] else values
                out.append(np.frombuffer(b"".join(encoded), np.uint8))
                out.append(splits_of([len(value) for value in encoded]))
            else:
                out.append(np.array(values, DTYPES[type_]))
            if lengths:
                out.append(splits_of(lengths))
        for _, lengths, inner in (*singles, *lists):
            if lengths:
                out.append(splits_of(lengths))
            arrays(inner, out)

    def decode() -> Any:
        table = plan(message_class.DESCRIPTOR)
        for payload in payloads:
            walk(message_class.FromString(payload), table)
        out: list[Any] = []
        arrays(table, out)
        return out

    return decode


def ptars_batch(message_class: Any, payloads: list[bytes]) -> Callable[[], Any]:
    """Decode with ptars."""
    import ptars

    handler = ptars.HandlerPool([message_class.DESCRIPTOR.file]).get_for_message(message_class.DESCRIPTOR)
    return lambda: handler.list_to_record_batch(payloads)


def measure(decode: Callable[[], Any], least: float = 0.3) -> float:
    """Return the CPU seconds of one call; the calls take `least` seconds together."""
    calls, start = 0, time.process_time()
    while (seconds := time.process_time() - start) < least:
        decode()
        calls += 1
    return seconds / calls


def serve(name: str, descriptors: Path, records: dict[str, int]) -> None:
    """Measure ptars each time a line is read, and print the seconds."""
    decode = ptars_batch(*payloads_of(name, descriptors, records))
    decode()
    for _ in sys.stdin:
        print(json.dumps(measure(decode)), flush=True)


def run_task(task: str, descriptors: Path, shard: str, records: int) -> None:
    """Write a shard, or read all its columns; print the number of its records."""
    import dask

    import dask_tfrecord as dtf

    if task == "write":
        payloads = scenario_payloads(descriptors, min(records, 50))
        with dtf.RecordWriter(shard) as writer:
            for number in range(records):
                writer.write(payloads[number % len(payloads)])
        print(json.dumps(records))
        return
    ds = dtf.read_tfrecord(shard, message=f"{descriptors}:{SCENARIO}")
    with dask.config.set(num_workers=2):
        if task == "to_zarr":
            ds.to_zarr(str(Path(shard).with_suffix(".zarr")), mode="w")
        else:
            ds.map_blocks(rows_only, {"rows": dtf.FixedLenFeature((), "int64")}).compute()
    print(json.dumps(ds.nrows))


def rows_only(blocks: dict[str, Any]) -> dict[str, Any]:
    """Return one small column of a block of all columns."""
    import numpy as np

    return {"rows": np.arange(len(next(iter(blocks.values()))))}


def print_memory(descriptors: Path, scenarios: int) -> None:
    """Print the peak memory of processes that read shards of two sizes."""
    print("task        records      MB   peak RSS MB")
    with tempfile.TemporaryDirectory() as directory:
        for records in (scenarios, 8 * scenarios):
            shard = Path(directory) / f"{records}.tfrecord"
            for task in ("write", "to_zarr", "blocks"):
                command = [sys.executable, __file__, str(descriptors), "--task", task, "--shard", str(shard)]
                found, peak = run([*command, "--scenarios", str(records)])
                assert found == records
                if task == "write":
                    continue
                print(f"{task:8}{found:>11,}{shard.stat().st_size / 1e6:>8,.0f}{peak / 1e6:>14,.0f}", flush=True)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("descriptors", type=Path)
    parser.add_argument("--ptars", help="python of an environment with ptars and protobuf")
    parser.add_argument("--turns", type=int, default=5, help="times that all readers run")
    parser.add_argument("--flat", type=int, default=20_000, help="messages of 20 fields")
    parser.add_argument("--scenarios", type=int, help="scenarios of about 100 KB  [default: 50, of --memory 500]")
    parser.add_argument("--memory", action="store_true", help="measure memory instead")
    for hidden in ("--serve", "--task", "--shard"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.task:
        run_task(arguments.task, arguments.descriptors, arguments.shard, arguments.scenarios)
        return
    if arguments.memory:
        print_memory(arguments.descriptors, arguments.scenarios or 500)
        return
    arguments.scenarios = arguments.scenarios or 50
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:1])
    records = {"flat": arguments.flat, "scenario": arguments.scenarios}
    if arguments.serve:
        serve(arguments.serve, arguments.descriptors, records)
        return
    print("messages   reader             MB/s   records/s   dask_tfrecord is faster by")
    for name in records:
        message_class, payloads = payloads_of(name, arguments.descriptors, records)
        readers = {"dask_tfrecord": ours(message_class, payloads), "upb": upb(message_class, payloads)}
        seconds: dict[str, list[float]] = {reader: [] for reader in readers}
        process = None
        if arguments.ptars:
            command = [arguments.ptars, __file__, str(arguments.descriptors), "--serve", name]
            command += ["--flat", str(arguments.flat), "--scenarios", str(arguments.scenarios)]
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            seconds["ptars"] = []
        for _ in range(arguments.turns):
            for reader, decode in readers.items():
                seconds[reader].append(measure(decode))
            if process is not None:
                assert process.stdin is not None
                assert process.stdout is not None
                print(file=process.stdin, flush=True)
                seconds["ptars"].append(json.loads(process.stdout.readline()))
        if process is not None:
            process.communicate()
        for reader, taken in seconds.items():
            median = statistics.median(taken)
            ratio = statistics.median(one / own for one, own in zip(taken, seconds["dask_tfrecord"], strict=True))
            rates = f"{sum(map(len, payloads)) / median / 1e6:>9,.0f}{len(payloads) / median:>12,.0f}"
            print(f"{name:11}{reader:14}{rates}" + (f"{ratio:>12.1f}" if reader != "dask_tfrecord" else ""), flush=True)


if __name__ == "__main__":
    main()
