"""`to_lerobot`: frames of episodes as a LeRobot data set of format 3.0.

A write unit is a number of whole episodes. Its task reads the frames once and publishes several files of one number:

- ``data/chunk-000/file-000.parquet``: a row per frame, and a row group per episode;
- ``videos/KEY/chunk-000/file-000.mp4``: the frames of a camera, one episode after the other;
- ``meta/episodes/chunk-000/file-000.parquet``: a row per episode, with its statistics.

The client writes ``meta/stats.json`` from the statistics of the episodes, ``meta/tasks.parquet`` and, last,
``meta/info.json``. Files depend on the rows and the options alone: a resumed conversion has the bytes of another one.

A run that adds episodes writes files with the next numbers, and these three again. LeRobot takes the number of frames
from ``meta/info.json``, the borders of episodes from all files below ``meta/episodes``, and statistics from
``meta/stats.json``: these have to change at once. So a run takes ``meta/info.json`` away before it publishes the
others, and publishes the new one last. Readers find no data set meanwhile, which takes a few renames.
"""

from __future__ import annotations

import json
import os
import re
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import islice, pairwise
from typing import Any, BinaryIO, Unpack

import numpy as np
from numpy.typing import NDArray

from dask_tfrecord.blocks import block_nbytes, splits_of, texts, to_array
from dask_tfrecord.columns.items import RECORD
from dask_tfrecord.errors import (
    IncompleteStoreError,
    Location,
    SchemaError,
    UnknownFeatureError,
    UnsupportedFormatError,
    explain_missing,
    near_misses,
    plural,
    redact_url,
)
from dask_tfrecord.extras.chunk_iterator import ChunkIterator
from dask_tfrecord.features import Feature
from dask_tfrecord.features.images.pixels import ImageEncoding, encode_image
from dask_tfrecord.features.schema import Schema
from dask_tfrecord.options import LeRobotOptions, Mode, complete, with_options
from dask_tfrecord.rows.chunk_borders import joined_parts
from dask_tfrecord.rows.graph import Chunk
from dask_tfrecord.rows.inputs import Inputs
from dask_tfrecord.rows.progress import ProgressBar
from dask_tfrecord.rows.rows import Rows
from dask_tfrecord.rows.sources import CountedRows
from dask_tfrecord.settings import limits
from dask_tfrecord.shards.objects import objects_in
from dask_tfrecord.shards.remote import files_below, join, url_to_fs
from dask_tfrecord.stores.documents import Count, Positive, checked, load_mapping
from dask_tfrecord.stores.files.publish import FileWrite, UnitFiles, UnitNames, UnitReport
from dask_tfrecord.stores.output import ShardWriteReport, check_mode, check_number
from dask_tfrecord.stores.units import RowTasks
from dask_tfrecord.stores.zarr.fingerprint import Fingerprint, digest

_VERSION = "v3.0"
# Files of a directory.
_CHUNK_FILES = 1000
_NUMBERED = "chunk-{chunk_index:03d}/file-{file_index:03d}"
_DATA = f"data/{_NUMBERED}.parquet"
_VIDEO = f"videos/{{video_key}}/{_NUMBERED}.mp4"
_EPISODES = f"meta/episodes/{_NUMBERED}.parquet"
_INFO, _STATISTICS, _TASKS = "meta/info.json", "meta/stats.json", "meta/tasks.parquet"
_FILE = re.compile(
    r"(data|videos/[^/]+|meta/episodes)/chunk-(?P<chunk>\d+)/file-(?P<file>\d+)\.(parquet|mp4)|meta/[a-z]+\.(json|parquet)"
)
# Keys in the metadata of the tasks: the conversion that wrote them, and the episodes before and after it, with the
# tasks before.
_CONVERSION, _GREW = b"dask_tfrecord.conversion", b"dask_tfrecord.episodes"
# Decoded bytes of a unit: a video of some ten MB per camera.
_UNIT_NBYTES = 1 << 30
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


@with_options("dtf.to_lerobot(ds, 'robot', fps=10)", LeRobotOptions)
def to_lerobot(arrays: Mapping[str, Any], path: str | os.PathLike[str], **options: Unpack[LeRobotOptions]) -> None:
    """Write frames of episodes as a LeRobot data set (format 3.0). Needs the extra ``lerobot``.

    Parameters
    ----------
    arrays : Dataset or mapping of str to array-like
        One row per frame, as ``episodes.explode("steps")`` gives them, in columns with fixed shapes or text.
    path : str or os.PathLike
        Directory or URL of the data set.

    Raises
    ------
    FileExistsError
        If files of another conversion exist and `mode` is ``"w-"``.
    IncompleteStoreError
        If the size or checksum of a file is wrong after writing, or a video lacks frames. With ``mode="a"``, if the
        data set lacks episodes that its metadata count, or if another program has added some in the meantime.
    ImportError
        If pyarrow or av is not installed.
    SchemaError
        If a column is ragged, bytes or complex, or images differ in size. Also if a video can't store the images,
        because they have one channel, or an odd size with ``yuv420p``. With ``mode="a"``, if columns, `fps`, encoder or
        `robot_type` differ from the data set's.
    UnknownFeatureError
        If `names`, `task` or `episode` names a column that does not exist.
    UnsupportedFormatError
        If you add episodes to a data set that does not have format 3.0.
    ValueError
        If rows are not counted, the data set is empty, or an argument has an invalid value.

    Notes
    -----
    Episodes without frames are left out. ``timestamp`` is the number of the frame in its episode divided by `fps`.
    Statistics are computed as LeRobot does, and for images from as many frames as LeRobot takes; quantiles of episodes
    are exact, and quantiles of the data set are means weighted by frames. Tasks are numbered in the order in which they
    appear, which takes one pass over their column. Videos are encoded in one thread per task, so that every run writes
    the same bytes; they are lossy unless `video` selects a lossless encoder.

    ``mode="a"`` writes new files, and rewrites only ``meta/stats.json``, ``meta/tasks.parquet`` and, last,
    ``meta/info.json``. Episodes and frames are numbered on, and tasks keep their numbers. The result equals one
    conversion, except for the borders between files. Readers see the old episodes until all new ones are complete;
    ``meta/info.json`` is missing while a few files are renamed. If the run is killed, ``resume=True`` continues it;
    without that, the next call starts again.

    Examples
    --------
    >>> episodes = dtf.Dataset.from_arrays({"steps/action": [[[0.5, 1.0], [0.0, 2.0]], [[1.5, 0.5]]]})
    >>> episodes.explode("steps").to_lerobot("robot", fps=15, robot_type="arm")
    >>> import json, pathlib
    >>> json.loads(pathlib.Path("robot/meta/info.json").read_text())["total_frames"]
    3
    """
    options = complete(LeRobotOptions, options)
    fps, mode = check_number("fps", options["fps"], 1), options["mode"]
    episodes_per_file = options["episodes_per_file"]
    if episodes_per_file is not None:
        episodes_per_file = check_number("episodes_per_file", episodes_per_file, 1)
    for package in ("pyarrow", "av"):
        with explain_missing("LeRobot data sets need", package, "lerobot"):
            __import__(package)
    if mode != "a":
        check_mode(mode, "a data set", resume=options["resume"])
    rows = Inputs.from_arrays(arrays, exact=True).rows
    if not rows.nrows:
        raise ValueError("there are no frames, or they are not counted: open with counts='auto'")
    columns = _Columns.from_schema(rows.schema, options)
    lengths = _episode_lengths(rows.array(options["episode"]).compute())
    described = {"robot_type": options["robot_type"], "episodes_per_file": episodes_per_file, "columns": repr(columns)}
    conversion = Fingerprint.from_rows(rows, rows.schema, {"fps": fps, **described}).token
    names = _Names.from_root(path, _INFO, options["storage_options"], columns.videos).recovered()
    resumes = options["resume"]
    last = _run_identity(conversion, names.grew()[0] if mode == "a" else 0)
    earlier = UnitFiles(uuid.uuid4().hex, names, 1, "w-", compute=True, resumable=last if resumes else None)
    if earlier.is_complete(conversion):
        return
    base = _Base.read(names) if mode == "a" else None
    tasks = _number_tasks({} if base is None else base.tasks, _all_tasks(rows, columns.task))
    info = columns.info(rows.schema, fps, options["robot_type"], lengths, len(tasks))
    if base is not None:
        info = base.with_episodes(info, names)
    ends = np.cumsum(lengths)
    units = joined_parts(([0, *ends.tolist()], max(1, _UNIT_NBYTES // columns.row_nbytes(rows.schema))))
    if episodes_per_file is not None:
        units = [*range(0, len(lengths), episodes_per_file), len(lengths)]
    count = len(units) - 1
    row_tasks = RowTasks(rows, uuid.uuid4().hex)
    identity = _run_identity(conversion, 0 if base is None else base.episodes)
    resumable = identity if resumes else None
    kind: Mode = "w-" if mode == "a" else mode
    if base is not None:
        # Files that the data set does not count are replaced, and no others.
        kind = "w"
        names = replace(names, first=base.files, episodes=base.episodes, chunk_files=base.chunk_files)
    plan = _Plan(names, columns, fps, tasks, info, conversion, identity, base)
    files = _LeRobotFiles(row_tasks.token, names, count, kind, compute=True, resumable=resumable, plan=plan)
    files.check_free()
    starts = [0, *ends.tolist()]
    spans = [(starts[first], starts[past]) for first, past in pairwise(units)]
    read = columns.read
    arguments = [
        (span, read, (unit, span[0], first, lengths[first:past]))
        for unit, (span, (first, past)) in enumerate(zip(spans, pairwise(units), strict=True))
    ]
    FileWrite.of_rows(files, row_tasks, write_lerobot_unit, (), arguments, names.root).run()


def _number_tasks(tasks: Mapping[str, int], added: Sequence[str]) -> dict[str, int]:
    """Return tasks with their numbers, and after them new ones with the next numbers."""
    numbers, number = dict(tasks), max(tasks.values(), default=-1) + 1
    for text in added:
        if text not in numbers:
            numbers[text], number = number, number + 1
    return numbers


def _run_identity(conversion: str, episodes: int) -> str:
    """Return the identity of a run that writes or adds a conversion after some episodes."""
    return digest([conversion, episodes])[:32] if episodes else conversion


def _episode_lengths(numbers: NDArray[Any]) -> NDArray[np.int64]:
    """Count each episode's frames: rows with equal numbers that follow each other."""
    borders = np.flatnonzero(np.diff(numbers)) + 1
    return np.diff(np.concatenate([[0], borders, [len(numbers)]]))


def _all_tasks(rows: Rows, task: str | None) -> list[str]:
    """Read the tasks of all frames; return each once, in the order of its first frame."""
    if task is None:
        return [""]
    tasks: dict[str, None] = {}
    with ProgressBar("Reading tasks", rows.nchunks) as bar, ChunkIterator(rows, [task], _tasks_of) as chunks:
        for texts_of_chunk in chunks:
            tasks |= dict.fromkeys(texts_of_chunk)
            bar.advance()
    return list(tasks)


def _tasks_of(chunk: Chunk, _: int) -> list[str]:
    return list(dict.fromkeys(text for block in chunk.blocks.values() for text in texts(block)))


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
        encoding = None if video is None else _checked_video_encoding(video)
        keys: dict[bool, dict[str, str]] = {False: {}, True: {}}
        for name, feature in schema.items():
            is_image = _is_image(feature)
            key = names.get(name, _default_name(name, is_image))
            if key is None or name in (task, episode):
                continue
            if not key or "/" in key or key in (*_COUNTERS, "task") or key in {**keys[False], **keys[True]}:
                raise ValueError(
                    f"to_lerobot: column {name!r} would be named {key!r}, which is empty, reserved, has a '/' or is "
                    f"the name of another column: give another one by names={{{name!r}: …}}"
                )
            _check_feature(name, feature, encoding if is_image else None)
            keys[is_image][key] = name
        return cls(keys[False], keys[True], task, encoding)

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
        self, schema: Schema, fps: int, robot_type: str | None, lengths: NDArray[np.int64], tasks: int
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
            "total_tasks": tasks,
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


def _checked_video_encoding(video: str | Mapping[str, Any]) -> dict[str, str]:
    """Return the options of the video encoder, with defaults; refuse an encoder that is not installed."""
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
    # Number of the episodes before this run's, and the files of a directory.
    episodes: int = 0
    chunk_files: int = _CHUNK_FILES

    @property
    def adds(self) -> bool:
        """True if the files are added to a data set."""
        return bool(self.first)

    def place(self, unit: int) -> tuple[int, int]:
        """Return the numbers of the directory and the file of a unit."""
        return divmod(self.first + unit, self.chunk_files)

    def of_unit(self, unit: int) -> list[str]:
        """Name a unit's files: data, episodes, and one video a camera."""
        chunk, file = self.place(unit)
        return [
            join(self.root, template.format(chunk_index=chunk, file_index=file, video_key=key))
            for template, key in [(_DATA, ""), (_EPISODES, ""), *((_VIDEO, key) for key in self.cameras)]
        ]

    def is_published(self, name: str) -> bool:
        """Return whether a file of this name belongs to a LeRobot data set."""
        return _FILE.fullmatch(name) is not None

    def is_own(self, name: str) -> bool:
        """Return whether a file of this name belongs to the data set; when files are added, beyond its own."""
        found = _FILE.fullmatch(name)
        if found is None or not self.adds:
            return found is not None
        return found["chunk"] is not None and self.number(name) >= self.first

    def number(self, path: str) -> int:
        """Return the number of a file of a unit, counted over all directories."""
        found = _FILE.fullmatch(path.removeprefix(f"{self.root}/"))
        assert found is not None
        return int(found["chunk"]) * self.chunk_files + int(found["file"])

    def existing(self, paths: Sequence[str]) -> list[str]:
        """List the existing files; when files are added, those that the data set does not count."""
        if self.adds and self.info().get("total_episodes") != self.episodes:
            # Another run, or this one, has added them.
            return []
        return UnitNames.existing(self, paths)

    def files_of_episodes(self) -> list[str]:
        """List the files with the rows of episodes, in their order."""
        folder = join(self.root, "meta/episodes")
        fs, inside = url_to_fs(folder, **self.storage_options)
        fs.invalidate_cache()
        found = (join(folder, name.removeprefix(inside).lstrip("/")) for name in files_below(fs, inside))
        return sorted((path for path in found if _FILE.fullmatch(path.removeprefix(f"{self.root}/"))), key=self.number)

    def info(self) -> dict[str, Any]:
        """Return the content of ``meta/info.json``; empty if it does not exist."""
        data = objects_in(self.root, self.storage_options).get([_INFO])[_INFO]
        if data is None:
            return {}
        return load_mapping(data, _INFO, Location(redact_url(self.last)))

    def grew(self) -> tuple[int, int, int]:
        """Return the number of episodes before and after the last run that wrote the tasks, and the tasks before.

        They are zeros if other software wrote them.
        """
        return _grew(self._metadata_of_tasks())

    def conversion(self) -> str | None:
        """Return the conversion that wrote a complete data set; None without one, or if other software wrote it."""
        found = self._metadata_of_tasks()
        # A run that adds episodes replaces the tasks before it completes the data set.
        if _GREW in found and self.info().get("total_episodes") != _grew(found)[1]:
            return None
        return found[_CONVERSION].decode() if _CONVERSION in found else None

    def _metadata_of_tasks(self) -> dict[bytes, bytes]:
        """Read the key-value metadata of the table of tasks; empty if the data set does not exist."""
        from pyarrow import parquet

        fs, inside = url_to_fs(self.root, **self.storage_options)
        if not (fs.exists(f"{inside}/{_INFO}") and fs.exists(f"{inside}/{_TASKS}")):
            return {}
        with fs.open(f"{inside}/{_TASKS}", "rb") as file:
            return dict(parquet.read_metadata(file).metadata or {})


def _grew(metadata: Mapping[bytes, bytes]) -> tuple[int, int, int]:
    """Return the numbers of `_Names.grew` from the metadata of the tasks."""
    episodes, after, tasks = json.loads(metadata.get(_GREW, b"[0, 0, 0]"))
    return int(episodes), int(after), int(tasks)


@dataclass(frozen=True, slots=True)
class _Totals:
    """Fields of ``meta/info.json`` that describe the episodes of a data set."""

    total_episodes: Count
    total_frames: Count
    chunks_size: Positive
    features: Mapping[str, Mapping[str, Any]]
    splits: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Base:
    """A data set that episodes are added to."""

    info: Mapping[str, Any]
    tasks: Mapping[str, int]
    # Number of its files: the first of the new ones.
    files: int
    # Columns of the rows of its episodes, a schema of pyarrow.
    schema: Any

    @property
    def episodes(self) -> int:
        """Number of its episodes."""
        return int(self.info["total_episodes"])

    @property
    def frames(self) -> int:
        """Number of its frames."""
        return int(self.info["total_frames"])

    @property
    def chunk_files(self) -> int:
        """Files of a directory."""
        return int(self.info["chunks_size"])

    @classmethod
    def read(cls, names: _Names) -> _Base | None:
        """Read a data set, or return None."""
        info = names.info()
        if not info:
            return None
        location = Location(redact_url(names.last))
        version = info.get("codebase_version")
        if version != _VERSION:
            raise UnsupportedFormatError(
                f"the data set has format {version}, and episodes can only be added to format {_VERSION}: convert it "
                "with LeRobot first",
                location,
            )
        for name, template in (("data_path", _DATA), ("video_path", _VIDEO)):
            if info.get(name) not in (template, None if name == "video_path" else template):
                raise UnsupportedFormatError(f"{name} is {info.get(name)!r}; expected {template!r}", location)
        checked(_Totals, info, _INFO, location)
        names = replace(names, chunk_files=int(info["chunks_size"]))
        tasks, (_, after, before) = _read_tasks(names), names.grew()
        if after not in (0, info["total_episodes"]):
            # Tasks of a run that was killed follow.
            tasks = tasks[:before]
        for path in reversed(names.files_of_episodes()):
            table = _read_table(path, names.storage_options)
            # A run that was killed may have left episodes that are not counted.
            named = table.select([name for name in table.column_names if not name.startswith("stats/")])
            rows = [row for row in named.to_pylist() if row["episode_index"] < info["total_episodes"]]
            if not rows:
                continue
            row = rows[-1]
            if (row["episode_index"] + 1, row["dataset_to_index"]) != (info["total_episodes"], info["total_frames"]):
                break
            places = [name.removesuffix("/chunk_index") for name in row if name.endswith("/chunk_index")]
            numbers = [row[f"{name}/chunk_index"] * names.chunk_files + row[f"{name}/file_index"] for name in places]
            return cls(info, dict(tasks), max(names.number(path), *numbers) + 1, table.schema.remove_metadata())
        raise IncompleteStoreError(
            f"the last of {plural(info['total_episodes'], 'episode')} with {info['total_frames']:,} frames, which this "
            f"file counts, is not below meta/episodes",
            location,
        )

    def with_episodes(self, added: Mapping[str, Any], names: _Names) -> dict[str, Any]:
        """Return the description of the data set with added episodes; refuse what does not fit."""
        differences = list(_info_differences(self.info, added))
        if differences:
            raise SchemaError(
                f"cannot add episodes that differ: {'; '.join(differences)}. Rename or leave out columns by names=, "
                f"convert them by map_blocks, or write another data set",
                Location(redact_url(names.last)),
            )
        episodes = self.episodes + added["total_episodes"]
        splits = {}
        for name, split in self.info.get("splits", {}).items():
            first, _, past = str(split).partition(":")
            splits[name] = f"{first}:{episodes}" if past == str(self.episodes) else split
        return {
            **self.info,
            "total_episodes": episodes,
            "total_frames": self.frames + added["total_frames"],
            "total_tasks": added["total_tasks"],
            "splits": splits,
        }

    def statistics(self, names: _Names) -> list[dict[str, Statistic]]:
        """Return the statistics of its episodes, in one part or several ones."""
        data = objects_in(names.root, names.storage_options).get([_STATISTICS])[_STATISTICS]
        stored = {} if data is None else json.loads(data)
        # A run that was killed may have written statistics of more episodes.
        if stored and stored.get("index", {}).get("count") in (None, [self.frames]):
            return [
                {key: {name: np.array(value)[None] for name, value in each.items()} for key, each in stored.items()}
            ]
        paths = [path for path in names.files_of_episodes() if names.number(path) < names.first]
        return [_read_statistics(path, names.storage_options) for path in paths]


def _read_tasks(names: _Names) -> list[tuple[str, int]]:
    """Return the tasks of a data set with their numbers; pandas names the column of the texts in several ways."""
    table = _read_table(join(names.root, _TASKS), names.storage_options)
    [text] = [name for name in table.column_names if name != "task_index"]
    return list(zip(table[text].to_pylist(), table["task_index"].to_pylist(), strict=True))


def _read_table(path: str, storage_options: Mapping[str, Any]) -> Any:
    """Read a Parquet file at a path or URL."""
    from pyarrow import parquet

    fs, inside = url_to_fs(path, **storage_options)
    with fs.open(inside, "rb") as file:
        return parquet.read_table(file)


def _info_differences(stored: Mapping[str, Any], added: Mapping[str, Any]) -> Iterator[str]:
    """Describe how data sets differ, by the contents of their ``meta/info.json``."""
    for name in ("fps", "robot_type"):
        if added[name] is not None and added[name] != stored.get(name):
            yield f"{name} is {stored.get(name)!r} in the data set, and {added[name]!r} here"
    for key in {**stored["features"], **added["features"]}:
        before, now = (each["features"].get(key) for each in (stored, added))
        facts = [
            "missing" if each is None else f"{each['dtype']} of shape {tuple(each['shape'])}" for each in (before, now)
        ]
        if before is not None and now is not None and before.get("info") and now.get("info"):
            for name in ("video.codec", "video.pix_fmt"):
                values = [each["info"].get(name) for each in (before, now)]
                if None not in values:
                    facts = [f"{fact}, {value}" for fact, value in zip(facts, values, strict=True)]
        if facts[0] != facts[1]:
            yield f"{key!r} is {facts[0]} in the data set, and {facts[1]} here"


@dataclass(frozen=True, slots=True)
class _Plan:
    """Description of a conversion, for its tasks and its client."""

    names: _Names
    columns: _Columns
    fps: int
    tasks: Mapping[str, int]
    info: Mapping[str, Any]
    # Identity of the rows and options, and with the number of the episodes before them.
    added: str
    conversion: str
    base: _Base | None


@dataclass(frozen=True, slots=True)
class _LeRobotFiles(UnitFiles):
    """Files of a LeRobot data set, which is complete when it has its metadata."""

    plan: _Plan = field(kw_only=True)

    def begin(self) -> bool:
        """Refuse a data set that has grown meanwhile."""
        self._check_base()
        return UnitFiles.begin(self)

    def publish(self, reports: Sequence[Any]) -> None:
        """Refuse a data set that has grown meanwhile, and publish the files."""
        self._check_base()
        UnitFiles.publish(self, reports)

    def identity(self, reports: Sequence[ShardWriteReport]) -> str:
        """Return the identity of the rows: files have the numbers of episodes, which differ."""
        return self.plan.added

    def _is_there(self, reports: Sequence[ShardWriteReport], first: int) -> bool:
        """Return whether the data set has the episodes of a file before those that this run would add."""
        names = self.plan.names
        return names.adds and first < names.first

    def _check_base(self) -> None:
        """Raise IncompleteStoreError if another program has added episodes since the run began."""
        names = self.plan.names
        if names.adds and (found := names.info().get("total_episodes")) != names.episodes:
            raise IncompleteStoreError(
                f"the data set had {plural(names.episodes, 'episode')} when this run began, and now has {found}: "
                f"another program has changed it; call to_lerobot again",
                self.journal.location,
            )

    def descriptions(self) -> dict[str, bytes]:
        """Return the statistics, the tasks and, last, the description of the data set."""
        import pyarrow as pa
        from pyarrow import parquet

        place, options, plan = self.plan.names, self.names.storage_options, self.plan
        before = [] if plan.base is None else plan.base.statistics(place)
        added = (_read_statistics(self.staged(place.of_unit(unit)[1]), options) for unit in range(self.count))
        statistics = _merged_statistics([*before, *added])
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
        metadata = {
            b"pandas": json.dumps(described).encode(),
            _CONVERSION: plan.conversion.encode(),
            _GREW: json.dumps(
                [place.episodes, plan.info["total_episodes"], 0 if plan.base is None else len(plan.base.tasks)]
            ).encode(),
        }
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
    writer = _EpisodeWriter(files.plan, unit, start, first, lengths)
    return files.publish_unit(unit, lambda contents: (int(lengths.sum()), writer.write(source, contents)))


class _EpisodeWriter:
    """Write a unit's local files: the episodes from `first`, whose first frame is row `start`."""

    def __init__(self, plan: _Plan, unit: int, start: int, first: int, lengths: NDArray[np.int64]) -> None:
        self.plan, self.unit, self.start, self.first = plan, unit, start, first
        self.splits = splits_of(lengths)

    def write(self, source: CountedRows, contents: Sequence[BinaryIO]) -> int:
        """Read the frames once, write the contents of all files, and return the decoded bytes."""
        import pyarrow as pa
        from pyarrow import parquet

        plan, columns = self.plan, self.plan.columns
        data, episodes, *videos = contents
        spans = [
            self._spans_of_episode(*borders, columns.row_nbytes(source.schema))
            for borders in pairwise(self.splits.tolist())
        ]
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
                table, row, statistics = self._make_episode(number, length, read)
                if writer is None:
                    writer = stack.enter_context(parquet.ParquetWriter(data, table.schema))
                writer.write_table(table, row_group_size=length)
                statistics |= {key: image.result() for key, image in images.items()}
                for key, statistic in statistics.items():
                    row |= {f"stats/{key}/{name}": value.tolist() for name, value in statistic.items()}
                rows.append(row)
        for path, content in zip(plan.names.of_unit(self.unit)[2:], videos, strict=True):
            _check_frames(content, int(self.splits[-1]), path)
        made = pa.table({name: [row[name] for row in rows] for name in rows[0]})
        parquet.write_table(made if plan.base is None else _conform_columns(made, plan.base.schema), episodes)
        return nbytes

    def _spans_of_episode(self, first: int, past: int, row_nbytes: int) -> list[tuple[int, int]]:
        """Divide the rows of an episode into spans that are read at once."""
        rows = max(1, limits().read_nbytes // row_nbytes)
        return list(pairwise([*range(self.start + first, self.start + past, rows), self.start + past]))

    def _make_episode(
        self, number: int, length: int, read: Sequence[Mapping[str, Any]]
    ) -> tuple[Any, dict[str, Any], dict[str, Statistic]]:
        """Make an episode's table, its metadata row, and statistics for its numbers."""
        import pyarrow as pa

        plan, columns = self.plan, self.plan.columns
        tasks = [""] * length
        if columns.task is not None:
            tasks = [text for part in read for text in texts(part[columns.task])]
        place = int(self.splits[number])
        episode = plan.names.episodes + self.first + number
        indices = (0 if plan.base is None else plan.base.frames) + self.start + place + np.arange(length)
        counters: dict[str, NDArray[Any]] = {
            "timestamp": (np.arange(length) / plan.fps).astype(np.float32),
            "frame_index": np.arange(length),
            "episode_index": np.full(length, episode),
            "index": indices,
            "task_index": np.array([plan.tasks[text] for text in tasks]),
        }
        made: dict[str, Any] = {}
        statistics: dict[str, Statistic] = {}
        for key, name in columns.values.items():
            values = np.concatenate([to_array(part[name]) for part in read])
            made[key] = _arrow_values(values)
            if values.dtype.kind != "T":
                statistics[key] = _frame_statistics(values)
        if columns.encoding is None:
            kind = pa.struct([pa.field("bytes", pa.binary()), pa.field("path", pa.string())])
            for key, name in columns.images.items():
                pictures = [{"bytes": file, "path": None} for part in read for file in part[name]]
                made[key] = pa.array(pictures, kind)
        for key, each in counters.items():
            made[key] = _arrow_values(each)
            statistics[key] = _frame_statistics(each)
        chunk, file = plan.names.place(self.unit)
        row: dict[str, Any] = {
            "episode_index": episode,
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
        # A data set of other software may have them in another order.
        return pa.table({key: made[key] for key in plan.info["features"] if key in made}), row, statistics


def _conform_columns(table: Any, schema: Any) -> Any:
    """Return rows of episodes with the columns of others, for readers that expect the same ones in each file."""
    import pyarrow as pa

    columns = [
        table[each.name].cast(each.type) if each.name in table.column_names else pa.nulls(len(table), each.type)
        for each in schema
    ]
    return pa.table(columns, schema=schema)


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
    """Encode a camera's frames, each (height, width, channels)."""

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
    """Image statistics as LeRobot computes them, from counts of each channel's levels."""

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
        statistics = {
            "min": levels[[each[0] for each in held]],
            "max": levels[[each[-1] for each in held]],
            "mean": mean,
            "std": np.sqrt((counts * np.square(levels - mean[:, None])).sum(axis=1) / total),
            **{name: levels[_levels_at(counts, part)] for name, part in _QUANTILES.items()},
        }
        by_channel = {name: value[:, None, None] for name, value in statistics.items()}
        return {**by_channel, "count": np.array([self._images], np.int64)}


def _levels_at(counts: NDArray[np.int64], part: float) -> list[int]:
    """Find the level of each channel that a part of its pixels, and at least one, does not exceed."""
    up_to = counts.cumsum(axis=1)
    wanted = np.ceil(part * up_to[:, -1]).clip(1)
    return [int(np.searchsorted(channel, pixels)) for channel, pixels in zip(up_to, wanted, strict=True)]


def _frame_statistics(values: NDArray[Any]) -> Statistic:
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
    table = _read_table(path, storage_options)
    by_key: dict[str, Statistic] = {}
    for name in table.column_names:
        if name.startswith("stats/"):
            key, _, statistic = name.removeprefix("stats/").rpartition("/")
            by_key.setdefault(key, {})[statistic] = np.array(table[name].to_pylist())
    return by_key


def _merged_statistics(parts: Sequence[Mapping[str, Statistic]]) -> dict[str, Statistic]:
    """Merge statistics from episodes; means and quantiles are weighted by frames."""
    merged: dict[str, Statistic] = {}
    for key in _common_keys(parts):
        names = _common_keys([part[key] for part in parts])
        stacked = {name: np.concatenate([part[key][name] for part in parts]) for name in names}
        counts = stacked.pop("count")
        weights = counts.reshape(-1, *(1,) * (stacked["mean"].ndim - 1)) / counts.sum()
        joined = {name: (value * weights).sum(axis=0) for name, value in stacked.items()}
        variances = np.square(stacked["std"]) + np.square(stacked["mean"] - joined["mean"])
        joined |= {
            "min": stacked["min"].min(axis=0),
            "max": stacked["max"].max(axis=0),
            "std": np.sqrt((variances * weights).sum(axis=0)),
            "count": counts.sum(axis=0),
        }
        merged[key] = joined
    return merged


def _common_keys(mappings: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the keys that all mappings have; other software may write fewer statistics."""
    return [key for key in mappings[0] if all(key in each for each in mappings)]
