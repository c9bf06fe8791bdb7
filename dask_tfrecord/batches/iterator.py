"""`Dataset.batches`: an iterator of batches with a state that can be saved, and the threads behind it."""

from __future__ import annotations

import atexit
import hashlib
import json
import os
import secrets
import threading
import weakref
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, replace
from functools import cached_property
from queue import SimpleQueue
from typing import Any

import numpy as np
from dask.system import CPU_COUNT
from numpy.typing import NDArray

from dask_tfrecord.arrays.dataset import Dataset
from dask_tfrecord.batches.mixing import Batch, BatchMixer, Position, RowOrder, Shuffle, column_paddings
from dask_tfrecord.batches.rows import RowReader, chunk_scheduler
from dask_tfrecord.errors import ResumeError, SchemaError, ShardChangedError, StorageError
from dask_tfrecord.runtime.workers import Workers
from dask_tfrecord.stores.units import RowTasks
from dask_tfrecord.stores.zarr.fingerprint import Fingerprint

# Version of the states, and their parts, which the digest of a state protects.
_VERSION = 1
_STATE = ("version", "position", "options", "data")
# Decoded bytes of a unit, of the mixing window, and of the rows of a permutation that are read together.
_UNIT_NBYTES, _WINDOW_NBYTES = 8 << 20, 64 << 20
_UNKNOWN_ROW_NBYTES = float(1 << 16)
# Rows of the mixing window if rows are not counted, so that their size is unknown.
_UNCOUNTED_WINDOW = 1024
_MAX_WINDOW = 1 << 24
# Most threads that read units, without and with the larger units of a permutation: each holds one unit.
_MAX_THREADS = 8, 4
# Description of the parts of a fingerprint.
_PARTS = {
    "source": "the files (their paths, sizes and versions)",
    "schema": "the features of the columns",
    "records": "the number of rows",
    "rows": "the rows that are read, or the way they are read (rows[…], errors=, check_crc=, assigned or kept arrays)",
    "functions": "the functions passed to map_blocks",
    "chunks": "the chunks of the data set",
}
# Pipelines whose threads may run. A thread keeps its pipeline alive.
_RUNNING: weakref.WeakSet[BatchPipeline] = weakref.WeakSet()


class BatchPipeline:
    """Batches after a position, made ahead in threads of this process after `start`.

    The threads hold no reference to the iterator, so that its collection can stop them.
    """

    def __init__(self, mixer: BatchMixer, position: Position, threads: int, prefetch: int) -> None:
        self._mixer = replace(mixer, scheduler=chunk_scheduler())
        self._process = os.getpid()
        self._results: SimpleQueue[tuple[Batch, Position] | BaseException | None] = SimpleQueue()
        # A token for each batch that may be made; False ends the thread. A garbage collection may run `stop` in any
        # thread, also within a lock: `SimpleQueue.put` is reentrant, unlike semaphores and executors.
        self._tokens: SimpleQueue[bool] = SimpleQueue()
        for _ in range(prefetch):
            self._tokens.put(True)
        self._stopped = False
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="tfrecord-batches-read")
        # A daemon, because the interpreter waits for other threads before it calls `_end_threads`.
        self._thread = threading.Thread(target=self._run, args=(position,), name="tfrecord-batches", daemon=True)
        self._running = threading.Event()

    def start(self) -> None:
        """Start the threads."""
        _RUNNING.add(self)
        self._thread.start()

    @property
    def is_usable(self) -> bool:
        """Return whether the threads exist: a forked process has none of them."""
        return self._process == os.getpid()

    def next(self) -> tuple[Batch, Position] | None:
        """Return the next batch and the position after it; None after the last one."""
        result = self._results.get()
        self._tokens.put(True)
        if isinstance(result, BaseException):
            raise result
        return result

    def stop(self) -> None:
        """Stop the threads after their current reads, without waiting."""
        if self.is_usable:
            self._stopped = True
            self._tokens.put(False)

    def close(self) -> None:
        """Stop the threads, and wait for their current reads."""
        if self.is_usable:
            self.stop()
            self._pool.shutdown(wait=False, cancel_futures=True)
            # An interrupted `start` may leave a thread that does not run yet: it will read nothing.
            if self._running.is_set():
                self._thread.join()
            self._pool.shutdown(wait=True)

    def _run(self, position: Position) -> None:
        """Make batches until the pipeline is stopped."""
        self._running.set()
        batches = self._mixer.batches(position, self._pool)
        try:
            while self._tokens.get() and not self._stopped:
                result = next(batches, None)
                if result is None:
                    break
                self._results.put(result)
                # The thread must not keep the batch while it waits.
                del result
        except BaseException as error:
            # Also an error of the executor, if the interpreter exits. `close` cancels reads.
            if not self._stopped:
                self._results.put(error)
        finally:
            with suppress(RuntimeError):
                batches.close()
            self._pool.shutdown(wait=False, cancel_futures=True)
            # Also after `close` in another thread, while a caller waits for a batch.
            self._results.put(None)


@atexit.register
def _end_threads() -> None:
    """End all threads before the interpreter does.

    A daemon thread that returns from native code while the interpreter is finalized aborts the process.
    """
    for pipeline in list(_RUNNING):
        pipeline.close()


class BatchIterator(Iterator[Batch]):
    """Iterator of batches that `Dataset.batches` returns: dicts of NumPy arrays.

    It is a context manager, which stops its threads at the end. A pickle or a forked process continues at the same
    position with threads of its own.

    Parameters
    ----------
    dataset : Dataset
        Rows and columns.
    batch_size, shuffle, seed, epochs, drop_remainder, pad, window, prefetch, shard
        See `Dataset.batches`.
    """

    def __init__(
        self,
        dataset: Dataset,
        batch_size: int,
        *,
        shuffle: Shuffle = False,
        seed: int | None = None,
        epochs: int | None = 1,
        drop_remainder: bool = False,
        pad: Mapping[str, Any] | None = None,
        window: int | None = None,
        prefetch: int = 4,
        shard: tuple[int, int] = (0, 1),
    ) -> None:
        self._dataset = dataset
        self._pipeline: BatchPipeline | None = None
        self._position = Position()
        self._prefetch = _integer("prefetch", prefetch, 1)
        self._seed_given = seed is not None
        if not len(dataset):
            raise SchemaError("batches have at least one column; the data set has none")
        if shuffle is not False and shuffle not in ("window", "full"):
            raise ValueError(f'shuffle is False, "window" or "full"; got {shuffle!r:.100}')
        if not isinstance(drop_remainder, bool):
            raise TypeError(f"drop_remainder is True or False; got {drop_remainder!r:.100}")
        size = _integer("batch_size", batch_size, 1)
        part = _shard(shard)
        if not self._seed_given and shuffle and part[1] > 1:
            raise ValueError("shards of one epoch need the same seed: give seed=")
        paddings = column_paddings(pad, dataset.schema)
        self._reader = RowReader(dataset)
        order = self._order(shuffle, window, _integer("seed", secrets.randbits(63) if seed is None else seed, 0), part)
        number: int | None = None
        if order.span is not None and order.nrows is not None:
            # Shards differ by at most one row. Without remainders all of them have the same number of batches.
            rows = order.nrows // part[1] if drop_remainder else order.span[1] - order.span[0]
            number = rows // size if drop_remainder else -(-rows // size)
        epochs = None if epochs is None else _integer("epochs", epochs, 1)
        self._threads = min(Workers.of_this_process().threads, CPU_COUNT, _MAX_THREADS[shuffle == "full"])
        self._mixer = BatchMixer(
            self._reader, order, paddings, size, drop_remainder, number, epochs, self._threads, scheduler=None
        )

    def _order(self, shuffle: Shuffle, window: int | None, seed: int, shard: tuple[int, int]) -> RowOrder:
        """Divide the rows into units, and choose the window."""
        dataset = self._dataset
        nrows, borders = dataset.nrows, dataset._borders
        given = None if window is None else _integer("window", window, 1, _MAX_WINDOW)
        if given is not None and not shuffle:
            raise ValueError('window= is an option of shuffle="window" and shuffle="full"')
        if nrows is None or borders is None:
            if shuffle == "full" or shard[1] > 1:
                what = 'shuffle="full"' if shuffle == "full" else "shard="
                raise ValueError(f"{what} needs the number of rows: open with counts='auto', not counts=None")
            chunks = np.arange(dataset.npartitions + 1)
            return RowOrder(None, chunks, shuffle, (given or _UNCOUNTED_WINDOW) if shuffle else 1, 1, seed, shard)
        nbytes = self._row_nbytes() if nrows else 1.0
        together = given or min(max(int(_WINDOW_NBYTES / nbytes), 2), _MAX_WINDOW)
        if self._reader.is_lazy:
            borders = _divided(borders, max(int(_UNIT_NBYTES / nbytes), 1))
        return RowOrder(nrows, borders, shuffle, together if shuffle == "window" else 1, together, seed, shard)

    def _row_nbytes(self) -> float:
        """Estimate the decoded bytes of a row from the first rows."""
        try:
            return max(RowTasks(self._dataset, "batches").row_sizes().read, 1.0)
        except (StorageError, ShardChangedError):
            raise
        except Exception:
            # A record of the first rows is damaged: its batch raises the error.
            return _UNKNOWN_ROW_NBYTES

    @property
    def batches_per_epoch(self) -> int | None:
        """Number of batches of an epoch; None if rows are not counted (``counts=None``)."""
        return self._mixer.batches_per_epoch

    @property
    def epoch(self) -> int:
        """Number of the epoch of the next batch, from 0."""
        return self._position.epoch

    def __iter__(self) -> BatchIterator:
        return self

    def __next__(self) -> Batch:
        try:
            # Another thread may close the iterator meanwhile.
            pipeline = self._pipeline
            if pipeline is None or not pipeline.is_usable:
                pipeline = BatchPipeline(self._mixer, self._position, self._threads, self._prefetch)
                self._finalizer = weakref.finalize(self, pipeline.stop)
                # An interrupt while the threads start finds the pipeline here, and stops them.
                self._pipeline = pipeline
                pipeline.start()
            made = pipeline.next()
        except BaseException:
            # Also KeyboardInterrupt. The next call starts at the same batch.
            self.close()
            raise
        if made is None:
            self.close()
            raise StopIteration
        batch, self._position = made
        return batch

    def close(self) -> None:
        """Stop the threads. The position is kept: the next batch starts them again."""
        pipeline, self._pipeline = self._pipeline, None
        if pipeline is not None:
            self._finalizer.detach()
            pipeline.close()

    def __enter__(self) -> BatchIterator:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def state_dict(self) -> dict[str, Any]:
        """Return the position after the last batch that was returned, as JSON values.

        Returns
        -------
        dict
            State for `load_state_dict`. It has the seed, so that an iterator without a seed of its own can continue.
        """
        parts = {
            "version": _VERSION,
            "position": asdict(self._position),
            "options": self._options,
            "data": self._data,
        }
        return {**json.loads(json.dumps(parts)), "digest": _digest(parts)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue at the position of a state.

        Parameters
        ----------
        state : mapping
            Result of `state_dict`, of this process or another one.

        Raises
        ------
        ResumeError
            If the state belongs to other data or other options. `epochs` and `prefetch` may differ.
        ValueError
            If it is not a state of `state_dict`, or was changed since.
        """
        given = _checked_state(state)
        then, now = given["options"], self._options
        if not self._seed_given:
            now = {**now, "seed": then["seed"]}
        found = [
            f"option {name} was {json.dumps(then.get(name))} and now is {json.dumps(now.get(name))}"
            for name in sorted({*then, *now})
            if then.get(name) != now.get(name)
        ]
        found += [f"{_PARTS[part]} changed" for part in _PARTS if given["data"].get(part) != self._data[part]]
        if found:
            raise ResumeError(f"cannot resume: {'; '.join(found)}; start with a new iterator, or restore what changed")
        self.close()
        order = self._mixer.order
        if not self._seed_given and order.shuffle:
            self._mixer = replace(self._mixer, order=replace(order, seed=then["seed"]))
        self._position = Position(**given["position"])

    @property
    def _options(self) -> dict[str, Any]:
        """Options that determine the batches, as JSON values."""
        mixer, order = self._mixer, self._mixer.order
        return {
            "batch_size": mixer.batch_size,
            "shuffle": order.shuffle,
            "seed": order.seed if order.shuffle else None,
            "window": order.window,
            "drop_remainder": mixer.drop_remainder,
            "shard": list(order.shard),
            "pad": {name: repr((pad.lengths, pad.value, pad.truncate)) for name, pad in sorted(mixer.paddings.items())},
        }

    @cached_property
    def _data(self) -> dict[str, str]:
        """Digests of the parts of the fingerprint of the data set."""
        attributes = Fingerprint.from_dataset(self._dataset, self._dataset.schema, {}).to_attributes()
        # The records that schema inference sampled do not affect the rows.
        attributes["schema"] = {**attributes["schema"], "sampling": None}
        attributes["chunks"] = self._mixer.order.borders.tolist()
        return {part: _digest(attributes[part]) for part in _PARTS}

    def __getstate__(self) -> dict[str, Any]:
        # A copy starts threads of its own.
        return {**self.__dict__, "_pipeline": None, "_finalizer": None}


def _checked_state(state: object) -> dict[str, Any]:
    """Return the parts of a state that `state_dict` returned, and nothing has changed since."""
    made_by = "a state of batches is a result of state_dict()"
    if not isinstance(state, Mapping) or not {*_STATE, "digest"} <= {*state}:
        raise ValueError(f"{made_by}; got {state!r:.100}")
    version, digest = state["version"], state["digest"]
    if type(version) is not int or version != _VERSION:
        raise ResumeError(f"cannot resume: the state has version {version!r:.100}; this release reads {_VERSION}")
    try:
        text = json.dumps({name: state[name] for name in _STATE})
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"{made_by}, which holds JSON values; {error}") from error
    # A position that was changed would skip or repeat rows.
    parts: dict[str, Any] = json.loads(text)
    if type(digest) is not str or digest != _digest(parts):
        raise ValueError(f"{made_by}; this one was changed since: its digest is not {digest!r:.100}")
    return parts


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:16]


def _integer(name: str, value: object, least: int, most: int | None = None) -> int:
    """Check an option that is an integer."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise TypeError(f"{name} is an int; got {value!r:.100}")
    if value < least or (most is not None and value > most):
        limit = f"at least {least}" if most is None else f"{least} to {most:,}"
        raise ValueError(f"{name} is {limit}; got {value}")
    return int(value)


def _shard(shard: Any) -> tuple[int, int]:
    """Check the option `shard`."""
    if not isinstance(shard, tuple | list) or len(shard) != 2:
        raise TypeError(f"shard is a pair (index, number); got {shard!r:.100}")
    number = _integer("the number of shards", shard[1], 1)
    return _integer("the index of a shard", shard[0], 0, number - 1), number


def _divided(borders: NDArray[np.int64], rows: int) -> NDArray[np.int64]:
    """Divide chunks evenly into units of at most `rows` rows."""
    counts = np.diff(borders)
    parts = np.maximum(-(-counts // rows), 1)
    first = np.repeat(np.cumsum(parts) - parts, parts)
    part = np.arange(len(first)) - first
    starts = np.repeat(borders[:-1], parts) + part * np.repeat(counts, parts) // np.repeat(parts, parts)
    return np.append(starts, borders[-1])
