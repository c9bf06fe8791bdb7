"""Arrays of a library that, like CuPy, never converts them to NumPy on its own, and its backend of dask."""

from __future__ import annotations

from typing import Any

import numpy as np
from dask.array.backends import array_creation_dispatch
from dask.array.dispatch import concatenate_lookup, to_numpy_dispatch
from dask.backends import DaskBackendEntrypoint
from numpy.lib.mixins import NDArrayOperatorsMixin

entrypoint: Any = type(array_creation_dispatch.dispatch("numpy")).__mro__[1]
assert issubclass(entrypoint, DaskBackendEntrypoint)


class DeviceArray(NDArrayOperatorsMixin):
    """Array "on a device": only `get` copies it to the host."""

    __array_priority__ = 100
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, values: Any) -> None:
        self.values = np.array(_host(values))

    shape = property(lambda self: self.values.shape)
    dtype = property(lambda self: self.values.dtype)
    ndim = property(lambda self: self.values.ndim)
    size = property(lambda self: self.values.size)
    nbytes = property(lambda self: self.values.nbytes)
    itemsize = property(lambda self: self.values.itemsize)

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, key: Any) -> DeviceArray:
        return DeviceArray(self.values[_host(key)])

    def get(self) -> np.ndarray[Any, Any]:
        """Copy the values to the host."""
        return self.values.copy()

    def astype(self, *args: Any, **options: Any) -> DeviceArray:
        """Cast the values."""
        return DeviceArray(self.values.astype(*args, **options))

    def reshape(self, *args: Any, **options: Any) -> DeviceArray:
        """Reshape the values."""
        return DeviceArray(self.values.reshape(*args, **options))

    def sum(self, *args: Any, **options: Any) -> DeviceArray:
        """Add the values up."""
        return DeviceArray(self.values.sum(*args, **options))

    def __array__(self, *args: Any, **options: Any) -> Any:
        raise TypeError("Implicit conversion to a NumPy array is not allowed. Please use `.get()`")

    def __array_ufunc__(self, function: Any, method: str, *inputs: Any, **options: Any) -> DeviceArray:
        if "out" in options:
            options["out"] = tuple(map(_host, options["out"]))
        return DeviceArray(getattr(function, method)(*map(_host, inputs), **options))

    def __array_function__(self, function: Any, types: Any, args: Any, options: Any) -> Any:
        made = function(*_host(args), **{name: _host(value) for name, value in options.items()})
        return DeviceArray(made) if isinstance(made, np.ndarray | np.generic) else made


def _host(value: Any) -> Any:
    if isinstance(value, DeviceArray):
        return value.values
    return type(value)(map(_host, value)) if isinstance(value, tuple | list) else value


def to_device(array: Any, **_: Any) -> Any:
    """Copy an array of NumPy to the device."""
    return array if isinstance(array, DeviceArray) else DeviceArray(array)


class _Backend(entrypoint):  # type: ignore[misc]
    @classmethod
    def to_backend_dispatch(cls) -> Any:
        return to_device

    @classmethod
    def to_backend(cls, data: Any, **options: Any) -> Any:
        return data.map_blocks(to_device, dtype=data.dtype, meta=DeviceArray(np.empty((0,) * data.ndim, data.dtype)))


array_creation_dispatch.register_backend("device", _Backend())
to_numpy_dispatch.register(DeviceArray, lambda array, **_: array.get())
concatenate_lookup.register(DeviceArray, lambda arrays, axis=0: DeviceArray(np.concatenate(_host(arrays), axis)))


class Sparse:
    """Sparse array, as in the package `sparse`."""

    def __init__(self, values: Any) -> None:
        self.values = np.asarray(values)

    shape = property(lambda self: self.values.shape)
    dtype = property(lambda self: self.values.dtype)
    ndim = property(lambda self: self.values.ndim)
    size = property(lambda self: self.values.size)

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, key: Any) -> Sparse:
        return Sparse(self.values[key])

    def astype(self, dtype: Any, **options: Any) -> Sparse:
        """Cast the values."""
        return Sparse(self.values.astype(dtype))

    def __array__(self, *args: Any, **options: Any) -> Any:
        raise RuntimeError("Cannot convert a sparse array to dense automatically")

    def __array_function__(self, function: Any, types: Any, args: Any, options: Any) -> Any:
        return NotImplemented

    def todense(self) -> np.ndarray[Any, Any]:
        """Return all values."""
        return self.values
