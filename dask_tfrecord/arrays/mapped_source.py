"""`Dataset.map_blocks`: rows of a source passed through a user's function, and the schema of what it returns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import tee
from typing import Any

import numpy as np
from dask.base import normalize_token
from numpy.typing import NDArray

from dask_tfrecord.arrays.collection import RowNumbers
from dask_tfrecord.arrays.sources import Outputs, Source, fill, parts
from dask_tfrecord.columns.blocks import Block, RaggedBlock, to_array, zero_rows
from dask_tfrecord.columns.user_blocks import conform, feature_of, same_form
from dask_tfrecord.errors import SchemaError, plural
from dask_tfrecord.features import Feature
from dask_tfrecord.schema import Schema

__all__ = ["BlockFunction", "MappedSource", "apply", "infer_template", "located", "mapped_schema"]

BlockFunction = Callable[[dict[str, Any]], Mapping[str, Any]]


@dataclass(frozen=True, slots=True, eq=False)
class MappedSource:
    """Rows of another source, passed through a function block by block.

    Attributes
    ----------
    source : Source
        Source of the blocks that the function is called with.
    columns : tuple of str
        Columns that the function is called with.
    function : callable
        Function from a dict of blocks of n rows to a mapping of blocks of n rows.
    schema : Schema
        Schema of the blocks that it returns.
    """

    source: Source
    columns: tuple[str, ...]
    function: BlockFunction
    schema: Schema

    def __dask_tokenize__(self) -> object:
        return normalize_token(("dask_tfrecord.MappedSource", self.source, self.columns, self.function, self.schema))

    @property
    def nrows(self) -> int | None:
        """Number of rows, that of the source."""
        return self.source.nrows

    @property
    def rows(self) -> RowNumbers | None:
        """Rows of the source."""
        return self.source.rows

    @property
    def origin(self) -> Mapping[str, Any]:
        """Origin of the source, whose features describe the columns that the function does not change."""
        return self.source.origin

    def sizes_only(self) -> MappedSource:
        """Return the source itself: the function may depend on values."""
        return self

    def with_memory_limit(self, nbytes: int) -> MappedSource:
        """Limit the blocks that the function is called with."""
        return MappedSource(self.source.with_memory_limit(nbytes), self.columns, self.function, self.schema)

    def select(self, key: Any) -> MappedSource:
        """Return a source of the selected rows."""
        return MappedSource(self.source.select(key), self.columns, self.function, self.schema)

    def describe(self, key: Any) -> str:
        """Return the files and records of rows as text, for errors."""
        return self.source.describe(key)

    def refine(self, borders: NDArray[np.int64], nbytes: int) -> NDArray[np.int64]:
        """Add the chunk borders that the source adds."""
        return self.source.refine(borders, nbytes)

    def read(self, names: Sequence[str], key: Any, out: Mapping[str, NDArray[Any]] | None = None) -> dict[str, Block]:
        """Read rows and call the function on them."""
        blocks = self.source.read(self.columns, key)
        with located(partial(self.describe, key)):
            made = apply(self.function, blocks, self.schema, names)
        return fill(made, out)

    def read_spans(
        self, names: Sequence[str], spans: Iterable[tuple[int, int]], out: Outputs | None = None
    ) -> Iterator[dict[str, Block]]:
        """Yield the rows of each span; the function is called once per span."""
        spans, again = tee(spans)
        for blocks, (key, into) in zip(self.source.read_spans(self.columns, spans), parts(again, out), strict=True):
            with located(partial(self.describe, key)):
                made = apply(self.function, blocks, self.schema, names)
            yield fill(made, into)


@contextmanager
def located(describe: Callable[[], str]) -> Iterator[None]:
    """Add a note with the rows to an exception that the function of `map_blocks` raises.

    The exception keeps its class, so that callers can catch it. Notes survive pickling.
    """
    try:
        yield
    except Exception as error:
        note = f"map_blocks: the function failed on {describe()}"
        # A function may raise the same object again.
        if note not in getattr(error, "__notes__", ()):
            error.add_note(note)
        raise


def apply(
    function: BlockFunction, blocks: Mapping[str, Block], schema: Schema, names: Sequence[str]
) -> dict[str, Block]:
    """Call a user's function on blocks and check the result against its schema.

    Raises
    ------
    SchemaError
        If a column is missing, or its length, shape or dtype differs from the template.
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
            raise SchemaError(
                f"the function of map_blocks got {plural(rows.pop(), 'row')} and returned {len(block):,} of {name!r}"
            )
    return conformed


def user_blocks(blocks: Mapping[str, Block]) -> dict[str, Any]:
    """Return blocks as `map_blocks` passes them to functions: NumPy arrays, and `RaggedBlock` for ragged rows."""
    return {name: block if isinstance(block, RaggedBlock) else to_array(block) for name, block in blocks.items()}


def infer_template(function: BlockFunction, schema: Schema, columns: Sequence[str]) -> Mapping[str, Any]:
    """Call the function on empty blocks to infer its output.

    Raises
    ------
    ValueError
        If the function fails; its error is the cause.
    """
    blocks = user_blocks({name: zero_rows(schema[name]) for name in columns})
    # A block that is returned unchanged keeps its feature, which objects do not determine.
    known = {id(block): schema[name] for name, block in blocks.items()}
    try:
        made = function(dict(blocks))
    except Exception as error:
        raise ValueError(
            f"the function of map_blocks failed on blocks of no rows ({error!r}), which are tried to learn its dtypes; "
            f"give template={{name: array without rows, or a feature class}}"
        ) from error
    return {name: known.get(id(block), block) for name, block in made.items()} if isinstance(made, Mapping) else made


def mapped_schema(made: Any, own: Schema) -> Schema:
    """Return the schema of the output of a function.

    Parameters
    ----------
    made : mapping of str to Feature or array-like
        Template. An array states no class: if its dtype and shape match the column of the same name, the column
        keeps its class. A Schema also states groups and names of classes.
    own : Schema
        Columns that the function is called with.

    Raises
    ------
    SchemaError
        If no feature describes an array.
    """
    if not isinstance(made, Mapping):
        raise SchemaError(f"map_blocks is for functions from and to dicts of blocks; got {type(made).__name__}")
    features: dict[str, Feature] = {}
    for name, like in made.items():
        stated = isinstance(like, Feature)
        found = like if stated else feature_of(like, f"map_blocks returned {name!r}")
        kept = not stated and name in own and same_form(found, own[name])
        features[name] = own[name] if kept else found
    classes = {name: own.classes[name] for name in features if name in own.classes and features[name] == own[name]}
    if isinstance(made, Schema):
        return Schema(features, classes={**classes, **made.classes}, groups=made.groups)
    return Schema(features, classes=classes)
