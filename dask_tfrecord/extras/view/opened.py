"""Data sets that are viewed: rows are counted in the background, and read in blocks that one memory budget bounds."""

from __future__ import annotations

import re
import threading
import time
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from dask_tfrecord.blocks import Block, block_nbytes, rows_of
from dask_tfrecord.columns.decoder import Decoder
from dask_tfrecord.columns.records import wanted_schema
from dask_tfrecord.errors import CorruptRecordError, Location, TFRecordError, describe_error, redact_url
from dask_tfrecord.features import Encoded, Feature, FixedLenFeature, VarLenFeature
from dask_tfrecord.features.inference.report import Report, survey_sample
from dask_tfrecord.features.listed import is_padded
from dask_tfrecord.features.metadata.splits import resolve_collection
from dask_tfrecord.features.schema import Schema
from dask_tfrecord.options import SAMPLE
from dask_tfrecord.records.index import SUFFIX, grow_entries, index_shard
from dask_tfrecord.records.shard_check import Lost, ShardReport, check_shard, count_lost_records
from dask_tfrecord.records.window import Window, foreign_head
from dask_tfrecord.rows.collection import Collection
from dask_tfrecord.rows.damaged_records import runs_left
from dask_tfrecord.rows.sources import ChunkSource, CountedRows, RecordSource, UncountedSource
from dask_tfrecord.settings import limits, parse_size
from dask_tfrecord.shards.listing import Sidecar, find_changes, find_sidecars, is_zarr_group
from dask_tfrecord.shards.shard import Shard, Shards, is_local
from dask_tfrecord.shards.streams import ACCESS_SUFFIX

# Modules that import dask.array are imported when they are needed: the first rows of shards do not wait for it.
if TYPE_CHECKING:
    from dask_tfrecord.rows.rows import Rows
    from dask_tfrecord.rows.where import Alternatives

# Stored bytes and most rows of a block; seconds between publications of a count.
_BLOCK_NBYTES = 1 << 20
_BLOCK_ROWS = 1024
_PUBLISHED = 0.2
# Records that features are inferred from. Of remote shards, the first rows wait for few requests: the first and last
# shard have the sample.
_REMOTE_SAMPLE = 16
# Shares of the memory limit: of blocks that are kept, and of a column of a block.
_KEPT, _COLUMN = 4, 16
# Reads that decode at the same time.
_READERS = 2

# Rows of a block that were read: each part is a block of some rows, or the error of one row.
Parts = tuple[tuple[int, Block | str], ...]
_Key = tuple["Opened", str, int]


class BlockCache:
    """Decoded blocks of a view, within its memory limit of 64 MiB or more: blocks that were used last are kept."""

    def __init__(self, memory_limit: int | str | None = None) -> None:
        memory = int(parse_size("512 MiB" if memory_limit is None else memory_limit) or 0)
        if memory < 64 << 20:
            raise ValueError(
                f"memory_limit of a view must be a number of bytes, '64 MiB' or more; got {memory_limit!r}"
            )
        self.limit, self.most = memory // _KEPT, memory // _COLUMN
        self.nbytes = 0
        self._held: OrderedDict[_Key, tuple[Parts, int]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: _Key) -> Parts | None:
        """Return the parts of a block, if they are kept."""
        with self._lock:
            if key in self._held:
                self._held.move_to_end(key)
            return self._held.get(key, (None, 0))[0]

    def put(self, key: _Key, parts: Parts) -> None:
        """Keep the parts of a block, and forget blocks that were used before others."""
        nbytes = sum(len(part) if isinstance(part, str) else block_nbytes(part) for _, part in parts) + 1000
        with self._lock:
            self.nbytes += nbytes - self._held.pop(key, ((), 0))[1]
            self._held[key] = parts, nbytes
            while self.nbytes > self.limit:
                self.nbytes -= self._held.popitem(last=False)[1][1]


@dataclass(frozen=True, slots=True)
class Known:
    """Rows that can be read now."""

    source: CountedRows | None
    rows: int  # counted so far
    counted: bool  # these are all rows
    reports: tuple[ShardReport, ...] = ()  # of the shards that are counted; the last one may be partial
    error: str | None = None  # that ended counting

    def report(self, shard: int) -> tuple[ShardReport | None, bool]:
        """Return the report of a shard, and whether all of its records are counted."""
        is_known = shard < len(self.reports)
        return self.reports[shard] if is_known else None, is_known and (self.counted or shard + 1 < len(self.reports))


class Opened:
    """A data set whose rows are counted by a thread, from its first shard on.

    Parameters
    ----------
    name, code : str
        Title, and Python code that opens it.
    cache : BlockCache
        Blocks of all data sets of the view.
    schema : Schema
        Features of the rows.
    shards_or_rows : Shards or Rows
        Shards of records, which are counted and read, or the rows of a `Dataset`.
    sample : tuple of (Report or str or None) and bool
        Report on a sample of the records, or the reason why their features are unknown, and whether any is damaged.
    """

    def __init__(
        self,
        name: str,
        code: str,
        cache: BlockCache,
        schema: Schema | None,
        shards_or_rows: Shards | Rows,
        sample: tuple[Report | str | None, bool] = (None, False),
    ) -> None:
        shards, rows = (shards_or_rows, None) if isinstance(shards_or_rows, Shards) else (None, shards_or_rows)
        self.name, self.cache, self.shards, self._code = name, cache, shards, code
        self.report, self._found_damage = sample
        self.features: Mapping[str, Feature] = schema or {}
        self._decoder = None if schema is None or shards is None else Decoder(schema)
        self.message = None if schema is None or shards is None else schema.message
        # Columns: a feature may have two of them.
        self.schema = schema if self._decoder is None else self._decoder.columns
        self.closing = threading.Event()
        self.known = Known(None, 0, False)
        # Damage that was found when records were read, by shard.
        self.damage: dict[int, ShardReport] = {}
        self.kind = "rows" if rows is not None else "tfrecord"
        if rows is not None and "store" in rows.origin:
            self.kind = "zarr"
        self._rows, self._published = rows, 0.0
        self._changed, self._looking = threading.Condition(), threading.Lock()
        self._looked, self._differing = time.monotonic(), dict[str, str]()
        self._readers = threading.Semaphore(_READERS)
        self._block_rows = _BLOCK_ROWS
        self._thread = threading.Thread(target=self._count, name=f"count-{name}", daemon=True)
        self._thread.start()

    @property
    def code(self) -> str:
        """Python code that opens the data set; it skips damage that is known by now, as the view does."""
        known = self.known
        complete = known.reports if known.counted else known.reports[:-1]
        damaged = self._found_damage or any(report.lost for report in (*complete, *self.damage.values()))
        if not damaged or not self._code.endswith(")"):
            return self._code
        return f'{self._code[:-1]}, errors="skip")'

    def close(self) -> None:
        """End counting."""
        self.closing.set()
        self._thread.join(timeout=60)

    def wait(self, rows: int, seconds: float, before: Known | None = None) -> Known:
        """Return what is known as soon as there are some rows, and it differs from before; or after some seconds."""
        with self._changed:
            self._changed.wait_for(
                lambda: self.known is not before and (self.known.rows >= rows or self.known.counted), seconds
            )
            return self.known

    def differing(self) -> dict[str, str]:
        """Return the shards that grew, changed or are missing; all pages share one listing."""
        with self._looking:
            if self.shards is not None and time.monotonic() - self._looked > limits().look_again:
                self._differing = find_changes(self.shards)
                self._looked = time.monotonic()
            return self._differing

    @property
    def _is_due(self) -> bool:
        return time.monotonic() - self._published > _PUBLISHED or not self.known.rows

    def _publish(self, known: Known) -> None:
        with self._changed:
            self.known, self._published = known, time.monotonic()
            self._changed.notify_all()

    # ---------------------------------------------------------------------------------------------------------- count

    def _count(self) -> None:
        """Count the rows, in a thread of its own."""
        try:
            if self._rows is not None:
                self._count_rows(self._rows)
            else:
                self._count_shards()
        except Exception as error:
            # A thread cannot raise: pages show the error.
            self._publish(replace(self.known, counted=True, error=describe_error(error)))

    def _count_rows(self, rows: Rows) -> None:
        """Count the rows of a `Dataset`, chunk by chunk if they are not counted."""
        if rows.borders is not None:
            chunks = ChunkSource.of_all(rows.schema, rows.borders.tolist(), rows.chunk)
            source, nrows = rows.counted_source or chunks, int(rows.borders[-1])
            cost = source.cost(np.array([[0, nrows]])) if nrows else None
            self._block_rows = _rows_of_block(4096.0 if cost is None else float(cost[0]) / nrows)
            return self._publish(Known(source, nrows, True))
        borders, first = [0], tuple(rows.schema)[:1]
        for number in range(rows.nchunks):
            if self.closing.is_set():
                return None
            blocks = rows.chunk(first, number)
            borders.append(borders[-1] + (len(blocks[first[0]]) if first else 0))
            chunks = ChunkSource.of_all(rows.schema, tuple(borders), rows.chunk)
            self._publish(Known(chunks, borders[-1], number + 1 == rows.nchunks))
        return None

    def _count_shards(self) -> None:
        """Walk the headers of all shards, or read their indexes."""
        shards = self.shards
        assert shards is not None
        sidecars = find_sidecars(shards, SUFFIX)
        access = [found is not None for found in find_sidecars(shards, ACCESS_SUFFIX)]
        shards = replace(shards, access=tuple(access))
        reports: list[ShardReport] = []
        for number, sidecar in enumerate(sidecars):
            for report in self._reports_of_shard(shards[number], sidecar):
                if self.closing.is_set():
                    return
                if self._is_due:
                    self._publish(self._known_of_reports(shards, [*reports, report]))
            reports.append(report)
        self._publish(self._known_of_reports(shards, reports, counted=True))

    def _reports_of_shard(self, shard: Shard, sidecar: Sidecar | None) -> Iterator[ShardReport]:
        """Yield reports of a shard: partial ones while its headers are walked, then the final one."""
        try:
            if sidecar is not None:
                yield ShardReport.from_index(shard, index_shard(shard, sidecar))
                return
            with Window(shard, block_size=limits().index_window_nbytes, stop=shard.size) as window:
                for entries in grow_entries(window):
                    is_whole = entries.end == window.offset
                    if is_whole or self._is_due:
                        # The rest of the shard counts as lost until it is reached.
                        lost = () if is_whole else (Lost(entries.end, None, "not counted yet", None),)
                        yield ShardReport.from_index(shard, entries.index(window.compression), lost)
        except CorruptRecordError:
            report = check_shard(shard)
            yield report if sidecar is None else count_lost_records(report, sidecar)

    def _known_of_reports(self, shards: Shards, reports: Sequence[ShardReport], *, counted: bool = False) -> Known:
        """Make a source of the records of the shards that are checked so far."""
        part = shards[: len(reports)]
        part = part.resolved([report.compression for report in reports], list(part.access))
        collection = Collection.from_reports(part, reports)
        rows = range(collection.nrows)
        if self._decoder is None:
            return Known(None, len(rows), counted, tuple(reports))
        if not self.known.rows and rows:
            self._block_rows = _rows_of_block(float(collection.nbytes.sum()) / len(rows))
        source = RecordSource(collection, self._decoder, rows, True, f"view-{id(self)}", self.cache.most)
        return Known(source, len(rows), counted, tuple(reports))

    # ----------------------------------------------------------------------------------------------------------- read

    def read(self, names: Sequence[str], rows: Iterable[int]) -> Iterator[dict[str, Block | str]]:
        """Yield each row as blocks of one row, or errors; blocks around the rows are read and kept."""
        held: tuple[int, dict[str, Parts]] = (-1, {})
        for row in rows:
            first = row - row % self._block_rows
            if first != held[0]:
                held = first, self.block(names, first)
            yield {name: _row_of(parts, row - first) for name, parts in held[1].items()}

    def block(self, names: Sequence[str], first: int) -> dict[str, Parts]:
        """Return the block of rows that begins at row `first`, from the cache or in one pass over the shards."""
        known = self.known
        past = min(first + self._block_rows, known.rows)
        cached = {name: self.cache.get((self, name, first)) for name in names}
        missing = tuple(name for name, parts in cached.items() if parts is None)
        if missing and known.source is not None:
            with self._readers:
                read = self.read_span(missing, first, past)
            for name in missing:
                cached[name] = tuple(
                    (start - first, blocks if isinstance(blocks, str) else blocks[name]) for start, blocks in read
                )
                # A block at the end of the rows that are known will grow.
                if known.counted or past - first == self._block_rows:
                    self.cache.put((self, name, first), cached[name] or ())
        return {name: parts or () for name, parts in cached.items()}

    def read_span(self, names: Sequence[str], start: int, stop: int) -> list[tuple[int, dict[str, Block] | str]]:
        """Read rows; rows that cannot be read are found by halves, and have an error in place of blocks."""
        source = self.known.source
        if source is None or start >= stop:
            return []
        try:
            return [(start, source.with_memory_limit(self.cache.most).read(names, slice(start, stop)))]
        except (TFRecordError, MemoryError, OSError) as error:
            self._found_damage |= isinstance(error, CorruptRecordError)
            if stop - start == 1:
                return [(start, describe_error(error))]
        middle = (start + stop) // 2
        return self.read_span(names, start, middle) + self.read_span(names, middle, stop)


def check_format(opened: Opened) -> None:
    """Raise CorruptRecordError if the first and the last shard begin like files of another format."""
    if opened.shards is None or (isinstance(opened.report, Report) and opened.report.records):
        return
    found = [foreign_head(opened.shards[number]) for number in (0, len(opened.shards) - 1)]
    if found[0] is not None and found[1] is not None:
        text = f"the file is {found[0].what}, not a TFRecord file: give the view TFRecord files or a Zarr store" + (
            found[0].advice and f"; {found[0].advice}"
        )
        raise CorruptRecordError(text, Location(opened.shards.paths[0]))


def _row_of(parts: Parts, row: int) -> Block | str:
    for start, part in reversed(parts):
        if start <= row:
            return part if isinstance(part, str) else rows_of(part, row - start, row - start + 1)
    return "the row is not counted yet"


def _rows_of_block(row_nbytes: float) -> int:
    """Return a power of two of rows that are about `_BLOCK_NBYTES`."""
    return int(np.clip(2 ** int(np.log2(max(1.0, _BLOCK_NBYTES / max(1.0, row_nbytes)))), 1, _BLOCK_ROWS))


def open_path(
    path: str | list[str],
    cache: BlockCache,
    *,
    features: str | None = None,
    message: str | None = None,
    split: str | None = None,
    where: Alternatives | None = None,
    compression: str | None = "infer",
    errors: Literal["raise", "skip", "fill"] = "raise",
) -> Opened:
    """Open shards, or a Zarr group that this library wrote, without counting the records of shards."""
    name = path if isinstance(path, str) else f"{path[0]} and {len(path) - 1:,} more"
    if isinstance(path, str) and is_zarr_group(path, None):
        from dask_tfrecord.stores.zarr.read import rows_from_zarr

        return _open_where(rows_from_zarr(path), cache, name, _opening(f"from_zarr({redact_url(path)!r})"), where)
    known = wanted_schema(features, message=message)
    resolved = resolve_collection(path, split, compression=compression, storage_options=None)
    report, found_damage = _inspected_report(resolved.shards)
    known = resolved.schema() if known is None else known
    if known is None and isinstance(report, Report):
        try:
            known = resolved.with_classes(report.schema)
        except TFRecordError as error:
            report = describe_error(error)
    given = {"features": features, "message": message, "split": split}
    texts = [f"{option}={value!r}" for option, value in given.items() if value is not None]
    texts += [] if compression == "infer" else [f"compression={compression!r}"]
    texts += [] if errors == "raise" else [f"errors={errors!r}"]
    urls = redact_url(path) if isinstance(path, str) else list(map(redact_url, path))
    code = _opening(f"read_tfrecord({', '.join([repr(urls), *texts])})")
    # Lengths of the longest record, parts of a split, filters and the records that are intact need counted records.
    is_open = any(is_padded(each) and each.length is None for each in (known or {}).values())
    if known is not None and (where or resolved.rows is not None or is_open or errors != "raise"):
        from dask_tfrecord.rows.read import read_rows

        rows = read_rows(path, known, split=split, compression=compression, errors=errors)
        return _open_where(rows, cache, name, code, where)
    viewed = None if known is None else _with_image_bytes(known)
    return Opened(name, code, cache, viewed, resolved.shards, (report, found_damage))


def _opening(code: str) -> str:
    return f"import dask_tfrecord as dtf\n\nds = dtf.{code}"


def filtered_code(code: str, filters: Alternatives) -> str:
    """Return Python code that opens a data set and keeps some of its rows."""
    condition = f"ds = ds.where({filters[0] if len(filters) == 1 else filters!r})"
    imported = "import numpy as np\n" if re.search(r"\bnp\.\w+64\(", condition) else ""
    return f"{imported}{code}\n{condition}"


def _open_where(rows: Rows, cache: BlockCache, name: str, code: str, filters: Alternatives | None) -> Opened:
    """Open rows, or those that meet conditions."""
    if filters:
        from dask_tfrecord.rows.where import as_stored, where

        conditions = as_stored(rows.schema, filters)
        rows, code = where(rows, conditions), filtered_code(code, conditions)
    return opened_rows(rows, cache, name, code)


def opened_rows(rows: Rows, cache: BlockCache, name: str = "Dataset", code: str = "ds") -> Opened:
    """Open a `Dataset`'s rows; whole shards are opened as shards, so that the page shows their bytes."""
    source = rows.source
    if (
        isinstance(source, UncountedSource | RecordSource)
        and _is_whole(source)
        and set(source.schema) == set(rows.names)
    ):
        schema = _with_image_bytes(source.decoder.schema)
        return Opened(name, code, cache, schema, source.shards, _inspected_report(source.shards))
    return Opened(name, code, cache, rows.schema, rows)


def _is_whole(source: UncountedSource | RecordSource) -> bool:
    if isinstance(source, UncountedSource):
        return True
    is_every = isinstance(source.rows, range) and source.rows == range(source.collection.nrows)
    return is_every and source.collection.tails is None


def _inspected_report(shards: Shards) -> tuple[Report | str, bool]:
    """Inspect the first records of shards, or return the reason if they are not Examples; and if any is damaged."""
    is_damaged = False
    sample = SAMPLE
    if not is_local(shards.paths[0]):
        shards, sample = shards[:: max(1, len(shards) - 1)], _REMOTE_SAMPLE
    try:
        try:
            found = survey_sample(shards, sample)
        except CorruptRecordError:
            is_damaged = True
            found = survey_sample(shards, sample, runs_of=runs_left(shards, "skip"))
        return Report.from_survey(found, shards.paths), is_damaged
    except (TFRecordError, OSError) as error:
        return describe_error(error), is_damaged


def _with_image_bytes(schema: Schema) -> Schema:
    """Return a schema that reads images as bytes, so that each is decoded at the size that is shown."""
    changed = {
        name: FixedLenFeature((), "bytes", default_value=b"") if feature.count is None else VarLenFeature("bytes")
        for name, feature in schema.items()
        if isinstance(feature, Encoded) and feature.is_image and not schema.has_steps(name)
    }
    return schema.replaced({**schema, **changed}) if changed else schema
