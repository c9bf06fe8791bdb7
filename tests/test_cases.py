"""Every kind of column through every output: the arrays stay the same, bit for bit."""

from __future__ import annotations

from pathlib import Path

import pytest
from cases import COLUMNS, OUTPUTS

# The columns of "every layout" take each way through an output; the others repeat it with TensorFlow's files.
QUICK = {"Zarr": ("items", "mixed numbers", "empty_file", "images", "sequence_example"), "Awkward": COLUMNS}
CASES = [
    (columns, output)
    if (columns == "every layout" and output != "virtual Zarr") or columns in QUICK.get(output, ())
    else pytest.param(columns, output, marks=pytest.mark.slow)
    for columns in COLUMNS
    for output in OUTPUTS
]


@pytest.mark.parametrize(("columns", "output"), CASES)
def test_columns_through_outputs(golden: Path, tmp_path: Path, columns: str, output: str) -> None:
    make, name = COLUMNS[columns]
    ds = make(golden, name)
    OUTPUTS[output](ds, ds.compute(), tmp_path)
