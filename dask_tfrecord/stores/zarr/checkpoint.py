"""Record the units that a conversion has written, and find those of an interrupted one."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from dask_tfrecord.errors import OVERWRITE, IncompleteStoreError, ResumeError
from dask_tfrecord.shards.objects import StoredFile
from dask_tfrecord.stores.documents import Count, checked, parse
from dask_tfrecord.stores.journal import Unit, Units
from dask_tfrecord.stores.output import WriteReport
from dask_tfrecord.stores.units import BorderCounts
from dask_tfrecord.stores.zarr.chunk_grid import RowGrid
from dask_tfrecord.stores.zarr.fingerprint import Fingerprint
from dask_tfrecord.stores.zarr.layout import ArraySpec, ZarrLayout
from dask_tfrecord.stores.zarr.store import CHECKPOINT_FOLDER, TORN, GroupObjects, TargetGroup

_log = logging.getLogger(__name__)
_LAYOUT, _BORDER_COUNTS, _UNITS = "plan.json", "tally.npz", "units"


@dataclass(frozen=True, slots=True)
class _StoredLayout:
    """Content of the object of a layout, without its counts."""

    records: Count
    grid: RowGrid
    arrays: tuple[ArraySpec, ...]
    # Features whose columns are flat, in the order of their counts.
    flat: list[str]
    first_row: Count = 0


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Layout and completed units of the conversion of an identity, in the objects of its group."""

    objects: GroupObjects
    identity: str

    def begin(self, layout: ZarrLayout) -> None:
        """Write the layout; from now on the conversion can be resumed."""
        self.write_counts(_BORDER_COUNTS, layout.border_counts)
        document = {
            "records": layout.nrows,
            "first_row": layout.first_row,
            "grid": asdict(layout.grid),
            "arrays": [asdict(array) for array in layout.arrays],
            "flat": list(layout.border_counts.items),
        }
        self.objects.put(self.path(_LAYOUT), json.dumps(document, ensure_ascii=False).encode())

    def write_counts(self, name: str, counts: BorderCounts) -> None:
        """Write counts of a layout, or of a part of it."""
        buffer = io.BytesIO()
        arrays: dict[str, Any] = {f"items_{number}": items for number, items in enumerate(counts.items.values())}
        np.savez(buffer, rows=counts.rows, sizes=counts.sizes, **arrays)
        self.objects.put(self.path(name), buffer.getvalue())

    def layout(self, counts: str = _BORDER_COUNTS) -> ZarrLayout | None:
        """Read the layout, with all counts or with those of a name; None if it does not exist.

        It was not written, so that no unit was either, or all units are.
        """
        written, counted = self.objects.get([self.path(_LAYOUT), self.path(counts)]).values()
        if written is None or counted is None:
            return None
        stored = parse(_StoredLayout, written, self.path(_LAYOUT))
        try:
            with np.load(io.BytesIO(counted), allow_pickle=False) as arrays:
                items = {name: arrays[f"items_{number}"] for number, name in enumerate(stored.flat)}
                border_counts = BorderCounts(arrays["rows"], items, arrays["sizes"])
            for spec in stored.arrays:
                _ = spec.dtype == "string" or np.dtype(spec.dtype)
        except (ValueError, TypeError, KeyError, AttributeError, EOFError, OSError, MemoryError, BadZipFile) as error:
            raise IncompleteStoreError(
                f"{self.path(counts)} can't be read ({error}): " + OVERWRITE + " starts over"
            ) from error
        # Arrays had no units of their own before version 4 of the format.
        specs = tuple(
            replace(spec, rows=spec.rows or stored.grid.unit) if spec.by_rows else spec for spec in stored.arrays
        )
        return ZarrLayout(stored.records, stored.grid, specs, border_counts, stored.first_row)

    def has_plan(self) -> bool:
        """Return True if the layout exists: it is removed on completion and when another conversion replaces this."""
        path = self.path(_LAYOUT)
        return self.objects.sizes([path])[path] is not None

    def has_units(self) -> bool:
        """Return True if a unit was recorded, whether or not its objects still match."""
        return bool(self.objects.names(self.path(_UNITS)))

    def is_written(self, target: TargetGroup) -> bool:
        """Return True if all units are written; raise IncompleteStoreError if another conversion has the group."""
        return bool(target.update_attributes(self.identity).get("written"))

    def record(self, units: Mapping[int, tuple[WriteReport, Sequence[str]]]) -> dict[int, WriteReport]:
        """Record that units are written: their reports, and the current sizes of their objects.

        Raises IncompleteStoreError if an object is missing.
        """
        names = [name for _, objects in units.values() for name in objects]
        sizes = self.objects.sizes(names)
        missing = [name for name, size in sizes.items() if size is None]
        if missing:
            raise IncompleteStoreError(f"{missing[0]!r} was written and is missing: the store has lost it")
        documents, reports = {}, {}
        for number, (report, objects) in units.items():
            own = {name: StoredFile(sizes[name] or 0) for name in objects}
            reports[number] = replace(report, stored=sum(file.size for file in own.values()))
            documents[str(number)] = Unit({name: getattr(reports[number], name) for name in WriteReport.__slots__}, own)
        self._units.record(str(min(units)), documents)
        return reports

    def recorded(self, numbers: Iterable[int]) -> dict[int, WriteReport]:
        """Return the reports of units of one task that are recorded."""
        # A record is named by one of its units, and holds units of one task only.
        names = {str(number) for number in numbers}
        records = self._units.read(names).values()
        return {
            int(name): _report(unit) for record in records for name, unit in (record or {}).items() if name in names
        }

    def numbers(self, within: Sequence[tuple[int, int]]) -> NDArray[np.int64]:
        """Return the numbers of the units that are recorded in some ranges, ascending; others may be among them."""
        # A record is named by one of its units. Reading all of them takes a second for every 20,000.
        names = self._record_names()
        # Temporary files of records have longer names.
        found = np.array([int(name) for name in names if name.isdecimal()], np.int64)
        inside = np.searchsorted(np.array(sorted(within)).ravel(), found, side="right") % 2 == 1
        records = self._units.read(map(str, found[inside].tolist()))
        return np.array(sorted(int(name) for units in records.values() for name in units or ()), np.int64)

    def verified(self) -> dict[int, WriteReport]:
        """Return the reports of units whose objects match their record; delete records that do not match."""
        records = self._units.read(self._record_names())
        sizes = {
            record: {name: file.size for unit in (units or {}).values() for name, file in unit.objects.items()}
            for record, units in records.items()
        }
        found = self.objects.sizes({name for own in sizes.values() for name in own})
        reports, invalid = {}, []
        for record, units in records.items():
            if units is None or any(found[name] != size for name, size in sizes[record].items()):
                invalid.append(record)
            else:
                reports.update({int(name): _report(unit) for name, unit in units.items()})
        self._units.drop(invalid)
        return reports

    def close(self) -> None:
        """Delete the checkpoint, and not that of a later run: a copy of the last task may be late."""
        self.objects.remove(f"{CHECKPOINT_FOLDER}/{self.identity}")
        if all(TORN.fullmatch(name.rpartition("/")[2]) for name in self.objects.names(CHECKPOINT_FOLDER)):
            self.objects.remove(CHECKPOINT_FOLDER)

    def path(self, name: str) -> str:
        """Return the name of an object of the checkpoint."""
        return f"{CHECKPOINT_FOLDER}/{self.identity}/{name}"

    def _record_names(self) -> list[str]:
        """List the names of the records of units, and of temporary files."""
        return [path.rpartition("/")[2].removesuffix(".json") for path in self.objects.names(self.path(_UNITS))]

    @property
    def _units(self) -> Units:
        return Units(self.objects, self.path(f"{_UNITS}/"))


def _report(unit: Unit) -> WriteReport:
    # Another version may have recorded other fields.
    return checked(WriteReport, unit.report, "the record of a unit")


def find_resumable(target: TargetGroup, fingerprint: Fingerprint) -> tuple[str | None, ZarrLayout | None]:
    """Return identity and layout of an interrupted conversion of the same request.

    The identity is None if no unit is written, and the layout is None if all of them are. Raises ResumeError if inputs
    or options differ from those of the interrupted conversion.
    """
    attributes = target.stored_attributes()
    identity = str(attributes.get("id"))
    # The identity becomes the name of a folder.
    if "id" not in attributes or not identity.isalnum():
        _log.info("%s: found no conversion to resume", target)
        return None, None
    layout = Checkpoint(target.objects(target.open("r")), identity).layout()
    written = bool(attributes.get("written") or attributes.get("complete"))
    if not written and layout is None:
        _log.info("%s: the interrupted conversion has no checkpoint and starts over", target)
        return None, None
    differences = Fingerprint.from_attributes(attributes).differences(fingerprint)
    if differences:
        raise ResumeError(
            f"cannot resume: inputs or options changed: {'; '.join(differences)}. Pass " + OVERWRITE + " to start over",
            target.location,
        )
    _log.info("%s: %s", target, "all units are written" if written else "resuming the interrupted conversion")
    return identity, None if written else layout
