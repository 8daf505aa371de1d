"""As much of a Debug Adapter Protocol client as it takes to stop at a line and to go on."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from typing import Any

PATIENCE_S = 30.0


class DebugClient:
    """A debugger that has connected, and not attached yet."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), PATIENCE_S)
        self._stream = self._socket.makefile("rwb")
        self._asked = 0

    def __enter__(self) -> DebugClient:
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()
        self._socket.close()

    def attach(self, path: str, line: int) -> None:
        """Attach, with a breakpoint; what has waited for a debugger goes on."""
        self.send("initialize", adapterID="trireme", pathFormat="path")
        self.send("attach", justMyCode=False)
        self.wait_for(lambda message: message.get("event") == "initialized")
        self.send("setBreakpoints", source={"path": path}, breakpoints=[{"line": line}])
        self.ask("configurationDone")

    def wait_for_stop(self) -> int:
        """The thread that has come to the breakpoint."""
        return self.wait_for(lambda message: message.get("event") == "stopped")["body"]["threadId"]

    def ask(self, command: str, **arguments: Any) -> Any:
        """The body of the answer to a request."""
        number = self.send(command, **arguments)
        answer = self.wait_for(lambda message: message.get("request_seq") == number)
        assert answer["success"], answer
        return answer.get("body")

    def send(self, command: str, **arguments: Any) -> int:
        self._asked += 1
        text = json.dumps({"seq": self._asked, "type": "request", "command": command, "arguments": arguments}).encode()
        self._stream.write(b"Content-Length: %d\r\n\r\n%b" % (len(text), text))
        self._stream.flush()
        return self._asked

    def wait_for(self, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """The next message of a kind; others before it are of no interest."""
        while True:
            message = self._read()
            if wanted(message):
                return message

    def _read(self) -> dict[str, Any]:
        size = 0
        while (header := self._stream.readline()) != b"\r\n":
            assert header, "the debugger's other end has hung up"
            name, _, value = header.partition(b":")
            if name.lower() == b"content-length":
                size = int(value)
        return json.loads(self._stream.read(size))
