"""Commands of the command line, in the process of the test."""

from __future__ import annotations

from click.testing import CliRunner, Result

from dask_tfrecord.cli.main import tfrecord


def run(*arguments: object, columns: int | None = 200) -> Result:
    """Run a command; wide tables have one line per feature."""
    runner = CliRunner(env={"COLUMNS": None if columns is None else str(columns)})
    return runner.invoke(tfrecord, list(map(str, arguments)), prog_name="dask-tfrecord")


def shown(*arguments: object, columns: int | None = 200) -> str:
    """Run a command that succeeds, and return what it prints."""
    result = run(*arguments, columns=columns)
    assert result.exit_code == 0, result.output
    return result.stdout
