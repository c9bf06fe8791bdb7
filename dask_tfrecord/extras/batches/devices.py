"""Batches on a device: numbers as tensors of torch or arrays of CuPy, copied through pinned memory."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dask_tfrecord.advice import advice
from dask_tfrecord.blocks import RaggedBlock
from dask_tfrecord.errors import SchemaError
from dask_tfrecord.extras.batches.mixing import Batch

# Batches whose pinned memory a copy may still read.
_IN_FLIGHT = 2


def batch_copier(device: str) -> Callable[[Batch], Batch]:
    """Return a function that copies the numbers of a batch to a device, by torch if it is installed, else by CuPy.

    The copy runs while the caller goes on: on the current stream of the device, which orders it before its use.
    """
    if known := advice("argument", f"device={device}"):
        raise ValueError(f"batches: no device has the name {device!r}{known}")
    if find_spec("torch") is not None:
        return _TorchCopier(device)
    if device.partition(":")[0] == "cuda" and find_spec("cupy") is not None:
        return _CupyCopier(device)
    needed = "torch or CuPy" if device.partition(":")[0] == "cuda" else "torch"
    raise ImportError(f"batches(device={device!r}) needs {needed}, which is not installed: pip install torch")


class _BatchCopier(ABC):
    def __call__(self, batch: Batch) -> Batch:
        return {name: self._copy_to_device(name, column) for name, column in batch.items()}

    @abstractmethod
    def copy(self, array: NDArray[Any]) -> Any:
        """Return the array on the device, copied through pinned memory."""

    def _copy_to_device(self, name: str, column: Any) -> Any:
        """Copy the numbers of a column to the device; bytes, text and times stay where they are."""
        if isinstance(column, RaggedBlock):
            values = self._copy_to_device(name, column.values)
            return (
                column
                if values is column.values
                else RaggedBlock(values, self._copy_to_device(name, column.row_splits))
            )
        if not isinstance(column, np.ndarray) or column.dtype.kind in "OTmM":
            return column
        try:
            return self.copy(column)
        except TypeError as error:
            raise SchemaError(
                f"batches: column {name!r} of {column.dtype} is no array of the device ({error}): map_blocks casts it"
            ) from error


class _TorchCopier(_BatchCopier):
    """Tensors of torch, which keeps pinned memory until its copy has ended."""

    def __init__(self, device: str) -> None:
        import torch

        self._torch, self._device = torch, torch.device(device)

    def copy(self, array: NDArray[Any]) -> Any:
        """Return a tensor on the device, through pinned memory for CUDA."""
        torch = self._torch
        if array.dtype.name == "bfloat16":
            tensor = torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
        else:
            tensor = torch.from_numpy(array)
        if self._device.type == "cuda":
            return tensor.pin_memory().to(self._device, non_blocking=True)
        return tensor.to(self._device)


class _CupyCopier(_BatchCopier):
    """Arrays of CuPy. The pinned memory of a batch is kept until the device has passed its copies."""

    def __init__(self, device: str) -> None:
        import cupy
        import cupyx

        self._cupy, self._empty_pinned = cupy, cupyx.empty_pinned
        self._device = cupy.cuda.Device(int(device.partition(":")[2] or 0))
        self._pinned: list[Any] = []
        self._in_flight: deque[tuple[Any, list[Any]]] = deque()

    def copy(self, array: NDArray[Any]) -> Any:
        """Copy an array through pinned memory, which is kept until the copy has ended."""
        with self._device:
            moved, pinned = self._cupy.empty(array.shape, array.dtype), self._empty_pinned(array.shape, array.dtype)
            pinned[...] = array
            moved.set(pinned, stream=self._cupy.cuda.get_current_stream())
        self._pinned.append(pinned)
        return moved

    def __call__(self, batch: Batch) -> Batch:
        """Copy a batch, and release the pinned memory of those whose copies have ended."""
        moved = super().__call__(batch)
        with self._device:
            self._in_flight.append((self._cupy.cuda.get_current_stream().record(), self._pinned))
        self._pinned = []
        while len(self._in_flight) > _IN_FLIGHT:
            self._in_flight.popleft()[0].synchronize()
        return moved
