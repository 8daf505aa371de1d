"""A server that runs, as sub-commands ask it: over HTTP or gRPC, one call after the other.

What cannot be asked is a `CommandError` that says what to do.
"""

from __future__ import annotations

import http.client
import json
import math
import ssl
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

import numpy as np

from ...engine.datatypes import BF16, BY_NAME, BYTES
from ...engine.tensor import iter_bytes
from .parser import UNREACHABLE, USAGE, CommandError, nearest


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """An input or output, as metadata tells it; `shape` has the batch dimension, and -1 for any size."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    optional: bool = False


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """A model that a server has. `config` is its configuration as JSON has it."""

    name: str
    versions: tuple[str, ...]
    platform: str
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    config: Mapping[str, Any] = field(default_factory=dict)

    @property
    def batches(self) -> bool:
        """Its tensors have a batch dimension."""
        return int(self.config.get("max_batch_size", 0)) > 0

    @property
    def has_sequences(self) -> bool:
        return "sequence_batching" in self.config

    def labelled(self) -> list[str]:
        """Outputs for whose indexes there are names."""
        return [each["name"] for each in self.config.get("output", ()) if each.get("label_filename")]


@dataclass(frozen=True, slots=True)
class SentTensor:
    """An input; `data` as the protocols have it in binary form."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    data: bytes


@dataclass(frozen=True, slots=True)
class GotTensor:
    """An output; of BYTES an array of objects of type `bytes`, of BF16 one of float32."""

    name: str
    datatype: str
    array: np.ndarray


class RemoteError(CommandError):
    """The server refuses."""


class ServerConnection(ABC):
    """A connection to a server.

    Args:
        headers: sent with each call, names in lower case.
        tls: None for a connection without.
    """

    def __init__(
        self,
        url: str,
        host: str,
        port: int,
        headers: Sequence[tuple[str, str]],
        timeout_s: float,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.url, self._host, self._port = url, host, port
        self._headers, self._timeout_s, self._tls = tuple(headers), timeout_s, tls

    @abstractmethod
    def model(self, name: str, version: str = "") -> ModelInfo:
        """What the server says of a model. Raises RemoteError if there is none."""

    @abstractmethod
    def index(self) -> list[dict[str, Any]]:
        """The repository index: name, version, state and reason of each version, as far as they are known."""

    @abstractmethod
    def infer(
        self,
        model: str,
        version: str,
        inputs: Sequence[SentTensor],
        *,
        parameters: Mapping[str, Any],
        outputs: Sequence[str],
        classes: int = 0,
    ) -> list[GotTensor]:
        """Ask a model.

        Args:
            outputs: that are wanted; all if empty.
            classes: of these outputs so many of the most likely classes instead, if not 0.
        """

    @abstractmethod
    def stream(
        self, model: ModelInfo, version: str, inputs: Sequence[SentTensor], *, parameters: Mapping[str, Any]
    ) -> Iterator[list[GotTensor]]:
        """Ask a model that answers any number of times: its answers as they come. To close this cancels the request.

        Raises:
            RemoteError: the server refuses, or the model failed; answers may have come before.
        """

    @abstractmethod
    def close(self) -> None: ...

    def unknown_model(self, name: str, said: str) -> RemoteError:
        """That there is no such model, with those that there are."""
        names = sorted({each["name"] for each in self.index() if each.get("state") == "READY"})
        near = nearest(name, names) or names[:5]
        remedy = f"did you mean: {' or '.join(near)}?" if near else "the server has no models that are ready"
        return RemoteError(said, remedy)

    def unreachable(self, error: BaseException) -> CommandError:
        """That there is no server."""
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        if isinstance(error, ssl.SSLError):
            reason = getattr(error, "verify_message", "") or getattr(error, "reason", "") or reason
            remedy = "name whom to trust with --ssl-root-certificates FILE, or correct --url"
            return CommandError(f"TLS with {self.url} fails: {reason}", remedy, UNREACHABLE)
        return CommandError(
            f"no server answers at {self.url}: {reason}",
            "start one with: trireme serve --model-repository models; or name another with --url",
            UNREACHABLE,
        )

    def too_late(self) -> CommandError:
        """That no answer came within the time."""
        return CommandError(
            f"no answer from {self.url} within {self._timeout_s:g} s", "give it longer with --timeout", UNREACHABLE
        )


class HttpRemote(ServerConnection):
    """Over HTTP/1.1, tensors in binary form."""

    def __init__(
        self,
        url: str,
        host: str,
        port: int,
        headers: Sequence[tuple[str, str]],
        timeout_s: float,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        super().__init__(url, host, port, headers, timeout_s, tls)
        if tls is not None:
            self._connection = http.client.HTTPSConnection(host, port, timeout=timeout_s, context=tls)
        else:
            self._connection = http.client.HTTPConnection(host, port, timeout=timeout_s)

    def get(self, path: str) -> Any:
        """The JSON at a path. Raises RemoteError with what the server says."""
        return _json(self._ask("GET", path)[1], self.url)

    def page(self, path: str) -> str:
        """The text at a path; errors as of `get`."""
        return self._ask("GET", path)[1].decode(errors="replace")

    def model(self, name: str, version: str = "") -> ModelInfo:
        path = _model_path(name, version)
        try:
            about = self.get(path)
        except RemoteError as error:
            if "unknown model" in error.text or "not found" in error.text:
                raise self.unknown_model(name, error.text) from error
            raise
        config = self.get(f"{path}/config")
        optional = {each["name"] for each in config.get("input", ()) if each.get("optional")}
        return ModelInfo(
            about["name"],
            tuple(about.get("versions", ())),
            about.get("platform", ""),
            tuple(_tensor_info(each, optional) for each in about["inputs"]),
            tuple(_tensor_info(each, frozenset()) for each in about["outputs"]),
            config,
        )

    def index(self) -> list[dict[str, Any]]:
        return _json(self._ask("POST", "/v2/repository/index", b"{}")[1], self.url)

    def infer(
        self,
        model: str,
        version: str,
        inputs: Sequence[SentTensor],
        *,
        parameters: Mapping[str, Any],
        outputs: Sequence[str],
        classes: int = 0,
    ) -> list[GotTensor]:
        tensors = [
            {
                "name": each.name,
                "datatype": each.datatype,
                "shape": list(each.shape),
                "parameters": {"binary_data_size": len(each.data)},
            }
            for each in inputs
        ]
        document: dict[str, Any] = {"inputs": tensors, "parameters": {**parameters, "binary_data_output": True}}
        if outputs:
            wanted = {"binary_data": True, **({"classification": classes} if classes else {})}
            document["outputs"] = [{"name": name, "parameters": wanted} for name in outputs]
        head = json.dumps(document).encode()
        body = b"".join([head, *(each.data for each in inputs)])
        length, answer = self._ask(
            "POST", f"{_model_path(model, version)}/infer", body, {"Inference-Header-Content-Length": str(len(head))}
        )
        return _got(answer, length, self.url)

    def stream(
        self, model: ModelInfo, version: str, inputs: Sequence[SentTensor], *, parameters: Mapping[str, Any]
    ) -> Iterator[list[GotTensor]]:
        """See `ServerConnection`; by ``generate_stream``, whose requests have one row."""
        body = {**parameters, **{each.name: _generated_value(each, batches=model.batches) for each in inputs}}
        answer = self._begin("POST", f"{_model_path(model.name, version)}/generate_stream", json.dumps(body).encode())
        try:
            if answer.status != 200:
                raise RemoteError(_said(answer.read().removeprefix(b"data:"), answer.status), _hint(answer.status))
            while line := answer.readline():
                if line.startswith(b"data:"):
                    document = _json(line.removeprefix(b"data:"), self.url)
                    if "error" in document:
                        raise RemoteError(str(document["error"]), "")
                    yield [_generated(each, document[each.name]) for each in model.outputs if each.name in document]
        except TimeoutError as error:
            raise self.too_late() from error
        except (OSError, http.client.HTTPException) as error:
            raise self.unreachable(error) from error
        finally:
            self._connection.close()

    def _ask(
        self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> tuple[int | None, bytes]:
        """How much of the answer is JSON, if not all; and the answer."""
        answer = self._begin(method, path, body, headers)
        try:
            content = answer.read()
        except TimeoutError as error:
            self._connection.close()
            raise self.too_late() from error
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            raise self.unreachable(error) from error
        if answer.status != 200:
            raise RemoteError(_said(content, answer.status), _hint(answer.status))
        length = answer.headers.get("Inference-Header-Content-Length")
        return None if length is None else int(length), content

    def _begin(
        self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> http.client.HTTPResponse:
        """Send a request; the answer up to its body."""
        try:
            self._connection.request(method, path, body, {**dict(self._headers), **(headers or {})})
            return self._connection.getresponse()
        except TimeoutError as error:
            self._connection.close()
            raise self.too_late() from error
        except http.client.BadStatusLine as error:
            self._connection.close()
            if not isinstance(error, http.client.RemoteDisconnected):
                raise CommandError(
                    f"what answers at {self.url} speaks no HTTP", "correct --url", UNREACHABLE
                ) from error
            raise self.unreachable(error) from error
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            raise self.unreachable(error) from error

    def close(self) -> None:
        self._connection.close()


def _model_path(name: str, version: str) -> str:
    return f"/v2/models/{quote(name, safe='')}" + (f"/versions/{quote(version, safe='')}" if version else "")


def _tensor_info(document: Mapping[str, Any], optional: frozenset[str] | set[str]) -> TensorInfo:
    name = document["name"]
    return TensorInfo(name, document["datatype"], tuple(int(each) for each in document["shape"]), name in optional)


def _json(content: bytes, url: str) -> Any:
    try:
        return json.loads(content)
    except ValueError as error:
        raise CommandError(f"what answers at {url} is no inference server", "correct --url", UNREACHABLE) from error


def _said(content: bytes, status: int) -> str:
    try:
        return str(json.loads(content)["error"])
    except (ValueError, KeyError, TypeError):
        return f"the server answers with HTTP status {status}"


def _hint(status: int) -> str:
    return {
        401: "give a key with --api-key",
        403: "the server's administrator says who may do this; a restricted API's key goes into --header",
        413: "the server takes larger bodies with --http-max-input-size",
        503: "wait until the model is ready; trireme top shows its state",
    }.get(status, "")


def _generated_value(tensor: SentTensor, *, batches: bool) -> Any:
    """An input as ``generate_stream`` takes it: its elements, of one row."""
    if batches and tensor.shape[0] != 1:
        raise CommandError(
            f"input '{tensor.name}' has {tensor.shape[0]} rows, and a stream over HTTP takes one",
            "give one row, or ask by --url grpc://HOST:PORT",
            USAGE,
        )
    flat = read_array(tensor.datatype, tensor.shape, tensor.data).reshape(-1)
    return [each.decode(errors="replace") if isinstance(each, bytes) else each.item() for each in flat]


def _generated(output: TensorInfo, value: Any) -> GotTensor:
    """An output as ``generate_stream`` gives it; its shape is that of the metadata, as far as it follows from them."""
    kind = BY_NAME[output.datatype]
    values = value if isinstance(value, list) else [value]
    array = np.empty(len(values), object if kind is BYTES else np.float32 if kind is BF16 else kind.storage)
    array[:] = [each.encode() if isinstance(each, str) else each for each in values]
    shape = [1, *output.shape[1:]] if output.shape[:1] == (-1,) and len(output.shape) > 1 else list(output.shape)
    known = math.prod(each for each in shape if each != -1)
    fits = shape.count(-1) <= 1 and known and array.size % known == 0 and (-1 in shape or known == array.size)
    return GotTensor(output.name, output.datatype, array.reshape(shape) if fits else array)


def _got(answer: bytes, length: int | None, url: str) -> list[GotTensor]:
    document = _json(answer if length is None else answer[:length], url)
    at = length or 0
    found = []
    for output in document.get("outputs", ()):
        size = output.get("parameters", {}).get("binary_data_size")
        shape = tuple(output["shape"])
        if size is None:
            storage = BY_NAME[output["datatype"]].storage
            array = np.array(output["data"], dtype=storage).reshape(shape)
        else:
            array = read_array(output["datatype"], shape, answer[at : at + size])
            at += size
        found.append(GotTensor(output["name"], output["datatype"], array))
    return found


def read_array(datatype: str, shape: Sequence[int], data: bytes) -> np.ndarray:
    """An array from a tensor's bytes; of BYTES its elements are `bytes`, of BF16 they are float32."""
    kind = BY_NAME[datatype]
    if kind is BYTES:
        elements = np.empty(int(np.prod(shape)), object)
        elements[:] = list(iter_bytes(data))
        return elements.reshape(shape)
    array = np.frombuffer(data, kind.storage).reshape(shape)
    return (array.astype(np.uint32) << 16).view(np.float32) if kind is BF16 else array
