"""Connections of the load client: each has one request in flight, and says when its answer is there.

A request is handed over as parts of bytes that were made before. An answer leaves `status` and `reason`: 0 and an empty
text if it is good; otherwise the status of the protocol, and what the server says.
"""

from __future__ import annotations

import json
import select
import socket
import ssl
from abc import ABC, abstractmethod
from collections.abc import Sequence

import httptools

BUFFER_BYTES = 1 << 18
SOURCES = 200
"""Addresses of the loopback interface that connections come from: each has ports of its own."""

_SHOWN_BYTES = 300
_MOST_PARTS = 64
_EVENT = b"data: "
_ERROR_EVENT = b'data: {"error"'
"""What begins an answer that is an error, behind others that were good (`generate_stream`)."""
_CONNECT_TIMEOUT_S = 60.0
_LATER = BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError


class RefusedError(Exception):
    """A request was not answered as it must be, or its connection broke."""


class LoadConnection(ABC):
    """A connection with at most one request in flight.

    Args:
        number: of the connection. Those to 127.0.0.1 come from `SOURCES` addresses in turn: one has too few ports.
        tls: None for a connection without.

    Raises:
        OSError: there is no connection, or TLS has failed.

    Attributes:
        began_s: for its owner: when its request began; 0 while it is idle.
        status, reason: of the last answer.
    """

    def __init__(self, port: int, number: int, host: str = "127.0.0.1", tls: ssl.SSLContext | None = None) -> None:
        source = (f"127.0.0.{number % SOURCES + 1}", 0) if host == "127.0.0.1" else None
        plain = socket.create_connection((host, port), timeout=_CONNECT_TIMEOUT_S, source_address=source)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._secured = None if tls is None else tls.wrap_socket(plain, server_hostname=host)
        self.socket: socket.socket = plain if self._secured is None else self._secured
        self.socket.setblocking(False)
        self.began_s = 0.0
        self.status, self.reason = 0, ""
        self._unsent: list[memoryview] = []

    @property
    def wanted(self) -> int:
        """The events that the poller must report."""
        return select.EPOLLIN | select.EPOLLOUT if self._unsent else select.EPOLLIN

    def send(self, *parts: bytes) -> None:
        """Begin to send, behind what is not sent yet."""
        self._unsent += [memoryview(part) for part in parts if part]
        self.flush()

    def flush(self) -> None:
        """Send on, as far as the socket takes it. Raises RefusedError: the connection broke."""
        unsent = self._unsent
        try:
            while unsent:
                secured = self._secured
                count = self.socket.sendmsg(unsent[:_MOST_PARTS]) if secured is None else secured.send(unsent[0])
                while unsent and count >= len(unsent[0]):
                    count -= len(unsent.pop(0))
                if count:
                    unsent[0] = unsent[0][count:]
        except _LATER:
            return
        except OSError as error:
            raise RefusedError(f"the connection broke: {error}") from error

    def receive(self, buffer: memoryview) -> bool:
        """Take in what has come; whether the answer is complete.

        Raises:
            RefusedError: the server closes the connection.
        """
        complete = self._take_in(buffer)
        while self._secured is not None and self._secured.pending():  # which no poller tells of
            complete |= self._take_in(buffer)
        return complete

    def _take_in(self, buffer: memoryview) -> bool:
        try:
            count = self.socket.recv_into(buffer)
        except _LATER:
            return False
        except OSError as error:
            raise RefusedError(f"the connection broke: {error}") from error
        if not count:
            raise RefusedError("the server closed the connection")
        try:
            return self.take(buffer[:count])
        except httptools.HttpParserError as error:
            raise RefusedError(f"the server does not speak the protocol: {error}") from error

    @abstractmethod
    def ask(self, request: Sequence[bytes]) -> None:
        """Send a request."""

    @abstractmethod
    def take(self, data: memoryview) -> bool:
        """Whether the answer is complete with this data."""

    @property
    def usable(self) -> bool:
        """Another request may be sent."""
        return True

    def close(self) -> None:
        self.socket.close()


class HttpLoadConnection(LoadConnection):
    """HTTP/1.1; the parts of a request are the whole of its bytes."""

    def __init__(self, port: int, number: int, host: str = "127.0.0.1", tls: ssl.SSLContext | None = None) -> None:
        super().__init__(port, number, host, tls)
        self._parser = httptools.HttpResponseParser(self)
        self._complete = False
        self._keeps_alive = True
        self._error = bytearray()

    def ask(self, request: Sequence[bytes]) -> None:
        """See `LoadConnection`."""
        self._complete = False
        self.send(*request)

    def take(self, data: memoryview) -> bool:
        """See `LoadConnection`."""
        self._parser.feed_data(data)
        return self._complete

    @property
    def usable(self) -> bool:
        """See `LoadConnection`."""
        return self._keeps_alive

    def on_body(self, body: bytes) -> None:
        """The parser has found a part of the body."""
        if self._parser.get_status_code() != 200:
            if len(self._error) < _SHOWN_BYTES:
                self._error += body
        elif body.startswith(_ERROR_EVENT):
            self._error += body.removeprefix(_EVENT).strip()

    def on_message_complete(self) -> None:
        """The parser has found the end of the answer."""
        self._keeps_alive = self._parser.should_keep_alive()
        code = self._parser.get_status_code()
        good = code == 200 and not self._error
        self.status, self.reason = (0, "") if good else (code, _said(bytes(self._error)) or f"HTTP {code}")
        self._error.clear()
        self._complete = True


def _said(body: bytes) -> str:
    """What an error's body says."""
    try:
        return str(json.loads(body)["error"])
    except (ValueError, KeyError, TypeError):
        return body[:_SHOWN_BYTES].decode(errors="replace")
