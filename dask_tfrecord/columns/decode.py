"""Records into blocks: runs of records go through the native decoder, what it refuses becomes the public error.

This is the one way from the bytes of shards to NumPy. A run names records of one shard, consecutive ones or some of a
stretch, and a place to start reading from; the decoder is fed windows of a few MiB, so memory is the output and one
window. Records of a stretch that are not wanted are passed by their headers.
"""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dask_tfrecord import _native
from dask_tfrecord.columns.blocks import Block
from dask_tfrecord.columns.parts import Part, Taken, unset_column
from dask_tfrecord.columns.recipes import Parser, Recipe
from dask_tfrecord.columns.recognise import refusal
from dask_tfrecord.columns.refusals import Refused, feature_error, unknown_error
from dask_tfrecord.columns.rows import RowError
from dask_tfrecord.errors import CorruptRecordError, FeatureError, Place, TFRecordError
from dask_tfrecord.records.framing import HEADER, Window, framing_error
from dask_tfrecord.records.index import cut_error
from dask_tfrecord.records.splits import Split, check_meeting
from dask_tfrecord.storage.files import Shard

__all__ = ["Run", "decode", "decode_pieces"]

# Bytes read at once: no more than a block, which stays in cache, and no less than a few pages.
_BLOCK = 1 << 20
_LEAST = 16 << 10

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """Records of one shard that are read together: consecutive ones, or some that lie near each other.

    Attributes
    ----------
    shard : Shard
        Where they are.
    first : int
        Number of the first one in the shard.
    count : int or None
        How many; None for all from the first one to the end of the shard.
    mark : int
        Number of a record at or before the first, whose place is known.
    offset : int
        The byte of that record's header in the decompressed stream.
    past : int
        A byte that lies past the run, as far as is known: no more than up to there is read at once.
    last : bool
        The run ends where the shard ends: bytes that follow are an error.
    split : Split or None
        The run are all records that begin in the split, from the mark on.
    wanted : int64 array of shape (count,), or None
        Their numbers in the shard, ascending; None where they are consecutive.
    """

    shard: Shard
    first: int
    count: int | None
    mark: int
    offset: int
    past: int
    last: bool
    split: Split | None = None
    wanted: NDArray[np.int64] | None = None

    def number(self, place: int) -> int:
        """Find the number in the shard of a record of the run."""
        return self.first + place if self.wanted is None else int(self.wanted[place])


def decode(
    runs: Iterable[Run],
    parser: Parser,
    names: Sequence[str],
    *,
    rows: int | None,
    check_crc: bool = True,
    out: Mapping[str, NDArray[Any]] | None = None,
) -> dict[str, Block]:
    """Features of runs of records, decoded in one pass.

    Parameters
    ----------
    runs : iterable of Run
        In the order of the rows; those of one shard ascend.
    parser : Parser
        All that is known of the records.
    names : sequence of str
        The columns to make.
    rows : int or None
        Records of all runs together, None where that is not known.
    check_crc : bool, default True
        Check both CRCs of every record that is decoded.
    out : mapping of str to ndarray, optional
        Contiguous arrays of shape ``(rows, *shape)`` that numeric features are decoded into. Where rows differ in size,
        memory that flat values lie in from its beginning on, if they fit and the decoder makes them as they are.

    Returns
    -------
    dict of str to Block
        In the order of `names`; dense ones of `out` are the arrays given.

    Raises
    ------
    CorruptRecordError
        If the framing of a record is damaged, a shard ends early or holds more records than it should.
    FeatureError
        If a record is no Example or not what the schema says.
    """
    with closing(decode_pieces([(runs, rows, dict(out or {}))], parser, names, check_crc=check_crc)) as pieces:
        return next(pieces)


def decode_pieces(
    pieces: Iterable[tuple[Iterable[Run], int | None, dict[str, NDArray[Any]]]],
    parser: Parser,
    names: Sequence[str],
    *,
    check_crc: bool = True,
) -> Generator[dict[str, Block], None, None]:
    """Decode runs piece by piece: a shard is entered once, however many pieces follow each other in it.

    Parameters
    ----------
    pieces : iterable of (runs, rows, out)
        Each as `decode` takes it. The next one is asked for when the blocks of the one before are done with.
    parser, names, check_crc
        As `decode` takes them.

    Yields
    ------
    dict of str to Block
        Of one piece.
    """
    request = _Request(parser, names, check_crc)
    reader: _Reader | None = None
    try:
        for runs, rows, out in pieces:
            runs = list(runs)
            job = _Job(request, rows, out)
            job.nbytes = sum(run.past - run.offset for run in runs)
            for run in runs:
                if reader is None or not reader.reaches(run):
                    if reader is not None:
                        reader.window.close()
                    reader = _Reader(run, check_crc)
                job.runs.append((job.records, run))
                reader.read(run, job)
            yield job.blocks()
    finally:
        if reader is not None:
            reader.window.close()


class _Request:
    """What the decoder is told of the columns of all pieces."""

    def __init__(self, parser: Parser, names: Sequence[str], check_crc: bool) -> None:
        self.parser = parser
        self.recipes = {name: parser.recipes[name] for name in names}
        places: dict[Part, int] = {}
        # Of each column the places of its parts, some of which columns share.
        self.places = {
            name: [places.setdefault(part, len(places)) for part in recipe.parts]
            for name, recipe in self.recipes.items()
        }
        self.parts = list(places)
        schema = parser.schema
        # An inferred schema has only seen a sample: when all of it is read, a key that it lacks would be lost.
        sampling = schema.sampling if len(names) == len(parser.recipes) else None
        self.unset = sampling.unset if sampling else ()
        self._columns = [*(part.column() for part in self.parts), *map(unset_column, self.unset)]
        self._options = check_crc, sampling is not None, schema.message == "SequenceExample"

    def decoder(self) -> _native.Decoder:
        """Make what decodes one piece."""
        return _native.Decoder(self._columns, *self._options)


class _Job:
    """The decoder of one piece, and the blocks made of what it reads."""

    def __init__(self, request: _Request, rows: int | None, out: dict[str, NDArray[Any]]) -> None:
        self.request, self.rows, self.out = request, rows, out
        self.offered: dict[int, NDArray[Any]] = {}
        self.nbytes = 0  # of all runs, until the first of them has said what becomes of them
        self.records = 0  # decoded so far
        self.runs: list[tuple[int, Run]] = []  # and which of the records is the first of each run
        self.decoder = request.decoder()
        self.arrays = {} if rows is None else dict(self._lent(rows))

    def _lent(self, rows: int) -> Iterator[tuple[str, NDArray[Any]]]:
        """Arrays that the decoder writes into."""
        for name, recipe in self.request.recipes.items():
            place, array = self.request.places[name][0], self.out.get(name)
            if recipe.keeps_values and array is not None:
                self.offered[place] = array.reshape(-1)
                self.decoder.offer(place, self.offered[place].view(np.uint8))
            if recipe.make is None:
                if array is None:
                    array = np.empty((rows, *recipe.feature.item_shape), recipe.feature.item_dtype)
                self.decoder.lend(place, array.reshape(-1).view(np.uint8))
                yield name, array

    def learn(self, records: int, consumed: int) -> None:
        """Take note of records; the first block of them says how much room all will take."""
        self.records += records
        if records and self.nbytes:
            times = self.nbytes / consumed if self.rows is None else min(self.nbytes / consumed, self.rows / records)
            self.decoder.expect(times * 1.05)
            self.nbytes = 0

    def blocks(self) -> dict[str, Block]:
        """Hand out what was decoded, column by column."""
        taken = [Taken(*self.decoder.take(place)) for place in range(len(self.request.parts))]
        for place, memory in self.offered.items():
            if taken[place].values is None:
                taken[place] = taken[place]._replace(values=memory[: taken[place].total].view(np.uint8))
        prepared: dict[str, Sequence[Taken]] = {}
        blocks = {}
        for name, recipe in self.request.recipes.items():
            parts: Sequence[Taken] = [taken[place] for place in self.request.places[name]]
            try:
                if recipe.prepare is not None:
                    if recipe.source not in prepared:
                        prepared[recipe.source] = recipe.prepare(recipe.parsed, parts)
                    parts = prepared[recipe.source]
                blocks[name] = self._block(name, recipe, parts)
            except RowError as error:
                raise row_error(error, recipe.source, *self._run_of(error.row)) from None
        return blocks

    def _block(self, name: str, recipe: Recipe, taken: Sequence[Taken]) -> Block:
        if name in self.arrays:
            return self.arrays[name]
        if recipe.make is not None:
            return recipe.make(
                recipe.parsed, taken, self.records, self.out.get(name) if recipe.feature.is_dense else None
            )
        # The number of rows was not known, so the decoder's own memory has grown with them.
        dense: NDArray[Any] = taken[0].values.view(recipe.feature.item_dtype)  # type: ignore[union-attr]
        return dense.reshape(self.records, *recipe.feature.item_shape)

    def _run_of(self, row: int) -> tuple[Run, int]:
        """Find the run that a row comes from, and its number in the shard."""
        first, run = next((first, run) for first, run in reversed(self.runs) if first <= row)
        return run, run.number(row - first)


class _Reader:
    """A window on one shard that knows which record it stands at."""

    def __init__(self, run: Run, check_crc: bool) -> None:
        self.shard = run.shard
        self.check_crc = check_crc
        self.window = Window(run.shard, run.offset, block_size=_LEAST, stop=run.past)
        self.record = run.mark

    def reaches(self, run: Run) -> bool:
        """Whether the run lies ahead in the same shard."""
        return run.shard == self.shard and run.first >= self.record

    def read(self, run: Run, job: _Job) -> None:
        """Decode the run."""
        _log.debug(
            "decode %s from record %d, %s of them, of %s",
            tuple(job.request.recipes),
            run.first,
            run.count,
            run.shard.path,
        )
        self.window.expect(run.past)
        # Lost bytes may lie before a record, and none is then between it and the one before.
        if run.offset > self.window.offset:
            self.window.advance(run.offset - self.window.offset)
            self.record = run.mark
        if run.wanted is None:
            self._read_all(run, job)
        else:
            self._pick(run, run.wanted, job)
        if run.last and not self.window.exhausted:
            raise CorruptRecordError(
                f"{self.record} records were expected, and more bytes follow them: the counts given are wrong, or the "
                f"file has changed since it was counted",
                Place(self.shard.path, self.record, self.window.offset),
            )

    def _read_all(self, run: Run, job: _Job) -> None:
        """Decode consecutive records."""
        self.skip(run)
        left = -1 if run.count is None else run.count
        window = self.window
        crossing = False
        while left != 0 and not self._beyond(run):
            end, limit = window.end, left
            if crossing:
                limit = 1
            elif run.split is not None:
                end = min(end, window.begin + run.split.stop - window.offset)
            records, consumed, stop, need = job.decoder.feed(window.buffer, window.begin, end, limit, window.offset)
            window.advance(consumed)
            self.record += records
            left -= records if left > 0 else 0
            job.learn(records, consumed)
            if stop == _native.FEATURE:
                raise self._feature_error(job)
            if stop == _native.FRAMING:
                raise framing_error(window, self.record)
            if stop == _native.MORE:
                # The last record of a split reaches beyond it.
                crossing = run.split is not None and window.offset + need > run.split.stop
                if crossing:
                    window.expect(max(run.past, window.offset + need))
                if not self._beyond(run) and not self._fill(need, run):
                    if run.count is None and window.exhausted:
                        return
                    raise self._ended(left)
        if run.split is not None:
            check_meeting(self.shard, run.split, window.offset, self.record)

    def _pick(self, run: Run, wanted: NDArray[np.int64], job: _Job) -> None:
        """Decode the records that are wanted; of those between them only the headers are looked at."""
        window, done = self.window, 0
        while done < len(wanted):
            border = window.offset
            records, nbytes, stop, need = job.decoder.pick(
                window.buffer, window.begin, window.end, self.record, wanted[done:], border
            )
            if not window.advance(nbytes):
                raise cut_error(self.shard, border, self.record, records)
            self.record += records
            decoded = int(np.searchsorted(wanted, self.record)) - done
            done += decoded
            job.learn(decoded, nbytes)
            if stop == _native.FEATURE:
                raise self._feature_error(job)
            if stop == _native.FRAMING:
                raise framing_error(window, self.record)
            if stop == _native.MORE and not self._fill(need, run):
                raise self._ended(int(wanted[-1]) + 1 - self.record)

    def _beyond(self, run: Run) -> bool:
        return run.split is not None and self.window.offset >= run.split.stop

    def _fill(self, need: int, run: Run) -> bool:
        """Have `need` bytes in view, and a block of what is left of the run."""
        window = self.window
        left = run.past - window.offset - (window.end - window.begin)
        window.block_size = min(max(left, need, _LEAST), _BLOCK) if left > 0 else _BLOCK
        return window.fill(need)

    def skip(self, run: Run) -> None:
        """Go to the first record of the run."""
        count = run.first - self.record
        while count > 0:
            window, border = self.window, self.window.offset
            records, advance, stop, need = _native.scan(window.buffer, window.begin, window.end, count, self.check_crc)
            if not window.advance(advance):
                raise cut_error(self.shard, border, self.record, records)
            self.record += records
            count -= records
            if stop == _native.FRAMING:
                raise framing_error(window, self.record)
            if stop == _native.MORE and not self._fill(need, run):
                raise self._ended(count)

    def _ended(self, missing: int) -> TFRecordError:
        if not self.window.exhausted:
            return framing_error(self.window, self.record)
        return CorruptRecordError(
            f"the shard ends where {missing} more records were expected: the counts given are wrong, or the file has "
            f"changed since it was counted",
            Place(self.shard.path, self.record, self.window.offset),
        )

    def _feature_error(self, job: _Job) -> FeatureError:
        """Say what is wrong with the record that the decoder has stopped at."""
        place = Place(self.shard.path, self.record, self.window.offset)
        fault, column, step, found, text = job.decoder.problem()
        refused = Refused(fault, step, found, text.decode())
        length = int.from_bytes(self.window.view(0, 8), "little")
        payload = bytes(self.window.view(HEADER, HEADER + length))
        request = job.request
        if refused.is_foreign:
            return refusal(payload, place, request.parser.schema.message)
        sampling = request.parser.schema.sampling
        if 0 <= column < len(request.parts):
            part = request.parts[column]
            recipe = next(recipe for recipe in request.recipes.values() if part in recipe.parts)
            return feature_error(recipe, part, refused, sampling, place, payload)
        key = request.unset[column - len(request.parts)] if column >= 0 else text.decode()
        return unknown_error(key, refused, sampling, place)


def row_error(error: RowError, source: str, run: Run, record: int) -> FeatureError:
    """Say where a row is that a column could not be made of: its byte is looked for only now."""
    reader = _Reader(run, check_crc=False)
    with reader.window:
        reader.skip(replace(run, first=record))
        offset = reader.window.offset
    return FeatureError(f"feature {source!r} {error.message}", Place(run.shard.path, record, offset, source))
