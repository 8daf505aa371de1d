"""The clients of the attacks: one that goes on asking for small things, and bare ones that send what they are told."""

from __future__ import annotations

import contextlib
import itertools
import json
import select
import socket
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

import h2.config
import h2.connection
import h2.events
import h2.exceptions
from attack_payloads import infer_request, small_infer

BETWEEN_S = 0.004
PATIENCE_S = 30.0
ADDRESS = "127.0.0.2"
"""From where the second client asks: not from where the attacks come."""


@dataclass
class Seen:
    """What the second client has seen.

    Attributes:
        requests: asked.
        failures: not answered with 200, or not at all.
        longest_ms: the longest time from asking to the whole answer, a new connection included where there was one.
        usual_ms, p99_ms, p999_ms: the median of these times, and what one of 100 and of 1,000 is above.
    """

    requests: int = 0
    failures: int = 0
    longest_ms: float = 0.0
    usual_ms: float = 0.0
    p99_ms: float = 0.0
    p999_ms: float = 0.0


class Asker:
    """Asks for one small thing, on a connection that stays or on a new one."""

    def __init__(self, port: int, request: bytes, *, stays: bool) -> None:
        self._port = port
        self._request = request
        self._stays = stays
        self._socket: socket.socket | None = None

    def ask(self) -> bool:
        """Whether it was answered with 200."""
        try:
            if self._socket is None:
                self._socket = socket.create_connection(
                    ("127.0.0.1", self._port), PATIENCE_S, source_address=(ADDRESS, 0)
                )
            self._socket.sendall(self._request)
            answered = read_answer(self._socket).startswith(b"HTTP/1.1 200")
        except OSError:
            answered = False
        if self._socket is not None and not (answered and self._stays):
            self._socket.close()
            self._socket = None
        return answered


def watch(port: int) -> None:
    """The second client, a process of its own: says when it has begun, asks until it is told to stop, and prints what
    it has seen."""
    infer = Asker(port, infer_request("small", *small_infer()), stays=True)
    health = Asker(port, b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\n\r\n", stays=False)
    seen = Seen()
    times_ms = []
    infer.ask()
    print("asking", flush=True)
    while not select.select([sys.stdin], [], [], BETWEEN_S)[0]:
        begun_s = time.monotonic()
        answered = (health if seen.requests % 8 == 7 else infer).ask()
        times_ms.append((time.monotonic() - begun_s) * 1e3)
        seen.requests += 1
        seen.failures += not answered
    if times_ms:
        times_ms.sort()
        seen.longest_ms = times_ms[-1]
        seen.usual_ms, seen.p99_ms, seen.p999_ms = (
            times_ms[int(len(times_ms) * share)] for share in (0.5, 0.99, 0.999)
        )
    print(json.dumps(asdict(seen)), flush=True)


def read_answer(client: socket.socket) -> bytes:
    """One HTTP/1.1 answer with a Content-Length; what there is of it if the connection ends."""
    data = b""
    while b"\r\n\r\n" not in data:
        more = client.recv(65_536)
        if not more:
            return data
        data += more
    head, _, body = data.partition(b"\r\n\r\n")
    length = 0
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            length = int(value)
    parts, held = [body], len(body)
    while held < length:
        more = client.recv(1 << 20)
        if not more:
            break
        parts.append(more)
        held += len(more)
    return head + b"\r\n\r\n" + b"".join(parts)


def status_of(answer: bytes) -> str:
    """The status of an HTTP/1.1 answer; "closed" if there is none."""
    return answer.split(b" ", 2)[1].decode() if answer.startswith(b"HTTP/1.") else "closed"


def send_http(port: int, request: bytes, more: Iterable[bytes] = (), *, within_s: float = PATIENCE_S) -> str:
    """Sends a request, and what follows it, until all is sent or the server answers; the status of the answer."""
    ends_s = time.monotonic() + within_s
    with socket.create_connection(("127.0.0.1", port), within_s) as client:
        try:
            for piece in itertools.chain((request,), more):
                if not _send_piece(client, piece, ends_s):
                    break
            client.settimeout(max(0.1, ends_s - time.monotonic()))
            return status_of(read_answer(client))
        except TimeoutError:
            return "no answer"
        except OSError:
            with contextlib.suppress(OSError):
                return status_of(read_answer(client))
            return "closed"


def _send_piece(client: socket.socket, piece: bytes, ends_s: float) -> bool:
    """Whether all of it was sent before the server said something, and in time."""
    view = memoryview(piece)
    while view:
        readable, writable, _ = select.select([client], [client], [], max(0.0, ends_s - time.monotonic()))
        if readable or not writable:
            return False
        view = view[client.send(view[: 1 << 18]) :]
    return True


class Http2Client:
    """An HTTP/2 connection that sends within the windows it is given.

    Args:
        reads: give windows back for what comes.

    Attributes:
        ended: how the streams that are over have ended: a status, a reset, or the end of the connection.
    """

    def __init__(self, port: int, *, reads: bool = True) -> None:
        self._reads = reads
        self._socket = socket.create_connection(("127.0.0.1", port), PATIENCE_S)
        config = h2.config.H2Configuration(validate_outbound_headers=False)
        self._core = h2.connection.H2Connection(config)
        self._core.initiate_connection()
        self._open: dict[int, str] = {}
        self.ended: dict[int, str] = {}
        self._flush()

    def _flush(self) -> None:
        self._socket.sendall(self._core.data_to_send())

    def open(self, path: str, headers: Sequence[tuple[str, str]] = ()) -> int:
        """Begins a POST; its stream."""
        stream_id = self._core.get_next_available_stream_id()
        pseudo = [(":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "localhost")]
        self._core.send_headers(stream_id, [*pseudo, *headers])
        self._open[stream_id] = "no answer"
        self._flush()
        return stream_id

    def open_grpc(self, method: str = "ModelInfer", *, encoding: str | None = None) -> int:
        """Begins a call of the inference service."""
        headers = [("te", "trailers"), ("content-type", "application/grpc")]
        if encoding is not None:
            headers.append(("grpc-encoding", encoding))
        return self.open(f"/inference.GRPCInferenceService/{method}", headers)

    def send(self, stream_id: int, data: bytes, *, end: bool = True, within_s: float = PATIENCE_S) -> int:
        """Sends data as the windows allow; how much of it had been sent when time ran out or the stream ended."""
        view = memoryview(data)
        ends_s = time.monotonic() + within_s
        sent = 0
        core = self._core
        while sent < len(view) and stream_id not in self.ended and time.monotonic() < ends_s:
            room = min(core.local_flow_control_window(stream_id), core.max_outbound_frame_size, len(view) - sent)
            if room <= 0:
                if not self._take_in(ends_s - time.monotonic()):
                    break
                continue
            core.send_data(stream_id, bytes(view[sent : sent + room]), end_stream=end and sent + room == len(view))
            self._flush()
            sent += room
            self._take_in(0.0)
        return sent

    def outcome(self, stream_id: int, within_s: float = PATIENCE_S) -> str:
        """How the stream has ended."""
        ends_s = time.monotonic() + within_s
        while stream_id not in self.ended and self._take_in(ends_s - time.monotonic()):
            pass
        return self.ended.get(stream_id, "no answer")

    def close(self) -> None:
        self._socket.close()

    def _take_in(self, within_s: float) -> bool:
        """Handles what the server has sent; False if it sent nothing in time, or has closed."""
        try:
            if not select.select([self._socket], [], [], max(0.0, within_s))[0]:
                return False
            data = self._socket.recv(1 << 18)
            events = self._core.receive_data(data) if data else ()
            for event in events:
                self._note(event)
            self._flush()
        except (OSError, h2.exceptions.ProtocolError):
            data = b""
        if not data:
            self._end_all("closed")
        return bool(data)

    def _note(self, event: h2.events.Event) -> None:
        if isinstance(event, h2.events.ResponseReceived | h2.events.TrailersReceived):
            headers = {_text(name): _text(value) for name, value in event.headers or ()}
            grpc_status = headers.get("grpc-status")
            if grpc_status is not None:
                self._open[event.stream_id or 0] = f"grpc {grpc_status}"
            elif ":status" in headers:
                self._open[event.stream_id or 0] = headers[":status"]
        elif isinstance(event, h2.events.StreamEnded):
            self.ended[event.stream_id or 0] = self._open.pop(event.stream_id or 0, "")
        elif isinstance(event, h2.events.StreamReset):
            said = self._open.pop(event.stream_id or 0, "no answer")
            how = f"reset {int(event.error_code or 0)}" if said == "no answer" else said
            self.ended.setdefault(event.stream_id or 0, how)
        elif isinstance(event, h2.events.ConnectionTerminated):
            self._end_all(f"goaway {int(event.error_code or 0)}")
        elif isinstance(event, h2.events.DataReceived) and self._reads:
            self._core.acknowledge_received_data(event.flow_controlled_length or 0, event.stream_id or 0)

    def _end_all(self, how: str) -> None:
        for stream_id in self._open:
            self.ended.setdefault(stream_id, how)


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value


class FrameFlood:
    """Hand-made frames, sent until the server ends the connection or a number is reached."""

    PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), PATIENCE_S)
        self._socket.sendall(self.PREFACE + frame(4, 0, 0))

    def send(self, bursts: Iterable[bytes], within_s: float = 10.0) -> str:
        """Sends; how the connection has ended."""
        received = bytearray()
        ends_s = time.monotonic() + within_s
        self._socket.settimeout(within_s)
        try:
            for burst in bursts:
                if time.monotonic() > ends_s:
                    break
                self._socket.sendall(burst)
                while select.select([self._socket], [], [], 0)[0]:
                    data = self._socket.recv(1 << 16)
                    if not data:
                        return goaway_in(bytes(received)) or "closed"
                    received += data
            # A whole flood may lie in the sockets' buffers before a busy server has looked at the first frame of it.
            while data := self._socket.recv(1 << 16):
                received += data
            return goaway_in(bytes(received)) or "closed"
        except TimeoutError:
            return goaway_in(bytes(received)) or "all taken"
        except OSError:
            return goaway_in(bytes(received)) or "closed"
        finally:
            self._socket.close()


def frame(kind: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    """An HTTP/2 frame."""
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream_id.to_bytes(4, "big") + payload


def goaway_in(data: bytes) -> str | None:
    """What a GOAWAY among the server's frames says."""
    at = 0
    while at + 9 <= len(data):
        size = int.from_bytes(data[at : at + 3], "big")
        if data[at + 3] == 7 and at + 17 <= len(data):
            return f"goaway {int.from_bytes(data[at + 13 : at + 17], 'big')}"
        at += 9 + size
    return None


if __name__ == "__main__":
    watch(int(sys.argv[1]))
