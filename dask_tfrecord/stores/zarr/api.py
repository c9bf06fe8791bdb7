"""`to_zarr` and `plan_zarr`: write columns to a Zarr group, or plan it; and the plan, displayed as a table."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from html import escape
from typing import Any, Literal

from dask.delayed import Delayed
from dask.utils import format_bytes

from dask_tfrecord.arrays.dataset import Dataset, stack_columns
from dask_tfrecord.arrays.rows import Rechunked
from dask_tfrecord.errors import plural, printable
from dask_tfrecord.markup import fragment, table
from dask_tfrecord.runtime.workers import MemoryBudget
from dask_tfrecord.schema import align_columns
from dask_tfrecord.stores.zarr.plan import (
    ChunkRequest,
    Codecs,
    Conversion,
    codec_documents,
    codec_names,
    conversion_request,
    json_value,
    plan_conversion,
)
from dask_tfrecord.stores.zarr.write import check_session, convert, convert_in_session, open_target, session_of

_HEADER = ("array", "dtype", "shape", "dimensions", "chunks", "shards", "bytes", "codecs")


_RIGHT = [_HEADER.index("bytes")]


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
        `nbytes` is exact; that of text is estimated from the first rows.
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
        Arrays that are rechunked, because their chunks differ from those of the rows.

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
        layout, options = conversion.layout, conversion.request.options
        created = options.create_arguments(layout, conversion.request.schema)
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
                exact=spec.dtype != "string",
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

    def to_zarr(
        self,
        store: Any,
        *,
        component: str | None = None,
        mode: Literal["w", "w-"] = "w-",
        resume: bool = False,
        compute: bool = True,
        storage_options: Mapping[str, Any] | None = None,
    ) -> Delayed | None:
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
        target = open_target(store, component, storage_options, request.dataset.origin, mode=mode, resume=resume)
        return convert(target, request, self._conversion, mode=mode, resume=resume, compute=compute)

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
                "nbytes": self.nbytes,
                "arrays": arrays,
                "consolidated": self._conversion.request.options.consolidated,
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
        return text_plan(self)

    def _repr_html_(self) -> str:
        return _html_plan(self)


def plan_zarr(
    arrays: Mapping[str, Any],
    *,
    chunks: int | str | Mapping[str, int] | None = None,
    shards: int | str | Mapping[str, int] | None = None,
    compressors: Any = "auto",
    filters: Any = "auto",
    groups: Mapping[str, str | Sequence[str]] | None = None,
    dimension_names: Mapping[str, Sequence[str]] | None = None,
    fill_values: Mapping[str, Any] | None = None,
    consolidated: bool = True,
    memory_limit: int | str | None = "auto",
) -> ZarrPlan:
    """Plan a conversion to Zarr without writing: arrays, chunks, tasks and memory.

    Parameters
    ----------
    arrays : Dataset or mapping of str to array-like
        As for `to_zarr`.
    chunks, shards : int, str or mapping of str to int, optional
        As for `to_zarr`.
    compressors, filters : "auto", None, an argument of `zarr.create_array`, or a mapping of these
        As for `to_zarr`.
    groups, dimension_names, fill_values : mapping, optional
        As for `to_zarr`.
    consolidated : bool, default True
        As for `to_zarr`.
    memory_limit : int, str or None, default "auto"
        As for `to_zarr`. A plan that exceeds the limit reports it, and its `to_zarr` raises.

    Returns
    -------
    ZarrPlan
        Displayed as a table; ``plan.to_zarr(store)`` writes it.

    Raises
    ------
    SchemaError
        As for `to_zarr`.
    UnknownFeatureError
        If an option names neither a feature nor a flat array.
    ValueError
        If rows are not counted, or an option is invalid.

    Notes
    -----
    Variable-length columns are read once to count their values; of images only the headers are read. The compressed
    size is unknown. The workers are those of the scheduler that is active when the plan is made. Threads of this
    process have no memory limit.

    Examples
    --------
    >>> import dask_tfrecord as dtf
    >>> plan = dtf.plan_zarr({"x": np.zeros((1000, 8))}, chunks=100)
    >>> plan.arrays[0].chunks, plan.write_units, plan.nbytes
    ((100, 8), 10, 64000)
    """
    chunk_request = ChunkRequest.from_arguments(chunks, shards)
    codecs = Codecs(compressors, filters)
    request = conversion_request(
        arrays, chunk_request, codecs, groups, dimension_names, fill_values, consolidated, memory_limit
    )
    return ZarrPlan.from_conversion(plan_conversion(request))


def text_plan(plan: ZarrPlan, width: int | None = None) -> str:
    """Return a title, a line per array and the memory as text; cells are not broken in a terminal of `width`."""
    rows = [_HEADER, *map(_cells, plan.arrays)]
    lines = [f"  {line}" for line in align_columns(rows, _RIGHT)]
    if width is None:
        return "\n".join([_title(plan), *lines, *_memory(plan)])
    if max(map(len, lines)) > width:
        lines = stack_columns(_HEADER, rows[1:], width, _LONG)
    title, *memory = (
        textwrap.fill(text, width, break_long_words=False, break_on_hyphens=False)
        for text in (_title(plan), *_memory(plan))
    )
    return "\n".join([title, *lines, *memory])


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
    notes += _warnings(plan)
    terms = [
        (escape(printable(name)), "" if times == 1 else f"{times} times", format_bytes(nbytes))
        for name, times, nbytes in plan.memory.terms()
    ]
    terms.append((f"peak of a worker, {_limit(plan)}", "", format_bytes(plan.memory.peak_nbytes)))
    return fragment(
        f'<p class="dtf-title">Zarr group: {", ".join(_title_words(plan))}</p>',
        table(header, cells, [len(header) - 1]).replace("<td", '<td class="dtf-short"'),
        *(f"<p>{escape(printable(note))}</p>" for note in notes),
        table(["memory", "", "bytes"], terms, [1, 2]),
    )


def _title(plan: ZarrPlan) -> str:
    return f"<dask_tfrecord.ZarrPlan: {', '.join(_title_words(plan))}>"


def _title_words(plan: ZarrPlan) -> list[str]:
    return [
        plural(plan.nrows, "row"),
        plural(len(plan.arrays), "array"),
        f"{'' if all(array.exact for array in plan.arrays) else 'about '}{format_bytes(plan.nbytes)} decoded",
        f"{plural(plan.write_units, 'write unit')}, those of rows with {plural(plan.unit_rows, 'row')} each, "
        f"in {plural(plan.tasks, 'task')}",
    ]


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
        array.dtype,
        _shape(array.shape),
        printable(", ".join(array.dimensions)),
        _shape(array.chunks),
        "-" if array.shards is None else _shape(array.shards),
        ("" if array.exact else "about ") + format_bytes(array.nbytes),
        codec_names((*array.filters, *array.compressors)),
    )


def _shape(shape: tuple[int, ...]) -> str:
    return " x ".join(f"{size:,}" for size in shape)


def to_zarr(
    arrays: Mapping[str, Any],
    store: Any,
    *,
    component: str | None = None,
    mode: Literal["w", "w-"] = "w-",
    resume: bool = False,
    chunks: int | str | Mapping[str, int] | None = None,
    shards: int | str | Mapping[str, int] | None = None,
    compressors: Any = "auto",
    filters: Any = "auto",
    groups: Mapping[str, str | Sequence[str]] | None = None,
    dimension_names: Mapping[str, Sequence[str]] | None = None,
    fill_values: Mapping[str, Any] | None = None,
    consolidated: bool = True,
    memory_limit: int | str | None = "auto",
    compute: bool = True,
    storage_options: Mapping[str, Any] | None = None,
) -> Delayed | None:
    """Write columns to a Zarr group: one task per chunk or shard, without rechunking.

    Dense and text columns become one array each. Columns of bytes and ragged columns become ``NAME.values`` and
    ``NAME.row_splits``; nested rows add ``NAME.row_splits_1`` and so on, and rows of bytes add ``NAME.byte_splits``.
    Columns of a group, which share their row lengths, share one ``GROUP.row_splits`` and one dimension ``GROUP``.
    Columns whose rows have shapes of their own store these in ``NAME.shapes``, lists of arrays in
    ``NAME.item_shapes``. ``/`` in a name becomes ``.``. The
    attributes of the group keep the true names, the schema with its class names, the sources and the version of this
    library. Each array has the attributes ``feature``, ``feature_class`` and ``class_names``.

    Parameters
    ----------
    arrays : Dataset or mapping of str to array-like
        Rows to write; `to_tfrecord` lists the types. An xarray Dataset keeps the names of its dimensions, its
        coordinates along the rows and its attributes.
    store : str, Path, zarr store or icechunk.Session
        A path, a URL or a store. A writable session of Icechunk without uncommitted changes, or its ``session.store``,
        is committed once, at the end; `resume`, ``compute=False`` and `storage_options` raise a ValueError with it.
    component : str, optional
        Path of the group within the store.
    mode : {"w-", "w"}
        ``"w-"`` fails if the group exists, ``"w"`` replaces it.
    resume : bool, default False
        Resume an interrupted conversion of the same files, features and options: only missing or damaged write units
        are written, and none if the group is complete. A failure after that keeps what is written, to be resumed
        again. Without an earlier conversion, start one.
    chunks : int, str or mapping of str to int, optional
        Rows of a chunk, for all features or by feature. All features share a unit of rows, so the given chunks and
        shards must divide the largest of them. In a mapping, the name of a flat array that is not chunked along rows,
        for example ``"tokens.values"``, takes a number of entries. A size, by default ``"8 MiB"`` and ``"1 MiB"`` in
        shards, is the decoded bytes of a chunk in the largest array that is chunked along rows. For the same rows, all
        of these arrays together have at most four times this size. Long rows of bytes and ragged columns reduce the
        number of rows. A chunk of flat values has at most this size. It covers as many values as these rows have, or a
        half to a quarter of them, so that two tasks rarely read the same records.
    shards : int, str or mapping of str to int, optional
        Rows of a shard, a multiple of `chunks`, or a size like ``"64 MiB"``: the decoded bytes of a shard in the
        largest array. By default arrays are not sharded.
    compressors : "auto", None, an argument of `zarr.create_array`, or a mapping of these by feature or flat array
        ``"auto"``, also used for features that a mapping lacks, is Blosc with LZ4 and byte shuffling.
    filters : "auto", None, an argument of `zarr.create_array`, or a mapping of these by feature or flat array
        Filters of dense arrays and values. Splits are only filtered if a mapping names their array. ``"auto"`` is
        no filter.
    groups : mapping of str to str or sequence of str, optional
        Groups of ragged columns that have one number of items in each record: a prefix (``{"steps": "steps"}`` for
        ``steps/action`` and all other ragged columns below ``steps/``) or the columns. By default those of
        ``ds.schema.groups``, which metadata of TFDS and `from_zarr` provide; ``{}`` for none.
    dimension_names : mapping of str to sequence of str, optional
        Names of the axes after ``record``, by feature: axes of a row where the feature is dense, for example
        ``{"image": ("height", "width", "channel")}``, and axes of an item where rows differ in length. Axes of one name
        have one length, and a name must differ from the names of arrays. Defaults to the names of an xarray Dataset,
        else ``NAME.dim_1`` and so on.
    fill_values : mapping of str to scalar, optional
        Value of missing chunks, by feature or flat array; for a feature, that of its dense array or of its values.
        Defaults to the scalar ``default_value`` of a dense feature, else zero or ``""``. All chunks are written, and
        no value is masked: xarray masks by an attribute that is not set.
    consolidated : bool, default True
        Store the metadata of all arrays in that of the group, so that one request opens it. If False, pass
        ``consolidated=False`` to xarray's `open_zarr`, too.
    memory_limit : int, str or None, default "auto"
        Memory of a worker in bytes, for example ``"2 GiB"``. ``"auto"`` is the limit of distributed workers; threads
        and processes of this machine have no limit.
    compute : bool, default True
        Write now. If False, only create the empty arrays and return a `Delayed` that writes them. Until it is computed
        the group is marked incomplete, also if computing it fails.
    storage_options : mapping, optional
        Options of fsspec for a URL.

    Returns
    -------
    None or dask.delayed.Delayed

    Raises
    ------
    FileExistsError
        If the group exists under ``mode="w-"``, or the path holds anything other than a Zarr group: only arrays and
        groups are ever replaced.
    UnsupportedFormatError
        If `resume` is true, and a newer version of this library wrote the group.
    StoreInUseError
        If another run is writing the group. Also a `FileExistsError`.
    SchemaError
        If arrays differ in their number of rows, hold masked or missing values, or have a dtype without a feature or
        without a Zarr name (bfloat16); an xarray Dataset has coordinates along other dimensions; or a name is too long
        for a file.
    UnknownFeatureError
        If an option names neither a feature nor a flat array.
    FeatureError
        If the columns of a group differ in their number of items in a record, or a record contradicts its features.
    ValueError
        If rows are not counted, `chunks` and `shards` do not fit each other, names of axes do not fit the arrays, a
        fill value does not fit its dtype, workers have too little memory, or the group would replace the source of the
        data set.
    IncompleteStoreError
        If tasks ran in other processes, and the store is in the memory of this one.

    Warns
    -----
    UserWarning
        If an attribute is not a JSON value, or its name is used by this library or xarray.
    dask.array.PerformanceWarning
        If an array is rechunked because its chunks differ from those of the rows; a plan reports it.

    See Also
    --------
    plan_zarr : Plan the same conversion without writing.

    Notes
    -----
    Columns of bytes and ragged columns are read once more, to count their sizes; of images that differ in size only the
    headers are read. The group is marked incomplete until everything is written. A conversion that fails removes what
    it wrote. Each task reads its rows in blocks, and holds what it writes and one block. Flat values are written by the
    task that reads most of their rows.

    Examples
    --------
    >>> import dask_tfrecord as dtf
    >>> dtf.read_tfrecord("train-*.tfrecord").to_zarr("train.zarr", mode="w")
    >>> dtf.from_zarr("train.zarr").nrows > 0
    True
    """
    origin = arrays.origin if isinstance(arrays, Dataset) else {}
    session = session_of(store)
    if session is not None:
        check_session(session, resume=resume, compute=compute, storage_options=storage_options)
    else:
        target = open_target(store, component, storage_options, origin, mode=mode, resume=resume)
    chunk_request = ChunkRequest.from_arguments(chunks, shards)
    codecs = Codecs(compressors, filters)
    request = conversion_request(
        arrays, chunk_request, codecs, groups, dimension_names, fill_values, consolidated, memory_limit
    )
    if session is not None:
        convert_in_session(session, component, request, mode=mode)
        return None
    return convert(target, request, mode=mode, resume=resume, compute=compute)
