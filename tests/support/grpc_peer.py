"""A gRPC client that sends what it is told to, right or wrong: the h2 library's connection on a trio stream."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import h2.config
import h2.connection
import h2.events
import h2.settings
import trio
from http_sockets import PATIENCE_S

from trireme.api.grpc.framing import prefix
from trireme.api.grpc.service import GrpcService

Headers = Sequence[tuple[str, str]]

_State = h2.connection.ConnectionState
_GOAWAY = h2.connection.ConnectionInputs.RECV_GOAWAY


def frame(message: bytes, compressed: bool = False) -> bytes:
    return prefix(compressed, len(message)) + message


def request_headers(path: str, *extra: tuple[str, str], without: str = "", **changed: str) -> Headers:
    headers = {
        ":method": "POST",
        ":scheme": "http",
        ":path": path,
        ":authority": "localhost",
        "te": "trailers",
        "content-type": "application/grpc",
    }
    headers.update((":" + name, value) for name, value in changed.items())
    headers.pop(without, None)
    return [*headers.items(), *extra]


@dataclass
class Received:
    """What has come on one stream.

    Attributes:
        headers: the lists of headers, in order: those of the response, trailers.
        data: all of it.
        ended: the server has said everything.
        reset: its error code, if the stream was reset.
    """

    headers: list[dict[str, str]] = field(default_factory=list)
    data: bytes = b""
    ended: bool = False
    reset: int | None = None

    @property
    def status(self) -> str:
        """The gRPC status, as it stands in the trailers."""
        return self.headers[-1].get("grpc-status", "") if self.headers else ""

    @property
    def message(self) -> str:
        return self.headers[-1].get("grpc-message", "")

    @property
    def trailers_only(self) -> bool:
        return self.ended and len(self.headers) == 1 and not self.data


class GrpcPeer:
    """One connection.

    Attributes:
        acknowledging: give flow-control windows back as data comes.
        goaways: error code, last stream id and debug text of each.
        closed: the server has closed the connection.
    """

    def __init__(self, stream: Any, *, initial_window: int | None = None) -> None:
        config = h2.config.H2Configuration(
            header_encoding="utf-8", validate_outbound_headers=False, normalize_outbound_headers=False
        )
        self.h2 = h2.connection.H2Connection(config)
        machine = self.h2.state_machine  # to h2 a GOAWAY is the end; but what is open goes on (RFC 9113 §6.8)
        goes_on = {(state, _GOAWAY): (None, state) for state in (_State.IDLE, _State.CLIENT_OPEN)}
        machine._transitions = {**machine._transitions, **goes_on}  # type: ignore[misc]
        self.stream = stream
        self.acknowledging = True
        self.streams: dict[int, Received] = {}
        self.goaways: list[tuple[int, int, bytes]] = []
        self.closed = False
        self._initial_window = initial_window
        self._greeted = False

    async def __aenter__(self) -> GrpcPeer:
        self.h2.initiate_connection()
        if self._initial_window is not None:
            self.h2.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: self._initial_window})
        await self.flush()
        while not (self._greeted or self.closed):
            await self.receive()
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await trio.aclose_forcefully(self.stream)

    async def flush(self) -> None:
        await self.stream.send_all(self.h2.data_to_send())

    def start(
        self, path: str, body: bytes | None = None, *extra: tuple[str, str], end: bool = True, **changed: str
    ) -> int:
        """Queues a request; without a body nothing but headers."""
        return self.start_headers(request_headers(path, *extra, **changed), body, end=end)

    def start_headers(self, headers: Headers, body: bytes | None = None, *, end: bool = True) -> int:
        stream_id = self.h2.get_next_available_stream_id()
        self.streams[stream_id] = Received()
        self.h2.send_headers(stream_id, headers, end_stream=end and body is None)
        if body is not None:
            self.h2.send_data(stream_id, body, end_stream=end)
        return stream_id

    async def receive(self) -> None:
        """Takes in what comes next."""
        try:
            data = await self.stream.receive_some(65_536)
        except trio.BrokenResourceError:
            data = b""
        if not data:
            self.closed = True
            return
        for event in self.h2.receive_data(data):
            self._take(event)
        with contextlib.suppress(trio.BrokenResourceError):  # the end of the stream, which is noticed by reading
            await self.flush()

    def _take(self, event: h2.events.Event) -> None:
        received = self.streams.get(getattr(event, "stream_id", 0) or 0, Received())
        if isinstance(event, h2.events.ResponseReceived | h2.events.TrailersReceived):
            received.headers.append({str(name): str(value) for name, value in event.headers or ()})
        elif isinstance(event, h2.events.DataReceived):
            received.data += event.data
            if self.acknowledging:
                self.h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
        elif isinstance(event, h2.events.RemoteSettingsChanged):
            self._greeted = True
        elif isinstance(event, h2.events.StreamEnded):
            received.ended = True
        elif isinstance(event, h2.events.StreamReset):
            received.reset = event.error_code
        elif isinstance(event, h2.events.ConnectionTerminated):
            self.goaways.append((int(event.error_code or 0), event.last_stream_id or 0, event.additional_data or b""))

    async def finish(self, stream_id: int) -> Received:
        """Waits until the stream is over, or the connection is."""
        await self.flush()
        received = self.streams[stream_id]
        while not (received.ended or received.reset is not None or self.closed):
            await self.receive()
        return received

    async def call(self, path: str, body: bytes | None = None, *extra: tuple[str, str], **changed: Any) -> Received:
        """A whole call."""
        return await self.finish(self.start(path, body, *extra, **changed))

    async def read_to_end(self) -> None:
        """Until the server closes; then this side closes too."""
        with trio.fail_after(PATIENCE_S):
            while not self.closed:
                await self.receive()
        await trio.aclose_forcefully(self.stream)


async def connect(service: GrpcService, **options: Any) -> GrpcPeer:
    """A client of the service; opened by ``async with``."""
    return GrpcPeer(await trio.open_tcp_stream("127.0.0.1", service.ports[0]), **options)
