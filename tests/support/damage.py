"""Damage to files."""

from __future__ import annotations

from pathlib import Path


def flip(path: Path, *places: int) -> None:
    """Flip a bit of some bytes of a file; negative places count from its end."""
    data = bytearray(path.read_bytes())
    for place in places:
        data[place] ^= 1
    path.write_bytes(data)
