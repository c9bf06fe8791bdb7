"""Publication of files: each appears whole, and a failed or repeated write leaves nothing that does not belong.

dask may run a task twice, late, concurrently with itself, or after its successors. Each write therefore keeps a hidden
run folder next to its first file. For each published file it records a unit: the identity of the file and the report
of the task. A client that waits for the tasks owns the template of the files meanwhile; a task of another run publishes
nothing.
"""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import re
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from string import Formatter
from tempfile import TemporaryFile, gettempdir
from typing import Any, BinaryIO, Literal, Self

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
    ShardChangedError,
    TFRecordError,
    add_path_to_errors,
    describe_error,
    plural,
    redact_url,
    repr_without_credentials,
    warn_caller,
)
from dask_tfrecord.features.metadata.labels import SUFFIX
from dask_tfrecord.features.metadata.tfds import TFDSMetadata
from dask_tfrecord.options import AddingMode, Mode
from dask_tfrecord.records.index import write_sidecars
from dask_tfrecord.rows.progress import is_cancelled, report_progress, while_running
from dask_tfrecord.shards.listing import find_shards, sidecar_path
from dask_tfrecord.shards.objects import (
    RUN_PREFIX,
    Objects,
    StoredFile,
    check_files,
    directory_of,
    file_identity,
    list_files,
    make_directory,
    objects_in,
    remove_abandoned,
    remove_temporary,
)
from dask_tfrecord.shards.remote import files_below, is_directory, join, store_url, url_to_fs
from dask_tfrecord.shards.shard import is_local
from dask_tfrecord.shards.streams import ByteSink, open_sink, temporary_files_of, temporary_name, write_file
from dask_tfrecord.stores.documents import Count, HexToken, Positive, parse
from dask_tfrecord.stores.journal import Journal, Unit, Units, part_writers
from dask_tfrecord.stores.output import (
    ShardWriteReport,
    WriteReport,
    WriteWork,
    collect,
    peak_memory,
    run_write,
)
from dask_tfrecord.stores.units import RowTasks, build_tasks, task_name

_log = logging.getLogger(__name__)

_COMPARED_NBYTES = 1 << 20
_INDEX_ATTEMPTS = 5

DEFAULT_NAME = "data-{shard:05d}-of-{shards:05d}.tfrecord"
_FIELDS = ("shard", "shards")
_SIDECARS = (".idx", ".gzidx", ".xarray.json")


@dataclass(frozen=True, slots=True)
class JobRecord:
    """Content of the object next to the files of a job."""

    # Name of its run folder.
    token: HexToken
    count: Positive
    # Number of the first file.
    first: Count
    # Inputs and options, as attributes of a group.
    fingerprint: Mapping[str, Any] = field(default_factory=dict)


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
        given, options = str(stringify_path(urlpath)), dict(storage_options or {})
        if not given:
            raise ValueError("the path is an empty string; expected a file, a directory or a template")
        if given.endswith("/") or is_directory(given, options):
            given = join(_escaped(given), DEFAULT_NAME)
        given = store_url(given, options)
        names = cls(given, options)
        valid = "a template of shards has {shard} and {shards}, with a format such as {shard:05d}, and {{ for a brace"
        try:
            fields = [field for _, field, _, _ in Formatter().parse(given) if field is not None]
            if any(field not in _FIELDS for field in fields) or ("shards" in fields and "shard" not in fields):
                raise ValueError("fields are {shard}, or {shard} and {shards}")
            names.paths(2)
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise ValueError(f"{valid}; got {redact_url(given)!r} ({error})") from error
        if is_local(given):
            # The current directory of a worker may differ.
            return cls(str(Path(given).expanduser().absolute()), options)
        return names

    @classmethod
    def from_directory(
        cls, directory: str | os.PathLike[str], template: str, storage_options: Mapping[str, Any] | None
    ) -> ShardNames:
        """Name the shards of a directory by a template of file names."""
        return cls.from_urlpath(join(_escaped(str(stringify_path(directory))), template), storage_options)

    @property
    def directory(self) -> str:
        """Path or URL of the directory of the first shard."""
        return directory_of(self.paths(1)[0])

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
        return ValueError(
            f"{what} are several files: give a template with {{shard:05d}} in place of {redact_url(self.template)!r}"
        )

    def paths(self, shards: int) -> list[str]:
        """Return the path or URL of every shard."""
        return [self.template.format(shard=self.first + number, shards=shards) for number in range(shards)]

    def in_mode(self, mode: AddingMode) -> tuple[Self, Mode]:
        """Return the names of a write and its mode; under ``"a"``, start after the numbers of existing shards."""
        if mode != "a":
            return self, mode
        if not self.allows_many or any(field == "shards" for _, field, _, _ in Formatter().parse(self.template)):
            raise ValueError(
                f"mode='a' adds files and renames none: give a template with {{shard}} and without {{shards}}, such as "
                f"'part-{{shard:05d}}.tfrecord'; got {redact_url(self.template)!r}"
            )
        return replace(self, first=max(map(self._number, self.existing(self.paths(1))), default=-1) + 1), "w-"

    def hidden_name(self, suffix: str) -> str:
        """Return the name of an object that belongs to all files of the template, in the directory of the first one."""
        return f"{RUN_PREFIX}{_digest(self.pattern.pattern.rpartition('/')[2])[:16]}{suffix}"

    def unfinished_job(self, directory: str) -> dict[str, Any] | None:
        """Return the record of the job that writes these files in parts, if one does; else None."""
        name = self.hidden_name(".job")
        with suppress(NotADirectoryError):
            data = objects_in(directory, self.storage_options).get([name])[name]
            place = Location(redact_url(join(directory, name)))
            return None if data is None else asdict(parse(JobRecord, data, "the record of a job", place))
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
        """Pattern of all shards of this template, for any number of shards."""
        numbers = {None: "", "shard": "(?P<shard>[0-9]+)"}
        found = ""
        for text, name, _, _ in Formatter().parse(self.template):
            found += re.escape(text) + numbers.get(name, "[0-9]+")
            if name == "shard":
                numbers[name] = "[0-9]+"
        return re.compile(found)

    def existing(self, paths: Sequence[str]) -> list[str]:
        """List existing files of this template in the directories of `paths`, for any number of shards."""
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
                f"{_first_of(other)} exists, of the same template and another number of shards: a pattern reads both "
                f"sets. Remove it, or write under another name"
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

    def create_directories(self, paths: Sequence[str]) -> None:
        """Create the directories of local shards; object stores need none."""
        for directory in self.directories(paths):
            make_directory(directory)

    def remove_replaced(self, paths: Sequence[str], token: str) -> None:
        """Remove local files that a run replaces: all of them, or none if one of them can't be removed."""
        local = [Path(url_to_fs(path, **self.storage_options)[1]) for path in (*paths, *_sidecars_of(paths))]
        moved: list[tuple[Path, Path]] = []
        try:
            for path in local:
                if path.is_dir() and not path.is_symlink():
                    raise IsADirectoryError(errno.EISDIR, "expected a file to replace, this is a directory", str(path))
                hidden = path.with_name(temporary_name(path.name, token))
                with suppress(FileNotFoundError):
                    path.rename(hidden)
                    moved.append((path, hidden))
        except BaseException:
            for path, hidden in moved:
                with suppress(OSError):
                    hidden.rename(path)
            raise
        for _, hidden in moved:
            # Those that remain are temporary files of the run.
            with suppress(OSError):
                hidden.unlink()

    def remove(self, paths: Sequence[str]) -> None:
        """Remove files; a missing one is ignored."""
        for path in paths:
            fs, inside = url_to_fs(path, **self.storage_options)
            with suppress(FileNotFoundError):
                fs.rm_file(inside)


@dataclass(frozen=True, repr=False)
class UnitNames(ShardNames):
    """Files of an output below a directory: several of each unit, and last the file that the template names."""

    root: str = ""

    @classmethod
    def from_root(
        cls, path: str | os.PathLike[str], last: str, storage_options: Mapping[str, Any] | None, *fields: Any
    ) -> Self:
        """Name the files below a directory; `fields` are those of the subclass."""
        names = ShardNames.from_directory(path, last, storage_options)
        if names.has_default_name:
            raise IsADirectoryError(
                errno.EISDIR, "expected a file to write, this is a directory", join(str(path), last)
            )
        return cls(names.template, names.storage_options, names.paths(1)[0].removesuffix(f"/{last}"), *fields)

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
        """List the existing files of outputs of this kind, of any number of units."""
        fs, inside = url_to_fs(self.root, **self.storage_options)
        fs.invalidate_cache()
        found = (name.removeprefix(inside).lstrip("/") for name in files_below(fs, inside))
        return sorted(join(self.root, name) for name in found if self.is_own(name))

    def check_free(self, paths: Sequence[str], mode: str, own: Collection[str] = ()) -> list[str]:
        """Return the existing files that another run wrote; refuse them under ``mode="w-"``."""
        existing = [path for path in self.existing(paths) if path not in own]
        if existing and mode == "w-":
            raise FileExistsError(
                f"{existing[0]} exists, of another data set or conversion: "
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


class Cancelled(Exception):
    """The write was cancelled because another task failed."""


@dataclass(frozen=True, slots=True)
class Files:
    """Files of one write: the `Output` of its client, and the publisher of its tasks."""

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
    verify: Callable[[Sequence[str], Sequence[ShardWriteReport], Mapping[str, Any]], None] | None = None
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
        object.__setattr__(self, "folder", join(self.directory, f"{RUN_PREFIX}{self.resumable or self.token}"))

    @property
    def paths(self) -> list[str]:
        """Path or URL of every file."""
        return self.names.paths(self.count)

    @property
    def later_paths(self) -> list[str]:
        """Path or URL of every file that the client publishes after those of the tasks, apart from metadata."""
        return []

    @property
    def _directories(self) -> list[str]:
        """Directories of the files, of the metadata and of the journal."""
        return [*dict.fromkeys([self.directory, *map(directory_of, [*self.paths, *self.later_paths])])]

    def check_free(self) -> None:
        """Refuse a write that another run or existing files forbid, before rows are read."""

        def check() -> None:
            self._other_job()
            self.names.check_free(self.paths, self.mode, self._resumed())

        self.journal.check_free(check)

    @contextmanager
    def owned(self) -> Iterator[None]:
        """Own the files; remove what a dead run left, and directories that were made in vain."""
        made = [path for path in self.names.directories([*self.paths, *self.later_paths]) if not path.exists()]
        made.sort(key=lambda path: -len(path.parts))
        with self.journal.owned(self.token, partial(_remove_empty, made)) as dead:
            if dead is not None:
                # Files and records of a run that can be continued are in a folder named after the conversion.
                replace(self, token=dead, resumable=None).end()
            try:
                yield
            finally:
                # While this run owns them: the next one may need them. Those that hold the journal are not empty.
                _remove_empty(made)

    def begin(self) -> None:
        """Remove replaced files, and create directories."""
        names, paths, own = self.names, self.paths, self._resumed()
        if job := self._other_job():
            objects_in(self.directory, names.storage_options).drop([names.hidden_name(".job")])
            replace(self, token=job["token"], resumable=None).end()
        remove_abandoned(self._directories, names.storage_options, own=self.folder)
        replaced = sorted({*names.check_free(paths, self.mode, own)} & {*paths})
        # Tasks do not create the folder: one that runs late would do so again.
        names.create_directories([*paths, *self.later_paths, join(self.folder, _record_name(paths[0]))])
        # Files of a store are replaced when the new ones are complete.
        if replaced and isinstance(url_to_fs(replaced[0], **names.storage_options)[0], LocalFileSystem):
            names.remove_replaced(replaced, self.token)

    def finish(self, reports: Sequence[ShardWriteReport]) -> None:
        """Verify every file, write the metadata, and end the run; also the last task of a `Delayed`.

        Raises IncompleteStoreError if a file is missing, or has another size or checksum than its task reported.
        """
        self.verify_and_describe(reports)
        self.end()

    def verify_and_describe(self, reports: Sequence[ShardWriteReport]) -> None:
        """Verify every file, and write the metadata."""
        paths, options = self.paths, self.names.storage_options
        self._check_owner()
        written = {
            path: StoredFile(report.stored, report.version, report.checksum)
            for path, report in zip(paths, reports, strict=True)
        }
        if self.verify is not None:
            self.verify(paths, reports, options)
        sidecars = {path: StoredFile(size) for report in reports for path, size in report.sidecars}
        check_files(written | sidecars, options, self._owns)
        if not self.compute:
            # Another program may have written shards since the client checked.
            self.names.check_free(paths, "w")
        with temporary_files_of(self.token):
            self.complete(paths, reports)

    def complete(self, paths: Sequence[str], reports: Sequence[ShardWriteReport]) -> None:
        """Write the metadata of verified files."""
        if self.metadata is not None:
            self.metadata.write(paths, [report.records for report in reports], self.names.storage_options)

    def abort(self) -> None:
        """Remove the files that this run published, and none of another run; keep those that can be resumed."""
        if self.journal.other_owner(self.token) is not None:
            # A run that continues this one uses the same folder.
            self.remove_temporary()
            return
        self.journal.end_writing(self.token)
        if self._resumed():
            self.remove_temporary()
            return
        own = self._own()
        self.names.remove([*own, *_sidecars_of(own)])
        self.end()

    def _own(self) -> list[str]:
        """Return the existing files that this run published."""
        records = list_files(self.folder, self.names.storage_options)
        paths = self._published() if records else []
        return [path for path in paths if f"{_record_name(path)}.json" in records and self._owns(path)]

    def _published(self) -> list[str]:
        """Return the files that the run may have published."""
        return self.paths

    def recorded(self) -> list[bool]:
        """Return for each file whether this run has recorded it: it may be unpublished yet, or changed since."""
        records = list_files(self.folder, self.names.storage_options)
        return [f"{_record_name(path)}.json" in records for path in self.paths]

    def forget_changed(self) -> None:
        """Delete the records of files that changed after this run wrote them."""
        changed = [path for path in self.paths if self.published_report(path) is None]
        Units(self._objects).drop(map(_record_name, changed))

    def _resumed(self) -> set[str]:
        """Return the files that an earlier run of a resumable write published, or this one."""
        return set() if self.resumable is None else {*self._own()}

    def write(self, path: str, write_content: Callable[[ByteSink], tuple[int, int]]) -> ShardWriteReport:
        """Write the file of a task as by `publish`, and report the end of the task."""
        report = self.publish(path, write_content)
        report_progress(report)
        return report

    def publish(self, path: str, write_content: Callable[[ByteSink], tuple[int, int]]) -> ShardWriteReport:
        """Write a file that appears whole or not at all; do nothing if this run has published it.

        `write_content` writes to a sink, and returns the number of records and their decoded bytes. The report is empty
        if the run was cancelled. Raises FileExistsError if another run has published the file, and IncompleteStoreError
        if the run has ended.
        """
        report = self.published_report(path)
        if report is None:
            try:
                with temporary_files_of(self.token):
                    report = self._publish(path, write_content)
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
        return Journal(
            objects, self.names.hidden_name(".claim"), "these files", Location(redact_url(self.names.template))
        )

    def part_writers(self, token: str) -> list[Journal]:
        """Return a journal for each program that writes a part of a job of these files, or was killed meanwhile."""
        folder, options = join(self.directory, f"{RUN_PREFIX}{token}"), self.names.storage_options
        return part_writers(
            objects_in(folder, options), list_files(folder, options), "a part of these files", self.journal.location
        )

    def _other_job(self) -> dict[str, Any] | None:
        """Return the record of an unfinished job of other rows; refuse one that must not be replaced."""
        job = self.names.unfinished_job(self.directory)
        if job is None or job["token"] == self.resumable:
            return None
        for writer in self.part_writers(job["token"]):
            writer.check_free()
        if self.mode == "w-":
            raise FileExistsError(
                f"{redact_url(self.names.template)} is written in parts by a job that is not finished: "
                + RESUME
                + " divides it again, "
                + OVERWRITE
                + " replaces it"
            )
        return job

    def _check_owner(self) -> None:
        """Raise StoreInUseError if another run has taken over these files."""
        owner = self.journal.other_owner(self.token) if self.compute else None
        # No run owns the files of a job, until one finishes it.
        if owner is not None and not (self.resumable and owner.token.startswith(self.resumable)):
            self.journal.check_owner(self.token)

    def end(self) -> None:
        """Let tasks publish nothing more, and remove the records and temporary files."""
        self.journal.end_writing(self.token)
        fs, folder = url_to_fs(self.folder, **self.names.storage_options)
        try:
            if isinstance(fs, LocalFileSystem):
                shutil.rmtree(folder, ignore_errors=True)
            with suppress(FileNotFoundError):
                if fs.exists(folder):
                    fs.rm(folder, recursive=True)
        except OSError as error:
            warn_caller(f"{redact_url(self.folder)} can't be removed ({describe_error(error)}); remove it by hand")
        if self.compute:
            self.remove_temporary()
        else:
            # Other copies of the tasks may be running.
            remove_abandoned(self._directories, self.names.storage_options)

    def remove_temporary(self) -> None:
        """Remove the temporary files of this run, which has ended."""
        remove_temporary(self._directories, self.token, self.names.storage_options)

    def _publish(self, path: str, write_content: Callable[[ByteSink], tuple[int, int]]) -> ShardWriteReport:
        is_published = False

        def should_publish(temporary: Path) -> bool:
            nonlocal is_published
            is_published = self._should_publish(path, temporary)
            return is_published

        with while_running(self.token) as is_running:
            if not is_running:
                raise Cancelled
            self._prepare(path)
            sink = open_sink(path, self.compression, self.names.storage_options, should_publish)
            try:
                records, nbytes = write_content(sink)
                self.check_running()
                sink.close()
            except BaseException:
                sink.discard()
                raise
            own = is_published or self._owns(path)
            if own:
                self._record(path, None)
            sidecars = self._write_labels(path) + (self._write_index(path) if self.index else ())
            stored = self._stored(path)
            report = ShardWriteReport(
                records, nbytes, stored.size, peak_memory(), sidecars, stored.version, sink.checksum
            )
            if own:
                self._record(path, report)
            _log.info("%s: %s %s", Location(path), "published" if is_published else "kept", plural(records, "record"))
        return report

    def _prepare(self, path: str) -> None:
        """Check that the client waits for the tasks, or prepare one file of a run without a client."""
        if self.compute:
            self._check_writing()
        else:
            self.journal.check_free()
            self.names.create_directories([path, join(self.directory, self.journal.name)])

    def _check_writing(self) -> None:
        """Raise unless the run of this task goes on: that of its client, or the program that writes a part of a job."""
        own = self.journal if self.part is None else replace(self.journal, objects=self._objects, name=self.part)
        own.check_writing(self.token)

    def published_report(self, path: str) -> ShardWriteReport | None:
        """Return the report of a file that this run published and that has not changed."""
        unit = self._unit(path, self._identity(path))
        if unit is None or not unit.report:
            return None
        return ShardWriteReport.from_json(unit.report)

    def _should_publish(self, path: str, temporary: Path) -> bool:
        """Decide whether a complete temporary file becomes `path`.

        False if this run has published the file, or if a file with the same bytes exists.
        """
        if self.compute:
            self._check_writing()
        existing, local = self._identity(path), is_local(path) and isinstance(url_to_fs(path)[0], LocalFileSystem)
        if existing is not None and (
            self._unit(path, existing) is not None or self._is_same(path, existing, temporary)
        ):
            return False
        if existing is not None and not self.rewrites(path):
            if self.mode == "w-":
                raise FileExistsError(
                    f"{Location(path)} exists already, and this write did not make it: " + OVERWRITE + " replaces it"
                )
            if self.compute and local:
                # The files that this run replaces were removed when it began.
                raise FileExistsError(
                    f"{Location(path)} appeared since this write began: another program writes there, and its files "
                    "are kept; write again when it has ended"
                )
            # Sidecars describe the replaced file.
            self.names.remove(_sidecars_of([path]))
        if local:
            # Renaming keeps the identity. With the record first, a kill never leaves a file without one.
            own = file_identity(str(temporary), {})
            if own is not None:
                self._record_unit(path, own, None)
        return True

    def rewrites(self, path: str) -> bool:
        """Return whether this run writes a file of an earlier one again, because it adds to what the file describes."""
        return False

    def _record(self, path: str, report: ShardWriteReport | None) -> None:
        """Record a file that this run published."""
        identity = None
        # A task that runs twice at once may replace the file before it is recorded.
        while identity != (current := self._stored(path)):
            identity = current
            self._record_unit(path, identity, report)

    def _stored(self, path: str) -> StoredFile:
        existing = self._identity(path)
        if existing is None:
            raise IncompleteStoreError("the shard was published, and another program removed it", Location(path))
        return existing

    def _identity(self, path: str) -> StoredFile | None:
        return file_identity(path, self.names.storage_options)

    def _owns(self, path: str) -> bool:
        """Return whether this run published the current file."""
        return self._unit(path, self._identity(path)) is not None

    def _is_same(self, path: str, existing: StoredFile, temporary: Path) -> bool:
        """Compare a published file with a temporary one byte for byte."""
        if existing.size != temporary.stat().st_size:
            return False
        fs, inside = url_to_fs(path, **self.names.storage_options)
        with fs.open(inside, "rb") as stored, temporary.open("rb") as own:
            while block := own.read(_COMPARED_NBYTES):
                if stored.read(len(block)) != block:
                    return False
        return True

    @property
    def _objects(self) -> Objects:
        return objects_in(self.folder, self.names.storage_options)

    def _unit(self, path: str, existing: StoredFile | None) -> Unit | None:
        """Return the record of an existing file; None if this run did not publish it."""
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
        objects = objects_in(self.folder, self.names.storage_options, makes_directory=not self.compute)
        with suppress(*([FileNotFoundError] if self.compute else [])):
            Units(objects).record(_record_name(path), {path: unit})

    def _write_labels(self, path: str) -> tuple[tuple[str, int], ...]:
        """Write the labels of a published shard; return their path and size. They are the same for every copy."""
        name = sidecar_path(path, SUFFIX)
        if self.labels is None:
            return ()
        if name is None:
            raise TFRecordError("labels of xarray cannot be written next to this URL: it has a query", Location(path))
        data = self.labels.encode()
        write_file(name, data, self.names.storage_options)
        return ((name, len(data)),)

    def _write_index(self, path: str) -> tuple[tuple[str, int], ...]:
        """Write the sidecars of a published shard; return their paths and sizes."""
        options = self.names.storage_options
        for attempt in reversed(range(_INDEX_ATTEMPTS)):
            shard = find_shards(path, compression=self.compression, storage_options=options)[0]
            try:
                return tuple(write_sidecars(shard)[0].items())
            except ShardChangedError:
                # A concurrent copy of the same task has published the shard a second time.
                if not attempt:
                    raise
        raise AssertionError("the last attempt returns or raises")


@dataclass(frozen=True, slots=True)
class UnitReport(WriteReport):
    """Report of a task that published several files."""

    files: tuple[ShardWriteReport, ...] = ()


@dataclass(frozen=True, slots=True)
class UnitFiles(Files):
    """Files of an output of `UnitNames`: of each unit several, which one task publishes."""

    names: UnitNames

    def is_complete(self) -> bool:
        """Return whether the write that is resumed has completed; remove what it left if it was killed after that."""
        if self.resumable is None or self.names.conversion() != self.resumable:
            return False
        if self.journal.is_left_by_dead_run():
            with self.owned():
                self.end()
        return True

    def begin(self) -> None:
        """Remove the description and the files that will not be replaced, too."""
        if self.mode == "w" and not self.rewrites(self.names.last):
            self.names.remove([self.names.last])
        Files.begin(self)
        if self.mode == "w":
            kept = {*self.paths}
            self.names.remove([path for path in self.names.existing([]) if path not in kept])

    def finish(self, reports: Sequence[Any]) -> None:
        """Verify the files of all units."""
        Files.finish(self, [report for unit in reports for report in unit.files])

    def complete(self, paths: Sequence[str], reports: Sequence[ShardWriteReport]) -> None:
        """Publish the files that describe the output; a run that is killed meanwhile can be resumed."""
        for name, data in self.descriptions().items():
            self.publish(join(self.names.root, name), partial(written, data))

    def descriptions(self) -> Mapping[str, bytes]:
        """Return the files that describe the output, by their names below its directory; the last makes it complete."""
        raise NotImplementedError

    def _published(self) -> list[str]:
        return self.names.existing([])

    def publish_unit(self, unit: int, write: Callable[[Sequence[BinaryIO]], tuple[int, int]]) -> UnitReport:
        """Publish the files of a unit, unless this run has published all of them, and report the end of the task.

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
                reports = [self.publish(path, _copied(content, each)) for path, content, each in written]
        made = [report for report in reports if report is not None]
        total = WriteReport.sum(made)
        report = UnitReport(total.records, total.nbytes, total.stored, total.peak, tuple(made))
        report_progress(report)
        return report


def written(data: bytes, sink: ByteSink) -> tuple[int, int]:
    """Write the bytes of a file without rows; return the numbers that `Files.publish` asks for."""
    sink.write(data)
    return 0, len(data)


def _copied(content: BinaryIO, amount: tuple[int, int]) -> Callable[[ByteSink], tuple[int, int]]:
    def write_content(sink: ByteSink) -> tuple[int, int]:
        content.seek(0)
        while block := content.read(_COMPARED_NBYTES):
            sink.write(block)
        return amount

    return write_content


def _record_name(path: str) -> str:
    return _digest(path)[:32]


def _digest(path: str) -> str:
    # The locale may lack bytes for the path.
    return hashlib.sha256(path.encode("utf-8", "surrogateescape")).hexdigest()


@dataclass(frozen=True, slots=True, eq=False)
class FileWrite:
    """A write of files by tasks ``step(files, *shared, *arguments)``, which `run` computes, or a job in parts."""

    files: Files
    step: Callable[..., WriteReport]
    shared: Sequence[Any]
    # Arguments of each task; those over rows get the source of their rows after them.
    arguments: Sequence[tuple[Any, ...]]
    work: Callable[[], WriteWork]
    rows: RowTasks | None = None
    # Rows and columns that each task reads.
    reads: Sequence[tuple[tuple[int, int], Sequence[str]]] = ()

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

        reads, arguments = [(span, names) for span, names, _ in units], [each for _, _, each in units]
        return cls(files, step, shared, arguments, work, row_tasks, reads)

    def run(self) -> Delayed | None:
        """Write the files; or with ``compute=False``, return the tasks."""
        files, sent = self.files, sent_once(self.files, self.shared)
        build: Callable[..., Delayed] = partial(build_tasks, token=files.token)
        arguments: Iterable[Any] = self.arguments
        if self.rows is not None:
            build, arguments = self.rows.build, ((*read, own) for read, own in zip(self.reads, arguments, strict=True))
        if not files.compute:
            return build(self.step, arguments, (Files.finish, files), *sent)
        tasks = build(self.step, arguments, (collect,), *sent)
        return run_write(files, lambda: (tasks, self.work()))


def sent_once(files: Files, shared: Sequence[Any]) -> list[Delayed]:
    """Return the first arguments of all tasks as nodes, which are sent once to each worker."""
    return [
        dask.delayed(value, name=f"tfrecord-shared-{number}-{files.token}", traverse=False)
        for number, value in enumerate((files, *shared))
    ]
