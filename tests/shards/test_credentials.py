"""Credentials in URLs and in storage_options: absent from everything that is displayed, stored, logged or raised."""

import base64
import dataclasses
import importlib
import json
import logging
import pickle
import pkgutil
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import distributed
import fsspec
import numpy as np
import pytest
import xarray
from dask.base import tokenize
from support import servers
from support.commands import run
from tblib import pickling_support

import dask_tfrecord as dtf
from dask_tfrecord.errors import redact, redact_url
from dask_tfrecord.extras.interop.xarray_engine import TFRecordBackendEntrypoint
from dask_tfrecord.shards.listing import find_shards
from dask_tfrecord.shards.objects import StoredFile, check_files, file_identity, list_files, remove_abandoned
from dask_tfrecord.shards.shard import Shards
from dask_tfrecord.shards.streams import open_sink
from dask_tfrecord.stores.zarr.fingerprint import Fingerprint

PASSWORD, SIGNATURE, PLAIN = "pa55w0rd-of-the-user", "5ignature%2Fof%3Dthe-request", "5ignature/of=the-request"
FEATURES = {"x": dtf.FixedLenFeature((2,), "float32")}
RENEWED = "renewed-signature"


def shard(directory: Path, rows: int = 3) -> bytes:
    path = directory / "plain.tfrecord"
    dtf.to_tfrecord({"x": np.arange(2 * rows, dtype=np.float32).reshape(rows, 2)}, path, mode="w")
    return path.read_bytes()


class Guarded:
    """Files protected by password and signature, in the URL or in storage_options, and the secrets to search for."""

    def __init__(self, address: str, way: str, files: dict[str, bytes], log: servers.Log) -> None:
        self.address, self.way, self.files, self.log = address, way, files, log
        login = base64.b64encode(f"user:{PASSWORD}".encode()).decode()
        self.options = {"headers": {"Authorization": f"Basic {login}"}} if way == "options" else None
        self.secrets = [PASSWORD, SIGNATURE, PLAIN, login]

    def url(self, name: str, password: str = PASSWORD, signature: str = SIGNATURE) -> str:
        if self.way == "options":
            return f"{self.address}/{name}"
        chain = "simplecache::" if self.way == "chained" else ""
        host = self.address.removeprefix("http://")
        return f"{chain}http://user:{password}@{host}/{name}?X-Amz-Expires=60&X-Amz-Signature={signature}"

    def read(self, name: str = "x.tfrecord", **options: Any) -> dtf.Dataset:
        return dtf.read_tfrecord(self.url(name), FEATURES, storage_options=self.options, **options)

    def check(self, artefact: object) -> None:
        text = artefact.decode("latin-1") if isinstance(artefact, bytes) else str(artefact)
        found = [secret for secret in self.secrets if secret in text]
        assert not found, text[:2000]


@contextmanager
def guarding(directory: Path, way: str = "url", rows: int = 3, etags: bool = False) -> Iterator[Guarded]:
    files = {"x.tfrecord": shard(directory, rows)}
    files["cut.tfrecord"] = files["x.tfrecord"][:-3]
    signature = "" if way == "options" else "X-Amz-Signature="
    guards = {"files": files, "etags": {"x.tfrecord": "1"} if etags else {}, "password": PASSWORD}
    with servers.running(servers.GuardedFiles, **guards, signature=signature) as (address, log):
        yield Guarded(address, way, files, log)


@pytest.fixture(params=["url", "chained", "options"])
def guarded(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Guarded]:
    with guarding(tmp_path, request.param, etags=True) as guarded:
        yield guarded


def written(directory: Path) -> Iterator[bytes]:
    """Names and bytes of all files of a directory, or of one file."""
    for path in [directory, *directory.rglob("*")]:
        yield str(path).encode()
        if path.is_file():
            yield path.read_bytes()


def reading(guarded: Guarded, tmp_path: Path) -> Iterator[object]:
    dataset = guarded.read()
    assert np.array_equal(dataset.compute()["x"], np.arange(6, dtype=np.float32).reshape(3, 2))
    yield from (repr(dataset), dataset._repr_html_(), dataset.origin, dataset.schema, repr(dataset["x"]))
    yield list(dataset["x"].dask)
    yield guarded.read(counts=None).origin
    yield dtf.infer_schema(guarded.url("x.tfrecord"), storage_options=guarded.options).to_json()
    opened = xarray.open_dataset(
        guarded.url("x.tfrecord"),
        engine=TFRecordBackendEntrypoint,
        features=FEATURES,
        chunks={},
        storage_options=guarded.options,
    )
    assert opened["x"].sum() == 15
    yield from (repr(opened), repr(opened.encoding), opened["x"].attrs, list(opened.__dask_graph__()))
    yield repr(find_shards(guarded.url("x.tfrecord"), storage_options=guarded.options))


def converting(guarded: Guarded, tmp_path: Path) -> Iterator[object]:
    dataset = guarded.read()
    yield repr(dataset.plan_zarr())
    dataset.to_zarr(tmp_path / "s.zarr")
    yield from written(tmp_path / "s.zarr")
    store = dtf.from_zarr(tmp_path / "s.zarr")
    yield from (repr(store), store.origin)
    dataset.to_tfrecord(tmp_path / "copies" / "y-{shard:02d}.tfrecord", index=True)
    yield from written(tmp_path / "copies")
    delayed = dataset.to_zarr(tmp_path / "later.zarr", compute=False)
    yield list(delayed.dask)
    yield from written(tmp_path / "later.zarr") if (tmp_path / "later.zarr").exists() else ()


def referring(guarded: Guarded, tmp_path: Path) -> Iterator[object]:
    if guarded.way == "chained":
        with pytest.raises(ValueError, match="plain path") as caught:
            dtf.virtual_zarr(guarded.url("x.tfrecord"), FEATURES)
        yield caught.value
        return
    virtual = dtf.virtual_zarr(guarded.url("x.tfrecord"), FEATURES, storage_options=guarded.options)
    yield from (repr(virtual), virtual.files, virtual.attributes, json.dumps(virtual.references()))
    virtual.to_json(tmp_path / "r.json")
    virtual.to_parquet(tmp_path / "r.parquet")
    yield from (*written(tmp_path / "r.json"), *written(tmp_path / "r.parquet"))


def checking(guarded: Guarded, tmp_path: Path) -> Iterator[object]:
    for name in ("x.tfrecord", "cut.tfrecord"):
        report = dtf.verify(guarded.url(name), storage_options=guarded.options)
        yield from (repr(report), report.to_json(), pickle.dumps(report))
    repaired = tmp_path / "repaired.tfrecord"
    yield dtf.repair(guarded.url("cut.tfrecord"), repaired, storage_options=guarded.options)
    yield from written(tmp_path)


def running_commands(guarded: Guarded, tmp_path: Path) -> Iterator[object]:
    if guarded.way == "options":
        return
    (tmp_path / "f.json").write_text(dtf.Schema(FEATURES).to_json(), "utf-8")
    url, out = guarded.url("x.tfrecord"), str(tmp_path / "out")
    for arguments in (
        *(["info", url], ["info", url, "--json"], ["info", url, "--spec"], ["verify", url], ["verify", url, "--json"]),
        *(["verify", guarded.url("cut.tfrecord")], ["info", guarded.url("cut.tfrecord")]),
        *(["to-zarr", url, f"{out}.zarr", "--plan"], ["to-zarr", url, f"{out}.zarr"], ["index", url]),
        *(["virtual", url, f"{out}.json", "--features", str(tmp_path / "f.json")], ["info", guarded.url("missing")]),
        *(["repair", url, f"{out}.tfrecord", "--json"], ["copy", url, f"{out}2.tfrecord"]),
        *(["info", guarded.url("x.tfrecord", password="wrong")], ["virtual", url, url], ["to-tfrecord", url, url]),
    ):
        result = run(*arguments)
        yield from (result.stdout, result.stderr)
        assert not isinstance(result.exception, AssertionError)


def everything_of(error: BaseException) -> Iterator[object]:
    """Texts and pickles of an error, its notes, causes and contexts."""
    yield from (repr(error), "".join(traceback.format_exception(error)))
    links: list[BaseException] = [error]
    for link in links:
        links += [each for each in (link.__cause__, link.__context__) if each is not None and each not in links]
    # Clusters pickle causes and contexts too.
    pickling_support.install(*links)
    yield pickle.dumps(error)
    for link in links:
        yield from (str(link), repr(link), *getattr(link, "__notes__", ()))


def failing(guarded: Guarded, tmp_path: Path) -> Iterator[object]:
    stale = guarded.read(counts=[3])

    def changed() -> None:
        guarded.files["x.tfrecord"] = guarded.files["x.tfrecord"][:50]
        stale.compute()

    def gone() -> None:
        del guarded.files["x.tfrecord"]
        stale.compute()

    options = guarded.options
    calls: list[Callable[[], object]] = [
        lambda: guarded.read("missing.tfrecord"),
        lambda: guarded.read("cut.tfrecord"),
        lambda: guarded.read(columns=["y"]),
        lambda: guarded.read(counts=[4]).compute(),
        lambda: guarded.read(counts=[2]).compute(),
        lambda: guarded.read(split="train"),
        lambda: next(dtf.read_records(guarded.url("missing"), storage_options=options)),
        lambda: list(dtf.read_records(guarded.url("cut.tfrecord"), storage_options=options)),
        lambda: dtf.read_tfrecord(
            guarded.url("x.tfrecord"), {"x": dtf.FixedLenFeature((3,), "float32")}, storage_options=options
        ).compute(),
        lambda: dtf.Schema.read(guarded.url("x.tfrecord"), storage_options=options),
        lambda: dtf.build_index(guarded.url("x.tfrecord"), storage_options=options),
        lambda: guarded.read().to_tfrecord(guarded.url("x.tfrecord")),
        lambda: guarded.read().to_zarr(guarded.url("x.zarr"), storage_options=options),
        lambda: dtf.from_zarr(guarded.url("x.zarr"), storage_options=options),
        lambda: dtf.read_tfrecord(guarded.url("x.tfrecord", "wr0ng-" + PASSWORD), FEATURES),
        lambda: dtf.read_tfrecord(guarded.url("x.tfrecord").replace("http", "nohttp"), FEATURES),
        *((changed, gone) if guarded.way != "chained" else ()),
    ]
    for call in calls:
        with pytest.raises(Exception) as caught:
            call()
        yield from everything_of(caught.value)


def calling_functions(guarded: Guarded, tmp_path: Path) -> Iterator[object]:
    """Functions of the user that fail: notes name the rows, and their file."""

    def fail(blocks: dict[str, Any]) -> dict[str, Any]:
        raise RuntimeError("the function fails")

    def cut(blocks: dict[str, Any]) -> dict[str, Any]:
        return {"x": blocks["x"][:1]}

    store = tmp_path / "kept.zarr"
    guarded.read().to_zarr(store)
    for counts in (None, "scan"):
        for function in (fail, cut, lambda blocks: {"x": "text"}, lambda blocks: 3):
            ds = guarded.read(**({"counts": None} if counts is None else {})).map_blocks(function, FEATURES)
            yield from (repr(task) for task in dict(ds["x"].dask).values())
            calls: list[Callable[[], object]] = [
                lambda ds=ds: ds.compute(),
                lambda ds=ds: ds["x"].compute(),
                lambda ds=ds: list(ds.batches(2)) if ds["x"].shape[0] == 3 else ds.compute(),
                lambda ds=ds: ds.to_zarr(tmp_path / "m.zarr", mode="w") if ds["x"].shape[0] == 3 else ds.compute(),
                lambda ds=ds: ds.to_tfrecord(tmp_path / "m-{shard}.tfrecord", mode="w"),
                lambda ds=ds: ds.to_parquet(tmp_path / "m", mode="w"),
                lambda ds=ds: ds.where(lambda blocks: blocks["x"][:, 0] > 0, columns=["x"]).compute(),
                lambda ds=ds, function=function: ds.assign(y=ds["x"] + 1).map_blocks(function, FEATURES).compute(),
            ]
            for call in calls:
                with pytest.raises(Exception) as caught:
                    call()
                yield from everything_of(caught.value)
    yield from written(tmp_path)


def failing_on_a_cluster(guarded: Guarded, tmp_path: Path) -> Iterator[object]:
    """Workers log the tasks that fail, with their arguments."""

    def fail(blocks: dict[str, Any]) -> dict[str, Any]:
        raise RuntimeError("the function fails")

    with distributed.Client(n_workers=1, threads_per_worker=1, processes=False, dashboard_address=None) as client:
        checked = dtf.check_workers(client, [guarded.url("x.tfrecord"), guarded.url("none.tfrecord")], guarded.options)
        yield from (repr(checked), str(checked), pickle.dumps(checked))
        stale = guarded.read(counts=[2])
        calls: list[Callable[[], object]] = [
            lambda: guarded.read().map_blocks(fail, FEATURES).compute(),
            lambda: guarded.read().map_blocks(fail, FEATURES).to_zarr(tmp_path / "c.zarr", mode="w"),
            lambda: guarded.read().map_blocks(fail, FEATURES).to_tfrecord(tmp_path / "c.tfrecord"),
            lambda: guarded.read().to_tfrecord(guarded.url("y.tfrecord"), storage_options=guarded.options),
            lambda: guarded.read().to_zarr(guarded.url("y.zarr"), storage_options=guarded.options),
            lambda: stale["x"].compute(),
        ]
        for call in calls:
            with pytest.raises(Exception) as caught:
                call()
            yield from everything_of(caught.value)


@pytest.mark.integration
@pytest.mark.parametrize(
    "use",
    [
        *(reading, converting, referring, checking, running_commands, failing, calling_functions),
        failing_on_a_cluster,
    ],
)
def test_no_credentials_in_what_is_displayed_stored_logged_or_raised(
    guarded: Guarded, use: Callable[..., Iterator[object]], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert distributed.__version__
    out = tmp_path / "out"
    out.mkdir()
    with warnings.catch_warnings(record=True) as warned, caplog.at_level(logging.DEBUG, "dask_tfrecord"):
        warnings.simplefilter("always")
        for artefact in use(guarded, out):
            guarded.check(artefact)
    guarded.check([str(warning.message) for warning in warned])
    guarded.check(caplog.text)


def test_no_credentials_in_the_repr_of_arguments_of_tasks() -> None:
    """Workers log them. All classes are searched: a new one with options of stores is tested as well."""
    tested = set()
    for found in pkgutil.walk_packages(dtf.__path__, "dask_tfrecord."):
        for name, kind in vars(importlib.import_module(found.name)).items():
            options = "storage_options" in {each.name for each in getattr(kind, "__dataclass_fields__", {}).values()}
            if options and isinstance(kind, type) and kind is not Shards:
                value = object.__new__(kind)
                for each in dataclasses.fields(kind):
                    object.__setattr__(value, each.name, f"http://user:{PASSWORD}@host/x y?sig={SIGNATURE}")
                object.__setattr__(value, "storage_options", {"password": PASSWORD})
                assert not [secret for secret in (PASSWORD, SIGNATURE) if secret in repr(value)], repr(value)
                assert "://host/x" in repr(value)
                tested.add(name)
    assert tested >= {"Shard", "ShardNames", "UrlObjects", "TargetGroup"}


@pytest.mark.parametrize(
    ("url", "redacted"),
    [
        ("https://user:pw@h:80/a?x=1#f", "https://h:80/a"),
        ("https://token@h/a", "https://h/a"),
        ("simplecache::https://u:pw@h/x?X-Amz-Signature=a/b::c", "simplecache::https://h/x"),
        ("zip://a::https://u:pw@h/z.zip?s=1", "zip://a::https://h/z.zip"),
        ("https://h/x?X-Amz-Signature=a&X-Amz-Signature=b", "https://h/x"),
        ("https://u:p/w@h/x", "https://h/x"),
        ("https://u:p?w@h/x", "https://h/x"),
        ("https://[::1]:8/x?y", "https://[::1]:8/x"),
        ("ftp://u:pw@h/x", "ftp://h/x"),
        ("s3://k:s@b/x?X-Amz-Signature=1&versionId=3", "s3://b/x"),
        ("abfs://container@h/p?sv=1&sig=2", "abfs://container@h/p"),
        ("abfs://user:pw@h/p", "abfs://h/p"),
        ("s3://b/k?versionId=3", "s3://b/k?versionId=3"),
        ("s3://b/part-?????-of-8", "s3://b/part-?????-of-8"),
        ("github://org:repo@main/p", "github://org:repo@main/p"),
        ("https://h/train@8", "https://h/train@8"),
        ("/tmp/http://u:pw@h?a=b", "/tmp/http://u:pw@h?a=b"),
        ("file:///tmp/a?b=c", "file:///tmp/a?b=c"),
    ],
)
def test_user_info_and_query_are_removed_and_nothing_else(url: str, redacted: str) -> None:
    assert redact_url(url) == redacted
    assert redact_url(redacted) == redacted
    if "?" not in redacted:
        text = f"url='{url}', URL(\"{url}\") and {url}: cut"
        assert redact(text) == text.replace(url, redacted) or url.startswith(("/", "file"))


def shards_of(*paths: str) -> Shards:
    return Shards(paths, np.full(len(paths), 9, np.int64), ("1",) * len(paths), None, {})


def test_a_renewed_signature_names_the_same_file_and_another_query_another() -> None:
    first, second = (f"https://u:{word}@h/x?id=1&X-Amz-Signature={word}&token={word}" for word in ("old", "new"))
    assert tokenize(shards_of(first)) == tokenize(shards_of(second))
    assert tokenize(shards_of("https://h/x?id=1")) != tokenize(shards_of("https://h/x?id=2"))
    chained = [f"simplecache::{url}" for url in (first, second)]
    assert tokenize(shards_of(chained[0])) == tokenize(shards_of(chained[1]))


def test_a_conversion_is_resumed_under_a_renewed_signature(tmp_path: Path) -> None:
    # Without an ETag, the version of a file is a digest of its properties, which include the URL.
    with guarding(tmp_path, rows=40) as guarded:
        first, renewed = (
            dtf.read_tfrecord(guarded.url("x.tfrecord", signature=word), FEATURES, chunks=10)
            for word in (SIGNATURE, RENEWED)
        )
        before, after = (Fingerprint.from_rows(ds.as_rows(), ds.schema, {}) for ds in (first, renewed))
        assert before == after
        first.to_zarr(tmp_path / "s.zarr")
        renewed.to_zarr(tmp_path / "s.zarr", resume=True)
    assert dtf.from_zarr(tmp_path / "s.zarr").compute()["x"].shape == (40, 2)


def test_references_are_read_with_credentials_among_the_remote_options(tmp_path: Path) -> None:
    with guarding(tmp_path) as guarded:
        virtual = dtf.virtual_zarr(guarded.url("x.tfrecord"), FEATURES)
        assert virtual.files == (f"{guarded.address}/x.tfrecord",)
        options = {
            "headers": {"Authorization": aiohttp.encode_basic_auth("user", PASSWORD)},
            "params": {"X-Amz-Signature": PLAIN},
        }
        fs = fsspec.filesystem("reference", fo=virtual.references(), remote_options=options, remote_protocol="http")
        assert np.array([2.0, 3.0], "<f4").tobytes() in fs.cat_file("x/c/0/0")
        # Only the query distinguishes these shards.
        with pytest.raises(ValueError, match=r"several shards have this URL and differ in user info or query"):
            dtf.virtual_zarr([guarded.url("x.tfrecord", signature=word) for word in (SIGNATURE, RENEWED)], FEATURES)


class Unopenable(fsspec.AbstractFileSystem):
    """File system whose constructor puts the URL into its error."""

    protocol = "unopenable"
    cachable = False

    @classmethod
    def _get_kwargs_from_urls(cls, path: str) -> dict[str, Any]:
        return {"url": path}

    def __init__(self, url: str) -> None:
        raise ValueError(f"cannot open {url}")


@pytest.mark.parametrize(
    "use",
    [
        lambda url: file_identity(url, {}),
        lambda url: list_files(url, {}),
        lambda url: check_files({url: StoredFile(1)}, {}),
        lambda url: remove_abandoned([url], {}),
        lambda url: open_sink(url),
        lambda url: find_shards(url),
    ],
)
def test_errors_of_opening_a_file_system_hold_no_credentials(
    use: Callable[[str], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules["fsspec.registry"]._registry, "unopenable", Unopenable)
    with pytest.raises(ValueError, match="cannot open unopenable://host") as caught:
        use(f"unopenable://user:{PASSWORD}@host/x")
    # Source lines of a traceback hold the name of the constant, not the password.
    assert PASSWORD not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("name", ["x.desc", "x.proto"])
def test_errors_of_the_file_of_a_message_hold_no_credentials(tmp_path: Path, name: str) -> None:
    (tmp_path / "x.tfrecord").write_bytes(shard(tmp_path))
    with pytest.raises(dtf.TFRecordError, match="the file of a message has a local path") as caught:
        dtf.read_tfrecord(tmp_path / "x.tfrecord", message=f"https://user:{PASSWORD}@host/{name}?sig={PLAIN}:a.B")
    told = "".join(traceback.format_exception(caught.value))
    assert PASSWORD not in told and PLAIN not in told
