"""Code blocks of the documentation."""

from __future__ import annotations

import re
from dataclasses import dataclass

from support.paths import REPOSITORY

_FENCE = re.compile(r"^```(?P<kind>\w[\w ]*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block of a page: its text, and the line of the page on which that begins."""

    kind: str
    text: str
    line: int


def blocks(page: str, *kinds: str) -> list[Block]:
    """Find the blocks of some kinds, like ``"python"``, in a page below the root of the project."""
    source = (REPOSITORY / page).read_text("utf-8")
    found = (
        Block(match["kind"], match["text"], source.count("\n", 0, match.start("text")) + 1)
        for match in _FENCE.finditer(source)
    )
    return [block for block in found if block.kind in kinds]
