"""Checkpoint of a conversion, kept within the group until it is complete, so that the conversion can be resumed.

The layout is written before the first unit. After the data of units, a task writes a record file with the names and
sizes of their objects. Units without a record are written again, and so are units whose objects differ from their
record. All files are in a folder named by the conversion, so that records of another conversion are ignored.
"""

from __future__ import annotations

import io
import json
import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from dask_tfrecord.errors import IncompleteStoreError, ResumeError
from dask_tfrecord.stores.flat_arrays import BorderCounts
from dask_tfrecord.stores.write_progress import WriteReport
from dask_tfrecord.stores.zarr.fingerprint import Fingerprint
from dask_tfrecord.stores.zarr.layout import ArraySpec, RowGrid, ZarrLayout
from dask_tfrecord.stores.zarr.objects import GroupObjects
from dask_tfrecord.stores.zarr.store import CHECKPOINT_FOLDER, TargetGroup

_log = logging.getLogger(__name__)

# Seconds to wait for missing objects.
_WAITS = (0.05, 0.1, 0.2, 0.4, 0.8)

_LAYOUT, _BORDER_COUNTS, _UNITS = "plan.json", "tally.npz", "units"


@dataclass(frozen=True, slots=True)
class CompletedUnit:
    """A written unit.

    Attributes
    ----------
    report : WriteReport
        Rows and bytes that were written.
    objects : sequence of str
        Names of its objects.
    """

    report: WriteReport
    objects: Sequence[str]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Layout and completed units of one conversion.

    Attributes
    ----------
    objects : GroupObjects
        Objects of the group.
    identity : str
        Identity of the conversion.
    """

    objects: GroupObjects
    identity: str

    def begin(self, layout: ZarrLayout) -> None:
        """Write the layout; from now on the conversion can be resumed."""
        buffer, counts, names = io.BytesIO(), layout.border_counts, list(layout.border_counts.items)
        arrays: dict[str, Any] = {f"items_{number}": counts.items[name] for number, name in enumerate(names)}
        np.savez(buffer, rows=counts.rows, sizes=counts.sizes, **arrays)
        self.objects.put(self._path(_BORDER_COUNTS), buffer.getvalue())
        document = {
            "records": layout.nrows,
            "grid": asdict(layout.grid),
            "arrays": [asdict(array) for array in layout.arrays],
            "flat": names,
        }
        self.objects.put(self._path(_LAYOUT), json.dumps(document, ensure_ascii=False).encode())

    def layout(self) -> ZarrLayout | None:
        """Read the layout; None if it was not written, so that no unit was either."""
        written, counted = self.objects.get([self._path(_LAYOUT), self._path(_BORDER_COUNTS)]).values()
        if written is None or counted is None:
            return None
        document = json.loads(written)
        with np.load(io.BytesIO(counted), allow_pickle=False) as arrays:
            items = {name: arrays[f"items_{number}"] for number, name in enumerate(document["flat"])}
            counts = BorderCounts(arrays["rows"], items, arrays["sizes"])
        specs = tuple(
            ArraySpec(**array | {"shape": tuple(array["shape"]), "dimensions": tuple(array["dimensions"])})
            for array in document["arrays"]
        )
        return ZarrLayout(document["records"], RowGrid(**document["grid"]), specs, counts)

    def has_plan(self) -> bool:
        """Return True if the layout exists: it is removed on completion and when another conversion replaces this."""
        path = self._path(_LAYOUT)
        return self.objects.sizes([path])[path] is not None

    def record(self, units: Mapping[int, CompletedUnit]) -> dict[int, WriteReport]:
        """Record that units are written, with the current sizes of their objects.

        Raises
        ------
        IncompleteStoreError
            If an object is missing.
        """
        names = [name for unit in units.values() for name in unit.objects]
        for wait in (*_WAITS, 0.0):
            sizes = self.objects.sizes(names)
            missing = [name for name, size in sizes.items() if size is None]
            if not missing:
                break
            # Another copy of the same task deletes an object right before it writes it again.
            time.sleep(wait)
        if missing:
            raise IncompleteStoreError(f"{missing[0]!r} was written and is missing: the store has lost it")
        documents, reports = {}, {}
        for number, unit in units.items():
            own = {name: sizes[name] or 0 for name in unit.objects}
            reports[number] = replace(unit.report, stored=sum(own.values()))
            documents[number] = {**asdict(reports[number]), "objects": own}
        self.objects.put(self._record_path(min(documents)), json.dumps(documents, ensure_ascii=False).encode())
        return reports

    def recorded(self, numbers: Iterable[int]) -> dict[int, WriteReport]:
        """Return the reports of units of one task that are recorded."""
        # A record file is named by one of its units, and holds units of one task only.
        paths = {number: self._record_path(number) for number in numbers}
        records = map(_parse, self.objects.get(paths.values()).values())
        return {
            number: _report(unit) for record in records for number, unit in (record or {}).items() if number in paths
        }

    def verified(self) -> dict[int, WriteReport]:
        """Return the reports of units whose objects match their record; delete records that do not match."""
        paths = self.objects.names(self._path(_UNITS))
        records = {path: _parse(record) for path, record in self.objects.get(paths).items()}
        objects = {
            path: {name: size for unit in (record or {}).values() for name, size in unit["objects"].items()}
            for path, record in records.items()
        }
        found = self.objects.sizes({name for sizes in objects.values() for name in sizes})
        reports, invalid = {}, []
        for path, record in records.items():
            if record is None or any(found[name] != size for name, size in objects[path].items()):
                invalid.append(path)
            else:
                reports.update({number: _report(unit) for number, unit in record.items()})
        self.objects.drop(invalid)
        return reports

    def close(self) -> None:
        """Delete the checkpoint."""
        self.objects.remove(CHECKPOINT_FOLDER)

    def _path(self, name: str) -> str:
        return f"{CHECKPOINT_FOLDER}/{self.identity}/{name}"

    def _record_path(self, number: int) -> str:
        return self._path(f"{_UNITS}/{number}.json")


def _parse(record: bytes | None) -> Mapping[int, Mapping[str, Any]] | None:
    """Parse the record of units; None if the file is missing or truncated."""
    try:
        found = json.loads(record or b"")
        return {int(number): unit | {"objects": dict(unit["objects"])} for number, unit in found.items()}
    except (ValueError, TypeError, KeyError, AttributeError):
        return None


def _report(unit: Mapping[str, Any]) -> WriteReport:
    # Another version may have recorded other fields.
    return WriteReport(**{name: unit[name] for name in WriteReport.__slots__ if name in unit})


@dataclass(frozen=True, slots=True, eq=False)
class ResumableConversion:
    """Interrupted conversion of the same inputs and options, found in the group.

    Attributes
    ----------
    identity : str
        Its identity.
    layout : ZarrLayout or None
        Its layout; None if all units are written.
    """

    identity: str
    layout: ZarrLayout | None


def find_resumable(target: TargetGroup, fingerprint: Fingerprint) -> ResumableConversion | None:
    """Find an interrupted conversion of the same request; None if no unit is written.

    Raises
    ------
    ResumeError
        If inputs or options differ from those of the interrupted conversion.
    """
    attributes = target.stored_attributes()
    identity = str(attributes.get("id"))
    # The identity becomes the name of a folder.
    if "id" not in attributes or not identity.isalnum():
        _log.info("%s: found no conversion to resume", target)
        return None
    layout = Checkpoint(target.objects(target.open("r")), identity).layout()
    written = bool(attributes.get("written") or attributes.get("complete"))
    if not written and layout is None:
        _log.info("%s: the interrupted conversion has no checkpoint and starts over", target)
        return None
    differences = Fingerprint.from_attributes(attributes).differences(fingerprint)
    if differences:
        raise ResumeError(
            f"cannot resume: inputs or options changed: {'; '.join(differences)}. Pass mode='w' to start over",
            target.location,
        )
    _log.info("%s: %s", target, "all units are written" if written else "resuming the interrupted conversion")
    return ResumableConversion(identity, None if written else layout)
