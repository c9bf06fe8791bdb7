"""Functions of users: what `map_blocks` and `where` call with blocks, and what they may return."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from dask.base import normalize_token

from dask_tfrecord.advice import failed_function, words_of
from dask_tfrecord.blocks import ArraysBlock, Block, BytesBlock, RaggedBlock, to_array, zero_rows
from dask_tfrecord.columns.conversions import conform, feature_of, host_array, same_form
from dask_tfrecord.errors import SchemaError, near_misses, plural, printable, redact
from dask_tfrecord.features import Feature
from dask_tfrecord.features.schema import Schema
from dask_tfrecord.identity import function_parts
from dask_tfrecord.rows.dask_private import to_backend
from dask_tfrecord.rows.steps import Place, Step

BlockFunction = Callable[[dict[str, Any]], Mapping[str, Any]]


@dataclass(frozen=True, slots=True, eq=False)
class Mapped(Step):
    """Columns that a function makes of blocks."""

    columns: tuple[str, ...]  # that the function is called with
    function: BlockFunction
    schema: Schema  # of the blocks that it returns

    def __dask_tokenize__(self) -> object:
        return normalize_token(("dask_tfrecord.Mapped", self.columns, self.function, self.schema))

    @property
    def derivation(self) -> object:
        """Input columns of the function, and its result."""
        return self.columns, self.schema

    def needs(self, names: Sequence[str]) -> tuple[str, ...]:
        """Return all columns of the function."""
        return self.columns

    def apply(self, blocks: Mapping[str, Block], names: Sequence[str], place: Place) -> dict[str, Block]:
        """Call the function, and check the result."""
        with note_rows_on_error(place.describe):
            rows = {len(block) for block in blocks.values()}
            result = self.function(UserBlocks(blocks))
            if not isinstance(result, Mapping):
                raise SchemaError(f"the map_blocks function must return a dict of blocks; got {type(result).__name__}")
            missing = [name for name in self.schema if name not in result]
            if missing:
                raise SchemaError(f"the function of map_blocks returned no {missing[0]!r}, which is in its template")
            conformed: dict[str, Block] = {}
            for name in names:
                given = result.as_read(name, self.schema[name]) if isinstance(result, UserBlocks) else result[name]
                try:
                    conformed[name] = conform(self.schema[name], given, f"map_blocks returned {name!r}")
                except SchemaError as error:
                    raise SchemaError(error.message + _other_template(name, self.schema[name], given)) from error
            for name, block in conformed.items():
                if rows and len(block) not in rows:
                    raise SchemaError(
                        f"the function of map_blocks got {plural(rows.pop(), 'row')} and returned {len(block):,} of "
                        f"{name!r}"
                    )
            return conformed


@contextmanager
def note_rows_on_error(describe: Callable[[], str], method: str = "map_blocks") -> Iterator[None]:
    """Add a note with the rows to an exception that the function of `map_blocks` or `where` raises.

    The exception keeps its class, so that callers can catch it. Notes survive pickling.
    """
    try:
        yield
    except Exception as error:
        note = printable(redact(f"{method}: the function failed on {describe()}{failed_function(error, {})}"))
        # A function may raise the same object again.
        if note not in getattr(error, "__notes__", ()):
            error.add_note(note)
        raise


def _other_template(name: str, expected: Feature, given: Any) -> str:
    """Say how to give the template of what a function returned, which differs from the one that is expected.

    Returns "" if what it returned can't be a column. Without a given template, the expected one is that of a call with
    no rows, whose empty arrays may have NumPy's default dtype.
    """
    try:
        found = feature_of(host_array(given, name), name)
    except (SchemaError, AttributeError):
        return ""
    template = f"template={{{name!r}: {found}}}"
    if expected.item_dtype == np.float64 and found.item_dtype.kind in "biu":
        return f": numpy.array([]) is float64, so give numpy.array dtype='int64', or map_blocks {template}"
    return f": if this is right, give map_blocks {template}"


class UserBlocks(dict[str, Any]):
    """Blocks as functions of users get them: NumPy arrays, and `RaggedBlock` for ragged rows.

    Rows of bytes become objects when the function asks for them: that takes longer than decoding them, and the threads
    of a process take turns to do it. Code in C that copies a dict calls `__getitem__`, because this class has an
    `__iter__` of its own.
    """

    __slots__ = ()

    def __getitem__(self, name: str) -> Any:
        block = super().__getitem__(name)
        if isinstance(block, BytesBlock | ArraysBlock):
            block = self[name] = to_array(block)
        return block

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            hint = "" if name.startswith("_") else f": write blocks[{name!r}] for a column"
            raise AttributeError(f"blocks are a dict, which has no attribute {name!r}{hint}", name=name, obj=self)

    def __iter__(self) -> Iterator[str]:
        return super().__iter__()

    # The methods of `dict` do not call `__getitem__`; these do.
    get: Any = MutableMapping.get
    setdefault: Any = MutableMapping.setdefault
    values: Any = MutableMapping.values
    items: Any = MutableMapping.items
    __eq__: Any = MutableMapping.__eq__
    __ne__: Any = object.__ne__

    def __repr__(self) -> str:
        return repr(dict(self))

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)

    def pop(self, name: str, *default: Any) -> Any:
        """Remove and return a block, or return the default."""
        if name in self:
            self[name]
        return super().pop(name, *default)

    def popitem(self) -> tuple[str, Any]:
        """Remove and return the last block with its name."""
        self[next(reversed(self))]
        return super().popitem()

    def as_read(self, name: str, feature: Feature) -> Any:
        """Return a block; the one that was read, if nothing asked for it and it has the form of the feature."""
        block = super().__getitem__(name)
        unasked = isinstance(block, BytesBlock | ArraysBlock) and same_form(feature_of(block, name), feature)
        return block if unasked else self[name]


@dataclass(frozen=True, slots=True)
class OnBackend:
    """A function for `map_blocks`, called with arrays from a dask backend (CuPy); None is NumPy."""

    function: BlockFunction
    backend: str | None = None

    def __call__(self, blocks: dict[str, Any]) -> Mapping[str, Any]:
        """Move the blocks, and call the function; `host_array` copies its results back."""
        if self.backend is None:
            return self.function(blocks)
        move = to_backend(self.backend)
        return self.function({name: _moved(block, move) for name, block in blocks.items()})

    def __dask_tokenize__(self) -> object:
        return "dask_tfrecord.OnBackend", function_parts(self.function), self.backend

    @property
    def __wrapped__(self) -> BlockFunction:
        """Function of the user, which fingerprints compare."""
        return self.function


def _moved(block: Any, move: Callable[[Any], Any]) -> Any:
    if isinstance(block, RaggedBlock):
        values = _moved(block.values, move)
        return block if values is block.values else RaggedBlock(values, _moved(block.row_splits, move))
    return move(block) if isinstance(block, np.ndarray) and block.dtype.kind in "biufc" else block


def infer_template(function: BlockFunction, schema: Schema, columns: Sequence[str]) -> Mapping[str, Any]:
    """Call the function on empty blocks to infer its output."""
    blocks = dict(UserBlocks({name: zero_rows(schema[name]) for name in columns}))
    # A block that is returned unchanged keeps its feature, which objects do not determine.
    known = {id(block): schema[name] for name, block in blocks.items()}
    try:
        made = function(dict(blocks))
    except Exception as error:
        remedy = unknown_column(error, columns) or failed_function(error, schema)
        remedy = remedy.removeprefix("; ") or "give template={name: array without rows, or a feature class}"
        raise ValueError(
            f"the function of map_blocks failed when it was called with 0 rows to learn its dtypes ({error!r}); "
            f"{remedy}"
        ) from error
    for name, block in made.items() if isinstance(made, Mapping) else ():
        if isinstance(block, bool) and any(isinstance(each, RaggedBlock) for each in blocks.values()):
            # A RaggedBlock is equal to itself alone.
            remedy = failed_function(TypeError("RaggedBlock"), schema)
            raise SchemaError(f"the function of map_blocks returned {block} as {name!r}{remedy}")
        if isinstance(block, np.generic | int | float) or getattr(block, "shape", None) == ():
            raise SchemaError(
                f"the function of map_blocks returned one value of {name!r} for a block: {_as_many_rows(schema)}"
            )
        if blocks and hasattr(block, "shape") and len(block):
            raise SchemaError(
                f"the function of map_blocks was called with 0 rows to learn its dtypes, and returned "
                f"{plural(len(block), 'row')} of {name!r}: {_as_many_rows(schema)}"
            )
    return {name: known.get(id(block), block) for name, block in made.items()} if isinstance(made, Mapping) else made


def _as_many_rows(schema: Mapping[str, Any]) -> str:
    number = words_of(schema)["NUMBER"]
    return (
        f"it must return a value for each row, as blocks[{number!r}] * 2 does, or blocks['box'].sum(axis=1) for a "
        f"column of shape (n, 4). For one value of all rows write ds[{number!r}].mean().compute(), or another reduction"
    )


def unknown_column(error: Exception, columns: Iterable[str]) -> str:
    """Advise about the KeyError of a function that needs another column; an empty text for other errors."""
    name = error.args[0] if isinstance(error, KeyError) and error.args else None
    if not isinstance(name, str) or name in columns:
        return ""
    return f"the blocks have no column {name!r}{near_misses(name, columns)}"


def mapped_schema(made: Any, own: Schema, origin: str) -> Schema:
    """Derive a function's output schema from a template of an `origin`; it is called with the columns in `own`.

    An array states no class: if its dtype and shape match the column of the same name, the column keeps its class. A
    Schema also states groups and names of classes.
    """
    if not isinstance(made, Mapping):
        raise SchemaError(
            f"map_blocks takes a function from a dict of arrays to a dict of arrays; got {type(made).__name__}: return "
            f"{{'name': array}}"
        )
    features: dict[str, Feature] = {}
    for name, like in made.items():
        stated = isinstance(like, Feature)
        owner = f"{origin} {name!r}"
        try:
            found = like if stated else feature_of(host_array(like, owner), owner)
        except SchemaError as error:
            remedy = f": write numpy.empty(0, {like!r})" if isinstance(like, str) else _of_several_sizes(own)
            raise SchemaError(error.message + remedy) from error
        kept = not stated and name in own and same_form(found, own[name])
        features[name] = own[name] if kept else found
    classes = {name: own.classes[name] for name in features if name in own.classes and features[name] == own[name]}
    if isinstance(made, Schema):
        return Schema(features, classes={**classes, **made.classes}, groups=made.groups, records=own.records)
    return Schema(features, classes=classes, records=own.records)


def _of_several_sizes(own: Schema) -> str:
    """Say how to read the columns of arrays that differ in shape, which functions get as objects."""
    differing = [name for name, feature in own.items() if feature.own_shapes]
    if not differing:
        return ""
    image = any(getattr(own[name], "is_image", False) for name in differing)
    return f"; rows of {differing[0]!r} differ in shape" + (
        ", and ImageFeature(size=(224, 224)) resizes images" * image
    )
