"""What a group is made of: files of a directory, or objects of a store. Here are files, which need no store."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

__all__ = ["Files", "Objects"]


class Objects(Protocol):
    """What lies below the path of a group, by names that have slashes in them."""

    def put(self, name: str, value: bytes) -> None:
        """Write an object, whole or not at all."""

    def get(self, names: Iterable[str]) -> dict[str, bytes | None]:
        """Read objects; None where there is none."""

    def sizes(self, names: Iterable[str]) -> dict[str, int | None]:
        """Bytes of each object; None where there is none."""

    def names(self, below: str) -> list[str]:
        """Names of all objects below a path."""

    def drop(self, names: Iterable[str]) -> None:
        """Remove objects, those that are there."""

    def remove(self, below: str) -> None:
        """Remove all that lies below a path."""


@dataclass(frozen=True, slots=True)
class Files:
    """Files of a group's directory: a store would take ten times as long for what a file system does at once.

    Attributes
    ----------
    root : str
        The directory.
    """

    root: str

    def put(self, name: str, value: bytes) -> None:
        """Write a file, whole or not at all."""
        path = Path(self.root, name)
        # As zarr does it, by whose name what is left of it is known.
        torn = path.with_suffix(f".{uuid.uuid4().hex}.partial")
        try:
            file = torn.open("xb")
        except FileNotFoundError:
            path.parent.mkdir(parents=True, exist_ok=True)
            file = torn.open("xb")
        try:
            with file:
                file.write(value)
            torn.replace(path)
        except OSError:
            torn.unlink(missing_ok=True)
            raise

    def get(self, names: Iterable[str]) -> dict[str, bytes | None]:
        """Read files; None where there is none."""
        found: dict[str, bytes | None] = {}
        for name in names:
            try:
                found[name] = Path(self.root, name).read_bytes()
            except FileNotFoundError:
                found[name] = None
        return found

    def sizes(self, names: Iterable[str]) -> dict[str, int | None]:
        """Bytes of each file; None where there is none."""
        found: dict[str, int | None] = {}
        for name in names:
            try:
                found[name] = os.stat(f"{self.root}/{name}").st_size  # noqa: PTH116
            except FileNotFoundError:
                found[name] = None
        return found

    def names(self, below: str) -> list[str]:
        """Names of all files below a path."""
        return [
            Path(folder, name).relative_to(self.root).as_posix()
            for folder, _, files in os.walk(Path(self.root, below))
            for name in files
        ]

    def drop(self, names: Iterable[str]) -> None:
        """Remove files, those that are there."""
        for name in names:
            Path(self.root, name).unlink(missing_ok=True)

    def remove(self, below: str) -> None:
        """Remove all that lies below a path."""
        for folder, folders, files in os.walk(Path(self.root, below), topdown=False):
            for name in files:
                Path(folder, name).unlink(missing_ok=True)
            for name in folders:
                Path(folder, name).rmdir()
        if Path(self.root, below).is_dir():
            Path(self.root, below).rmdir()
