"""Local servers for tests: they log requests and fail on demand."""

from __future__ import annotations

import base64
import contextlib
import http.client
import itertools
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

_PIECE = 64 << 10


@dataclass
class Asked:
    """Logged request, with the number of bytes sent in response."""

    method: str
    path: str
    range: str | None
    sent: int = 0
    headers: dict[str, str] = field(default_factory=dict)


@dataclass
class Log:
    """Requests to a server, and the faults that it injects."""

    asked: list[Asked] = field(default_factory=list)
    # Maps the number of a GET request to a fault: "drop" closes the connection midway, a number is the HTTP status.
    fault: Callable[[int], str | int | None] = lambda number: None
    # Maps status, headers and content of a GET response to those that are sent.
    alter: Callable[[int, dict[str, str], bytes], tuple[int, dict[str, str], bytes]] = lambda *response: response
    # Seconds between two pieces of a GET response, and their bytes.
    pause: float = 0.0
    piece: int = _PIECE
    numbers: Iterator[int] = field(default_factory=itertools.count)
    lock: Any = field(default_factory=threading.Lock)

    def clear(self) -> None:
        self.asked.clear()
        self.numbers = itertools.count()

    @property
    def gets(self) -> list[Asked]:
        return [asked for asked in self.asked if asked.method == "GET"]

    @property
    def sent(self) -> int:
        return sum(asked.sent for asked in self.asked)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    log: Log

    def answer(self, body: bytes) -> tuple[int, dict[str, str], bytes, int | None]:
        """Return status, headers, content, and the Content-Length of a HEAD response."""
        raise NotImplementedError

    def serve(self) -> None:
        asked = Asked(self.command, self.path, self.headers.get("Range"), headers=dict(self.headers.items()))
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        with self.log.lock:
            self.log.asked.append(asked)
            fault = self.log.fault(next(self.log.numbers)) if self.command == "GET" else None
        if isinstance(fault, int):
            self.send_response(fault)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        status, headers, content, length = self.answer(body)
        if self.command == "GET":
            status, headers, content = self.log.alter(status, headers, content)
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content) if length is None else length))
        self.end_headers()
        if self.command == "HEAD":
            return
        part = content[: len(content) // 2] if fault == "drop" else content
        # The client may close the connection early.
        with contextlib.suppress(ConnectionError):
            for start in range(0, len(part), self.log.piece):
                # Counted before sending, because the test may read the log as soon as the bytes arrive.
                asked.sent += len(part[start : start + self.log.piece])
                self.wfile.write(part[start : start + self.log.piece])
                time.sleep(self.log.pause)
            self.wfile.flush()
        if fault == "drop" or asked.sent < len(content):
            self.close_connection = True

    do_GET = do_HEAD = do_PUT = do_POST = do_PATCH = do_DELETE = serve

    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextlib.contextmanager
def serving(handler: Callable[..., Any]) -> Iterator[int]:
    """Handle the requests to a port of this machine in threads, and yield the port."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextlib.contextmanager
def running(handler: type[_Handler], **attributes: Any) -> Iterator[tuple[str, Log]]:
    """Run a server in a thread; yield its address and its log."""
    log = Log()
    with serving(type("Handler", (handler,), {"log": log, **attributes})) as port:
        yield f"http://127.0.0.1:{port}", log


class FileServer(_Handler):
    """Serve the files of a dict, with or without support of ranges."""

    files: dict[str, bytes]
    etags: dict[str, str]
    ranges: bool = True

    def answer(self, body: bytes) -> tuple[int, dict[str, str], bytes, int | None]:
        name = self.path.strip("/")
        if not name:
            page = "".join(f'<a href="{file}">{file}</a>\n' for file in self.files)
            return 200, {"Content-Type": "text/html"}, page.encode(), None
        if name not in self.files:
            return 404, {}, b"", None
        data = self.files[name]
        headers = {"Content-Type": "application/octet-stream"}
        if name in self.etags:
            headers["ETag"] = f'"{self.etags[name]}"'
        if self.command == "HEAD":
            return 200, headers, b"", len(data)
        wanted = self.headers.get("Range")
        if not self.ranges or wanted is None:
            return 200, headers, data, None
        start, _, last = wanted.removeprefix("bytes=").partition("-")
        part = data[int(start) : int(last) + 1]
        if not part:
            return 416, {}, b"", None
        headers["Content-Range"] = f"bytes {start}-{int(start) + len(part) - 1}/{len(data)}"
        return 206, headers, part, None


class GuardedFiles(FileServer):
    """Serve files to requests with a password and, unless it is empty, a signature in the query."""

    password: str
    signature: str = ""

    def answer(self, body: bytes) -> tuple[int, dict[str, str], bytes, int | None]:
        self.path, _, query = self.path.partition("?")
        login = base64.b64encode(f"user:{self.password}".encode()).decode()
        if self.headers.get("Authorization") != f"Basic {login}" or self.signature not in urllib.parse.unquote(query):
            return 403, {}, b"", None
        return super().answer(body)


class Proxy(_Handler):
    """Forward requests to another local server."""

    port: int

    def answer(self, body: bytes) -> tuple[int, dict[str, str], bytes, int | None]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request(self.command, self.path, body, dict(self.headers.items()))
            response = connection.getresponse()
            content = response.read()
            dropped = {"content-length", "connection", "transfer-encoding", "date", "server"}
            headers = {name: value for name, value in response.getheaders() if name.lower() not in dropped}
            length = response.headers.get("Content-Length")
            return response.status, headers, content, int(length) if self.command == "HEAD" and length else None
        finally:
            connection.close()
