"""How a connection reads and writes: straight on a non-blocking socket, or through TLS, with the same few methods. And
the context of a listener's TLS, with errors that name the file at fault.

`receive` and `receive_into` return nothing at the end of the stream, however it ended. The sending methods raise
`PeerGoneError`; they return what is still to be sent. The plain one skips trio's SocketStream, whose checks and
checkpoints cost more than the rest of a small request.
"""

from __future__ import annotations

import select
import socket
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import trio
from trio.lowlevel import wait_writable

from ...actors.socket_readiness import Readiness
from ...engine.access.credentials import certificate_names
from ...engine.errors import InvalidArgumentError
from ...engine.tensor import Buffer

_JOIN_BYTES = 16_384
_TLS_PIECE_BYTES = 65_536
_LINGER_BYTES = 65_536
_MOST_SENT_BYTES = 1 << 20
"""By one call. The system takes four times as much if it has room, which on a loopback means until a client's process
has it, and keeps the event loop for up to 20 ms."""
_REMAINDER_BYTES = 65_536
"""Beyond that, at the end: what is left would be a call, and a wake-up of the client, for itself."""
_MOST_AT_ONCE_BYTES = _MOST_SENT_BYTES + _REMAINDER_BYTES


class PeerGoneError(Exception):
    """The other side has closed or reset the connection, or broken TLS."""


class PlainTransport:
    """A connected, non-blocking TCP socket.

    Args:
        address: of the client (`limits.shared_address`); addresses take turns.

    Attributes:
        buffer: shared by all connections, for reading into between two checkpoints.
        memory: see `Readiness`.
        watch: tells when there may be something to read, or the end.
        certificate: the names in the client's certificate (`certificate_names`); empty if it has shown none.
    """

    certificate = b""

    def __init__(self, sock: socket.socket, readiness: Readiness, address: str = "") -> None:
        self.sock = sock
        self._address = address
        self._readiness = readiness
        self.buffer = readiness.buffer
        self.memory = readiness.memory
        self.watch = readiness.watch(sock, address)

    def fileno(self) -> int:
        return self.sock.fileno()

    @property
    def has_more(self) -> bool:
        """There may be more to read, or the end."""
        return self.watch.ready

    @property
    def crowded(self) -> bool:
        """Little is to be read at once, since others wait (`Readiness.crowded`)."""
        return self._readiness.crowded

    async def yield_turn(self) -> None:
        await self._readiness.yield_turn(self._address)

    async def receive(self, max_bytes: int) -> bytes:
        # Into a buffer that all connections share, and out of it: far cheaper than a new large one for each read.
        view = self.buffer[:max_bytes]
        return bytes(view[: await self.receive_into(view)])

    async def receive_into(self, view: memoryview) -> int:
        while True:
            if not self.watch.ready:
                await self.watch.wait()
            count = self.receive_now(view)
            if count >= 0:
                return count

    def receive_now(self, view: memoryview) -> int:
        """Like `receive_into`, without waiting; -1 if there is nothing."""
        try:
            count = self.sock.recv_into(view)
        except BlockingIOError:
            self.watch.drained()
            return -1
        except OSError:
            return 0
        if count < len(view):
            self.watch.drained()
        return count

    def send_now(self, buffers: list[Buffer]) -> list[Buffer]:
        """Sends what goes without waiting."""
        try:
            if len(buffers) == 1:
                buffer = buffers[0]
                size = len(buffer)
                whole = size <= _MOST_AT_ONCE_BYTES
                sent = self.sock.send(buffer if whole else memoryview(buffer)[:_MOST_SENT_BYTES])
                return [] if sent == size else [memoryview(buffer)[sent:]]
            size = sum(map(len, buffers))
            if size <= _JOIN_BYTES:
                joined = b"".join(buffers)
                sent = self.sock.send(joined)
                return [] if sent == size else [memoryview(joined)[sent:]]
            sent = self.sock.sendmsg(buffers if size <= _MOST_AT_ONCE_BYTES else _front(buffers, _MOST_SENT_BYTES))
            return [] if sent == size else drop_front(buffers, sent)
        except BlockingIOError:
            return buffers
        except OSError as error:
            raise PeerGoneError from error

    async def send_some(self, buffers: list[Buffer]) -> list[Buffer]:
        """Waits until something could be sent. To try before that is no faster (docs/benchmarks.md#large-tensors)."""
        await wait_writable(self.sock)
        return self.send_now(buffers)

    async def send_eof(self) -> None:
        """Says that nothing more will be sent; receiving goes on."""
        try:
            self.sock.shutdown(socket.SHUT_WR)
        except OSError as error:
            raise PeerGoneError from error

    async def close_gracefully(self) -> None:
        """Closes in the protocol's manner, when everything has been said."""
        self.close()

    def close(self) -> None:
        """Closes at once. Closing twice is fine."""
        if self.sock.fileno() != -1:
            self.watch.close()
            trio.lowlevel.notify_closing(self.sock)
            self.sock.close()


class TlsTransport:
    """TLS over a trio socket stream. `handshake` comes first."""

    has_more = False  # as far as can be told

    def __init__(self, stream: trio.SSLStream[trio.SocketStream], readiness: Readiness, address: str = "") -> None:
        self.stream = stream
        self.memory = readiness.memory
        self._readiness = readiness
        self._address = address

    @property
    def crowded(self) -> bool:
        """See `PlainTransport.crowded`."""
        return self._readiness.crowded

    async def yield_turn(self) -> None:
        await self._readiness.yield_turn(self._address)

    def fileno(self) -> int:
        return self.stream.transport_stream.socket.fileno()

    async def handshake(self) -> str | None:
        """Returns the protocol agreed by ALPN, if any. Raises `PeerGoneError` when there is no agreeing."""
        try:
            await self.stream.do_handshake()
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise PeerGoneError from error
        return self.stream.selected_alpn_protocol()

    @cached_property
    def certificate(self) -> bytes:
        """The names in the client's certificate (`certificate_names`), which has been verified; empty if it has shown
        none."""
        given = self.stream.getpeercert()
        return certificate_names(given) if given else b""

    async def receive(self, max_bytes: int) -> bytes:
        try:
            return bytes(await self.stream.receive_some(max_bytes))
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return b""

    async def receive_into(self, view: memoryview) -> int:
        data = await self.receive(len(view))
        view[: len(data)] = data
        return len(data)

    def send_now(self, buffers: list[Buffer]) -> list[Buffer]:
        return [b"".join(buffers)] if sum(map(len, buffers)) <= _JOIN_BYTES else buffers

    async def send_some(self, buffers: list[Buffer]) -> list[Buffer]:
        piece = memoryview(buffers[0])[:_TLS_PIECE_BYTES]
        try:
            await self.stream.send_all(piece)
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise PeerGoneError from error
        return drop_front(buffers, len(piece))

    async def send_eof(self) -> None:
        # Not TLS's own farewell: that would end receiving too.
        try:
            await self.stream.transport_stream.send_eof()
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise PeerGoneError from error

    async def close_gracefully(self) -> None:
        await self.stream.aclose()

    def close(self) -> None:
        self.stream.transport_stream.socket.close()


Transport = PlainTransport | TlsTransport


def has_come(transport: Transport) -> bool:
    """Whether the system has something to read, or the end, by now. What TLS holds of earlier reads does not count."""
    descriptor = transport.fileno()
    if descriptor < 0:
        return False
    poller = select.poll()
    poller.register(descriptor, select.POLLIN)
    return bool(poller.poll(0))


async def linger(transport: Transport) -> None:
    """Says that nothing more will be sent, and takes in what the client is still sending, until it closes: closing with
    unread bytes would reset the connection, and the client might never see the last words.

    Raises:
        PeerGoneError: the client is gone.
    """
    await transport.send_eof()
    while data := await transport.receive(_LINGER_BYTES):
        if len(data) == _LINGER_BYTES:
            await transport.yield_turn()  # a client that sends as fast as this reads lets others run, too


def drop_front(buffers: list[Buffer], count: int) -> list[Buffer]:
    """The buffers without their first `count` bytes."""
    for index, buffer in enumerate(buffers):
        if count < len(buffer):
            return [memoryview(buffer)[count:], *buffers[index + 1 :]]
        count -= len(buffer)
    return []


def _front(buffers: list[Buffer], count: int) -> list[Buffer]:
    """Their first `count` bytes."""
    front: list[Buffer] = []
    for buffer in buffers:
        front.append(buffer if len(buffer) <= count else memoryview(buffer)[:count])
        count -= len(front[-1])
        if not count:
            break
    return front


# ---- TLS for a listener ----


@dataclass(frozen=True, slots=True)
class TlsOptions:
    """PEM files. With `client_ca`, clients must present a certificate that one of its authorities has signed."""

    certificate: Path
    key: Path
    client_ca: Path | None = None


def server_context(options: TlsOptions, protocols: Sequence[str]) -> ssl.SSLContext:
    """A context for TLS 1.2 and later that offers `protocols` by ALPN.

    Raises:
        InvalidArgumentError: a file is missing or unreadable, holds no certificate or key, or the key is not the
            certificate's.
    """
    for what, path in (("certificate", options.certificate), ("key", options.key), ("client CA", options.client_ca)):
        if path is not None:
            _check_readable(what, path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_COMPRESSION
    context.set_alpn_protocols(list(protocols))
    try:
        # An encrypted key would make OpenSSL ask for its password on the terminal.
        context.load_cert_chain(options.certificate, options.key, password=_no_password)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise InvalidArgumentError(
                f"TLS key {options.key} does not belong to certificate {options.certificate}"
            ) from error
        raise InvalidArgumentError(
            f"TLS certificate {options.certificate} or key {options.key} is not valid PEM: {error.reason or error}"
        ) from error
    if options.client_ca is not None:
        try:
            context.load_verify_locations(options.client_ca)
        except ssl.SSLError as error:
            raise InvalidArgumentError(
                f"TLS client CA {options.client_ca} is not valid PEM: {error.reason or error}"
            ) from error
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _check_readable(what: str, path: Path) -> None:
    try:
        with path.open("rb"):
            pass
    except OSError as error:
        raise InvalidArgumentError(f"cannot read TLS {what} {path}: {error.strerror}") from error


def _no_password() -> bytes:
    raise InvalidArgumentError("the TLS key is encrypted; only keys without a password are supported")
