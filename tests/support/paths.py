"""Paths of files of the repository, for tests."""

from pathlib import Path

TESTS = Path(__file__).parents[1]
REPOSITORY = TESTS.parent
DATA = TESTS / "data"
