"""Names of shards to write: templates, existing files of the same template, and directories."""

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

from fsspec.implementations.local import LocalFileSystem
from fsspec.utils import stringify_path

from dask_tfrecord.errors import plural, redact_url
from dask_tfrecord.storage.clients import is_directory, join, url_to_fs
from dask_tfrecord.storage.listing import is_local
from dask_tfrecord.storage.published import directory_of, list_files
from dask_tfrecord.storage.sidecar_files import sidecar_path

__all__ = ["DEFAULT_NAME", "ShardNames"]

DEFAULT_NAME = "data-{shard:05d}-of-{shards:05d}.tfrecord"
_FIELDS = ("shard", "shards")
_SIDECARS = (".idx", ".gzidx", ".xarray.json")


@dataclass(frozen=True)
class ShardNames:
    """The files of one set of shards.

    Attributes
    ----------
    template : str
        Path or URL with the fields ``{shard}``, the number of a shard, and ``{shards}``, the number of shards.
    storage_options : mapping
        Options of fsspec for the URL.
    """

    template: str
    storage_options: Mapping[str, Any]

    @classmethod
    def from_urlpath(cls, urlpath: str | os.PathLike[str], storage_options: Mapping[str, Any] | None) -> ShardNames:
        """Check and complete a template, a file name or a directory.

        Raises
        ------
        ValueError
            If the template has a field other than those two, or ``{shards}`` without ``{shard}``.
        """
        given, options = str(stringify_path(urlpath)), dict(storage_options or {})
        if not given:
            raise ValueError("the path is an empty string; expected a file, a directory or a template")
        if given.endswith("/") or is_directory(given, options):
            given = join(_escaped(given), DEFAULT_NAME)
        names = cls(given, options)
        valid = "a template of shards has {shard} and {shards}, with a format such as {shard:05d}, and {{ for a brace"
        try:
            fields = [field for _, field, _, _ in Formatter().parse(given) if field is not None]
            names.paths(2)
        except (ValueError, LookupError) as error:
            raise ValueError(f"{valid}; got {redact_url(given)!r} ({error})") from error
        if any(field not in _FIELDS for field in fields) or ("shards" in fields and "shard" not in fields):
            raise ValueError(f"{valid}; got {redact_url(given)!r}")
        if is_local(given):
            # The current directory of a worker may differ.
            return cls(str(Path(given).expanduser().absolute()), options)
        return names

    @classmethod
    def from_directory(
        cls, directory: str | os.PathLike[str], template: str, storage_options: Mapping[str, Any] | None
    ) -> ShardNames:
        """Name the shards of a directory by a template of file names."""
        return cls.from_urlpath(join(_escaped(str(stringify_path(directory))), template), storage_options)

    @property
    def directory(self) -> str:
        """Path or URL of the directory of the first shard."""
        return directory_of(self.paths(1)[0])

    @property
    def has_default_name(self) -> bool:
        """True if the user specified a directory, so that shards have the default name."""
        return self.template.endswith(f"/{DEFAULT_NAME}")

    @property
    def allows_many(self) -> bool:
        """True if the template names more than one shard."""
        return any(field == "shard" for _, field, _, _ in Formatter().parse(self.template))

    def paths(self, shards: int) -> list[str]:
        """Return the path or URL of every shard."""
        return [self.template.format(shard=number, shards=shards) for number in range(shards)]

    @staticmethod
    def display(paths: Sequence[str]) -> str:
        """Return the names of shards as text: one name, or their number with the first and the last name."""
        # Paths within the current directory are displayed relative to it.
        first, last = (redact_url(path).removeprefix(f"{Path.cwd()}{os.sep}") for path in (paths[0], paths[-1]))
        return f"{plural(len(paths), 'shard')}, {first} to {last}" if paths[1:] else first

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        """Pattern of all shards of this template, for any number of shards."""
        fields = Formatter().parse(self.template)
        texts = (re.escape(text) + ("" if field is None else "[0-9]+") for text, field, _, _ in fields)
        return re.compile("".join(texts))

    def existing(self, paths: Sequence[str]) -> list[str]:
        """List existing files of this template in the directories of `paths`, for any number of shards."""
        existing = []
        for directory in dict.fromkeys(directory_of(path) for path in paths):
            files = (join(directory, name) for name in list_files(directory, self.storage_options))
            existing += [file for file in files if self._pattern.fullmatch(file)]
        return sorted(existing)

    def check_free(self, paths: Sequence[str], mode: str) -> None:
        """Raise if existing shards forbid the write.

        Raises
        ------
        FileExistsError
            If a shard exists and `mode` is ``"w-"``; or if shards of the same template and another number of shards
            exist, because a pattern would read both sets.
        """
        existing = self.existing(paths)
        new = set(paths)
        if mode == "w-" and (same := [path for path in existing if path in new]):
            raise FileExistsError(f"{_first_of(same)} exists already: mode='w' replaces existing files")
        if other := [path for path in existing if path not in new]:
            raise FileExistsError(
                f"{_first_of(other)} exists, of the same template and another number of shards: a pattern reads both "
                f"sets. Remove it, or write under another name"
            )

    def directories(self, paths: Sequence[str]) -> list[Path]:
        """List the directories of local shards, and the parents of these."""
        needed: dict[Path, None] = {}
        for directory in dict.fromkeys(directory_of(path) for path in paths):
            fs, inside = url_to_fs(directory, **self.storage_options)
            if isinstance(fs, LocalFileSystem):
                needed |= dict.fromkeys([Path(inside), *Path(inside).parents])
        return list(needed)

    def create_directories(self, paths: Sequence[str]) -> None:
        """Create the directories of local shards; object stores need none."""
        for directory in self.directories(paths):
            directory.mkdir(parents=True, exist_ok=True)

    def remove(self, paths: Sequence[str], created: Sequence[Path] = ()) -> None:
        """Remove shards and their sidecars, and directories that are empty afterwards."""
        self._remove_files(paths)
        self.remove_sidecars(paths)
        for directory in sorted(created, key=lambda path: -len(path.parts)):
            with suppress(OSError):
                directory.rmdir()

    def remove_sidecars(self, paths: Sequence[str]) -> None:
        """Remove the sidecars of shards."""
        sidecars = [sidecar_path(path, suffix) for path in paths for suffix in _SIDECARS]
        self._remove_files([path for path in sidecars if path is not None])

    def _remove_files(self, paths: Sequence[str]) -> None:
        for path in paths:
            fs, inside = url_to_fs(path, **self.storage_options)
            with suppress(FileNotFoundError):
                fs.rm_file(inside)


def _escaped(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")


def _first_of(paths: Sequence[str]) -> str:
    return redact_url(paths[0]) + (f" (and {len(paths) - 1:,} more)" if paths[1:] else "")
