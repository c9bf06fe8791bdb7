"""Names of shards that are to be written: templates, what is there already, and directories to hold them.

Files are looked up and removed through fsspec; nothing is written here.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from string import Formatter
from typing import Any

import fsspec
from fsspec.implementations.local import LocalFileSystem
from fsspec.utils import stringify_path

from dask_tfrecord.storage.beside import is_directory, join
from dask_tfrecord.storage.files import is_local
from dask_tfrecord.storage.sidecars import sidecar_path

__all__ = ["DEFAULT_NAME", "ShardNames"]

DEFAULT_NAME = "data-{shard:05d}-of-{shards:05d}.tfrecord"
_FIELDS = ("shard", "shards")
_SIDECARS = (".idx", ".gzidx")


@dataclass(frozen=True)
class ShardNames:
    """The files of one set of shards.

    Attributes
    ----------
    template : str
        Path or URL, in which ``{shard}`` and ``{shards}`` stand for a number and how many there are.
    storage_options : mapping
        What fsspec takes beside a URL.
    """

    template: str
    storage_options: Mapping[str, Any]

    @classmethod
    def of(cls, urlpath: str | os.PathLike[str], storage_options: Mapping[str, Any] | None) -> ShardNames:
        """Read what a user gave.

        Raises
        ------
        ValueError
            If the template has another field than those two, or ``{shards}`` alone.
        """
        given, options = str(stringify_path(urlpath)), dict(storage_options or {})
        if not given:
            raise ValueError("the path is an empty string; expected a file, a directory or a template")
        if given.endswith("/") or is_directory(given, options):
            given = join(_quoted(given), DEFAULT_NAME)
        names = cls(given, options)
        valid = "a template of shards has {shard} and {shards}, with a format such as {shard:05d}, and {{ for a brace"
        try:
            fields = [field for _, field, _, _ in Formatter().parse(given) if field is not None]
            names.paths(2)
        except (ValueError, LookupError) as error:
            raise ValueError(f"{valid}; got {given!r} ({error})") from error
        if any(field not in _FIELDS for field in fields) or ("shards" in fields and "shard" not in fields):
            raise ValueError(f"{valid}; got {given!r}")
        if is_local(given):
            # Workers may stand in another directory.
            return cls(str(Path(given).expanduser().absolute()), options)
        return names

    @classmethod
    def within(
        cls, directory: str | os.PathLike[str], template: str, storage_options: Mapping[str, Any] | None
    ) -> ShardNames:
        """Name shards of a directory by a template."""
        return cls.of(join(_quoted(str(stringify_path(directory))), template), storage_options)

    @property
    def directory(self) -> str:
        """Where the first shard lies."""
        return _directory(self.paths(1)[0])

    @property
    def of_directory(self) -> bool:
        """Whether a directory was given, and shards have the names that all have there."""
        return self.template.endswith(f"/{DEFAULT_NAME}")

    @property
    def many(self) -> bool:
        """Whether there can be more than one shard."""
        return any(field == "shard" for _, field, _, _ in Formatter().parse(self.template))

    def paths(self, shards: int) -> list[str]:
        """Name every shard."""
        return [self.template.format(shard=number, shards=shards) for number in range(shards)]

    @cached_property
    def _set(self) -> re.Pattern[str]:
        """Any shard of this template, whatever the number of shards."""
        parsed = Formatter().parse(self.template)
        parts = (re.escape(text) + ("" if field is None else "[0-9]+") for text, field, _, _ in parsed)
        return re.compile("".join(parts))

    def found(self, paths: Sequence[str]) -> list[str]:
        """List the files that are there already, of this set or of one with another number of shards."""
        there = []
        for directory in dict.fromkeys(_directory(path) for path in paths):
            fs, inside = fsspec.core.url_to_fs(directory, **self.storage_options)
            fs.invalidate_cache()
            try:
                infos = fs.ls(inside, detail=True)
            except (FileNotFoundError, NotADirectoryError):
                continue
            names = (join(directory, info["name"].rstrip("/").rpartition("/")[2]) for info in infos)
            there += [name for name in names if self._set.fullmatch(name)]
        return sorted(there)

    def check_free(self, paths: Sequence[str], mode: str) -> None:
        """Refuse before anything is written.

        Raises
        ------
        FileExistsError
            If a shard is there and `mode` is ``"w-"``; or one of the set with another number of shards, which a
            pattern would read beside the new ones.
        """
        there = self.found(paths)
        new = set(paths)
        if mode == "w-" and (same := [path for path in there if path in new]):
            raise FileExistsError(f"{_some(same)} exists already: mode='w' replaces what is there")
        if other := [path for path in there if path not in new]:
            raise FileExistsError(
                f"{_some(other)} is there, of the same template and another number of shards: a pattern reads both "
                f"sets. Remove it, or write under another name"
            )

    def directories(self, paths: Sequence[str]) -> list[Path]:
        """Directories that local shards need, and those that these lie in."""
        needed: dict[Path, None] = {}
        for directory in dict.fromkeys(_directory(path) for path in paths):
            fs, inside = fsspec.core.url_to_fs(directory, **self.storage_options)
            if isinstance(fs, LocalFileSystem):
                needed |= dict.fromkeys([Path(inside), *Path(inside).parents])
        return list(needed)

    def make_directories(self, paths: Sequence[str]) -> None:
        """Make the directories of local shards; a store makes its own."""
        for directory in self.directories(paths):
            directory.mkdir(parents=True, exist_ok=True)

    def remove(self, paths: Sequence[str], made: Sequence[Path] = ()) -> None:
        """Remove shards and what lies beside them, and directories that are empty then."""
        sidecars = [sidecar_path(path, suffix) for path in paths for suffix in _SIDECARS]
        for path in (*paths, *(path for path in sidecars if path is not None)):
            fs, inside = fsspec.core.url_to_fs(path, **self.storage_options)
            with suppress(FileNotFoundError):
                fs.rm_file(inside)
        for directory in sorted(made, key=lambda path: -len(path.parts)):
            with suppress(OSError):
                directory.rmdir()


def _quoted(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")


def _directory(path: str) -> str:
    """Find the directory of a file, as it stands in a path or a URL."""
    links = [path] if is_local(path) else path.split("::")
    place = next((place for place, link in enumerate(links) if "://" in link), 0)
    head, slash, _ = links[place].rpartition("/")
    links[place] = head if head and not head.endswith("/") else head + slash
    return "::".join(links)


def _some(paths: Sequence[str]) -> str:
    return paths[0] + (f" (and {len(paths) - 1} more)" if paths[1:] else "")
