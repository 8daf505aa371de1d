"""Large tensors over HTTP, as binary tensors on keep-alive connections (`large.py` says how).

    python benchmarks/large_http.py --triton-command "tritonserver" [--elements 1048576] [--connections 1 4]

Without --triton-command, Trireme is measured alone.
"""

from __future__ import annotations

import json
import socket

from large import MODEL, Client, compare
from servers import Server


class HttpClient(Client):
    """A keep-alive connection; the response is a view."""

    def __init__(self, server: Server, data: bytes) -> None:
        super().__init__()
        elements = len(data) // 4
        tensor = {
            "name": "INPUT0",
            "datatype": "FP32",
            "shape": [elements],
            "parameters": {"binary_data_size": len(data)},
        }
        head = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
        lines = [
            f"POST /v2/models/{MODEL}/infer HTTP/1.1",
            "Host: localhost",
            f"Inference-Header-Content-Length: {len(head)}",
            f"Content-Length: {len(head) + len(data)}",
        ]
        self.data = data
        self._request = "\r\n".join([*lines, "", ""]).encode() + head + data
        self._socket = socket.create_connection(("127.0.0.1", server.http_port), timeout=60)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._received = bytearray(len(data) + 65_536)

    def ask(self) -> memoryview:
        self._socket.sendall(self._request)
        view = memoryview(self._received)
        filled = 0
        total = len(view)
        while filled < total:
            count = self._socket.recv_into(view[filled:])
            if not count:
                raise SystemExit("the server closed the connection")
            if total == len(view):
                total = self._total(bytes(view[: filled + min(count, 4096)]), len(view))
            filled += count
        return view[:filled]

    def _total(self, start: bytes, unknown: int) -> int:
        """Bytes of the whole response, if its head is there."""
        end = start.find(b"\r\n\r\n")
        if end < 0:
            return unknown
        status, *headers = start[:end].decode().split("\r\n")
        if " 200 " not in status:
            raise SystemExit(f"the server answered {status}: {start[end:].decode(errors='replace')}")
        lengths = [line for line in headers if line.lower().startswith("content-length:")]
        return end + 4 + int(lengths[0].partition(":")[2])

    def close(self) -> None:
        self._socket.close()


if __name__ == "__main__":
    compare(__doc__, "HTTP", HttpClient)
