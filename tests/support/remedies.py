"""Code that messages recommend: found in their text, to be executed."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

# A name that examples use, with an attribute, a call or an item after it.
_NAMES = "ds|dtf|dask_tfrecord|rows|mixed|itertools|numpy|torch|tf|pyarrow|dask|xarray|next|list|len|print"
_START = re.compile(rf"(?<![\w.'\"])(?:(?:{_NAMES})(?:\.\w|[\[(])|\w+Feature\()")
_PAIRS = {"(": ")", "[": "]", "{": "}"}


def calls(message: str) -> Iterator[str]:
    """Yield the code in a message: between backticks, or an expression like ``ds.rows[0]`` among words."""
    for code in re.findall("`([^`]+)`", message):
        if "(" in code and _parses(code):
            yield code
    message = re.sub("`[^`]+`", "", message)
    at = 0
    while found := _START.search(message, at):
        at = _end(message, found.start())
        code = message[found.start() : at].rstrip(".")
        if re.search(r"[(\[]", code):
            yield code


def conditions(message: str) -> Iterator[str]:
    """Yield the conditions that a message writes in double quotes at its end."""
    yield from re.findall(r': "(.*)"\.?$', message)


def _end(text: str, start: int) -> int:
    """Return where code ends: at a space or a sign of punctuation outside of its brackets."""
    opened: list[str] = []
    quote = ""
    for at in range(start, len(text)):
        letter = text[at]
        if quote:
            quote = "" if letter == quote and text[at - 1] != "\\" else quote
        elif letter in "'\"":
            quote = letter
        elif letter in _PAIRS:
            opened.append(_PAIRS[letter])
        elif opened and letter == opened[-1]:
            opened.pop()
        elif not opened and letter in ")]}`,;: \n":
            return at
    return len(text)


def _parses(code: str) -> bool:
    try:
        ast.parse(code)
    except SyntaxError:
        return False
    return True
