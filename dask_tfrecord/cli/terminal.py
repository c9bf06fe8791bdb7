"""Text on terminals: without credentials and control characters; logs on stderr."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import Any

import click

from dask_tfrecord.errors import printable, redact

__all__ = ["json_line", "log_to_stderr", "plain", "plain_lines"]


def plain(text: str) -> str:
    """Return text from a file without credentials; control characters are escaped, so that no terminal obeys them."""
    return printable(redact(text))


def json_line(values: Any) -> str:
    """Return values, or the JSON text of values, as one line of JSON that no terminal obeys."""
    text = values if isinstance(values, str) else json.dumps(values, ensure_ascii=False)
    # Other letters than printable ones occur in strings only.
    return "".join(letter if letter.isprintable() else json.dumps(letter)[1:-1] for letter in text)


def plain_lines(text: str) -> str:
    """Apply `plain` to each line."""
    return "\n".join(map(plain, text.split("\n")))


class _StderrHandler(logging.Handler):
    """Print messages on the current stderr: a progress bar replaces it, and moves below the text."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print a message on one line."""
        click.echo(plain(f"{record.levelname.lower()}: {record.getMessage()}"), err=True)


def log_to_stderr(level: int) -> Callable[[], None]:
    """Print messages of the library from a level on; return the function that ends this."""
    logger, handler = logging.getLogger("dask_tfrecord"), _StderrHandler()
    before = logger.level
    logger.setLevel(level)
    logger.addHandler(handler)

    def restore() -> None:
        logger.removeHandler(handler)
        logger.setLevel(before)

    return restore
