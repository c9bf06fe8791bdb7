"""Check that a path may be written: it is free, or holds only a group that a call replaces."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import zarr
import zarr.errors

from dask_tfrecord.errors import COMPONENT, OVERWRITE, RESUME, Spelled
from dask_tfrecord.identity import is_within
from dask_tfrecord.stores.zarr.run_folder import find_run, refuse_link
from dask_tfrecord.stores.zarr.store import CHECKPOINT_FOLDER, CLAIM, TORN, TargetGroup

# Metadata files: each identifies a directory as an array or a group, and a group has only these files.
_METADATA_FILES = {"zarr.json", ".zgroup", ".zarray", ".zmetadata", ".zattrs"}
_NO_GROUPS = (
    zarr.errors.GroupNotFoundError,
    zarr.errors.ContainsArrayError,
    FileNotFoundError,
    NotADirectoryError,
    # Metadata of other software, or hostile ones.
    *(ValueError, TypeError, KeyError, AttributeError, RecursionError),
)
_NOT_A_GROUP = "exists and is not a Zarr group: " + Spelled(
    "write to another path", "name the new store as the last argument, after the shards"
)


def check_free(target: TargetGroup, mode: Literal["w", "w-"], origin: Mapping[str, Any]) -> Literal["w", "w-"]:
    """Refuse a path that must not be written; return ``"w"`` if it has a group that is replaced, ``"w-"`` otherwise.

    Raises FileExistsError if the group exists under ``"w-"``, or the path holds anything but arrays and groups, which
    would be deleted; ValueError if the group is, or holds, the source of the rows.
    """
    ways = OVERWRITE + " replaces it, " + COMPONENT + " writes a group within it"
    refuse_link(target)
    try:
        zarr.open_group(
            target.store,
            mode="r",
            path=target.component,
            storage_options=target.storage_options,
            use_consolidated=False,
        )
        replaced: Literal["w", "w-"] = "w"
        held: str = "exists: "
        attributes = target.stored_attributes()
        if attributes and not attributes.get("complete"):
            held = "holds an interrupted conversion of an earlier version of dask_tfrecord: "
        found = None if mode == "w-" else find_run(target)
    except _NO_GROUPS as error:
        replaced, found = "w-", find_run(target)
        held = "holds an interrupted conversion: " + RESUME + " continues it, "
        if found is None:
            # A missing path and an empty directory are free.
            directory = target.directory
            if directory is not None and directory.exists() and not _is_empty(directory):
                raise FileExistsError(f"{target} " + _NOT_A_GROUP) from error
            return replaced
    if mode == "w-":
        raise FileExistsError(f"{target} " + held + ways)
    if "store" in origin and is_within(origin["store"], str(target)):
        raise ValueError(f"cannot replace {target}: the rows are read from it; write to another path")
    other = next(_others(target, () if found is None else found[1].arrays), None)
    if other is not None:
        raise FileExistsError(
            f"{target} holds {other.name!r}, which does not belong to a Zarr group and would be deleted"
        )
    for writer in () if found is None else found[0].writers():
        writer.check_free()
    return replaced


def _others(target: TargetGroup, own: Iterable[str]) -> Iterator[Path]:
    """Yield paths in the directory of the group that neither belong to it nor to an interrupted run."""
    known = {*own, *_METADATA_FILES}
    for path in target.directory.iterdir() if target.directory is not None else ():
        is_own = path.name in known or path.name.startswith(CHECKPOINT_FOLDER) or TORN.fullmatch(path.name)
        if not (is_own or any((path / name).is_file() for name in _METADATA_FILES) or _is_without_files(path)):
            yield path


def _is_empty(directory: Path) -> bool:
    """Return True for a directory that holds only claims, folders of runs, and what a run that was killed left."""
    return directory.is_dir() and all(
        path.name == CHECKPOINT_FOLDER or path.name.startswith(CLAIM) or TORN.fullmatch(path.name)
        for path in directory.iterdir()
    )


def _is_without_files(path: Path) -> bool:
    """Return True for a directory that holds only temporary files of zarr, and empty directories."""
    return path.is_dir() and all(TORN.fullmatch(name) for _, _, names in os.walk(path) for name in names)
