"""Settings of the library in the configuration of dask, below the prefix ``tfrecord``.

The defaults are in ``tfrecord.yaml`` next to this module, and ``tfrecord-schema.yaml`` describes them. Importing this
module adds them to `dask.config`, with a lower priority than files, environment variables and `dask.config.set`. Every
module that reads a setting imports this one.
"""

from __future__ import annotations

import math
from functools import reduce
from pathlib import Path
from typing import Any

import dask.config
from dask.utils import parse_bytes, parse_timedelta

__all__ = ["DEFAULTS_FILE", "PREFIX", "full_name", "read_count", "read_nbytes", "read_seconds", "read_setting"]

PREFIX = "tfrecord"
DEFAULTS_FILE = Path(__file__).with_name("tfrecord.yaml")

_defaults = next(iter(dask.config.collect_yaml([str(DEFAULTS_FILE)])))
dask.config.update_defaults(_defaults)


def full_name(name: str) -> str:
    """Return the name of a setting in `dask.config`: ``tfrecord.storage.timeout`` for ``storage.timeout``."""
    return f"{PREFIX}.{name}"


def default(name: str) -> Any:
    """Return the default of a setting."""
    return reduce(lambda section, key: section[key], full_name(name).split("."), _defaults)


def read_setting(name: str) -> Any:
    """Return the value of a setting, such as ``"storage.timeout"``.

    `dask.config.set` removes the whole prefix when it ends, if it began before this module was imported. The defaults
    are therefore used here too.
    """
    return dask.config.get(full_name(name), default(name))


def read_seconds(name: str) -> float:
    """Return a time in seconds.

    Raises
    ------
    ValueError
        If the setting is not a positive, finite time.
    """
    value = read_setting(name)
    try:
        seconds = float(parse_timedelta(value, default="s"))
    except (ValueError, TypeError, KeyError, AttributeError):
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise _wrong(name, f"a time like {default(name)!r}", value)
    return seconds


def read_nbytes(name: str, otherwise: str = "") -> int:
    """Return a number of bytes.

    Parameters
    ----------
    name : str
        Name of the setting.
    otherwise : str, optional
        Further values that the caller accepts, for the error.

    Raises
    ------
    ValueError
        If the setting is not a size of at least one byte.
    """
    value = read_setting(name)
    try:
        nbytes = 0 if isinstance(value, bool) else int(parse_bytes(value))
    except (ValueError, TypeError, AttributeError, OverflowError):
        nbytes = 0
    if nbytes < 1:
        raise _wrong(name, f"a number of bytes such as '8 MiB'{otherwise}", value)
    return nbytes


def read_count(name: str) -> int:
    """Return a positive integer.

    Raises
    ------
    ValueError
        If the setting is not a positive integer.
    """
    value = read_setting(name)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise _wrong(name, "a number, 1 or more", value)
    return value


def _wrong(name: str, expected: str, value: object) -> ValueError:
    return ValueError(f"dask.config {full_name(name)!r} must be {expected}; got {value!r}")
