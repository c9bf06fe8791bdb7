"""A writer that another package adds, with its command: one ``.npy`` file per column and chunk, and a description."""

import json
import re
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Literal, TypedDict, Unpack

import numpy as np

import dask_tfrecord as dtf
from dask_tfrecord.blocks import block_nbytes, to_array
from dask_tfrecord.options import Option, WriterCommand, complete, with_options
from dask_tfrecord.rows.inputs import Inputs
from dask_tfrecord.stores.files.publish import FileWrite, UnitFiles, UnitNames, UnitReport
from dask_tfrecord.stores.output import check_mode
from dask_tfrecord.stores.units import RowTasks
from dask_tfrecord.stores.zarr.fingerprint import Fingerprint

_LAST = "columns.json"


@dataclass(frozen=True, repr=False)
class NpyNames(UnitNames):
    columns: tuple[str, ...] = ()

    def of_unit(self, unit: int) -> list[str]:
        return [f"{self.root}/{column.replace('/', '.')}.{unit:05d}.npy" for column in self.columns]

    def is_own(self, name: str) -> bool:
        return name == _LAST or re.fullmatch(r".+\.\d{5}\.npy", name) is not None

    def conversion(self) -> str | None:
        last = Path(self.last)
        return json.loads(last.read_text())["conversion"] if last.exists() else None


@dataclass(frozen=True, slots=True)
class NpyFiles(UnitFiles):
    schema: dtf.Schema = field(kw_only=True)
    conversion: str = field(kw_only=True)

    def descriptions(self) -> dict[str, bytes]:
        described = {"schema": self.schema.to_json(), "units": self.count, "conversion": self.conversion}
        return {_LAST: json.dumps(described).encode()}


class NpyOptions(TypedDict, total=False):
    """Options of `to_npy`.

    Attributes
    ----------
    mode : {"w-", "w"}
        ``"w-"`` raises if the data set exists, ``"w"`` replaces it.
    resume : bool, default False
        Resume an interrupted write of the same rows.
    """

    mode: Annotated[Literal["w", "w-"], Option("w-")]
    resume: Annotated[bool, Option(False)]


# An entry point of the group ``dask_tfrecord.commands`` refers to it.
COMMAND = WriterCommand("to-npy", "extension.npy:to_npy", NpyOptions, "Write columns.\n\nTARGET is a local directory.")


@with_options("to_npy(ds, 'labels')", NpyOptions)
def to_npy(ds: dtf.Dataset, path: Path, **options: Unpack[NpyOptions]) -> None:
    """Write columns of fixed shapes to a local directory."""
    options = complete(NpyOptions, options)
    mode, resume = options["mode"], options["resume"]
    check_mode(mode, "a data set", resume=resume)
    if ragged := [name for name, feature in ds.schema.items() if not feature.is_dense]:
        raise dtf.SchemaError(f"to_npy writes columns of fixed shapes; {ragged[0]!r} is {ds.schema[ragged[0]]}")
    names = NpyNames.from_root(path, _LAST, None, tuple(ds))
    rows = Inputs.from_arrays(ds, exact=True).rows
    conversion = Fingerprint.from_rows(rows, rows.schema, {}).token
    tasks = RowTasks(rows, uuid.uuid4().hex)
    spans = list(pairwise(tasks.borders.tolist()))
    own: dict[str, Any] = {"resumable": conversion if resume else None, "schema": ds.schema, "conversion": conversion}
    files = NpyFiles(tasks.token, names, len(spans), mode, compute=True, **own)
    if files.is_complete():
        return
    files.check_free()
    units = [(span, list(ds), (number, *span)) for number, span in enumerate(spans)]
    FileWrite.of_rows(files, tasks, write_npy, (), units, names.root).run()


def write_npy(files: NpyFiles, unit: int, start: int, stop: int, source: Any) -> UnitReport:
    """Write the files of a chunk: a task."""

    def write(contents: Sequence[BinaryIO]) -> tuple[int, int]:
        [blocks] = source.read_spans(list(files.schema), [(start, stop)])
        for content, block in zip(contents, blocks.values(), strict=True):
            np.save(content, to_array(block))
        return stop - start, sum(map(block_nbytes, blocks.values()))

    return files.publish_unit(unit, write)
