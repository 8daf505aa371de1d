"""Infer requests over HTTP as the pipeline sees them (`api.pipeline`), with a task or without one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import ClassVar

from ...actors.lease import Lease
from ...engine.description import ModelDescription
from ...engine.errors import UnsupportedError
from ...engine.request import LATEST, InferenceRequest
from ...engine.tensor import Buffer
from ..pipeline import Encoder
from ..request_parameters import HeaderPattern
from .asgi import Headers
from .exchange import Answer, Context
from .infer_parameters import forward_headers
from .infer_request import DecodedInfer
from .infer_response import encode_infer, takes_long
from .json_large import ON_LOOP_BYTES


class HttpInfer(Encoder[Answer]):
    """One infer request whose body has come.

    Args:
        name: of the model, as its path says.
        values: of its headers, by lower-case name.
        headers: all of them; their names as received, in the same order, or None.

    Attributes:
        body: unpacked; empty once it has been decoded.
        json_length: how much of it is JSON (`infer_request.header_length`).
    """

    __slots__ = (
        "_headers",
        "_names",
        "_values",
        "_version",
        "body",
        "context",
        "decoded",
        "json_length",
        "lease",
        "model",
        "name",
        "offload",
        "request",
        "trace",
    )
    encode = staticmethod(encode_infer)
    takes_long = staticmethod(takes_long)
    prompt: ClassVar[bool] = False

    def __init__(
        self,
        context: Context,
        name: str,
        values: Mapping[bytes, bytes],
        headers: Headers,
        names: Sequence[bytes] | None,
    ) -> None:
        self.body: Buffer = b""
        self.context = context
        self.decoded: DecodedInfer | None = None
        self.json_length = 0
        self.lease: Lease | None = None
        self.model: ModelDescription | None = None
        self.name = name
        self.offload = context.server.offload
        self.request: InferenceRequest | None = None
        self.trace = None
        self._headers = headers
        self._names = names
        self._values = values
        self._version = LATEST

    def look_up(self, version: int) -> None:
        """Find the model, in the version that the path says; it must be one that answers once.

        Raises:
            TriremeError: there is no such model.
            UnsupportedError: it may answer any number of times.
        """
        model = self.model = self.context.server.describe(self.name, version)
        if model.config.decoupled:
            raise UnsupportedError("HTTP end point doesn't support models with decoupled transaction policy")
        self._version = version

    # See `pipeline.Adapter`.

    def decode(self) -> bool:
        json_length = self.json_length
        if json_length > ON_LOOP_BYTES:
            return False
        decoded = self.context.decoder.decode(self.body, json_length, self.name, self._version)
        decoded.model = self.model
        self.decoded = decoded
        self.request = decoded.request
        self.body = b""
        return True

    def forward(self, pattern: HeaderPattern, request: InferenceRequest) -> None:
        forward_headers(self._names, self._headers, pattern, request)

    def waiting(self) -> AbstractContextManager[None]:
        return nullcontext()
