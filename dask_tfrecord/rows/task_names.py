"""Names of tasks: the keys of graphs. Dashboards of dask group tasks by name.

A key of a graph has one definition: the token that ends a name identifies the result of a task, or is random.
`dask.utils.key_split` takes the first word of a name whole. Words are divided by hyphens, and it ends a name before the
first of the others that is not of letters alone, or has eight and begins with one of a to f, like "counting". So labels
and columns follow a colon.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

from dask.base import tokenize

from dask_tfrecord.errors import printable


def column_key(step: str, column: str, token: str) -> str:
    """Name the tasks that make a column."""
    return f"tfrecord:{step}:{printable(column).replace('-', chr(0x2010))}-{token}"


def step_key(step: str, *identity: object) -> str:
    """Name tasks by a word for what they do; without an identity, no other tasks have the name."""
    return f"tfrecord-{step}-{_token(identity)}"


def label_key(label: str, *identity: object) -> str:
    """Name tasks by the label of their progress bar; without an identity, no other tasks have the name."""
    return f"tfrecord:{label.lower().replace(' ', '-')}-{_token(identity)}"


def task_name(step: Callable[..., Any], token: str) -> str:
    """Name the tasks of a writer by their function; their keys are ``(name, 0)``, ``(name, 1)`` and so on."""
    return f"tfrecord-{step.__name__.strip('_').replace('_', '-')}-{token}"


def _token(identity: tuple[object, ...]) -> str:
    return tokenize(*identity) if identity else uuid.uuid4().hex
