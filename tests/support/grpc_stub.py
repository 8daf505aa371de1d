"""Requests to the scripted models, and a stream of them in the hands of a test: with Triton's own stubs."""

from __future__ import annotations

import queue
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import grpc
import numpy as np
from triton_messages import MESSAGES, Stub

PATIENCE_S = 60.0

_END = object()


def infer_request(
    model: str = "plain", script: str = "", request_id: str = "", values: Sequence[float] = (1.0,), **fields: Any
) -> Any:
    """A ``ModelInferRequest``; `fields` are further ones, where parameters are Python values."""
    request = MESSAGES.ModelInferRequest(model_name=model, id=request_id)
    request.model_version = fields.pop("version", "")
    shape = [1, len(values)] if model == "queued" else [len(values)]
    request.inputs.add(name="IN", datatype="FP32", shape=shape)
    request.raw_input_contents.append(np.asarray(values, np.float32).tobytes())
    if script:
        request.parameters["script"].string_param = script
    for name, value in fields.items():
        field = {bool: "bool_param", int: "int64_param", str: "string_param"}[type(value)]
        setattr(request.parameters[name], field, value)
    return request


def values_of(response: Any) -> list[float]:
    """The elements of a response's only output."""
    (raw,) = response.raw_output_contents
    return np.frombuffer(raw, np.float32).tolist()


@contextmanager
def stub_for(url: str, **options: Any) -> Iterator[Any]:
    """Triton's generated stub on a channel of its own; `options` are the channel's."""
    settings = [("grpc.use_local_subchannel_pool", 1), *((f"grpc.{name}", value) for name, value in options.items())]
    with grpc.insecure_channel(url, options=settings) as channel:
        yield Stub(channel)


class OpenStream:
    """A call of ModelStreamInfer: `say`, `hear`, `half_close`, in any order."""

    def __init__(self, stub: Any, metadata: Sequence[tuple[str, str]] = (), timeout_s: float | None = None) -> None:
        self._requests: queue.Queue[Any] = queue.Queue()
        self.call = stub.ModelStreamInfer(iter(self._requests.get, _END), metadata=metadata, timeout=timeout_s)

    def say(self, model: str = "plain", script: str = "", request_id: str = "", **fields: Any) -> None:
        self.put(infer_request(model, script, request_id, **fields))

    def put(self, request: Any) -> None:
        """Say a request that is made already."""
        self._requests.put(request)

    def half_close(self) -> None:
        self._requests.put(_END)

    def hear(self) -> Any:
        """The next response."""
        return next(self.call)

    def rest(self) -> list[Any]:
        """Say that nothing follows; everything that is still answered."""
        self.half_close()
        return list(self.call)

    def leave(self) -> None:
        """Reset the call."""
        self.call.cancel()
        self.half_close()

    @property
    def status(self) -> tuple[grpc.StatusCode, str]:
        """How the call ended, once it has."""
        return self.call.code(), self.call.details()


def final_flag(response: Any) -> bool:
    """``triton_final_response`` of a ``ModelStreamInferResponse``."""
    parameter = response.infer_response.parameters["triton_final_response"]
    assert parameter.WhichOneof("parameter_choice") == "bool_param"
    return parameter.bool_param
