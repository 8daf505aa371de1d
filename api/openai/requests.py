"""What OpenAI's clients ask for, read from the body of a request (docs/openai.md#requests)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .errors import FieldError
from .fields import BodyFields, wrong_type
from .formats import AskedFormat, read_format
from .tools import NO_TOOLS, AskedTools, read_calls, read_tools

Prompt = str | list[int]
"""A text, or its tokens."""

MOST_CHOICES = 128
"""Of one request, over all its prompts."""

_MOST_STOPS = 16
_MOST_INTEGER = 2**31 - 1
_SEEDS = (-(2**63), 2**63 - 1)
_ROLES = frozenset({"system", "developer", "user", "assistant", "tool", "function"})
_TEXT_PARTS = frozenset({"text", "refusal", "input_text", "output_text"})
_USUAL_COMPLETION_TOKENS = 16
"""Of a completion whose request does not say, as with OpenAI."""

_NEUTRAL: Mapping[str, Any] = {
    "top_p": 1,
    "presence_penalty": 0,
    "frequency_penalty": 0,
    "repetition_penalty": 1,
    "top_k": -1,
    "min_p": 0,
}
"""Values that ask for nothing."""


@dataclass(frozen=True, slots=True)
class AskedSampling:
    """How text is to be generated.

    Attributes:
        values: what is given that is a number, or `user`, by OpenAI's names; the seed's is that of the first choice.
        logprobs: how many alternatives of each token are to be told with their log-probabilities; None for nothing.
        format: what the text has to be.
    """

    values: Mapping[str, Any]
    stop: tuple[str, ...] = ()
    logit_bias: Mapping[str, float] | None = None
    logprobs: int | None = None
    format: AskedFormat | None = None

    def asks_for(self) -> list[str]:
        """The names of values that are not neutral."""
        return [name for name, value in self.values.items() if _NEUTRAL.get(name) != value]


@dataclass(frozen=True, slots=True)
class TextRequest:
    """A chat completion, or completions.

    Attributes:
        prompts: of completions, each as a string, or as its tokens.
        messages: of a chat; None for completions.
        choices: for each prompt.
        usage: the stream is to end with it.
        echo: the prompt is to stand before the text.
    """

    model: str
    sampling: AskedSampling
    prompts: tuple[Prompt, ...] = ()
    messages: tuple[Mapping[str, Any], ...] | None = None
    tools: AskedTools = NO_TOOLS
    template_values: Mapping[str, Any] | None = None
    choices: int = 1
    stream: bool = False
    usage: bool = False
    echo: bool = False


@dataclass(frozen=True, slots=True)
class EmbeddingRequest:
    """Embeddings.

    Attributes:
        texts: each as a string, or as its tokens.
        dimensions: so many of a vector are wanted; None for all.
    """

    model: str
    texts: tuple[Prompt, ...]
    base64: bool
    dimensions: int | None = None


@dataclass(frozen=True, slots=True)
class RankingRequest:
    """How well documents go with a query.

    Attributes:
        most: so many are wanted, the best ones.
        returns: the documents are to be told again.
    """

    model: str
    query: str
    documents: tuple[str, ...]
    most: int
    returns: bool


def read_chat(body: Any) -> TextRequest:
    """A request for a chat completion. FieldError for what is none."""
    fields = BodyFields(body)
    model = _model(fields)
    messages = fields.array("messages")
    if messages is None:
        fields.required("messages")
    if not messages:
        raise FieldError("messages", "Invalid 'messages': expected at least one message, but got an empty array.")
    logprobs = None
    top = fields.integer("top_logprobs", 0, 20)
    if fields.flag("logprobs"):
        logprobs = top or 0
    elif top is not None:
        raise FieldError("top_logprobs", "'top_logprobs' needs 'logprobs' to be true.")
    modalities = fields.texts("modalities", 8)
    if modalities not in (None, ["text"]):
        raise _unsupported("modalities", "modalities other than text")
    for name in ("functions", "function_call"):
        if fields.get(name) is not None:
            raise _unsupported(name, "the form of calls before 'tools'")
    limit = fields.integer("max_completion_tokens", 1, _MOST_INTEGER) or fields.integer("max_tokens", 1, _MOST_INTEGER)
    extra = fields.get("chat_template_kwargs")
    if extra is not None and not isinstance(extra, dict):
        raise wrong_type("chat_template_kwargs", "an object", extra)
    stream, usage = _read_stream(fields)
    return TextRequest(
        model,
        _read_sampling(fields, limit, logprobs),
        messages=tuple(_read_message(each, number) for number, each in enumerate(messages)),
        tools=read_tools(fields),
        template_values=extra,
        choices=fields.integer("n", 1, MOST_CHOICES) or 1,
        stream=stream,
        usage=usage,
    )


def read_completion(body: Any) -> TextRequest:
    """A request for completions. FieldError for what is none."""
    fields = BodyFields(body)
    model = _model(fields)
    fields.required("prompt")
    prompts = tuple(fields.texts_or_tokens("prompt", MOST_CHOICES))
    choices = fields.integer("n", 1, MOST_CHOICES) or 1
    best_of = fields.integer("best_of", 1, MOST_CHOICES)
    if best_of is not None and best_of != choices:
        raise _unsupported("best_of", "values other than that of 'n'")
    if choices * len(prompts) > MOST_CHOICES:
        raise FieldError(
            "n", f"Invalid 'n': {len(prompts)} prompts with {choices} choices, expected {MOST_CHOICES} at most"
        )
    if fields.text("suffix"):
        raise _unsupported("suffix")
    stream, usage = _read_stream(fields)
    limit = fields.integer("max_tokens", 1, _MOST_INTEGER) or _USUAL_COMPLETION_TOKENS
    sampling = _read_sampling(fields, limit, fields.integer("logprobs", 0, 20))
    echo = fields.flag("echo")
    if echo and sampling.logprobs is not None:
        raise _unsupported("echo", "together with 'logprobs'")
    if echo and not all(isinstance(prompt, str) for prompt in prompts):
        raise _unsupported("echo", "for prompts of tokens")
    return TextRequest(model, sampling, prompts, choices=choices, stream=stream, usage=usage, echo=echo)


def read_embeddings(body: Any, most: int) -> EmbeddingRequest:
    """A request for the embeddings of at most so many texts. FieldError for what is none."""
    fields = BodyFields(body)
    model = _model(fields)
    fields.required("input")
    texts = tuple(fields.texts_or_tokens("input", most))
    form = fields.text("encoding_format", "float")
    if form not in ("float", "base64"):
        raise FieldError(
            "encoding_format", f"Invalid 'encoding_format': expected 'float' or 'base64', but got '{form}'."
        )
    return EmbeddingRequest(model, texts, form == "base64", fields.integer("dimensions", 1, _MOST_INTEGER))


def read_ranking(body: Any, most: int) -> RankingRequest:
    """A request to rank at most so many documents. FieldError for what is none."""
    fields = BodyFields(body)
    model = _model(fields)
    fields.required("query")
    fields.required("documents")
    given = fields.array("documents") or []
    if not 1 <= len(given) <= most:
        raise FieldError("documents", f"Invalid 'documents': expected 1 to {most} of them, but got {len(given)}.")
    documents = tuple(_read_document(each, f"documents[{place}]") for place, each in enumerate(given))
    wanted = fields.integer("top_n", 1, _MOST_INTEGER) or len(documents)
    returns = fields.get("return_documents") is None or fields.flag("return_documents")
    return RankingRequest(model, fields.text("query"), documents, min(wanted, len(documents)), returns)


def _read_document(value: Any, path: str) -> str:
    """A string, or an object with a ``text``."""
    if isinstance(value, str):
        return value
    if not isinstance(value, dict):
        raise wrong_type(path, "a string or an object with a text", value)
    fields = BodyFields(value, path)
    fields.required("text")
    return fields.text("text")


def _unsupported(param: str, what: str = "this parameter") -> FieldError:
    return FieldError(
        param, f"Unsupported parameter: '{param}': this server does not support {what}.", "unsupported_parameter"
    )


def _model(fields: BodyFields) -> str:
    fields.required("model")
    name = fields.text("model")
    if not name:
        raise FieldError("model", "Invalid 'model': expected the name of a model, but got an empty string.")
    return name


def _read_stream(fields: BodyFields) -> tuple[bool, bool]:
    stream = fields.flag("stream")
    options = fields.fields("stream_options")
    if options is not None and not stream:
        raise FieldError("stream_options", "'stream_options' needs 'stream' to be true.")
    return stream, options is not None and options.flag("include_usage")


def _read_sampling(fields: BodyFields, limit: int | None, logprobs: int | None) -> AskedSampling:
    values = {
        "temperature": fields.number("temperature", 0, 2),
        "top_p": fields.number("top_p", 0, 1),
        "top_k": fields.integer("top_k", -1, _MOST_INTEGER),
        "min_p": fields.number("min_p", 0, 1),
        "max_tokens": limit,
        "seed": fields.integer("seed", *_SEEDS),
        "presence_penalty": fields.number("presence_penalty", -2, 2),
        "frequency_penalty": fields.number("frequency_penalty", -2, 2),
        "repetition_penalty": fields.number("repetition_penalty", 0, 100),
        "user": fields.text("user") or None,
    }
    stops = fields.texts("stop", _MOST_STOPS) or []
    if "" in stops:
        raise FieldError("stop", "Invalid 'stop': expected strings that are not empty.")
    bias = fields.get("logit_bias")
    if bias is not None:
        members = BodyFields(bias, "logit_bias")
        for token in bias:
            if not token.isdecimal():
                raise FieldError(f"logit_bias.{token}", f"Invalid 'logit_bias': '{token}' is no number of a token.")
            members.number(token, -100, 100)
    given = {name: value for name, value in values.items() if value is not None}
    return AskedSampling(given, tuple(stops), bias or None, logprobs, read_format(fields))


def _read_message(value: Any, number: int) -> dict[str, Any]:
    """A message as templates expect it: its content is one text."""
    path = f"messages[{number}]"
    fields = BodyFields(value, path)
    role = fields.required("role")
    if not isinstance(role, str):
        raise wrong_type(f"{path}.role", "a string", role)
    if role not in _ROLES:
        raise FieldError(f"{path}.role", f"Invalid '{path}.role': expected one of {sorted(_ROLES)}, but got '{role}'.")
    calls = read_calls(fields)
    if calls is None and role != "assistant":
        fields.required("content")
    message = {**value, "role": role, "content": _read_content(fields.get("content"), f"{path}.content")}
    return message if calls is None else {**message, "tool_calls": calls}


def _read_content(content: Any, path: str) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise wrong_type(path, "a string or an array of parts", content)
    return "".join([_read_part(part, f"{path}[{number}]") for number, part in enumerate(content)])


def _read_part(part: Any, path: str) -> str:
    fields = BodyFields(part, path)
    kind = fields.required("type")
    if not isinstance(kind, str):
        raise wrong_type(f"{path}.type", "a string", kind)
    if kind not in _TEXT_PARTS:
        raise FieldError(f"{path}.type", f"Invalid '{path}.type': expected 'text', but got '{kind}'.")
    return fields.text("refusal" if kind == "refusal" else "text")


def all_prompts(request: TextRequest, chat_prompt: str) -> Sequence[Prompt]:
    """The prompts of a request, each as often as choices are asked for; in the order of the choices."""
    prompts: Sequence[Prompt] = request.prompts if request.messages is None else (chat_prompt,)
    return [prompt for prompt in prompts for _ in range(request.choices)]
