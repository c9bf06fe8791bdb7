"""Options of writers: one definition for functions, methods, their documentation, and commands."""

import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dask_tfrecord as dtf
from dask_tfrecord.cli.main import tfrecord
from dask_tfrecord.options import (
    BatchOptions,
    CopyOptions,
    LeRobotOptions,
    ParquetOptions,
    ShardOptions,
    TFRecordOptions,
    ZarrOptions,
    ZarrTargetOptions,
    ZarrWriteOptions,
    options_of,
    summary,
)

CALLS = [
    (dtf.to_zarr, ZarrWriteOptions),
    (dtf.Dataset.to_zarr, ZarrWriteOptions),
    (dtf.plan_zarr, ZarrOptions),
    (dtf.Dataset.plan_zarr, ZarrOptions),
    (dtf.to_tfrecord, TFRecordOptions),
    (dtf.Dataset.to_tfrecord, TFRecordOptions),
    (dtf.copy_tfrecord, CopyOptions),
    (dtf.to_parquet, ParquetOptions),
    (dtf.Dataset.to_parquet, ParquetOptions),
    (dtf.to_lerobot, LeRobotOptions),
    (dtf.Dataset.to_lerobot, LeRobotOptions),
    (dtf.Dataset.batches, BatchOptions),
]


@pytest.mark.parametrize(("function", "given"), CALLS, ids=lambda each: getattr(each, "__qualname__", None))
def test_signatures_and_documentation_have_each_option_once(function: Callable[..., Any], given: type) -> None:
    parameters = inspect.signature(function).parameters
    assert not [each for each in parameters.values() if each.kind is each.VAR_KEYWORD]
    assert function.__doc__
    section = re.search(r"Parameters\n-+\n(.*?)(\n\n|\Z)", inspect.cleandoc(function.__doc__), re.DOTALL)
    assert section is not None
    for name, (_, option) in options_of(given).items():
        assert parameters[name].default is option.default
        assert len(re.findall(rf"^{name} : .+\n    \S", section[1], re.MULTILINE)) == 1, name


@pytest.mark.parametrize(("misspelt", "meant"), [("chunk", "chunks"), ("fill_value", "fill_values"), ("depth", None)])
def test_an_unknown_option_is_refused_with_similar_names(misspelt: str, meant: str | None, tmp_path: Path) -> None:
    ds = dtf.Dataset.from_arrays({"x": np.arange(3)})
    said = rf"to_zarr\(\) got an unexpected keyword argument '{misspelt}'; "
    said += rf"did you mean '{meant}'" if meant else "there are .*'chunks', 'shards', 'compressors'"
    for write in (ds.to_zarr, lambda *given, **options: dtf.to_zarr(ds, *given, **options)):
        with pytest.raises(TypeError, match=said):
            write(tmp_path / "x.zarr", **{misspelt: 1})
    assert not list(tmp_path.iterdir())


def test_every_writer_refuses_unknown_options(tmp_path: Path) -> None:
    ds = dtf.Dataset.from_arrays({"x": np.arange(3)})
    for name, similar in {
        "to_tfrecord": "compresion",
        "to_parquet": "compresion",
        "to_lerobot": "robot",
        "plan_zarr": "shard",
        "batches": "seeds",
    }.items():
        first = {"plan_zarr": (), "batches": (2,)}.get(name, (tmp_path / "out",))
        with pytest.raises(
            TypeError, match=rf"{name}\(\) got an unexpected keyword argument '{similar}'; did you mean"
        ):
            getattr(ds, name)(*first, **{similar: 1})
    with pytest.raises(TypeError, match=r"copy_tfrecord\(\) got an unexpected keyword argument 'chunks'"):
        dtf.copy_tfrecord("a", tmp_path / "b", chunks=1)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"to_lerobot\(\) needs 'fps': write ds.to_lerobot\('robot', fps=10\)"):
        ds.to_lerobot(tmp_path / "out")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"to_lerobot\(\) needs 'arrays': write dtf.to_lerobot\(ds, 'robot', fps=10\)"):
        dtf.to_lerobot()  # type: ignore[call-arg]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("command", "given"),
    [
        ("to-zarr", (ZarrOptions, ZarrTargetOptions, ZarrWriteOptions)),
        ("to-lerobot", (LeRobotOptions,)),
        ("copy", (ShardOptions, CopyOptions)),
    ],
)
def test_flags_have_the_documentation_of_options(command: str, given: tuple[type, ...]) -> None:
    # Flags with another form than the option of Python have a help of their own.
    own_form = {"groups", "names", "columns", "features"}
    found = {each.name: each for each in tfrecord.commands[command].params}
    shared = [name for name in options_of(given[-1]) if name in found and name not in own_form]
    assert len(shared) >= 4
    for name in shared:
        assert getattr(found[name], "help", None) == re.sub(r'``"?(.*?)"?``|`(.*?)`', r"\1\2", summary(name, *given))
