"""A facade without an engine behind it, and a client that calls the HTTP application without a socket."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import orjson
import trio
from traces import silent_tracer

from trireme.actors.access_gate import AccessGate
from trireme.actors.budget import InflightBudget, Lease
from trireme.actors.management import LocalManagement
from trireme.actors.offload import Offload
from trireme.api.http.app import HttpApplication
from trireme.api.http.exchange import Answer, Exchange, HttpOptions
from trireme.engine.admission.client_bytes import ClientAccounts
from trireme.engine.admission.shares import ModelShare
from trireme.engine.config.model import ModelConfig, ModelInput, ModelOutput
from trireme.engine.datatypes import BF16, BYTES, FP16, FP32, INT32, DataType
from trireme.engine.description import IndexEntry, ModelDescription, ServerMetadata
from trireme.engine.errors import InvalidArgumentError, NotFoundError, RefusalReason, TriremeError, UnavailableError
from trireme.engine.memory.regions import Regions
from trireme.engine.metrics.refusals import RefusalCounts
from trireme.engine.metrics.statistics import ModelStatisticsEntry
from trireme.engine.options import ServerOptions
from trireme.engine.request import LATEST, InferenceRequest, InferenceResponse, ParameterValue
from trireme.engine.tensor import Buffer, Tensor

if TYPE_CHECKING:
    from trireme.actors import InferenceServer
    from trireme.api.logging import Log

Compute = Callable[[InferenceRequest], list[Tensor]]


class FakeReply:
    """Answers with what it was given, once `gate` is open."""

    def __init__(self, outcome: InferenceResponse | TriremeError, gate: trio.Event | None) -> None:
        self._outcome = outcome
        self._gate = gate
        self.cancelled = False

    async def admitted(self) -> None:
        """It was, when it was made."""

    async def response(self) -> InferenceResponse:
        try:
            if self._gate is not None:
                await self._gate.wait()
        except trio.Cancelled:
            self.cancelled = True
            raise
        if isinstance(self._outcome, TriremeError):
            raise self._outcome
        return self._outcome


class NoRoutes:
    """Of a server that has none."""

    def is_route(self, name: str, version: int) -> bool:
        return False

    def status(self, name: str) -> list[dict[str, Any]]:
        return []


class FakeServer:
    """The facade's methods, over a few models that are functions.

    Attributes:
        submitted: every request that came through.
        refused: reasons, and models, of requests that were refused.
        refusal: raised by `admit` in place of accepting.
        full: raised by `check_room`.
        shares: of the models that leases are told of.
        failure: what the model answers in place of its outputs.
        gate: if set, answers wait for it.
        parameters: response parameters that every answer carries.
        loads, unloads: arguments of the calls.
    """

    def __init__(self) -> None:
        self.exiting = False
        self.passes_on = False
        self.routes = NoRoutes()
        self.access: AccessGate | None = None
        self.shared_memory = Regions()
        self.options = ServerOptions()
        self.offload = Offload()
        self.budget = InflightBudget(1_000, 4 << 30)
        self.client_accounts = ClientAccounts.of(4 << 30, 1.0)
        self.refusals = RefusalCounts()
        self.refused: list[tuple[RefusalReason | None, str]] = []
        self.tracer = silent_tracer()
        self.management = LocalManagement(cast(Any, self))
        self.is_live = True
        self.is_ready = True
        self.submitted: list[InferenceRequest] = []
        self.replies: list[FakeReply] = []
        self.refusal: TriremeError | None = None
        self.full: TriremeError | None = None
        self.shares: dict[str, ModelShare] = {}
        self.failure: TriremeError | None = None
        self.gate: trio.Event | None = None
        self.parameters: dict[str, ParameterValue] = {}
        self.loads: list[tuple[str, Mapping[str, str | bytes]]] = []
        self.unloads: list[tuple[str, bool]] = []
        self.control_error: TriremeError | None = None
        self.index: list[IndexEntry] = []
        self.index_calls: list[bool] = []
        self.entries: list[ModelStatisticsEntry] = []
        self.models: dict[str, tuple[ModelDescription, Compute]] = {}
        for description, compute in _models():
            self.models[description.name] = (description, compute)

    def note_refusal(self, why: TriremeError | RefusalReason, name: str = "", version: int | None = -1) -> None:
        reason = why.refusal_reason if isinstance(why, TriremeError) else why
        self.refused.append((reason, name if name in self.models else ""))

    def live(self) -> bool:
        return self.is_live

    def ready(self) -> bool:
        return self.is_ready

    def metadata(self) -> ServerMetadata:
        return ServerMetadata("triton", "1.2.3")

    def model_ready(self, name: str, version: int = LATEST) -> bool:
        return name in self.models and version in (LATEST, *self.models[name][0].versions)

    async def check_ready(self) -> bool:
        return self.ready()

    async def check_model_ready(self, name: str, version: int = LATEST) -> bool:
        return self.model_ready(name, version)

    def describe(self, name: str, version: int = LATEST) -> ModelDescription:
        if name == "loading":
            raise UnavailableError("Request for unknown model: 'loading' version 1 is not at ready state")
        if name not in self.models:
            raise NotFoundError(f"Request for unknown model: '{name}' is not found")
        description = self.models[name][0]
        if version not in (LATEST, *description.versions):
            raise NotFoundError(f"Request for unknown model: '{name}' version {version} is not found")
        return description if version == LATEST else replace(description, version=version)

    def statistics(self, name: str = "", version: int = LATEST) -> list[ModelStatisticsEntry]:
        found = [entry for entry in self.entries if name in ("", entry.name) and version in (LATEST, entry.version)]
        if name and not found:
            raise InvalidArgumentError(f"requested model '{name}' is not available")
        return found

    async def rescan(self) -> None:
        """It has no repositories."""

    def repository_index(self, ready_only: bool = False) -> list[IndexEntry]:
        self.index_calls.append(ready_only)
        return self.index

    async def load_model(self, name: str, parameters: Mapping[str, str | bytes]) -> None:
        if self.control_error is not None:
            raise self.control_error
        self.loads.append((name, parameters))

    async def unload_model(self, name: str, unload_dependents: bool = False) -> None:
        if self.control_error is not None:
            raise self.control_error
        self.unloads.append((name, unload_dependents))

    def lease(self, name: str = "", version: int = LATEST, client: str = "") -> Lease:
        return self.budget.lease(self.shares.get(name), client)

    def check_room(self, name: str, version: int = LATEST) -> None:
        if self.full is not None:
            raise self.full

    async def admit(
        self, request: InferenceRequest, lease: Lease | None = None, model: ModelDescription | None = None
    ) -> FakeReply:
        if lease is not None:
            lease.close()
        if self.refusal is not None:
            raise self.refusal
        self.submitted.append(request)
        description, compute = self.models[request.model_name]
        outputs = [
            tensor
            for tensor in compute(request)
            if not request.requested_outputs or tensor.name in request.requested_outputs
        ]
        response = InferenceResponse(description.name, description.version, request.id, outputs, self.parameters)
        reply = FakeReply(self.failure or response, self.gate)
        self.replies.append(reply)
        return reply


def _describe(
    name: str,
    inputs: Sequence[tuple[str, DataType, tuple[int, ...]]],
    outputs: Sequence[tuple[str, DataType, tuple[int, ...]]],
    *,
    labels: Mapping[str, tuple[str, ...]] | None = None,
    versions: tuple[int, ...] = (1,),
    **config: Any,
) -> ModelDescription:
    made = ModelConfig(
        name,
        backend="fake",
        input=tuple(ModelInput(*tensor) for tensor in inputs),
        output=tuple(ModelOutput(*tensor) for tensor in outputs),
        **config,
    )
    return ModelDescription(name, versions[-1], versions, made, labels or {})


def _models() -> list[tuple[ModelDescription, Compute]]:
    labels = {"OUT": ("zero", "one", "", "three")}
    square = [("OUT", FP32, (-1,))]
    return [
        (_describe("identity", [("IN", FP32, (-1,))], square, labels=labels, versions=(1, 3)), _identity),
        (_describe("batching", [("IN", FP32, (-1,))], square, labels=labels, max_batch_size=8), _identity),
        (
            _describe(
                "add_sub",
                [("INPUT0", INT32, (2,)), ("INPUT1", INT32, (2,))],
                [("OUTPUT0", INT32, (2,)), ("OUTPUT1", INT32, (2,))],
            ),
            _add_sub,
        ),
        (_describe("strings", [("IN", BYTES, (-1,))], [("OUT", BYTES, (-1,))]), _identity),
        (_describe("half", [("IN", FP16, (-1,))], [("OUT", FP16, (-1,))]), _half),
        (_describe("decoupled", [("IN", FP32, (-1,))], square, decoupled=True), _identity),
    ]


def _identity(request: InferenceRequest) -> list[Tensor]:
    if request.raw_input is not None:
        return [Tensor("OUT", FP32, (len(request.raw_input) // 4,), request.raw_input)]
    return [Tensor("OUT" + tensor.name[2:], tensor.datatype, tensor.shape, tensor.buffer) for tensor in request.inputs]


def _add_sub(request: InferenceRequest) -> list[Tensor]:
    left, right = (tensor.array for tensor in request.inputs)
    return [
        Tensor("OUTPUT0", INT32, (2,), array=left + right),
        Tensor("OUTPUT1", INT32, (2,), array=left - right),
    ]


def _half(request: InferenceRequest) -> list[Tensor]:
    return [
        Tensor("OUT", FP16, (2,), array=np.zeros(2, dtype=np.float16)),
        Tensor("BRAIN", BF16, (2,), array=np.zeros(2, dtype=np.uint16)),
    ]


class FakeExchange(Exchange):
    """A request whose body comes in `pieces`, and what is sent in answer."""

    def __init__(
        self,
        method: str,
        path: str | bytes,
        pieces: Iterable[bytes] = (),
        headers: Mapping[str, str] | None = None,
        http_version: str = "1.1",
    ) -> None:
        given = headers or {}
        lower = [(name.lower().encode(), value.encode("latin-1")) for name, value in given.items()]
        names = [name.encode() for name in given] if http_version.startswith("1") else None
        raw_path = path.encode() if isinstance(path, str) else path
        super().__init__(http_version, method, raw_path.partition(b"?")[0], lower, names, None)
        self._pieces = list(pieces)
        self.streams = False
        self.answer: Answer | None = None
        self.sent: list[bytes] = []

    async def read(self) -> tuple[Buffer, bool]:
        if not self._pieces:
            await trio.sleep_forever()
        return self._pieces.pop(0), bool(self._pieces)

    async def respond(self, answer: Answer) -> None:
        assert self.answer is None
        self.answer, self.done = answer, True
        self.sent = [] if self.method == "HEAD" else [bytes(answer.body), bytes(answer.tail or b"")]

    async def begin(self, answer: Answer) -> None:
        assert self.answer is None
        assert self.method != "HEAD"
        self.answer, self.streams = answer, True

    async def send(self, piece: Buffer, last: bool = False) -> None:
        assert self.streams
        assert not self.done
        self.sent.append(bytes(piece))
        self.done = last


class HttpReply:
    """What the application sent. `headers` by lower-case name."""

    def __init__(self, exchange: FakeExchange) -> None:
        answer = exchange.answer
        assert answer is not None
        assert exchange.done
        self.status = answer.status
        headers = [(b"Content-Type", answer.media), *answer.headers]
        if not exchange.streams:
            headers.append((b"Content-Length", b"%d" % len(answer.body + bytes(answer.tail or b""))))
        self.headers = {name.lower().decode(): value.decode() for name, value in headers}
        assert len(self.headers) == len(headers), "a header is sent twice"
        self.body = b"".join(exchange.sent)

    @property
    def media(self) -> str:
        return self.headers["content-type"]

    @property
    def json(self) -> Any:
        return orjson.loads(self.body)

    @property
    def error(self) -> str:
        """The text of an error answer, whose form it checks."""
        document = self.json
        assert list(document) == ["error"], document
        return document["error"]

    @property
    def blobs(self) -> bytes:
        """The bytes behind the JSON text."""
        return self.body[int(self.headers["inference-header-content-length"]) :]

    @property
    def head(self) -> Any:
        """The JSON text before the bytes."""
        return orjson.loads(self.body[: int(self.headers["inference-header-content-length"])])


class HttpClient:
    """Calls the application as a connection does."""

    def __init__(self, server: FakeServer, log: Log | None = None, **options: Any) -> None:
        self.server = server
        self.app = HttpApplication(cast("InferenceServer", server), HttpOptions(**options), log)

    async def ask(
        self,
        method: str,
        path: str | bytes,
        body: bytes | str | Iterable[bytes] = b"",
        headers: Mapping[str, str] | None = None,
        http_version: str = "1.1",
    ) -> HttpReply:
        """One request. A body that is no single piece comes in several."""
        pieces = [body] if isinstance(body, bytes) else [body.encode()] if isinstance(body, str) else list(body)
        exchange = FakeExchange(method, path, pieces, headers, http_version)
        await self.app(exchange)
        return HttpReply(exchange)

    async def get(self, path: str) -> HttpReply:
        return await self.ask("GET", path)

    async def post(self, path: str, body: bytes | str = b"", headers: Mapping[str, str] | None = None) -> HttpReply:
        return await self.ask("POST", path, body, headers)

    async def infer(
        self, document: Any, blobs: bytes = b"", headers: Mapping[str, str] | None = None, model: str = "identity"
    ) -> HttpReply:
        """An infer request: JSON (or its text), with the header that says where it ends if bytes follow."""
        text = document.encode() if isinstance(document, str) else orjson.dumps(document)
        sent = dict(headers or {})
        if blobs:
            sent["Inference-Header-Content-Length"] = str(len(text))
        return await self.post(f"/v2/models/{model}/infer", text + blobs, sent)


def fp32_request(**members: Any) -> dict[str, Any]:
    """A valid request for the models that take FP32, with further members."""
    return {"inputs": [{"name": "IN", "shape": [2], "datatype": "FP32", "data": [1, 2]}], **members}
