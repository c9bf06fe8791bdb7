"""`plan_zarr`: what a conversion to Zarr would do, as a `ZarrPlan` that is displayed as a table."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from html import escape
from typing import Any, Unpack

import numpy as np
from dask.delayed import Delayed
from dask.utils import format_bytes

from dask_tfrecord.errors import plural, printable
from dask_tfrecord.features.schema import align_columns
from dask_tfrecord.markup import fragment, stack_columns, table, terminal_width
from dask_tfrecord.options import ZarrOptions, ZarrTargetOptions, complete, with_options
from dask_tfrecord.rows.graph import Rechunked
from dask_tfrecord.rows.memory import MemoryBudget
from dask_tfrecord.stores.output import check_mode
from dask_tfrecord.stores.run import Run
from dask_tfrecord.stores.zarr.additions import NewGroup
from dask_tfrecord.stores.zarr.layout import (
    TEXT,
    Conversion,
    ConversionRequest,
    codec_documents,
    codec_names,
    json_value,
    plan_conversion,
)
from dask_tfrecord.stores.zarr.store import LOOKED_UP, TargetGroup
from dask_tfrecord.stores.zarr.write import GroupOutput, open_target, session_of

_HEADER = ("array", "dtype", "shape", "dimensions", "chunks", "shards", "bytes", "codecs")


_RIGHT = [_HEADER.index("bytes")]


# US dollars of 1,000 requests to S3 Standard in us-east-1. Deleting is free.
_PUT_DOLLARS, _GET_DOLLARS = 0.005, 0.0004
# Objects that one request lists.
_LISTED = 1000


# Columns that get lines of their own in a narrow terminal.
_LONG = [_HEADER.index("dimensions"), _HEADER.index("codecs")]


@dataclass(frozen=True, slots=True)
class ArrayPlan:
    """One array that will be written.

    Attributes
    ----------
    name : str
        Name in the group.
    feature : str
        Feature that the array belongs to.
    shape : tuple of int
        Shape.
    dtype : str
        A NumPy dtype, or ``"string"``.
    chunks : tuple of int
        Shape of a chunk.
    shards : tuple of int or None
        Shape of a shard; None if the array is not sharded.
    compressors, filters : tuple
        Arguments of `zarr.create_array`.
    dimensions : tuple of str
        Names of the axes.
    fill_value : scalar
        Value of missing chunks.
    nbytes : int
        Decoded bytes.
    exact : bool
        `nbytes` is exact; text is estimated from the first rows.
    """

    name: str
    feature: str
    shape: tuple[int, ...]
    dtype: str
    chunks: tuple[int, ...]
    shards: tuple[int, ...] | None
    compressors: tuple[Any, ...]
    filters: tuple[Any, ...]
    dimensions: tuple[str, ...]
    fill_value: Any
    nbytes: int
    exact: bool


@dataclass(frozen=True, slots=True)
class Requests:
    """Requests that write a new group to an object store, by a client that asks for each object once, as obstore does.

    Repeated requests, and the check each second that the run still owns the group, come on top.
    """

    put: int
    # HEAD requests included.
    get: int
    list: int

    @property
    def dollars(self) -> float:
        """Cost in US dollars on S3 Standard."""
        return ((self.put + self.list) * _PUT_DOLLARS + self.get * _GET_DOLLARS) / 1000

    def __str__(self) -> str:
        cost = f"about {self.dollars:,.2f}" if self.dollars >= 0.01 else "less than 0.01"
        return f"{self.put:,} PUT, {self.get:,} GET and {self.list:,} LIST requests, {cost} US dollars on S3"


@dataclass(frozen=True, slots=True, eq=False)
class ZarrPlan:
    """Arrays, tasks and memory of a conversion to Zarr. `to_zarr` writes it.

    Made by `plan_zarr`. Displayed as a table.

    Attributes
    ----------
    nrows : int
        Rows.
    unit_rows : int
        Rows of a unit, which one task writes for all features.
    write_units : int
        Number of write units, of rows and of each flat array. A unit is written whole and recorded in the checkpoint.
    tasks : int
        Number of tasks that write. A task writes flat values with the rows that hold most of them, unless rows are in
        memory.
    arrays : tuple of ArrayPlan
        Arrays that will be written.
    memory : MemoryBudget
        Peak memory of a worker, as a sum.
    memory_limit : int or None
        Memory of a worker in bytes; None without a limit.
    rechunks : tuple of Rechunked
        Arrays that are rechunked, because their chunks differ from the rows'.

    Examples
    --------
    >>> import dask_tfrecord as dtf
    >>> plan = dtf.read_tfrecord("train-*.tfrecord")[["label", "tokens"]].plan_zarr()
    >>> [(array.name, array.shape) for array in plan.arrays]
    [('label', (20,)), ('tokens.values', (90,)), ('tokens.row_splits', (21,))]
    >>> plan.write_units, plan.nbytes
    (2, 1048)
    """

    nrows: int
    unit_rows: int
    write_units: int
    tasks: int
    arrays: tuple[ArrayPlan, ...]
    memory: MemoryBudget
    memory_limit: int | None
    rechunks: tuple[Rechunked, ...]
    _conversion: Conversion = field(repr=False)

    @classmethod
    def from_conversion(cls, conversion: Conversion) -> ZarrPlan:
        """Describe a planned conversion."""
        layout = conversion.layout
        created = conversion.request.create_arguments(layout)
        arrays = tuple(
            ArrayPlan(
                spec.name,
                spec.feature,
                spec.shape,
                spec.dtype,
                arguments["chunks"],
                arguments["shards"],
                arguments["compressors"],
                arguments["filters"],
                spec.dimensions,
                arguments["fill_value"],
                int(spec.shape[0] * spec.entry_nbytes(conversion.sizes.columns)),
                exact=not spec.is_text,
            )
            for spec, arguments in zip(layout.arrays, created.values(), strict=True)
        )
        return cls(
            layout.nrows,
            layout.grid.unit,
            layout.nunits,
            conversion.ntasks,
            arrays,
            conversion.memory,
            conversion.memory_limit,
            conversion.rechunks,
            conversion,
        )

    @property
    def nbytes(self) -> int:
        """Decoded bytes of all arrays; the compressed size is unknown."""
        return sum(array.nbytes for array in self.arrays)

    @property
    def nfiles(self) -> int:
        """Files of the store, or objects: chunks or shards, and metadata. Until it is complete there are more."""
        constants = self._conversion.request.attributes.constant_arrays.values()
        return 1 + len(self.arrays) + sum(self._objects()) + sum(1 + len(chunks) for _, chunks in constants)

    @property
    def requests(self) -> Requests:
        """Requests that write a new group to an object store, those that read the rows left out.

        Examples
        --------
        >>> import dask_tfrecord as dtf
        >>> dtf.read_tfrecord("train-*.tfrecord")[["label"]].plan_zarr().requests
        Requests(put=7, get=5, list=3)
        """
        objects = self._objects()
        # The claim, the plan, its counts, and a record of each task.
        run = 3 + self.tasks
        # A few sizes are looked up one by one, with the plan; so are sizes of single objects.
        many = [count for count in objects if count > 1 and 1 + sum(objects) > LOOKED_UP]
        listed = 2 + -(-run // _LISTED) + sum(-(-count // _LISTED) for count in many)
        return Requests(self.nfiles + run, 4 + sum(objects) - sum(many), listed)

    def _objects(self) -> list[int]:
        """Return how many objects the chunks or shards of each array are."""
        return [
            -(-array.shape[0] // (array.shards or array.chunks)[0]) for array in self.arrays if 0 not in array.shape
        ]

    @property
    def fits(self) -> bool:
        """True if a worker has enough memory."""
        return self.memory.excess(self.memory_limit) is None

    def check(self) -> None:
        """Refuse a conversion that exceeds the memory of workers.

        Raises
        ------
        ValueError
            If it does; the message has the sum and the remedies.
        """
        self._conversion.check_memory()

    @with_options("plan.to_zarr('train.zarr')", ZarrTargetOptions)
    def to_zarr(self, store: Any, **options: Unpack[ZarrTargetOptions]) -> Delayed | None:
        """Write the planned arrays without counting again. See `dask_tfrecord.to_zarr` for arguments and errors.

        Examples
        --------
        >>> import dask_tfrecord as dtf
        >>> plan = dtf.read_tfrecord("train-*.tfrecord").plan_zarr(chunks=5)
        >>> plan.to_zarr("planned.zarr")
        >>> dtf.from_zarr("planned.zarr").npartitions
        4
        """
        request = self._conversion.request
        if session_of(store) is not None:
            raise ValueError("a plan is not written to an Icechunk session: pass the rows to to_zarr(session)")
        options = complete(ZarrTargetOptions, options)
        target = open_target(store, request.rows.origin, options)
        mode = check_mode(options["mode"], "the group")
        output = GroupOutput(target, NewGroup(request), self._conversion, mode=mode, resume=options["resume"])
        compute = options["compute"]
        return Run(output).write(partial(output.build, compute=compute), compute=compute)

    def to_json(self) -> str:
        """Return the plan as JSON, sizes in bytes.

        Examples
        --------
        >>> import json
        >>> import dask_tfrecord as dtf
        >>> plan = dtf.read_tfrecord("train-*.tfrecord").plan_zarr()
        >>> json.loads(plan.to_json())["nrows"]
        20
        """
        arrays = []
        for array in self.arrays:
            values = {name: getattr(array, name) for name in ArrayPlan.__slots__}
            values["compressors"] = codec_documents(array.compressors)
            values["filters"] = codec_documents(array.filters)
            values["fill_value"] = json_value(array.fill_value)
            arrays.append(values)
        return json.dumps(
            {
                "nrows": self.nrows,
                "unit_rows": self.unit_rows,
                "write_units": self.write_units,
                "tasks": self.tasks,
                "nfiles": self.nfiles,
                "requests": asdict(self.requests),
                "nbytes": self.nbytes,
                "arrays": arrays,
                "consolidated": self._conversion.request.options["consolidated"],
                "memory": asdict(self.memory) | {"peak_nbytes": self.memory.peak_nbytes},
                "memory_limit": self.memory_limit,
                "rechunks": [
                    {"name": each.name, "from": each.largest(each.before), "to": each.largest(each.after)}
                    | {"held_nbytes": each.held_nbytes}
                    for each in self.rechunks
                ],
            },
            ensure_ascii=False,
        )

    def __repr__(self) -> str:
        return text_plan(self, terminal_width())

    def _repr_html_(self) -> str:
        return _html_plan(self)


@with_options("dtf.plan_zarr(ds)", ZarrOptions)
def plan_zarr(arrays: Mapping[str, Any], **options: Unpack[ZarrOptions]) -> ZarrPlan:
    """Plan a conversion to Zarr without writing anything: arrays, chunks, tasks and memory.

    Parameters
    ----------
    arrays : Dataset or mapping of str to array-like
        As for `to_zarr`.

    Returns
    -------
    ZarrPlan
        It prints as a table; ``plan.to_zarr(store)`` writes it.

    Raises
    ------
    SchemaError
        As for `to_zarr`.
    UnknownFeatureError
        If an option names something that is neither a feature nor a flat array.
    ValueError
        If rows are not counted, or an option is invalid.

    Notes
    -----
    Ragged columns are read once to count their values; for images, only the headers are read. The compressed size is
    unknown. The workers are those of the scheduler that is active when you make the plan. The memory of threads in this
    process is not limited.

    Examples
    --------
    >>> import dask_tfrecord as dtf
    >>> plan = dtf.plan_zarr({"x": np.zeros((1000, 8))}, chunks=100)
    >>> plan.arrays[0].chunks, plan.write_units, plan.nbytes
    ((100, 8), 10, 64000)
    """
    options = complete(ZarrOptions, options)
    return ZarrPlan.from_conversion(plan_conversion(ConversionRequest.from_arguments(arrays, options)))


def text_plan(plan: ZarrPlan, width: int | None = None, store: str | None = None) -> str:
    """Return a title, a line per array, requests and memory as text; cells are not broken in a terminal of `width`.

    Requests are left out for a local `store`; without a store they are estimated for any object store.
    """
    rows = [_HEADER, *map(_cells, plan.arrays)]
    lines = [f"  {line}" for line in align_columns(rows, _RIGHT)]
    is_local = store is not None and TargetGroup.from_arguments(store, None, None).directory is not None
    title = f"<dask_tfrecord.ZarrPlan: {_title(plan)}>" if store is None else f"Zarr group: {_title(plan)}"
    words = [title, *([] if is_local else [_requests(plan)]), *_memory(plan)]
    if width is not None and max(map(len, lines)) > width:
        lines = stack_columns(_HEADER, rows[1:], width, _LONG)
    if width is not None:
        words = [textwrap.fill(text, width, break_long_words=False, break_on_hyphens=False) for text in words]
    return "\n".join([words[0], *lines, *words[1:]])


def _requests(plan: ZarrPlan) -> str:
    return f"on an object store: {plan.requests}"


def _html_plan(plan: ZarrPlan) -> str:
    """Return the plan as HTML: a title in words, a line per array, the codecs, and the memory as a table."""
    shown = [_HEADER.index(name) for name in ("array", "dtype", "shape", "chunks", "shards", "bytes")]
    cells = [[escape(row[column]) for column in shown] for row in map(_cells, plan.arrays)]
    header = [_HEADER[column] for column in shown]
    by_codecs: dict[str, list[str]] = {}
    for array in plan.arrays:
        by_codecs.setdefault(codec_names((*array.filters, *array.compressors)), []).append(array.name)
    notes = [
        f"codecs{'' if len(by_codecs) == 1 else ' of ' + ', '.join(names)}: {codecs}"
        for codecs, names in by_codecs.items()
    ]
    notes += [_requests(plan), *_warnings(plan)]
    terms = [
        (escape(printable(name)), "" if times == 1 else f"{times} times", format_bytes(nbytes))
        for name, times, nbytes in plan.memory.terms()
    ]
    terms.append((f"peak of a worker, {_limit(plan)}", "", format_bytes(plan.memory.peak_nbytes)))
    return fragment(
        f'<p class="dtf-title">Zarr group: {_title(plan)}</p>',
        table(header, cells, [len(header) - 1]).replace("<td", '<td class="dtf-short"'),
        *(f"<p>{escape(printable(note))}</p>" for note in notes),
        table(["memory", "", "bytes"], terms, [1, 2]),
    )


def _title(plan: ZarrPlan) -> str:
    words = [
        plural(plan.nrows, "row"),
        plural(len(plan.arrays), "array"),
        f"{'' if all(array.exact for array in plan.arrays) else 'about '}{format_bytes(plan.nbytes)} decoded",
        f"{plural(plan.nfiles, 'file')} in {plural(plan.write_units, 'write unit')} of up to "
        f"{plural(plan.unit_rows, 'row')}, by {plural(plan.tasks, 'task')}",
    ]
    return ", ".join(words)


def _limit(plan: ZarrPlan) -> str:
    return "no limit" if plan.memory_limit is None else f"limit {format_bytes(plan.memory_limit)}"


def _memory(plan: ZarrPlan) -> list[str]:
    return [printable(f"peak memory of a worker ({_limit(plan)}): {plan.memory.arithmetic()}"), *_warnings(plan)]


def _warnings(plan: ZarrPlan) -> list[str]:
    excess = plan.memory.excess(plan.memory_limit)
    lines = [*(f"RECHUNK: {each}" for each in plan.rechunks), *([] if excess is None else [f"DOES NOT FIT: {excess}"])]
    return list(map(printable, lines))


def _cells(array: ArrayPlan) -> tuple[str, ...]:
    return (
        printable(array.name),
        array.dtype if array.dtype == TEXT else np.dtype(array.dtype).name,
        _shape(array.shape),
        printable(", ".join(array.dimensions)),
        _shape(array.chunks),
        "-" if array.shards is None else _shape(array.shards),
        ("" if array.exact else "about ") + format_bytes(array.nbytes),
        codec_names((*array.filters, *array.compressors)),
    )


def _shape(shape: tuple[int, ...]) -> str:
    return " x ".join(f"{size:,}" for size in shape)
