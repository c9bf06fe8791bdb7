"""Readers of other libraries for `compare.py --peers`: one function per library, run in the library's own environment.

A function takes the files and the name of a data set, and yields batches: mappings of features to NumPy arrays, Arrow
arrays or lists, in the form in which the library hands them to its user. Batch sizes and readers are the fastest of the
library on one machine that we found.

    PEER_PYTHON benchmarks/peers.py DATA NAME PEER [--passes 3] [--clock cpu]

An untimed first pass sums every feature. Prints one line of JSON: the records of a pass, the sums, and the seconds of
each timed pass, which drops the batches. Processor time includes the processes that a library starts.
"""

import argparse
import contextlib
import functools
import json
import logging
import os
import struct
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import numpy as np
from compare import files_of, label_of, processes_below

Batch = Mapping[str, Any]
# Features of each set, by type. The values of "raw" features are the bytes of float32 arrays.
KINDS: dict[str, dict[str, str]] = {
    "tabular": {
        **{f"int_{k}": "int" for k in range(8)},
        **{f"float_{k}": "float" for k in range(8)},
        **{f"str_{k}": "byte" for k in range(2)},
    },
    "vectors": {"embedding": "float", "label": "int", "id": "byte"},
    "images_raw": {"image": "raw", "label": "int"},
    "tokens": {"tokens": "int", "label": "int"},
}
KINDS["tabular_gz"] = KINDS["tabular"]
ROWS = {"tabular": 4096, "tabular_gz": 4096, "vectors": 1024, "images_raw": 64, "tokens": 1024}


def read_tensorflow(files: list[str], name: str, mode: str) -> Iterator[Batch]:
    """Yield the batches of a pipeline of `tensorflow_pipelines.py`."""
    from tensorflow_pipelines import pipeline

    for batch in pipeline(files, name, mode).as_numpy_iterator():
        batch.pop("tokens.row_splits", None)
        yield {feature.removesuffix(".values"): values for feature, values in batch.items()}


def read_tfrecord_package(files: list[str], name: str, mode: str) -> Iterator[Batch]:
    """Yield the records of the package tfrecord, in lists of records. It parses in Python and checks no CRC."""
    from tfrecord.reader import tfrecord_loader

    types = {feature: kind.replace("raw", "byte") for feature, kind in KINDS[name].items()}
    for path in files:
        columns: dict[str, list[Any]] = {feature: [] for feature in types}
        records = tfrecord_loader(path, None, types, compression_type="gzip" if path.endswith(".gz") else None)
        for row, record in enumerate(records, 1):
            for feature, values in record.items():
                raw = KINDS[name][feature] == "raw"
                columns[feature].append(np.frombuffer(values, np.float32) if raw else values)
            if row % ROWS[name] == 0:
                yield columns
                columns = {feature: [] for feature in types}
        yield columns


def read_tfx_bsl(files: list[str], name: str, mode: str) -> Iterator[Batch]:
    """Yield Arrow record batches, which tfx-bsl decodes from batches of records that TensorFlow reads."""
    import tensorflow as tf
    from tensorflow_metadata.proto.v0 import schema_pb2
    from tfx_bsl.coders.example_coder import ExamplesToRecordBatchDecoder

    types = {"int": schema_pb2.INT, "float": schema_pb2.FLOAT, "byte": schema_pb2.BYTES, "raw": schema_pb2.BYTES}
    schema = schema_pb2.Schema()
    for feature, kind in KINDS[name].items():
        schema.feature.add(name=feature, type=types[kind])
    decoder = ExamplesToRecordBatchDecoder(schema.SerializeToString())
    records = tf.data.TFRecordDataset(files, compression_type="GZIP" if name.endswith("_gz") else "")
    for batch in records.batch(ROWS[name]).prefetch(2).as_numpy_iterator():
        decoded = decoder.DecodeBatch(batch)
        columns = {feature: decoded.column(feature).flatten() for feature in KINDS[name]}
        if name == "images_raw":
            # The bytes of all images lie next to each other.
            offsets = np.frombuffer(columns["image"].buffers()[1], np.int64)
            columns["image"] = np.frombuffer(columns["image"].buffers()[2][: offsets[-1]], np.float32)
        yield columns


def read_dali(files: list[str], name: str, mode: str) -> Iterator[Batch]:
    """Yield batches of a DALI pipeline without a GPU. It checks no CRC."""
    running = dali_pipeline(tuple(files), name)
    remaining = running.epoch_size("reader")
    while remaining > 0:
        batch = dict(zip(KINDS[name], running.run(), strict=True))
        # The last batch is padded.
        rows = min(remaining, ROWS[name])
        yield {
            feature: [np.asarray(values[row]) for row in range(rows)]
            if feature == "tokens" or KINDS[name][feature] == "byte"
            else values.as_array()[:rows]
            for feature, values in batch.items()
        }
        remaining -= rows


@functools.cache
def dali_pipeline(files: tuple[str, ...], name: str) -> Any:
    """Write the index of the records, which DALI requires, and build the pipeline. Neither is timed."""
    import nvidia.dali.tfrecord as tfrec
    from nvidia.dali import fn, pipeline_def, types

    defaults = {"int": (tfrec.int64, 0), "float": (tfrec.float32, 0.0), "byte": (tfrec.string, "")}
    defaults["raw"] = defaults["byte"]
    features = {
        feature: tfrec.VarLenFeature(*defaults[kind])
        if feature == "tokens"
        else tfrec.FixedLenFeature([256] if feature == "embedding" else [], *defaults[kind])
        for feature, kind in KINDS[name].items()
    }

    @pipeline_def(  # type: ignore[untyped-decorator]
        batch_size=ROWS[name], num_threads=len(os.sched_getaffinity(0)), device_id=None
    )
    def pipeline(indexes: list[str]) -> tuple[Any, ...]:
        columns = fn.readers.tfrecord(
            path=list(files), index_path=indexes, features=features, name="reader", pad_last_batch=True
        )
        if name == "images_raw":
            columns["image"] = fn.reinterpret(columns["image"], shape=[64, 64, 3], dtype=types.FLOAT)
        return tuple(columns[feature] for feature in features)

    with tempfile.TemporaryDirectory() as folder:
        indexes = [str(Path(folder, f"{number}.idx")) for number in range(len(files))]
        for path, index in zip(files, indexes, strict=True):
            write_dali_index(path, index)
        running = pipeline(indexes)
        running.build()
    return running


def write_dali_index(path: str, index: str) -> None:
    """Write the offset and size of every record, as DALI's tool tfrecord2idx does."""
    offset = 0
    with Path(path).open("rb") as shard, Path(index).open("w") as lines:
        while header := shard.read(8):
            size = struct.unpack("<Q", header)[0] + 16
            lines.write(f"{offset} {size}\n")
            offset += size
            shard.seek(offset)


def read_ray(files: list[str], name: str, mode: str) -> Iterator[Batch]:
    """Yield the batches of Ray Data on two workers. It parses in Python and checks no CRC."""
    import ray

    if not ray.is_initialized():
        cores = len(os.sched_getaffinity(0))
        ray.init(num_cpus=cores, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
        context = ray.data.DataContext.get_current()
        context.enable_progress_bars = False
    options = {"compression": "gzip"} if name.endswith("_gz") else None
    records = ray.data.read_tfrecords(files, arrow_open_stream_args=options, file_extensions=None)
    for batch in records.iter_batches(batch_size=ROWS[name], batch_format="numpy"):
        if name == "images_raw":
            batch["image"] = [np.frombuffer(image, np.float32) for image in batch["image"]]
        yield batch


@dataclass(frozen=True, slots=True)
class Peer:
    """A library to compare with: its packages on PyPI and its reader."""

    packages: tuple[str, ...]
    read: Callable[[list[str], str, str], Iterator[Batch]]
    modes: tuple[str, ...] = ("",)
    names: tuple[str, ...] = tuple(KINDS)
    # Megabytes of a set, and of the tabular sets, that the library reads in seconds.
    megabytes: float = 1000
    tabular_megabytes: float = 1000


PLAIN = ("tabular", "vectors", "images_raw", "tokens")
PEERS = {
    "tensorflow": Peer(("tensorflow-cpu",), read_tensorflow, modes=("sequential", "interleave")),
    "tfx-bsl": Peer(("tfx-bsl",), read_tfx_bsl),
    "dali": Peer(
        ("nvidia-dali-cuda120",), read_dali, names=("tabular", "vectors", "images_raw", "tokens"), tabular_megabytes=48
    ),
    "tfrecord": Peer(("tfrecord",), read_tfrecord_package, tabular_megabytes=24),
    "ray": Peer(("ray[data]", "tensorflow-cpu"), read_ray, megabytes=16, tabular_megabytes=6),
}


def total(values: Any) -> int:
    """Sum the values of a feature, whatever their order and division: integers, or the bits of floats, or bytes."""
    if hasattr(values, "to_pylist"):
        values = values.to_numpy(zero_copy_only=False)
    if len(values) == 0:
        return 0
    first = values[0]
    if isinstance(first, bytes):
        # Every byte, and the lengths.
        joined = np.frombuffer(b"".join(values), np.uint8)
        return int(joined.sum(dtype=np.uint64)) + joined.size
    array = np.concatenate([np.ravel(value) for value in values]) if isinstance(first, np.ndarray) else values
    array = np.ascontiguousarray(array)
    if array.dtype == np.uint8:
        return int(array.sum(dtype=np.uint64)) + array.size
    return int(array.view({4: np.uint32, 8: np.uint64}[array.dtype.itemsize]).sum(dtype=np.uint64))


def totals(batches: Iterable[Batch]) -> dict[str, int]:
    """Sum every feature over all batches, modulo 2^64."""
    sums: dict[str, int] = {}
    for batch in batches:
        for feature, values in batch.items():
            sums[feature] = (sums.get(feature, 0) + total(values)) % 2**64
    return sums


def processor_seconds() -> float:
    """Return the processor time of this process and of all processes below it (Linux)."""
    seconds = time.process_time()
    usage = os.times()
    seconds += usage.children_user + usage.children_system
    for process in processes_below(os.getpid()):
        with contextlib.suppress(OSError):  # the process has ended
            ticks = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[11:15]
            seconds += sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")
    return seconds


def main() -> None:
    """Sum, then time the passes of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("name", choices=KINDS)
    parser.add_argument("peer", choices=PEERS)
    parser.add_argument("--mode", default="")
    parser.add_argument("--passes", type=int, default=3)
    parser.add_argument("--clock", choices=["wall", "cpu"], default="wall")
    arguments = parser.parse_args()
    files = [str(path) for path in files_of(arguments.data, arguments.name)]
    label = label_of(arguments.name)
    peer = PEERS[arguments.peer]
    clock = {"wall": time.perf_counter, "cpu": processor_seconds}[arguments.clock]
    sums = totals(peer.read(files, arguments.name, arguments.mode))
    seconds, records = [], 0
    for _ in range(arguments.passes):
        start = clock()
        records = sum(len(batch[label]) for batch in peer.read(files, arguments.name, arguments.mode))
        seconds.append(clock() - start)
    release = f"{arguments.peer} {version(peer.packages[0].partition('[')[0])}"
    print(json.dumps({"peer": release, "records": records, "seconds": seconds, "sums": sums}))


if __name__ == "__main__":
    main()
