"""Readers of other libraries, each run in the library's own environment, which has neither this library nor dask.

PEER_PYTHON benchmarks/peers.py {read,tensorflow,batches,rows,droid} --help
"""

import argparse
import contextlib
import functools
import io
import itertools
import json
import logging
import os
import struct
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from harness import LABELLED, dispatch, files_of, label_of, parser_of, processes_below

# One or two megabytes per batch: the sizes with which the pipelines were fastest.
BATCHES = {
    "tabular": 4096,
    "tabular_gz": 4096,
    "vectors": 1024,
    "images_raw": 64,
    "tokens": 1024,
    "sequences": 256,
    "mixed": 2048,
    "tensors": 64,
    "jpeg": 32,
    "jpeg.fast": 32,
    "jpeg.resized": 32,
    "png": 32,
}

# Keeps 1 % of the rows of `tabular`.
FILTER = [("int_2", "<", 10)]

BATCHES |= {f"{name}.label": BATCHES[name] for name in LABELLED}


def specification(name: str) -> dict[str, Any]:
    """Return the parsing spec of a data set for `tf.io.parse_example`."""
    import tensorflow as tf

    def scalar(dtype: Any) -> Any:
        return tf.io.FixedLenFeature([], dtype)

    if name.endswith(".label"):
        return {label_of(name): scalar(tf.int64)}
    if name == "vectors":
        return {
            "embedding": tf.io.FixedLenFeature([256], tf.float32),
            "label": scalar(tf.int64),
            "id": scalar(tf.string),
        }
    if name in ("images_raw", "png") or name.startswith("jpeg"):
        return {"image": scalar(tf.string), "label": scalar(tf.int64)}
    if name == "tensors":
        return {"tensor": scalar(tf.string), "label": scalar(tf.int64)}
    if name == "mixed":
        return {
            "label": scalar(tf.int64),
            "score": tf.io.FixedLenFeature([], tf.float32, -1.0),
            "boxes": tf.io.FixedLenSequenceFeature([4], tf.float32, allow_missing=True),
            "sparse": tf.io.SparseFeature("index", "value", tf.float32, 10_000),
        }
    if name == "tokens":
        # 64-bit splits, which the joined batches need.
        return {"tokens": tf.io.RaggedFeature(tf.int64, row_splits_dtype=tf.int64), "label": scalar(tf.int64)}
    columns = {f"int_{k}": scalar(tf.int64) for k in range(8)}
    columns |= {f"float_{k}": scalar(tf.float32) for k in range(8)}
    return columns | {f"str_{k}": scalar(tf.string) for k in range(2)}


def pipeline(files: list[str], name: str, mode: str, only: Container[str] | None = None) -> Any:
    """Return the data set of parsed batches: mappings of dense tensors, of some or all features."""
    import tensorflow as tf

    spec = {feature: how for feature, how in specification(name).items() if only is None or feature in only}

    def parse(records: Any) -> dict[str, Any]:
        if name == "sequences":
            return parse_sequences(records)
        if name == "sequences.label":
            return dict(tf.io.parse_sequence_example(records, specification(name))[0])
        columns = tf.io.parse_example(records, spec)
        if name == "images_raw":
            columns["image"] = tf.reshape(tf.io.decode_raw(columns["image"], tf.float32), [-1, 64, 64, 3])
        elif name == "tokens":
            ragged = columns.pop("tokens")
            columns["tokens.values"], columns["tokens.row_splits"] = ragged.flat_values, ragged.row_splits
        elif name == "mixed":
            sparse = columns.pop("sparse")
            columns["label"] = tf.cast(columns["label"], tf.uint8)
            columns["sparse.indices"], columns["sparse.values"] = sparse.indices, sparse.values
        elif name == "tensors":
            read = tf.map_fn(lambda one: tf.io.parse_tensor(one, tf.float32), columns["tensor"], tf.float32)
            columns["tensor"] = tf.reshape(read, [-1, 32, 32, 4])
        elif name == "png":
            columns["image"] = tf.map_fn(tf.io.decode_png, columns["image"], tf.uint8)
        elif name.startswith("jpeg"):
            columns["image"] = decode_jpeg(columns["image"], name)
        return dict(columns)

    def batches(paths: Any) -> Any:
        kind = "GZIP" if name.startswith("tabular_gz") else ""
        return tf.data.TFRecordDataset(paths, compression_type=kind).batch(BATCHES[name])

    if mode == "sequential":
        return batches(files).map(parse, num_parallel_calls=tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)
    shards = tf.data.Dataset.from_tensor_slices(files)
    return shards.interleave(lambda path: batches(path).map(parse), cycle_length=2, num_parallel_calls=2).prefetch(2)


def parse_sequences(records: Any) -> dict[str, Any]:
    """Parse a batch of SequenceExamples."""
    import tensorflow as tf

    context, steps, lengths = tf.io.parse_sequence_example(
        records,
        {"label": tf.io.FixedLenFeature([], tf.int64)},
        {
            "frames": tf.io.FixedLenSequenceFeature([16], tf.float32),
            "words": tf.io.RaggedFeature(tf.int64, row_splits_dtype=tf.int64),
        },
    )
    words = steps["words"]
    columns = {"label": context["label"], "frames": steps["frames"], "frames.lengths": lengths["frames"]}
    return columns | {"words.values": words.flat_values, "words.row_splits": words.row_splits}


def decode_jpeg(files: Any, name: str) -> Any:
    """Decode a batch with the accurate DCT, with the fast one (TensorFlow's default), or to floats of another size."""
    import tensorflow as tf

    if name == "jpeg.fast":
        return tf.map_fn(tf.io.decode_jpeg, files, tf.uint8)
    if name == "jpeg":
        return tf.map_fn(lambda file: tf.io.decode_jpeg(file, dct_method="INTEGER_ACCURATE"), files, tf.uint8)

    def resized(file: Any) -> Any:
        pixels = tf.io.decode_jpeg(file, dct_method="INTEGER_ACCURATE")
        return tf.image.resize(tf.image.convert_image_dtype(pixels, tf.float32), (224, 224))

    return tf.map_fn(resized, files, tf.float32)


def join(batches: Iterator[dict[str, Any]]) -> dict[str, Any]:
    """Join all batches into one array per feature."""
    parts: dict[str, list[Any]] = {}
    ends = 0
    for batch in batches:
        splits = batch.get("tokens.row_splits")
        if splits is not None:
            # The splits of a batch start at 0. In the joined array they continue from the previous batch.
            batch["tokens.row_splits"] = splits[1 if "tokens.row_splits" in parts else 0 :] + ends
            ends += int(splits[-1])
        for feature, values in batch.items():
            parts.setdefault(feature, []).append(values)
    return {feature: np.concatenate(values) for feature, values in parts.items()}


def run_tensorflow() -> None:
    """Pipelines of TensorFlow for `read.py`: read the files into NumPy arrays with the two fastest known pipelines.

    `sequential` reads one file after the other and parses batches on all cores. `interleave` reads and parses two
    files at once, a whole batch at a time. With `gather` the batches are joined into one array per feature; with
    `filter` only the rows of `FILTER`, which are taken from parsed batches: `Dataset.filter`, record by record, is
    slower. Otherwise each batch is made and dropped. The obvious `TFRecordDataset(files, num_parallel_reads=…)` is
    several times slower than both, because it passes single records from thread to thread. TensorFlow checks both CRCs
    of every record.

        TENSORFLOW_PYTHON benchmarks/peers.py tensorflow DATA NAME {sequential,interleave} [touch|gather|filter]
        [--passes 3]

    Prints one line of JSON: the records of a pass, and the seconds of each pass after an untimed first pass.
    """
    import tensorflow as tf

    parser = parser_of(run_tensorflow)
    parser.add_argument("data", type=Path)
    parser.add_argument("name", choices=BATCHES)
    parser.add_argument("mode", choices=["sequential", "interleave"])
    parser.add_argument("task", nargs="?", choices=["touch", "gather", "filter"], default="touch")
    parser.add_argument("--passes", type=int, default=3)
    parser.add_argument("--clock", choices=["wall", "cpu"], default="wall")
    arguments = parser.parse_args()
    files = [str(path) for path in files_of(arguments.data, arguments.name)]
    label = label_of(arguments.name)

    def kept(columns: dict[str, Any]) -> dict[str, Any]:
        ((name, _, most),) = FILTER
        return {each: tf.boolean_mask(values, columns[name] < most) for each, values in columns.items()}

    def records() -> int:
        parsed = pipeline(files, arguments.name, arguments.mode)
        if arguments.task == "filter":
            parsed = parsed.map(kept, num_parallel_calls=tf.data.AUTOTUNE)
        batches = parsed.as_numpy_iterator()
        if arguments.task != "touch":
            return len(join(batches)[label])
        return sum(len(batch[label]) for batch in batches)

    clock = {"wall": time.perf_counter, "cpu": time.process_time}[arguments.clock]
    count, seconds = records(), []
    for _ in range(arguments.passes):
        start = clock()
        records()
        seconds.append(clock() - start)
    print(json.dumps({"peer": f"tensorflow {tf.__version__}", "records": count, "seconds": seconds}))


MODES = ("parse-each", "parse-batch")


# Size that `batches.py` resizes images of 256 by 256 pixels to.
SMALL = (112, 112)


def shuffled_batches(files: list[str], name: str, mode: str, batch: int, buffer: int) -> Any:
    """Return the data set of batches."""
    import tensorflow as tf

    label = tf.io.FixedLenFeature([], tf.int64)
    vectors = {"embedding": tf.io.FixedLenFeature([256], tf.float32), "label": label}
    vectors["id"] = tf.io.FixedLenFeature([], tf.string)
    tokens = tf.io.RaggedFeature(tf.int64) if mode == "parse-batch" else tf.io.VarLenFeature(tf.int64)
    spec = {"vectors": vectors, "tokens": {"tokens": tokens, "label": label}}.get(name, {"label": label})
    if name == "jpeg":
        spec["image"] = tf.io.FixedLenFeature([], tf.string)

    def each(record: Any) -> Any:
        columns = tf.io.parse_single_example(record, spec)
        if name == "tokens":
            columns["tokens"] = tf.sparse.to_dense(columns["tokens"])
        if name == "jpeg":
            image = tf.image.resize(tf.io.decode_jpeg(columns["image"], ratio=1 if mode == "parse-each" else 2), SMALL)
            columns["image"] = tf.cast(tf.round(image), tf.uint8)
        return columns

    def several(records: Any) -> Any:
        columns = tf.io.parse_example(records, spec)
        if name == "tokens":
            columns["tokens"] = columns["tokens"].to_tensor()
        return columns

    shards = tf.data.Dataset.from_tensor_slices(files).shuffle(len(files))
    records = shards.interleave(tf.data.TFRecordDataset, cycle_length=2, num_parallel_calls=tf.data.AUTOTUNE)
    if name == "jpeg":
        made = records.shuffle(buffer).map(each, num_parallel_calls=tf.data.AUTOTUNE).batch(batch)
        return made.prefetch(tf.data.AUTOTUNE)
    if mode == "parse-each":
        parsed = records.map(each, num_parallel_calls=tf.data.AUTOTUNE)
        return parsed.shuffle(buffer).padded_batch(batch).prefetch(tf.data.AUTOTUNE)
    shuffled = records.shuffle(buffer).batch(batch)
    return shuffled.map(several, num_parallel_calls=tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)


def run_batches() -> None:
    """Pipelines of TensorFlow for `batches.py`: shuffled, padded batches as NumPy arrays.

    `parse-each` parses each record, shuffles, and calls `padded_batch`. `parse-batch` shuffles records and parses
    batches, which is faster; ragged rows are padded by `to_tensor`. Both read two files at a time and prefetch. Images
    are decoded after the shuffle, whole by `parse-each`, at half their size by `parse-batch`, and resized.
    """
    import tensorflow as tf

    parser = parser_of(run_batches)
    parser.add_argument("data", type=Path)
    parser.add_argument("name", choices=["vectors", "tokens", "jpeg"])
    parser.add_argument("mode", choices=MODES)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--buffer", type=int, default=16_384)
    parser.add_argument("--passes", type=int, default=3)
    arguments = parser.parse_args()
    files = sorted(map(str, arguments.data.glob(f"{arguments.name}-*.tfrecord")))
    batches = shuffled_batches(files, arguments.name, arguments.mode, arguments.batch, arguments.buffer)

    def records() -> int:
        return sum(len(batch["label"]) for batch in batches.as_numpy_iterator())

    count, seconds, used = records(), [], []
    for _ in range(arguments.passes):
        start, before = time.perf_counter(), time.process_time()
        records()
        seconds.append(time.perf_counter() - start)
        used.append(time.process_time() - before)
    report = {"records": count, "seconds": seconds, "processor": used}
    print(json.dumps({"peer": f"tensorflow {tf.__version__}", **report}))


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
    """Yield the batches of a pipeline of TensorFlow."""
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


def read_rustfrecord(files: list[str], name: str, mode: str) -> Iterator[Batch]:
    """Yield the records of rustfrecord, in lists of NumPy arrays. It checks no CRC."""
    from rustfrecord import Reader

    for path in files:
        columns: dict[str, list[Any]] = {feature: [] for feature in KINDS[name]}
        for row, record in enumerate(Reader(path, compressed=path.endswith(".gz")), 1):
            for feature, values in record.items():
                columns[feature].append(values.view(np.float32) if KINDS[name][feature] == "raw" else values)
            if row % ROWS[name] == 0:
                yield columns
                columns = {feature: [] for feature in KINDS[name]}
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
    "rustfrecord": Peer(("rustfrecord",), read_rustfrecord, tabular_megabytes=100),
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


def run_read() -> None:
    """Read the files with another library, for `read.py --peers`, in the library's own environment.

    A function takes the files and the name of a data set, and yields batches: mappings of features to NumPy arrays,
    Arrow arrays or lists, in the form in which the library hands them to its user. Batch sizes and readers are the
    fastest of the library on one machine that we found.

        PEER_PYTHON benchmarks/peers.py read DATA NAME PEER [--passes 3] [--clock cpu]

    An untimed first pass sums every feature. Prints one line of JSON: the records of a pass, the sums, and the
    seconds of each timed pass, which drops the batches. Processor time includes the processes that a library
    starts.
    """
    parser = parser_of(run_read)
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


def records_of(path: Path) -> Iterator[bytes]:
    """Yield the payloads of a TFRecord file, unchecked."""
    with path.open("rb") as shard:
        while header := shard.read(12):
            yield shard.read(struct.unpack("<Q", header[:8])[0])
            shard.seek(4, 1)


def example_class() -> Any:
    """Return the class of Example, with fields as far as the sets of `rows.py` use them."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    file = descriptor_pb2.FileDescriptorProto(name="example.proto", package="peer", syntax="proto3")
    for name, value in {"BytesList": 12, "FloatList": 2, "Int64List": 3}.items():
        file.message_type.add(name=name).field.add(name="value", number=1, label=3, type=value)
    feature = file.message_type.add(name="Feature")
    feature.oneof_decl.add(name="kind")
    for number, name in enumerate(("bytes_list", "float_list", "int64_list"), 1):
        kind = f".peer.{name.title().replace('_', '')}"
        feature.field.add(name=name, number=number, label=1, type=11, type_name=kind, oneof_index=0)
    features = file.message_type.add(name="Features")
    entry = features.nested_type.add(name="FeatureEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, label=1, type=9)
    entry.field.add(name="value", number=2, label=1, type=11, type_name=".peer.Feature")
    features.field.add(name="feature", number=1, label=3, type=11, type_name=".peer.Features.FeatureEntry")
    example = file.message_type.add(name="Example")
    example.field.add(name="features", number=1, label=1, type=11, type_name=".peer.Features")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("peer.Example"))


def open_array_record(path: Path) -> Callable[[list[int]], list[bytes]]:
    """Copy the records of a set to ArrayRecord files, once; return a reader of records by number."""
    from array_record.python import array_record_data_source, array_record_module

    target = path / "array_record"
    if not (target / "done").exists():
        target.mkdir(exist_ok=True)
        for shard in sorted(path.glob("*.tfrecord")):
            name = str(target / shard.name)
            writer = array_record_module.ArrayRecordWriter(name, "group_size:1,uncompressed")
            for record in records_of(shard):
                writer.write(record)
            writer.close()
        (target / "done").touch()
    source = array_record_data_source.ArrayRecordDataSource([str(file) for file in sorted(target.glob("*.tfrecord"))])
    return lambda rows: list(source.__getitems__(rows))


def open_lance(path: Path) -> Callable[[list[int]], list[bytes]]:
    """Copy the records of a set to a column of a Lance data set, once; return a reader of records by number."""
    import lance
    import pyarrow as pa

    target = str(path / "records.lance")
    if not Path(target).exists():
        schema = pa.schema([("record", pa.large_binary())])
        records = (record for shard in sorted(path.glob("*.tfrecord")) for record in records_of(shard))

        def batches() -> Iterator[Any]:
            while some := list(itertools.islice(records, 1000)):
                yield pa.record_batch([pa.array(some, pa.large_binary())], schema=schema)

        lance.write_dataset(batches(), target, schema=schema)
    dataset = lance.dataset(target)
    return lambda rows: [record.as_buffer().to_pybytes() for record in dataset.take(rows)["record"]]


def run_rows() -> None:
    """Read random rows of a set of `rows.py` each time that a line of the input lists their numbers.

    Prints a line with the version of the library, then for each request the seconds and the sum of the labels.
    """
    parser = parser_of(run_rows)
    parser.add_argument("library", choices=["array_record", "lance"])
    parser.add_argument("path", type=Path)
    parser.add_argument("--clock", choices=["wall", "cpu"], default="wall")
    given = parser.parse_args()
    clock = {"wall": time.perf_counter, "cpu": time.process_time}[given.clock]
    read = {"array_record": open_array_record, "lance": open_lance}[given.library](given.path)
    example = example_class()
    print(json.dumps(version({"array_record": "array_record", "lance": "pylance"}[given.library])), flush=True)
    for line in sys.stdin:
        rows = json.loads(line)
        start = clock()
        parsed = [columns_of(example.FromString(record)) for record in read(rows)]
        print(json.dumps([clock() - start, sum(int(row["label"]) for row in parsed)]), flush=True)


def columns_of(message: Any) -> dict[str, Any]:
    """Return the values of an Example as NumPy arrays, scalars and bytes."""
    columns: dict[str, Any] = {}
    for name, feature in message.features.feature.items():
        if feature.WhichOneof("kind") == "int64_list":
            columns[name] = np.int64(feature.int64_list.value[0])
        elif feature.WhichOneof("kind") == "float_list":
            columns[name] = np.array(feature.float_list.value, np.float32)
        else:
            value = feature.bytes_list.value[0]
            columns[name] = np.frombuffer(value, np.uint8).copy() if name == "image" else value
    return columns


def extracted(repository: Path, folder: str, target: Path) -> None:
    """Put a folder of the newest commit of a repository on the path of imports."""
    archive = subprocess.run(["git", "-C", repository, "archive", "HEAD", folder], check=True, capture_output=True)
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
        files.extractall(target, filter="data")
    sys.path.insert(0, str((target / folder).parent))


# Ways of resizing to 224 by 224 pixels: TensorFlow's default, and the function of dlimp.
RESIZED = ("bilinear", "lanczos")


def run_droid() -> None:
    """Loader of openpi, on the data sets of `robot.py`.

    `frames` writes each distinct frame of the first batches, read in order: actions, state, instruction, key, and the
    images, stored and resized in both ways. Other modes time batches: `stored` is the loader without a change, whose
    images have 180 by 320 pixels; `bilinear` and `lanczos` resize them in parallel to 224 by 224 pixels, the latter by
    the function of dlimp. The shuffle buffer is full before the clock starts.
    """
    parser = parser_of(run_droid)
    parser.add_argument("data", type=Path)
    parser.add_argument("mode", choices=["frames", "stored", *RESIZED])
    parser.add_argument("--openpi", type=Path, required=True)
    parser.add_argument("--dlimp", type=Path, required=True)
    parser.add_argument("--weights", type=json.loads, required=True)
    parser.add_argument("--version", required=True)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--buffer", type=int, default=1024)
    parser.add_argument("--batches", type=int, default=100)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        extracted(arguments.dlimp, "dlimp", Path(folder))
        extracted(arguments.openpi, "src/openpi", Path(folder))
        batches = iter(droid_batches(arguments))
        if arguments.mode == "frames":
            print(json.dumps({"frames": write_frames(batches, arguments.batches, arguments.out)}))
            return
        for _ in range(5):
            next(batches)
        start, used = time.perf_counter(), time.process_time()
        for _ in range(arguments.batches):
            next(batches)
        print(json.dumps({"seconds": time.perf_counter() - start, "processor": time.process_time() - used}))


def droid_batches(arguments: argparse.Namespace) -> Any:
    """Return openpi's data set of batches with the images of a mode."""
    import dlimp
    import tensorflow as tf
    from openpi.training.droid_rlds_dataset import DroidRldsDataset, RLDSDataset

    parts = [
        RLDSDataset(name, arguments.version, weight, str(arguments.data / f"{name}.json"))
        for name, weight in arguments.weights.items()
    ]
    in_order = arguments.mode == "frames"
    loader = DroidRldsDataset(
        str(arguments.data), arguments.batch, parts, shuffle=not in_order, shuffle_buffer_size=arguments.buffer
    )

    def bilinear(images: Any) -> Any:
        return tf.cast(tf.round(tf.image.resize(images, (224, 224))), tf.uint8)

    def lanczos(images: Any) -> Any:
        return dlimp.transforms.resize_image(images, (224, 224))

    functions: dict[str, Callable[[Any], Any]] = {"bilinear": bilinear, "lanczos": lanczos}

    def resized(batch: dict[str, Any]) -> dict[str, Any]:
        images = {name: batch["observation"].pop(name) for name in ("image", "wrist_image")}
        if in_order:
            for way, function in functions.items():
                batch["observation"] |= {f"{name}.{way}": function(images[name]) for name in images}
            batch["observation"] |= images
        else:
            batch["observation"] |= {name: functions[arguments.mode](images[name]) for name in images}
        return batch

    if arguments.mode != "stored":
        loader.dataset = loader.dataset.map(resized, num_parallel_calls=tf.data.AUTOTUNE)
    return loader


def write_frames(batches: Iterator[Any], number: int, out: Path) -> int:
    """Write a file for each column of the distinct frames of some batches; return their number."""
    rows: dict[bytes, dict[str, Any]] = {}
    for _ in range(number):
        batch = next(batches)
        columns = {**batch, **batch.pop("observation")}
        columns.pop("observation", None)
        for row, key in enumerate(columns["step_id"]):
            rows.setdefault(key, {name: column[row] for name, column in columns.items()})
    for name in next(iter(rows.values())):
        values = np.array([row[name] for row in rows.values()])
        np.save(out / f"{name}.npy", values.astype(bytes) if values.dtype == object else values)
    return len(rows)


if __name__ == "__main__":
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    commands = {"read": run_read, "tensorflow": run_tensorflow, "batches": run_batches}
    dispatch({**commands, "rows": run_rows, "droid": run_droid}, __doc__)
