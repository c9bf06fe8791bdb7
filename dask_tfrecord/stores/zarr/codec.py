"""The Zarr codec `tfrecord`: a chunk is a byte range of whole records, and decodes to one column's rows.

The chunk of rows 20 to 29 is the bytes from the header of record 20 to the end of record 29. Its checksum is the CRC
of the ten CRCs that follow the payloads. It fits no other records, and no smaller number of them, so a shard that was
replaced by another one, or cut between two records, is an error. Checksums and places of chunks are an array next to
the arrays, so that metadata do not grow with the data. zarr finds the codec by its entry point.
"""

from __future__ import annotations

import asyncio
import base64
import json
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np
import zarr
import zarr.buffer
import zarr.storage
from numpy.typing import NDArray
from zarr.abc.codec import ArrayBytesCodec, ArrayBytesCodecPartialDecodeMixin

from dask_tfrecord.blocks import ArraysBlock, Block, BytesBlock, RaggedBlock, RowError, to_array, union
from dask_tfrecord.columns.decoder import Decoder, decode
from dask_tfrecord.errors import CorruptRecordError, FeatureError, Location, SchemaError, TFRecordError, plural
from dask_tfrecord.features import Feature, ImageFeature, TextFeature
from dask_tfrecord.features.keys import Decoded
from dask_tfrecord.features.schema import Schema
from dask_tfrecord.records.index import RecordRange, records_in_memory
from dask_tfrecord.records.window import Window
from dask_tfrecord.rows.memory import block_limit
from dask_tfrecord.shards.shard import Shard
from dask_tfrecord.stores.zarr.array_names import array_name
from dask_tfrecord.stores.zarr.compat import ARRAY_CONFIG, array_of_document, calling_thread_loop, run_sync

_PARTS = ("rows", "values")
# Group next to the arrays, with an array for those whose chunks are the same records. It has a row of four numbers for
# each chunk: the checksum of its records, the number of its shard in the group, and the number and first byte of its
# first record in the shard.
CHUNKS_GROUP = ".tfrecord"
# Rows in a chunk of this array: 128 KiB, which a reader of some chunks requests once.
CHUNKS_TOGETHER = 1 << 12
# Those four numbers as earlier versions stored them, in the metadata of each array.
_CHUNKS_BEFORE = np.dtype([("checksum", "<u4"), ("shard", "<u4"), ("record", "<u8"), ("byte", "<u8")])


def records_checksum(crcs: NDArray[np.uint8]) -> int:
    """Compute a chunk's checksum from its records' stored payload CRCs."""
    import crc32c

    return int(crc32c.crc32c(crcs.tobytes()))


class _ReadOnlyCodec(ArrayBytesCodec):
    """Codec of chunks of any size that only decodes, in a thread where zarr awaits it."""

    is_fixed_size = False
    _writer: str  # what writes the chunks

    def evolve_from_array_spec(self, array_spec: Any) -> Any:
        """Return the codec: it depends on no array."""
        return self

    def compute_encoded_size(self, input_byte_length: int, chunk_spec: Any) -> int:
        """Refuse: chunks have any size."""
        raise NotImplementedError("chunks have any size")

    async def _encode_single(self, chunk_data: Any, chunk_spec: Any) -> Any:
        return self._encode_sync(chunk_data, chunk_spec)

    def _encode_sync(self, chunk_data: Any, chunk_spec: Any) -> Any:
        raise NotImplementedError(f"the codec {self.to_dict()['name']} only reads: {self._writer}")

    async def _decode_single(self, chunk_data: Any, chunk_spec: Any) -> Any:
        return await asyncio.to_thread(self._decode_sync, chunk_data, chunk_spec)

    def _decode_sync(self, chunk_data: Any, chunk_spec: Any) -> Any:
        raise NotImplementedError


class _StoredChunks:
    """Facts that a store has about an array's chunks; a part is read when its first chunk is decoded."""

    def __init__(self) -> None:
        self.parts: dict[int, NDArray[np.uint64]] = {}
        self.reads: dict[tuple[Any, int], asyncio.Future[NDArray[np.uint64]]] = {}

    def __reduce__(self) -> Any:
        return type(self), ()

    async def of_chunk(self, store: Any, path: str, number: int) -> NDArray[np.uint64] | None:
        """Return the four numbers of a chunk, or None without them. `path` is the array that has them."""
        part, row = divmod(number, CHUNKS_TOGETHER)
        found = self.parts.get(part)
        if found is None:
            # Chunks that are read at the same time wait for one request.
            key = asyncio.get_running_loop(), part
            if key not in self.reads:
                self.reads[key] = asyncio.ensure_future(_stored_chunks(store, path, part))
            try:
                found = self.parts[part] = await asyncio.shield(self.reads[key])
            finally:
                self.reads.pop(key, None)
        return found[row] if row < len(found) else None


async def _stored_chunks(store: Any, path: str, part: int) -> NDArray[np.uint64]:
    prototype = zarr.buffer.default_buffer_prototype()
    found = await store.get(f"{path}/zarr.json", prototype)
    document = {} if found is None else json.loads(found.to_bytes())
    if document.get("node_type") != "array":  # VirtualiZarr's store returns the metadata of the group
        return np.zeros((0, 4), np.uint64)
    rows = slice(part * CHUNKS_TOGETHER, (part + 1) * CHUNKS_TOGETHER)
    return np.asarray(await array_of_document(store, path, document).async_array.getitem(rows))


@dataclass(frozen=True)
class TFRecordCodec(_ReadOnlyCodec, ArrayBytesCodecPartialDecodeMixin):
    """Codec from whole records to rows of one column; only for reading.

    Of a selection of rows, only their records are decoded, and their CRCs checked.

    Parameters
    ----------
    feature : str
        JSON of a `Schema` with the feature of the records that the column belongs to.
    column : str
        Name of the column.
    part : {"rows", "values"}
        The part of the column in the array: its rows, or the values of all rows, where rows differ in length. Bytes and
        text are bytes.
    check_crc : bool, default True
        Check the CRCs of records, and the checksums.
    compression : {None, "gzip", "zlib", "zstd"}
        Compression of chunks, which are whole shards then.
    chunks : bytes
        Checksums and places of chunks, in arrays that earlier versions wrote. Without these, and without the group
        `CHUNKS_GROUP`, records are not compared, and errors name the chunk instead of the shard.
    """

    feature: str
    column: str
    part: str = "rows"
    check_crc: bool = True
    compression: str | None = None
    chunks: bytes = b""
    _stored: _StoredChunks = field(default_factory=_StoredChunks, init=False, repr=False, compare=False)

    _writer = "its chunks are records of shards, which to_tfrecord writes; to_zarr writes values"

    def __post_init__(self) -> None:
        if self.part not in _PARTS:
            raise ValueError(f"codec tfrecord: part must be one of {', '.join(_PARTS)}; got {self.part!r}")

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> TFRecordCodec:
        """Read the metadata of an array."""
        options = dict(data["configuration"])
        feature = json.dumps(options.pop("feature"), ensure_ascii=False)
        chunks = base64.b64decode(options.pop("chunks", ""))
        return cls(feature, chunks=chunks, **options)

    def to_dict(self) -> dict[str, Any]:
        """Return the metadata of an array: the same for all shards, so that their arrays can be joined."""
        options = {
            "feature": json.loads(self.feature),
            "column": self.column,
            "part": self.part,
            "check_crc": self.check_crc,
            "compression": self.compression,
        }
        before = {"chunks": base64.b64encode(self.chunks).decode()} if self.chunks else {}
        return {"name": "tfrecord", "configuration": options | before}

    @property
    def _name(self) -> str:
        """Name of the array that has the codec."""
        return array_name(self.column) + ("" if self.part == "rows" else f".{self.part}")

    @property
    def array_of_chunks(self) -> str:
        """Name in `CHUNKS_GROUP`: all chunks of rows are the same records; chunks of values without any are absent."""
        return self.part if self.part == "rows" else self._name

    def chunks_in_metadata(self) -> NDArray[np.uint64]:
        """Return the four numbers of each chunk that an earlier version stored."""
        known = np.frombuffer(self.chunks, _CHUNKS_BEFORE)
        return np.stack([known[name].astype(np.uint64) for name in _CHUNKS_BEFORE.names or ()], axis=1)

    def _decode_sync(self, chunk_data: Any, chunk_spec: Any) -> Any:
        found = self._decode(chunk_data, None, chunk_spec, None)
        if len(found) < chunk_spec.shape[0]:
            # The last chunk of a regular grid.
            whole = np.full(chunk_spec.shape, chunk_spec.fill_value, found.dtype)
            whole[: len(found)] = found
            found = whole
        return chunk_spec.prototype.nd_buffer.from_numpy_array(found)

    async def _decode_partial_single(self, byte_getter: Any, selection: Any, chunk_spec: Any) -> Any:
        group, number = self._place(byte_getter, len(chunk_spec.shape))
        chunk = await self._chunk(byte_getter.store, group, number)
        data = await byte_getter.get(chunk_spec.prototype)
        try:
            return await asyncio.to_thread(self._decode_selection, data, chunk, selection, chunk_spec)
        except TFRecordError as error:
            raise await self._in_shard(error, byte_getter, group, chunk) from None

    def _decode_partial_sync(self, byte_getter: Any, selection: Any, chunk_spec: Any) -> Any:
        # zarr calls this in a thread of its own, with stores that need no loop.
        with calling_thread_loop() as loop:
            return loop.run_until_complete(self._decode_partial_single(byte_getter, selection, chunk_spec))

    def _place(self, byte_getter: Any, axes: int) -> tuple[str, int]:
        """Return the group and number of a chunk by its key, which is ``ARRAY/c/3/0`` or ``ARRAY/3.0``."""
        parts = byte_getter.path.split("/")
        inner = parts.pop().split(".") if "." in parts[-1] else [parts.pop() for _ in range(axes)][::-1]
        # The c of a key, not an array of that name.
        if parts[-1:] == ["c"] and (self._name != "c" or parts[-2:-1] == ["c"]):
            parts.pop()
        return "/".join(parts[:-1]), int(inner[0])

    async def _chunk(self, store: Any, group: str, number: int) -> NDArray[np.uint64] | None:
        """Return the checksum, shard, first record and first byte of a chunk; None if they are unknown."""
        if self.chunks:
            known = self.chunks_in_metadata()
            return known[number] if number < len(known) else None
        return await self._stored.of_chunk(store, f"{group}/{CHUNKS_GROUP}/{self.array_of_chunks}".lstrip("/"), number)

    def _decode_selection(self, data: Any, chunk: Any, selection: Any, chunk_spec: Any) -> Any:
        if data is None:
            raise CorruptRecordError(
                "the store has no bytes for this chunk: the shard that it refers to is missing", Location("")
            )
        found = self._decode(data, chunk, chunk_spec, selection)
        return chunk_spec.prototype.nd_buffer.from_numpy_array(found)

    def _decode(self, data: Any, chunk: Any, chunk_spec: Any, selection: Any) -> NDArray[Any]:
        """Decode the selected rows of a chunk, by default all of them; errors state offsets within the chunk."""
        stored = np.frombuffer(data.as_numpy_array(), np.uint8)
        shard = _inflated(Shard(f"a chunk of column {self.column!r}", len(stored), "", self.compression, data=stored))
        ends = self._check_records(shard, chunk)
        rows, *inner = selection or (slice(None),)
        picked = None
        if self.part == "rows":
            picked, rows = _picked_rows(rows, min(len(ends), chunk_spec.shape[0]))
        decoder = _decoder(self.feature)
        if self.column not in decoder.columns:
            raise SchemaError(f"codec tfrecord: the feature has columns {list(decoder.columns)}, not {self.column!r}")
        run = _record_range(shard, ends, picked)
        names = (self.column,)
        blocks = decode([run], decoder, names, rows=run.count, check_crc=self.check_crc, limit=block_limit())
        array = _encoded_values(blocks[self.column], self.part)
        dtype, shape = chunk_spec.dtype.to_native_dtype(), chunk_spec.shape
        if len(array) > shape[0] or (array.size and array.shape[1:] != shape[1:]):
            raise CorruptRecordError(
                f"the chunk decodes to shape {array.shape}, more than the {shape} of the grid: the shard was changed",
                Location(shard.path, feature=self.column),
            )
        # An ellipsis makes an array of a single value, too.
        return array[(rows, *inner, ...)].astype(dtype, copy=False)

    def _check_records(self, shard: Shard, chunk: Any) -> NDArray[np.int64]:
        """Compare the records of a chunk with its checksum, if that is known; return where they end."""
        ends, crcs = records_in_memory(shard)
        if self.check_crc and chunk is not None and records_checksum(crcs) != chunk[0]:
            raise CorruptRecordError(
                f"the {plural(len(ends), 'record')} of this chunk are not those that the store refers to: the shard "
                f"was changed, replaced or truncated; make the references again",
                Location(shard.path, 0, 0, self.column),
            )
        return ends

    async def _in_shard(self, error: TFRecordError, byte_getter: Any, group: str, chunk: Any) -> TFRecordError:
        """Return an error whose place is that in the shard, or, if it is unknown, in the chunk."""
        place = error.place or Location("")
        known = None if chunk is None else await _shard_name(byte_getter.store, group, int(chunk[1]))
        if known is None:
            return type(error)(error.message, replace(place, file=str(byte_getter)))
        record, byte = int(chunk[2]) + (place.record or 0), int(chunk[3]) + (place.offset or 0)
        return type(error)(error.message, Location(known, record, byte, place.feature or self.column))


@dataclass(frozen=True)
class ImageCodec(_ReadOnlyCodec):
    """Codec from the bytes of an image, one a chunk, to its pixels, as `ImageFeature` decodes them; only for reading.

    Parameters
    ----------
    feature : str
        JSON of a `Schema` with an `ImageFeature` named ``image``.
    """

    feature: str

    _writer = "to_zarr(…, encoded_images=True) writes images"

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> ImageCodec:
        """Read the metadata of an array."""
        return cls(json.dumps(data["configuration"]["feature"], ensure_ascii=False))

    def to_dict(self) -> dict[str, Any]:
        """Return the metadata of an array."""
        return {"name": "dask_tfrecord.image", "configuration": {"feature": json.loads(self.feature)}}

    def _decode_sync(self, chunk_data: Any, chunk_spec: Any) -> Any:
        feature = _decoder(self.feature).schema["image"]
        try:
            pixels = feature.assemble(Decoded.of(BytesBlock.of([chunk_data.to_bytes()])))
        except RowError as error:
            raise FeatureError(f"a chunk {error.message}") from None
        return chunk_spec.prototype.nd_buffer.from_numpy_array(np.asarray(pixels))


def check_images(name: str, feature: Feature, files: Any, first: int) -> None:
    """Raise FeatureError unless image headers, from row `first` on, have the feature's shape."""
    assert isinstance(feature, ImageFeature)
    of_any_shape = replace(feature, shape=None)
    if not of_any_shape.own_shapes:
        # Images that are resized and converted have one shape, whatever they are.
        return
    try:
        sizes = of_any_shape.assemble(Decoded.of(files)._replace(values=False))
    except RowError as error:
        raise FeatureError(f"row {first + error.row} of feature {name!r} {error.message}") from None
    assert isinstance(sizes, ArraysBlock)
    shapes = sizes.shapes
    wrong = np.flatnonzero((shapes != feature.item_shape).any(axis=1))
    if len(wrong):
        shape = tuple(shapes[wrong[0]].tolist())
        raise FeatureError(
            f"row {first + int(wrong[0])} of feature {name!r} holds an image of shape {shape}; expected "
            f"{feature.item_shape}"
        )


@lru_cache(maxsize=64)
def _decoder(feature: str) -> Decoder:
    """Return the decoder of a feature, whose text in UTF-8 is checked but not converted from bytes."""
    decoder = Decoder(Schema.from_json(feature))
    decoder.decoders = {
        name: replace(column, assembler=_text_as_bytes)
        if column.assembler is TextFeature.assemble and getattr(column.parsed, "encoding", "") == "utf-8"
        else column
        for name, column in decoder.decoders.items()
    }
    return decoder


def _text_as_bytes(feature: Any, decoded: Decoded) -> Block:
    return decoded.in_rows(feature, decoded.keys[0].encoded())


def _inflated(shard: Shard) -> Shard:
    """Return a shard in memory whose bytes are decompressed."""
    if shard.compression is None:
        return shard
    with Window(shard) as window:
        while window.ensure(window.end - window.begin + 1):
            pass
        data = window.buffer[window.begin : window.end]
    return replace(shard, size=len(data), compression=None, data=data)


async def _shard_name(store: Any, group: str, number: int) -> str | None:
    """Return the name of a shard from the attributes of a group; None if they can't be read."""
    try:
        found = await store.get(f"{group}/zarr.json".lstrip("/"), zarr.buffer.default_buffer_prototype())
        own = json.loads(found.to_bytes())["attributes"]["dask_tfrecord"]
        return str(json.loads(own)["source"]["files"][number])
    except Exception:
        # Raise the error of the chunk, even if the name of its shard can't be found.
        return None


def _picked_rows(rows: Any, count: int) -> tuple[NDArray[np.int64] | None, Any]:
    """Return the rows to decode for a selection of rows, None for all of them, and the selection among those."""
    if isinstance(rows, slice):
        start, stop, step = rows.indices(count)
        if step < 1 or (start, stop) == (0, count):
            return None, rows
        return np.arange(start, stop), slice(None, None, step)
    index = np.asarray(rows)
    picked = union(index.ravel())
    place = np.searchsorted(picked, index)
    return picked, int(place) if place.ndim == 0 else place


def _record_range(shard: Shard, ends: NDArray[np.int64], picked: NDArray[np.int64] | None) -> RecordRange:
    """Return the run of the records to decode."""
    begins = np.append(0, ends[:-1])[: len(ends)]
    if picked is not None:
        begins, ends = begins[picked], ends[picked]
    first_byte, stop_byte = (int(begins[0]), int(ends[-1])) if len(ends) else (0, 0)
    number = 0 if picked is None or not len(picked) else int(picked[0])
    return RecordRange(
        shard, number, len(ends), number, first_byte, stop_byte, ends_shard=False, selected=picked, spans=(begins, ends)
    )


def _encoded_values(block: Block, part: str) -> NDArray[Any]:
    """Return a part of a column as an array; text as bytes: zarr accepts only its own codec for strings."""
    while part == "values" and isinstance(block, RaggedBlock | ArraysBlock):
        block = block.values
    array = to_array(block)
    if array.dtype.kind == "T":
        texts = np.empty(array.size, object)
        texts[:] = [text.encode() for text in array.ravel().tolist()]
        array = texts.reshape(array.shape)
    return array


# Setting of zarr that allows chunks of one array to differ in length.
UNEQUAL_CHUNKS = "array.rectilinear_chunks"


def takes_unequal_chunks() -> bool:
    """Return whether the chunks of an array may differ in length: with zarr 3.2 and its setting."""
    return hasattr(zarr.Array, "read_chunk_sizes") and bool(zarr.config.get(UNEQUAL_CHUNKS))


def group_objects(
    arguments: Mapping[str, Mapping[str, Any]],
    entries: Mapping[str, NDArray[Any]],
    attributes: Mapping[str, Any],
    *,
    consolidated: bool,
) -> dict[str, bytes]:
    """Return a group's objects by key: array metadata, and chunks where there are entries.

    `arguments` are for `zarr.Group.create_array`, by the name of the array.
    """
    objects: dict[str, Any] = {}
    store = zarr.storage.MemoryStore(objects)
    with warnings.catch_warnings():
        # Variable-length bytes and consolidated metadata lack a final specification.
        warnings.simplefilter("ignore", UserWarning)
        warnings.simplefilter("ignore", FutureWarning)
        group = zarr.create_group(store, attributes=dict(attributes))
        for name, options in arguments.items():
            folder, _, leaf = name.rpartition("/")
            parent = group.require_group(folder) if folder else group
            array = parent.create_array(leaf, **options, config=ARRAY_CONFIG)
            if name in entries:
                array[...] = entries[name]
        if consolidated:
            zarr.consolidate_metadata(store)
    return {key: value.to_bytes() for key, value in objects.items()}


def put_objects(
    store: Any,
    component: str | None,
    objects: Mapping[str, bytes],
    entries: Mapping[str, tuple[NDArray[Any], bool]],
) -> None:
    """Write objects to a group of a store, and append entries to its arrays; to row splits if true."""
    for key, value in objects.items():
        run_sync(store.set(f"{component or ''}/{key}".lstrip("/"), zarr.buffer.cpu.Buffer.from_bytes(value)))
    for name, (more, are_splits) in entries.items():
        array: Any = zarr.open_array(store, mode="r+", path=f"{component or ''}/{name}".lstrip("/"))
        # The first of the splits is the last one that the array has.
        array.append(more[1:] + array[-1] if are_splits else more)


def chunk_lengths(array: Any) -> NDArray[np.int64]:
    """Return the length of each chunk of an array along its first axis."""
    if hasattr(array, "read_chunk_sizes"):
        return np.array(array.read_chunk_sizes[0], np.int64)
    borders = np.append(np.arange(0, array.shape[0], array.chunks[0]), array.shape[0])
    return np.diff(borders)


def group_metadata(objects: Mapping[str, bytes]) -> dict[str, Any]:
    """Return the metadata of the arrays of a group, as zarr holds them, by name."""
    buffers: Any = {key: zarr.buffer.cpu.Buffer.from_bytes(value) for key, value in objects.items()}
    group = zarr.open_group(zarr.storage.MemoryStore(buffers), mode="r")
    return {name: array.metadata for name, array in group.arrays()}
