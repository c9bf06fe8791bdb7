"""`to_lerobot`: frames of episodes as a LeRobot data set of format 3.0.

A write unit is a number of whole episodes. Its task reads the frames once and publishes several files of one number:

- ``data/chunk-000/file-000.parquet``: a row per frame, and a row group per episode;
- ``videos/KEY/chunk-000/file-000.mp4``: the frames of a camera, one episode after the other;
- ``meta/episodes/chunk-000/file-000.parquet``: a row per episode, with its statistics.

The client writes ``meta/stats.json`` from the statistics of the episodes, ``meta/tasks.parquet`` and, last,
``meta/info.json``. Files depend on the rows and the options alone: a resumed conversion has the bytes of another one.
"""

from __future__ import annotations

import json
import os
import re
import uuid
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import islice, pairwise
from typing import Any, BinaryIO, Unpack

import dask
import numpy as np
from numpy.typing import NDArray

from dask_tfrecord.arrays.collection import joined_parts
from dask_tfrecord.arrays.rows import Chunk, Rows
from dask_tfrecord.arrays.sources import CountedRows
from dask_tfrecord.blocks import block_nbytes, splits_of, texts, to_array
from dask_tfrecord.columns.items import RECORD
from dask_tfrecord.errors import (
    IncompleteStoreError,
    Location,
    SchemaError,
    UnknownFeatureError,
    explain_missing,
    near_misses,
    plural,
)
from dask_tfrecord.features import Feature
from dask_tfrecord.images.pixels import ImageEncoding, encode_image
from dask_tfrecord.inputs.inputs import Inputs
from dask_tfrecord.options import LeRobotOptions, complete, with_options
from dask_tfrecord.runtime.progress import ProgressBar, follow_tasks, report_progress
from dask_tfrecord.schema import Schema
from dask_tfrecord.settings import limits
from dask_tfrecord.storage.remote import join, url_to_fs
from dask_tfrecord.stores.files.publish import FileWrite, UnitFiles, UnitNames, UnitReport
from dask_tfrecord.stores.output import check_mode
from dask_tfrecord.stores.units import RowTasks
from dask_tfrecord.stores.zarr.fingerprint import Fingerprint

_VERSION = "v3.0"
# Files of a directory.
_CHUNK_FILES = 1000
_NUMBERED = "chunk-{chunk_index:03d}/file-{file_index:03d}"
_DATA = f"data/{_NUMBERED}.parquet"
_VIDEO = f"videos/{{video_key}}/{_NUMBERED}.mp4"
_EPISODES = f"meta/episodes/{_NUMBERED}.parquet"
_INFO, _STATISTICS, _TASKS = "meta/info.json", "meta/stats.json", "meta/tasks.parquet"
_FILE = re.compile(r"(data|videos/[^/]+|meta/episodes)/chunk-\d+/file-\d+\.(parquet|mp4)|meta/[a-z]+\.(json|parquet)")
# Key in the metadata of the tasks: the conversion that wrote them.
_CONVERSION = b"dask_tfrecord.conversion"
# Decoded bytes of a unit: a video of some ten MB per camera.
_UNIT_NBYTES = 1 << 30
_COPIED_NBYTES = 1 << 20
# Columns of LeRobot that this module computes.
_COUNTERS = ("timestamp", "frame_index", "episode_index", "index", "task_index")
_INSTRUCTION = "language_instruction"
_QUANTILES = {"q01": 0.01, "q10": 0.1, "q50": 0.5, "q90": 0.9, "q99": 0.99}
# A key frame every other frame, which readers seek.
_ENCODING = {"codec": "libx264", "pix_fmt": "yuv420p", "g": "2", "crf": "23", "preset": "veryfast"}
# Images that LeRobot makes statistics of: at least 100 of an episode, then the power 0.75 of its length, every nth
# pixel of large ones.
_LEAST_IMAGES, _MOST_IMAGES, _LARGE_IMAGE, _IMAGE_SIZE = 100, 10_000, 300, 150

Statistic = dict[str, NDArray[Any]]


@with_options(LeRobotOptions)
def to_lerobot(arrays: Mapping[str, Any], path: str | os.PathLike[str], **options: Unpack[LeRobotOptions]) -> None:
    """Write frames of episodes as a LeRobot data set of format 3.0. The extra ``lerobot`` is needed.

    Parameters
    ----------
    arrays : Dataset or mapping of str to array-like
        A row per frame, as ``episodes.explode("steps")`` returns them, in columns of fixed shapes and text.
    path : str or os.PathLike
        Directory or URL of the data set.

    Raises
    ------
    FileExistsError
        If files of another conversion exist under ``mode="w-"``.
    IncompleteStoreError
        If the size or checksum of a written file is wrong, or a video lacks frames.
    ImportError
        If pyarrow or av is not installed.
    SchemaError
        If a column is ragged, bytes or complex, or images differ in size. Also if a video cannot store the images:
        those of one channel, or of an odd size under ``yuv420p``.
    UnknownFeatureError
        If `names`, `task` or `episode` names no column.
    ValueError
        If rows are not counted, there is no row, or an argument has an invalid value.

    Notes
    -----
    Episodes without frames have no rows and are left out. ``timestamp`` is the number of the frame in its episode
    divided by `fps`. Statistics are those of LeRobot, of the images of as many frames as LeRobot takes; quantiles of
    episodes are exact, and those of the data set are means weighted by frames. Tasks are numbered in the order in
    which they appear, after one pass over their column. Videos are encoded in one thread per task, so that they are
    equal in each run; they are lossy unless `video` selects a lossless encoder.

    Examples
    --------
    >>> episodes = dtf.Dataset.from_arrays({"steps/action": [[[0.5, 1.0], [0.0, 2.0]], [[1.5, 0.5]]]})
    >>> episodes.explode("steps").to_lerobot("robot", fps=15, robot_type="arm")
    >>> import json, pathlib
    >>> json.loads(pathlib.Path("robot/meta/info.json").read_text())["total_frames"]
    3
    """
    options = complete(LeRobotOptions, options, "to_lerobot")
    fps, episodes_per_file, mode = options["fps"], options["episodes_per_file"], options["mode"]
    for package in ("pyarrow", "av"):
        with explain_missing("LeRobot data sets need", package, "lerobot"):
            __import__(package)
    check_mode(mode, "a data set", resume=options["resume"])
    rows = Inputs.from_arrays(arrays, exact=True).rows
    for name, number in (("fps", fps), ("episodes_per_file", episodes_per_file)):
        if number is not None and (isinstance(number, bool) or not isinstance(number, int) or number < 1):
            raise ValueError(f"{name} is a whole number, 1 or more; got {number!r}")
    if not rows.nrows:
        raise ValueError("there are no frames, or they are not counted: open with counts='auto'")
    columns = _Columns.from_schema(rows.schema, options)
    lengths = _episode_lengths(rows.array(options["episode"]).compute())
    described = {name: options[name] for name in ("fps", "robot_type", "episodes_per_file")}
    described["columns"] = repr(columns)
    conversion = Fingerprint.from_rows(rows, rows.schema, described).token
    place = _Names.from_root(path, _INFO, options["storage_options"], columns.videos)
    resumable = conversion if options["resume"] else None
    if UnitFiles(uuid.uuid4().hex, place, 1, mode, compute=True, resumable=resumable).is_complete():
        return
    tasks = _all_tasks(rows, columns.task)
    ends = np.cumsum(lengths)
    units = joined_parts(([0, *ends.tolist()], max(1, _UNIT_NBYTES // columns.row_nbytes(rows.schema))))
    if episodes_per_file is not None:
        units = [*range(0, len(lengths), episodes_per_file), len(lengths)]
    info = columns.info(rows.schema, fps, options["robot_type"], lengths, tasks)
    plan = _Plan(place, columns, fps, {text: number for number, text in enumerate(tasks)}, info, conversion)
    row_tasks = RowTasks(rows, uuid.uuid4().hex)
    count = len(units) - 1
    files = _LeRobotFiles(row_tasks.token, place, count, mode, compute=True, resumable=resumable, plan=plan)
    files.check_free()
    starts = [0, *ends.tolist()]
    spans = [(starts[first], starts[past]) for first, past in pairwise(units)]
    read = columns.read
    arguments = [
        (span, read, (unit, span[0], first, lengths[first:past]))
        for unit, (span, (first, past)) in enumerate(zip(spans, pairwise(units), strict=True))
    ]
    FileWrite.of_rows(files, row_tasks, write_lerobot_unit, (), arguments, place.root).run()


def _episode_lengths(numbers: NDArray[Any]) -> NDArray[np.int64]:
    """Return the frames of each episode: of each run of equal numbers."""
    borders = np.flatnonzero(np.diff(numbers)) + 1
    return np.diff(np.concatenate([[0], borders, [len(numbers)]]))


def _all_tasks(rows: Rows, task: str | None) -> list[str]:
    """Read the tasks of all frames; return each once, in the order of its first frame."""
    if task is None:
        return [""]
    chunks = rows.chunks((task,)).to_delayed(optimize_graph=False).ravel()
    name = f"tfrecord-tasks-{uuid.uuid4().hex}"
    step = dask.delayed(_chunk_tasks, pure=False)
    parts = [step(chunk, task, dask_key_name=(name, number)) for number, chunk in enumerate(chunks)]
    with ProgressBar("Reading tasks", len(parts)) as bar, follow_tasks(name, lambda *_: bar.advance()):
        found = dask.compute(*parts)
    return list(dict.fromkeys(text for part in found for text in part))


def _chunk_tasks(chunk: Chunk, task: str) -> list[str]:
    found = list(dict.fromkeys(texts(chunk.blocks[task])))
    report_progress()
    return found


@dataclass(frozen=True, slots=True)
class _Columns:
    """Columns of a conversion, and how they are stored."""

    # Column of each name in LeRobot.
    values: Mapping[str, str]
    images: Mapping[str, str]
    task: str | None
    # Encoding of videos; None for images in Parquet.
    encoding: Mapping[str, str] | None

    @classmethod
    def from_schema(cls, schema: Schema, options: LeRobotOptions) -> _Columns:
        """Name the columns, and check that LeRobot can store them."""
        names, task = options["names"] or {}, options["task"]
        episode, video = options["episode"], options["video"]
        if task is None:
            task = next((name for name in schema if name.rpartition("/")[2] == _INSTRUCTION), None)
        for name in (*names, *([] if task is None else [task]), episode):
            if name not in schema:
                hint = "; explode the steps of episodes first" if name == RECORD else ""
                raise UnknownFeatureError(f"to_lerobot: no column {name!r}{near_misses(name, schema)}{hint}")
        given = None if task is None else schema[task]
        if given is not None and (given.item_dtype.kind not in "OT" or given.item_shape or given.ragged_rank):
            raise SchemaError(f"to_lerobot: the task {task!r} is {given}; expected one text per frame")
        encoding = None if video is None else _checked_encoding(video)
        found: dict[bool, dict[str, str]] = {False: {}, True: {}}
        for name, feature in schema.items():
            is_image = _is_image(feature)
            key = names.get(name, _default_name(name, is_image))
            if key is None or name in (task, episode):
                continue
            if not key or "/" in key or key in (*_COUNTERS, "task") or key in {**found[False], **found[True]}:
                raise ValueError(
                    f"to_lerobot: column {name!r} would be named {key!r}, which is empty, reserved, has a '/' or is "
                    f"the name of another column: give another one by names={{{name!r}: …}}"
                )
            _check_feature(name, feature, encoding if is_image else None)
            found[is_image][key] = name
        return cls(found[False], found[True], task, encoding)

    @property
    def videos(self) -> tuple[str, ...]:
        """Names of the cameras that have videos."""
        return () if self.encoding is None else tuple(self.images)

    @property
    def read(self) -> list[str]:
        """Columns to read."""
        return [*self.values.values(), *self.images.values(), *([] if self.task is None else [self.task])]

    def row_nbytes(self, schema: Schema) -> int:
        """Return the decoded bytes of a frame, without text."""
        sizes = (int(np.prod(schema[name].item_shape)) * schema[name].item_dtype.itemsize for name in self.read)
        return max(1, sum(sizes))

    def info(
        self, schema: Schema, fps: int, robot_type: str | None, lengths: NDArray[np.int64], tasks: Sequence[str]
    ) -> dict[str, Any]:
        """Return the content of ``meta/info.json``."""
        features: dict[str, Any] = {}
        for key, name in self.values.items():
            dtype = schema[name].item_dtype
            shape = list(schema[name].item_shape) or [1]
            features[key] = {"dtype": "string" if dtype.kind == "T" else dtype.name, "shape": shape, "names": None}
        for key, name in self.images.items():
            height, width, channels = schema[name].item_shape
            features[key] = {
                "dtype": "image" if self.encoding is None else "video",
                "shape": [height, width, channels],
                "names": ["height", "width", "channels"],
            }
            if self.encoding is not None:
                features[key]["info"] = {
                    "video.height": height,
                    "video.width": width,
                    "video.codec": _codec_name(self.encoding),
                    "video.pix_fmt": self.encoding["pix_fmt"],
                    "video.is_depth_map": False,
                    "video.fps": fps,
                    "video.channels": channels,
                    "has_audio": False,
                }
        for key in _COUNTERS:
            features[key] = {"dtype": "float32" if key == "timestamp" else "int64", "shape": [1], "names": None}
        return {
            "codebase_version": _VERSION,
            "robot_type": robot_type,
            "total_episodes": len(lengths),
            "total_frames": int(lengths.sum()),
            "total_tasks": len(tasks),
            "chunks_size": _CHUNK_FILES,
            "data_files_size_in_mb": 100,
            "video_files_size_in_mb": 200,
            "fps": fps,
            "splits": {"train": f"0:{len(lengths)}"},
            "data_path": _DATA,
            "video_path": _VIDEO if self.videos else None,
            "features": features,
        }


def _default_name(name: str, is_image: bool) -> str:
    parts = name.removeprefix("steps/").split("/")
    return f"observation.images.{parts[-1]}" if is_image else ".".join(parts)


def _is_image(feature: Feature) -> bool:
    """Return whether a column has images, of one size or of several ones."""
    return feature.item_dtype == np.uint8 and (
        feature.own_shapes == 3 or (len(feature.item_shape) == 3 and feature.item_shape[-1] in (1, 3))
    )


def _check_feature(name: str, feature: Feature, encoding: Mapping[str, str] | None) -> None:
    """Refuse columns that LeRobot cannot store."""
    if feature.own_shapes or feature.ragged_rank:
        raise SchemaError(
            f"to_lerobot: column {name!r} is {feature}, of rows that differ in size: resize images by "
            f"ImageFeature(size=…), or leave it out by names={{{name!r}: None}}"
        )
    several_texts = feature.item_dtype.kind == "T" and feature.item_shape not in ((), (1,))
    if feature.item_dtype.kind in "OcV" or 0 in feature.item_shape or several_texts:
        raise SchemaError(
            f"to_lerobot: column {name!r} is {feature}, which LeRobot cannot store: convert it by map_blocks, or leave "
            f"it out by names={{{name!r}: None}}"
        )
    if encoding is None:
        return
    height, width, channels = feature.item_shape
    if channels != 3 or ("420" in encoding["pix_fmt"] and (height % 2 or width % 2)):
        raise SchemaError(
            f"to_lerobot: images {name!r} have shape {feature.item_shape}; a video of {encoding['pix_fmt']} has three "
            f"channels and an even height and width: give video=None to store images, or another pix_fmt"
        )


def _checked_encoding(video: str | Mapping[str, Any]) -> dict[str, str]:
    import av

    given = {"codec": video} if isinstance(video, str) else {str(name): value for name, value in video.items()}
    codec = given.get("codec", _ENCODING["codec"])
    if codec not in av.codecs_available:
        raise ValueError(f"video: the encoder {codec!r} is missing from FFmpeg in this installation of av")
    # Other encoders have other options.
    defaults = _ENCODING if codec == _ENCODING["codec"] else {"pix_fmt": "yuv420p", "g": "2"}
    return {**defaults, **{name: str(value) for name, value in given.items()}, "codec": codec}


def _codec_name(encoding: Mapping[str, str]) -> str:
    import av

    return str(av.Codec(encoding["codec"], "w").canonical_name)


@dataclass(frozen=True, repr=False)
class _Names(UnitNames):
    """Files of a LeRobot data set. Their claim and their run folder are next to ``meta/info.json``."""

    cameras: tuple[str, ...] = ()

    def of_unit(self, unit: int) -> list[str]:
        """Return the paths of the files of a unit: the data, the episodes, and the video of each camera."""
        chunk, file = divmod(unit, _CHUNK_FILES)
        templates = [_DATA, _EPISODES, *(_VIDEO for _ in self.cameras)]
        keys = ["", "", *self.cameras]
        return [
            join(self.root, template.format(chunk_index=chunk, file_index=file, video_key=key))
            for template, key in zip(templates, keys, strict=True)
        ]

    def is_own(self, name: str) -> bool:
        """Return whether a LeRobot data set has files of this name below its directory."""
        return _FILE.fullmatch(name) is not None

    def conversion(self) -> str | None:
        """Return the conversion that wrote a complete data set; None if there is none, or other software wrote it."""
        from pyarrow import parquet

        fs, inside = url_to_fs(self.root, **self.storage_options)
        if not (fs.exists(f"{inside}/{_INFO}") and fs.exists(f"{inside}/{_TASKS}")):
            return None
        with fs.open(f"{inside}/{_TASKS}", "rb") as file:
            return ((parquet.read_metadata(file).metadata or {}).get(_CONVERSION) or b"").decode()


@dataclass(frozen=True, slots=True)
class _Plan:
    """Description of a conversion, for its tasks and its client."""

    names: _Names
    columns: _Columns
    fps: int
    tasks: Mapping[str, int]
    info: Mapping[str, Any]
    conversion: str


@dataclass(frozen=True, slots=True)
class _LeRobotFiles(UnitFiles):
    """Files of a LeRobot data set, which is complete when it has its metadata."""

    plan: _Plan = field(kw_only=True)

    def descriptions(self) -> dict[str, bytes]:
        """Return the statistics, the tasks and, last, the description of the data set."""
        import pyarrow as pa
        from pyarrow import parquet

        place, options, plan = self.plan.names, self.names.storage_options, self.plan
        statistics = _merged([_read_statistics(place.of_unit(unit)[1], options) for unit in range(self.count)])
        tasks = {"task_index": pa.array(plan.tasks.values(), pa.int64()), "task": pa.array(plan.tasks, pa.string())}
        # pandas takes the text as the index of the table.
        described = {
            "index_columns": ["task"],
            "column_indexes": [],
            "columns": [
                {"name": name, "field_name": name, "pandas_type": kind, "numpy_type": dtype, "metadata": None}
                for name, kind, dtype in (("task_index", "int64", "int64"), ("task", "unicode", "object"))
            ],
        }
        metadata = {b"pandas": json.dumps(described).encode(), _CONVERSION: plan.conversion.encode()}
        sink = pa.BufferOutputStream()
        parquet.write_table(pa.table(tasks).replace_schema_metadata(metadata), sink)
        listed = {key: {name: value.tolist() for name, value in each.items()} for key, each in statistics.items()}
        return {
            _STATISTICS: json.dumps(listed, indent=4).encode(),
            _TASKS: sink.getvalue().to_pybytes(),
            _INFO: json.dumps(plan.info, indent=4, ensure_ascii=False).encode(),
        }


def write_lerobot_unit(
    files: _LeRobotFiles, unit: int, start: int, first: int, lengths: NDArray[np.int64], source: CountedRows
) -> UnitReport:
    """Write the files of episodes `first` and following, whose first frame is row `start`."""
    writer = _UnitWriter(files.plan, unit, start, first, lengths)
    return files.publish_unit(unit, lambda contents: (int(lengths.sum()), writer.write(source, contents)))


class _UnitWriter:
    """Writer of the files of a unit to local files: of the episodes from `first`, whose first frame is row `start`."""

    def __init__(self, plan: _Plan, unit: int, start: int, first: int, lengths: NDArray[np.int64]) -> None:
        self.plan, self.unit, self.start, self.first = plan, unit, start, first
        self.splits = splits_of(lengths)

    def write(self, source: CountedRows, contents: Sequence[BinaryIO]) -> int:
        """Read the frames once, write the contents of all files, and return the decoded bytes."""
        import pyarrow as pa
        from pyarrow import parquet

        plan, columns = self.plan, self.plan.columns
        data, episodes, *videos = contents
        spans = [self._spans(*borders, columns.row_nbytes(source.schema)) for borders in pairwise(self.splits.tolist())]
        blocks = source.read_spans(columns.read, [span for each in spans for span in each])
        rows: list[dict[str, Any]] = []
        nbytes, writer = 0, None
        with ExitStack() as stack:
            cameras = {}
            for key, content in zip(columns.videos, videos, strict=True):
                encoding, shape = columns.encoding or {}, source.schema[columns.images[key]].item_shape
                cameras[key] = stack.enter_context(_VideoWriter(content, encoding, shape, plan.fps))
            for number, each in enumerate(spans):
                length = int(self.splits[number + 1] - self.splits[number])
                images = {key: _ImageStatistics(length) for key in columns.images}
                read: list[dict[str, Any]] = []
                for part in islice(blocks, len(each)):
                    nbytes += sum(map(block_nbytes, part.values()))
                    kept: dict[str, Any] = {**part}
                    for key, name in columns.images.items():
                        frames = kept.pop(name)
                        images[key].add(frames)
                        if key in cameras:
                            cameras[key].add(frames)
                        else:
                            kept[name] = [encode_image(ImageEncoding(), frame) for frame in frames]
                    read.append(kept)
                table, row, statistics = self._episode(number, length, read)
                if writer is None:
                    writer = stack.enter_context(parquet.ParquetWriter(data, table.schema))
                writer.write_table(table, row_group_size=length)
                statistics |= {key: image.result() for key, image in images.items()}
                for key, statistic in statistics.items():
                    row |= {f"stats/{key}/{name}": value.tolist() for name, value in statistic.items()}
                rows.append(row)
        for path, content in zip(plan.names.of_unit(self.unit)[2:], videos, strict=True):
            _check_frames(content, int(self.splits[-1]), path)
        parquet.write_table(pa.table({name: [row[name] for row in rows] for name in rows[0]}), episodes)
        return nbytes

    def _spans(self, first: int, past: int, row_nbytes: int) -> list[tuple[int, int]]:
        """Divide the rows of an episode into spans that are read at once."""
        rows = max(1, limits().read_nbytes // row_nbytes)
        return list(pairwise([*range(self.start + first, self.start + past, rows), self.start + past]))

    def _episode(
        self, number: int, length: int, read: Sequence[Mapping[str, Any]]
    ) -> tuple[Any, dict[str, Any], dict[str, Statistic]]:
        """Return the table of an episode, its row of metadata, and the statistics of its numbers."""
        import pyarrow as pa

        plan, columns = self.plan, self.plan.columns
        tasks = [""] * length
        if columns.task is not None:
            tasks = [text for part in read for text in texts(part[columns.task])]
        place = int(self.splits[number])
        indices = self.start + place + np.arange(length)
        counters: dict[str, NDArray[Any]] = {
            "timestamp": (np.arange(length) / plan.fps).astype(np.float32),
            "frame_index": np.arange(length),
            "episode_index": np.full(length, self.first + number),
            "index": indices,
            "task_index": np.array([plan.tasks[text] for text in tasks]),
        }
        made: dict[str, Any] = {}
        statistics: dict[str, Statistic] = {}
        for key, name in columns.values.items():
            values = np.concatenate([to_array(part[name]) for part in read])
            made[key] = _arrow_values(values)
            if values.dtype.kind != "T":
                statistics[key] = _statistic(values)
        if columns.encoding is None:
            kind = pa.struct([pa.field("bytes", pa.binary()), pa.field("path", pa.string())])
            for key, name in columns.images.items():
                pictures = [{"bytes": file, "path": None} for part in read for file in part[name]]
                made[key] = pa.array(pictures, kind)
        for key, each in counters.items():
            made[key] = _arrow_values(each)
            statistics[key] = _statistic(each)
        chunk, file = divmod(self.unit, _CHUNK_FILES)
        row: dict[str, Any] = {
            "episode_index": self.first + number,
            "tasks": list(dict.fromkeys(tasks)),
            "length": length,
            "dataset_from_index": int(indices[0]),
            "dataset_to_index": int(indices[-1]) + 1,
        }
        for prefix in ("data", "meta/episodes", *(f"videos/{key}" for key in columns.videos)):
            row |= {f"{prefix}/chunk_index": chunk, f"{prefix}/file_index": file}
        for key in columns.videos:
            row[f"videos/{key}/from_timestamp"] = place / plan.fps
            row[f"videos/{key}/to_timestamp"] = (place + length) / plan.fps
        return pa.table(made), row, statistics


def _arrow_values(values: NDArray[Any]) -> Any:
    """Convert values to an Arrow array: scalars for a shape of one value, else nested lists."""
    import pyarrow as pa

    if values.dtype.kind == "T":
        return pa.array(values.reshape(-1).tolist(), pa.string())
    if values.shape[1:] == (1,):
        values = values[:, 0]
    array = pa.array(np.ascontiguousarray(values).reshape(-1))
    if values.ndim == 2:
        return pa.FixedSizeListArray.from_arrays(array, values.shape[1])
    # The arrays of `datasets` with several axes are nested lists.
    for size in reversed(values.shape[1:]):
        splits = np.arange(len(array) // size + 1, dtype=np.int32) * size
        array = pa.ListArray.from_arrays(pa.array(splits), array)
    return array


class _VideoWriter:
    """Encoder of the frames of a camera, of a shape (height, width, channels)."""

    def __init__(self, content: BinaryIO, encoding: Mapping[str, str], shape: tuple[int, ...], fps: int) -> None:
        import av

        options = {name: value for name, value in encoding.items() if name not in ("codec", "pix_fmt")}
        self._frame = av.VideoFrame
        self._container = av.open(content, "w", format="mp4")
        stream = self._container.add_stream(encoding["codec"], fps, options=options)
        if not isinstance(stream, av.VideoStream):
            raise ValueError(f"video: {encoding['codec']!r} encodes no video")
        stream.height, stream.width = shape[:2]
        stream.pix_fmt = encoding["pix_fmt"]
        # The bytes of some encoders depend on the number of threads.
        stream.thread_count = 1
        self._stream = stream

    def __enter__(self) -> _VideoWriter:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self._container.mux(self._stream.encode())
        self._container.close()

    def add(self, frames: NDArray[np.uint8]) -> None:
        """Encode frames of shape (n, height, width, 3)."""
        for frame in frames:
            picture = self._frame.from_ndarray(np.ascontiguousarray(frame), format="rgb24")
            self._container.mux(self._stream.encode(picture))


def _check_frames(content: BinaryIO, expected: int, path: str) -> None:
    """Compare the frames of a video with those that were encoded."""
    import av

    content.seek(0)
    with av.open(content) as container:
        found = container.streams.video[0].frames
    if found != expected:
        raise IncompleteStoreError(
            f"the video has {plural(found, 'frame')}; expected {expected:,}: give another encoder by video=",
            Location(path),
        )


class _ImageStatistics:
    """Statistics of the images of an episode that LeRobot takes; levels of each channel are counted."""

    def __init__(self, length: int) -> None:
        least = min(_LEAST_IMAGES, length)
        images = max(least, min(int(length**0.75), _MOST_IMAGES))
        self._taken = {*np.round(np.linspace(0, length - 1, images)).astype(int).tolist()}
        self._images, self._next = images, 0
        self._levels: NDArray[np.int64] = np.zeros((0, 256), np.int64)

    def add(self, frames: NDArray[np.uint8]) -> None:
        """Count the levels of the next frames."""
        height, width, channels = frames.shape[1:]
        longest = max(height, width)
        step = longest // _IMAGE_SIZE if longest >= _LARGE_IMAGE else 1
        taken = [number for number in range(len(frames)) if self._next + number in self._taken]
        self._next += len(frames)
        if not len(self._levels):
            self._levels = np.zeros((channels, 256), np.int64)
        for number in taken:
            pixels = frames[number, ::step, ::step].reshape(-1, channels)
            self._levels += np.stack([np.bincount(pixels[:, each], minlength=256) for each in range(channels)])

    def result(self) -> Statistic:
        """Return statistics of shape (channels, 1, 1), of levels from 0 to 1."""
        levels, counts = np.arange(256) / 255, self._levels
        total = counts.sum(axis=1)
        mean = counts @ levels / total
        held = [np.flatnonzero(each) for each in counts]
        ranks = {name: np.ceil(q * total).clip(1) for name, q in _QUANTILES.items()}
        sums = counts.cumsum(axis=1)
        found = {
            "min": levels[[each[0] for each in held]],
            "max": levels[[each[-1] for each in held]],
            "mean": mean,
            "std": np.sqrt((counts * np.square(levels - mean[:, None])).sum(axis=1) / total),
        } | {
            name: levels[[int(np.searchsorted(each, rank)) for each, rank in zip(sums, at, strict=True)]]
            for name, at in ranks.items()
        }
        return {
            **{name: value[:, None, None] for name, value in found.items()},
            "count": np.array([self._images], np.int64),
        }


def _statistic(values: NDArray[Any]) -> Statistic:
    """Return statistics of frames along the last axis, in LeRobot's shapes."""
    rows = values.astype(np.float64).reshape(-1, values.shape[-1] if values.ndim > 1 else 1)
    return {
        "min": rows.min(axis=0),
        "max": rows.max(axis=0),
        "mean": rows.mean(axis=0),
        "std": rows.std(axis=0),
        **{name: np.quantile(rows, q, axis=0, method="inverted_cdf") for name, q in _QUANTILES.items()},
        "count": np.array([len(values)], np.int64),
    }


def _read_statistics(path: str, storage_options: Mapping[str, Any]) -> dict[str, Statistic]:
    """Read the statistics of the episodes of a unit, stacked along a first axis."""
    from pyarrow import parquet

    fs, inside = url_to_fs(path, **storage_options)
    with fs.open(inside, "rb") as file:
        table = parquet.read_table(file)
    found: dict[str, Statistic] = {}
    for name in table.column_names:
        if name.startswith("stats/"):
            key, _, statistic = name.removeprefix("stats/").rpartition("/")
            found.setdefault(key, {})[statistic] = np.array(table[name].to_pylist())
    return found


def _merged(parts: Sequence[Mapping[str, Statistic]]) -> dict[str, Statistic]:
    """Merge the statistics of episodes; the numbers of frames are the weights of means and quantiles."""
    merged: dict[str, Statistic] = {}
    for key in parts[0]:
        stacked = {name: np.concatenate([part[key][name] for part in parts]) for name in parts[0][key]}
        counts = stacked.pop("count")
        weights = counts.reshape(-1, *(1,) * (stacked["mean"].ndim - 1)) / counts.sum()
        found = {name: (value * weights).sum(axis=0) for name, value in stacked.items()}
        variances = np.square(stacked["std"]) + np.square(stacked["mean"] - found["mean"])
        found |= {
            "min": stacked["min"].min(axis=0),
            "max": stacked["max"].max(axis=0),
            "std": np.sqrt((variances * weights).sum(axis=0)),
            "count": counts.sum(axis=0),
        }
        merged[key] = found
    return merged
