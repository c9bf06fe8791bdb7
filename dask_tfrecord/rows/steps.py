"""Steps: changes of columns or rows, each defined once for rows with numbers, chunks and blocks.

A step is one frozen dataclass. `StepRows` applies it to counted rows, `StepChunks` to chunks that are not counted, and
`Rows.apply` to chunks that exist. `Renamed` and `Partitioned` are here, `Mapped` is in `rows/functions.py`, `Filtered`
in `rows/where.py` and `Exploded` in `rows/explode.py`.

Fill values are no step: they replace what a source refuses to decode, so that there is no block to apply a step to.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import tee
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from dask.base import normalize_token
from numpy.typing import NDArray

from dask_tfrecord.blocks import Arrays, Block
from dask_tfrecord.columns.decoder import Where
from dask_tfrecord.errors import Location, SchemaError
from dask_tfrecord.features import TextFeature
from dask_tfrecord.features.schema import Schema
from dask_tfrecord.rows.collection import RowKey, RowNumbers, pick_rows, row_numbers
from dask_tfrecord.rows.sources import CountedRows, Outputs, SameRows, Source, UncountedChunks, join_into, parts


@dataclass(frozen=True, slots=True)
class Place:
    """Origin of the rows in a block."""

    describe: Callable[[], str]  # their files and records as text, for errors
    rows: RowNumbers | None = None  # their numbers in the source; None if they are not counted


class Step(ABC):
    """A change of columns or rows, which is applied block by block."""

    __slots__ = ()

    # False if other rows are made, whose number is known once they are.
    keeps_rows: ClassVar[bool] = True

    if TYPE_CHECKING:

        @property
        def schema(self) -> Schema:
            """Schema of the columns that are made."""

    @property
    @abstractmethod
    def derivation(self) -> object:
        """Identity of the change, except for functions."""

    @property
    def unchanged(self) -> Mapping[str, str]:
        """Columns that are those of the source, by their names here: only what is read for them alone is the same."""
        return {}

    @abstractmethod
    def needs(self, names: Sequence[str]) -> tuple[str, ...]:
        """Return the columns of the source that are read to make some columns."""

    @abstractmethod
    def apply(self, blocks: Mapping[str, Block], names: Sequence[str], place: Place) -> dict[str, Block]:
        """Make blocks of some columns from those of the columns that they need."""

    def where(self, place: Place) -> Where | None:
        """Return tested columns and a mask of them if the step only leaves out rows: a source may not decode these."""
        return None

    def origin(self, origin: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the origin of the rows that are made, as JSON values."""
        return origin

    def __dask_tokenize__(self) -> object:
        return normalize_token((f"dask_tfrecord.{type(self).__name__}", self.derivation))


@dataclass(frozen=True, slots=True, eq=False)
class Renamed(Step):
    """Columns under new names."""

    names: Mapping[str, str]  # of the columns of the source, by the new ones
    schema: Schema

    @property
    def derivation(self) -> object:
        """New names, and names in the source."""
        return tuple(self.names.items())

    @property
    def unchanged(self) -> Mapping[str, str]:
        """All columns."""
        return self.names

    def needs(self, names: Sequence[str]) -> tuple[str, ...]:
        """Return the names of the source."""
        return tuple(self.names[name] for name in names)

    def apply(self, blocks: Mapping[str, Block], names: Sequence[str], place: Place) -> dict[str, Block]:
        """Return the blocks under their new names."""
        return {name: blocks[self.names[name]] for name in names}


@dataclass(frozen=True, slots=True, eq=False)
class Partitioned(Step):
    """Text columns that are constant within a shard, added to the columns of records.

    An example of shards with two and one records and the values "mon" and "tue": the rows are "mon", "mon" and "tue",
    and no shard is read for them.
    """

    starts: NDArray[np.int64]  # first row of each shard, and the number of rows
    texts: Arrays  # text of each shard, by column
    schema: Schema

    @classmethod
    def of_shards(cls, schema: Schema, starts: NDArray[np.int64], values: Mapping[str, Sequence[str]]) -> Self:
        """Add each shard's values; raise SchemaError if records have a column with one of the names."""
        for name in values:
            if name in schema:
                raise SchemaError(
                    f"{name!r} is a feature of the records and the name of directories: leave out "
                    f"partitioning='hive', or read the others by features="
                )
        texts = {name: np.array(texts, np.dtypes.StringDType()) for name, texts in values.items()}
        columns = {**schema, **dict.fromkeys(values, TextFeature())}
        return cls(starts, texts, schema.replaced(columns, records=schema.records))

    @property
    def derivation(self) -> object:
        """Values by column."""
        return [(name, texts.tolist()) for name, texts in self.texts.items()]

    @property
    def unchanged(self) -> Mapping[str, str]:
        """Columns of the records."""
        return {name: name for name in self.schema if name not in self.texts}

    def needs(self, names: Sequence[str]) -> tuple[str, ...]:
        """Return the columns of the records."""
        return tuple(name for name in names if name not in self.texts)

    def apply(self, blocks: Mapping[str, Block], names: Sequence[str], place: Place) -> dict[str, Block]:
        """Add the text of each row's shard."""
        made = dict(blocks)
        if wanted := [name for name in names if name in self.texts]:
            assert place.rows is not None
            shards = np.searchsorted(self.starts, row_numbers(place.rows), side="right") - 1
            made |= {name: self.texts[name][shards] for name in wanted}
        return {name: made[name] for name in names}


def _read_before(
    read: Callable[..., dict[str, Block]],
    unchanged: Mapping[str, str],
    names: Sequence[str],
    where: Where,
) -> dict[str, Block] | None:
    """Read rows that a mask keeps before a step, which is faster; None unless it leaves all of these columns as is."""
    tested, mask = where
    if not unchanged.keys() >= {*names, *tested}:
        return None

    def renamed(blocks: Mapping[str, Block], names: Sequence[str]) -> dict[str, Block]:
        return {name: blocks[unchanged[name]] for name in names}

    own, own_tested = (tuple(unchanged[name] for name in each) for each in (names, tested))
    return renamed(read(own, where=Where(own_tested, lambda blocks: mask(renamed(blocks, tested)))), names)


@dataclass(frozen=True, slots=True, eq=False)
class _Stepped(Source):
    """Another source after a step."""

    source: Source
    step: Step

    def __dask_tokenize__(self) -> object:
        return normalize_token(("dask_tfrecord.Stepped", self.source, self.step))

    @property
    def schema(self) -> Schema:
        """Schema of the columns that the step makes."""
        return self.step.schema

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns that are read to make all."""
        return self.step.needs(tuple(self.step.schema))

    @property
    def derivation(self) -> object:
        """Identity of the step, except for functions."""
        return self.step.derivation

    @property
    def origin(self) -> Mapping[str, Any]:
        """Origin of the rows that the step makes."""
        return self.step.origin(self.source.origin)


@dataclass(frozen=True, slots=True, eq=False)
class StepRows(_Stepped, SameRows):
    """Rows of another source after a step that keeps their numbers."""

    source: CountedRows

    @property
    def images(self) -> Mapping[str, Any]:
        """Images that the step leaves as they are."""
        found = self.source.images
        return {name: found[own] for name, own in self.step.unchanged.items() if own in found}

    def encoded(self, names: Sequence[str]) -> StepRows:
        """Return a source that reads images of the source as bytes."""
        unchanged, step = self.step.unchanged, self.step
        source = self.source.encoded([unchanged[name] for name in names])
        features = {**step.schema, **{name: source.schema[own] for name, own in unchanged.items()}}
        changed: Any = step
        return StepRows(source, replace(changed, schema=step.schema.replaced(features)))

    def measure(self) -> CountedRows:
        """Measure the source if its columns are left as they are; what is made of them needs the values."""
        return self._of(self.source.measure()) if self.step.unchanged else self

    def locate(self, row: int, feature: str, start: int = 0) -> Location:
        """Return the location in the source, with its name of the feature."""
        return self.source.locate(row, self.step.unchanged.get(feature, feature), start)

    def _apply(self, blocks: Mapping[str, Block], names: Sequence[str], key: RowKey) -> dict[str, Block]:
        return self.step.apply(blocks, names, Place(partial(self.describe, key), pick_rows(self.rows, key)))

    def _outputs_of_source(self, out: Mapping[str, Any] | None) -> dict[str, Any] | None:
        """Return the outputs that the source fills."""
        unchanged = self.step.unchanged
        return {unchanged[name]: array for name, array in out.items() if name in unchanged} if out else None

    def read(self, names: Sequence[str], key: RowKey, out: Arrays | None = None) -> dict[str, Block]:
        """Read rows and apply the step."""
        needed = self.step.needs(names)
        # Columns without a need are made without opening a shard.
        blocks = self.source.read(needed, key, self._outputs_of_source(out)) if needed else {}
        return join_into([self._apply(blocks, names, key)], out)

    def read_spans(
        self, names: Sequence[str], spans: Iterable[tuple[int, int]], out: Outputs | None = None
    ) -> Iterator[dict[str, Block]]:
        """Yield the rows of each span, to which the step is applied once."""
        needed, into = self.step.needs(names), self._outputs_of_source(out)
        spans, again = tee(spans)
        read = self.source.read_spans(needed, spans, into) if needed else ({} for _ in spans)
        made = {name: array for name, array in (out or {}).items() if name not in self.step.unchanged}
        for blocks, (key, filled) in zip(read, parts(again, made), strict=True):
            yield join_into([self._apply(blocks, names, key)], filled)

    def read_where(self, names: Sequence[str], key: RowKey, where: Where) -> dict[str, Block]:
        """Read the rows that a mask keeps; the source tests columns that the step leaves as they are."""
        read = partial(self.source.read_where, key=key)
        found = _read_before(read, self.step.unchanged, names, where)
        return CountedRows.read_where(self, names, key, where) if found is None else found


@dataclass(frozen=True, slots=True, eq=False)
class StepChunks(_Stepped, UncountedChunks):
    """Chunks of another source after a step."""

    source: UncountedChunks

    @property
    def inner(self) -> UncountedChunks:
        """Source that the step is applied to."""
        return self.source

    def describe_chunk(self, number: int) -> str:
        """Describe the chunk of the source."""
        return self.source.describe_chunk(number)

    def read_chunk(self, names: Sequence[str], number: int) -> dict[str, Block]:
        """Read a chunk and apply the step."""
        place = Place(partial(self.describe_chunk, number))
        where = self.step.where(place)
        if where is not None:
            return self.source.read_chunk_where(names, number, where)
        return self.step.apply(self.source.read_chunk(self.step.needs(names), number), names, place)

    def read_chunk_where(self, names: Sequence[str], number: int, where: Where) -> dict[str, Block]:
        """Read the rows of a chunk that a mask keeps; the source tests columns that the step leaves as they are."""
        read = partial(self.source.read_chunk_where, number=number)
        found = _read_before(read, self.step.unchanged, names, where)
        return UncountedChunks.read_chunk_where(self, names, number, where) if found is None else found
