"""The server: a token and checks in front of all answers, the answers as JSON, images and event streams."""

from __future__ import annotations

import json
import re
import secrets
import socket
import threading
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dask_tfrecord.arrays.sources import RecordSource
from dask_tfrecord.errors import TFRecordError, describe_error, printable, redact_url
from dask_tfrecord.inspection.report import Report
from dask_tfrecord.view.cells import Column, cell, columns_of, groups_of, image, numbers, record_json
from dask_tfrecord.view.opened import KEPT, BlockCache, Opened, open_dataset
from dask_tfrecord.view.passes import Pass, Refined, Search
from dask_tfrecord.view.shard_map import record_bytes, repair_plan, shard_map

try:
    import uvicorn
    from starlette.applications import Starlette
    from starlette.concurrency import run_in_threadpool
    from starlette.requests import Request
    from starlette.responses import JSONResponse, Response, StreamingResponse
    from starlette.routing import Route
except ImportError as error:
    raise ImportError(
        "the view needs Starlette and uvicorn, which are not installed: pip install 'dask-tfrecord[view]'",
        name=error.name,
    ) from error

if TYPE_CHECKING:
    from dask_tfrecord.arrays.dataset import Dataset

PAGE = Path(__file__).with_name("page")
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
# Bounds of parameters.
_MOST_ROWS = 500
_MOST_CELLS = 4_096
_MOST_SAMPLE = 10_000
_MOST_EXPRESSION = 2_000
_MOST_WIDTH = 4_096
_MOST_STEPS = 5_000
_MOST_CURVES = 64
_MOST_SEARCHES = 8
_MOST_SHARDS = 10_000
# Seconds to wait for the first rows.
_FIRST = 10.0
_HOST = re.compile(r"(localhost|127\.0\.0\.1)(:\d{1,5})?")
_INSTRUCTION = re.compile(r"instruction|language|task|caption", re.IGNORECASE)
_MEMORY = 512 << 20
# Pages that may show the view in a frame: notebooks on this machine.
_NOTEBOOKS = "'self' http://localhost:* http://127.0.0.1:* https://localhost:* https://127.0.0.1:* vscode-webview:"


class BadRequestError(ValueError):
    """A parameter of a request is missing or out of bounds."""


class Guard:
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
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            return

        async def send_with_headers(message: Any) -> None:
            if message["type"] == "http.response.start":
                added = [(name.lower().encode(), value.encode()) for name, value in self.headers.items()]
                names = {name for name, _ in added}
                message["headers"] = [pair for pair in message["headers"] if pair[0] not in names] + added
            await send(message)

        refused = self._refusal(scope)
        if refused is not None:
            await _error(*refused)(scope, receive, send_with_headers)
            return
        prefix = len(self.token) + 1
        inner = {**scope, "path": scope["path"][prefix:], "raw_path": scope["path"][prefix:].encode()}
        await self.app(inner, receive, send_with_headers)

    def _refusal(self, scope: Any) -> tuple[int, str] | None:
        """Return status and reason if a request is refused."""
        headers: dict[str, list[str]] = {}
        for name, value in scope["headers"]:
            headers.setdefault(name.decode("latin-1").lower(), []).append(value.decode("latin-1"))
        hosts, origins = headers.get("host", []), headers.get("origin", [])
        if len(hosts) != 1 or not _HOST.fullmatch(hosts[0]):
            return 421, "the host is localhost or 127.0.0.1"
        if any(origin != f"http://{hosts[0]}" for origin in origins):
            return 403, "the request comes from another site"
        given = scope["path"].encode("utf-8", "replace")[1 : len(self.token) + 1]
        if not secrets.compare_digest(given, self.token) or scope["path"][len(self.token) + 1 :][:1] != "/":
            return 404, "not found"
        is_page = scope["path"].endswith("/") and headers.get("sec-fetch-mode", ["navigate"]) == ["navigate"]
        if headers.get("sec-fetch-site", ["none"])[-1] not in ("none", "same-origin") and not is_page:
            return 403, "the request comes from another site"
        if scope["method"] != "GET":
            return 405, "only GET is answered"
        return None


def _error(status: int, title: str, detail: str = "") -> JSONResponse:
    return JSONResponse({"error": {"title": printable(title), "detail": printable(detail)}}, status)


def _answer(value: Any) -> Response:
    return Response(
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode("utf-8", "replace"), media_type="application/json"
    )


def _integer(request: Request, name: str, default: int | None, most: int) -> int:
    """Return a parameter from 0 to `most`."""
    text = request.query_params.get(name)
    if text is None and default is not None:
        return default
    if text is None or not re.fullmatch(r"[0-9]{1,18}", text):
        raise BadRequestError(f"{name} is a number from 0 to {most:,}; got {text!r:.50}")
    if int(text) > most:
        raise BadRequestError(f"{name} is at most {most:,}; got {int(text):,}")
    return int(text)


def _reads(columns: Sequence[Column]) -> tuple[str, ...]:
    """Return the features of the cells of some columns, each once."""
    return tuple(dict.fromkeys(name for column in columns for name in column.reads))


class View:
    """Answers to the requests of pages about some data sets."""

    def __init__(self, sets: Sequence[Opened]) -> None:
        self.sets = list(sets)
        self._searches: OrderedDict[tuple[int, str], Search] = OrderedDict()
        self._refined: dict[int, Refined] = {}
        self._columns: dict[int, tuple[Column, ...]] = {}
        self._lock = threading.Lock()

    def close(self) -> None:
        """End all work."""
        for data in self.sets:
            data.close()

    def _data(self, request: Request) -> Opened:
        return self.sets[_integer(request, "data", 0, len(self.sets) - 1)]

    def columns(self, data: Opened) -> tuple[Column, ...]:
        """Return the columns of a data set, whose kinds its first rows determine."""
        if data.schema is None:
            return ()
        with self._lock:
            if data.number not in self._columns:
                known = data.wait(1, _FIRST)
                first = [blocks for _, blocks in data.read(tuple(data.schema), range(min(4, known.rows)))]
                found = columns_of(data.schema, first)
                if not first:
                    return found
                self._columns[data.number] = found
            return self._columns[data.number]

    def _chosen(self, request: Request, data: Opened) -> tuple[Column, ...]:
        columns, text = self.columns(data), request.query_params.get("columns")
        if text is None:
            return columns
        try:
            names = json.loads(text) if len(text) < 1 << 16 else None
        except (ValueError, RecursionError):
            names = None
        if not isinstance(names, list):
            raise BadRequestError("columns is a JSON list of names")
        return tuple(self._column(data, name) for name in names)

    def _column(self, data: Opened, name: Any) -> Column:
        for column in self.columns(data):
            if column.name == name:
                return column
        raise BadRequestError(f"no column {name!r:.100}")

    def _search(self, data: Opened, expression: str) -> Search:
        if len(expression) > _MOST_EXPRESSION:
            raise BadRequestError(f"an expression has at most {_MOST_EXPRESSION:,} letters")
        key = data.number, expression
        with self._lock:
            if key not in self._searches:
                self._searches[key] = Search(data, expression)
                while len(self._searches) > _MOST_SEARCHES:
                    self._searches.popitem(last=False)
            self._searches.move_to_end(key)
            return self._searches[key]

    def overview(self, request: Request) -> Response:
        """Answer shards, columns, hints and code."""
        data = self._data(request)
        columns, known = self.columns(data), data.known
        shards, report = data.shards, data.report
        listed = []
        for place in range(min(len(shards), _MOST_SHARDS) if shards is not None else 0):
            assert shards is not None
            found = known.reports[place] if place < len(known.reports) else None
            whole = found is not None and (known.counted or place + 1 < len(known.reports))
            damage = data.damage.get(place, found if whole else None)
            listed.append(
                {
                    "name": printable(redact_url(shards.paths[place])),
                    "size": int(shards.sizes[place]),
                    "records": found.records if found is not None and whole else None,
                    "compression": found.compression if found is not None else None,
                    "damage": "; ".join(map(str, damage.lost[:5])) or None if damage is not None else None,
                }
            )
        hints = [report] if isinstance(report, str) else []
        if isinstance(report, Report):
            hints = [f"{each.name}: {hint}" for each in report.features for hint in each.suggestions]
        groups = {} if data.schema is None else groups_of(data.schema)
        return _answer(
            {
                "data": data.number,
                "sets": [printable(redact_url(each.name)) for each in self.sets],
                "name": printable(redact_url(data.name)),
                "kind": data.kind,
                "nrows": known.rows if known.counted else None,
                "found": known.rows,
                "counted": known.counted,
                "message": report.message if isinstance(report, Report) and columns else None,
                "error": known.error,
                "shards": listed,
                "columns": [column.to_dict() for column in columns],
                "groups": [{"name": name, "columns": list(names)} for name, names in groups.items()],
                "hints": [printable(hint) for hint in hints],
                "code": data.code,
            }
        )

    def rows(self, request: Request) -> Response:
        """Answer cells of rows: of a range, of those that a filter finds, or of a sample."""
        data = self._data(request)
        columns = self._chosen(request, data)
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
            chosen: Sequence[int] = search.found(start, stop)
        elif size:
            seed = _integer(request, "seed", 0, 1 << 53)
            picked = np.random.default_rng(seed).choice(known.rows, min(size, known.rows), replace=False)
            chosen = np.sort(picked).tolist()
        else:
            chosen = range(min(start, known.rows), min(stop, known.rows))
        cells: dict[str, list[Any]] = {column.name: [] for column in columns}
        for _, blocks in data.read(_reads(columns), chosen):
            for column in columns:
                cells[column.name].append(cell(column, blocks))
        return _answer({"start": start, "rows": list(chosen), "cells": cells})

    def _row(self, request: Request, data: Opened) -> int:
        row = _integer(request, "row", None, 1 << 53)
        known = data.wait(row + 1, _FIRST)
        if row >= known.rows:
            raise BadRequestError(f"row {row:,} is past the {known.rows:,} rows that are counted")
        return row

    def row(self, request: Request) -> Response:
        """Answer everything about one row."""
        data = self._data(request)
        row, columns = self._row(request, data), self.columns(data)
        ((_, blocks),) = data.read(_reads(columns), [row])
        sizes = {name: block.nbytes for name, block in blocks.items() if not isinstance(block, str)}
        return _answer(
            {
                "row": row,
                "location": self._location(data, row),
                "nbytes": int(sum(sizes.values())),
                "sizes": {name: int(size) for name, size in sizes.items()},
                "cells": {column.name: cell(column, blocks, whole=True) for column in columns},
                "json": record_json(blocks),
            }
        )

    def _location(self, data: Opened, row: int) -> dict[str, Any] | None:
        source = data.known.source
        try:
            place = None if source is None else source.locate(row, "")
        except (TFRecordError, OSError, NotImplementedError):
            return None
        if place is None:
            return None
        name = printable(redact_url(str(place.file)))
        shard = None
        if isinstance(source, RecordSource) and data.shards is not None:
            shard = int(np.searchsorted(source.collection.starts, row, side="right")) - 1
        return {"name": name, "file": name, "shard": shard, "record": place.record, "offset": place.offset}

    def image(self, request: Request) -> Response:
        """Answer an image at the size that is shown."""
        data = self._data(request)
        column = self._column(data, request.query_params.get("column"))
        if column.kind != "image":
            raise BadRequestError(f"column {column.name!r:.100} has no images")
        row, width = self._row(request, data), max(1, _integer(request, "width", 256, _MOST_WIDTH))
        ((_, blocks),) = data.read((column.name,), [row])
        block = blocks[column.name]
        if isinstance(block, str):
            return _error(422, block)
        content, kind = image(block, _integer(request, "index", 0, 1 << 31), width)
        return Response(content, media_type=kind)

    def episode(self, request: Request) -> Response:
        """Answer the steps of a row: numbers of the columns of a group, names of those with images, a text."""
        data = self._data(request)
        row, group = self._row(request, data), request.query_params.get("group", "")
        names = groups_of(data.schema).get(group) if data.schema is not None else None
        if names is None:
            raise BadRequestError(f"no group {group!r:.100}")
        every = self.columns(data)
        columns = [column for column in every if column.name in names]
        texts = [each for each in every if each.kind in ("text", "sequence") and _INSTRUCTION.search(each.name)]
        ((_, blocks),) = data.read(_reads([*columns, *texts]), [row])
        values = {
            name: np.asarray(np.asarray(block)[0]) for name, block in blocks.items() if not isinstance(block, str)
        }
        lengths = [len(np.atleast_1d(values[each.name])) for each in columns if each.name in values]
        steps = min([length for length in lengths if length], default=0)
        curves = {}
        for column in columns:
            array = np.atleast_1d(values.get(column.name, np.zeros(0)))
            if not steps or array.dtype.kind not in "biuf" or array.size % steps or column.kind == "image":
                continue
            flat = array.reshape(steps, -1)[:_MOST_STEPS, :_MOST_CURVES]
            curves[column.name] = {
                "labels": [str(at) for at in range(flat.shape[1])],
                "values": [numbers(part) for part in flat.T],
            }
        found = [cell(each, blocks, whole=True) for each in texts]
        shown = [(each.get("value") or next(iter(each.get("values", [])), None)) for each in found if each]
        return _answer(
            {
                "length": min(steps, _MOST_STEPS),
                "instruction": next((text for text in shown if isinstance(text, str) and text), None),
                "images": [each.name for each in columns if each.kind == "image"],
                "curves": curves,
            }
        )

    def shard(self, request: Request) -> Response:
        """Answer the map of the records of a shard."""
        data, shard = self._shard(request)
        start = _integer(request, "start", 0, 1 << 53)
        stop = min(_integer(request, "stop", start + 1024, 1 << 53), start + _MOST_CELLS)
        return _answer(shard_map(data, shard, start, stop))

    def record(self, request: Request) -> Response:
        """Answer the bytes of a record."""
        data, shard = self._shard(request)
        return _answer(record_bytes(data, shard, _integer(request, "offset", None, 1 << 53)))

    def repair(self, request: Request) -> Response:
        """Answer what a repair would keep."""
        return _answer(repair_plan(*self._shard(request)))

    def _shard(self, request: Request) -> tuple[Opened, int]:
        data = self._data(request)
        if data.shards is None:
            raise BadRequestError("these rows are not read from shards")
        return data, _integer(request, "shard", 0, len(data.shards) - 1)

    # -------------------------------------------------------------------------------------------------------- streams

    def statistics(self, request: Request) -> Response:
        """Stream statistics of all columns, of more and more rows."""
        data = self._data(request)
        with self._lock:
            refined = self._refined.setdefault(data.number, Refined(data))
        return _stream(request, partial(_follow, refined, lambda: {"columns": refined.to_dict()}))

    def filter(self, request: Request) -> Response:
        """Stream the rows for which an expression holds."""
        search, sent = self._search(self._data(request), request.query_params.get("expression", "")), 0

        def message() -> dict[str, Any]:
            nonlocal sent
            found = search.found(sent, sent + 10_000)
            sent += len(found)
            return {"found": found, "count": search.count, "code": search.code}

        return _stream(request, partial(_follow, search, message))

    def changes(self, request: Request) -> Response:
        """Stream the number of rows that are counted, and shards that grew or changed."""
        data = self._data(request)
        before: list[Any] = [None, {}]

        def step(ended: threading.Event) -> dict[str, Any] | None:
            known = data.known if before[0] is None else data.changes(before[0], 0.5)
            changed = data.differing()
            if known is before[0] and changed == before[1]:
                return None
            before[:] = [known, changed]
            return {
                "nrows": known.rows if known.counted else None,
                "found": known.rows,
                "counted": known.counted,
                "changed": [{"name": printable(redact_url(path)), "what": what} for path, what in changed.items()],
                "done": False,
            }

        return _stream(request, step)


def _follow(work: Pass, message: Callable[[], Mapping[str, Any]], ended: threading.Event) -> dict[str, Any]:
    work.advance(ended)
    known = work.data.known
    total = known.rows if known.counted else None
    return {**message(), "rows": work.rows, "total": total, "done": work.done}


def _stream(request: Request, step: Callable[[threading.Event], dict[str, Any] | None]) -> Response:
    """Return an event stream of the results of a step, which is called until it is done or the page is closed."""
    ended = threading.Event()

    async def events() -> AsyncIterator[str]:
        try:
            done = False
            while not done and not await request.is_disconnected():
                try:
                    message = await run_in_threadpool(step, ended)
                except (TFRecordError, MemoryError, OSError, ValueError) as error:
                    message = {"error": {"title": describe_error(error), "detail": ""}, "done": True}
                if message is None:
                    # A comment shows whether the page is still there.
                    yield ": waiting\n\n"
                    continue
                done = bool(message["done"])
                yield f"data: {json.dumps(message, allow_nan=False)}\n\n"
        finally:
            ended.set()

    return StreamingResponse(events(), media_type="text/event-stream")


def make_app(view: View, token: str, frames: str = "'none'") -> Guard:
    """Return the application of a view. Files of the page are listed now: no path of a request reaches the disk."""
    files = {path.name: path.read_bytes() for path in PAGE.iterdir() if path.is_file()} if PAGE.is_dir() else {}

    def page(request: Request) -> Response:
        name = request.path_params.get("name") or "index.html"
        if name not in files:
            return _error(404, "not found")
        return Response(files[name], media_type=_TYPES.get(Path(name).suffix, "text/plain; charset=utf-8"))

    def answer(method: Callable[[Request], Response]) -> Callable[[Request], Response]:
        def call(request: Request) -> Response:
            try:
                return method(request)
            except BadRequestError as error:
                return _error(400, str(error))
            except (TFRecordError, ValueError, MemoryError, OSError, ImportError) as error:
                return _error(422, describe_error(error))
            except (IndexError, KeyError) as error:
                return _error(404, "not found", describe_error(error))
            except Exception as error:
                return _error(500, f"{type(error).__name__} in the server", describe_error(error))

        return call

    names = ["overview", "rows", "row", "image", "episode", "shard", "record", "repair"]
    names += ["statistics", "filter", "changes"]
    routes = [Route(f"/api/{name}", answer(getattr(view, name))) for name in names]
    routes += [Route("/", page), Route("/{name}", page)]
    return Guard(Starlette(routes=routes), token, frames)


class Server:
    """A view that is served by a thread of this process; `Dataset.view` returns it.

    Attributes
    ----------
    url : str
        Address of the page, with its token.
    """

    def __init__(self, sets: Sequence[Opened], port: int = 0, frames: str = "'none'") -> None:
        self.view = View(sets)
        token = secrets.token_urlsafe(32)
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self._socket.bind(("127.0.0.1", port))
            # Requests wait from now on, until the thread answers them.
            self._socket.listen(128)
        except OSError:
            self._socket.close()
            self.view.close()
            raise
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}/{token}/"
        config = uvicorn.Config(
            make_app(self.view, token, frames),
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=1,
            ws="none",
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._run, name="view", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        self._server.run(sockets=[self._socket])

    def wait(self) -> None:
        """Wait until the server ends."""
        while self._thread.is_alive():
            self._thread.join(0.5)

    def close(self) -> None:
        """End the server and all of its work."""
        self._server.should_exit = True
        for data in self.view.sets:
            data.closing.set()
        self._thread.join(timeout=30)
        self.view.close()
        self._socket.close()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<view at {self.url}>"

    def _repr_html_(self) -> str:
        return f'<iframe src="{self.url}" width="100%" height="640" style="border: 0"></iframe>'


def view_dataset(dataset: Dataset, port: int, memory_limit: int | str) -> Server:
    """Serve a data set; `Dataset.view` documents it."""
    memory = memory_nbytes(memory_limit)
    return Server([open_dataset(0, dataset, memory, BlockCache(memory // KEPT))], port, _NOTEBOOKS)


def memory_nbytes(limit: int | str | None) -> int:
    """Return a memory limit in bytes, 64 MiB or more.

    Raises
    ------
    ValueError
        If it is no size.
    """
    from dask.utils import parse_bytes

    nbytes = _MEMORY if limit is None else int(parse_bytes(limit))
    if nbytes < 64 << 20:
        raise ValueError(f"the memory limit of a view is 64 MiB or more; got {limit!r}")
    return nbytes
