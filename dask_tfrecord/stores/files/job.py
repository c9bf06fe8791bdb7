"""Write TFRecord shards and Parquet files in parts that independent programs write: `TFRecordJob` and `ParquetJob`.

`begin` prepares the files as their writer does, and stores the arguments of its tasks, in slices, in the run folder. A
part computes the tasks of its slices, which write files as usual and skip those that are recorded; their reports are
one object. `finish` verifies all files by these reports, publishes them, and loads no pickle. A record next to the
files names the run folder, which is not abandoned as long as there is one.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import compress, pairwise
from typing import Any, Self, Unpack

import numpy as np
from numpy.typing import NDArray

from dask_tfrecord.errors import OVERWRITE, IncompleteStoreError, ResumeError, redact_url
from dask_tfrecord.features.metadata.tfds_writer import TFDSMetadata, TFDSNames
from dask_tfrecord.features.schema import Schema
from dask_tfrecord.options import CopyOptions, ParquetOptions, ShardOptions, TFRecordOptions, complete, with_options
from dask_tfrecord.rows.progress import cancel_on_failure
from dask_tfrecord.rows.task_names import task_name
from dask_tfrecord.shards.objects import Objects, directory_of, objects_in
from dask_tfrecord.shards.shard import Shards
from dask_tfrecord.stores.files.parquet import TEMPLATE, check_rows, plan_parquet
from dask_tfrecord.stores.files.publish import Check, Files, FileWrite, JobRecord, ShardNames, sent_once
from dask_tfrecord.stores.files.samples import is_samples
from dask_tfrecord.stores.files.tfrecord import plan_copy, plan_tfrecord
from dask_tfrecord.stores.job import (
    PLAN,
    SHARED,
    Job,
    JobPlan,
    batches,
    check_begin,
    compute_batches,
    pickled,
)
from dask_tfrecord.stores.journal import Journal
from dask_tfrecord.stores.output import ShardWriteReport, WriteWork
from dask_tfrecord.stores.zarr.fingerprint import Fingerprint
from dask_tfrecord.stores.zarr.job import shard_options, source_options

# Digits of a run's token. The token of a run that finishes a job begins with the identity of the job.
_RUN_DIGITS = 32
# The plan of a writer: the files, the identity of its inputs and options, and options of fsspec that are not stored.
_Planned = tuple[FileWrite, Fingerprint, Mapping[str, Any]]


class _FileJob(Job):
    """Files that programs write in parts; a unit is a file."""

    # Further check of the files when they are verified.
    _check: Check | None = None

    def __init__(self, names: ShardNames, record: JobRecord | None, source_options: Mapping[str, Any] | None) -> None:
        # Without a record, the files are complete.
        self._record = record or JobRecord("", 1, 0, mode="w-")
        super().__init__(names.shown, self._record.token, source_options)
        self._names = replace(names, first=self._record.first)

    @classmethod
    def _begin(
        cls,
        names: ShardNames,
        options: Mapping[str, Any],
        parts: int | None,
        resume: bool,
        plan_write: Callable[[str], _Planned],
    ) -> Self:
        """Plan a write as the job of a token, prepare its files, and store the plan."""
        check_begin(parts, options)
        if resume and options["mode"] != "w-":
            raise ValueError(f"resume=True continues a job, and mode={options['mode']!r} begins one: pass only one")
        if redact_url(names.template) != names.template:
            raise ValueError("the URL holds credentials, which the plan of a job would store: pass storage_options")
        before = names.unfinished_job(_home(names)) if resume else None
        token = uuid.uuid4().hex if before is None else before.token
        write, fingerprint, left_out = plan_write(token)
        files = write.files
        if before is not None:
            # A job that replaces files goes on to do so.
            files = replace(files, mode=before.mode or "w-")
        if files.directory != _home(names):
            raise ValueError("the directory of the files of a job has no {shards} in its name")
        differences = [] if before is None else _job_fingerprint(before).differences(fingerprint)
        if differences:
            raise ResumeError(
                f"cannot resume: inputs or options changed: {'; '.join(differences)}. " + OVERWRITE + " starts over",
                files.journal.location,
            )
        record = JobRecord(token, files.count, files.names.first, fingerprint.to_attributes(), files.mode)
        if files.metadata is not None:
            record = replace(record, tfds=asdict(files.metadata.names), texts=files.metadata.texts)
        left_out = {**left_out, "names": files.names}

        def remove() -> None:
            if before is None:
                files.end()

        with files.owned(), cancel_on_failure(files.token, remove):
            if files.begin():
                objects = objects_in(files.folder, names.storage_options, makes_directory=False)
                _store_plan(objects, replace(write, files=files), parts, left_out)
                objects_in(files.directory, names.storage_options).put(names.hidden_name(".job"), record.to_json())
                return cls(names, record, left_out["options"])
        # A program was killed at the end of `finish`.
        objects_in(files.directory, names.storage_options).drop([names.hidden_name(".job")])
        return cls(names, None, left_out["options"])

    @classmethod
    def _open(cls, names: ShardNames, source_options: Mapping[str, Any] | None) -> Self:
        record = names.unfinished_job(_home(names))
        found = cls(names, record, source_options)
        owner = found._journal.owner() if record is None else None
        # A program that was killed at the end of `finish` leaves its claim only.
        is_writing = owner is not None and not (owner.is_dead() and len(owner.token) > _RUN_DIGITS)
        if record is None and (is_writing or not names.existing(names.paths(1))):
            raise FileNotFoundError(f"no job for {found._place} exists: call begin first")
        return found

    @property
    def _files(self) -> Files:
        """The files, for their places and records."""
        record = self._record
        token = record.token or uuid.uuid4().hex
        metadata = None
        if record.tfds is not None:
            metadata = TFDSMetadata(self._names.directory, TFDSNames.from_mapping(record.tfds), record.texts)
        return Files(
            token,
            self._names,
            record.count,
            record.mode or "w-",
            True,
            metadata=metadata,
            check=self._check,
            resumable=token,
        )

    @property
    def _journal(self) -> Journal:
        return self._files.journal

    @property
    def _objects(self) -> Objects:
        return objects_in(self._files.folder, self._names.storage_options, makes_directory=False)

    def _path(self, name: str) -> str:
        return name

    def _writers(self) -> list[Journal]:
        return self._files.part_writers()

    def _stored_record(self) -> JobRecord | None:
        """Return the record of this job; None if it is complete."""
        found = self._names.unfinished_job(_home(self._names)) if self._identity else None
        if found is not None and found.token != self._identity:
            raise IncompleteStoreError("another conversion has replaced these files", self._journal.location)
        return found

    def _is_written(self) -> bool:
        return self._stored_record() is None or self._objects.get([PLAN])[PLAN] is None

    def _is_complete(self) -> bool:
        return self._stored_record() is None

    def _written_units(self, within: Sequence[tuple[int, int]]) -> NDArray[np.int64]:
        return np.flatnonzero(self._files.recorded())

    def _compute(self, plan: JobPlan, part: int, parts: int, token: str) -> None:
        left_out = {"names": self._names}
        loaded = self._load(f"{SHARED}-{plan.token}", left_out)
        slices = [self._load(_slice(plan, number), left_out) for number in range(*plan.of_part(part, parts))]
        if loaded is None or None in slices:
            return
        files, step, shared, source, knows_nbytes = loaded
        arguments = [each for one, _ in slices for each in one]
        reading = np.concatenate([np.zeros(0), *(each for _, each in slices)])
        place, name = f"{self._place}, part {part + 1} of {parts}", task_name(step, token)
        nbytes = round(float(reading.sum())) if knows_nbytes else None
        work = WriteWork(place, name, None, None, len(arguments), reading, nbytes)
        sent = sent_once(replace(files, token=token, part=self._writer_name(part, parts, token)), shared)
        own = (arguments[first:past] for first, past in pairwise(batches(0, len(arguments)).tolist()))
        reports = [asdict(each) for done in compute_batches(step, own, sent, source, work, token) for each in done]
        self._objects.put(_reports(plan, part), json.dumps(reports).encode())

    def _complete(self, plan: JobPlan | None) -> None:
        # A program that was killed while it published has published all, or this one publishes again.
        files = replace(self._files, token=uuid.uuid4().hex)
        if plan is not None and files.begin():
            try:
                reports = self._all_reports(plan)
                files.verify(reports)
            except IncompleteStoreError:
                files.forget_changed()
                raise
            with cancel_on_failure(files.token, files.discard):
                files.publish(reports)
        objects_in(files.directory, self._names.storage_options).drop([self._names.hidden_name(".job")])

    def _all_reports(self, plan: JobPlan) -> list[ShardWriteReport]:
        """Return the reports of all files, which parts have stored, or else are made from the files."""
        files, parts, found = self._files, self.parts or 1, list[ShardWriteReport]()
        paths = files.paths
        names = [_reports(plan, part) for part in range(parts)]
        for part, stored in enumerate(self._objects.get(names).values()):
            first, past = (plan.tasks[border] for border in plan.of_part(part, parts))
            reports: Sequence[ShardWriteReport | None] = ShardWriteReport.list_from_json(stored)
            if len(reports) != past - first:
                reports = [files.published_report(path) for path in paths[first:past]]
            if None in reports:
                path = next(compress(paths[first:past], [report is None for report in reports]))
                raise IncompleteStoreError(f"{redact_url(path)} is missing or was changed", self._journal.location)
            found += [report for report in reports if report is not None]
        return found

    def _changes_of_files(self, shards: Shards) -> list[str]:
        record = self._stored_record()
        return [] if record is None else _job_fingerprint(record).changes_of_files(shards)


class TFRecordJob(_FileJob):
    """Let several programs write TFRecord shards in parts, without a scheduler: a Slurm job array, or processes.

    `begin` plans what `to_tfrecord` would write, and `begin_copy` what `copy_tfrecord` would write. `write` writes a
    part, in any process on any machine that can reach the files, and `finish` verifies all shards. You can write parts
    in any order, and a part again if its program died; if two programs write the same part at once, both write the same
    bytes. The shards are the same, byte for byte, as those of one `to_tfrecord`. Readers see them after `finish` has
    verified all of them.

    The plan contains pickled rows and the functions of `map_blocks`, so open only jobs that you trust.

    Attributes
    ----------
    parts : int or None
        Number of parts; None until the first part is written.

    See Also
    --------
    ZarrJob : Do the same for Zarr.

    Examples
    --------
    >>> import dask_tfrecord as dtf
    >>> name = "parts/train-{shard:05d}-of-{shards:05d}.tfrecord"
    >>> ds = dtf.read_tfrecord("train-*.tfrecord")
    >>> job = dtf.TFRecordJob.begin(ds, name, parts=2, records_per_shard=5)
    >>> for part in range(2):  # each in a program of its own
    ...     dtf.TFRecordJob.open(name).write(part)
    >>> job.finish()
    >>> dtf.read_tfrecord("parts/train-*.tfrecord").nrows
    20
    """

    @classmethod
    @with_options("dtf.TFRecordJob.begin(ds, 'train/', parts=4)", ShardOptions, TFRecordOptions)
    def begin(
        cls,
        arrays: Mapping[str, Any],
        urlpath: str | os.PathLike[str],
        *,
        parts: int | None = None,
        resume: bool = False,
        **options: Unpack[TFRecordOptions],
    ) -> TFRecordJob:
        """Plan the shards, and store the plan next to them.

        Parameters
        ----------
        arrays : Dataset
            Rows to write, which must be read from files.
        urlpath : str or os.PathLike
            As for `to_tfrecord`; every program that writes a part must be able to open it.
        parts : int, optional
            Number of parts. By default, the first call of `write` chooses it.
        resume : bool, default False
            Divide an earlier job with the same rows and options again, and keep what is written. If there is none,
            begin a job.
        compute : bool, default True
            Must be True, because `write` writes the rows.

        Returns
        -------
        TFRecordJob

        Raises
        ------
        ValueError
            If rows are in memory, where other programs can't read them; if URLs contain credentials, which a plan must
            not store; or if `parts` is not a positive number.
        FileExistsError
            As for `to_tfrecord`. With ``mode="w-"``, also if another job for these shards is not finished.
        StoreInUseError
            If another run is writing these shards, or a part of another job for them.
        ResumeError
            If rows or options differ from those of the job that `resume` continues.

        Examples
        --------
        >>> import dask_tfrecord as dtf
        >>> ds = dtf.read_tfrecord("train-*.tfrecord")
        >>> dtf.TFRecordJob.begin(ds, "begun/", parts=2).status().missing
        (0, 1)
        """
        options = complete(TFRecordOptions, options)
        if is_samples(arrays):
            raise ValueError("other programs can't read the rows of an iterator: write them with to_tfrecord")
        if options["tfds"] is not None and options["mode"] == "a":
            raise ValueError("a job can only write a new split: to_tfrecord(…, tfds=…, mode='a') adds shards to one")

        def plan(token: str) -> _Planned:
            return _of_rows(plan_tfrecord(arrays, urlpath, options, token), options)

        names = _tfrecord_names(urlpath, options["tfds"], options["storage_options"])
        return cls._begin(names, options, parts, resume, plan)

    @classmethod
    @with_options("dtf.TFRecordJob.begin_copy('train-*.tfrecord', 'copied/', parts=4)", ShardOptions, CopyOptions)
    def begin_copy(
        cls,
        urlpath: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        target: str | os.PathLike[str],
        *,
        parts: int | None = None,
        resume: bool = False,
        **options: Unpack[CopyOptions],
    ) -> TFRecordJob:
        """Plan how to copy records, and store the plan next to the new shards.

        Parameters
        ----------
        urlpath : str, os.PathLike or list of these
            Shards to read, as in `copy_tfrecord`.
        target : str or os.PathLike
            Shards to write; every program that writes a part must be able to open them.
        parts : int, optional
            Number of parts. By default, the first call of `write` chooses it.
        resume : bool, default False
            Divide an earlier job with the same shards and options again, and keep what is written. If there is none,
            begin a job.
        compute : bool, default True
            Must be True, because `write` writes the records.

        Returns
        -------
        TFRecordJob

        Raises
        ------
        ValueError, FileExistsError, StoreInUseError, ResumeError
            As for `begin`.

        Examples
        --------
        >>> import dask_tfrecord as dtf
        >>> job = dtf.TFRecordJob.begin_copy("train-*.tfrecord", "copied/", parts=1, compression="gzip")
        >>> job.write(0)
        >>> job.finish()
        >>> job.status().complete
        True
        """
        options = complete(CopyOptions, options)

        def plan(token: str) -> _Planned:
            write, shards = plan_copy(urlpath, target, options, token)
            source = {"files": list(map(redact_url, shards.paths)), "sizes": shards.sizes.tolist()}
            source["versions"] = list(shards.versions)
            schema = options["features"].to_json() if isinstance(options["features"], Schema) else None
            described = {**_described(options), "features": schema or repr(options["features"])}
            return write, Fingerprint(_json(source), {}, 0, _json(described)), {"options": shard_options(shards)}

        names = ShardNames.from_urlpath(target, options["target_options"])
        return cls._begin(names, options, parts, resume, plan)

    @classmethod
    def open(
        cls,
        urlpath: str | os.PathLike[str],
        *,
        tfds: Mapping[str, Any] | None = None,
        storage_options: Mapping[str, Any] | None = None,
        source_options: Mapping[str, Any] | None = None,
    ) -> TFRecordJob:
        """Open a job that `begin` or `begin_copy` planned, in any process.

        Parameters
        ----------
        urlpath : str or os.PathLike
            The shards, as you gave them to `begin`.
        tfds : mapping, optional
            As for `begin`.
        storage_options : mapping, optional
            fsspec options for the URL of the shards.
        source_options : mapping, optional
            fsspec options for the URLs of the rows. The plan does not store them, because they may contain credentials.

        Returns
        -------
        TFRecordJob

        Raises
        ------
        FileNotFoundError
            If there is neither a job for these shards nor any of the shards.
        """
        return cls._open(_tfrecord_names(urlpath, tfds, storage_options), source_options)


class ParquetJob(_FileJob):
    """Let several programs write Parquet files in parts, without a scheduler, as `TFRecordJob` does for shards.

    Attributes
    ----------
    parts : int or None
        Number of parts; None until the first part is written.

    Examples
    --------
    >>> import dask_tfrecord as dtf
    >>> job = dtf.ParquetJob.begin(dtf.read_tfrecord("train-*.tfrecord"), "parts.parquet", parts=1)
    >>> dtf.ParquetJob.open("parts.parquet").write(0)
    >>> job.finish()
    """

    _check = staticmethod(check_rows)

    @classmethod
    @with_options("dtf.ParquetJob.begin(ds, 'train', parts=4)", ParquetOptions)
    def begin(
        cls,
        arrays: Mapping[str, Any],
        path: str | os.PathLike[str],
        *,
        parts: int | None = None,
        resume: bool = False,
        **options: Unpack[ParquetOptions],
    ) -> ParquetJob:
        """Plan the files, and store the plan next to them.

        Parameters
        ----------
        arrays : Dataset
            Rows to write, which must be read from files.
        path : str or os.PathLike
            As for `to_parquet`; every program that writes a part must be able to open it.
        parts : int, optional
            Number of parts. By default, the first call of `write` chooses it.
        resume : bool, default False
            Divide an earlier job with the same rows and options again, and keep what is written. If there is none,
            begin a job.
        compute : bool, default True
            Must be True, because `write` writes the rows.

        Returns
        -------
        ParquetJob

        Raises
        ------
        ValueError, FileExistsError, StoreInUseError, ResumeError
            As for `TFRecordJob.begin`.
        """
        options = complete(ParquetOptions, options)

        def plan(token: str) -> _Planned:
            return _of_rows(plan_parquet(arrays, path, options, token), options)

        names = ShardNames.from_directory(path, TEMPLATE, options["storage_options"])
        return cls._begin(names, options, parts, resume, plan)

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        storage_options: Mapping[str, Any] | None = None,
        source_options: Mapping[str, Any] | None = None,
    ) -> ParquetJob:
        """Open a job that `begin` planned, in any process.

        Parameters
        ----------
        path : str or os.PathLike
            Directory that was passed to `begin`.
        storage_options, source_options : mapping, optional
            As for `TFRecordJob.open`.

        Returns
        -------
        ParquetJob

        Raises
        ------
        FileNotFoundError
            If the directory contains neither a job nor files.
        """
        return cls._open(ShardNames.from_directory(path, TEMPLATE, storage_options), source_options)


def _tfrecord_names(
    urlpath: str | os.PathLike[str], tfds: Mapping[str, Any] | None, storage_options: Mapping[str, Any] | None
) -> ShardNames:
    if tfds is None:
        return ShardNames.from_urlpath(urlpath, storage_options)
    return ShardNames.from_directory(urlpath, TFDSNames.from_mapping(tfds).template(), storage_options)


def _home(names: ShardNames) -> str:
    """Return where the record of a job is, however many files the job has."""
    return directory_of(names.template.format(shard=0, shards=1))


def _of_rows(write: FileWrite, options: Mapping[str, Any]) -> _Planned:
    """Plan a write of rows, with its identity; refuse rows that other programs cannot read."""
    assert write.rows is not None
    rows, source = write.rows.rows, write.rows.source
    if source is None:
        raise ValueError("other programs can't read rows that are in memory: write them without a job, or to shards")
    fingerprint = Fingerprint.from_rows(rows, write.shared[0].schema, _json(_described(options)))
    return write, fingerprint, {"options": source_options(source)}


def _described(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that determine the files, without options of fsspec and features."""
    left_out = ("mode", "compute", "storage_options", "target_options", "features", "sequence_features")
    return {name: value for name, value in options.items() if name not in (*left_out, "example_features", "message")}


def _json(value: Any) -> Any:
    return json.loads(json.dumps(value, default=repr))


def _job_fingerprint(record: JobRecord) -> Fingerprint:
    return Fingerprint.from_attributes(record.fingerprint)


def _store_plan(objects: Objects, write: FileWrite, parts: int | None, left_out: Mapping[str, Any]) -> None:
    """Divide a write, and store what parts read; the object of the plan comes last."""
    work, units = write.work(), write.units
    arguments = list(units) if write.rows is None else [each for _, _, each in units]
    plan = JobPlan.divide(len(arguments), parts, lambda tasks: tasks[None])
    for number, (first, past) in enumerate(pairwise(plan.tasks)):
        objects.put(_slice(plan, number), pickled((arguments[first:past], work.reading[first:past]), left_out))
    source = None if write.rows is None else write.rows.source
    shared = write.files, write.step, write.shared, source, work.nbytes is not None
    objects.put(f"{SHARED}-{plan.token}", pickled(shared, left_out))
    objects.put(PLAN, plan.to_json())


def _slice(plan: JobPlan, number: int) -> str:
    return f"slice-{plan.token}-{number}"


def _reports(plan: JobPlan, part: int) -> str:
    return f"reports-{plan.token}-{part}"
