"""Random orders of rows, which are functions of a seed."""

from __future__ import annotations

import secrets
import threading
from typing import Any, SupportsIndex
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from dask_tfrecord.options import checked_integer

# Streams of random bits of a seed: two of an epoch, and the choices of a mixture.
ORDER, DISTANCES, CHOICES = 0, 1, 2


def chosen_seed(seed: int | None) -> int:
    """Check the seed of a user; without one, draw one that no other run has."""
    return secrets.randbits(63) if seed is None else checked_integer("seed", seed, 0)


def random_bits(*entropy: int) -> np.random.PCG64:
    """Return a stream of random bits."""
    # NumPy guarantees the stream of a bit generator, but not the results of `Generator`.
    return np.random.PCG64(np.random.SeedSequence(entropy))


def permutation(count: int, seed: int, epoch: int, *part: int) -> NDArray[np.integer]:
    """Return a random permutation of ``range(count)``, the same with every release of NumPy.

    `part` is the number of a data set of a mixture.

    It sorts random bits. Their lowest bits are the numbers, so equal random bits cannot make the result depend on the
    method of sorting.
    """
    shift = np.uint64(max(count - 1, 1).bit_length())
    keys = np.asarray(random_bits(seed, epoch, ORDER, *part).random_raw(count), np.uint64)
    keys <<= shift
    keys |= np.arange(count, dtype=np.uint64)
    keys.sort()
    keys &= (np.uint64(1) << shift) - np.uint64(1)
    return keys.astype(np.uint32 if count <= 1 << 32 else np.int64)


class Permutation(np.ndarray[tuple[int], np.dtype[np.int64]]):
    """All row numbers in random order, which are sent to another process as a seed, and computed again there."""

    # None for arrays derived by NumPy, like a part of a permutation.
    seed: int | None = None

    def __reduce_ex__(self, protocol: SupportsIndex) -> str | tuple[Any, ...]:
        """Pickle the seed instead of 8 bytes per row."""
        if self.seed is None:
            return np.asarray(self).__reduce_ex__(protocol)
        return shuffled, (len(self), self.seed)


# One of several threads that derive the same order at once keeps it for all.
_held: WeakValueDictionary[tuple[int, int], Permutation] = WeakValueDictionary()
_held_lock = threading.Lock()


def shuffled(count: int, seed: int) -> Permutation:
    """Return the order of the first epoch of batches; equal ones share memory as long as one is in use."""
    if (order := _held.get((count, seed))) is None:
        order = permutation(count, seed, 0).astype(np.int64).view(Permutation)
        order.flags.writeable = False
        order.seed = seed
        with _held_lock:
            order = _held.setdefault((count, seed), order)
    return order
