"""Data sets that are viewed: rows are counted in the background, and read in blocks that one memory budget bounds."""

from __future__ import annotations

import re
import threading
import time
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from dask_tfrecord.arrays.collection import Collection
from dask_tfrecord.arrays.counting import IntactRecords
from dask_tfrecord.arrays.sources import RecordSource, Source, UncountedSource
from dask_tfrecord.columns.blocks import Block, block_nbytes, rows_of
from dask_tfrecord.columns.decoder import Decoder, wanted_schema
from dask_tfrecord.errors import CorruptRecordError, TFRecordError, describe_error, redact_url
from dask_tfrecord.features import FixedLenFeature, FixedLenSequenceFeature, ImageFeature, VarLenFeature
from dask_tfrecord.inspection.report import Report, survey_sample
from dask_tfrecord.inspection.survey import survey
from dask_tfrecord.metadata.paths import resolve_collection
from dask_tfrecord.records.damage import Lost, ShardReport, check_shard, count_lost_records
from dask_tfrecord.records.framing import Window
from dask_tfrecord.records.index import SUFFIX, grow_entries, index_shard, iterate_payloads
from dask_tfrecord.schema import Schema
from dask_tfrecord.settings import limits
from dask_tfrecord.storage.listing import Sidecar, find_changes, find_sidecars, is_zarr_group
from dask_tfrecord.storage.shard import Shard, Shards, is_local
from dask_tfrecord.storage.streams import ACCESS_SUFFIX

# Modules that import dask.array are imported when they are needed: the first rows of shards do not wait for it.
if TYPE_CHECKING:
    from dask_tfrecord.arrays.dataset import Dataset
    from dask_tfrecord.arrays.rows import Rows

# Stored bytes and most rows of a block; seconds between publications of a count, and between listings.
_BLOCK_NBYTES = 1 << 20
_BLOCK_ROWS = 1024
_PUBLISHED = 0.2
_LOOK = 5.0
# Records that features are inferred from. Of remote shards, the first rows wait for few requests: the first and last
# shard have the sample.
_SAMPLE = 256
_REMOTE_SAMPLE = 16
# Share of the memory limit that decoded blocks may keep, and that a column of a block may take.
KEPT, _COLUMN = 4, 16
# Reads that decode at the same time.
_READERS = 2

# Rows of a block that were read: each part is a block of some rows, or the error of one row.
Parts = tuple[tuple[int, Block | str], ...]


class BlockCache:
    """Decoded blocks within a number of bytes: the least recently used ones are forgotten."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.nbytes = 0
        self._held: OrderedDict[tuple[int, str, int], tuple[Parts, int]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: tuple[int, str, int]) -> Parts | None:
        """Return the parts of a block, if they are kept."""
        with self._lock:
            if key not in self._held:
                return None
            self._held.move_to_end(key)
            return self._held[key][0]

    def put(self, key: tuple[int, str, int], parts: Parts) -> None:
        """Keep the parts of a block, and forget blocks that were used before others."""
        nbytes = sum(len(part) if isinstance(part, str) else block_nbytes(part) for _, part in parts) + 1000
        with self._lock:
            self.nbytes -= self._held.pop(key, ((), 0))[1]
            if nbytes > self.limit:
                return
            self._held[key] = parts, nbytes
            self.nbytes += nbytes
            while self.nbytes > self.limit:
                self.nbytes -= self._held.popitem(last=False)[1][1]

    def clear(self, data: int) -> None:
        """Forget the blocks of a data set."""
        with self._lock:
            for key in [key for key in self._held if key[0] == data]:
                self.nbytes -= self._held.pop(key)[1]


@dataclass(frozen=True, slots=True)
class Known:
    """Rows that can be read now.

    Attributes
    ----------
    source : Source or None
        Source of the rows; None without any.
    rows : int
        Number of rows counted so far.
    counted : bool
        True if these are all rows.
    reports : tuple of ShardReport
        Reports of the shards that are counted; that of the last one may be partial.
    error : str or None
        Error that ended counting.
    """

    source: Source | None
    rows: int
    counted: bool
    reports: tuple[ShardReport, ...] = ()
    error: str | None = None


class Opened:
    """A data set whose rows are counted by a thread, from its first shard on.

    Parameters
    ----------
    number : int
        Number of the data set in the view.
    name, code : str
        Title, and Python code that opens it.
    schema : Schema
        Features of the rows.
    shards : Shards or None
        Shards of records; None for other rows.
    rows : Rows or None
        Rows of a `Dataset`; None to read the shards.
    report : Report or str or None
        Report on a sample of the records, or the reason why their features are unknown.
    memory : int
        Memory limit of the view in bytes.
    cache : BlockCache
        Blocks of all data sets of the view.
    """

    def __init__(
        self,
        number: int,
        name: str,
        code: str,
        schema: Schema | None,
        shards: Shards | None,
        rows: Rows | None,
        report: Report | str | None,
        memory: int,
        cache: BlockCache,
    ) -> None:
        self.number, self.name, self.code = number, name, code
        self.shards, self.report, self.cache = shards, report, cache
        self._decoder = None if schema is None or shards is None else Decoder(schema)
        # Columns: a feature may have two of them.
        self.schema = schema if self._decoder is None else self._decoder.columns
        self.closing = threading.Event()
        self.known = Known(None, 0, False)
        # Damage that was found when records were read, by shard.
        self.damage: dict[int, ShardReport] = {}
        self._rows, self._most = rows, max(1 << 20, memory // _COLUMN)
        self._changed = threading.Condition()
        self._looking = threading.Lock()
        self._looked, self._differing = time.monotonic(), dict[str, str]()
        self._readers = threading.Semaphore(_READERS)
        self._block_rows = _BLOCK_ROWS
        self._thread = threading.Thread(target=self._count, name=f"count-{number}", daemon=True)
        self._thread.start()

    @property
    def kind(self) -> str:
        """Kind of the data set: "tfrecord", "zarr" or "rows"."""
        origin = {} if self._rows is None else self._rows.origin
        return "tfrecord" if self.shards is not None else "zarr" if "store" in origin else "rows"

    def close(self) -> None:
        """End counting."""
        self.closing.set()
        self._thread.join(timeout=60)

    def wait(self, rows: int, seconds: float) -> Known:
        """Return what is known as soon as there are some rows, all rows are counted, or the time is over."""
        with self._changed:
            self._changed.wait_for(lambda: self.known.rows >= rows or self.known.counted or self.known.error, seconds)
            return self.known

    def changes(self, known: Known, seconds: float) -> Known:
        """Return what is known as soon as it differs from before, or the time is over."""
        with self._changed:
            self._changed.wait_for(lambda: self.known is not known, seconds)
            return self.known

    def differing(self) -> dict[str, str]:
        """Return the shards that grew, changed or are missing; all pages share one listing."""
        with self._looking:
            if self.shards is not None and time.monotonic() - self._looked > _LOOK:
                self._differing = find_changes(self.shards)
                self._looked = time.monotonic()
            return self._differing

    def _publish(self, known: Known) -> None:
        with self._changed:
            self.known = known
            self._changed.notify_all()

    # ---------------------------------------------------------------------------------------------------------- count

    def _count(self) -> None:
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
        if rows.source is not None and rows.borders is not None:
            self._block_rows = _block_rows(rows.source, rows)
            self._publish(Known(rows.source, int(rows.borders[-1]), True))
            return
        from dask_tfrecord.arrays.rows import ChunkSource

        borders = [0]
        first = tuple(rows.schema)[:1]
        for number in range(rows.nchunks):
            if self.closing.is_set():
                return
            if rows.borders is None:
                blocks = rows.chunk(first, number)
                borders.append(borders[-1] + (len(blocks[first[0]]) if first else 0))
            else:
                borders.append(int(rows.borders[number + 1]))
            source = ChunkSource(rows, np.array(borders))
            self._publish(Known(source, borders[-1], number + 1 == rows.nchunks))

    def _count_shards(self) -> None:
        """Walk the headers of all shards, or read their indexes."""
        shards = self.shards
        assert shards is not None
        sidecars = find_sidecars(shards, SUFFIX)
        access = [found is not None for found in find_sidecars(shards, ACCESS_SUFFIX)]
        shards = replace(shards, access=tuple(access))
        reports: list[ShardReport] = []
        last = 0.0
        for number, sidecar in enumerate(sidecars):
            for report in self._reports(shards[number], sidecar):
                if self.closing.is_set():
                    return
                if time.monotonic() - last > _PUBLISHED or not self.known.rows:
                    self._publish(self._known(shards, [*reports, report], counted=False))
                    last = time.monotonic()
            reports.append(report)
        self._publish(self._known(shards, reports, counted=True))

    def _reports(self, shard: Shard, sidecar: Sidecar | None) -> Iterator[ShardReport]:
        """Yield reports of a shard: partial ones while its headers are walked, then the final one."""
        try:
            if sidecar is not None:
                yield ShardReport.from_index(shard, index_shard(shard, sidecar).index)
            else:
                yield from _walked(shard)
        except CorruptRecordError:
            report = check_shard(shard)
            yield report if sidecar is None else count_lost_records(report, sidecar)

    def _known(self, shards: Shards, reports: Sequence[ShardReport], *, counted: bool) -> Known:
        part = shards[: len(reports)]
        part = part.resolved([report.compression for report in reports], list(part.access))
        collection = Collection.from_reports(part, reports)
        if self._decoder is None:
            return Known(None, collection.nrows, counted, tuple(reports))
        if not self.known.rows and collection.nrows:
            self._block_rows = _rows_of_block(float(collection.nbytes.sum()) / collection.nrows)
        source = RecordSource(
            collection, self._decoder, range(collection.nrows), True, f"view-{self.number}", self._most
        )
        return Known(source, collection.nrows, counted, tuple(reports))

    # ----------------------------------------------------------------------------------------------------------- read

    def spans(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """Yield the rows as parts of blocks."""
        cuts = range(start - start % self._block_rows + self._block_rows, stop, self._block_rows)
        return ((first, past) for first, past in pairwise([start, *cuts, stop]) if first < past)

    def read(self, names: Sequence[str], rows: Iterable[int]) -> Iterator[tuple[int, dict[str, Block | str]]]:
        """Yield each row as blocks of one row, or errors; blocks around the rows are read and kept."""
        held: tuple[int, dict[str, Parts]] = (-1, {})
        for row in rows:
            first = row - row % self._block_rows
            if first != held[0]:
                held = first, self.block(names, first)
            yield row, {name: _row_of(parts, row - first) for name, parts in held[1].items()}

    def block(self, names: Sequence[str], first: int) -> dict[str, Parts]:
        """Return the block of rows that begins at row `first`, from the cache or in one pass over the shards."""
        known = self.known
        past = min(first + self._block_rows, known.rows)
        found = {name: self.cache.get((self.number, name, first)) for name in names}
        missing = tuple(name for name, parts in found.items() if parts is None)
        if missing and known.source is not None:
            with self._readers:
                read = self.read_span(missing, first, past)
            for name in missing:
                found[name] = tuple(
                    (start - first, blocks if isinstance(blocks, str) else blocks[name]) for start, blocks in read
                )
                # A block at the end of the rows that are known will grow.
                if known.counted or past - first == self._block_rows:
                    self.cache.put((self.number, name, first), found[name] or ())
        return {name: parts or () for name, parts in found.items()}

    def read_span(self, names: Sequence[str], start: int, stop: int) -> list[tuple[int, dict[str, Block] | str]]:
        """Read rows; rows that cannot be read are found by halves, and have an error in place of blocks."""
        source = self.known.source
        if source is None or start >= stop:
            return []
        try:
            return [(start, source.with_memory_limit(self._most).read(names, slice(start, stop)))]
        except (TFRecordError, MemoryError, OSError) as error:
            if stop - start == 1:
                return [(start, describe_error(error))]
        middle = (start + stop) // 2
        return self.read_span(names, start, middle) + self.read_span(names, middle, stop)


def _row_of(parts: Parts, row: int) -> Block | str:
    for start, part in reversed(parts):
        if start <= row:
            return part if isinstance(part, str) else rows_of(part, row - start, row - start + 1)
    return "the row is not counted yet"


def _walked(shard: Shard) -> Iterator[ShardReport]:
    """Walk the headers of a shard; the rest of the shard counts as lost until it is reached."""
    last = 0.0
    with Window(shard, block_size=limits().index_window_nbytes, stop=shard.size) as window:
        for entries in grow_entries(window):
            if entries.end == window.offset or time.monotonic() - last > _PUBLISHED:
                lost = () if entries.end == window.offset else (Lost(entries.end, None, "not counted yet", None),)
                yield ShardReport.from_index(shard, entries.index(window.compression), lost)
                last = time.monotonic()


def _block_rows(source: Source, rows: Rows) -> int:
    nrows = int(rows.nrows or 0)
    cost = source.cost(np.array([[0, nrows]])) if nrows else None
    return _rows_of_block(4096.0 if cost is None else float(cost[0]) / nrows)


def _rows_of_block(row_nbytes: float) -> int:
    """Return a power of two of rows that are about `_BLOCK_NBYTES`."""
    return int(np.clip(2 ** int(np.log2(max(1.0, _BLOCK_NBYTES / max(1.0, row_nbytes)))), 1, _BLOCK_ROWS))


def open_path(
    number: int,
    path: str | list[str],
    memory: int,
    cache: BlockCache,
    *,
    features: str | None = None,
    where: Sequence[tuple[str, str, Any]] = (),
    compression: str | None = "infer",
    **reading: Any,
) -> Opened:
    """Open shards, or a Zarr group that this library wrote, without counting the records of shards.

    `reading` are the arguments `message` and `split` of `read_tfrecord`.
    """
    name = path if isinstance(path, str) else f"{path[0]} and {len(path) - 1:,} more"
    if isinstance(path, str) and is_zarr_group(path, None):
        from dask_tfrecord.stores.zarr.read import from_zarr

        return _filtered(number, from_zarr(path), where, memory, cache, name, _code("from_zarr", path))
    known = wanted_schema(features, message=reading.get("message"))
    found = resolve_collection(path, reading.get("split"), compression=compression, storage_options=None)
    report = _report(found.shards)
    known = found.schema() if known is None else known
    if known is None and isinstance(report, Report):
        try:
            known = report.schema if report.features else None
        except TFRecordError as error:
            report = describe_error(error)
    given = {name: value for name, value in reading.items() if value is not None}
    given |= {} if compression == "infer" else {"compression": compression}
    code = _code("read_tfrecord", path, *([] if features is None else [features]), **given)
    if known is not None and (where or found.rows is not None or _has_open_lengths(known)):
        from dask_tfrecord.arrays.read import read_tfrecord

        split = reading.get("split")
        dataset = read_tfrecord(path, known, split=split, compression=compression)
        return _filtered(number, dataset, where, memory, cache, name, code)
    viewed = None if known is None else _with_encoded_images(known)
    return Opened(number, name, code, viewed, found.shards, None, report, memory, cache)


def _code(function: str, *arguments: Any, **named: Any) -> str:
    """Return Python code that opens a data set, without credentials."""
    first, *others = (redact_url(each) if isinstance(each, str) else each for each in arguments)
    texts = [repr(first), *map(repr, others), *(f"{name}={value!r}" for name, value in named.items())]
    return f"import dask_tfrecord as dtf\n\nds = dtf.{function}({', '.join(texts)})"


def filtered_code(code: str, filters: Sequence[Any]) -> str:
    """Return Python code that opens a data set and keeps some of its rows."""
    condition = f"ds = ds.where({list(filters)!r})"
    imported = "import numpy as np\n" if re.search(r"\bnp\.\w+64\(", condition) else ""
    return f"{imported}{code}\n{condition}"


def _filtered(
    number: int,
    dataset: Dataset,
    where: Sequence[tuple[str, str, Any]],
    memory: int,
    cache: BlockCache,
    name: str,
    code: str,
) -> Opened:
    if where:
        from dask_tfrecord.arrays.filters import as_stored

        conditions = as_stored(dataset.schema, where)
        dataset, code = dataset.where(conditions), filtered_code(code, conditions)
    return open_dataset(number, dataset, memory, cache, name=name, code=code)


def open_dataset(
    number: int, dataset: Dataset, memory: int, cache: BlockCache, *, name: str = "Dataset", code: str = "ds"
) -> Opened:
    """Open the rows of a `Dataset`."""
    rows, shards = dataset._merged(), None
    source = rows.source
    whole = isinstance(source, UncountedSource) or (isinstance(source, RecordSource) and _is_whole(source))
    if whole and isinstance(source, UncountedSource | RecordSource) and set(source.schema) == set(dataset):
        # Records of whole shards, which the page of bytes shows too.
        shards = source.shards
        schema = _with_encoded_images(source.decoder.schema)
        return Opened(number, name, code, schema, shards, None, _report(shards), memory, cache)
    return Opened(number, name, code, dataset.schema, None, rows, None, memory, cache)


def _is_whole(source: RecordSource) -> bool:
    whole = range(source.collection.nrows)
    return isinstance(source.rows, range) and source.rows == whole and source.collection.tails is None


def _report(shards: Shards) -> Report | str:
    """Inspect the first records of some shards; return the reason if they are no Examples."""
    sample = _SAMPLE
    if not is_local(shards.paths[0]):
        shards, sample = shards[:: max(1, len(shards) - 1)], _REMOTE_SAMPLE
    try:
        try:
            return Report.from_survey(survey_sample(shards, sample), shards.paths)
        except CorruptRecordError:
            collection = IntactRecords.from_shards(shards).collection
            runs = collection.runs(0, min(sample, collection.nrows))
            return Report.from_survey(survey(iterate_payloads(runs)), shards.paths)
    except (TFRecordError, OSError) as error:
        return describe_error(error)


def _has_open_lengths(schema: Schema) -> bool:
    return any(isinstance(each, FixedLenSequenceFeature) and each.length is None for each in schema.values())


def _with_encoded_images(schema: Schema) -> Schema:
    """Return a schema that reads images as bytes, so that each is decoded at the size that is shown."""
    changed = {
        name: FixedLenFeature((), "bytes", default_value=b"") if feature.count is None else VarLenFeature("bytes")
        for name, feature in schema.items()
        if isinstance(feature, ImageFeature) and not schema.has_steps(name)
    }
    return schema.replaced({**schema, **changed}) if changed else schema
