"""``POST /v2/models/M[/versions/V]/generate`` and ``…/generate_stream`` (docs/reference/generate.md).

Whatever is wrong before the model is asked is an ordinary error. After that the answer is sent as it comes about: its
status says how the model's first response was (200, or 400 if it was an error, of whatever class), its body the rest.

The connection holds the model back (`responses`).
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from contextlib import aclosing
from typing import Any

import orjson

from ....actors.reply import Reply
from ....engine.config.model import ModelInput
from ....engine.datatypes import BYTES
from ....engine.description import ModelDescription
from ....engine.errors import InvalidArgumentError, TriremeError, request_prefix
from ....engine.metrics.generation import LOAD_FAMILY
from ....engine.request import InferenceRequest, InferenceResponse
from ....engine.tensor import PackedElements, Tensor
from ....engine.tensor_limits import TensorLimits
from ....engine.tracing import Tracer
from ...pipeline import Adapter, element_by_element, find_model
from ...request_parameters import HeaderPattern
from ..exchange import JSON, Answer, Context, Exchange, Headers, HttpRequest, StreamedAnswer, error_body
from ..infer.request import custom_parameter
from ..infer.response import refuse_bytes
from ..json import reader as json_reader
from ..json import writer as json_writer
from ..json.pieces import LargeArray, LargeString
from ..json.reader import ON_LOOP_BYTES, LargeText, converted, generate_places, members_of
from ..json.scan import refuse_parts, refuse_strings
from ..json.tensor import refuse_half, tensor_from_json
from ..responses import EVENTS, NOT_READ, IncomingResponses, event

_WRONG_COUNT = error_body(
    "generate expects model to produce exactly 1 response, use generate stream for model that generates various number "
    "of responses"
)

_NOT_READ = error_body(NOT_READ)


async def generate(context: Context, request: HttpRequest) -> StreamedAnswer:
    """The only response of a model."""
    return _Whole(await _admit(context, request), context, request).send


async def generate_stream(context: Context, request: HttpRequest) -> StreamedAnswer:
    """All responses of a model, each an event."""
    return _Events(await _admit(context, request), context, request).send


async def _admit(context: Context, request: HttpRequest) -> Reply:
    await find_model(context.server, request.match.name, request.match.model_version())
    return await context.pipeline.admit(_GenerateTask(context, request))


class _GenerateTask(Adapter):
    """A generate request as the pipeline sees it (`pipeline.Adapter`). No headers become parameters of it."""

    def __init__(self, context: Context, request: HttpRequest) -> None:
        self.lease = request.lease
        self._context = context
        self._headers = request.headers()
        self._http = request
        self.caller = request.exchange.caller
        self._version = request.match.model_version()
        self.model = self._model = context.server.describe(request.match.name, self._version)
        if self._headers.get(b"content-encoding", b"identity") != b"identity":
            raise InvalidArgumentError("Unsupported content-encoding, only 'identity' is supported.")

    def received(self, tracer: Tracer) -> None:
        trace = self.trace = self._http.exchange.trace
        if trace is not None:
            trace.begin(self._model.name, self._headers, generates=True)

    def decode(self) -> bool:
        body = self._http.body
        if len(body) > ON_LOOP_BYTES:
            return False
        self.request = self._read(json_reader.parse(memoryview(body)))
        return True

    def _read(self, document: Any) -> InferenceRequest:
        context = self._context
        limit_bytes, limits = context.options.max_input_bytes, context.server.options.tensor_limits
        return _Reader(self._model, self._version, limit_bytes, limits).read(document)

    async def decode_slowly(self) -> None:
        context, http = self._context, self._http
        in_pieces = context.server.offload.in_pieces
        text = await in_pieces(LargeText, memoryview(http.body), context.options.max_json_values)
        await http.hold(text.cost_bytes)

        def read(document: Any) -> InferenceRequest:
            members = members_of(document)
            refuse_parts(len(members) + len(members_of(members.get("parameters"))))
            return self._read(document)

        self.request = await in_pieces(text.read, generate_places, read)
        self.lease = self._http.lease

    def forward(self, pattern: HeaderPattern, request: InferenceRequest) -> None:
        """As in Triton."""

    def header(self, name: str) -> str:
        return self._headers.get(name.encode(), b"").decode("utf-8", "surrogateescape")


class _Generation(ABC):
    """What a model responds. If sending stops before its end, the request is cancelled."""

    media = JSON

    def __init__(self, reply: Reply, context: Context, request: HttpRequest) -> None:
        self._load_format = request.headers().get(FORMAT_HEADER)
        self._management = context.server.management
        self._offload = context.server.offload
        self._incoming = IncomingResponses([reply], context.server, request.exchange.address)

    async def send(self, exchange: Exchange) -> None:
        try:
            await self._send(exchange)
        finally:
            self._incoming.close()

    @abstractmethod
    async def _send(self, exchange: Exchange) -> None:
        """As its kind says."""

    async def _encode(self, response: InferenceResponse | TriremeError) -> tuple[bytes, bool]:
        if isinstance(response, InferenceResponse) and takes_long(response):
            return await self._offload.in_pieces(_encode, response)
        return _encode(response)

    async def _begin(self, exchange: Exchange, failed: bool) -> None:
        wanted = self._load_format
        series = () if wanted is None else await self._management.custom_metric(LOAD_FAMILY)
        headers = load_metrics_headers(wanted, series)
        await exchange.begin(Answer(400 if failed else 200, self.media, headers=headers))


class _Whole(_Generation):
    """One JSON object, when the request is over: the response if there was exactly one."""

    async def _send(self, exchange: Exchange) -> None:
        count = 0
        body, failed = _WRONG_COUNT, False
        async with aclosing(self._incoming.each()) as responses:
            async for _, response in responses:
                count += 1
                if count == 1:
                    body, failed = await self._encode(response)
        if not self._incoming.complete:
            body, failed = _NOT_READ, True
        elif count != 1:
            body = _WRONG_COUNT
        await self._begin(exchange, failed)
        await exchange.send(body)
        await exchange.send(b"", last=True)


class _Events(_Generation):
    """An event for each response, errors among them."""

    media = EVENTS

    async def _send(self, exchange: Exchange) -> None:
        begun = False
        async with aclosing(self._incoming.each()) as responses:
            async for _, response in responses:
                body, failed = await self._encode(response)
                if not begun:
                    begun = True
                    await self._begin(exchange, failed)
                await exchange.send(event(body))
        if not begun:
            await self._begin(exchange, failed=self._incoming.given_up)
        if self._incoming.given_up:
            await exchange.send(event(_NOT_READ))
        await exchange.send(b"", last=True)


def _encode(response: InferenceResponse | TriremeError) -> tuple[bytes, bool]:
    """A response as a JSON object, and whether it is an error."""
    try:
        if isinstance(response, InferenceResponse):
            return encode_generate(response), False
        error = response
    except TriremeError as unfit:
        error = unfit
    return error_body(error.message), True


# ---- requests: the members of a JSON object become inputs and parameters ----


_NESTED = "parameters"
"""The member whose members are handled like those of the request itself."""


class _Reader:
    """Reads a request from the members of a JSON object.

    A member that has the name of an input is that input, any other is a request parameter; none of the names that mean
    something to the server elsewhere (``priority``, ``sequence_id``, ``triton_…``) does so here. ``id`` is also the
    request's id.

    Args:
        model: whose inputs they are; their shapes follow from its configuration.
        version: as asked for in the path.
        limit_bytes: bound on what the tensors take together.
        limits: what one tensor may be like.
    """

    def __init__(self, model: ModelDescription, version: int, limit_bytes: int, limits: TensorLimits) -> None:
        self._request = InferenceRequest(model.name, version)
        self._model = model
        self._inputs = {tensor.name: tensor for tensor in model.config.input}
        self._limit_bytes = limit_bytes
        self._limits = limits
        self._read_bytes = 0
        self._strings: list[int] = []

    def read(self, document: Any) -> InferenceRequest:
        """The request that a document describes; large arrays may be `LargeArray`.

        Raises:
            InternalError: no object, or a value of the wrong type.
            InvalidArgumentError: elements that do not fit an input's shape, a value that no parameter can have, too
                much.
            OddTextError: large data is not plain JSON.
        """
        json_reader.members(document)
        if "id" in document:
            self._request.id = converted(json_reader.as_string, document["id"], "id")
        for name, value in document.items():
            if name == _NESTED:
                self._read_nested(value)
            else:
                self._read_member(name, value)
        return self._request

    def _read_member(self, name: str, value: Any) -> None:
        given = self._inputs.get(name)
        if given is None:
            if isinstance(value, LargeString):
                self._strings.append(value.nbytes)
                refuse_strings(*self._strings)
                value = value.whole()
            self._request.parameters[name] = custom_parameter(name, value)
            return
        if any(tensor.name == name for tensor in self._request.inputs):
            raise InvalidArgumentError(f"{request_prefix(self._request.id)}input '{name}' already exists in request")
        tensor = _tensor(given, self._model.client_shape(given), value, self._limits)
        self._read_bytes += tensor.nbytes
        if self._read_bytes > self._limit_bytes:
            raise InvalidArgumentError(
                f"request size of {self._read_bytes} bytes with input '{name}' of size {tensor.nbytes} bytes exceeds "
                f"the maximum allowed input size of {self._limit_bytes}. Use --http-max-input-size to increase the "
                "limit."
            )
        self._request.inputs.append(tensor)

    def _read_nested(self, value: Any) -> None:
        if _NESTED in self._inputs:
            raise InvalidArgumentError(f"Keyword '{_NESTED}' for nested schema also given as input tensor name")
        problem = f"Expected JSON object for keyword: '{_NESTED}'"
        try:
            members = json_reader.as_object(value)
            problem = f"Converting keyword: '{_NESTED}'"
            for name, nested in members.items():
                self._read_member(name, nested)
        except TriremeError as error:
            raise type(error)(f"{problem}: {error.message}") from None


def _tensor(given: ModelInput, client_shape: tuple[int, ...], value: Any, limits: TensorLimits) -> Tensor:
    """An input from a scalar or an array, whose elements are not counted deeper than the outermost level."""
    is_text = isinstance(value, LargeString)
    data = value if type(value) is list or type(value) is LargeArray else ["" if is_text else value]
    try:
        shape = _fitted(given.name, client_shape, len(data))
    except InvalidArgumentError:
        if given.datatype is BYTES:
            # That they are strings comes first.
            tensor_from_json(given.name, BYTES, (len(data),), data, limits)
        raise
    refuse_half(given.name, given.datatype)
    if is_text and given.datatype is BYTES:
        packed = PackedElements(value.packed_bytes)
        packed.add_in_pieces(value.pieces())
        return Tensor(given.name, BYTES, shape, packed.view)
    return tensor_from_json(given.name, given.datatype, shape, data, limits)


def _fitted(name: str, shape: tuple[int, ...], count: int) -> tuple[int, ...]:
    """`shape` with its variable dimensions set so that it has `count` elements: the innermost takes what the fixed ones
    leave, the others are 1.

    Raises:
        InvalidArgumentError: there is no such shape.
    """
    fitted: list[int] = []
    for dim in shape:
        if dim > 0 and count % dim == 0:
            count //= dim
        elif dim >= 0:
            raise _unfit(name)
    for dim in reversed(shape):
        fitted.append(dim if dim >= 0 else count)
        count = count if dim >= 0 else 1
    if count != 1:
        raise _unfit(name)
    return tuple(reversed(fitted))


def _unfit(name: str) -> InvalidArgumentError:
    return InvalidArgumentError(f"The schema can not convert input '{name}' to tensor with proper shape")


# ---- responses ----


def takes_long(response: InferenceResponse) -> bool:
    """Whether `encode_generate` takes so long that it is called on a thread."""
    return any(map(element_by_element, response.outputs))


def encode_generate(response: InferenceResponse) -> bytes:
    """All that a response has, by name, in the order of the names' bytes.

    A tensor of one element is that element, any other a flat array. Where two things have one name, the server's own
    come first, then response parameters, then outputs.

    Raises:
        InvalidArgumentError: JSON cannot carry an output.
        InternalError: an output's data does not fit its shape.
        UnsupportedError: JSON cannot carry a parameter.
    """
    members: dict[str, bytes] = {}
    if response.id:
        members["id"] = json_writer.string(response.id)
    members["model_name"] = json_writer.string(response.model_name)
    members["model_version"] = b'"%d"' % response.model_version
    if response.parameters:
        refuse_bytes(response.parameters)
        for name, value in response.parameters.items():
            members.setdefault(name, json_writer.dumps(value))
    for tensor in response.outputs:
        data = json_writer.tensor_data(tensor)
        members.setdefault(tensor.name, data[1:-1] if tensor.element_count == 1 else data)
    ordered = sorted((name.encode("utf-8", "surrogateescape"), value) for name, value in members.items())
    return b"{%b}" % b",".join(json_writer.string(name) + b":" + value for name, value in ordered)


# ---- the ORCA header: how full a language model's cache is, for load balancers that ask for it with a request
# (docs/reference/generate.md#load-metrics-header). The numbers are those of a family of custom metrics that the backend
# of TensorRT-LLM keeps, and that any other backend may keep; else those of models that generate text ----

_log = logging.getLogger("trireme.http")

FORMAT_HEADER = b"endpoint-load-metrics-format"
_HEADER = b"endpoint-load-metrics"
_LABEL = "kv_cache_block_type"
_TYPES = ("tokens_per", "used", "max")


def load_metrics_headers(wanted: bytes | None, series: Iterable[tuple[Mapping[str, str], float]]) -> Headers:
    """The header in the format that the request wants; none, and a word in the log, if it cannot be made.

    Args:
        wanted: ``json`` or ``text``; None for a request that does not ask.
        series: of `LOAD_FAMILY`.
    """
    if wanted is None:
        return ()
    blocks = {labels.get(_LABEL, ""): value for labels, value in series}
    missing = [name for name in _TYPES if name not in blocks]
    if missing:
        _log.error("no %s header: metric family '%s' lacks '%s'", _HEADER.decode(), LOAD_FAMILY, "', '".join(missing))
        return ()
    tokens_per_block, used, most = (blocks[name] for name in _TYPES)
    utilization = used / most if most else 0.0
    capacity = int(most * tokens_per_block)
    if wanted == b"json":
        named = {"named_metrics": {"kv_cache_utilization": utilization, "max_token_capacity": capacity}}
        return ((_HEADER, b"JSON " + orjson.dumps(named)),)
    if wanted == b"text":
        text = f"named_metrics.kv_cache_utilization={utilization:f}, named_metrics.max_token_capacity={capacity}"
        return ((_HEADER, b"TEXT " + text.encode()),)
    _log.error("no %s header: format '%s' is neither 'json' nor 'text'", _HEADER.decode(), wanted.decode("latin-1"))
    return ()
