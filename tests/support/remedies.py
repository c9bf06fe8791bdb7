"""Code that messages recommend: found in their text, to be executed."""

from __future__ import annotations

import ast
import contextlib
import itertools
import re
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask
import numpy as np

import dask_tfrecord as dtf

# A name that examples use, with an attribute, a call or an item after it.
_NAMES = "ds|dtf|dask_tfrecord|rows|mixed|itertools|numpy|torch|tf|pandas|pyarrow|dask|xarray|next|list|print"
_START = re.compile(rf"(?<![\w.'\"])(?:(?:{_NAMES})(?:\.\w|[\[(])|\w+Feature\(|len\(ds\b)")
_PAIRS = {"(": ")", "[": "]", "{": "}"}


def calls(message: str) -> Iterator[str]:
    """Yield the code in a message: between backticks, or an expression like ``ds.rows[0]`` among words."""
    for code in re.findall("`([^`]+)`", message):
        if "(" in code and _parses(code):
            yield code
    message = re.sub("`[^`]+`", "", message)
    at = 0
    while found := _START.search(message, at):
        at = _end(message, found.start())
        code = message[found.start() : at].rstrip(".")
        # An error begins with the name of the function, and these tests do not start a cluster.
        is_subject = message[at:].startswith((" needs", " got"))
        if re.search(r"[(\[]", code) and not is_subject and "client" not in code:
            yield code


def conditions(message: str) -> Iterator[str]:
    """Yield the conditions that a message writes in double quotes at its end."""
    yield from re.findall(r': "(.*)"\.?$', message)


def _end(text: str, start: int) -> int:
    """Return where code ends: at a space or a sign of punctuation outside of its brackets."""
    opened: list[str] = []
    quote = ""
    for at in range(start, len(text)):
        letter = text[at]
        if quote:
            quote = "" if letter == quote and text[at - 1] != "\\" else quote
        elif letter in "'\"":
            quote = letter
        elif letter in _PAIRS:
            opened.append(_PAIRS[letter])
        elif opened and letter == opened[-1]:
            opened.pop()
        elif not opened and letter in ")]}`,;: \n":
            return at
    return len(text)


def _parses(code: str) -> bool:
    try:
        ast.parse(code)
    except SyntaxError:
        return False
    return True


class Namespace(dict[str, Any]):
    """Names that remedies use, in a folder of shards; readers get the path of a shard, writers a new one."""

    def __init__(self, folder: Path, ds: dtf.Dataset) -> None:
        self.folder, self.written = folder, 0
        self.shard, *_, other = sorted(folder.glob("train-*"))
        super().__init__(ds=ds, dtf=dtf, dask_tfrecord=dtf, np=np, numpy=np, dask=dask, itertools=itertools)
        self.update(torch=TORCH, tf=TF, other=other, mixed=ds.shuffle(seed=0), rows=ds.as_sequence())
        self.update(array=np.arange(ds.nrows or 0), function=dict, features=None, key=[0], name="label", signature=None)
        self.update(NAME="label", dtype="int64", frame=ds.to_dataframe().compute(), block=RAGGED)
        self["pandas"] = types.SimpleNamespace(read_parquet=lambda _: self["frame"], read_csv=lambda _: self["frame"])
        self.update(
            mask=np.ones(ds.nrows or 0, bool), condition="label > 1", blocks=next(ds.batches(ds.nrows or 1)), value=3
        )
        self.update(data=next(iter(dtf.read_records(self.shard))), batch=next(ds[[next(iter(ds))]].batches(2)))
        self.update({name: cls for name, cls in vars(dtf.features).items() if name.endswith("Feature")})
        for name in ("pyarrow", "xarray", "zarr"):
            with contextlib.suppress(ImportError):
                self[name] = __import__(name)

    def execute(self, code: str) -> Any:
        """Evaluate an expression, or execute statements."""
        is_reader = re.match(r"(?:ds = )?(?:dtf\.(?:read_|from_|inspect|infer|verify)|dtf\.to_zarr\(dtf\.read)", code)
        self.written += 1
        self["path"] = str(self.shard) if is_reader else str(self.folder / f"written-{self.written}")
        try:
            return eval(compile(code, code, "eval"), self)
        except SyntaxError:
            return exec(compile(code, code, "exec"), self)


RAGGED = dtf.RaggedBlock(np.arange(3), np.array([0, 1, 3]))


# Stand for libraries that need not be installed: whatever is called is consumed once.
def _consume(given: Any, *_: Any, **__: Any) -> Any:
    return next(iter(given() if callable(given) else given))


TORCH = types.SimpleNamespace(
    from_numpy=np.asarray, utils=types.SimpleNamespace(data=types.SimpleNamespace(DataLoader=_consume))
)
TF = types.SimpleNamespace(data=types.SimpleNamespace(Dataset=types.SimpleNamespace(from_generator=_consume)))


def executed(message: str, namespace: Namespace) -> None:
    """Execute the code that a message names, and the conditions."""
    for code in calls(message):
        with contextlib.chdir(namespace.folder):
            try:
                found = namespace.execute(code)
            except Exception as error:
                if "none of the suitable backend libraries" in str(error):
                    # xarray needs another package for NetCDF.
                    continue
                raise AssertionError(f"{code!r} of {message!r} fails: {error!r}") from error
        # Batches are closed by the end of their iterator.
        if hasattr(found, "batches_per_epoch"):
            with found:
                assert next(found)
    for text in conditions(message):
        namespace["ds"].where(text)
