"""Permissions that hold for tests too, which may run as root."""

import contextlib
import os
from collections.abc import Iterator

import pytest


@contextlib.contextmanager
def without_privileges() -> Iterator[None]:
    """Drop the privileges of root, which may do everything."""
    if not hasattr(os, "geteuid"):
        pytest.skip("no users on this system")
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(user)
