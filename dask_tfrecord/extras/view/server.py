"""The server: a token and checks in front of all answers, the answers as JSON, images and event streams."""

from __future__ import annotations

import html
import json
import os
import re
import secrets
import socket
import tempfile
import threading
import time
import webbrowser
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from dask_tfrecord.blocks import Block
from dask_tfrecord.errors import Spelled, TFRecordError, describe_error, explain_missing, printable
from dask_tfrecord.extras.view.cells import Column, cell, columns_of, curves_of, groups_of, image, record_json
from dask_tfrecord.extras.view.opened import Opened
from dask_tfrecord.extras.view.passes import Pass, Refined, Search
from dask_tfrecord.extras.view.shard_map import locate, record_bytes, repair_plan, shard_list, shard_map, shown_path
from dask_tfrecord.features.code import schema_code
from dask_tfrecord.features.inference.report import Report
from dask_tfrecord.shards.listing import natural_order

with explain_missing("the view needs", "Starlette with uvicorn", "view"):
    import uvicorn
    from starlette.applications import Starlette
    from starlette.concurrency import run_in_threadpool
    from starlette.datastructures import Headers, MutableHeaders
    from starlette.requests import Request
    from starlette.responses import JSONResponse, Response, StreamingResponse
    from starlette.routing import Route

PAGE = Path(__file__).with_name("page")
_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
# Bounds of parameters.
_MOST_ROWS = 500
_MOST_CELLS = 4_096
_MOST_SAMPLE = 10_000
_MOST_EXPRESSION = 2_000
_MOST_WIDTH = 4_096
_MOST_SEARCHES = 8
# Seconds to wait for the first rows.
_FIRST = 10.0
_HOST = re.compile(r"(localhost|127\.0\.0\.1)(:\d{1,5})?")
_INSTRUCTION = re.compile(r"instruction|language|task|caption", re.IGNORECASE)
# Pages that may show the view in a frame: notebooks on this machine.
NOTEBOOKS = "'self' http://localhost:* http://127.0.0.1:* https://localhost:* https://127.0.0.1:* vscode-webview:"


class BadRequestError(ValueError):
    """A parameter of a request is missing or out of bounds."""


class RequestGuard:
    """ASGI application that answers only requests with the token, by pages of this server."""

    def __init__(self, app: Any, token: str, frames: str) -> None:
        self.app, self.token = app, token.encode()
        policy = (
            "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; connect-src 'self'; "
            f"base-uri 'none'; form-action 'none'; frame-ancestors {frames}"
        )
        self.headers = {
            "Content-Security-Policy": policy,
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer",
            "Cache-Control": "no-store",
            "Cross-Origin-Resource-Policy": "same-origin",
        }

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer a request, or refuse it."""
        if scope["type"] != "http":
            return

        async def send_with_headers(message: Any) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(self.headers)
            await send(message)

        inner = scope["path"][len(self.token) + 1 :]
        refused = self._reason_to_refuse(scope, Headers(scope=scope), inner)
        app = self.app if refused is None else _error(*refused)
        await app({**scope, "path": inner, "raw_path": inner.encode()}, receive, send_with_headers)

    def _reason_to_refuse(self, scope: Any, headers: Headers, inner: str) -> tuple[int, str] | None:
        """Return status and reason if a request is refused."""
        hosts = headers.getlist("host")
        if len(hosts) != 1 or not _HOST.fullmatch(hosts[0]):
            return 421, "the host is localhost or 127.0.0.1"
        if any(origin != f"http://{hosts[0]}" for origin in headers.getlist("origin")):
            return 403, "the request comes from another site"
        given = scope["path"].encode("utf-8", "replace")[1 : len(self.token) + 1]
        if not secrets.compare_digest(given, self.token) or not inner.startswith("/"):
            return 404, "not found"
        is_page = inner == "/" and headers.get("sec-fetch-mode", "navigate") == "navigate"
        if headers.get("sec-fetch-site", "none") not in ("none", "same-origin") and not is_page:
            return 403, "the request comes from another site"
        return None if scope["method"] == "GET" else (405, "only GET is answered")


def _error(status: int, title: str) -> JSONResponse:
    return JSONResponse({"error": printable(title)}, status)


def _integer(request: Request, name: str, default: int | None, most: int) -> int:
    """Return a parameter from 0 to `most`."""
    text = str(request.query_params.get(name, default))
    if not re.fullmatch(r"[0-9]{1,18}", text) or int(text) > most:
        raise BadRequestError(f"{name} must be a number from 0 to {most:,}; got {text!r:.50}")
    return int(text)


def _features_to_read(columns: Sequence[Column]) -> tuple[str, ...]:
    """Return the features of the cells of some columns, each once."""
    return tuple(dict.fromkeys(name for column in columns for name in column.reads))


class View:
    """Answers to the requests of pages about some data sets."""

    def __init__(self, sets: Sequence[Opened]) -> None:
        self.sets = list(sets)
        self._lock, self._closed = threading.Lock(), threading.Event()
        # Passes that pages follow; the filters that were used last.
        self._refined, self._searches = lru_cache(None)(Refined), lru_cache(_MOST_SEARCHES)(Search)
        self._columns: dict[Opened, tuple[Column, ...]] = {}

    def close(self) -> None:
        """End all work, and the streams of pages that are open."""
        self._closed.set()
        for data in self.sets:
            data.close()

    def _data(self, request: Request) -> Opened:
        return self.sets[_integer(request, "data", 0, len(self.sets) - 1)]

    def columns(self, data: Opened) -> tuple[Column, ...]:
        """Return the columns of a data set, whose kinds its first rows determine."""
        if data.schema is None:
            return ()
        with self._lock:
            if data not in self._columns:
                rows = range(min(4, data.wait(1, _FIRST).rows))
                found = columns_of(data.schema, list(data.read(tuple(data.schema), rows)))
                if not rows:
                    return found
                self._columns[data] = found
            return self._columns[data]

    def _column(self, data: Opened, name: Any) -> Column:
        for column in self.columns(data):
            if column.name == name:
                return column
        raise BadRequestError(f"no column {name!r:.100}")

    def _search(self, data: Opened, expression: str) -> Search:
        if len(expression) > _MOST_EXPRESSION:
            raise BadRequestError(f"an expression has at most {_MOST_EXPRESSION:,} letters")
        with self._lock:
            return self._searches(data, expression)

    def overview(self, request: Request) -> Any:
        """Answer shards, columns, hints and code."""
        data = self._data(request)
        columns, known, report = self.columns(data), data.known, data.report
        hints = [report] if isinstance(report, str) else []
        if isinstance(report, Report):
            # A feature that was given is read as its user wants.
            hints = [
                f"{each.name}: {hint.what}, {hint.agreed}" + (f"; read it with {hint.feature}" if hint.feature else "")
                for each in report.features
                for hint in each.suggestions
                if not data.features or data.features.get(each.name) == each.feature
            ]
        return {
            "data": self.sets.index(data),
            "sets": [shown_path(each.name) for each in self.sets],
            "name": shown_path(data.name),
            "kind": data.kind,
            "nrows": known.rows if known.counted else None,
            "found": known.rows,
            "message": data.message,
            "error": known.error,
            "shards": shard_list(data),
            "columns": [column.to_dict() for column in columns],
            "groups": [] if data.schema is None else list(groups_of(data.schema)),
            "hints": [printable(hint) for hint in hints],
            "code": data.code,
            "schema": None if data.schema is None else schema_code(data.schema),
        }

    def rows(self, request: Request) -> Any:
        """Answer the cells of rows in a range, found by a filter, or sampled."""
        data = self._data(request)
        names = request.query_params.getlist("column")
        columns = [self._column(data, name) for name in names] if names else self.columns(data)
        chosen = self._chosen(request, data)
        cells: dict[str, list[Any]] = {column.name: [] for column in columns}
        for blocks in data.read(_features_to_read(columns), chosen):
            for column in columns:
                cells[column.name].append(cell(column, blocks))
        return {"rows": list(chosen), "cells": cells}

    def _chosen(self, request: Request, data: Opened) -> Sequence[int]:
        """Return the numbers of the rows that a request asks for; a range counts those that a filter finds."""
        expression = request.query_params.get("filter")
        size = _integer(request, "sample", 0, _MOST_SAMPLE)
        start = _integer(request, "start", 0, 1 << 53)
        stop = _integer(request, "stop", start + 100, 1 << 53)
        if stop - start > (_MOST_SAMPLE if size else _MOST_ROWS):
            raise BadRequestError(f"a request has at most {_MOST_ROWS:,} rows")
        known = data.wait(stop, 1.0)
        if expression:
            search = self._search(data, expression)
            ended, until = threading.Event(), time.monotonic() + _FIRST
            while search.count < stop and not search.done and time.monotonic() < until:
                search.advance(ended)
            return search.found(start, stop)
        if size:
            rng = np.random.default_rng(_integer(request, "seed", 0, 1 << 53))
            sample: list[int] = np.sort(rng.choice(known.rows, min(size, known.rows), replace=False)).tolist()
            return sample
        return range(min(start, known.rows), min(stop, known.rows))

    def _read_row(self, request: Request, data: Opened, names: Sequence[str]) -> tuple[int, dict[str, Block | str]]:
        """Find a request's row, and read blocks for some features."""
        row = _integer(request, "row", None, 1 << 53)
        known = data.wait(row + 1, _FIRST)
        if row >= known.rows:
            raise BadRequestError(f"row {row:,} is past the {known.rows:,} rows that are counted")
        (blocks,) = data.read(names, [row])
        return row, blocks

    def row(self, request: Request) -> Any:
        """Answer everything about one row."""
        data = self._data(request)
        columns = self.columns(data)
        row, blocks = self._read_row(request, data, _features_to_read(columns))
        return {
            "location": locate(data, row),
            "nbytes": sum(int(block.nbytes) for block in blocks.values() if not isinstance(block, str)),
            "cells": {column.name: cell(column, blocks, whole=True) for column in columns},
            "json": record_json(blocks),
        }

    def image(self, request: Request) -> Any:
        """Answer an image at the size that is shown."""
        data = self._data(request)
        column = self._column(data, request.query_params.get("column"))
        if column.kind != "image":
            raise BadRequestError(f"column {column.name!r:.100} has no images")
        block = self._read_row(request, data, column.reads)[1][column.name]
        if isinstance(block, str):
            raise ValueError(block)
        width = max(1, _integer(request, "width", 256, _MOST_WIDTH))
        content, kind = image(block, _integer(request, "index", 0, 1 << 31), width)
        return Response(content, media_type=kind)

    def episode(self, request: Request) -> Any:
        """Answer a row's steps: a group's numbers, which columns are images, and a text."""
        data, group = self._data(request), request.query_params.get("group", "")
        names = groups_of(data.schema).get(group) if data.schema is not None else None
        if names is None:
            raise BadRequestError(f"no group {group!r:.100}")
        every = self.columns(data)
        columns = [column for column in every if column.name in names]
        texts = [each for each in every if each.kind in ("text", "sequence") and _INSTRUCTION.search(each.name)]
        _, blocks = self._read_row(request, data, _features_to_read([*columns, *texts]))
        steps, curves, maps = curves_of(columns, blocks)
        found = [cell(each, blocks, whole=True) for each in texts]
        told = [(each.get("value") or next(iter(each.get("values", [])), None)) for each in found if each]
        return {
            "length": steps,
            "instruction": next((text for text in told if isinstance(text, str) and text), None),
            "images": sorted((each.name for each in columns if each.kind == "image"), key=natural_order),
            "curves": curves,
            "maps": maps,
        }

    def shard(self, request: Request) -> Any:
        """Answer the map of the records of a shard."""
        start = _integer(request, "start", 0, 1 << 53)
        stop = min(_integer(request, "stop", start + 1024, 1 << 53), start + _MOST_CELLS)
        return shard_map(*self._shard(request), start, stop)

    def record(self, request: Request) -> Any:
        """Answer the bytes of a record."""
        return record_bytes(*self._shard(request), _integer(request, "offset", None, 1 << 53))

    def repair(self, request: Request) -> Any:
        """Answer what a repair would keep."""
        return repair_plan(*self._shard(request))

    def _shard(self, request: Request) -> tuple[Opened, int]:
        data = self._data(request)
        if data.shards is None:
            raise BadRequestError("these rows are not read from shards")
        return data, _integer(request, "shard", 0, len(data.shards) - 1)

    # -------------------------------------------------------------------------------------------------------- streams

    def statistics(self, request: Request) -> Response:
        """Stream statistics of all columns, of more and more rows."""
        with self._lock:
            refined = self._refined(self._data(request))
        return self._event_stream(request, partial(_follow, refined, lambda: {"columns": refined.to_dict()}))

    def filter(self, request: Request) -> Response:
        """Stream the rows for which an expression holds."""
        search, sent = self._search(self._data(request), request.query_params.get("expression", "")), 0

        def message() -> dict[str, Any]:
            nonlocal sent
            found = search.found(sent, sent + 10_000)
            sent += len(found)
            return {"found": found, "count": search.count, "code": search.code}

        return self._event_stream(request, partial(_follow, search, message))

    def changes(self, request: Request) -> Response:
        """Stream the shards that grew, changed or are missing."""
        data = self._data(request)
        before: dict[str, str] | None = None

        def step(ended: threading.Event) -> dict[str, Any] | None:
            nonlocal before
            if before is not None:
                ended.wait(0.5)
            changed = data.differing()
            if changed == before:
                return None
            before = changed
            listed = [{"name": shown_path(path), "what": what} for path, what in changed.items()]
            return {"changed": listed, "done": False}

        return self._event_stream(request, step)

    def _event_stream(self, request: Request, step: Callable[[threading.Event], dict[str, Any] | None]) -> Response:
        """Return an event stream of the results of a step, which is called until it is done or the page is closed."""
        ended = threading.Event()

        async def events() -> AsyncIterator[str]:
            try:
                done = False
                while not done and not self._closed.is_set() and not await request.is_disconnected():
                    try:
                        message = await run_in_threadpool(step, ended)
                    except (TFRecordError, MemoryError, OSError, ValueError) as error:
                        message = {"error": describe_error(error), "done": True}
                    done = message is not None and message["done"]
                    # A comment shows whether the page is still there.
                    yield ": waiting\n\n" if message is None else f"data: {json.dumps(message, allow_nan=False)}\n\n"
            finally:
                ended.set()

        return StreamingResponse(events(), media_type="text/event-stream")


def _follow(work: Pass, message: Callable[[], Mapping[str, Any]], ended: threading.Event) -> dict[str, Any]:
    work.advance(ended)
    known = work.data.known
    return {**message(), "rows": work.rows, "total": known.rows if known.counted else None, "done": work.done}


def _status_of(error: Exception) -> int:
    """Choose the HTTP status of an error: 422 for data that can't be shown, and 500 for faults of the server."""
    # An unknown feature is a TFRecordError and a LookupError.
    if isinstance(error, TFRecordError | ValueError | MemoryError | OSError | ImportError):
        return 422
    return 404 if isinstance(error, LookupError) else 500


def make_app(view: View, token: str, frames: str = "'none'") -> RequestGuard:
    """Make a view's application. Page files are listed now, so that no request names a path on disk."""
    files = {path.name: path.read_bytes() for path in PAGE.iterdir() if path.is_file()}

    def page(request: Request) -> Response:
        name = request.path_params.get("name") or "index.html"
        if name not in files:
            return _error(404, "not found")
        return Response(files[name], media_type=_TYPES.get(Path(name).suffix, "text/plain"))

    def answer(method: Callable[[Request], Any], request: Request) -> Response:
        try:
            found = method(request)
            return found if isinstance(found, Response) else JSONResponse(found)
        except BadRequestError as error:
            return _error(400, str(error))
        except Exception as error:
            return _error(_status_of(error), describe_error(error))

    names = ["overview", "rows", "row", "image", "episode", "shard", "record", "repair"]
    names += ["statistics", "filter", "changes"]
    routes = [Route(f"/api/{name}", partial(answer, getattr(view, name))) for name in names]
    routes += [Route("/", page), Route("/{name}", page)]
    return RequestGuard(Starlette(routes=routes), token, frames)


class Server(AbstractContextManager["Server"]):
    """A view that is served by a thread of this process; `Dataset.view` returns it.

    Attributes
    ----------
    url : str
        Address of the page, with its token.
    """

    def __init__(self, sets: Sequence[Opened], port: int = 0, frames: str = "'none'") -> None:
        if not isinstance(port, int) or not 0 <= port < 1 << 16:
            raise ValueError(f"port must be a number from 0, for a free one, to 65,535; got {port!r:.50}")
        self.view, token = View(sets), secrets.token_urlsafe(32)
        self._redirects: list[Path] = []
        try:
            # Requests wait from now on, until the thread answers them.
            self._socket = socket.create_server(("127.0.0.1", port), backlog=128)
        except OSError as error:
            self.view.close()
            said = f"port {port} of this machine can't be used ({os.strerror(error.errno or 0)}): "
            raise OSError(said + Spelled("write port=0 for a free one", "write --port 0 for a free one")) from error
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}/{token}/"
        app = make_app(self.view, token, frames)
        quiet: dict[str, Any] = {"log_config": None, "access_log": False, "server_header": False}
        config = uvicorn.Config(app, ws="none", lifespan="off", timeout_graceful_shutdown=1, **quiet)
        self._server = uvicorn.Server(config)
        serving = {"sockets": [self._socket]}
        self._thread = threading.Thread(target=self._server.run, kwargs=serving, name="view", daemon=True)
        self._thread.start()

    def open_browser(self) -> None:
        """Open the page in the browser.

        Other users can read the arguments of its process, so it gets a file that redirects to the page, which only this
        user can read, until the server is closed.
        """
        with tempfile.NamedTemporaryFile("w", prefix="dask-tfrecord-view-", suffix=".html", delete=False) as file:
            self._redirects.append(Path(file.name))
            url = html.escape(self.url)
            file.write(f'<!doctype html><meta http-equiv="refresh" content="0;url={url}"><a href="{url}">view</a>\n')
        webbrowser.open(self._redirects[-1].as_uri())

    def wait(self) -> None:
        """Wait until the server ends."""
        while self._thread.is_alive():
            self._thread.join(0.5)

    def close(self) -> None:
        """End the server and all of its work."""
        self._server.should_exit = True
        self.view.close()
        self._thread.join(timeout=30)
        self._socket.close()
        for path in self._redirects:
            path.unlink(missing_ok=True)

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<view at {self.url}>"

    def _repr_html_(self) -> str:
        return f'<iframe src="{self.url}" width="100%" height="640" style="border: 0"></iframe>'
