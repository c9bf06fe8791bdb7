"""Names of arrays in a Zarr group, flat arrays of ragged features included."""

from __future__ import annotations

import re
from collections.abc import Iterable

from dask_tfrecord.errors import UnknownFeatureError, near_misses
from dask_tfrecord.features.schema import Schema
from dask_tfrecord.stores.units import Levels

# Suffixes of the names of flat arrays.
_SUFFIX = re.compile("values|shapes|item_shapes|byte_splits|row_splits(_[0-9]+)?")
# Characters that Zarr or a file system refuses in a name; the dot separates the name of a column from its suffix.
_FORBIDDEN = frozenset('%.<>:"\\|?*') | {chr(code) for code in range(32)}


def array_name(feature: str) -> str:
    """Return the name of a feature in the group: ``/`` becomes ``.``, other forbidden characters are percent-encoded.

    Names of arrays are unique, suffixes included. The attributes of the group keep the true names.
    """
    if not feature:
        return "%"
    *parents, leaf = feature.split("/")
    # "x/values" must differ from the values of a ragged "x".
    joined = "%2F" if _SUFFIX.fullmatch(leaf) else "."
    head = ".".join(map(_quoted_name, parents))
    name = f"{head}{joined}{_quoted_name(leaf)}" if parents else _quoted_name(leaf)
    if name.startswith("__"):  # reserved by Zarr
        name = "%5F" + name[1:]
    if set(name) == {"."} or name == "zarr.json":
        name = name.replace(".", "%2F")
    return name[:-1] + "%20" if name.endswith(" ") else name


def splits_name(feature: str, schema: Schema) -> str:
    """Name a flat feature's outermost splits: its group's, or its own."""
    return f"{array_name(schema.group_of(feature) or feature)}.row_splits"


def _quoted_name(text: str) -> str:
    return "".join(f"%{ord(char):02X}" if char in _FORBIDDEN else char for char in text)


def array_names(schema: Schema) -> dict[str, str]:
    """Return the feature of each flat array that is not chunked along rows, by the name of the array."""
    found: dict[str, str] = {}
    for name, feature in schema.items():
        splits = Levels.from_feature(feature).splits
        found |= {f"{array_name(name)}.{part}": name for part in (*splits[1:], "values") if splits}
    return found


def check_names(option: str, names: Iterable[str], schema: Schema) -> None:
    """Raise UnknownFeatureError, with similar names, for names that belong neither to a feature nor to a flat array."""
    known = dict.fromkeys([*schema, *array_names(schema)])
    for name in names:
        if name not in known:
            rows = "; write chunks=1000 for the rows of a chunk" if (option, name) == ("chunks", "record") else ""
            near = near_misses(name, known)
            raise UnknownFeatureError(f"{option}: unknown feature or flat array {name!r}{rows or near}")
