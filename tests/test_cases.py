"""Every kind of column through every output: the arrays stay the same, bit for bit."""

from __future__ import annotations

from pathlib import Path

import pytest
from cases import COLUMNS, OUTPUTS


@pytest.mark.parametrize("output", OUTPUTS)
@pytest.mark.parametrize("columns", COLUMNS)
def test_columns_through_outputs(golden: Path, tmp_path: Path, columns: str, output: str) -> None:
    make, name = COLUMNS[columns]
    ds = make(golden, name)
    OUTPUTS[output](ds, ds.compute(), tmp_path)
