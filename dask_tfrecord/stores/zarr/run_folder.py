"""Folder of a run in a Zarr group: its plan, the units that its tasks have written, and a group that waits.

In a directory, the folder is also the fence of the run. Everything that the run writes to the group is renamed from its
folder, and what it removes is renamed into it. A run that takes over renames this folder into its own one before it
does anything else. So a run that was stopped for long, and goes on, finds its folder gone: it changes nothing.

Elsewhere nothing can be renamed. There the folder keeps its name when another run takes over, and the run of the group
is checked before an object is replaced: `dask_tfrecord.stores.zarr.conditional`.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from dask_tfrecord.errors import OVERWRITE, IncompleteStoreError, StoreInUseError
from dask_tfrecord.shards.objects import DirectoryObjects, StoredFile, make_directory
from dask_tfrecord.stores.documents import Count, ObjectName, checked, parse
from dask_tfrecord.stores.journal import Journal, OwnerCheck, Unit, Units, part_writers
from dask_tfrecord.stores.output import WriteReport
from dask_tfrecord.stores.units import BorderCounts
from dask_tfrecord.stores.zarr.chunk_grid import RowGrid
from dask_tfrecord.stores.zarr.layout import ArraySpec, ZarrLayout
from dask_tfrecord.stores.zarr.publication import Publication
from dask_tfrecord.stores.zarr.store import (
    CHECKPOINT_FOLDER,
    CLAIM,
    GROUP_METADATA,
    GroupObjects,
    StoreObjects,
    TargetGroup,
)

# Folder for a job's plan within the run folder, and for the programs that write its parts.
PARTS = "parts"
_PLAN, _BORDER_COUNTS, _UNITS, _SWAP, _CLEARED = "plan.json", "tally.npz", "units", "swap.json", "cleared"
# Record of the first versions that added to a group, until it ended.
EARLIER_ADDITION = f"{CHECKPOINT_FOLDER}/append.json"
_FOLDER = re.compile("[0-9a-f]{32}")
# Names that the run keeps in its folder, apart from temporary files.
_RUN, _NEW, _OLD = "run", "new", "old"


@dataclass(frozen=True, slots=True)
class UnitsReport(WriteReport):
    """Report of units: their number, and the size of each object."""

    units: int = 0
    objects: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _StoredPlan:
    """Content of the object of a plan, without its counts."""

    publication: Publication
    records: Count
    first_row: Count
    grid: RowGrid
    arrays: tuple[ArraySpec, ...]
    # Features whose columns are flat, in the order of their counts.
    flat: list[str]


@dataclass(frozen=True, slots=True)
class _Swap:
    """Names of the old group and of the new one that takes its place."""

    old: list[ObjectName]
    new: list[ObjectName]


@dataclass(frozen=True, slots=True)
class RunFolder:
    """Folder of a run, and the objects of its group as far as the run may change them."""

    target: TargetGroup
    objects: GroupObjects
    token: str
    # Token of the run's claim; None for a part of a job.
    owner: str | None = None

    @classmethod
    def of(cls, target: TargetGroup, token: str, owner: str | None = None) -> RunFolder:
        """Return the folder of that name, for a run that owns the group by the token `owner`, or for one without."""
        if target.directory is None:
            objects = target.objects()
            assert isinstance(objects, StoreObjects)
            guard = cls(target, objects, token, owner).check_changing
            return cls(target, replace(objects, guard=guard), token, owner)
        root = str(target.directory)
        return cls(target, DirectoryObjects(root, own=f"{root}/{CHECKPOINT_FOLDER}/{token}"), token, owner)

    @classmethod
    def make(cls, target: TargetGroup, token: str, owner: str) -> RunFolder:
        """Make the folder of a run that has recorded itself as the owner of the group, by the token `owner`.

        Raises StoreInUseError if another run has taken over meanwhile: it removes only folders that it finds.
        """
        folder = cls.of(target, token, owner)
        if target.directory is None:
            # A folder always has a plan, and after that the owner is checked.
            return folder
        refuse_link(target)
        make_directory(target.directory / CHECKPOINT_FOLDER)
        Path(target.directory, CHECKPOINT_FOLDER, token).mkdir()
        try:
            folder.check_owned()
        except StoreInUseError:
            folder.close()
            raise
        return folder

    def check_owned(self) -> None:
        """Raise StoreInUseError unless the run owns the group."""
        if not self._is_owned():
            raise StoreInUseError(
                "another run has taken over this group while this one did not respond. This one writes nothing more",
                self.target.location,
            )

    def check_changing(self) -> None:
        """Raise unless the run owns the group, or no other run does and its plan is still there.

        It runs before each object is replaced or removed.
        """
        if not self._is_owned() and not self.has_plan():
            raise self.lost()

    def _is_owned(self) -> bool:
        """Return whether the run owns the group; raise StoreInUseError if another one does instead."""
        journal = self.target.journal()
        found = journal.owner()
        if found is not None and found.token == self.owner:
            return True
        if self.owner is not None:
            journal.check_owner(self.owner)
        return False

    def take_over(self) -> tuple[RunFolder, Publication] | None:
        """Take over the folders of dead runs; return one whose plan is not published, and what it would publish.

        The arrays that it has moved are where its tasks have written them.
        """
        found = self._take()
        publication = None if found is None else found.publication()
        if found is None or publication is None:
            return None
        if publication.is_published(self.target.stored_attributes()):
            # The run was killed after that.
            found.close()
            if found is self and self.owner is not None:
                RunFolder.make(self.target, self.token, self.owner)
            return None
        found.swap_back()
        return found, publication

    def _take(self) -> RunFolder | None:
        found = None
        for other in other_folders(self.target, self.token):
            if isinstance(self.objects, StoreObjects):
                folder = RunFolder.of(self.target, other, self.owner)
                if folder.has_plan():
                    found = folder
                else:
                    folder.close()
                continue
            away = f"{CHECKPOINT_FOLDER}/{self.token}"
            self.objects.move(f"{CHECKPOINT_FOLDER}/{other}", f"{away}/{other}")
            run = f"{away}/{other}/{_RUN}"
            if found is None and self.objects.get([f"{run}/{_PLAN}"])[f"{run}/{_PLAN}"] is not None:
                self.objects.move(run, f"{away}/{_RUN}")
                found = self
            self.objects.remove(f"{away}/{other}")
        return found

    def path(self, name: str) -> str:
        """Return the name of an object of the folder."""
        return f"{CHECKPOINT_FOLDER}/{self.token}/{_RUN}/{name}"

    # -- the plan

    def begin(self, layout: ZarrLayout, publication: Publication) -> None:
        """Write the plan; from now on the run can be resumed."""
        self.write_counts(_BORDER_COUNTS, layout.border_counts)
        flat = list(layout.border_counts.items)
        plan = _StoredPlan(publication, layout.nrows, layout.first_row, layout.grid, layout.arrays, flat)
        self.objects.put(self.path(_PLAN), json.dumps(asdict(plan), ensure_ascii=False).encode())
        try:
            # A run that takes over removes the plans that it finds, and this one may be written after that.
            self.check_owned()
        except StoreInUseError:
            self.target.objects().remove(f"{CHECKPOINT_FOLDER}/{self.token}")
            raise
        # Tasks of this process need not ask at once.
        _asked[self.token] = OwnerCheck()

    def write_counts(self, name: str, counts: BorderCounts) -> None:
        """Write the counts in a layout, or a part of them."""
        buffer = io.BytesIO()
        arrays: dict[str, Any] = {f"items_{number}": items for number, items in enumerate(counts.items.values())}
        np.savez(buffer, rows=counts.rows, sizes=counts.sizes, **arrays)
        self.objects.put(self.path(name), buffer.getvalue())

    def has_plan(self) -> bool:
        """Return True if the run has a plan: until it is published, discarded, or taken over."""
        return self.plan_and_sizes(())[0]

    def plan_and_sizes(self, names: Iterable[str]) -> tuple[bool, Mapping[str, int | None]]:
        """Return whether the run has a plan, and the sizes of objects, asked for at once."""
        plan = self.path(_PLAN)
        found = self.objects.sizes([plan, *names])
        return found[plan] is not None, found

    def publication(self) -> Publication | None:
        """Read what the run will publish; None without a plan."""
        stored = self._plan()
        if stored is None:
            return None
        return replace(stored.publication, staging=self.staging if stored.publication.staging else "")

    @property
    def is_in_directory(self) -> bool:
        """True if reading an object's version is free of requests."""
        return isinstance(self.objects, DirectoryObjects)

    def may_write(self, publication: Publication) -> bool:
        """Return False if the run is published already; raise if another run has taken over."""
        if not self.is_in_directory:
            # A check is a request, for all tasks of this process. A put over an object is checked by its own version.
            if len(_asked) > _MOST_ASKED:
                _asked.clear()
            if not _asked.setdefault(self.token, OwnerCheck(0.0)).is_due():
                return True
        has_plan = False
        try:
            if self.owner is not None:
                self.target.journal().check_owner(self.owner)
            has_plan = self.has_plan()
        finally:
            if not has_plan:
                # The next task asks again.
                _asked.pop(self.token, None)
        if has_plan:
            return True
        if publication.is_published(self.target.stored_attributes()):
            return False
        raise self.lost()

    def lost(self) -> IncompleteStoreError:
        """Return the error of a run whose plan another one has removed."""
        return IncompleteStoreError(
            "another conversion has replaced this group: call to_zarr again", self.target.location
        )

    def layout(self, counts: str = _BORDER_COUNTS) -> ZarrLayout | None:
        """Read the layout, with all counts or with the counts of a name; None without them."""
        stored, path = self._plan(), self.path(counts)
        counted = self.objects.get([path])[path]
        if stored is None or counted is None:
            return None
        try:
            with np.load(io.BytesIO(counted), allow_pickle=False) as arrays:
                items = {name: arrays[f"items_{number}"] for number, name in enumerate(stored.flat)}
                border_counts = BorderCounts(arrays["rows"], items, arrays["sizes"])
            for spec in stored.arrays:
                _ = spec.memory_dtype
        except (ValueError, TypeError, KeyError, AttributeError, EOFError, OSError, MemoryError, BadZipFile) as error:
            raise IncompleteStoreError(
                f"{path} can't be read ({error}): " + OVERWRITE + " starts over", self.target.location
            ) from error
        return ZarrLayout(stored.records, stored.grid, stored.arrays, border_counts, stored.first_row)

    def _plan(self) -> _StoredPlan | None:
        path = self.path(_PLAN)
        found = self.objects.get([path])[path]
        return None if found is None else parse(_StoredPlan, found, path, self.target.location)

    # -- units

    def has_units(self) -> bool:
        """Return True if a unit was recorded, whether or not its objects still match."""
        return bool(self.objects.names(self.path(_UNITS)))

    def record_of(self, units: Mapping[int, tuple[WriteReport, Mapping[str, int]]]) -> dict[str, bytes]:
        """Return the object that records units as written, by its name: their reports, and sizes of their objects."""
        documents = {}
        for number, (report, objects) in units.items():
            own = {name: StoredFile(size) for name, size in objects.items()}
            documents[str(number)] = Unit({name: getattr(report, name) for name in WriteReport.__slots__}, own)
        return self._units.object_of(str(min(units)), documents)

    def recorded(self, numbers: Iterable[int]) -> dict[int, UnitsReport]:
        """Return the reports of units of one task that are recorded."""
        # A record is named by one of its units, and holds units of one task only.
        names = {str(number) for number in numbers}
        records = self._units.read(names).values()
        return {
            int(name): _report_of(unit) for record in records for name, unit in (record or {}).items() if name in names
        }

    def numbers(self, within: Sequence[tuple[int, int]]) -> NDArray[np.int64]:
        """Return the numbers of the units that are recorded in some ranges, ascending; others may be among them."""
        # A record is named by one of its units. Reading all of them takes a second for every 20,000.
        names = self._record_names()
        found = np.array([int(name) for name in names if name.isdecimal()], np.int64)
        inside = np.searchsorted(np.array(sorted(within)).ravel(), found, side="right") % 2 == 1
        records = self._units.read(map(str, found[inside].tolist()))
        return np.array(sorted(int(name) for units in records.values() for name in units or ()), np.int64)

    def verified(self, staging: str) -> dict[int, UnitsReport]:
        """Return the reports of units whose objects match their record; delete records that do not match."""
        records = self._units.read(self._record_names())
        sizes = {
            record: {
                staging + name: file.size for unit in (units or {}).values() for name, file in unit.objects.items()
            }
            for record, units in records.items()
        }
        found = self.objects.sizes({name for own in sizes.values() for name in own})
        reports, invalid = {}, []
        for record, units in records.items():
            if units is None or any(found[name] != size for name, size in sizes[record].items()):
                invalid.append(record)
            else:
                reports.update({int(name): _report_of(unit) for name, unit in units.items()})
        self._units.drop(invalid)
        return reports

    def _record_names(self) -> list[str]:
        """List the names of the records of units."""
        return [path.rpartition("/")[2].removesuffix(".json") for path in self.objects.names(self.path(_UNITS))]

    @property
    def _units(self) -> Units:
        return Units(self.objects, self.path(f"{_UNITS}/"))

    # -- publication

    @property
    def staging(self) -> str:
        """Folder of a group that will replace another one, with a slash."""
        return self.path(f"{_NEW}/")

    def publish(self, publication: Publication) -> None:
        """Show the run to readers, and delete its folder."""
        if not publication.is_published(self.target.stored_attributes()):
            if publication.kind == "group":
                self.target.create_parents()
            if self._swap() is None:
                publication.write(self.objects)
                if publication.staging:
                    self._begin_swap(publication)
            if publication.staging:
                try:
                    self._swap_in()
                except Exception:
                    # A run that is kept, to be continued, must not keep readers from the old group.
                    with suppress(Exception):
                        self.swap_back()
                    raise
        # Readers find all of it. What is left of the folder is removed by the next run. In a store no check is needed
        # before: no run continues the folder of a published one.
        objects = self.objects if self.is_in_directory else self.target.objects()
        with suppress(IncompleteStoreError, StoreInUseError, OSError):
            replace(self, objects=objects).close()

    def discard(self, publication: Publication, published: Mapping[str, int]) -> None:
        """Bring back what readers found before an unpublished run, and delete its folder."""
        self.swap_back()
        publication.discard(self.objects, published)
        self.close()

    def close(self) -> None:
        """Delete the folder."""
        if isinstance(self.objects, DirectoryObjects):
            # Without its plan, what is left of the folder belongs to no run.
            self.objects.drop([self.path(_PLAN)])
        self.objects.remove(f"{CHECKPOINT_FOLDER}/{self.token}")
        if self.target.directory is not None:
            # Another run may have made its folder.
            with suppress(OSError):
                (self.target.directory / CHECKPOINT_FOLDER).rmdir()

    def remove_old_group(self) -> None:
        """Remove the group that this run replaces where it can't be moved away, its metadata first; once."""
        objects, cleared = self.objects, self.path(_CLEARED)
        if isinstance(objects, StoreObjects) and objects.get([cleared])[cleared] is None and not self.has_units():
            if self.target.has_group():
                objects.drop([GROUP_METADATA])
                objects.clear(lambda name: name.startswith((f"{CHECKPOINT_FOLDER}/", CLAIM)), {GROUP_METADATA})
            objects.put(cleared, b"")

    def _begin_swap(self, publication: Publication) -> None:
        assert self.target.directory is not None
        kept = (CLAIM, f"{CHECKPOINT_FOLDER}.partial")
        old = [each for each in self.objects.children("") if each != CHECKPOINT_FOLDER and not each.startswith(kept)]
        swap = _Swap(old, [*publication.arrays, GROUP_METADATA])
        for folder in (_OLD, _NEW):
            Path(self.target.directory, self.path(folder)).mkdir(exist_ok=True)
        self.objects.put(self.path(_SWAP), json.dumps(asdict(swap)).encode())

    def _swap(self) -> _Swap | None:
        """Return the names to move away and into place; None if no move has begun."""
        if not self.is_in_directory:
            return None
        found = self.objects.get([self.path(_SWAP)])[self.path(_SWAP)]
        return None if found is None else parse(_Swap, found, self.path(_SWAP), self.target.location)

    def _swap_in(self) -> None:
        """Move the old group away, its metadata first, and the new one into place, its metadata last."""
        swap, waiting = self._swap() or _Swap([], []), {*self.objects.children(self.path(_NEW))}
        if waiting.issuperset(swap.new):
            away = {*self.objects.children(self.path(_OLD))}
            for name in sorted(swap.old, key=lambda name: name != GROUP_METADATA):
                if name not in away:
                    self._move(name, self.path(f"{_OLD}/{name}"))
        for name in swap.new:
            if name in waiting:
                self._move(self.path(f"{_NEW}/{name}"), name)

    def swap_back(self) -> None:
        """Move a new group that is not published back to the folder, and the old one into its place, metadata last."""
        swap = self._swap()
        if swap is None:
            return
        waiting, away = {*self.objects.children(self.path(_NEW))}, {*self.objects.children(self.path(_OLD))}
        for name in reversed(swap.new):
            if name not in waiting:
                self._move(name, self.path(f"{_NEW}/{name}"))
        for name in sorted(away, key=lambda name: name == GROUP_METADATA):
            self._move(self.path(f"{_OLD}/{name}"), name)

    def _move(self, name: str, to: str) -> None:
        assert isinstance(self.objects, DirectoryObjects)
        self.objects.move(name, to)

    def writers(self) -> list[Journal]:
        """Return a journal for each program that writes a part of a job, or was killed while writing it."""
        return part_writers(
            self.target.objects(), self.objects.names(self.path(PARTS)), "a part of this group", self.target.location
        )


# When this process last asked whether a run may write, by the name of its folder.
_asked: dict[str, OwnerCheck] = {}
_MOST_ASKED = 256


def refuse_link(target: TargetGroup) -> None:
    """Raise IncompleteStoreError if the folder of runs is a link: what it points to belongs to somebody else."""
    path = None if target.directory is None else target.directory / CHECKPOINT_FOLDER
    if path is not None and (path.is_symlink() or (path.exists() and not path.is_dir())):
        raise IncompleteStoreError(
            f"{CHECKPOINT_FOLDER} in the group is a link or a file, which no run of this library makes: remove it to "
            f"write to the group",
            target.location,
        )


def other_folders(target: TargetGroup, token: str = "") -> list[str]:
    """List the folders of runs, except the folder of `token`."""
    refuse_link(target)
    found = target.objects().children(CHECKPOINT_FOLDER)
    return [name for name in found if _FOLDER.fullmatch(name) and name != token]


def find_run(target: TargetGroup, identity: str | None = None) -> tuple[RunFolder, Publication] | None:
    """Find an unpublished run of a group that has a plan: the run with this identity, or any run."""
    for token in other_folders(target):
        folder = RunFolder.of(target, token)
        publication = folder.publication()
        if publication is not None and identity in (None, publication.identity):
            return folder, publication
    return None


def _report_of(unit: Unit) -> UnitsReport:
    # Another version may have recorded other fields.
    found = checked(WriteReport, unit.report, "the record of a unit")
    sizes = {name: file.size for name, file in unit.objects.items()}
    return UnitsReport(found.records, found.nbytes, found.stored, found.peak, 1, sizes)
