"""From OpenAI's requests to inference requests, and from the responses of models to choices.

A choice is a request of its own: the model need not know of several choices, and batches them as it batches any
requests. The first one waits for room as every request does; the others are refused if there is none, so that no
request holds room while it waits for more. With a seed, choice `i` of a prompt has the seed plus `i`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import orjson

from ...actors.reply import Reply
from ...engine.datatypes import BOOL, BYTES, INT64
from ...engine.description import ModelDescription
from ...engine.errors import RefusalReason, UnavailableError
from ...engine.request import InferenceRequest, InferenceResponse, ParameterValue
from ...engine.tensor import Tensor
from ...engine.tracing import Tracer
from ..http.exchange import Context, HttpRequest
from ..pipeline import Adapter
from ..request_parameters import HeaderPattern
from .choices import TextChoice
from .errors import FieldError
from .models import (
    FLAGS,
    LOGPROBS,
    RETURN_LOGPROBS,
    SAMPLING,
    STREAM,
    TOKENS,
    EmbeddingModel,
    TextModel,
    call_format,
)
from .requests import AskedSampling, Prompt, TextRequest
from .tool_calls import SPECIAL_MARKS


class _ChoiceTask(Adapter):
    """A request for one choice, as the pipeline sees it. No headers become parameters of it, as with generate."""

    def __init__(self, http: HttpRequest, request: InferenceRequest, model: ModelDescription) -> None:
        self.request = request
        self.model = model
        self.caller = http.exchange.caller
        self._http = http
        self._headers = http.headers()

    def received(self, tracer: Tracer) -> None:
        """Only of the first."""

    def decode(self) -> bool:
        return True

    async def decode_slowly(self) -> None:
        """It has been."""

    def forward(self, pattern: HeaderPattern, request: InferenceRequest) -> None:
        """See above."""

    def header(self, name: str) -> str:
        return self._headers.get(name.encode(), b"").decode("utf-8", "surrogateescape")


class _FirstTask(_ChoiceTask):
    """That has what the body holds of the budget, and is traced."""

    def __init__(self, http: HttpRequest, request: InferenceRequest, model: ModelDescription) -> None:
        super().__init__(http, request, model)
        self.lease = http.lease

    def received(self, tracer: Tracer) -> None:
        trace = self.trace = self._http.exchange.trace
        if trace is not None and self.model is not None:
            trace.begin(self.model.name, self._headers, generates=True)


class _FurtherTask(_ChoiceTask):
    """That does not wait for room."""

    prompt: ClassVar[bool] = True


async def admit_all(
    context: Context, http: HttpRequest, model: ModelDescription, requests: Sequence[InferenceRequest]
) -> list[Reply]:
    """Have a model accept requests: all of them, or none.

    Raises:
        TriremeError: one is refused.
    """
    replies: list[Reply] = []
    accepted = False
    try:
        replies.append(await context.pipeline.admit(_FirstTask(http, requests[0], model)))
        for request in requests[1:]:
            reply = context.pipeline.begin(_FurtherTask(http, request, model))
            if reply is None:
                raise UnavailableError(
                    f"there is no room for all {len(requests)} requests that this one is made of",
                    refusal=RefusalReason.BUDGET,
                )
            replies.append(reply)
        for reply in replies[1:]:
            await reply.admitted()
        accepted = True
    finally:
        if not accepted:
            for reply in replies:
                if not reply.final:
                    reply.cancel()
    return replies


def text_requests(
    model: TextModel, request: TextRequest, prompts: Sequence[Prompt], request_id: str, adapter: str = ""
) -> list[InferenceRequest]:
    """The requests for all choices.

    Args:
        prompts: see `all_prompts`.
        adapter: of the model; empty for none.

    Raises:
        FieldError: the model does not take what is asked for.
    """
    _check(model, request.sampling)
    numbered = enumerate(prompts)
    return [_text_request(model, request, prompt, number, request_id, adapter) for number, prompt in numbered]


def _check(model: TextModel, sampling: AskedSampling) -> None:
    """FieldError for what a model would not heed."""
    if sampling.logprobs is not None and not model.logprobs:
        raise _not_taken(model, "logprobs")
    if sampling.format is not None and not model.formats:
        raise _not_taken(model, sampling.format.param)
    if model.parameters is None:
        return
    if sampling.logit_bias is not None:
        raise _not_taken(model, "logit_bias")
    for name in sampling.asks_for():
        if name not in model.parameters and name not in ("max_tokens", "user"):
            raise _not_taken(model, name)


def _not_taken(model: TextModel, param: str) -> FieldError:
    text = f"Unsupported parameter: '{param}' is not supported with the model '{model.description.name}'."
    return FieldError(param, text, "unsupported_parameter")


def _text_request(
    model: TextModel, request: TextRequest, prompt: Prompt, number: int, request_id: str, adapter: str
) -> InferenceRequest:
    values = dict(request.sampling.values)
    if "seed" in values:
        values["seed"] += number % request.choices
    made = InferenceRequest(model.description.name, model.description.version, id=request_id)
    made.inputs.append(prompt_of(model, model.shapes[model.text_input], prompt, "prompt"))
    if model.parameters is None:
        made.inputs += _vllm_inputs(model, request, values, adapter)
    else:
        made.parameters |= {model.parameters[name]: value for name, value in values.items() if name in model.parameters}
    return made


def _vllm_inputs(
    model: TextModel, request: TextRequest, values: Mapping[str, ParameterValue], adapter: str
) -> list[Tensor]:
    """The further inputs of a model with the tensors of the vLLM backend."""
    sampling = request.sampling
    given: dict[str, Any] = {name: value for name, value in values.items() if name != "user"}
    if adapter:
        given["lora_name"] = adapter
    if request.tools.forced or (request.tools.offered and call_format(model.description) in SPECIAL_MARKS):
        given["skip_special_tokens"] = False
    if sampling.stop:
        given["stop"] = sampling.stop
    if sampling.logit_bias is not None:
        given["logit_bias"] = sampling.logit_bias
    if sampling.logprobs is not None:
        given["logprobs"] = sampling.logprobs
    if sampling.format is not None:
        given[model.formats] = sampling.format.text
    flags = {STREAM: request.stream, RETURN_LOGPROBS: sampling.logprobs is not None, **dict.fromkeys(FLAGS, True)}
    shapes = model.shapes
    inputs = [text_of(SAMPLING, shapes[SAMPLING], orjson.dumps(given).decode())]
    return inputs + [
        Tensor(name, BOOL, shapes[name], array=np.full(shapes[name], value))
        for name, value in flags.items()
        if name in shapes
    ]


def prompt_of(model: TextModel | EmbeddingModel, shape: tuple[int, ...], prompt: Prompt, param: str) -> Tensor:
    """The input that a text becomes, or its tokens.

    Args:
        shape: of the input for texts.
        param: what the request calls it.

    Raises:
        FieldError: the model takes no tokens.
    """
    if isinstance(prompt, str):
        return text_of(model.text_input, shape, prompt)
    if model.token_dims is None:
        name = model.description.name
        text = f"Unsupported parameter: '{param}': the model '{name}' takes no tokens."
        raise FieldError(param, text, "unsupported_parameter")
    shape = (*model.token_dims, len(prompt))
    return Tensor(TOKENS, INT64, shape, array=np.array(prompt, np.int64).reshape(shape))


def text_of(name: str, shape: tuple[int, ...], text: str) -> Tensor:
    """An input of one element."""
    array = np.empty(math.prod(shape), object)
    array[0] = text.encode("utf-8", "surrogateescape")
    return Tensor(name, BYTES, shape, array=array.reshape(shape))


def new_choice(model: TextModel, sampling: AskedSampling) -> TextChoice:
    """What keeps the text of one of the requests."""
    if model.parameters is None:
        return TextChoice()
    limit = None if "max_tokens" in model.parameters else sampling.values.get("max_tokens")
    return TextChoice(sampling.stop, limit)


def take_response(model: TextModel, choice: TextChoice, response: InferenceResponse) -> str:
    """Tell a choice of a response; what can be handed on of it.

    Raises:
        ValueError: an output is not what its name says.
    """
    outputs = {tensor.name: tensor for tensor in response.outputs}
    choice.count(_count(outputs.get("num_input_tokens")), _count(outputs.get("num_output_tokens")))
    reason = outputs.get("finish_reason")
    if reason is not None and model.parameters is None:
        choice.told(b"".join(reason.array.reshape(-1)[:1]).decode("utf-8", "replace"))
    text = outputs.get(model.text_output)
    return choice.take(b"" if text is None else b"".join(text.array.reshape(-1)))


def _count(tensor: Tensor | None) -> int | None:
    return None if tensor is None or not tensor.element_count else int(tensor.array.reshape(-1)[0])


def take_logprobs(response: InferenceResponse) -> list[list[dict[str, Any]]]:
    """For each token of a response the alternatives, ``token`` and ``logprob`` of each, the chosen one first. Models
    give an object by number of token, as the vLLM backend does, or the chosen one with others as its ``top``.

    Raises:
        ValueError, TypeError, KeyError, AttributeError: the output is not that.
    """
    tensor = next((each for each in response.outputs if each.name == LOGPROBS), None)
    if tensor is None:
        return []
    texts = [orjson.loads(raw) for raw in tensor.array.reshape(-1) if raw]
    return [_alternatives(position) for text in texts for position in (text or ())]


def _alternatives(position: Mapping[str, Any]) -> list[dict[str, Any]]:
    if "top" in position:
        top = [_alternative(each["token"], each) for each in position["top"] if each["id"] != position["id"]]
        return [_alternative(position["token"], position), *top]
    return [_alternative(each.get("decoded_token") or "", each) for each in position.values()]


def _alternative(text: str, given: Mapping[str, Any]) -> dict[str, Any]:
    return {"token": text, "logprob": given["logprob"], "bytes": list(text.encode("utf-8", "surrogatepass"))}
