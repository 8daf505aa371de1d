"""A small endpoint with the protocol of S3, as far as a repository needs it: it lists, and gives ranges of objects.

Its objects may be large, for they need not be in memory; and it can be told to fail. Nothing is signed.
"""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

_ZEROS = memoryview(bytes(1 << 20))


class S3Endpoint(ThreadingHTTPServer):
    """One bucket on a free loopback port, with one repository in it.

    Attributes:
        bucket, folder: their names.
        objects: by name: contents, or a number of zeros.
        refusals: statuses that are answered first, one a request.
        status: answered to every request, if not 0.
        authorizations: what requests were signed with; empty texts of those that were not.
        ranges: name, first byte and the one after the last of each range that was given out as a whole.
        most: how many bytes are given out; then requests wait until `released`.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.bucket = "bucket"
        self.folder = "models"
        self.objects: dict[str, bytes | int] = {}
        self.refusals: list[int] = []
        self.status = 0
        self.requests = 0
        self.authorizations: set[str] = set()
        self.ranges: list[tuple[str, int, int]] = []
        self.most = 1 << 62
        self.reached = threading.Event()
        self.released = threading.Event()
        self.lock = threading.Lock()

    @property
    def address(self) -> str:
        """Of a repository in its bucket."""
        return f"s3://127.0.0.1:{self.server_address[1]}/{self.bucket}/{self.folder}"

    def put(self, name: str, data: bytes | int) -> None:
        """An object of the repository."""
        self.objects[f"{self.folder}/{name}"] = data

    def refusal(self) -> int:
        """The status of what is to be refused now; else 0."""
        with self.lock:
            self.requests += 1
            return self.status or (self.refusals.pop(0) if self.refusals else 0)

    def wait_for_release(self) -> None:
        """Hold a request up, if enough was given out."""
        with self.lock:
            enough = sum(end - first for _, first, end in self.ranges) >= self.most
        if enough:
            self.reached.set()
            self.released.wait()

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that was killed is none."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    @property
    def _endpoint(self) -> S3Endpoint:
        assert isinstance(self.server, S3Endpoint)
        return self.server

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name in the library
        """Not into the test's output."""

    def do_GET(self) -> None:
        status = self._endpoint.refusal()
        self._endpoint.authorizations.add(self.headers.get("Authorization", ""))
        parts = urlsplit(self.path)
        bucket, _, name = unquote(parts.path).lstrip("/").partition("/")
        if status:
            self._error(status, "SlowDown", "Please reduce your request rate.")
        elif bucket != self._endpoint.bucket:
            self._error(404, "NoSuchBucket", "The specified bucket does not exist")
        elif not name:
            asked = parse_qs(parts.query)
            self._list(asked.get("prefix", [""])[0], asked.get("delimiter", [""])[0])
        elif name not in self._endpoint.objects:
            self._error(404, "NoSuchKey", "The specified key does not exist.")
        else:
            self._get(name)

    def _list(self, prefix: str, delimiter: str) -> None:
        def folder(name: str) -> str:
            first, found, _ = name.removeprefix(prefix).partition(delimiter or "\n")
            return f"{prefix}{first}/" if found else ""

        names = [name for name in self._endpoint.objects if name.startswith(prefix)]
        rows = "".join(
            f"<CommonPrefixes><Prefix>{escape(each)}</Prefix></CommonPrefixes>"
            for each in sorted({folder(name) for name in names} - {""})
        )
        rows += "".join(
            f"<Contents><Key>{escape(name)}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified>"
            f"<ETag>&quot;{_tag(data)}&quot;</ETag><Size>{_size(data)}</Size></Contents>"
            for name, data in sorted(self._endpoint.objects.items())
            if name in names and not folder(name)
        )
        self._answer(200, f"<ListBucketResult><IsTruncated>false</IsTruncated>{rows}</ListBucketResult>".encode())

    def _get(self, name: str) -> None:
        data = self._endpoint.objects[name]
        if self.headers.get("If-Match", "").strip('"') not in ("", _tag(data)):
            self._error(412, "PreconditionFailed", "At least one of the preconditions did not hold")
            return
        size = _size(data)
        given = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        first, end = (int(given[1]), min(int(given[2]) + 1, size)) if given else (0, size)
        self._endpoint.wait_for_release()
        self.send_response(206 if given else 200)
        self.send_header("Content-Length", str(end - first))
        self.send_header("Content-Range", f"bytes {first}-{end - 1}/{size}")
        self.send_header("ETag", f'"{_tag(data)}"')
        self.send_header("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT")
        self.end_headers()
        for position in range(first, end, len(_ZEROS)):
            until = min(position + len(_ZEROS), end)
            self.wfile.write(_ZEROS[: until - position] if isinstance(data, int) else data[position:until])
        with self._endpoint.lock:
            self._endpoint.ranges.append((name, first, end))

    def _error(self, status: int, code: str, message: str) -> None:
        self._answer(status, f"<Error><Code>{code}</Code><Message>{message}</Message></Error>".encode())

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def _size(data: bytes | int) -> int:
    return data if isinstance(data, int) else len(data)


def _tag(data: bytes | int) -> str:
    return f"zeros-{data}" if isinstance(data, int) else hashlib.md5(data, usedforsecurity=False).hexdigest()


@contextmanager
def s3_endpoint() -> Iterator[S3Endpoint]:
    """A running endpoint."""
    with S3Endpoint() as endpoint:
        thread = threading.Thread(target=endpoint.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield endpoint
        finally:
            endpoint.released.set()
            endpoint.shutdown()
            thread.join()
