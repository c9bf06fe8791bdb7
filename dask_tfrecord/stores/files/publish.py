"""Publication of files: each appears whole, and a failed or repeated write leaves nothing that does not belong.

dask may run a task twice, late, concurrently with itself, or after its successors. Tasks therefore write below a hidden
run folder next to the first file, `dask_tfrecord.stores.files.stage`, and record each file there: its identity, and
the report of the task. A client that waits for the tasks owns the template of the files meanwhile; a task of another
run writes nothing. When all files are verified, they are renamed to where readers find them.
"""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
import re
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from string import Formatter
from tempfile import TemporaryFile, gettempdir
from typing import Annotated, Any, BinaryIO, Literal, Self

import dask
from dask.delayed import Delayed
from fsspec.implementations.local import LocalFileSystem
from fsspec.utils import stringify_path

from dask_tfrecord.blocks import release_memory
from dask_tfrecord.errors import (
    OVERWRITE,
    RESUME,
    IncompleteStoreError,
    Location,
    ResumeError,
    ShardChangedError,
    StoreInUseError,
    TFRecordError,
    add_path_to_errors,
    describe_error,
    plural,
    redact_url,
    repr_without_credentials,
    warn_caller,
)
from dask_tfrecord.features.metadata.labels import SUFFIX
from dask_tfrecord.features.metadata.tfds_writer import METADATA, TFDSMetadata
from dask_tfrecord.options import AddingMode, Mode
from dask_tfrecord.records.index import write_sidecars
from dask_tfrecord.rows.progress import cancel_on_failure, is_cancelled, report_progress, while_running
from dask_tfrecord.rows.task_names import task_name
from dask_tfrecord.shards.listing import find_shards, is_zarr_group, sidecar_path
from dask_tfrecord.shards.objects import (
    PUBLISHING,
    RUN_PREFIX,
    DirectoryObjects,
    Objects,
    StoredFile,
    check_files,
    directory_of,
    file_identity,
    list_files,
    objects_in,
    remove_abandoned,
)
from dask_tfrecord.shards.remote import (
    files_below,
    is_directory,
    join,
    store_url,
    url_to_fs,
)
from dask_tfrecord.shards.shard import is_local, split_name
from dask_tfrecord.shards.streams import ByteSink, ShouldPublish, open_sink, write_file
from dask_tfrecord.stores.documents import Count, HexToken, matches, parse, within
from dask_tfrecord.stores.files.stage import Stage
from dask_tfrecord.stores.journal import Journal, Owner, OwnerCheck, Unit, Units, part_writers
from dask_tfrecord.stores.output import (
    ShardWriteReport,
    WriteReport,
    WriteWork,
    collect,
    peak_memory,
)
from dask_tfrecord.stores.output_names import check_not_numbered, with_fields
from dask_tfrecord.stores.run import Run
from dask_tfrecord.stores.units import RowTasks, build_tasks

_log = logging.getLogger(__name__)

_COMPARED_NBYTES = 1 << 20
_INDEX_ATTEMPTS = 5

DEFAULT_NAME = "data-{shard:05d}-of-{shards:05d}.tfrecord"
_SIDECARS = (".idx", ".lengths.idx", ".gzidx", ".xarray.json")
# Digits of a `Delayed`'s token at the start of the tokens of its last task's copies; seconds between their attempts.
_COPIED_DIGITS, _TURN_SECONDS = 24, 0.05
# Most files of a job.
_MOST_FILES = 10_000_000


@dataclass(frozen=True)
class ShardNames:
    """The files of one set of shards."""

    template: str  # path or URL with fields {shard}, the number of a shard, and {shards}, the number of shards
    storage_options: Mapping[str, Any]
    # Number of the first shard; those before it belong to earlier writes.
    first: int = field(default=0, kw_only=True)

    __repr__ = repr_without_credentials

    @classmethod
    def from_urlpath(cls, urlpath: str | os.PathLike[str], storage_options: Mapping[str, Any] | None) -> ShardNames:
        """Check and complete a template, a file name or a directory; raise ValueError for other fields."""
        given, options = stringify_path(urlpath), dict(storage_options or {})
        if not isinstance(given, str):
            raise TypeError(f"the name of the new files must be a path or a template; got {given!r:.100}")
        if not given:
            raise ValueError("the path is an empty string; expected a file, a directory or a template")
        if given.endswith("/") or is_directory(given, options):
            given = join(_escaped(given), DEFAULT_NAME)
        given = store_url(given, options)
        above, slash, name = given.rpartition("/")
        # Fields of other names are those of the shard, too.
        if (fields := with_fields(re.sub(r"(?<!{){(?!shards?\b)[^{}]*}(?!})", "%d", name))) != name:
            written = redact_url(f"{above}{slash}{fields}")
            raise ValueError(f"the field {{shard}} numbers the new files: write {written!r}; got {redact_url(given)!r}")
        names = cls(given, options)
        try:
            found = {field for _, field, _, _ in Formatter().parse(given) if field is not None}
            if found - {"shard", "shards"} or found == {"shards"}:
                raise ValueError("{shards} needs {shard}, and there are no others")
            names.paths(2)
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            fields = "a template has fields {shard} and {shards}, and {{ for a brace"
            raise ValueError(f"{fields}; got {redact_url(given)!r} ({error})") from error
        if is_local(given):
            # The current directory of a worker may differ.
            return cls(str(Path(given).expanduser().absolute()), options)
        return names

    @classmethod
    def from_directory(
        cls, directory: str | os.PathLike[str], template: str, storage_options: Mapping[str, Any] | None
    ) -> ShardNames:
        """Name the shards of a directory by a template of file names."""
        given = stringify_path(directory)
        if not isinstance(given, str):
            raise TypeError(f"the name of the new directory must be a path; got {given!r:.100}")
        check_not_numbered(given)
        return cls.from_urlpath(join(_escaped(given), template), storage_options)

    @property
    def directory(self) -> str:
        """Path or URL of the directory of the first shard."""
        return directory_of(self.paths(1)[0])

    @property
    def shown(self) -> str:
        """Pattern that finds the files, for messages: ``out/part.*.parquet``."""
        return re.sub(r"\{shards?\b[^}]*\}", "*", redact_url(self.template))

    @property
    def has_default_name(self) -> bool:
        """True if the user specified a directory, so that shards have the default name."""
        return self.template.endswith(f"/{DEFAULT_NAME}")

    @property
    def allows_many(self) -> bool:
        """True if the template names more than one shard."""
        return any(field == "shard" for _, field, _, _ in Formatter().parse(self.template))

    def too_many(self, what: str) -> ValueError:
        """Return the error for more than one shard, where the template names one."""
        return ValueError(f"{what} are several files: give a template such as {self._example()!r}")

    def _example(self) -> str:
        """Return a template for more than one shard, whose number is not in it."""
        template = re.sub(r"(-of-)?\{shards[^}]*\}", "", redact_url(self.template))
        if "{shard" in template:
            return template
        stem, dot, suffix = template.rpartition(".")
        if not dot or "/" in suffix:
            stem, suffix = f"{stem}{dot}{suffix}", ""
        return f"{stem}-{{shard:05d}}{'.' if suffix else ''}{suffix}"

    def paths(self, shards: int) -> list[str]:
        """Return the path or URL of every shard."""
        return [self.template.format(shard=self.first + number, shards=shards) for number in range(shards)]

    def recovered(self) -> Self:
        """Undo what a dead run of these files has published in part, before a write of them is planned."""
        Files(uuid.uuid4().hex, self, 1, "w-", compute=True).recover()
        return self

    def in_mode(self, mode: AddingMode) -> tuple[Self, Mode]:
        """Return the names of a write and its mode; under ``"a"``, start after the numbers of existing shards."""
        self.recovered()
        if mode != "a":
            return self, mode
        if not self.allows_many or any(field == "shards" for _, field, _, _ in Formatter().parse(self.template)):
            raise ValueError(
                f"mode='a' adds files and renames none: give a template with {{shard}} and without {{shards}}, such as "
                f"{self._example()!r}; got {redact_url(self.template)!r}"
            )
        return replace(self, first=max(map(self._number, self.existing(self.paths(1))), default=-1) + 1), "w-"

    def hidden_name(self, suffix: str) -> str:
        """Name an object that belongs to all of a template's files, next to the first."""
        return f"{RUN_PREFIX}{_digest_of_names(self.pattern.pattern.rpartition('/')[2])[:16]}{suffix}"

    def unfinished_job(self, directory: str) -> JobRecord | None:
        """Return the record of the job that writes these files in parts, if one does; else None."""
        name = self.hidden_name(".job")
        with suppress(NotADirectoryError):
            data = objects_in(directory, self.storage_options).get([name])[name]
            place = Location(redact_url(join(directory, name)))
            return None if data is None else JobRecord.from_json(data, place)
        return None

    def _number(self, path: str) -> int:
        found = self.pattern.fullmatch(path)
        return int(found["shard"]) if found is not None and self.allows_many else 0

    @staticmethod
    def display(paths: Sequence[str], noun: str = "shard") -> str:
        """Return the names of files as text: one name, or their number with the first and the last name."""
        # Paths within the current directory are displayed relative to it.
        first, last = (redact_url(path).removeprefix(f"{Path.cwd()}{os.sep}") for path in (paths[0], paths[-1]))
        return f"{plural(len(paths), noun)}, {first} to {last}" if paths[1:] else first

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        """Match all shards that this template names, however many."""
        numbers = {None: "", "shard": "(?P<shard>[0-9]+)"}
        found = ""
        for text, name, _, _ in Formatter().parse(self.template):
            found += re.escape(text) + numbers.get(name, "[0-9]+")
            if name == "shard":
                numbers[name] = "[0-9]+"
        return re.compile(found)

    def existing(self, paths: Sequence[str]) -> list[str]:
        """List existing files that this template names, in the directories of `paths`."""
        if not self.allows_many and not is_local(self.template):
            # The directory may have many other files. Local ones are listed: a lookup misses links without a target.
            return [path for path in paths if file_identity(path, self.storage_options) is not None]
        existing = []
        for directory in dict.fromkeys(directory_of(path) for path in paths):
            files = (join(directory, name) for name in list_files(directory, self.storage_options))
            existing += [file for file in files if self.pattern.fullmatch(file)]
        return sorted(existing)

    def check_free(self, paths: Sequence[str], mode: str, own: Collection[str] = ()) -> list[str]:
        """Return the existing shards, except those of the run itself; raise FileExistsError if they forbid the write.

        Shards of the same template and another number of shards always do: a pattern would read both sets.
        """
        existing = [path for path in self.existing(paths) if path not in own and self._number(path) >= self.first]
        new = set(paths)
        if mode == "w-" and (same := [path for path in existing if path in new]):
            raise FileExistsError(f"{_first_of(same)} exists already: " + OVERWRITE + " replaces existing files")
        if other := [path for path in existing if path not in new]:
            raise FileExistsError(
                f"{_first_of(other)} exists, with the same template and a different number of shards: a pattern would "
                "read both sets. Remove it, or write under another name"
            )
        return existing

    def directories(self, paths: Sequence[str]) -> list[Path]:
        """List the directories of local shards, and the parents of these."""
        needed: dict[Path, None] = {}
        for directory in dict.fromkeys(directory_of(path) for path in paths):
            fs, inside = url_to_fs(directory, **self.storage_options)
            if isinstance(fs, LocalFileSystem):
                needed |= dict.fromkeys([Path(inside), *Path(inside).parents])
        return list(needed)

    @cached_property
    def base(self) -> str:
        """Path or URL of the directory that contains all files."""
        text = next((text for text, *_ in Formatter().parse(self.template)), "")
        return directory_of(f"{text}x")

    def name_of(self, path: str) -> str:
        """Return the name of a path below `base`."""
        return path[len(self.base) :].lstrip("/")

    @property
    def digits(self) -> str:
        """Digits of the template in the names of its run folders, with a separator."""
        return f"{_digest_of_names(self.pattern.pattern.rpartition('/')[2])[:16]}-"

    def is_published(self, name: str) -> bool:
        """Return whether a name below `base` is one of these files, or of those that describe them."""
        path = join(self.base, name)
        if METADATA.fullmatch(name.rpartition("/")[2]) or self.pattern.fullmatch(path):
            return True
        return any(path.endswith(suffix) and self.pattern.fullmatch(path.removesuffix(suffix)) for suffix in _SIDECARS)


@dataclass(frozen=True, repr=False)
class UnitNames(ShardNames):
    """Files of an output below a directory: several of each unit, and last the file that the template names."""

    root: str = ""

    @classmethod
    def from_root(
        cls, path: str | os.PathLike[str], last: str, storage_options: Mapping[str, Any] | None, *fields: Any
    ) -> Self:
        """Name the files below a directory; the subclass defines `fields`."""
        names = ShardNames.from_directory(path, last, storage_options)
        if names.has_default_name:
            raise IsADirectoryError(
                errno.EISDIR, "expected a file to write, this is a directory", join(str(path), last)
            )
        return cls(names.template, names.storage_options, names.paths(1)[0].removesuffix(f"/{last}"), *fields)

    @cached_property
    def base(self) -> str:
        """Directory of the output."""
        return self.root

    def is_published(self, name: str) -> bool:
        """Return whether a name below the directory belongs to an output of this kind, and not to a run of it."""
        return RUN_PREFIX not in name and self.is_own(name)

    @property
    def last(self) -> str:
        """File that describes the output: without it, the output is not complete."""
        return self.template.format()

    def of_unit(self, unit: int) -> list[str]:
        """Return the paths of the files of a unit."""
        raise NotImplementedError

    def is_own(self, name: str) -> bool:
        """Return whether a name below the directory belongs to an output of this kind."""
        raise NotImplementedError

    def conversion(self) -> str | None:
        """Return the conversion that completed this output; None without one, or if other software wrote it."""
        raise NotImplementedError

    def paths(self, shards: int) -> list[str]:
        """Return the paths of the files of all units."""
        return [path for unit in range(shards) for path in self.of_unit(unit)]

    def existing(self, paths: Sequence[str]) -> list[str]:
        """List existing files of outputs with these names, for any number of units."""
        fs, inside = url_to_fs(self.root, **self.storage_options)
        fs.invalidate_cache()
        found = (name.removeprefix(inside).lstrip("/") for name in files_below(fs, inside))
        return sorted(join(self.root, name) for name in found if self.is_published(name) and self.is_own(name))

    def check_free(self, paths: Sequence[str], mode: str, own: Collection[str] = ()) -> list[str]:
        """Return the existing files that another run wrote; refuse them under ``mode="w-"``."""
        existing = [path for path in self.existing(paths) if path not in own]
        if existing and mode == "w-":
            raise FileExistsError(
                f"{existing[0]} exists, and belongs to another data set or conversion: "
                + OVERWRITE
                + " replaces it, and "
                + RESUME
                + " continues a conversion of the same rows with the same options that was started with "
                + RESUME
            )
        return existing


def _sidecars_of(paths: Sequence[str]) -> list[str]:
    sidecars = (sidecar_path(path, suffix) for path in paths for suffix in _SIDECARS)
    return [path for path in sidecars if path is not None]


def _escaped(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")


def _first_of(paths: Sequence[str]) -> str:
    return redact_url(paths[0]) + (f" (and {len(paths) - 1:,} more)" if paths[1:] else "")


def _remove_empty(directories: Sequence[Path]) -> None:
    for path in directories:
        with suppress(OSError):
            path.rmdir()


# Checks files, by their paths, reports and options of fsspec.
Check = Callable[[Sequence[str], Sequence[ShardWriteReport], Mapping[str, Any]], None]


class Cancelled(Exception):
    """The write was cancelled because another task failed."""


@dataclass(frozen=True, slots=True)
class JobRecord:
    """Content of the object next to the files of a job."""

    # Name of its run folder.
    token: HexToken
    count: Annotated[int, within(1, _MOST_FILES)]
    # Number of the first file.
    first: Count
    # Inputs and options, as attributes of a group.
    fingerprint: Mapping[str, Any] = field(default_factory=dict)
    # None in a record of an earlier version, whose files are not below the run folder.
    mode: Literal["w-", "w"] | None = None
    # The argument `tfds`, and the texts of TFDS's metadata by file name, without the splits.
    tfds: Mapping[str, str] | None = None
    texts: Mapping[Annotated[str, matches(METADATA.pattern, "a file of TFDS")], str] = field(default_factory=dict)

    @classmethod
    def from_json(cls, data: bytes, place: Location) -> JobRecord:
        """Read a record; raise ResumeError if an earlier version wrote it."""
        record = parse(cls, data, "the record of a job", place)
        if record.mode is None:
            raise ResumeError(
                "an earlier version of dask_tfrecord began this job, and this one can't continue it: "
                + OVERWRITE
                + " begins it again",
                place,
            )
        return record

    def to_json(self) -> bytes:
        """Return the content of the object."""
        return json.dumps(asdict(self)).encode()


@dataclass(frozen=True, slots=True)
class Files:
    """Files of one write: the `Output` of its run.

    Tasks write files below a hidden folder, next to the first file of readers. The client verifies them, and renames
    them to where readers find them.
    """

    token: str  # 32 hexadecimal digits
    names: ShardNames
    count: int
    mode: Literal["w-", "w"]
    # True: a client prepares the run and waits for its tasks. False: the tasks of a `Delayed` prepare it.
    compute: bool
    compression: str | None = None
    index: bool = False
    # Text of the labels next to each shard.
    labels: str | None = None
    # Metadata files to write next to the shards.
    metadata: TFDSMetadata | None = None
    # Further check of the files, by their reports.
    check: Check | None = None
    # 32 hexadecimal digits of the inputs and options of a write that can be resumed: they name its run folder, and
    # files and records of a run that ended early are kept.
    resumable: str | None = None
    # Object in the run folder of the program that writes a part of a job; without it, its tasks publish nothing.
    part: str | None = None
    # Directory of the first file, and the run folder in it.
    directory: str = field(init=False)
    folder: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "directory", directory_of(self.names.template.format(shard=0, shards=self.count)))
        # The next run of these files takes over folders with the digits of their template. A `Delayed` has no owner.
        own = self.names.digits if self.compute else ""
        object.__setattr__(self, "folder", join(self.directory, f"{RUN_PREFIX}{own}{self.resumable or self.token}"))

    @property
    def paths(self) -> list[str]:
        """Path or URL of every file."""
        return self.names.paths(self.count)

    @property
    def _stage(self) -> Stage:
        return self._stage_in(self.folder)

    def _stage_in(self, folder: str) -> Stage:
        names = self.names
        return Stage(names.base, names.name_of(folder), names.storage_options, names.is_published)

    def staged(self, path: str) -> str:
        """Return the path or URL of a file until the run publishes it as `path`."""
        return self._stage.path(self.names.name_of(path))

    def check_free(self) -> None:
        """Refuse a write that another run or existing files forbid, before rows are read."""
        base = self.names.base
        # In a bucket this would be three requests.
        if is_local(base) and is_zarr_group(base):
            raise FileExistsError(f"{Location(base)} is a Zarr store: write to another directory")

        def check() -> None:
            self._other_job()
            # When this run owns the files, it moves back what a dead run has left.
            if not self.journal.is_left_by_dead_run():
                self.names.check_free(self.paths, self.mode)

        self.journal.check_free(check)

    @contextmanager
    def owned(self) -> Iterator[None]:
        """Own the files, as by `Journal.owned`, and remove directories that were made in vain."""
        made = [path for path in self.names.directories(self.paths) if not path.exists()]
        made.sort(key=lambda path: -len(path.parts))
        with self.journal.owned(self.token, partial(_remove_empty, made)):
            try:
                yield
            finally:
                # While this run owns them: the next one may need them. Those that hold the journal are not empty.
                _remove_empty(made)

    def begin(self) -> bool:
        """Undo what dead runs have published in part, refuse files that must stay, and make the run folder."""
        names, options = self.names, self.names.storage_options
        if self._other_job():
            objects_in(self.directory, options).drop([names.hidden_name(".job")])
        # With files, metadata and the journal.
        directories = [*dict.fromkeys([self.directory, *map(directory_of, self.paths)])]
        found = remove_abandoned(directories, options, own=self.folder)
        if self._take_over(found[self.directory]):
            return False
        # The files of a dead run that this one may repeat are compared with its own when it publishes them.
        repeated = names.existing(self.paths) if self.journal.unanswered(self.token) else ()
        for path in names.check_free(self.paths, self.mode, repeated):
            if is_local(path) and Path(path).is_dir() and not Path(path).is_symlink():
                raise IsADirectoryError(errno.EISDIR, "expected a file to replace, this is a directory", path)
        # Tasks do not create the folder: one that runs late would do so again.
        self._stage.make(map(names.name_of, self.paths))
        return True

    def refuse_other_split(self) -> None:
        """Refuse to describe a data set of TFDS while a write of another split replaces its description."""
        options = self.names.storage_options
        for name in list_files(self.directory, options) if self.metadata is not None else ():
            if name.startswith(RUN_PREFIX) and self.names.digits not in name:
                held = list_files(join(self.directory, name), options)
                if any(each.startswith(PUBLISHING) for each in held):
                    raise StoreInUseError(
                        f"a write of another split publishes it, or was killed meanwhile: if {name} stays, run that "
                        f"write again before this one",
                        Location(redact_url(self.directory)),
                    )

    def recover(self) -> None:
        """Move back what a dead run has published in part, before anything is planned with the files that exist."""
        if self.journal.is_left_by_dead_run():
            with self.owned():
                self._take_over(list_files(self.directory, self.names.storage_options))

    def _run_folders(self, found: Mapping[str, Mapping[str, Any]]) -> list[str]:
        """List the run folders for these files, from a listing of the directory."""
        pattern = re.compile(re.escape(f"{RUN_PREFIX}{self.names.digits}") + r"[0-9a-f]{32}(\.gone)?")
        return [
            join(self.directory, name)
            for name, info in found.items()
            if info["type"] == "directory" and not info.get("islink") and pattern.fullmatch(name)
        ]

    def _take_over(self, found: Mapping[str, Mapping[str, Any]]) -> bool:
        """Undo what other runs of these files have left; return True if this one is published already."""
        is_published = False
        for folder in self._run_folders(found):
            stage, is_own = self._stage_in(folder), folder == self.folder
            whole = stage.recover()
            if whole is not None:
                added, unanswered = {whole.identity: whole.first}, self.journal.unanswered(self.token)
                if is_own:
                    is_published = True
                else:
                    added, unanswered = {}, unanswered | added
                self.journal.record_published(self.token, added, unanswered)
            if whole is not None or not is_own:
                stage.remove()
        return is_published

    def finish(self, reports: Sequence[ShardWriteReport]) -> None:
        """Verify and publish the files of a `Delayed`: its last task, whose concurrent copies take turns."""
        digits = self.token[:_COPIED_DIGITS]
        own = replace(self, token=digits + uuid.uuid4().hex[_COPIED_DIGITS:], resumable=self.token)
        while True:
            try:
                with own.owned(), cancel_on_failure(own.token, own.end):
                    Run(own).finish(reports)
                return
            except StoreInUseError:
                owner = self.journal.owner()
                if owner is not None and not owner.token.startswith(digits):
                    raise
                time.sleep(_TURN_SECONDS)

    def verify(self, reports: Sequence[ShardWriteReport]) -> None:
        """Verify every file.

        Raises IncompleteStoreError if a file is missing, or has another size or checksum than its task reported.
        """
        options, held, name_of = self.names.storage_options, self._stage.held(), self.names.name_of
        self._check_owner()

        def place(path: str) -> str:
            """Return where a file is; a `Delayed` that is computed again may have published it."""
            return self.staged(path) if self.compute or name_of(path) in held else path

        written = {
            path: StoredFile(report.stored, report.version, report.checksum)
            for path, report in zip(self.paths, reports, strict=True)
        }
        sidecars = {path: StoredFile(size) for report in reports for path, size in report.sidecars}
        if self.check is not None:
            self.check([*map(place, written)], reports, options)
        paths = {place(path): path for path in (*written, *sidecars)}

        def owns(place: str) -> bool:
            """Return whether a copy of the task of this run wrote the current file."""
            path = paths[place]
            return self._unit(path, self._identity(self.staged(path))) is not None

        files = {place(path): file for path, file in (written | sidecars).items()}
        check_files(files, options, owns, lambda place: redact_url(paths[place]))

    def publish(self, reports: Sequence[ShardWriteReport]) -> None:
        """Show the verified files to readers, unless an earlier call has, and end the run."""
        names, stage, paths = self.names, self._stage, self.paths
        self.journal.end_writing(self.token)
        self._check_owner()
        # Another program may have written files since the run began.
        existing = {*names.check_free(paths, "w")}
        kept = self._kept(existing)
        identity, unanswered = self.identity(reports), self.journal.unanswered(self.token)
        first = unanswered.get(identity)
        if first is not None and self._is_there(reports, first):
            # The call that this one repeats was killed after it had published the same.
            self._fenced_journal.record_published(self.token, {identity: first}, unanswered)
            self.end()
            return
        new = {path: report for path, report in zip(paths, reports, strict=True) if path not in kept}
        sidecars = [name for report in new.values() for name, _ in report.sidecars]
        self.refuse_other_split()
        described = self.documents(reports)
        last = [*described][-1] if described else ""
        present = self._present([*new, *sidecars, *described])
        # Documents that are replaced with the files are published again, others only if they change.
        changed = [path for path in described if path not in present - existing or self._read(path) != described[path]]
        if new or changed:
            # The last document is published again if it describes other files.
            shown = [*new, *sidecars, *(path for path in described if path in changed or path == last)]
            stage.add_directories(map(names.name_of, described))
            for path in shown:
                if path in described:
                    write_file(self.staged(path), described[path], names.storage_options)
            gone = existing - kept if self.mode == "w" else set()
            gone |= present & {*shown, *_sidecars_of([*gone, *new])}
            stage.publish(
                self.token,
                {names.name_of(path): self._stored(path) for path in shown},
                sorted(map(names.name_of, gone)),
                names.name_of(last) if last else "",
                identity,
                names.first,
                self._check_owner_now_and_then(),
            )
        with suppress(OSError):
            # The first file of all belongs to a run that wrote all files of the template.
            added, before = {identity: names.first}, unanswered if names.first else {}
            self._fenced_journal.record_published(self.token, added, before)
        # A run that has taken over has moved the files back, or keeps the identity for this call, which answers when it
        # is repeated.
        self._check_owner()
        self.end()

    def _kept(self, existing: Collection[str]) -> set[str]:
        """Return the existing files that belong to this run; raise FileExistsError for others that must stay."""
        kept, held = set(), self._stage.held()
        if self.compute and self.resumable is None and not held.issuperset(map(self.names.name_of, self.paths)):
            # A run that wakes may write its claim again, but its folder is gone.
            raise self._lost()
        for path in self.paths if existing else ():
            if path not in existing:
                continue
            if self.names.name_of(path) not in held or (self.mode == "w-" and self._is_same(path)):
                kept.add(path)
            elif self.mode == "w-":
                raise FileExistsError(
                    f"{Location(path)} exists already, and this write did not make it: another program wrote it since "
                    f"this one began, and its files are kept. " + OVERWRITE + " replaces it"
                )
        return kept

    def identity(self, reports: Sequence[ShardWriteReport]) -> str:
        """Return the identity of what is published: the same for a call that is repeated."""
        written = [(report.stored, report.checksum) for report in reports]
        return hashlib.sha256(json.dumps(written).encode()).hexdigest()

    def _is_there(self, reports: Sequence[ShardWriteReport], first: int) -> bool:
        """Return whether readers find such files, the first of which has a number: they have the sizes of these."""
        if self.mode == "w":
            return False
        found = map(self._identity, replace(self.names, first=first).paths(self.count))
        return [file and file.size for file in found] == [report.stored for report in reports]

    def documents(self, reports: Sequence[ShardWriteReport]) -> Mapping[str, bytes]:
        """Return the documents that describe the files, by path; the last one makes readers find the others."""
        if self.metadata is None:
            return {}
        return self.metadata.documents(
            [report.records for report in reports], sum(report.stored for report in reports), self.names.storage_options
        )

    def _present(self, paths: Iterable[str]) -> set[str]:
        """Return the existing files in the directories of paths."""
        options, directories = self.names.storage_options, dict.fromkeys(map(directory_of, paths))
        return {join(directory, name) for directory in directories for name in list_files(directory, options)}

    def _read(self, path: str) -> bytes | None:
        directory, name = split_name(path)
        return objects_in(directory, self.names.storage_options).get([name])[name]

    def discard(self) -> None:
        """Move back what readers found before, and remove the new files or keep those that can be resumed."""
        owner = self.journal.owner()
        if owner is not None and not self._is_owner(owner):
            # What this run has left belongs to the one that took over, or to the one after that.
            return
        self.journal.end_writing(self.token)
        whole = self._stage.recover()
        if whole is not None:
            # All was published before the failure.
            unanswered = self.journal.unanswered(self.token)
            self.journal.record_published(self.token, {whole.identity: whole.first}, unanswered)
        if whole is not None or self.resumable is None:
            self.end()

    def recorded(self) -> list[bool]:
        """Return for each file whether this run has recorded it: it may have changed since."""
        records = list_files(self.folder, self.names.storage_options)
        return [f"{_record_name(path)}.json" in records for path in self.paths]

    def forget_changed(self) -> None:
        """Delete the records of files that changed after this run wrote them."""
        changed = [path for path in self.paths if self.published_report(path) is None]
        Units(self._objects).drop(map(_record_name, changed))

    def write(self, path: str, write_content: Callable[[ByteSink], tuple[int, int]]) -> ShardWriteReport:
        """Write the file of a task as by `write_unit`, and report the end of the task."""
        report = self.write_unit(path, write_content)
        report_progress(report)
        return report

    def write_unit(self, path: str, write_content: Callable[[ByteSink], tuple[int, int]]) -> ShardWriteReport:
        """Write a file below the run folder, whole or not at all; do nothing if this run has written it.

        `write_content` writes to a sink, and returns the number of records and their decoded bytes. The report is empty
        if the run was cancelled. Raises IncompleteStoreError if the run has ended.
        """
        report = self.published_report(path)
        if report is None:
            try:
                report = self._write(path, write_content)
            except Cancelled:
                return ShardWriteReport(0, 0)
            finally:
                release_memory()
        return report

    def check_running(self) -> None:
        """Raise `Cancelled` if the run was cancelled."""
        if is_cancelled(self.token):
            raise Cancelled

    @property
    def journal(self) -> Journal:
        """Journal of all files of the template whose first file is in the directory."""
        objects = objects_in(self.directory, self.names.storage_options)
        return Journal(objects, self.names.hidden_name(".claim"), "these files", self._location)

    @property
    def _fenced_journal(self) -> Journal:
        """The same, which changes nothing in a directory when another run has removed the run folder."""
        journal = self.journal
        if isinstance(journal.objects, DirectoryObjects):
            return replace(journal, objects=replace(journal.objects, own=self.folder))
        return journal

    @property
    def _location(self) -> Location:
        return Location(self.names.shown)

    def part_writers(self) -> list[Journal]:
        """Return a journal for each program that writes a part of a job of these files, or was killed meanwhile."""
        folder, options = self.folder, self.names.storage_options
        return part_writers(
            objects_in(folder, options), list_files(folder, options), "a part of these files", self._location
        )

    def _other_job(self) -> JobRecord | None:
        """Return the record of an unfinished job of other rows; refuse one that must not be replaced."""
        try:
            job = self.names.unfinished_job(self.directory)
        except (IncompleteStoreError, ResumeError):
            if self.mode == "w":
                # The record is replaced, with nothing that it names.
                return JobRecord("", 1, 0)
            raise
        if job is None or job.token == self.resumable:
            return None
        for writer in replace(self, resumable=job.token).part_writers():
            writer.check_free()
        if self.mode == "w-":
            raise FileExistsError(
                f"{self.names.shown} is written in parts by a job that is not finished: "
                + RESUME
                + " divides it again, "
                + OVERWRITE
                + " replaces it"
            )
        return job

    def _check_owner(self) -> None:
        """Raise StoreInUseError unless this run owns the files: another one may have taken over, and have ended."""
        journal = self.journal
        owner = journal.owner()
        if owner is not None and self._is_owner(owner):
            return
        journal.check_owner(self.token)
        raise self._lost()

    def _is_owner(self, owner: Owner) -> bool:
        """Return whether this run owns the files."""
        # A run that finishes a job has a token that begins with the token of the job.
        return owner.token.startswith((self.token, self.resumable or self.token))

    def _lost(self) -> StoreInUseError:
        return StoreInUseError(
            "another run has taken over these files while this one did not respond. This one writes nothing more",
            self.journal.location,
        )

    def _check_owner_now_and_then(self) -> Callable[[], None]:
        """Return a check that asks now and then; a rename fails without the folder."""
        asked = OwnerCheck()

        def check() -> None:
            if asked.is_due():
                self._check_owner()

        return check

    def end(self) -> None:
        """Remove the run folder, or warn that it can't be removed."""
        try:
            self._stage.remove()
        except OSError as error:
            warn_caller(f"{redact_url(self.folder)} can't be removed ({describe_error(error)}); remove it by hand")

    def _write(self, path: str, write_content: Callable[[ByteSink], tuple[int, int]]) -> ShardWriteReport:
        is_new, staged = False, self.staged(path)

        def should_publish(temporary: Path) -> bool:
            nonlocal is_new
            is_new = self._should_publish(path, temporary)
            return is_new

        with while_running(self.token) as is_running:
            if not is_running:
                raise Cancelled
            try:
                sink = self._open(path, should_publish)
                try:
                    records, nbytes = write_content(sink)
                    self.check_running()
                    sink.close()
                except BaseException:
                    sink.discard()
                    raise
            except FileNotFoundError:
                # Another run has removed the folder.
                self._check_writing()
                raise
            place = staged if is_new or self._identity(staged) is not None else path
            sidecars = self._write_labels(place, path) + (self._write_index(place, path) if self.index else ())
            stored = self._stored(path) if place == staged else self._identity(path)
            if stored is None:
                raise IncompleteStoreError("the file was written, and another program removed it", Location(path))
            report = ShardWriteReport(
                records, nbytes, stored.size, peak_memory(), sidecars, stored.version, sink.checksum
            )
            if place == staged:
                self._record(path, report)
            else:
                self._stage.tidy()
            _log.info("%s: %s %s", Location(path), "wrote" if is_new else "kept", plural(records, "record"))
        return report

    def _open(self, path: str, should_publish: ShouldPublish) -> ByteSink:
        """Open a new file below the run folder if the client waits for the tasks; else without a folder."""
        for last in (False, False, True):
            if self.compute:
                self._check_writing()
            else:
                self.journal.check_free()
            try:
                if not self.compute:
                    self._stage.make([self.names.name_of(path)])
                return open_sink(self.staged(path), self.compression, self.names.storage_options, should_publish)
            except FileNotFoundError:
                # Another task of a `Delayed` found the folder empty, and removed it.
                if self.compute or last:
                    raise
        raise AssertionError("the last attempt returns or raises")

    def _check_writing(self) -> None:
        """Raise unless this task's run still writes: its client, or the program that writes a part."""
        if self.compute:
            own = self.journal if self.part is None else replace(self.journal, objects=self._objects, name=self.part)
            own.check_writing(self.token)

    def published_report(self, path: str) -> ShardWriteReport | None:
        """Return the report of a file that this run has written and that has not changed."""
        unit = self._unit(path, self._identity(self.staged(path)))
        if unit is None or not unit.report:
            return None
        return ShardWriteReport.from_json(unit.report)

    def _should_publish(self, path: str, temporary: Path) -> bool:
        """Decide whether a complete temporary file is the one of this run.

        False if a copy of the task has written the file, or readers find one with the same bytes already.
        """
        self._check_writing()
        existing = self._identity(self.staged(path))
        if existing is not None and self._unit(path, existing) is not None:
            return False
        if not self.compute and self._identity(path) is not None and self._is_same(path, temporary):
            return False
        if is_local(path) and isinstance(url_to_fs(path)[0], LocalFileSystem):
            # Renaming keeps the identity. With the record first, a copy of the task finds this file.
            own = file_identity(str(temporary), {})
            if own is not None:
                self._record_unit(path, own, None)
        return True

    def _record(self, path: str, report: ShardWriteReport) -> None:
        """Record a file that this run has written."""
        identity = None
        # A task that runs twice at once may replace the file before it is recorded.
        while identity != (current := self._stored(path)):
            identity = current
            self._record_unit(path, identity, report)

    def _stored(self, path: str) -> StoredFile:
        existing = self._identity(self.staged(path))
        if existing is None:
            self._check_writing()
            raise IncompleteStoreError("the file was written, and another program removed it", Location(path))
        return existing

    def _identity(self, path: str) -> StoredFile | None:
        return file_identity(path, self.names.storage_options)

    def _is_same(self, path: str, own: Path | None = None) -> bool:
        """Compare a published file with this run's byte for byte."""
        fs, inside = url_to_fs(path, **self.names.storage_options)
        place = url_to_fs(self.staged(path), **self.names.storage_options)[1]
        with fs.open(inside, "rb") as stored, fs.open(place, "rb") if own is None else own.open("rb") as new:
            while True:
                block, other = new.read(_COMPARED_NBYTES), stored.read(_COMPARED_NBYTES)
                if block != other or not block:
                    return bool(block == other)

    @property
    def _objects(self) -> Objects:
        return objects_in(self.folder, self.names.storage_options, makes_directory=False)

    def _unit(self, path: str, existing: StoredFile | None) -> Unit | None:
        """Return the record of an existing file; None if this run did not write it."""
        if existing is None:
            return None
        name = _record_name(path)
        unit = (Units(self._objects).read([name])[name] or {}).get(path)
        if unit is None or unit.objects.get(path, StoredFile(-1))[:2] != existing[:2]:
            return None
        return unit

    def _record_unit(self, path: str, identity: StoredFile, report: ShardWriteReport | None) -> None:
        unit = Unit({} if report is None else asdict(report), {path: identity})
        # The folder of a run that has ended is not created again.
        with suppress(FileNotFoundError):
            Units(self._objects).record(_record_name(path), {path: unit})

    def _write_labels(self, place: str, path: str) -> tuple[tuple[str, int], ...]:
        """Write the labels of a new shard; return their path and size. They are the same for every copy."""
        if self.labels is None:
            return ()
        name, shown = sidecar_path(place, SUFFIX), sidecar_path(path, SUFFIX)
        if name is None or shown is None:
            raise TFRecordError("labels of xarray cannot be written next to this URL: it has a query", Location(path))
        data = self.labels.encode()
        write_file(name, data, self.names.storage_options)
        return ((shown, len(data)),)

    def _write_index(self, place: str, path: str) -> tuple[tuple[str, int], ...]:
        """Write the sidecars of a new shard; return their paths and sizes."""
        options = self.names.storage_options
        for attempt in reversed(range(_INDEX_ATTEMPTS)):
            shard = find_shards(place, compression=self.compression, storage_options=options)[0]
            try:
                return tuple(
                    (path + name.removeprefix(place), size) for name, size in write_sidecars(shard).files.items()
                )
            except ShardChangedError:
                # A concurrent copy of the same task has written the shard a second time.
                if not attempt:
                    raise
        raise AssertionError("the last attempt returns or raises")


@dataclass(frozen=True, slots=True)
class UnitReport(WriteReport):
    """Report of a task that published several files."""

    files: tuple[ShardWriteReport, ...] = ()


@dataclass(frozen=True, slots=True)
class UnitFiles(Files):
    """Files named by `UnitNames`: one task publishes the several files of a unit."""

    names: UnitNames

    def is_complete(self, identity: str | None = None) -> bool:
        """Return whether the write that is resumed has completed; remove what it left if it was killed after that.

        `identity` is what it has added to an output, if other calls add to it as well.
        """
        if self.resumable is None or self.names.conversion() != self.resumable:
            return False
        if self.journal.is_left_by_dead_run():
            with self.owned():
                self._take_over(list_files(self.directory, self.names.storage_options))
                added, unanswered = ({identity: 0}, self.journal.unanswered(self.token)) if identity else ({}, {})
                self.journal.record_published(self.token, added, unanswered)
                self.end()
        return True

    def verify(self, reports: Sequence[Any]) -> None:
        """Verify the files of all units."""
        Files.verify(self, [report for unit in reports for report in unit.files])

    def publish(self, reports: Sequence[Any]) -> None:
        """Show the files of all units to readers."""
        Files.publish(self, [report for unit in reports for report in unit.files])

    def documents(self, reports: Sequence[ShardWriteReport]) -> Mapping[str, bytes]:
        """Return the files that describe the output, by path; the last one makes it complete."""
        return {join(self.names.root, name): data for name, data in self.descriptions().items()}

    def descriptions(self) -> Mapping[str, bytes]:
        """Return the files that describe the output, by their names below its directory; the last makes it complete."""
        raise NotImplementedError

    def _is_there(self, reports: Sequence[ShardWriteReport], first: int) -> bool:
        """Return False: files with the same names are compared."""
        return False

    def publish_unit(self, unit: int, write: Callable[[Sequence[BinaryIO]], tuple[int, int]]) -> UnitReport:
        """Write a unit's files, unless this run has written them all, and report the task's end.

        `write` writes their contents, and returns the number of rows and their decoded bytes.
        """
        paths = self.names.of_unit(unit)
        reports = [self.published_report(path) for path in paths]
        if None in reports:
            with ExitStack() as stack:
                contents = [stack.enter_context(TemporaryFile()) for _ in paths]
                with add_path_to_errors(gettempdir()):
                    amount = write(contents)
                # Report the rows with the first file only.
                written = zip(paths, contents, [amount, *((0, 0) for _ in paths[1:])], strict=True)
                reports = [self.write_unit(path, _copied(content, each)) for path, content, each in written]
        made = [report for report in reports if report is not None]
        total = WriteReport.sum(made)
        report = UnitReport(total.records, total.nbytes, total.stored, total.peak, tuple(made))
        report_progress(report)
        return report


def _copied(content: BinaryIO, amount: tuple[int, int]) -> Callable[[ByteSink], tuple[int, int]]:
    def write_content(sink: ByteSink) -> tuple[int, int]:
        content.seek(0)
        while block := content.read(_COMPARED_NBYTES):
            sink.write(block)
        return amount

    return write_content


def _record_name(path: str) -> str:
    return _digest_of_names(path)[:32]


def _digest_of_names(path: str) -> str:
    # The locale may lack bytes for the path.
    return hashlib.sha256(path.encode("utf-8", "surrogateescape")).hexdigest()


@dataclass(frozen=True, slots=True, eq=False)
class FileWrite:
    """A write of files by tasks ``step(files, *shared, *arguments)``, which `run` computes, or a job in parts."""

    files: Files
    step: Callable[..., WriteReport]
    shared: Sequence[Any]
    # Arguments of each task; with `rows`, the rows and columns that it reads, and its arguments before their source.
    units: Sequence[tuple[Any, ...]]
    work: Callable[[], WriteWork]
    rows: RowTasks | None = None

    @classmethod
    def of_rows(
        cls,
        files: Files,
        row_tasks: RowTasks,
        step: Callable[..., WriteReport],
        shared: Sequence[Any],
        units: Sequence[tuple[tuple[int, int], Sequence[str], tuple[Any, ...]]],
        location: str,
    ) -> FileWrite:
        """Write the files of each unit; `units` has the rows, the columns that are read, and the arguments of each."""
        name, nrows = task_name(step, files.token), row_tasks.rows.nrows or 0
        spans, features = [each for each, _, _ in units], len(units[0][1])

        def work() -> WriteWork:
            return WriteWork.of_rows(location, name, row_tasks.source, nrows, features, spans)

        return cls(files, step, shared, units, work, row_tasks)

    def run(self) -> Delayed | None:
        """Write the files; or with ``compute=False``, return the tasks."""
        files = self.files
        build = partial(build_tasks, token=files.token) if self.rows is None else self.rows.build

        def tasks(*last: Any) -> Delayed:
            return build(self.step, self.units, last, *sent_once(files, self.shared))

        if not files.compute:
            return tasks(Files.finish, files)
        return Run(files).write(lambda: (tasks(collect), self.work()))


def sent_once(files: Files, shared: Sequence[Any]) -> list[Delayed]:
    """Return the first arguments of all tasks as nodes, which are sent once to each worker."""
    return [
        dask.delayed(value, name=f"tfrecord-shared-{number}-{files.token}", traverse=False)
        for number, value in enumerate((files, *shared))
    ]
