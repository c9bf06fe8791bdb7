"""What a conversion has done so far, kept within the group until that is whole, so that another one can go on with it.

The plan is written before the first unit, and a mark of units after their data: the names and sizes of the objects that
they are. Units without a mark, or whose objects are not those that their mark says, are written again. All of it lies
in a folder of the plan's own name, so that marks of one plan mean nothing to another.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from dask_tfrecord.errors import IncompleteStoreError
from dask_tfrecord.stores.layout import ArraySpec, Layout, RowGrid, Tally
from dask_tfrecord.stores.objects import Objects
from dask_tfrecord.stores.write_report import WriteReport
from dask_tfrecord.stores.zarr import JOURNAL

__all__ = ["Journal", "Written"]

_PLAN, _TALLY, _UNITS = "plan.json", "tally.npz", "units"


@dataclass(frozen=True, slots=True)
class Written:
    """A unit that is written.

    Attributes
    ----------
    report : WriteReport
        What was written.
    objects : sequence of str
        Names of the objects that it is.
    """

    report: WriteReport
    objects: Sequence[str]


@dataclass(frozen=True, slots=True)
class Journal:
    """Plan and marks of one conversion.

    Attributes
    ----------
    objects : Objects
        The group's.
    identity : str
        What the conversion calls itself.
    """

    objects: Objects
    identity: str

    def begin(self, layout: Layout) -> None:
        """Keep the plan: from now on there is something to go on with."""
        buffer, tally, names = io.BytesIO(), layout.tally, list(layout.tally.items)
        arrays: dict[str, Any] = {f"items_{number}": tally.items[name] for number, name in enumerate(names)}
        np.savez(buffer, rows=tally.rows, sizes=tally.sizes, **arrays)
        self.objects.put(self._name(_TALLY), buffer.getvalue())
        plan = {
            "records": layout.nrows,
            "grid": asdict(layout.grid),
            "arrays": [asdict(array) for array in layout.arrays],
            "flat": names,
        }
        self.objects.put(self._name(_PLAN), json.dumps(plan, ensure_ascii=False).encode())

    def layout(self) -> Layout | None:
        """Read the plan; None if none was kept, and so no unit was begun."""
        found, counted = self.objects.get([self._name(_PLAN), self._name(_TALLY)]).values()
        if found is None or counted is None:
            return None
        plan = json.loads(found)
        with np.load(io.BytesIO(counted), allow_pickle=False) as arrays:
            items = {name: arrays[f"items_{number}"] for number, name in enumerate(plan["flat"])}
            tally = Tally(arrays["rows"], items, arrays["sizes"])
        specs = tuple(
            ArraySpec(**array | {"shape": tuple(array["shape"]), "dimensions": tuple(array["dimensions"])})
            for array in plan["arrays"]
        )
        return Layout(plan["records"], RowGrid(**plan["grid"]), specs, tally)

    def is_kept(self) -> bool:
        """Whether the plan is there: it goes when all is written, and when another conversion takes the place."""
        plan = self._name(_PLAN)
        return self.objects.sizes([plan])[plan] is not None

    def mark(self, units: Mapping[int, Written]) -> dict[int, WriteReport]:
        """Note that units are written, by what their objects are now.

        Raises
        ------
        IncompleteStoreError
            If one is not there.
        """
        sizes = self.objects.sizes(name for unit in units.values() for name in unit.objects)
        lost = [name for name, size in sizes.items() if size is None]
        if lost:
            raise IncompleteStoreError(f"{lost[0]!r} was written and is not there: the store has lost it")
        marks, reports = {}, {}
        for number, unit in units.items():
            own = {name: sizes[name] or 0 for name in unit.objects}
            reports[number] = replace(unit.report, stored=sum(own.values()))
            marks[number] = {**asdict(reports[number]), "objects": own}
        self.objects.put(self._mark(min(marks)), json.dumps(marks, ensure_ascii=False).encode())
        return reports

    def written(self, numbers: Iterable[int]) -> dict[int, WriteReport]:
        """Tell what was written of the units of a task, of those that have a mark."""
        # Units of other tasks have no mark with these, so that one of these has its name.
        names = {number: self._mark(number) for number in numbers}
        marks = map(_read, self.objects.get(names.values()).values())
        return {number: _report(unit) for mark in marks for number, unit in (mark or {}).items() if number in names}

    def verified(self) -> dict[int, WriteReport]:
        """Find the units that are written and lie there as they were; marks of others are removed."""
        folder = self._name(_UNITS)
        names = self.objects.names(folder)
        marks = {name: _read(mark) for name, mark in self.objects.get(names).items()}
        objects = {name: _objects(mark or {}) for name, mark in marks.items()}
        there = self.objects.sizes({each for sizes in objects.values() for each in sizes})
        whole, torn = {}, []
        for name, mark in marks.items():
            if mark is None or any(there[each] != size for each, size in objects[name].items()):
                torn.append(name)
            else:
                whole.update({number: _report(unit) for number, unit in mark.items()})
        self.objects.drop(torn)
        return whole

    def close(self) -> None:
        """Remove plan and marks."""
        self.objects.remove(JOURNAL)

    def _name(self, what: str) -> str:
        return f"{JOURNAL}/{self.identity}/{what}"

    def _mark(self, number: int) -> str:
        return self._name(f"{_UNITS}/{number}.json")


def _read(mark: bytes | None) -> Mapping[int, Mapping[str, Any]] | None:
    """Read what a mark says of each unit; one that was torn itself is none."""
    try:
        found = json.loads(mark or b"")
        return {int(number): unit | {"objects": dict(unit["objects"])} for number, unit in found.items()}
    except (ValueError, TypeError, KeyError, AttributeError):
        return None


def _objects(mark: Mapping[int, Mapping[str, Any]]) -> dict[str, int]:
    """Sizes of all objects of a mark."""
    return {name: size for unit in mark.values() for name, size in unit["objects"].items()}


def _report(unit: Mapping[str, Any]) -> WriteReport:
    # Another version may have noted less, or more.
    return WriteReport(**{name: unit[name] for name in WriteReport.__slots__ if name in unit})
