"""Where rows come from: sources read features of any rows as blocks, on whatever worker they are called.

A source is small, picklable and tokenised: it travels once to each worker, and its token names what it reads.
`RecordSource` reads TFRecord shards, `MappedSource` passes rows through a function; a store brings its own.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, tee
from typing import Any, Protocol

import numpy as np
from dask.base import normalize_token, tokenize
from numpy.typing import NDArray

from dask_tfrecord.arrays.plan import Collection, Rows, finer_borders, pick_rows, row_runs
from dask_tfrecord.columns.blocks import (
    ArraysBlock,
    Block,
    BytesBlock,
    RaggedBlock,
    block_nbytes,
    concatenate,
    take_rows,
    to_array,
    zero_rows,
)
from dask_tfrecord.columns.conform import conform
from dask_tfrecord.columns.decode import decode, decode_pieces
from dask_tfrecord.columns.recipes import Parser, SizeParser
from dask_tfrecord.errors import SchemaError
from dask_tfrecord.schema import Schema
from dask_tfrecord.storage.files import Shards

__all__ = [
    "BlockFunction",
    "MappedSource",
    "Out",
    "RecordSource",
    "Room",
    "Source",
    "origin_of",
    "origin_of_mapped",
    "user_blocks",
]

# Where rows that are read to learn how large they are get cut, and decoded bytes of which there are enough.
_PROBE_CUTS = (0, 1, 4, 16, 64)
_PROBE_NBYTES = 8 << 20

BlockFunction = Callable[[dict[str, Any]], Mapping[str, Any]]
# Gives memory that flat values of some rows may begin in, if it has any. Who can't use it need not.
Room = Callable[[tuple[int, int]], NDArray[Any] | None]
# Where rows go: arrays that are filled, and rooms where rows differ in size.
Out = Mapping[str, NDArray[Any] | Room]


class Source(Protocol):
    """What a `Dataset` reads from."""

    @property
    def schema(self) -> Schema:
        """The features that can be read."""

    @property
    def nrows(self) -> int | None:
        """Rows of all features; None if they were not counted."""

    @property
    def rows(self) -> Rows | None:
        """Of the rows that are stored, those that are rows here; None if they were not counted."""

    @property
    def origin(self) -> Mapping[str, Any]:
        """Where the rows come from, for people and for attributes of stores: JSON values."""

    def read(self, names: Sequence[str], key: Any, out: Mapping[str, NDArray[Any]] | None = None) -> dict[str, Block]:
        """Rows of some features, read in one pass.

        `key` is a slice, a list of ints or a mask over the rows; of a source whose rows are not counted, the number
        of a chunk. Arrays of `out` are filled and returned where a feature is dense.
        """

    def pieces(
        self, names: Sequence[str], spans: Iterable[tuple[int, int]], out: Out | None = None
    ) -> Iterator[dict[str, Block]]:
        """Rows ``start`` to ``stop`` of one span after the other, in one pass where they ascend.

        Arrays of `out` are filled from their beginning, span by span. A `Room` is asked at the beginning of each.
        """

    def sized(self) -> Source:
        """Give the same rows to whom sizes are enough: where rows differ in size, their values may be zeros."""

    def select(self, key: Any) -> Source:
        """Restrict the source to those rows."""

    def refine(self, borders: NDArray[np.int64], nbytes: int) -> NDArray[np.int64]:
        """Borders of chunks, and more of them about `nbytes` of stored data apart where that costs nothing."""


@dataclass(frozen=True, slots=True, eq=False)
class RecordSource:
    """Rows of TFRecord shards.

    Attributes
    ----------
    collection : Collection
        The shards, their counts and marks.
    parser : Parser
        What their records hold, and the columns made of it.
    rows : range or ndarray of int64
        The rows of the collection that are rows here.
    check_crc : bool
        Check the CRCs of what is read.
    token : str
        Names all of the above.
    """

    collection: Collection
    parser: Parser
    rows: Rows
    check_crc: bool
    token: str

    @classmethod
    def make(cls, collection: Collection, parser: Parser, rows: Rows, check_crc: bool) -> RecordSource:
        """Make a source with its token."""
        # Marks follow from the shards; counts may be the user's word.
        token = tokenize(collection.shards, collection.starts, parser, rows, check_crc)
        return cls(collection, parser, rows, check_crc, token)

    def __dask_tokenize__(self) -> str:
        return self.token

    @property
    def schema(self) -> Schema:
        """The columns."""
        return self.parser.columns

    @property
    def nrows(self) -> int:
        """Rows of all features."""
        return len(self.rows)

    @property
    def origin(self) -> Mapping[str, Any]:
        """Files and sizes, and the schema that their records are read by."""
        return {**origin_of(self.collection.shards), "schema": json.loads(self.parser.schema.to_json())}

    def sized(self) -> RecordSource:
        """Rows whose values are counted, and not decoded, where rows differ in size."""
        # Asked for by every task: no token is made of all shards again.
        token = f"{self.token}-sized"
        return RecordSource(self.collection, SizeParser(self.parser.schema), self.rows, self.check_crc, token)

    def select(self, key: Any) -> RecordSource:
        """Restrict the source to those rows."""
        return RecordSource.make(self.collection, self.parser, pick_rows(self.rows, key), self.check_crc)

    def refine(self, borders: NDArray[np.int64], nbytes: int) -> NDArray[np.int64]:
        """Borders at marks of uncompressed shards too."""
        return finer_borders(self.collection, self.rows, borders, nbytes)

    def read(self, names: Sequence[str], key: Any, out: Mapping[str, NDArray[Any]] | None = None) -> dict[str, Block]:
        """Rows of some features: exactly those records are read and decoded."""
        rows = pick_rows(self.rows, key)
        ascending: Rows = rows
        order: NDArray[np.int64] | None = None
        if not (isinstance(rows, range) and rows.step > 0) and (np.diff(rows) <= 0).any():
            # A record that is asked for twice is decoded once.
            ascending, order = np.unique(rows, return_inverse=True)
        into = out if order is None else None
        blocks = decode(
            row_runs(self.collection, ascending),
            self.parser,
            names,
            rows=len(ascending),
            check_crc=self.check_crc,
            out=into,
        )
        if order is None:
            return blocks
        taken = {name: take_rows(block, order) for name, block in blocks.items()}
        return fill(taken, out)

    def pieces(
        self, names: Sequence[str], spans: Iterable[tuple[int, int]], out: Out | None = None
    ) -> Iterator[dict[str, Block]]:
        """Rows of one span after the other; a shard is entered once if they ascend."""
        if not (isinstance(self.rows, range) and self.rows.step > 0):
            return (self.read(names, key, into) for key, into in parts(spans, out))
        runs = (
            (row_runs(self.collection, self.rows[key]), key.stop - key.start, into) for key, into in parts(spans, out)
        )
        return decode_pieces(runs, self.parser, names, check_crc=self.check_crc)


@dataclass(frozen=True, slots=True, eq=False)
class MappedSource:
    """Rows of another source, passed through a function block by block.

    Attributes
    ----------
    source : Source
        What the function is given.
    columns : tuple of str
        The features that it is given.
    function : callable
        From a dict of blocks of n rows to a mapping of blocks of n rows.
    schema : Schema
        What it returns.
    """

    source: Source
    columns: tuple[str, ...]
    function: BlockFunction
    schema: Schema

    def __dask_tokenize__(self) -> object:
        return normalize_token(("dask_tfrecord.MappedSource", self.source, self.columns, self.function, self.schema))

    @property
    def nrows(self) -> int | None:
        """As of the source."""
        return self.source.nrows

    @property
    def rows(self) -> Rows | None:
        """As of the source."""
        return self.source.rows

    @property
    def origin(self) -> Mapping[str, Any]:
        """As of the source, of whose schema the columns are no more."""
        return origin_of_mapped(self.source.origin)

    def sized(self) -> MappedSource:
        """Give the same: the function may look at all that it is given."""
        return self

    def select(self, key: Any) -> MappedSource:
        """Restrict the source to those rows."""
        return MappedSource(self.source.select(key), self.columns, self.function, self.schema)

    def refine(self, borders: NDArray[np.int64], nbytes: int) -> NDArray[np.int64]:
        """As of the source."""
        return self.source.refine(borders, nbytes)

    def read(self, names: Sequence[str], key: Any, out: Mapping[str, NDArray[Any]] | None = None) -> dict[str, Block]:
        """Rows of what the function returns."""
        blocks = self.source.read(self.columns, key)
        return fill(apply(self.function, blocks, self.schema, names), out)

    def pieces(
        self, names: Sequence[str], spans: Iterable[tuple[int, int]], out: Out | None = None
    ) -> Iterator[dict[str, Block]]:
        """Rows of one span after the other, each passed through the function by itself."""
        spans, again = tee(spans)
        for blocks, (_, into) in zip(self.source.pieces(self.columns, spans), parts(again, out), strict=True):
            yield fill(apply(self.function, blocks, self.schema, names), into)


def probe_rows(source: Source, names: Sequence[str]) -> dict[str, Block]:
    """Read a few rows of a source whose rows are counted, to learn how large they are: fewer where they are large."""
    found: list[dict[str, Block]] = [{name: zero_rows(source.schema[name]) for name in names}]
    cuts = [min(cut, source.nrows or 0) for cut in _PROBE_CUTS]
    spans = ((start, stop) for start, stop in pairwise(cuts) if start < stop)
    nbytes = 0
    for blocks in source.pieces(names, spans):
        found.append(blocks)
        nbytes += sum(map(block_nbytes, blocks.values()))
        if nbytes >= _PROBE_NBYTES:
            break
    return {name: concatenate([blocks[name] for blocks in found]) for name in names}


def parts(spans: Iterable[tuple[int, int]], out: Out | None) -> Iterator[tuple[slice, dict[str, NDArray[Any]]]]:
    """Each span as a slice, and the parts of the arrays that its rows go to, or the memory that their values may."""
    done = 0
    for start, stop in spans:
        place = slice(done, done + stop - start)
        into = {
            name: into[place] if isinstance(into, np.ndarray) else into((start, stop))
            for name, into in (out or {}).items()
        }
        yield slice(start, stop), {name: memory for name, memory in into.items() if memory is not None}
        done = place.stop


def apply(
    function: BlockFunction, blocks: Mapping[str, Block], schema: Schema, names: Sequence[str]
) -> dict[str, Block]:
    """Pass blocks through a user's function and check what comes back against its schema.

    Raises
    ------
    SchemaError
        If a column lacks, or is of another length, shape or dtype than the template said.
    """
    rows = {len(block) for block in blocks.values()}
    result = function(user_blocks(blocks))
    if not isinstance(result, Mapping):
        raise SchemaError(f"the function of map_blocks returns a dict of blocks; got {type(result).__name__}")
    missing = [name for name in schema if name not in result]
    if missing:
        raise SchemaError(f"the function of map_blocks returned no {missing[0]!r}, which its template has")
    conformed = {name: conform(schema[name], result[name], f"map_blocks returned {name!r}") for name in names}
    for name, block in conformed.items():
        if rows and len(block) not in rows:
            raise SchemaError(f"the function of map_blocks got {rows.pop()} rows and returned {len(block)} of {name!r}")
    return conformed


def user_blocks(blocks: Mapping[str, Block]) -> dict[str, Any]:
    """Blocks as `map_blocks` hands them out: NumPy arrays, and `RaggedBlock` where rows differ in length."""
    return {name: block if isinstance(block, RaggedBlock) else to_array(block) for name, block in blocks.items()}


def infer_template(function: BlockFunction, schema: Schema, columns: Sequence[str]) -> Mapping[str, Any]:
    """Call the function with blocks without rows to find what it makes of them.

    Raises
    ------
    ValueError
        If it fails on them; its own error is the cause.
    """
    blocks = user_blocks({name: zero_rows(schema[name]) for name in columns})
    # A block that is handed on as it is stays what it was, also where its objects could be anything.
    known = {id(block): schema[name] for name, block in blocks.items()}
    try:
        made = function(dict(blocks))
    except Exception as error:
        raise ValueError(
            f"the function of map_blocks failed on blocks of no rows ({error!r}), which are tried to learn its dtypes; "
            f"give template={{name: array without rows, or a feature class}}"
        ) from error
    return {name: known.get(id(block), block) for name, block in made.items()} if isinstance(made, Mapping) else made


def fill(blocks: dict[str, Block], out: Mapping[str, NDArray[Any]] | None) -> dict[str, Block]:
    """Copy dense blocks into the arrays that were given for them."""
    for name, array in (out or {}).items():
        # Flat values may lie anywhere.
        if name in blocks and not isinstance(blocks[name], RaggedBlock | BytesBlock | ArraysBlock):
            array[:] = to_array(blocks[name])
            blocks[name] = array
    return blocks


def origin_of(shards: Shards) -> Mapping[str, Any]:
    """Files, sizes and versions."""
    return {"files": list(shards.paths), "sizes": shards.sizes.tolist(), "versions": list(shards.versions)}


def origin_of_mapped(origin: Mapping[str, Any]) -> Mapping[str, Any]:
    """Leave out what the rows were read by: a function has made others of them."""
    return {name: value for name, value in origin.items() if name != "schema"}
