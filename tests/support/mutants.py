"""Rules of a run that are switched off, one at a time, to see whether an exploration notices."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from dask_tfrecord.shards import objects
from dask_tfrecord.shards.objects import DirectoryObjects
from dask_tfrecord.stores import journal
from dask_tfrecord.stores.zarr import conditional, write
from dask_tfrecord.stores.zarr.run_folder import RunFolder


@dataclass(frozen=True)
class Mutant:
    """A rule that is switched off, and the smallest exploration that notices."""

    rule: str
    write: str
    calls: str
    actions: tuple[str, ...]
    apply: Callable[[pytest.MonkeyPatch], None]
    bound: int = 1
    # Called with the output before the runs.
    prepare: Callable[[Path], None] = lambda folder: None


def publish_first(patch: pytest.MonkeyPatch) -> None:
    """Show the new lengths to readers before the chunks are written."""
    begin = RunFolder.begin

    def begin_and_publish(self: RunFolder, layout: Any, publication: Any) -> None:
        begin(self, layout, publication)
        publication.write(self.objects)

    patch.setattr(RunFolder, "begin", begin_and_publish)


def without_fence(patch: pytest.MonkeyPatch) -> None:
    """Write to the group from anywhere, without a claim."""

    def of(cls: Any, target: Any, token: str, owner: str | None = None) -> RunFolder:
        return RunFolder(target, DirectoryObjects(str(target.directory)), token, owner)

    patch.setattr(RunFolder, "of", classmethod(of))
    patch.setattr(RunFolder, "check_owned", lambda self: None)
    for name in ("check_writing", "check_owner"):
        patch.setattr(journal.Journal, name, lambda self, token: None)


def without_conditions(patch: pytest.MonkeyPatch) -> None:
    """Put objects whatever is there, after the owner was checked."""

    async def unknown(*arguments: Any) -> None:
        return None

    patch.setattr(objects, "_put_if_unchanged", lambda *arguments: None)
    for name in ("create", "replace"):
        patch.setattr(conditional, name, unknown)


def without_confinement(patch: pytest.MonkeyPatch) -> None:
    """Follow links."""
    patch.setattr(objects.os.path, "islink", lambda path: False)


def link_to_somebody_else(folder: Path) -> None:
    """Put a link in the place of the chunks of an array."""
    (folder / "s.zarr/x/c").rename(folder / "s.zarr/x/kept")
    (folder / "s.zarr/x/c").symlink_to("../../../victim")


def forget(patch: pytest.MonkeyPatch) -> None:
    """Record another identity with each addition."""
    numbers = itertools.count()
    patch.setattr(write, "fingerprint_of", lambda addition: f"{next(numbers)}")
    patch.setattr("dask_tfrecord.stores.zarr.additions.fingerprint_of", lambda addition: f"{next(numbers)}")


def keep_failures(patch: pytest.MonkeyPatch) -> None:
    """Leave the old group where a failed run has moved it."""
    patch.setattr(RunFolder, "swap_back", lambda self: None)


MUTANTS = {
    "published last": Mutant("rule 1", "appended rows", "A", ("kill",), publish_first),
    "fenced": Mutant("rule 2", "appended rows", "AB", ("stop",), without_fence),
    "conditions for chunks": Mutant("rule 2", "replaced group in a store", "AB", ("stop",), without_conditions),
    "conditions for files": Mutant("rule 2", "replaced shards in a store", "AB", ("stop",), without_conditions),
    "confined": Mutant("rule 3", "appended rows", "A", (), without_confinement, bound=0, prepare=link_to_somebody_else),
    "again is harmless": Mutant("rule 4", "appended rows", "A", ("kill",), forget),
    "a failure restores": Mutant("rule 5", "replaced group", "A", ("error",), keep_failures),
}
