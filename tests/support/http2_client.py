"""An HTTP/2 client for tests, on the `h2` library."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import h2.config
import h2.connection
import h2.events
import trio
from http_sockets import Response, connect

from trireme.api.http.app import HttpService


class Http2Client:
    """Begins requests, reads until their responses are complete."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self.stream = stream
        self.h2 = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True, header_encoding=None))
        self.responses: dict[int, Response] = {}
        self.ended: set[int] = set()
        self.resets: dict[int, int] = {}
        self.continues: set[int] = set()
        self.acknowledging = True
        self.closed = False

    async def flush(self) -> None:
        if data := self.h2.data_to_send():
            await self.stream.send_all(data)

    async def begin(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        *,
        end: bool = True,
        headers: Sequence[tuple[str, str]] = (),
    ) -> int:
        number = self.h2.get_next_available_stream_id()
        names = [(":method", method), (":path", path), (":scheme", "http"), (":authority", "localhost"), *headers]
        self.h2.send_headers(number, names, end_stream=not body and end)
        self.responses[number] = Response()
        await self.flush()
        while body and number not in self.resets:
            size = min(self.h2.local_flow_control_window(number), self.h2.max_outbound_frame_size, len(body))
            if size:
                self.h2.send_data(number, body[:size], end_stream=end and size == len(body))
                body = body[size:]
                await self.flush()
            else:
                await self.read()
        return number

    async def read(self) -> None:
        data = await self.stream.receive_some()
        self.closed = not data
        for event in self.h2.receive_data(data) if data else ():
            if isinstance(event, h2.events.ResponseReceived):
                response = self.responses[event.stream_id]
                response.headers = list(event.headers)
                response.status = int(dict(response.headers)[b":status"])
            elif isinstance(event, h2.events.DataReceived):
                self.responses[event.stream_id].body += event.data
                if self.acknowledging:
                    self.h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            elif isinstance(event, h2.events.StreamEnded):
                self.ended.add(event.stream_id)
            elif isinstance(event, h2.events.StreamReset):
                self.resets[event.stream_id] = int(event.error_code or 0)
            elif isinstance(event, h2.events.InformationalResponseReceived):
                self.continues.add(event.stream_id)
        await self.flush()

    async def finish(self, number: int) -> Response:
        while number not in self.ended:
            assert not self.closed
            await self.read()
        return self.responses[number]

    async def ask(self, method: str, path: str, body: bytes | None = None) -> Response:
        return await self.finish(await self.begin(method, path, body))


@asynccontextmanager
async def http2(service: HttpService) -> AsyncIterator[Http2Client]:
    """A connection by prior knowledge."""
    async with await connect(service) as stream:
        client = Http2Client(stream)
        client.h2.initiate_connection()
        await client.flush()
        yield client
