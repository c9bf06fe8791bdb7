"""Shards whose records contain their own numbers, which identify every row that is read, and damage to shards."""

from __future__ import annotations

from pathlib import Path

import oracle
from oracle import messages


def example(row: int, most_tokens: int = 17) -> bytes:
    """Make a record of a label, some tokens and a name."""
    message = messages.Example()
    message.features.feature["label"].int64_list.value.append(row)
    message.features.feature["tokens"].int64_list.value.extend(range(row, row + row * 13 % most_tokens))
    message.features.feature["name"].bytes_list.value.append(b"row %d" % row)
    return message.SerializeToString()


def write_shards(folder: Path, shards: int, rows: int, most_tokens: int = 17) -> None:
    """Write shards of `rows` records each, numbered consecutively across shards."""
    for number in range(shards):
        payloads = (example(row, most_tokens) for row in range(number * rows, number * rows + rows))
        oracle.write_oracle(folder / f"part-{number}.tfrecord", payloads)


def damage(path: Path, at: int | None = None) -> None:
    """Invert a bit of a byte, by default of the one in the middle."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2 if at is None else at] ^= 1
    path.write_bytes(data)
