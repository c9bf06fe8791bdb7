"""Table in docs/tensorflow.md: one test per row, by the name of the row.

`tensorflow_rows` holds the recorded results of TensorFlow; they are verified again if TensorFlow is available.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.parsing_compare import Answer, Request, columns, parse_with_tensorflow, read, rows, walk
from support.paths import REPOSITORY
from support.tensorflow_rows import DIES, REFUSED, ROWS, Row

PAGE = REPOSITORY / "docs" / "tensorflow.md"
LINE = re.compile(r"^\| `(?P<name>[a-z0-9-]+)` \| (?P<case>.+) \| (?P<theirs>.+) \| (?P<ours>.*) \|$")
# Rows about images have tests of their own, in `test_images`.
ELSEWHERE = "image-"


@pytest.fixture(scope="module")
def page() -> dict[str, re.Match[str]]:
    """Return the rows of the page, which differ from TensorFlow, by name."""
    _, differences = PAGE.read_text("utf-8").split("\n## Differences\n")
    lines = [line for line in differences.splitlines() if line.startswith("| `")]
    found = {}
    for line in lines:
        match = LINE.match(line)
        assert match is not None, f"not a row: {line}"
        assert match["name"] not in found, f"twice: {line}"
        found[match["name"]] = match
    return {name: match for name, match in found.items() if not name.startswith(ELSEWHERE)}


def request_for(row: Row) -> Request:
    kind = "Example" if row.sequences is None else "SequenceExample"
    return (kind, row.features, row.sequences, row.payloads)


def plain(nested: Any) -> Any:
    return walk(nested, lambda array: array.tolist())


def depth(array: Any) -> int:
    """Return the number of nested levels of object arrays in a column."""
    below = [depth(row) for row in array.ravel() if isinstance(row, np.ndarray)] if array.dtype == object else []
    return 1 + max(below) if below else 0


@pytest.mark.parametrize("name", ROWS)
def test_row(page: dict[str, re.Match[str]], name: str, tmp_path: Path) -> None:
    row = ROWS[name]
    verdict, found = read(request_for(row), tmp_path / "row.tfrecord")
    if isinstance(row.ours, type):
        assert verdict == "refused", found
        assert isinstance(found, row.ours), found
    else:
        assert verdict == "read", found
        # Lengths are tested by other rows.
        assert set(found) - set(row.ours) <= {f"{name}.lengths" for name in row.sequences or ()}
        assert repr({column: plain(rows(found[column], depth(found[column]))) for column in row.ours}) == repr(row.ours)
    if row.same:
        return
    # The page states the same.
    line = page[name]
    assert (line["theirs"] == "error") == (row.tensorflow == REFUSED)
    assert ("dies" in line["theirs"]) == (row.tensorflow == DIES)
    assert re.findall(r"`(\w+Error)`", line["ours"]) == ([row.ours.__name__] if isinstance(row.ours, type) else [])


def test_the_page_has_these_rows_and_no_others(page: dict[str, re.Match[str]]) -> None:
    assert list(page) == [name for name, row in ROWS.items() if not row.same]


@pytest.mark.tensorflow
@pytest.mark.parametrize("name", [name for name in ROWS if ROWS[name].tensorflow == DIES])
def test_tensorflow_still_crashes(tensorflow: str, name: str) -> None:
    with pytest.raises(subprocess.CalledProcessError) as died:
        parse_with_tensorflow(tensorflow, [request_for(ROWS[name])], alone=False)
    assert died.value.returncode < 0


ALIVE = [name for name in ROWS if ROWS[name].tensorflow != DIES]


@pytest.fixture(scope="module")
def answers(tensorflow: str) -> dict[str, Answer]:
    requests = [request_for(ROWS[name]) for name in ALIVE]
    return dict(zip(ALIVE, parse_with_tensorflow(tensorflow, requests, alone=False), strict=True))


@pytest.mark.tensorflow
@pytest.mark.parametrize("name", ALIVE)
def test_tensorflow_results_are_unchanged(answers: dict[str, Answer], name: str) -> None:
    row, (verdict, answer) = ROWS[name], answers[name]
    if row.tensorflow == REFUSED:
        assert verdict == "refused", answer
        return
    assert verdict == "read", answer
    found = columns(answer, {**(row.features or {}), **(row.sequences or {})}, row.steps)
    told = {name: plain(values) for name, (_, values) in found.items() if name in row.tensorflow}
    assert set(answer) <= {name.removesuffix(".indices") for name in row.tensorflow} | set(row.tensorflow) | set(
        f"{name}.lengths" for name in row.sequences or ()
    )
    assert repr({name: told[name] for name in row.tensorflow}) == repr(row.tensorflow)
