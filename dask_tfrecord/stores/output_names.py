"""Names of new files and directories that have the suffix of another format, or number files as other libraries do."""

from __future__ import annotations

import re
from pathlib import PurePosixPath

from dask_tfrecord.errors import redact_url, warn_caller

# Numbers in names as printf and globs write them, and no bytes of an encoded URL, such as %d0.
_NUMBERED = re.compile(r"%(?:0\d+)?d(?![0-9A-Za-z])|\*")


def with_fields(name: str) -> str:
    """Return a name with the fields of a template of shards for the numbers of printf, as in ``p-%05d``."""
    return _NUMBERED.sub("{shards:05d}", _NUMBERED.sub("{shard:05d}", name, count=1))


def check_not_numbered(directory: str) -> None:
    """Refuse the path of a new directory whose name numbers files."""
    above, slash, name = directory.rstrip("/").rpartition("/")
    if "{shard" in (fields := with_fields(name)):
        one = re.sub(r"[-_.]?(?:of-)?\{shards?\b[^}]*\}", "", fields)
        one = f"out{one}" if one[:1] in ("", ".") else one
        raise ValueError(
            f"{redact_url(directory)!r} numbers files, but the output is one directory, which numbers its files "
            f"itself: write {redact_url(f'{above}{slash}{one}')!r}"
        )


# Suffixes of formats, and what writes each, if it is of this library.
_WRITERS = {".zarr": "to_zarr", ".parquet": "to_parquet", ".tfrecord": "to_tfrecord"}
_WRITERS |= dict.fromkeys((".csv", ".json", ".jsonl", ".h5", ".hdf5", ".nc", ".zip"), "")


def warn_of_suffix(path: str, writer: str, own: str) -> None:
    """Warn of the name of a new file or directory whose suffix is that of another format than the writer's own."""
    suffix = PurePosixPath(path).suffix.lower()
    if suffix in _WRITERS and suffix != own:
        name, other = redact_url(path), _WRITERS[suffix]
        instead = f"write ds.{other}({name!r})" if other else f"write {name[: -len(suffix)] + own!r}"
        warn_caller(f"{writer} does not write {suffix} files: {instead}")
