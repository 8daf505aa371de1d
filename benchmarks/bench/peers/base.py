"""What a peer is: a server that can be installed, started with models, and asked."""

from __future__ import annotations

import http.client
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

import numpy as np
from servers import FailedError, Server

from ..models import Kind, Model
from ..settings import Settings

TIMEOUT_S = 60.0
GIVEN_REGION, MADE_REGION = "bench_given", "bench_made"
"""Names of the regions of shared memory that a request refers to."""
DTYPES = {"FP32": np.float32, "INT32": np.int32}


class Form(Enum):
    """How a request reaches a server."""

    JSON = "HTTP JSON"
    BINARY = "HTTP binary"
    GRPC = "gRPC"
    STREAMS = "gRPC streams"
    SHARED_MEMORY = "shared memory"


@dataclass(frozen=True)
class Call:
    """An HTTP request."""

    path: str
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)

    def encode(self) -> bytes:
        """As it is written to a connection that stays."""
        headers = {"Host": "localhost", "Content-Length": str(len(self.body)), **self.headers}
        lines = [f"POST {self.path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items()), "", ""]
        return "\r\n".join(lines).encode() + self.body


class Peer(ABC):
    """A server.

    Attributes:
        name: on the command line and in results.
        title: in tables.
        kinds, forms: what it can serve, and how it can be asked.
        perf_analyzer: whether perf_analyzer can drive it.
        idle: whether it uses no processor while it is not asked; others are suspended meanwhile.
        serves: whether it is a server at all.
        start_s: how long a start takes, roughly.
    """

    name: str
    title: str
    kinds: frozenset[Kind] = frozenset({Kind.IDENTITY, Kind.ONNX})
    forms: frozenset[Form] = frozenset({Form.JSON, Form.BINARY})
    perf_analyzer = False
    idle = False
    serves = True
    start_s = 5.0

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    @abstractmethod
    def install(self) -> str:
        """See that it is there; its version.

        Raises:
            UnavailableError: it cannot be had.
        """

    @abstractmethod
    def serve(self, models: Sequence[Model], folder: Path, *, grpc: bool) -> AbstractContextManager[Server]:
        """Serve models until the end of the block.

        Args:
            folder: an empty one, for what it needs.
            grpc: whether it is asked over gRPC as well.

        Raises:
            FailedError: it does not start.
        """

    def refuses(self, model: Model, form: Form | None) -> str | None:
        """Why it cannot serve the model so; None if it can."""
        if model.kind not in self.kinds:
            return f"has no {model.kind.value} models" if model.kind is not Kind.ONNX else "cannot run ONNX files"
        return f"has no {form.value}" if form is not None and form not in self.forms else None

    def how(self, model: Model) -> str | None:
        """How it serves the model, where that is not as others do."""
        return None

    def measure_alone(self, model: Model, seconds: float) -> dict[str, float] | None:
        """Its own figures, if it is no server that a client could ask."""
        return None

    @abstractmethod
    def encode(self, model: Model, data: np.ndarray, form: Form) -> Call:
        """A request for one inference, over HTTP."""

    @abstractmethod
    def decode(self, model: Model, body: bytes) -> np.ndarray:
        """The output of a JSON request, flat."""

    def infer(self, server: Server, model: Model, data: np.ndarray) -> np.ndarray:
        """The output for an input, which travels as JSON.

        Raises:
            FailedError: it is not answered with 200.
            OSError: the server is not reached.
        """
        call = self.encode(model, data, Form.JSON)
        connection = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=TIMEOUT_S)
        try:
            connection.request("POST", call.path, call.body, dict(call.headers))
            response = connection.getresponse()
            body = response.read()
        finally:
            connection.close()
        if response.status != 200:
            raise FailedError(f"{self.title} answered {response.status}: {body[:300].decode(errors='replace')}")
        return self.decode(model, body)


def json_call(path: str, document: object) -> Call:
    return Call(path, json.dumps(document).encode(), {"Content-Type": "application/json"})


def is_answered(server: Server, path: str) -> bool:
    """Whether a GET is answered with 200."""
    connection = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=1)
    try:
        connection.request("GET", path)
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
