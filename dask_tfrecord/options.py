"""Options of writers and of batches. A TypedDict defines each one once: name, type, default and documentation.

A function and the method of `Dataset` take ``**options: Unpack[ZarrOptions]``, and `with_options` gives both the
signature and the documentation. `complete` adds the defaults. Commands make their flags and
help of the same definitions.
"""

import inspect
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from types import FunctionType
from typing import Annotated, Any, Literal, Required, TypedDict, TypeVar, cast, get_args

from dask_tfrecord.advice import explain_arguments
from dask_tfrecord.plugins import Registry


@dataclass(frozen=True, slots=True)
class Option:
    """Attributes of an option besides its name and type."""

    default: Any
    # Placeholder for the value on the command line, unless the type determines it.
    metavar: str | None = None


# Records that features are inferred from by default.
SAMPLE = 256
# Default of an option that has to be given.
REQUIRED = inspect.Parameter.empty

_Given = TypeVar("_Given")
_Function = TypeVar("_Function", bound=Callable[..., Any])


def options_of(given: type) -> dict[str, tuple[Any, Option]]:
    """Return the type and the definition of each option of a TypedDict; those that most writers have are the last."""
    hints = sorted(given.__annotations__.items(), key=lambda hint: hint[0] in FileOptions.__annotations__)
    types: dict[str, Any] = {name: hint if hasattr(hint, "__metadata__") else get_args(hint)[0] for name, hint in hints}
    return {name: (hint.__origin__, hint.__metadata__[0]) for name, hint in types.items()}


def complete(given: type[_Given], options: _Given) -> _Given:
    """Add the default of each option that is not given."""
    found = cast(Mapping[str, Any], options)
    for name, (kind, _) in options_of(given).items():
        if kind is bool and isinstance(found.get(name), str):
            raise TypeError(f"{name} must be True or False; got {found[name]!r:.100}")
    return cast(_Given, {name: found.get(name, option.default) for name, (_, option) in options_of(given).items()})


def checked_integer(name: str, value: object, least: int, most: int | None = None) -> int:
    """Check an option that is an integer."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f"{name} must be an int; got {value!r:.100}")
    number = int(value)
    if number < least or (most is not None and number > most):
        limit = f"at least {least}" if most is None else f"{least} to {most:,}"
        raise ValueError(f"{name} must be {limit}; got {value}")
    return number


def with_options(call: str, *given: type) -> Callable[[_Function], _Function]:
    """Show the options of ``**options: Unpack[…]`` in the signature and the documentation of a function.

    The last TypedDict belongs to the function; it extends the others, which document their own options.
    `explain_arguments` refuses other names, and shows `call`.
    """

    def show(function: _Function) -> _Function:
        assert isinstance(function, FunctionType)
        signature = inspect.signature(function)
        parameters = [each for each in signature.parameters.values() if each.kind is not each.VAR_KEYWORD]
        for name, (kind, option) in options_of(given[-1]).items():
            # As written in the source, without the modules of types.
            annotation = re.sub(r"\b([a-z_]+\.)+(?=[A-Z])", "", inspect.formatannotation(kind))
            parameters.append(
                inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=option.default, annotation=annotation)
            )
        function.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        if function.__doc__:
            text = inspect.cleandoc(function.__doc__)
            if _PARAMETERS not in text:
                text += f"\n\n{_PARAMETERS}"
            before, own, after = _split(text, _PARAMETERS)
            described, entries = _parameter_entries(own), documentation(*given)
            own += "".join(entries[name] for name in options_of(given[-1]) if name not in described)
            function.__doc__ = before + _PARAMETERS + own + after
        return explain_arguments(call)(function)

    return show


_PARAMETERS, _ATTRIBUTES = "Parameters\n----------\n", "Attributes\n----------\n"


def documentation(*given: type) -> dict[str, str]:
    """Return each option's numpydoc entry, by name, from TypedDicts.

    Options that most writers share are documented in `FileOptions`.
    """
    texts = (inspect.cleandoc(each.__doc__ or "") for each in (FileOptions, *given))
    return {name: entry for text in texts for name, entry in _parameter_entries(_split(text, _ATTRIBUTES)[1]).items()}


def summary(name: str, *given: type) -> str:
    """Return the first sentence of the documentation of an option."""
    description = " ".join(documentation(*given).get(name, "").split("\n")[1:])
    return re.split(r"(?<=[.:]) ", " ".join(description.split()))[0].rstrip(":.") + "."


def _split(text: str, title: str) -> tuple[str, str, str]:
    """Return what is before a section of a docstring, its content, and what is after it."""
    before, _, rest = text.partition(title)
    content = re.split(r"(?=\n\n)", rest, maxsplit=1)
    return before, content[0].rstrip("\n") + "\n" if content[0] else "", "".join(content[1:])[1:]


def _parameter_entries(section: str) -> dict[str, str]:
    """Return the entries of a section of parameters by their names."""
    entries = re.findall(r"^\S.*? : .*\n(?: .*\n)*", section, re.MULTILINE)
    return {name: entry for entry in entries for name in entry.split(" : ")[0].split(", ")}


Mode = Literal["w", "w-"]
AddingMode = Literal["w", "w-", "a"]


class FileOptions(TypedDict, total=False):
    """Options that most writers have.

    Attributes
    ----------
    mode : {"w-", "w", "a"}
        ``"w-"`` raises an error if one of the files exists; ``"w"`` replaces existing files. ``"a"`` adds files,
        numbered after those that exist, and leaves the old files alone.
    compute : bool, default True
        Write now. If False, return a `Delayed` that writes when it is computed; until then, no file changes.
    storage_options : mapping, optional
        fsspec options for the URL.
    """

    mode: Annotated[AddingMode, Option("w-")]
    compute: Annotated[bool, Option(True)]
    storage_options: Annotated[Mapping[str, Any] | None, Option(None)]


class ZarrOptions(TypedDict, total=False):
    """Options of a conversion to Zarr, whether it is planned or written.

    Attributes
    ----------
    chunks : int, str or mapping of str to int, optional
        Rows per chunk, or a decoded size like ``"8MiB"``: one for all features, or a mapping by feature. Tasks write
        whole chunks of all features, so the chunks and shards that you give must divide the largest of them. A mapping
        may also give the number of entries per chunk for a flat array like ``"tokens.values"``, which is not chunked
        along rows. A size, by default ``"8 MiB"``, or ``"1 MiB"`` in shards, applies to the largest array that is
        chunked along rows. A chunk has fewer rows if all of these arrays together would exceed four times the size, or
        if rows of bytes or ragged rows are long. Arrays with small rows get longer chunks, of up to 256 KiB, unless you
        give their chunks. A chunk of flat values has at most this size: it holds the values of these rows, or of a half
        to a quarter of them, so that two tasks rarely read the same records.
    shards : int, str or mapping of str to int, optional
        Rows per shard, a multiple of `chunks`, or the decoded size of a shard of the largest array, like ``"64MiB"``.
        By default, arrays are sharded only if the group would otherwise have more than 100,000 objects.
    compressors : "auto", None, an argument of `zarr.create_array`, or a mapping of these by feature or flat array
        ``"auto"`` is Blosc with LZ4 and byte shuffling. Features that a mapping leaves out get this, too.
    filters : "auto", None, an argument of `zarr.create_array`, or a mapping of these by feature or flat array
        Filters for dense arrays and for values. Row splits are filtered only if a mapping names their array. ``"auto"``
        does not filter.
    groups : mapping of str to str or sequence of str, optional
        Ragged columns that have the same number of items in each record, by the name of their group: a prefix
        (``{"steps": "steps"}`` means ``steps/action`` and all other ragged columns below ``steps/``) or a list of
        columns. Defaults to ``ds.schema.groups``, which TFDS metadata and `from_zarr` provide; ``{}`` makes none.
    dimension_names : mapping of str to sequence of str, optional
        Names of the axes after ``record``, by feature: for a dense feature, the axes of a row, as in
        ``{"image": ("height", "width", "channel")}``; where rows differ in length, the axes of an item. Axes that share
        a name must have the same length, and an axis can't be named like an array. Defaults to the names in an xarray
        Dataset, otherwise to ``NAME.dim_1`` and so on.
    fill_values : mapping of str to scalar, optional
        Value that a missing chunk reads as, by feature or flat array; a feature means its dense array or its values.
        Defaults to the scalar ``default_value`` of a dense feature, otherwise to zero or ``""``. All chunks are
        written, and xarray masks no value, because the attribute that it masks by is not set.
    consolidated : bool, default True
        Store the metadata of all arrays with the group's, so that one request opens the group. If False, pass
        ``consolidated=False`` to xarray's `open_zarr`, too.
    memory_limit : int, str or None, default "auto"
        Memory that the conversion may need on a worker, in bytes or like ``"2GiB"``. ``"auto"`` takes the limit of
        distributed workers, and does not limit threads and processes on this machine. If the conversion needs more, a
        plan reports it, and writing raises an error.
    encoded_images : bool, default False
        Store images as they are in the shards (JPEG, PNG and so on), one image per chunk, in Zarr shards. This applies
        to `ImageFeature` with a known shape. Readers get pixels, and need the codec ``dask_tfrecord.image`` of this
        library. The group is as large as the encoded images. A conversion checks their headers, but does not decode
        pixels.
    """

    chunks: Annotated[int | str | Mapping[str, int] | None, Option(None, "ROWS|SIZE")]
    shards: Annotated[int | str | Mapping[str, int] | None, Option(None, "ROWS|SIZE")]
    compressors: Annotated[Any, Option("auto")]
    filters: Annotated[Any, Option("auto")]
    groups: Annotated[Mapping[str, str | Sequence[str]] | None, Option(None)]
    dimension_names: Annotated[Mapping[str, Sequence[str]] | None, Option(None)]
    fill_values: Annotated[Mapping[str, Any] | None, Option(None)]
    consolidated: Annotated[bool, Option(True)]
    memory_limit: Annotated[int | str | None, Option("auto", "SIZE")]
    encoded_images: Annotated[bool, Option(False)]


class ZarrTargetOptions(FileOptions, total=False):
    """Options of the group that a conversion writes.

    Attributes
    ----------
    component : str, optional
        Path of the group within the store, by default the root.
    mode : {"w-", "w", "a"}
        ``"w-"`` raises an error if the group exists; ``"w"`` replaces it. ``"a"`` adds columns to its rows, or creates
        it if it does not exist; a column that already exists raises a `SchemaError`.
    resume : bool, default False
        Continue an interrupted conversion, and keep what is written if this one fails. Files, features and options must
        be the same. Only missing or damaged write units are written, and none if the group is complete. If nothing can
        be continued, start a conversion.
    compute : bool, default True
        Write now. If False, only create the empty arrays and return a `Delayed` that writes them. Until that has
        succeeded, the group is marked as incomplete.
    """

    component: Annotated[str | None, Option(None, "NAME")]
    resume: Annotated[bool, Option(False)]


class ZarrWriteOptions(ZarrOptions, ZarrTargetOptions, total=False):
    """Options of `to_zarr`.

    Attributes
    ----------
    append_dim : str, optional
        Name of the row dimension, usually ``"record"``: append the rows to the group, or create it if it does not
        exist. The columns must equal the group's, which keeps its chunks, shards and codecs. Readers see the new rows
        when all of them are written. If you plan to append to a store, create it with this option, so that its chunks
        do not depend on the first rows.
    """

    append_dim: Annotated[str | None, Option(None, "NAME")]


class ShardOptions(FileOptions, total=False):
    """Options of written shards.

    Attributes
    ----------
    compression : {None, "gzip", "zlib", "zstd"}
        Compression of the new shards. It does not change their names.
    records_per_shard : int, optional
        Records per shard, by default those of a chunk, or of the shard that is copied. Past 1,000 chunks, small
        neighbours share a shard of about 64 MiB. Every shard that is copied becomes a new one, even if none of its
        records is copied.
    index : bool, default False
        Write ``FILE.idx`` next to each shard. `build_index` writes the same file, and ``FILE.gzidx`` for gzip.
    """

    compression: Annotated[str | None, Option(None)]
    records_per_shard: Annotated[int | None, Option(None)]
    index: Annotated[bool, Option(False)]


class TFRecordOptions(ShardOptions, total=False):
    """Options of `to_tfrecord`.

    Attributes
    ----------
    features : mapping of str to feature, optional
        Feature that reads each column back. By default, the columns of a Dataset keep the features that they were read
        with, even after a detour through a Zarr store, and other columns get those of ``ds.schema``. Arrays become
        lists of numbers (integers and bool as int64, float16 and float32 as float32), bytes or text.
    sequence_features : mapping of str to feature, optional
        Columns to write as feature lists; the records are then SequenceExamples. The optional column ``NAME.lengths``
        gives the number of steps in each row of a padded column.
    example_features : mapping of str to feature, optional
        Features of items, by key; the records are then ExampleListWithContexts of TF-Ranking. Feature ``KEY`` is
        written from the column ``examples/KEY``. Can't be combined with `sequence_features`.
    message : message class, Descriptor or str, optional
        Type of the records, as for `read_tfrecord`, if they are protobuf messages other than Examples. A column is
        written to the field that it was read from, that has its name, or that `features` states by `ProtoFeature`. A
        field with a presence column is set where that is true, and a member of a oneof where the column of the oneof
        names it. Any other number, text or bytes value is set unless it equals its default, and any other message
        unless all of its fields are unset; items of repeated fields are always written. By default, columns that were
        read from messages are written as the same messages, unless you give other features.
    encoding : str or mapping of str to str or mapping, optional
        File format for the columns of `ImageFeature`, for all of them or by name: ``"png"`` (lossless, the default),
        ``"jpeg"`` or ``"webp"``. To pass options to Pillow's writer, give a mapping, as in
        ``{"photo": {"format": "jpeg", "quality": 90}}``.
    tfds : mapping of str to str, optional
        ``{"name": …, "version": …, "split": …}`` writes a data set of TFDS: `urlpath` is a directory, shards get the
        names that TFDS expects, and `features.json` and `dataset_info.json` are written next to them, or updated if the
        directory has other splits, so that ``tensorflow_datasets.builder_from_directory`` opens the directory. Names
        with "/" become nested dictionaries, and groups of the schema, for example ``steps`` with ``steps/action`` and
        ``steps/reward``, become sequences of them. ``mode="a"`` adds shards to a split that was begun with it, and
        their lengths to `dataset_info.json`; these shards are numbered without their total.
    """

    features: Annotated[Mapping[str, Any] | None, Option(None)]
    sequence_features: Annotated[Mapping[str, Any] | None, Option(None)]
    example_features: Annotated[Mapping[str, Any] | None, Option(None)]
    message: Annotated[Any, Option(None)]
    encoding: Annotated[str | Mapping[str, Any] | None, Option(None)]
    tfds: Annotated[Mapping[str, Any] | None, Option(None)]


class CopyOptions(ShardOptions, total=False):
    """Options of `copy_tfrecord`.

    Attributes
    ----------
    columns : sequence of str, optional
        Features and feature lists to keep.
    filters : list of tuple or list of list of tuple, optional
        Conditions that a record must meet to be copied, as for `Dataset.where`. The columns they compare are read now.
    features : mapping of str to feature, Schema, str or os.PathLike, optional
        Features that the filters compare, as for `read_tfrecord`. By default, they come from the metadata of a TFDS
        data set, or are inferred from Examples.
    errors : {"raise", "skip"}
        Stop with an error at the first damaged record, or skip damaged records. ``"skip"`` logs what is lost, and
        checks all records now.
    check_crc : bool, default True
        Check both CRCs of every record that is read.
    target_options : mapping, optional
        fsspec options for the URL of the new shards; `storage_options` are for the shards to read.
    """

    columns: Annotated[Sequence[str] | None, Option(None)]
    filters: Annotated[Sequence[Any] | None, Option(None)]
    features: Annotated[Mapping[str, Any] | str | os.PathLike[str] | None, Option(None)]
    errors: Annotated[Literal["raise", "skip"], Option("raise")]
    check_crc: Annotated[bool, Option(True)]
    target_options: Annotated[Mapping[str, Any] | None, Option(None)]


# Compressions of the pages of Parquet files.
ParquetCodec = Literal["snappy", "zstd", "gzip", "brotli", "lz4", "none"]


class ParquetOptions(FileOptions, total=False):
    """Options of `to_parquet`.

    Attributes
    ----------
    compression : {"snappy", "zstd", "gzip", "brotli", "lz4", None}
        Compression of the Parquet pages.
    tensors : bool, default True
        Write numbers of a fixed shape as Arrow tensors. If False, write them as Arrow lists.
    """

    compression: Annotated[ParquetCodec | None, Option("snappy")]
    tensors: Annotated[bool, Option(True)]


class LeRobotOptions(TypedDict, total=False):
    """Options of `to_lerobot`.

    Attributes
    ----------
    fps : int
        Frames per second, the same in all episodes.
    names : mapping of str to str or None, optional
        LeRobot's name for a column; None leaves the column out. By default, ``steps/action`` becomes ``action``,
        ``steps/observation/state`` becomes ``observation.state``, and an image ``steps/observation/wrist`` becomes
        ``observation.images.wrist``.
    task : str, optional
        Text column with the task of each frame, by default the one whose last name is ``language_instruction``. Without
        such a column, the task is an empty text.
    robot_type : str, optional
        Type of the robot, for the metadata.
    video : str, mapping or None, default "libx264"
        FFmpeg encoder for the images. A mapping gives ``codec``, ``pix_fmt`` and options of that encoder, as in
        ``{"codec": "libx264rgb", "pix_fmt": "rgb24", "crf": 0}``, which is lossless. None stores PNG images in Parquet.
    episodes_per_file : int, optional
        Episodes per file; by default, as many whole episodes as fit into 1 GiB of decoded frames.
    episode : str, default "record"
        Column of numbers; a new episode begins where the number changes.
    mode : {"w-", "w", "a"}
        ``"w-"`` raises an error if the data set exists; ``"w"`` replaces it. ``"a"`` adds the episodes to the data set,
        or creates it if it does not exist. `fps`, columns and encoder must equal the data set's, and so must
        `robot_type` if you give it.
    resume : bool, default False
        Continue an interrupted conversion, and keep what is written if this one fails. Rows and options must be the
        same. If the conversion is complete already (with ``mode="a"``, if it was the last one), nothing is written.
    """

    fps: Required[Annotated[int, Option(REQUIRED)]]
    names: Annotated[Mapping[str, str | None] | None, Option(None)]
    task: Annotated[str | None, Option(None, "NAME")]
    robot_type: Annotated[str | None, Option(None, "NAME")]
    video: Annotated[str | Mapping[str, Any] | None, Option("libx264")]
    episodes_per_file: Annotated[int | None, Option(None)]
    episode: Annotated[str, Option("record", "NAME")]
    mode: Annotated[AddingMode, Option("w-")]
    resume: Annotated[bool, Option(False)]
    storage_options: Annotated[Mapping[str, Any] | None, Option(None)]


class BatchOptions(TypedDict, total=False):
    """Options of `Dataset.batches`.

    Attributes
    ----------
    shuffle : {False, "window", "full"}, default False
        ``False`` keeps the order of the rows. ``"window"`` reads ranges of rows, about 8 MiB each, in random order, and
        mixes rows within a window. ``"full"`` draws a uniformly random permutation of all rows. Each epoch has a
        different order.
    seed : int, optional
        Seed of the order. By default, a random seed is drawn, which `state_dict` stores.
    epochs : int or None, default 1
        Number of epochs; None means no end.
    drop_remainder : bool, default False
        Leave out the last batch of an epoch if it is smaller. Every shard then has the same number of batches,
        ``nrows // n // batch_size``.
    pad : mapping of str to int, None or Pad, optional
        Ragged columns to pad: give a length, None for the longest row of each batch, or `Pad` with a padding value. For
        arrays whose shapes differ between rows, like images, give the sizes of the first axes:
        ``{"image": (256, 256)}``. A longer row raises `FeatureError`, unless `Pad` cuts it. Ragged columns that are not
        padded arrive as `RaggedBlock`.
    window : int, optional
        With ``shuffle="window"``, how many rows are mixed: no row moves further. With ``shuffle="full"``, how many rows
        are read together, which does not change the order. By default, the rows of 64 MiB, or 1,024 if rows are not
        counted.
    prefetch : int, default 4
        Number of batches to prepare ahead.
    shard : tuple of int, default (0, 1)
        Index ``i`` and number ``n`` of the iterators that share each epoch. Each iterator gets a contiguous part of the
        order; the parts differ by at most one row. All of them need the same seed.
    device : str, optional
        Copy numbers to this torch device, for example ``"cuda"`` or ``"cuda:1"``, as tensors. Without torch, CUDA
        devices get CuPy arrays. Copies go through pinned memory, and run while the next batches are decoded.
    """

    shuffle: Annotated[Literal[False, "window", "full"], Option(False)]
    seed: Annotated[int | None, Option(None)]
    epochs: Annotated[int | None, Option(1)]
    drop_remainder: Annotated[bool, Option(False)]
    pad: Annotated[Mapping[str, Any] | None, Option(None)]
    window: Annotated[int | None, Option(None)]
    prefetch: Annotated[int, Option(4)]
    shard: Annotated[tuple[int, int], Option((0, 1))]
    device: Annotated[str | None, Option(None)]


@dataclass(frozen=True, slots=True)
class WriterCommand:
    """Command of a function that writes a Dataset to a target. Its flags are the options of the function.

    Attributes
    ----------
    name : str
        Name of the command, for example ``"to-parquet"``.
    function : str
        ``"module:name"`` of the function, which takes a Dataset, the target and options.
    options : TypedDict
        Options of the function. Options of the types bool, int, float, str and Literal become flags, with their
        documentation as help; `mode` becomes ``--overwrite``.
    help : str
        One sentence, and after an empty line what TARGET is.
    target : str, default "out"
        Example of a target, for errors.
    job : str, optional
        Public class of this library that writes the same without a scheduler.
    """

    name: str
    function: str
    options: type
    help: str
    target: str = "out"
    job: str | None = None


# Other packages add commands by entry points of this group.
COMMANDS: Registry[WriterCommand] = Registry(
    "dask_tfrecord.commands",
    WriterCommand(
        "to-parquet",
        "dask_tfrecord.stores.files.parquet:to_parquet",
        ParquetOptions,
        "Convert shards to a directory of Parquet files.\n\nTARGET is a directory that gets one file per chunk: "
        "part.00000.parquet and so on, in the order of the records. Needs pyarrow.",
        job="ParquetJob",
    ),
)
