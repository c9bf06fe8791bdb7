"""Publication of shards: each appears whole, and a failed or repeated write leaves nothing that does not belong.

dask may run a task twice, late, concurrently with itself, or after its successors. Each write therefore keeps a hidden
run folder next to its first shard. For each published shard it holds a receipt: the identity of the file and the report
of the task. While a client waits for the tasks it also holds a claim; without the claim, no task of that run publishes.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import dask
from dask.delayed import Delayed
from fsspec.implementations.local import LocalFileSystem

from dask_tfrecord.errors import IncompleteStoreError, Location, ShardChangedError, TFRecordError, plural
from dask_tfrecord.metadata.labels import SUFFIX
from dask_tfrecord.metadata.tfds_writing import TFDSMetadata
from dask_tfrecord.records.index_file import write_sidecars
from dask_tfrecord.runtime.cancellation import add_path_to_errors, cancel_on_failure, is_cancelled, while_running
from dask_tfrecord.runtime.progress import report_progress
from dask_tfrecord.storage.clients import join, read_text, url_to_fs
from dask_tfrecord.storage.compression import create_stream
from dask_tfrecord.storage.listing import find_shards, is_local
from dask_tfrecord.storage.published import (
    RUN_PREFIX,
    FileIdentity,
    check_sizes,
    directory_of,
    file_identity,
    list_files,
    remove_abandoned,
)
from dask_tfrecord.storage.sidecar_files import sidecar_path
from dask_tfrecord.storage.streams import ByteSink, write_file
from dask_tfrecord.stores.tfrecord.shard_names import ShardNames
from dask_tfrecord.stores.write_progress import ShardWriteReport, WriteWork, peak_memory, show_progress

__all__ = ["Cancelled", "Completion", "Publisher", "WriteRun", "collect", "complete", "publish"]

_log = logging.getLogger(__name__)

_CLAIM = "claim"
_COMPARED_NBYTES = 1 << 20
_INDEX_ATTEMPTS = 5


class Cancelled(Exception):
    """The write was cancelled because another task failed."""


@dataclass(frozen=True, slots=True)
class WriteRun:
    """One write of shards: its claim, and its receipts of published shards.

    Attributes
    ----------
    token : str
        Name of the run: 32 hexadecimal digits.
    directory : str
        Path or URL of the directory of the first shard.
    names : ShardNames
        Names of the shards.
    mode : {"w-", "w"}
        ``"w"``: replace a shard of another run.
    claimed : bool
        True: a client prepares the run and waits for its tasks. False: the tasks of a `Delayed` prepare it.
    folder : str
        Path or URL of the run folder.
    """

    token: str
    directory: str
    names: ShardNames
    mode: Literal["w-", "w"]
    claimed: bool
    folder: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "folder", join(self.directory, f"{RUN_PREFIX}{self.token}"))

    def begin(self, paths: Sequence[str]) -> None:
        """Prepare the run on the client: remove replaced shards, create directories, write the claim."""
        remove_abandoned(map(directory_of, paths), self.names.storage_options)
        self.names.check_free(paths, self.mode)
        self.names.remove(sorted({*self.names.existing(paths)} & {*paths}))
        self.names.create_directories(paths)
        self._put(_CLAIM, b"")

    def prepare(self, path: str) -> None:
        """Prepare one shard in its task: check the claim, or create the directories of an unclaimed run.

        Raises
        ------
        IncompleteStoreError
            If the run has ended.
        """
        self.check_claim()
        if not self.claimed:
            self.names.create_directories([path, join(self.directory, _CLAIM)])

    def check_claim(self) -> None:
        """Raise if the run has ended.

        Raises
        ------
        IncompleteStoreError
            If the run is claimed and its claim does not exist.
        """
        if self.claimed and read_text(join(self.folder, _CLAIM), self.names.storage_options) is None:
            raise IncompleteStoreError(
                "the write that this task belongs to has ended, or this worker does not share the file system of the "
                "client; write to a path that all processes reach",
                Location(self.names.template),
            )

    def published_report(self, path: str) -> ShardWriteReport | None:
        """Return the report of a shard that this run published; None if it did not, or if the file has changed."""
        receipt = self._receipt(path)
        if receipt is None or receipt.get("report") is None or not self._matches(receipt, self._identity(path)):
            return None
        report = receipt["report"]
        return ShardWriteReport(**report | {"sidecars": tuple((name, size) for name, size in report["sidecars"])})

    def owns(self, path: str) -> bool:
        """Return whether this run published the current file of a shard."""
        return self._matches(self._receipt(path), self._identity(path))

    def should_publish(self, path: str, temporary: Path) -> bool:
        """Decide whether a complete temporary file becomes the shard `path`.

        Returns
        -------
        bool
            False if this run has published the shard, or if a file with the same bytes exists.

        Raises
        ------
        FileExistsError
            If another run has published the shard and the mode is ``"w-"``.
        """
        self.check_claim()
        existing = self._identity(path)
        if existing is not None:
            if self._matches(self._receipt(path), existing) or self._is_same(path, existing, temporary):
                return False
            if self.mode == "w-":
                raise FileExistsError(f"{path} exists already, and this write did not make it: mode='w' replaces it")
            # Sidecars describe the replaced file.
            self.names.remove_sidecars([path])
        if is_local(path) and isinstance(url_to_fs(path)[0], LocalFileSystem):
            # Renaming keeps the identity. With the receipt first, a kill never leaves a shard without its receipt.
            own = file_identity(str(temporary), {})
            if own is not None:
                self._put_receipt(path, own, None)
        return True

    def record(self, path: str, report: ShardWriteReport | None) -> None:
        """Write the receipt of a shard that this run published.

        Raises
        ------
        IncompleteStoreError
            If the shard does not exist.
        """
        identity = None
        # A task that runs twice at once may replace the shard before its receipt is written.
        while identity != (current := self.stored(path)):
            identity = current
            self._put_receipt(path, identity, report)

    def stored(self, path: str) -> FileIdentity:
        """Return the identity of a published shard.

        Raises
        ------
        IncompleteStoreError
            If the shard does not exist.
        """
        existing = self._identity(path)
        if existing is None:
            raise IncompleteStoreError("the shard was published, and another program removed it", Location(path))
        return existing

    def end(self) -> None:
        """Remove the claim and the receipts."""
        fs, folder = url_to_fs(self.folder, **self.names.storage_options)
        try:
            with suppress(FileNotFoundError):
                fs.rm_file(f"{folder}/{_CLAIM}")
            if isinstance(fs, LocalFileSystem):
                shutil.rmtree(folder, ignore_errors=True)
            with suppress(FileNotFoundError):
                if fs.exists(folder):
                    fs.rm(folder, recursive=True)
        except OSError as error:
            warnings.warn(f"{self.folder} can't be removed ({error}); remove it by hand", stacklevel=2)

    def withdraw(self, paths: Sequence[str], created: Sequence[Path]) -> None:
        """Remove the shards that this run published, and the empty directories that it created."""
        fs, folder = url_to_fs(self.folder, **self.names.storage_options)
        # Without the claim, late tasks publish nothing.
        with suppress(FileNotFoundError):
            fs.rm_file(f"{folder}/{_CLAIM}")
        receipts = list_files(self.folder, self.names.storage_options)
        recorded = [path for path in paths if _receipt_name(path) in receipts]
        self.names.remove([path for path in recorded if self.owns(path)])
        self.end()
        self.names.remove((), created)

    def _identity(self, path: str) -> FileIdentity | None:
        return file_identity(path, self.names.storage_options)

    def _matches(self, receipt: Mapping[str, Any] | None, existing: FileIdentity | None) -> bool:
        return receipt is not None and existing is not None and tuple(existing) == (receipt["size"], receipt["version"])

    def _is_same(self, path: str, existing: FileIdentity, temporary: Path) -> bool:
        """Compare a published file with a temporary one byte for byte."""
        if existing.size != temporary.stat().st_size:
            return False
        fs, inside = url_to_fs(path, **self.names.storage_options)
        with fs.open(inside, "rb") as stored, temporary.open("rb") as own:
            while block := own.read(_COMPARED_NBYTES):
                if stored.read(len(block)) != block:
                    return False
        return True

    def _receipt(self, path: str) -> dict[str, Any] | None:
        text = read_text(join(self.folder, _receipt_name(path)), self.names.storage_options)
        with suppress(ValueError):
            receipt = json.loads(text or "")
            if receipt["path"] == path:
                return dict(receipt)
        return None

    def _put_receipt(self, path: str, identity: FileIdentity, report: ShardWriteReport | None) -> None:
        receipt = {"path": path, **identity._asdict(), "report": None if report is None else asdict(report)}
        # The folder of a claimed run that has ended is not created again.
        with suppress(*([FileNotFoundError] if self.claimed else [])):
            self._put(_receipt_name(path), json.dumps(receipt).encode(), create=not self.claimed)

    def _put(self, name: str, value: bytes, create: bool = True) -> None:
        path = join(self.folder, name)
        try:
            write_file(path, value, self.names.storage_options)
        except FileNotFoundError:
            if not create:
                raise
            fs, folder = url_to_fs(self.folder, **self.names.storage_options)
            with suppress(FileExistsError):
                fs.mkdir(folder, create_parents=False)
            write_file(path, value, self.names.storage_options)


def _receipt_name(path: str) -> str:
    return f"{hashlib.sha256(os.fsencode(path)).hexdigest()[:32]}.json"


@dataclass(frozen=True, slots=True)
class Publisher:
    """Publication of the shards of one run, in their tasks.

    Attributes
    ----------
    run : WriteRun
        Identity of the write.
    compression : str or None
        Compression of the shards.
    index : bool
        Write the index of each shard next to it.
    labels : str or None
        Text of the labels next to each shard.
    """

    run: WriteRun
    compression: str | None
    index: bool
    labels: str | None = None

    def write(self, path: str, fill: Callable[[ByteSink], tuple[int, int]]) -> ShardWriteReport:
        """Write a shard that appears whole or not at all; do nothing if this run has published it.

        Parameters
        ----------
        path : str
            Path or URL.
        fill : callable
            Writes framed records to a sink; returns their number and their decoded bytes.

        Returns
        -------
        ShardWriteReport
            Empty if the run was cancelled.

        Raises
        ------
        FileExistsError
            If another run has published the shard under ``mode="w-"``.
        IncompleteStoreError
            If the run has ended.
        """
        report = self.run.published_report(path)
        if report is None:
            try:
                report = self._publish(path, fill)
            except Cancelled:
                return ShardWriteReport(0, 0)
        report_progress(report)
        return report

    def _publish(self, path: str, fill: Callable[[ByteSink], tuple[int, int]]) -> ShardWriteReport:
        run = self.run
        is_published = False

        def should_publish(temporary: Path) -> bool:
            nonlocal is_published
            is_published = run.should_publish(path, temporary)
            return is_published

        with while_running(run.token) as is_running:
            if not is_running:
                raise Cancelled
            run.prepare(path)
            with add_path_to_errors(path):
                sink = create_stream(path, self.compression, run.names.storage_options, should_publish)
            try:
                records, nbytes = fill(sink)
                self.check_running()
                with add_path_to_errors(path):
                    sink.close()
            except BaseException:
                sink.discard()
                raise
            own = is_published or run.owns(path)
            if own:
                run.record(path, None)
            sidecars = self._write_labels(path) + (self._write_sidecars(path) if self.index else ())
            report = ShardWriteReport(records, nbytes, run.stored(path).size, peak_memory(), sidecars)
            if own:
                run.record(path, report)
            _log.info("%s: %s %s", Location(path), "published" if is_published else "kept", plural(records, "record"))
        return report

    def _write_labels(self, path: str) -> tuple[tuple[str, int], ...]:
        """Write the labels of a published shard; return their path and size. They are the same for every copy."""
        name = sidecar_path(path, SUFFIX)
        if self.labels is None:
            return ()
        if name is None:
            raise TFRecordError("labels of xarray cannot be written next to this URL: it has a query", Location(path))
        data = self.labels.encode()
        write_file(name, data, self.run.names.storage_options)
        return ((name, len(data)),)

    def _write_sidecars(self, path: str) -> tuple[tuple[str, int], ...]:
        """Write the sidecars of a published shard; return their paths and sizes."""
        options = self.run.names.storage_options
        for attempt in reversed(range(_INDEX_ATTEMPTS)):
            shard = find_shards(path, compression=self.compression, storage_options=options)[0]
            try:
                written = write_sidecars(shard)
                return tuple(zip(written.paths, written.sizes, strict=True))
            except ShardChangedError:
                # A concurrent copy of the same task has published the shard a second time.
                if not attempt:
                    raise
        raise AssertionError("the last attempt returns or raises")

    def check_running(self) -> None:
        """Raise `Cancelled` if the run was cancelled."""
        if is_cancelled(self.run.token):
            raise Cancelled


@dataclass(frozen=True, slots=True)
class Completion:
    """Last step of a run: performed by the client, or by the last task of a `Delayed`.

    Attributes
    ----------
    run : WriteRun
        Identity of the write.
    paths : tuple of str
        All shards.
    metadata : TFDSMetadata or None
        Metadata files to write next to the shards.
    """

    run: WriteRun
    paths: tuple[str, ...]
    metadata: TFDSMetadata | None

    def __call__(self, reports: Sequence[ShardWriteReport]) -> None:
        """Verify every file, write the metadata, and end the run.

        Raises
        ------
        IncompleteStoreError
            If a file is missing or has another size than its task reported.
        """
        options = self.run.names.storage_options
        sizes = {path: report.stored for path, report in zip(self.paths, reports, strict=True)}
        check_sizes(sizes | {path: size for report in reports for path, size in report.sidecars}, options)
        if not self.run.claimed:
            # Another program may have written shards since the client checked.
            self.run.names.check_free(self.paths, "w")
        if self.metadata is not None:
            self.metadata.write(self.paths, [report.records for report in reports], options)
        self.run.end()
        if not self.run.claimed:
            remove_abandoned(map(directory_of, self.paths), options)


def collect(reports: Sequence[ShardWriteReport]) -> list[ShardWriteReport]:
    """Return the reports of all tasks: the last task of a graph that a client waits for."""
    return list(reports)


def complete(completion: Completion, reports: Sequence[ShardWriteReport]) -> None:
    """Complete a run: the last task of a `Delayed`."""
    completion(reports)


def publish(completion: Completion, tasks: Delayed, work: WriteWork) -> None:
    """Prepare a run, compute its tasks, and complete it; after a failure, remove what it published."""
    run, paths = completion.run, completion.paths
    created = [path for path in run.names.directories(paths) if not path.exists()]
    with cancel_on_failure(run.token, lambda: run.withdraw(paths, created)), show_progress(work):
        run.begin(paths)
        (reports,) = dask.compute(tasks)
        completion(reports)
