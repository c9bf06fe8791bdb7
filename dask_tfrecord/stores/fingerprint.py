"""What a conversion is known by: the files it reads, what it makes of them, what it was told. Pure values.

It is noted on the group, so that who goes on with the conversion can be told what has changed since.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dask.base import tokenize

from dask_tfrecord.arrays.dataset import Dataset
from dask_tfrecord.arrays.source import MappedSource
from dask_tfrecord.stores.functions import function_parts

__all__ = ["Fingerprint"]

# Differences of a kind that are told one by one.
_TOLD = 3


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """What a conversion is known by; all of it JSON values.

    Attributes
    ----------
    source : mapping
        Where the rows come from: files, their sizes and versions.
    schema : mapping
        The features.
    records : int
        Rows.
    options : mapping
        What the user asked for.
    rows : str
        Names the rows: which of those files, read how.
    functions : sequence of mapping
        What each function given to `map_blocks` does, part by part; the last one first.
    """

    source: Mapping[str, Any]
    schema: Mapping[str, Any]
    records: int
    options: Mapping[str, Any]
    rows: str
    functions: Sequence[Mapping[str, str]]

    @classmethod
    def of(cls, dataset: Dataset, options: Mapping[str, Any]) -> Fingerprint:
        """Take that of a data set whose rows are counted."""
        schema = json.loads(dataset.schema.to_json())
        rows, functions = _rows(dataset)
        return cls(dict(dataset.origin), schema, dataset.nrecords or 0, dict(options), rows, functions)

    @classmethod
    def noted(cls, notes: Mapping[str, Any]) -> Fingerprint:
        """Read what `notes` wrote; a conversion of an older version has noted less."""
        return cls(
            notes.get("source", {}),
            notes.get("schema", {}),
            notes.get("records", 0),
            notes.get("options", {}),
            notes.get("rows", ""),
            notes.get("functions", []),
        )

    def notes(self) -> dict[str, Any]:
        """Make attributes of it."""
        return {name: getattr(self, name) for name in Fingerprint.__slots__}

    def differences(self, now: Fingerprint) -> list[str]:
        """Say how inputs and options of now differ from these."""
        found = [*_files(self.source, now.source), *_features(self.schema, now.schema)]
        if not found and self.records != now.records:
            found.append(f"there were {self.records:,} records and now are {now.records:,}")
        found += [
            f"{name} was {json.dumps(self.options.get(name))} and now is {json.dumps(now.options.get(name))}"
            for name in sorted({*self.options, *now.options})
            if self.options.get(name) != now.options.get(name)
        ]
        found += _functions(self.functions, now.functions)
        if not found and self.rows != now.rows:
            found.append(
                "other rows are read, or otherwise: rows[…], errors=, check_crc=, or an array that was assigned or kept"
            )
        return found


def _files(then: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    """Say how files differ; of other sources say just that."""
    if "files" not in then or "files" not in now:
        if _origin(then) != _origin(now):
            yield f"rows came from {_origin(then)} and now come from {_origin(now)}"
        return
    before, after = _by_file(then), _by_file(now)
    gone = [file for file in before if file not in after]
    new = [file for file in after if file not in before]
    sizes = {file: (before[file][0], after[file][0]) for file in before if file in after}
    changed = [f"{file} had {old:,} bytes and now has {size:,}" for file, (old, size) in sizes.items() if old != size]
    written = [file for file, (old, size) in sizes.items() if old == size and before[file] != after[file]]
    yield from _some(changed, "files changed")
    yield from _some([f"{file} was written again since" for file in written], "files were written again")
    yield from _some([f"{file} is not among the files any more" for file in gone], "files are gone")
    yield from _some([f"{file} was not among the files" for file in new], "files are new")
    if before == after and list(then["files"]) != list(now["files"]):
        yield "the files come in another order"


def _by_file(source: Mapping[str, Any]) -> dict[str, tuple[int, Any]]:
    files = zip(source["files"], source["sizes"], source["versions"], strict=True)
    return {file: (size, version) for file, size, version in files}


def _origin(source: Mapping[str, Any]) -> str:
    if "files" in source:
        return f"{len(source['files']):,} files"
    return str(source.get("store", "arrays"))


def _features(then: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    """Say how features differ."""
    before, after = ({each["name"]: each for each in schema.get("features", ())} for schema in (then, now))
    told = [f"feature {name!r} is not there any more" for name in before if name not in after]
    told += [f"feature {name!r} was not there" for name in after if name not in before]
    told += [
        f"feature {name!r} was {_arguments(before[name])} and now is {_arguments(after[name])}"
        for name in before
        if name in after and before[name] != after[name]
    ]
    yield from _some(told, "features")
    # Which records were looked at to find the features tells nothing of what is written.
    for key in sorted({*then, *now} - {"features", "sampling"}):
        if then.get(key) != now.get(key):
            yield f"the {key} of the schema was {json.dumps(then.get(key))} and now is {json.dumps(now.get(key))}"


def _arguments(feature: Mapping[str, Any]) -> str:
    arguments = [f"{name}={value}" for name, value in feature.items() if name not in ("name", "class")]
    return f"{feature['class']}({', '.join(arguments)})"


def _some(told: list[str], what: str) -> Iterator[str]:
    yield from told[:_TOLD]
    if len(told) > _TOLD:
        yield f"… {len(told):,} {what} in all"


def _functions(then: Sequence[Mapping[str, str]], now: Sequence[Mapping[str, str]]) -> Iterator[str]:
    """Say how functions given to `map_blocks` differ."""
    if len(then) != len(now):
        yield f"{len(then)} functions were given to map_blocks and now are {len(now)}"
        return
    for number, (before, after) in enumerate(zip(then, now, strict=True)):
        which = (
            "a function given to map_blocks" if len(now) == 1 else f"function {len(now) - number} given to map_blocks"
        )
        told = [name for name in {**before, **after} if before.get(name) != after.get(name)]
        yield from _some([f"{name} of {which} has changed" for name in told], "parts of functions have changed")


def _rows(dataset: Dataset) -> tuple[str, list[dict[str, str]]]:
    """Name the rows of a data set, and the functions they go through, so that another process finds the same names."""
    source, columns, functions = dataset.source, [], []
    if source is None:
        return tokenize(dataset), []
    while isinstance(source, MappedSource):
        columns.append((source.columns, source.schema))
        functions.append(function_parts(source.function))
        source = source.source
    return tokenize(source, columns), functions
