"""Private API and process-wide settings of zarr and fsspec, each with its reason and the upstream issue."""

from __future__ import annotations

import asyncio
import json
import selectors
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any, TypeVar, TypeVarTuple

import crc32c
import numpy as np
import zarr
import zarr.abc.store
import zarr.api.asynchronous
import zarr.buffer
import zarr.core.codec_pipeline
import zarr.storage
from numpy.typing import NDArray
from zarr.core.array_spec import ArraySpec, parse_array_config
from zarr.core.sync import sync
from zarr.storage._common import make_store_path

from dask_tfrecord.errors import hide_credentials

Arguments = TypeVarTuple("Arguments")
Result = TypeVar("Result")

# zarr omits chunks that hold only the fill value otherwise, and complex chunks of negative zeros with them.
ARRAY_CONFIG: Any = {"write_empty_chunks": True}
# Arguments that do not affect whether zarr creates an array.
_DESCRIPTIVE = ("dimension_names", "attributes")


async def s3_children(fs: Any, path: str) -> list[str]:
    """List a folder in one request. The `ls` of s3fs also lists the folder above one that does not exist.

    See ``S3FileSystem._ls`` in https://github.com/fsspec/s3fs/blob/main/s3fs/core.py
    """
    return [info["name"] for info in await fs._lsdir(path, refresh=True)]


def run_sync(call: Coroutine[Any, Any, Result]) -> Result:
    """Await a call of a store in zarr's event loop; remove credentials from its errors.

    Stores have only asynchronous methods: https://github.com/zarr-developers/zarr-python/issues/3637
    """
    return hide_credentials(lambda: sync(call))


def store_and_path(store: Any, path: str, storage_options: dict[str, Any] | None) -> tuple[zarr.abc.store.Store, str]:
    """Open the store of a path or URL whose group may not exist; return it with the path of the group.

    The public functions of zarr open a store only with a group or an array:
    https://github.com/zarr-developers/zarr-python/issues/2905
    """
    if isinstance(store, zarr.abc.store.Store):
        return store, path
    found = run_sync(make_store_path(store, path=path, mode="a", storage_options=storage_options))
    return found.store, found.path


def chunk_key(array: Any, index: int) -> str:
    """Return the key of a chunk or shard within its array, by the index along the first axis.

    zarr lacks a public function for it: https://github.com/zarr-developers/zarr-python/issues/4268
    """
    return str(array.metadata.encode_chunk_key((index, *((0,) * (array.ndim - 1)))))


def encode_chunk(array: Any, entries: NDArray[Any]) -> bytes | memoryview:
    """Encode the entries of a whole chunk or shard by the codecs of zarr, in the calling thread.

    `zarr.Array.__setitem__` selects, reads and merges first, which takes longer than encoding a small chunk. No public
    function only encodes: https://github.com/zarr-developers/zarr-python/issues/4243. It also omits chunks of the fill
    value in arrays that exist: https://github.com/zarr-developers/zarr-python/issues/2931.
    """
    metadata, prototype = array.metadata, zarr.buffer.default_buffer_prototype()
    shape = array.shards or array.chunks
    if entries.dtype == object and array.dtype != object:
        return _chunks_as_stored(entries.tolist(), array.shards and shape[0])
    if len(entries) < shape[0]:
        whole = np.full(shape, metadata.fill_value, entries.dtype)
        whole[: len(entries)] = entries
        entries = whole
    spec = ArraySpec(shape, metadata.dtype, metadata.fill_value, parse_array_config(ARRAY_CONFIG), prototype)
    value = prototype.nd_buffer.from_numpy_array(entries)
    # Other pipelines may omit chunks of the fill value whatever the array is configured to, and with them negative
    # zeros.
    pipeline = zarr.core.codec_pipeline.BatchedCodecPipeline.from_codecs(metadata.codecs)
    with nullcontext() if array.shards is None else _one_chunk_after_the_other(), calling_thread_loop() as loop:
        (encoded,) = loop.run_until_complete(pipeline.encode([(value, spec)]))
    return encoded.as_buffer_like()  # type: ignore[union-attr,return-value]


def _chunks_as_stored(chunks: list[bytes], count: int | None) -> bytes:
    """Return an encoded chunk, or a shard of `count` of them: the chunks, then their offsets and sizes with a CRC.

    zarr encodes chunks only from their values. Format:
    https://zarr-specs.readthedocs.io/en/latest/v3/codecs/sharding-indexed/index.html
    """
    if count is None:
        return chunks[0]
    # A chunk that a shard lacks has the largest offset and size.
    index = np.full((count, 2), np.iinfo(np.uint64).max, "<u8")
    sizes = np.array([*map(len, chunks)], np.uint64)
    index[: len(chunks), 0] = np.cumsum(sizes) - sizes
    index[: len(chunks), 1] = sizes
    crc = crc32c.crc32c(index.tobytes())
    return b"".join([*chunks, index.tobytes(), crc.to_bytes(4, "little")])


def encoded_chunks(shard: bytes, count: int) -> list[bytes]:
    """Return the encoded chunks of a shard that `_chunks_as_stored` made; empty bytes for one that it lacks."""
    index = np.frombuffer(shard, "<u8", 2 * count, len(shard) - 16 * count - 4).reshape(count, 2)
    return [b"" if nbytes == np.iinfo(np.uint64).max else shard[at : at + nbytes] for at, nbytes in index.tolist()]


def metadata_document(metadata: Any) -> dict[str, Any]:
    """Return the JSON of the metadata of an array, as zarr stores it."""
    found = metadata.to_buffer_dict(zarr.buffer.default_buffer_prototype())["zarr.json"]
    return dict(json.loads(found.to_bytes()))


def constant_array(
    name: str, dimensions: Sequence[str], values: NDArray[Any], attributes: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Return the metadata of an array of one chunk, as JSON values, and its objects by their keys in the group."""
    stored: dict[str, Any] = {}
    store = zarr.storage.MemoryStore(stored)
    data = values.astype(np.dtypes.StringDType()) if values.dtype.kind in "OU" else values
    with calling_thread_loop() as loop:
        array = loop.run_until_complete(
            zarr.api.asynchronous.create_array(
                store,
                name=name,
                data=data,
                chunks=tuple(max(1, size) for size in data.shape),
                dimension_names=dimensions,
                attributes=dict(attributes),
            )
        )
    chunks = {key: value.to_bytes() for key, value in stored.items() if not key.endswith("zarr.json")}
    return metadata_document(array.metadata), chunks


def array_of_document(store: zarr.abc.store.Store, path: str, document: Mapping[str, Any]) -> zarr.Array[Any]:
    """Return an array whose metadata are not stored."""
    return zarr.Array(zarr.AsyncArray(dict(document), zarr.storage.StorePath(store, path)))  # type: ignore[call-overload]


# Settings of zarr while it encodes a shard.
_SEQUENTIAL: dict[str, Any] = {
    "async.concurrency": 1,
    "codec_pipeline.path": "zarr.core.codec_pipeline.BatchedCodecPipeline",
}
# Shards that are encoded now, and the settings before the first of them.
_encoding = 0
_before: dict[str, Any] = {}
_settings_lock = threading.Lock()


@contextmanager
def _one_chunk_after_the_other() -> Iterator[None]:
    """Make zarr encode the chunks of a shard one after the other, by its own pipeline.

    By default zarr holds up to ten encoded chunks in memory at once:
    https://github.com/zarr-developers/zarr-python/issues/2904. The settings hold for the process: the first shard
    changes them, and the last one restores them. Shards of the common codecs are encoded without zarr (`chunks`).
    """
    global _encoding
    with _settings_lock:
        if not _encoding:
            _before.update((name, zarr.config.get(name)) for name in _SEQUENTIAL)
            zarr.config.set(_SEQUENTIAL)
        _encoding += 1
    try:
        yield
    finally:
        with _settings_lock:
            _encoding -= 1
            if not _encoding:
                # Keep a setting that the user changed meanwhile.
                ours = (name for name, value in _SEQUENTIAL.items() if zarr.config.get(name) == value)
                zarr.config.set({name: _before[name] for name in ours})


class _EagerSelector(selectors.DefaultSelector):
    """Selector that polls the system only if the loop is idle: each poll releases the GIL."""

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Return ready events; none if the loop has other work."""
        return [] if timeout == 0 else super().select(timeout)


class _CallingThreadLoop(asyncio.SelectorEventLoop):
    """Event loop that runs work for executors in its own thread."""

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[*Arguments], Result], *args: *Arguments
    ) -> asyncio.Future[Result]:
        """Run the function now and return a finished future."""
        future: asyncio.Future[Result] = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:
            future.set_exception(error)
        return future


@contextmanager
def calling_thread_loop() -> Iterator[asyncio.AbstractEventLoop]:
    """Return an event loop that runs zarr entirely in the calling thread.

    zarr moves each chunk to another thread and back, which takes longer than writing a small chunk:
    https://github.com/zarr-developers/zarr-python/issues/4293
    """
    loop = _CallingThreadLoop(_EagerSelector())
    loop.set_debug(False)  # debug mode warns of each long step
    try:
        yield loop
    finally:
        loop.close()


def array_metadata(arguments: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Make the metadata of arrays in memory from arguments of `zarr.Group.create_array`, by name.

    zarr refuses arrays that it cannot create before anything is written or replaced: the ValueError has the error of
    zarr as its cause.
    """
    # Columns are often many of one kind, and each array takes a millisecond.
    kinds: dict[str, Any] = {}
    found = {}
    store, create = zarr.storage.MemoryStore(), zarr.api.asynchronous.create_array
    with calling_thread_loop() as loop:
        for name, options in arguments.items():
            kind = repr([options[option] for option in options if option not in _DESCRIPTIVE])
            if kind not in kinds:
                try:
                    kinds[kind] = loop.run_until_complete(create(store, name=name, **options)).metadata
                except MemoryError:
                    raise
                except Exception as error:
                    codecs = ", ".join(f"{option}={options[option]!r}" for option in ("compressors", "filters"))
                    raise ValueError(
                        f"zarr cannot create array {name!r} of {options['dtype']} with {codecs}: "
                        f"{str(error).rstrip('.')}. Codecs are objects of zarr.codecs, for example "
                        f"zarr.codecs.ZstdCodec(level=3), or their JSON values"
                    ) from error
            found[name] = replace(kinds[kind], **{option: options[option] for option in _DESCRIPTIVE})
    return found
