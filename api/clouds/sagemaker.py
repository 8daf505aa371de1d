"""The front end for SageMaker: ``/ping``, ``/invocations``, and for endpoints of several models ``/models``
(docs/reference/cloud-front-ends.md#sagemaker)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

from ...actors.facade import Facade
from ...engine.access.callers import Right
from ...engine.errors import ErrorKind, TriremeError
from ..access import needed
from ..http.bodies import read_json
from ..http.exchange import (
    JSON,
    TEXT,
    Answer,
    BodyKind,
    Context,
    Exchange,
    Handler,
    HttpOptions,
    HttpRequest,
    Match,
    Route,
    error_body,
)
from ..http.handlers.generate import generate, generate_stream
from ..http.handlers.management import server_live, server_ready
from ..http.infer.handler import admit_infer, infer
from ..http.json import reader as json_reader
from ..http.json import writer as json_writer
from .application import CloudApplication, binary_media, health_route, no_such_path, route_to
from .hosted_models import GuardedPathError, HostedModels

UNSPECIFIED_MODEL = "unspecified_SAGEMAKER_TRITON_DEFAULT_MODEL_NAME"
"""What is asked for if no default model is named."""

_MEDIA = binary_media("sagemaker")
_LENGTH = b"Inference-Header-Content-Length"
_TARGET = b"x-amzn-sagemaker-target-model"
_MODELS_PATH = re.compile(rb"/models/?(?P<group>[^/]+)?(?P<invoke>/invoke)?")
_INSUFFICIENT_STORAGE = 507
_CONFLICT = 409

_OUT_OF_MEMORY = (
    "CUDA out of memory",
    "CUDA_OUT_OF_MEMORY",
    "Out of memory",
    "Out Of Memory",
    "out of memory",
    "MemoryError",
    "OutOfMemory",
    "OOM",
    "Dst tensor is not initialized",
    "Src tensor is not initialized",
    "CNMEM_STATUS_OUT_OF_MEMORY",
    "CUDNN_STATUS_NOT_INITIALIZED",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUBLAS_STATUS_NOT_INITIALIZED",
    "Failed to allocate memory",
    "failed to allocate memory",
    "No space left on device",
)
"""What in an error's text tells the platform to unload other models."""


@dataclass(frozen=True, slots=True)
class SageMakerOptions:
    """What the platform sets in the environment.

    Attributes:
        ping: what ``/ping`` asks for, ``ready`` or ``live``.
        default_model: what ``/invocations`` is for.
        inference: what it does, a key of `INFERENCE`.
    """

    ping: str = "ready"
    default_model: str = UNSPECIFIED_MODEL
    inference: str = "infer"


def failed(error: TriremeError, media: bytes) -> Answer:
    """The answer to a request that the platform gives no status for."""
    status = _INSUFFICIENT_STORAGE if any(each in error.message for each in _OUT_OF_MEMORY) else 400
    return Answer(status, media, error_body(error.message))


async def infer_default(context: Context, request: HttpRequest) -> Answer:
    """``POST /invocations``."""
    return _in_its_form(await infer(context, request))


INFERENCE: dict[str, tuple[Handler, BodyKind]] = {
    "infer": (infer_default, BodyKind.TENSORS),
    "generate": (generate, BodyKind.JSON),
    "generate_stream": (generate_stream, BodyKind.JSON),
}
"""What ``/invocations`` may do."""

PINGS: dict[str, Handler] = {"ready": server_ready, "live": server_live}
"""What ``/ping`` may ask for."""


def _in_its_form(answer: Answer) -> Answer:
    """An answer with binary tensors, as the platform's clients read it."""
    length = next((value for name, value in answer.headers if name == _LENGTH), None)
    if length is not None:
        answer.media = _MEDIA + length
        answer.headers = [each for each in answer.headers if each[0] != _LENGTH]
    return answer


class SageMakerApplication(CloudApplication):
    """See the module."""

    def __init__(self, server: Facade, options: HttpOptions, settings: SageMakerOptions, models: HostedModels) -> None:
        super().__init__(server, options, _MEDIA, self._find_default, _in_its_form)
        self._models = models
        handler, body = INFERENCE[settings.inference]
        self._ping = health_route("/ping", PINGS[settings.ping])
        self._invocations = route_to(handler, "/invocations", body=body)
        self._default = Match(self._invocations, settings.default_model)
        self._invoke = Route(
            "/models/{group}/invoke",
            _MODELS_PATH,
            {"POST": self._infer},
            "inference",
            TEXT,
            BodyKind.TENSORS,
            self._admit,
        )
        management: dict[str, Handler] = {"GET": self._show, "POST": self._load, "DELETE": self._unload}
        self._management = Route("/models[/{group}]", _MODELS_PATH, management, "model-repository", JSON)

    def needs(self, match: Match, method: str) -> tuple[Right, str, bool]:
        """What is loaded here is the platform's, which has the right on all models, whatever it calls them."""
        if match.route is self._management:
            right, on_all, _ = needed("model-repository", changes=method != "GET")
            return right, on_all, False
        return super().needs(match, method)

    def _find_default(self, target: bytes) -> Match | None:
        return self._default if target == b"/invocations" else None

    def find(self, exchange: Exchange) -> Match | Answer:
        path, method = exchange.path, exchange.method
        if path == b"/invocations":
            return self.matched(exchange, self._invocations, self._default.name)
        if path == b"/ping":
            return self.matched(exchange, self._ping)
        found = _MODELS_PATH.fullmatch(path)
        if found is None:
            return no_such_path()
        group = (found["group"] or b"").decode("utf-8", "surrogateescape")
        route = self._invoke if found["invoke"] and method == "POST" else self._management
        if method not in route.handlers:
            return no_such_path()
        return self.matched(exchange, route, _target(exchange, group), group)

    # Invocations of one of several models: whatever is wrong is 400, or 507.

    async def _admit(self, context: Context, match: Match) -> Answer | None:
        if match.repository not in self._models:
            return Answer(404, TEXT)
        refusal = await admit_infer(context, match)
        if refusal is not None:
            refusal.status = 400
        return refusal

    async def _infer(self, context: Context, request: HttpRequest) -> Answer:
        match = request.match
        if match.repository not in self._models:
            return Answer(404, TEXT)
        try:
            return _in_its_form(await infer(context, request))
        except TriremeError as error:
            if request.accepted:
                return failed(error, TEXT)
            context.server.note_refusal(error, match.name, match.version)
            return failed(error, JSON)

    # What is loaded.

    async def _show(self, context: Context, request: HttpRequest) -> Answer:
        """``GET /models`` and ``GET /models/H``."""
        name = request.match.repository
        if not name:
            rows = [_row(each.name, each.repository) if each.ready else {} for each in self._models.listed()]
            return Answer(200, TEXT, json_writer.dumps({"models": rows}))
        repository = self._models.repository_of(name)
        if repository is None:
            return Answer(404, TEXT)
        return Answer(200, TEXT, json_writer.dumps(_row(name, repository)))

    async def _load(self, context: Context, request: HttpRequest) -> Answer:
        """``POST /models``."""
        try:
            body = _LoadBody.of(await read_json(context, request) if len(request.body) else {})
            await self._models.load(body.model_name, _target(request.exchange, body.model_name), body.url)
        except GuardedPathError:
            return Answer(400, TEXT)
        except TriremeError as error:
            if error.kind is ErrorKind.ALREADY_EXISTS:
                return Answer(_CONFLICT, TEXT, error_body(error.message))
            return failed(error, TEXT)
        return Answer(200, TEXT)

    async def _unload(self, context: Context, request: HttpRequest) -> Answer:
        """``DELETE /models/H``."""
        try:
            found = await self._models.unload(request.match.repository)
        except TriremeError as error:
            return Answer(400, TEXT, error_body(error.message))
        return Answer(200 if found else 404, TEXT)


class _LoadBody(NamedTuple):
    """What a load request says; members of other names are ignored."""

    model_name: str
    url: str

    @classmethod
    def of(cls, body: object) -> _LoadBody:
        """TriremeError for members of other types."""
        members = json_reader.members_of(body)
        return cls(*(json_reader.as_string(members[name]) if name in members else "" for name in cls._fields))


def _row(name: str, repository: str) -> dict[str, str]:
    return {"modelName": name, "modelUrl": repository}


def _target(exchange: Exchange, group: str) -> str:
    """What the model is called here: as the platform's header says, else as the platform calls it."""
    given = next((value for name, value in exchange.headers if name == _TARGET), None)
    return group if given is None else given.decode("utf-8", "surrogateescape")
