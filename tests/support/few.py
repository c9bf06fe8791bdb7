"""Parameters: the default run takes a few, slow tests take all."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def marked(value: Any, mark: pytest.MarkDecorator) -> Any:
    """Mark a parameter, or a tuple of parameters of one test."""
    return pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=mark)


def mostly_slow(values: Iterable[Any], each: int) -> list[Any]:
    """Mark parameters as slow, except the first of `each` in a row."""
    return [marked(value, pytest.mark.slow) if number % each else value for number, value in enumerate(values)]


def rising(default: Any, slow: Any, nightly: Any) -> list[Any]:
    """Return one parameter for each run: the default one, the one of slow tests, and the nightly one."""
    return [default, marked(slow, pytest.mark.slow), marked(nightly, pytest.mark.nightly)]
