"""The documents that OpenAI's clients read (docs/openai.md#answers)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .choices import TextChoice


@dataclass(frozen=True, slots=True)
class AnswerHead:
    """What all documents of one answer have in common.

    Attributes:
        created: seconds since the Unix epoch.
        usage: pieces of a stream say that usage comes later.
        chat: not completions.
    """

    id: str
    created: int
    model: str
    chat: bool
    usage: bool = False

    def document(self, choices: Sequence[Mapping[str, Any]], *, piece: bool = False) -> dict[str, Any]:
        """A document with these choices."""
        kind = ("chat.completion.chunk" if piece else "chat.completion") if self.chat else "text_completion"
        made = {"id": self.id, "object": kind, "created": self.created, "model": self.model, "choices": choices}
        return made | {"usage": None} if piece and self.usage else made


def whole_choice(
    head: AnswerHead, number: int, text: str, calls: Sequence[Mapping[str, Any]], reason: str | None, logprobs: Any
) -> dict[str, Any]:
    """A choice of an answer that comes at once.

    Args:
        calls: of tools (`call_document`).
    """
    said: dict[str, Any] = {"text": text}
    if head.chat:
        message = {"role": "assistant", "content": text or None if calls else text, "refusal": None}
        said = {"message": {**message, "tool_calls": calls} if calls else message}
    return {"index": number, **said, "logprobs": logprobs, "finish_reason": reason}


def call_document(name: str, call_id: str, arguments: str = "") -> dict[str, Any]:
    """A call of a tool, or the beginning of one."""
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def call_piece(head: AnswerHead, number: int, index: int, document: Mapping[str, Any]) -> dict[str, Any]:
    """A piece of a call of a choice of a stream.

    Args:
        index: of the call in its choice.
        document: what is new of it.
    """
    delta = {"tool_calls": [{"index": index, **document}]}
    return head.document([{"index": number, "delta": delta, "logprobs": None, "finish_reason": None}], piece=True)


def choice_piece(head: AnswerHead, number: int, text: str | None, reason: str | None, logprobs: Any) -> dict[str, Any]:
    """A piece of a choice of a stream; without a text it is the last one."""
    said: dict[str, Any] = {"text": text or ""}
    if head.chat:
        said = {"delta": {} if text is None else {"content": text}}
    return head.document([{"index": number, **said, "logprobs": logprobs, "finish_reason": reason}], piece=True)


def role_piece(head: AnswerHead, number: int) -> dict[str, Any]:
    """The first piece of a choice of a chat."""
    first = {"index": number, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
    return head.document([first], piece=True)


def usage_of(choices: Sequence[TextChoice], per_prompt: int) -> dict[str, int]:
    """How many tokens an answer took.

    Args:
        per_prompt: choices for each prompt, which counts once.
    """
    prompt = sum(choice.input_tokens for choice in choices[::per_prompt])
    completion = sum(choice.output_tokens for choice in choices)
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def chat_logprobs(positions: Sequence[Sequence[Mapping[str, Any]]], alternatives: int) -> dict[str, Any]:
    """Log-probabilities of the tokens of a chat's choice.

    Args:
        positions: see `take_logprobs`.
    """
    content = [{**each[0], "top_logprobs": _likeliest(each, alternatives)} for each in positions if each]
    return {"content": content, "refusal": None}


def completion_logprobs(
    positions: Sequence[Sequence[Mapping[str, Any]]], alternatives: int, start: int
) -> dict[str, Any]:
    """The same for completions.

    Args:
        start: characters of the text that came before.
    """
    found: dict[str, Any] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
    for tokens in positions:
        if tokens:
            found["tokens"].append(tokens[0]["token"])
            found["token_logprobs"].append(tokens[0]["logprob"])
            likeliest = _likeliest(tokens, alternatives)
            found["top_logprobs"].append({each["token"]: each["logprob"] for each in likeliest})
            found["text_offset"].append(start)
            start += len(tokens[0]["token"])
    return found


def _likeliest(tokens: Iterable[Mapping[str, Any]], count: int) -> list[Any]:
    return sorted(tokens, key=lambda each: -each["logprob"])[:count]


def model_entry(name: str, created: int, parent: str | None = None) -> dict[str, Any]:
    """A model in the list of models; an adapter with the model that it is for as its parent."""
    about = {"id": name, "object": "model", "created": created, "owned_by": "trireme"}
    return about if parent is None else {**about, "root": parent, "parent": parent}
