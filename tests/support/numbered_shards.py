"""Shards whose records contain their own numbers, which identify every row that is read."""

from __future__ import annotations

from pathlib import Path

import oracle

from support import wire

__all__ = ["example", "write_shards"]


def example(row: int, most_tokens: int = 17) -> bytes:
    """Make a record of a label, some tokens and a name."""
    return wire.example(label=[row], tokens=range(row, row + row * 13 % most_tokens), name=[b"row %d" % row])


def write_shards(folder: Path, shards: int, rows: int, most_tokens: int = 17) -> None:
    """Write shards of `rows` records each, numbered consecutively across shards."""
    for number in range(shards):
        payloads = (example(row, most_tokens) for row in range(number * rows, number * rows + rows))
        oracle.write_oracle(folder / f"part-{number}.tfrecord", payloads)
