"""Fingerprint of a conversion: identity of its inputs, functions and options. Pure values.

It is stored in the attributes of the group. A resumed conversion compares it with its own, and reports what changed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from dask.base import tokenize

from dask_tfrecord.errors import IncompleteStoreError, plural, redact_url
from dask_tfrecord.features.registry import class_digests
from dask_tfrecord.features.schema import Schema
from dask_tfrecord.identity import canonical_path, file_key, function_parts
from dask_tfrecord.rows.functions import Mapped
from dask_tfrecord.rows.rows import Rows
from dask_tfrecord.rows.sources import Source
from dask_tfrecord.rows.steps import StepChunks, StepRows
from dask_tfrecord.shards.shard import Shards
from dask_tfrecord.stores.documents import Count, checked

# Differences of a kind that are listed.
_LISTED = 3


@dataclass(frozen=True, slots=True)
class _Files:
    """The files among the fields of a source; other sources do not read files."""

    files: Sequence[str] = ()
    sizes: Sequence[Count] = ()
    versions: Sequence[Any] = ()


@dataclass(frozen=True, slots=True)
class _Features:
    """The features among the fields of a schema."""

    features: Sequence[Mapping[str, Any]] = ()


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """Identity of a conversion, as JSON values."""

    source: Mapping[str, Any] = field(default_factory=dict)
    schema: Mapping[str, Any] = field(default_factory=dict)
    records: Count = 0
    options: Mapping[str, Any] = field(default_factory=dict)
    rows: str = ""
    functions: Sequence[Mapping[str, str]] = ()
    # Code digests of users' feature classes, by name. An older version did not store them.
    classes: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def from_rows(cls, given: Rows, schema: Schema, options: Mapping[str, Any]) -> Fingerprint:
        """Compute the fingerprint of a data set whose rows are counted, with the groups of `schema`."""
        rows, functions = _rows_token(given)
        own, nrows = json.loads(schema.to_json()), given.nrows or 0
        return cls(dict(given.origin), own, nrows, dict(options), rows, functions, class_digests(schema.values()))

    @classmethod
    def from_attributes(cls, attributes: Mapping[str, Any]) -> Fingerprint:
        """Read a fingerprint from attributes; an older version wrote fewer of them."""
        fingerprint = checked(cls, attributes, "the record of a conversion")
        sources = checked(_Files, fingerprint.source, "the record of a conversion: source")
        if not len(sources.files) == len(sources.sizes) == len(sources.versions):
            raise IncompleteStoreError("the record of a conversion has other numbers of files, sizes and versions")
        for schema in (fingerprint.schema, fingerprint.source.get("schema") or {}):
            for feature in checked(_Features, schema, "the record of a conversion: schema").features:
                if not isinstance(feature.get("name"), str) or not isinstance(feature.get("class"), str):
                    raise IncompleteStoreError(f"the record of a conversion has a feature {feature!s:.60}")
        return fingerprint

    def to_attributes(self) -> dict[str, Any]:
        """Return the attributes of the group."""
        return {name: getattr(self, name) for name in Fingerprint.__slots__}

    @property
    def token(self) -> str:
        """The fingerprint as 32 hexadecimal digits."""
        # dask 2025.1 gives the same nested mappings other tokens in another process.
        return digest({**self.to_attributes(), "source": canonical_source(self.source)})[:32]

    def changes_of_files(self, shards: Shards) -> list[str]:
        """Describe how files have changed since; files that are not among these are ignored."""
        if "files" not in self.source:
            return []
        planned = set(map(file_key, self.source["files"]))
        listed = zip(map(redact_url, shards.paths), shards.sizes.tolist(), shards.versions, strict=True)
        found = [each for each in listed if file_key(each[0]) in planned]
        files, sizes, versions = map(list, zip(*found, strict=True)) if found else ([], [], [])
        source = {**self.source, "files": files, "sizes": sizes, "versions": versions}
        return self.differences(replace(self, source=source))

    def differences(self, now: Fingerprint) -> list[str]:
        """Describe how the inputs and options of another fingerprint differ from these."""
        differences = [*_files(self.source, now.source), *schema_differences(self.schema, now.schema)]
        if not differences and self.records != now.records:
            differences.append(f"the number of records was {self.records:,} and now is {now.records:,}")
        differences += [
            f"{name} was {json.dumps(self.options.get(name))} and now is {json.dumps(now.options.get(name))}"
            for name in sorted({*self.options, *now.options})
            if self.options.get(name) != now.options.get(name)
        ]
        differences += _functions(self.functions, now.functions)
        differences += [
            f"the code of feature class {name} has changed"
            for name, code in now.classes.items()
            if self.classes.get(name, code) != code
        ]
        if not differences and self.rows != now.rows:
            differences.append(
                "different rows are read, or in a different way: rows[…], errors=, check_crc=, or assigned or kept "
                "arrays"
            )
        return differences


def canonical_source(source: Mapping[str, Any]) -> dict[str, Any]:
    """Return the origin of rows for a digest, which is equal for all spellings of a path, and after a restart."""
    if "files" not in source:
        return {**source, **({"store": canonical_path(source["store"])} if "store" in source else {})}
    # The version of a local file has its inode: hard links have one.
    files = zip(source["files"], source["versions"], strict=True)
    return {**source, "files": [None if "inode=" in version else canonical_path(file) for file, version in files]}


def digest(value: Any) -> str:
    """Return a digest of a JSON value."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def _files(then: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    """Describe how files differ; of other sources, only that they differ."""
    if "files" not in then or "files" not in now:
        if _origin(then) != _origin(now) and not _is_one_store(then, now):
            yield f"rows came from {_origin(then)} and now come from {_origin(now)}"
        return
    # One file may be spelled in two ways. Most are not, and 100,000 take a second to resolve.
    key_of = _spelled if list(then["files"]) == list(now["files"]) else file_key
    (before, old_names), (after, new_names) = _by_file(then, key_of), _by_file(now, key_of)
    removed = [name for key, name in old_names.items() if key not in after]
    new = [name for key, name in new_names.items() if key not in before]
    sizes = {key: (before[key][0], after[key][0]) for key in before if key in after}
    changed = [
        f"{new_names[key]} had {plural(old, 'byte')} and now has {size:,}"
        for key, (old, size) in sizes.items()
        if old != size
    ]
    rewritten = [new_names[key] for key, (old, size) in sizes.items() if old == size and before[key] != after[key]]
    yield from _some_of(changed, "files changed")
    again = [f"{file} was written again or replaced since" for file in rewritten]
    yield from _some_of(again, "files were written again or replaced")
    yield from _some_of([f"{file} is missing from the files" for file in removed], "files are missing")
    yield from _some_of([f"{file} was added" for file in new], "files are new")
    if before == after and list(map(key_of, then["files"])) != list(map(key_of, now["files"])):
        yield "the files come in a different order"


_Key = tuple[Any, ...]


def _spelled(file: str) -> _Key:
    return (file,)


def _by_file(
    source: Mapping[str, Any], key_of: Callable[[str], _Key]
) -> tuple[dict[_Key, tuple[int, Any]], dict[_Key, str]]:
    """Return size and version of each file, and its name."""
    keys = list(map(key_of, source["files"]))
    facts = zip(source["sizes"], source["versions"], strict=True)
    return dict(zip(keys, facts, strict=True)), dict(zip(keys, source["files"], strict=True))


def _is_one_store(then: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    return "store" in then and "store" in now and file_key(then["store"]) == file_key(now["store"])


def _origin(source: Mapping[str, Any]) -> str:
    if "files" in source:
        return plural(len(source["files"]), "file")
    return str(source.get("store", "arrays"))


def schema_differences(then: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    """Describe how features differ."""
    before, after = ({each["name"]: each for each in schema.get("features", ())} for schema in (then, now))
    changes = [f"feature {name!r} was removed" for name in before if name not in after]
    changes += [f"feature {name!r} was added" for name in after if name not in before]
    changes += [
        f"feature {name!r} was {_arguments(before[name])} and now is {_arguments(after[name])}"
        for name in before
        if name in after and before[name] != after[name]
    ]
    yield from _some_of(changes, "features")
    # The sampled records of schema inference, and the features of the records, do not affect what is written.
    for key in sorted({*then, *now} - {"features", "sampling", "records"}):
        if then.get(key) != now.get(key):
            yield f"the {key} of the schema was {json.dumps(then.get(key))} and now is {json.dumps(now.get(key))}"


def _arguments(feature: Mapping[str, Any]) -> str:
    arguments = [f"{name}={value}" for name, value in feature.items() if name not in ("name", "class")]
    return f"{feature['class']}({', '.join(arguments)})"


def _some_of(changes: list[str], subject: str) -> Iterator[str]:
    yield from changes[:_LISTED]
    if len(changes) > _LISTED:
        yield f"… {len(changes):,} {subject} in all"


def _functions(then: Sequence[Mapping[str, str]], now: Sequence[Mapping[str, str]]) -> Iterator[str]:
    """Describe how functions passed to `map_blocks` differ."""
    if len(then) != len(now):
        yield f"{len(then)} functions were passed to map_blocks and now are {len(now)}"
        return
    for number, (before, after) in enumerate(zip(then, now, strict=True)):
        which = (
            "a function passed to map_blocks" if len(now) == 1 else f"function {len(now) - number} passed to map_blocks"
        )
        changed = [name for name in {**before, **after} if before.get(name) != after.get(name)]
        yield from _some_of([f"{name} of {which} has changed" for name in changed], "parts of functions have changed")


def _rows_token(given: Rows) -> tuple[str, list[dict[str, str]]]:
    """Identify a data set's rows and functions, equally in every process."""
    source: Source | None = given.source
    functions: list[dict[str, str]] = []
    columns: list[object] = []
    if source is None:
        return tokenize(given), []
    while source.inner is not None:
        columns.append(source.derivation)
        if isinstance(source, StepRows | StepChunks) and isinstance(source.step, Mapped):
            functions.append(function_parts(source.step.function))
        source = source.inner
    return tokenize(source.content, columns), functions
