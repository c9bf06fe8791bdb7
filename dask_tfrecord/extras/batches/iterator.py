"""`Dataset.batches`: an iterator of batches with a state that can be saved, and the threads behind it."""

from __future__ import annotations

import atexit
import copy
import json
import os
import sys
import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, replace
from functools import cached_property
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
from dask.system import CPU_COUNT
from numpy.typing import NDArray

from dask_tfrecord.advice import no_attribute
from dask_tfrecord.errors import (
    ResumeError,
    SchemaError,
    ShardChangedError,
    StorageError,
    plural,
    printable,
    warn_caller,
)
from dask_tfrecord.extras.batches.devices import batch_copier
from dask_tfrecord.extras.batches.mixing import Batch, BatchMixer, Finish, Position, column_paddings
from dask_tfrecord.extras.batches.mixture_order import ChainedReader, Choices, MixedOrder
from dask_tfrecord.extras.batches.row_order import RowOrder, Shuffle
from dask_tfrecord.extras.batches.row_reader import RowReader, chunk_scheduler, images_of
from dask_tfrecord.options import BatchOptions, checked_integer, complete
from dask_tfrecord.rows.chunk_borders import divided
from dask_tfrecord.rows.memory import Workers
from dask_tfrecord.rows.permutation import chosen_seed
from dask_tfrecord.rows.rows import Rows
from dask_tfrecord.stores.units import RowTasks
from dask_tfrecord.stores.zarr.fingerprint import Fingerprint, canonical_source, digest

# Version of the states, and their parts, which the digest of a state protects.
_VERSION = 2
_STATE = ("version", "position", "options", "data")
# Bytes of a unit, of the mixing window, and of the rows of a permutation that are read together, before images are
# decoded.
_UNIT_NBYTES, _WINDOW_NBYTES = 8 << 20, 64 << 20
# Largest factor of units whose records are read several times, and number of units that measure how often.
_MOST_LARGER, _SAMPLED_UNITS = 3, 64
# Of a unit of a mixture, which has rows of all data sets.
_MIXED_UNIT_NBYTES = 32 << 20
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
    "classes": "the code of registered feature classes",
    "chunks": "the chunks of the data set",
}
# Pipelines whose threads may run. A thread keeps its pipeline alive.
_RUNNING: weakref.WeakSet[BatchPipeline] = weakref.WeakSet()
# Set when the interpreter ends: daemon threads that still iterate start no more threads.
_exiting = threading.Event()
# Of both: no pipeline starts while the interpreter lists them.
_starting = threading.Lock()


class BatchPipeline:
    """Batches after a position, made ahead in threads of this process after `start`.

    The threads do not refer to the iterator, so that its collection can stop them.
    """

    def __init__(self, mixer: BatchMixer, position: Position, threads: int, prefetch: int) -> None:
        self._mixer = replace(mixer, scheduler=chunk_scheduler())
        self._process = os.getpid()
        self._results: SimpleQueue[tuple[Finish, Position] | BaseException | None] = SimpleQueue()
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
        with _starting:
            if _exiting.is_set():
                raise RuntimeError("batches start no threads while the interpreter exits")
            _RUNNING.add(self)
            self._thread.start()

    @property
    def is_usable(self) -> bool:
        """Return whether the threads exist: a forked process lacks them."""
        return self._process == os.getpid()

    def next(self) -> tuple[Batch, Position] | None:
        """Return the next batch and the position after it; None after the last one."""
        result = self._results.get()
        self._tokens.put(True)
        if isinstance(result, BaseException):
            raise result
        if result is None:
            return None
        finish, position = result
        try:
            return finish(), position
        except CancelledError:
            # By `close` in another thread.
            if self._stopped:
                return None
            raise

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
            # After the last batch, images are still decoded.
            self._pool.shutdown(wait=False, cancel_futures=self._stopped)
            # Also after `close` in another thread, while a caller waits for a batch.
            self._results.put(None)


@atexit.register
def _end_threads() -> None:
    """End all threads before the interpreter does.

    A daemon thread that returns from native code while the interpreter is finalized aborts the process.
    """
    with _starting:
        _exiting.set()
        running = list(_RUNNING)
    for pipeline in running:
        pipeline.close()


class BatchIterator(Iterator[Batch]):
    """Iterator of batches that `Dataset.batches` returns: dicts of NumPy arrays.

    It is a context manager, which stops its threads at the end. A pickle or a forked process continues at the same
    position with threads of its own. Threads of a process may share the iterator: each batch is returned to one of
    them, and all of them stop after the last one. A new loop after the end reads the next epochs. Once torch is
    imported, it is an `IterableDataset`, whose workers divide the rows.

    Parameters
    ----------
    mixed : sequence of Rows
        Rows and columns; several data sets with the same columns are a mixture.
    batch_size, shuffle, seed, epochs, drop_remainder, pad, window, prefetch, shard, device
        See `Dataset.batches`.
    choices : Choices, optional
        Data set of each row of a mixture.
    """

    def __init__(
        self,
        mixed: Sequence[Rows],
        batch_size: int,
        choices: Choices | None = None,
        **options: Unpack[BatchOptions],
    ) -> None:
        given = complete(BatchOptions, options)
        shuffle, seed, epochs, device = given["shuffle"], given["seed"], given["epochs"], given["device"]
        drop_remainder = given["drop_remainder"]
        self._mixed, self._choices = tuple(mixed), choices
        # A device may also be a `torch.device`, whose text is its name.
        self._device = None if device is None else str(device)
        self._copier = None if self._device is None else batch_copier(self._device)
        self._pipeline: BatchPipeline | None = None
        # Process, and the lock of the threads that share the iterator there: a fork may copy a lock that is held.
        self._turn = os.getpid(), threading.RLock()
        self._closed = 0  # times that a caller closed the iterator
        self._is_over = self._is_part = False
        self._part: BatchIterator | None = None  # of a worker of torch
        _join_torch()
        self._position = Position()
        self._prefetch = checked_integer("prefetch", given["prefetch"], 1)
        self._seed_given = seed is not None
        if not mixed[0].names:
            raise SchemaError("batches need at least one column; the data set has none")
        _check_shuffle(shuffle)
        if not isinstance(drop_remainder, bool):
            raise TypeError(f"drop_remainder must be True or False; got {drop_remainder!r:.100}")
        size = checked_integer("batch_size", batch_size, 1)
        part = _checked_shard(given["shard"])
        if not self._seed_given and shuffle and part[1] > 1:
            raise ValueError("shards of an epoch must share a seed: give seed=")
        if choices is not None and not choices.seed_given and part[1] > 1:
            raise ValueError("shards of a mixture must share its choices: give seed= to sample_from_datasets")
        paddings = column_paddings(given["pad"], mixed[0].schema)
        images = images_of(mixed)
        stored = [rows.encoded(tuple(images)) if images else rows for rows in mixed]
        reader, units = (RowReader(each[0]) if choices is None else ChainedReader(each) for each in (mixed, stored))
        seed = chosen_seed(seed)
        if self._seed_given and "shuffle" not in options:
            warn_caller(f'batches: a seed without shuffle has no effect: write shuffle="full", seed={seed}')
        order = self._choose_order(stored, shuffle, given["window"], seed, part)
        if epochs == -1:
            raise ValueError("epochs must be at least 1; got -1: write epochs=None for epochs without end")
        epochs = None if epochs is None else checked_integer("epochs", epochs, 1)
        self._epochs = epochs or 1
        has_large_units = shuffle == "full" or choices is not None
        self._threads = min(Workers.of_this_process().threads, CPU_COUNT, _MAX_THREADS[has_large_units])
        self._mixer = BatchMixer(
            reader, units, images, order, paddings, size, drop_remainder, epochs, self._threads, scheduler=None
        )
        if drop_remainder and order.nrows and not self._mixer.batches_per_epoch:
            rows = plural(order.nrows // part[1], "row")
            warn_caller(f"batches: drop_remainder leaves no batch of {size:,} rows: there are {rows}")

    def __repr__(self) -> str:
        mixer = self._mixer
        number = mixer.batches_per_epoch
        each = "" if number is None else f", {number:,} in an epoch"
        epochs = "any number of epochs" if mixer.epochs is None else plural(mixer.epochs, "epoch")
        names = printable(", ".join(self._mixed[0].names))
        return f"<BatchIterator: batches of {plural(mixer.batch_size, 'row')}{each}, {epochs}, columns {names}>"

    def _choose_order(
        self, mixed: Sequence[Rows], shuffle: Shuffle, window: int | None, seed: int, shard: tuple[int, int]
    ) -> RowOrder:
        """Divide the rows into units, and choose the window."""
        given = None if window is None else checked_integer("window", window, 1, _MAX_WINDOW)
        if given is not None and not shuffle:
            raise ValueError('window= needs shuffle="window" or shuffle="full"')
        choices, rows = self._choices, mixed[0]
        if rows.nrows is None:
            if shuffle == "full" or shard[1] > 1:
                what = 'shuffle="full"' if shuffle == "full" else "shard="
                raise ValueError(f"{what} needs the number of rows: open with counts='auto', not counts=None")
            chunks = np.arange(rows.nchunks + 1)
            return RowOrder(None, chunks, shuffle, (given or _UNCOUNTED_WINDOW) if shuffle else 1, 1, seed, shard)
        sizes = [_estimated_row_nbytes(each) for each in mixed]
        nbytes = sizes[0] if choices is None else float(np.average(sizes, weights=choices.weights))
        together = given or min(max(int(_WINDOW_NBYTES / nbytes), 2), _MAX_WINDOW)
        mixing = together if shuffle == "window" else 1
        parts = tuple(map(_batch_unit_borders, mixed, sizes))
        if choices is None:
            return RowOrder(rows.nrows, parts[0], shuffle, mixing, together, seed, shard)
        unit_rows = together if shuffle == "full" else max(int(_MIXED_UNIT_NBYTES / nbytes), 1)
        borders = np.concatenate(parts)
        return MixedOrder(choices.nrows, borders, shuffle, mixing, unit_rows, seed, shard, choices, parts)

    @property
    def batches_per_epoch(self) -> int | None:
        """Number of batches of an epoch; None if rows are not counted (``counts=None``)."""
        return self._mixer.batches_per_epoch

    @property
    def epoch(self) -> int:
        """Number of the epoch of the next batch, from 0."""
        return self._position.epoch

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            # A copy asks for attributes before it has any.
            words = {} if name.startswith("_") else {"SIZE": self._mixer.batch_size}
            raise no_attribute("batches", self, name, words)

        def __getitem__(self, key: object) -> Any:
            size = self._mixer.batch_size
            raise TypeError(f"batches can only be read in order: write next(ds.batches({size})) for the first batch")

        def __len__(self) -> int:
            _join_torch()
            size = self._mixer.batch_size
            loader = f", or import torch before DataLoader(ds.batches({size}), batch_size=None)"
            text = f"write ds.batches({size}).batches_per_epoch for the number of batches"
            raise TypeError(text + loader * ("torch" in sys.modules))

        def __bool__(self) -> bool:
            return True

    def __iter__(self) -> BatchIterator:
        """Return this iterator, which continues with more epochs after its end; in a worker of torch, a part of it."""
        torch = sys.modules.get("torch.utils.data")
        worker = None if torch is None or self._is_part else torch.get_worker_info()
        if worker is not None and worker.num_workers > 1:
            # Workers that persist read the next epochs.
            self._part = self._part or self._part_of(worker)
            return iter(self._part)
        epochs = self._mixer.epochs
        if self._is_over and epochs is not None:
            self._is_over, self._mixer = False, replace(self._mixer, epochs=epochs + self._epochs)
        return self

    def _part_of(self, worker: Any) -> BatchIterator:
        """Return an iterator over the rows of a worker: workers divide them, as shards do."""
        order, number = self._mixer.order, worker.num_workers
        if order.nrows is None:
            raise ValueError("workers can divide only counted rows: open with counts='auto', or give num_workers=0")
        if self._position != Position():
            raise ValueError("workers start with the first batch: load the state of a StatefulDataLoader instead")
        # All workers of a loop have this seed, and the workers of the next loop another one.
        seed = order.seed if self._seed_given or not order.shuffle else int(worker.seed - worker.id)
        shard = order.shard[0] * number + worker.id, order.shard[1] * number
        order = replace(order, seed=seed, shard=shard)
        part = copy.copy(self)
        part._is_part = True
        part._mixer = replace(self._mixer, order=order)
        return part

    def __next__(self) -> Batch:
        closed = self._closed
        if self._turn[0] != os.getpid():
            self._turn = os.getpid(), threading.RLock()
        with self._turn[1]:
            if self._closed != closed:
                # Another thread closed the iterator while this one waited for its turn.
                raise StopIteration
            return self._next()

    def _next(self) -> Batch:
        """Return the next batch; start the pipeline when it is needed, and stop it on any error."""
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
            if made is not None and self._device is not None:
                # A copy of this iterator in another process begins without a copier.
                self._copier = self._copier or batch_copier(self._device)
                made = self._copier(made[0]), made[1]
            if made is None and _exiting.is_set():
                raise RuntimeError("batches end because the interpreter is exiting: they are not complete")
        except BaseException:
            # Also KeyboardInterrupt. The next call starts at the same batch.
            self._stop()
            raise
        if made is None:
            # Else another thread closed the iterator.
            self._is_over = self._pipeline is pipeline
            self._stop()
            raise StopIteration
        batch, self._position = made
        return batch

    def close(self) -> None:
        """Stop the threads. The position is kept: the next batch starts them again."""
        self._closed += 1
        self._stop()

    def _stop(self) -> None:
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
            "data": self._data_digests,
        }
        return {**json.loads(json.dumps(parts)), "digest": _digest_of(parts)}

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
        then, now, choices = given["options"], self._options, self._choices
        if not self._seed_given:
            now = {**now, "seed": then["seed"]}
        if choices is not None and not choices.seed_given and then.get("mixture"):
            choices = choices.with_seed(then["mixture"]["seed"])
            now = {**now, "mixture": choices.options}
        changes = [
            f"option {name} was {json.dumps(then.get(name))} and now is {json.dumps(now.get(name))}"
            for name in sorted({*then, *now})
            if then.get(name) != now.get(name)
        ]
        changes += [f"{_PARTS[part]} changed" for part in _PARTS if given["data"].get(part) != self._data_digests[part]]
        if changes:
            raise ResumeError(
                f"cannot resume: {'; '.join(changes)}; start with a new iterator, or restore what changed"
            )
        self.close()
        order = self._mixer.order
        if not self._seed_given and order.shuffle:
            order = replace(order, seed=then["seed"])
        if isinstance(order, MixedOrder) and choices is not None:
            self._choices, order = choices, replace(order, choices=choices, nrows=choices.nrows)
        self._mixer = replace(self._mixer, order=order)
        self._position, self._is_over = Position(**given["position"]), False

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
            "mixture": None if self._choices is None else self._choices.options,
        }

    @cached_property
    def _data_digests(self) -> dict[str, str]:
        """Digests that identify each data set, part by part."""
        attributes_of_sets = []
        for rows in self._mixed:
            attributes = Fingerprint.from_rows(rows, rows.schema, {}).to_attributes()
            # The records that schema inference sampled do not affect the rows.
            attributes["schema"] = {**attributes["schema"], "sampling": None}
            attributes["source"] = canonical_source(attributes["source"])
            attributes_of_sets.append(attributes)
        borders = self._mixer.order.borders.tolist()
        digests = {part: _digest_of([each[part] for each in attributes_of_sets]) for part in _PARTS if part != "chunks"}
        return {**digests, "chunks": _digest_of(borders)}

    def __getstate__(self) -> dict[str, Any]:
        # A copy starts threads of its own.
        return {**self.__dict__, "_pipeline": None, "_finalizer": None, "_copier": None, "_turn": (0, None)}


def _join_torch() -> None:
    """Make batches an IterableDataset of torch, which a DataLoader iterates over, once torch is imported."""
    if (torch := sys.modules.get("torch.utils.data")) is not None:
        torch.IterableDataset.register(BatchIterator)


def _estimated_row_nbytes(rows: Rows) -> float:
    """Estimate the decoded bytes of a row from the first rows."""
    if not rows.nrows:
        return 1.0
    try:
        return max(RowTasks(rows, "batches").row_sizes().read, 1.0)
    except (StorageError, ShardChangedError):
        raise
    except Exception:
        # A record of the first rows is damaged: its batch raises the error.
        return _UNKNOWN_ROW_NBYTES


def _batch_unit_borders(rows: Rows, row_nbytes: float) -> NDArray[np.int64]:
    """Find unit borders: existing chunks, or parts of chunks that are read."""
    borders = rows.borders
    assert borders is not None
    source = rows.counted_source
    # Assigned columns are existing chunks.
    if source is None:
        return borders
    most = max(int(_UNIT_NBYTES / row_nbytes), 1)
    units = _even_units(borders, most)
    # A record of many items is read again for each unit that holds some of them: fewer units read it less often.
    first = units[: _SAMPLED_UNITS + 1]
    each, whole = source.cost(np.stack([first[:-1], first[1:]], axis=1)), source.cost(first[[0, -1]][None])
    if each is None or whole is None or not whole.sum():
        return units
    return _even_units(borders, int(most * np.clip(each.sum() / whole.sum(), 1, _MOST_LARGER)))


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
    if type(digest) is not str or digest != _digest_of(parts):
        raise ValueError(f"{made_by}; this one was changed since: its digest is not {digest!r:.100}")
    return parts


def _digest_of(value: Any) -> str:
    return digest(value)[:16]


def _check_shuffle(shuffle: Any) -> None:
    """Refuse other values of `shuffle`; tf.data takes a number of rows there, and PyTorch True."""
    if shuffle is False or shuffle in ("window", "full"):
        return
    advice = ': write shuffle="full"' if shuffle is True else ""
    if isinstance(shuffle, int) and f"{shuffle}".isdecimal():
        advice = f': write shuffle="window", window={shuffle} to mix rows within windows of this size'
    raise ValueError(f'shuffle must be False, "window" or "full" (any order); got {shuffle!r:.100}{advice}')


def _checked_shard(shard: Any) -> tuple[int, int]:
    """Check the option `shard`."""
    if not isinstance(shard, tuple | list) or len(shard) != 2:
        raise TypeError(f"shard must be a pair (index, number); got {shard!r:.100}")
    number = checked_integer("the number of shards", shard[1], 1)
    return checked_integer("the index of a shard", shard[0], 0, number - 1), number


def _even_units(borders: NDArray[np.int64], rows: int) -> NDArray[np.int64]:
    """Divide chunks evenly into units of at most `rows` rows."""
    return divided(borders, np.maximum(-(-np.diff(borders) // rows), 1))
