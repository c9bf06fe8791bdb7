"""`to_zarr`: write columns to a Zarr group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from dask.delayed import Delayed

from dask_tfrecord.arrays.dataset import Dataset
from dask_tfrecord.errors import SchemaError, UnknownFeatureError
from dask_tfrecord.schema import Schema, near_misses
from dask_tfrecord.stores.inputs import Inputs
from dask_tfrecord.stores.zarr.chunking import ChunkRequest
from dask_tfrecord.stores.zarr.execute import ConversionRequest, convert, open_target
from dask_tfrecord.stores.zarr.fingerprint import Fingerprint
from dask_tfrecord.stores.zarr.icechunk_session import check_session, convert_in_session, session_of
from dask_tfrecord.stores.zarr.options import AxisNames, Codecs, FillValues, UserAttributes, ZarrOptions

__all__ = ["Groups", "conversion_request", "to_zarr"]

# Argument of users: for each group, a prefix or the features.
Groups = Mapping[str, str | Sequence[str]]


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
    groups: Groups | None = None,
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


def conversion_request(
    arrays: Mapping[str, Any],
    chunks: ChunkRequest,
    codecs: Codecs,
    groups: Groups | None,
    dimension_names: Mapping[str, Sequence[str]] | None,
    fill_values: Mapping[str, Any] | None,
    consolidated: bool,
    memory_limit: int | str | None,
) -> ConversionRequest:
    """Validate the inputs and options of a conversion, before any row is read."""
    inputs = Inputs.from_arrays(arrays)
    dataset = inputs.dataset
    if dataset.nrows is None:
        raise ValueError("rows must be counted before they are written: open with counts='auto'")
    schema = dataset.schema if groups is None else _with_groups(dataset.schema, groups)
    _check_storable(schema)
    names, attributes = AxisNames.from_inputs(inputs, dimension_names), UserAttributes.from_inputs(inputs)
    inputs.warn_of_attributes(attributes.omitted)
    options = ZarrOptions(chunks, codecs, names, FillValues(fill_values), consolidated, attributes)
    options.check(schema)
    fingerprint = Fingerprint.from_dataset(dataset, schema, options.to_json())
    return ConversionRequest(dataset, schema, options, fingerprint, memory_limit)


def _with_groups(schema: Schema, groups: Groups) -> Schema:
    """Return the schema with the groups of the user.

    Raises
    ------
    UnknownFeatureError
        If a name is not a feature, or no ragged feature is below a prefix.
    """
    if not isinstance(groups, Mapping):
        raise TypeError(f"groups maps names to a prefix or a list of features; got {groups!r:.100}")
    ragged = [name for name in schema if schema[name].ragged_rank]
    members: dict[str, Sequence[str]] = {}
    for group, given in groups.items():
        members[group] = list(given)
        if isinstance(given, str):
            prefix = given.rstrip("/")
            members[group] = [name for name in ragged if name == prefix or name.startswith(f"{prefix}/")]
            if not members[group]:
                known = {*ragged, *(name[: name.rindex("/")] for name in ragged if "/" in name)}
                raise UnknownFeatureError(
                    f"group {group!r}: no ragged feature is named {prefix!r} or begins with '{prefix}/'"
                    f"{near_misses(prefix, sorted(known))}"
                )
    return schema.with_groups(members)


def _check_storable(schema: Schema) -> None:
    """Refuse dtypes without a name in Zarr.

    Raises
    ------
    SchemaError
        If a column has one; the message has a conversion.
    """
    for name, feature in schema.items():
        if feature.item_dtype.kind not in "biufcOT":
            block = f"blocks[{name!r}]"
            cast = f"{block}.astype('float32')"
            if feature.ragged_rank == 1:
                cast = f"RaggedBlock({block}.values.astype('float32'), {block}.row_splits)"
            elif feature.block_dtype.kind == "O":
                cast = f"[row.astype('float32') for row in {block}] and a template"
            raise SchemaError(
                f"cannot write column {name!r}: Zarr has no name for dtype {feature.item_dtype}; convert it to float32 "
                f"with map_blocks and {cast}"
            )
