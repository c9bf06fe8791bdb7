"""Where the tests find files of the repository."""

from pathlib import Path

TESTS = Path(__file__).parents[1]
REPOSITORY = TESTS.parent
DATA = TESTS / "data"
