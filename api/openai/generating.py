"""Chat completions and completions on their way to the client: at once, or as server-sent events.

Whatever is wrong before the model's first response is an ordinary error, with its status. What goes wrong in a stream
after that is an event of its own, the last one. Sending that stops, because the client leaves, cancels all requests.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from copy import copy
from typing import Any

import orjson

from ...actors.reply import Reply
from ...engine.errors import CONTEXT_LENGTH, InternalError, TriremeError, UnavailableError
from ...engine.request import InferenceResponse
from ..http.exchange import JSON, Answer, Context, Exchange, HttpRequest
from ..http.responses import EVENTS, NOT_READ, IncomingResponses, event
from .answers import (
    AnswerHead,
    call_document,
    call_piece,
    chat_logprobs,
    choice_piece,
    completion_logprobs,
    role_piece,
    usage_of,
    whole_choice,
)
from .errors import of_request, refused
from .formats import STRUCTURED
from .inference import new_choice, take_logprobs, take_response
from .models import BIAS, NAMES, TEXT, TOKENS, TextModel
from .requests import TextRequest
from .tool_calls import CallBegin, CallFormat, CallPart, ToolCallFinder, whole_calls

_DONE = event(b"[DONE]")


class TextAnswer:
    """The choices of one answer.

    Args:
        prompts: of the choices, in their order, as far as they are to be repeated (`TextRequest.echo`).
        replies: of the requests for them.
        calls: how the model writes calls of tools, where they are looked for.
    """

    def __init__(
        self,
        context: Context,
        http: HttpRequest,
        model: TextModel,
        request: TextRequest,
        head: AnswerHead,
        prompts: Sequence[str],
        replies: Sequence[Reply],
        calls: CallFormat | None = None,
    ) -> None:
        self._model = model
        self._call_format = calls
        tools = request.tools
        self._finders = [calls and ToolCallFinder(calls, tools.names, tools.most) for _ in replies]
        self._request = request
        self._head = head
        self._prompts = prompts
        self._most_characters = context.options.max_input_bytes
        self._choices = [new_choice(model, request.sampling) for _ in replies]
        self._characters = [0] * len(replies)
        self._incoming = IncomingResponses(replies, context.server, http.exchange.address)

    async def send(self, exchange: Exchange) -> None:
        """Send the answer."""
        try:
            if self._request.stream:
                await self._send_events(exchange)
            else:
                await exchange.respond(await self._whole())
        finally:
            self._incoming.close()

    async def _outcomes(self) -> AsyncGenerator[tuple[int, InferenceResponse | TriremeError]]:
        """The responses to choices that are not over."""
        async with aclosing(self._incoming.each()) as responses:
            async for number, outcome in responses:
                if self._choices[number].finish_reason is None:
                    yield number, outcome

    def _take(self, number: int, outcome: InferenceResponse | TriremeError) -> tuple[str, list[list[dict[str, Any]]]]:
        """What a response adds to its choice: text, and log-probabilities.

        Raises:
            TriremeError: it is an error, or not what a model for text gives.
        """
        if isinstance(outcome, TriremeError):
            raise copy(outcome)
        choice = self._choices[number]
        try:
            text = take_response(self._model, choice, outcome)
            asked = self._request.sampling.logprobs is not None
            logprobs = take_logprobs(outcome) if asked else []
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise InternalError(f"the model's response is not what its outputs are for: {error}") from None
        if choice.finish_reason is not None:
            self._incoming.stop(number)
        return text, logprobs

    def _refused(self, error: TriremeError) -> Answer:
        prompt, form = "messages" if self._head.chat else "prompt", self._request.sampling.format
        params = {CONTEXT_LENGTH: prompt, TEXT: prompt, TOKENS: prompt, **{name: name for name in (*NAMES, BIAS)}}
        return refused(of_request(error, params if form is None else {**params, STRUCTURED: form.param}))

    # All at once.

    async def _whole(self) -> Answer:
        texts: list[list[str]] = [[prompt] if self._request.echo else [] for prompt in self._prompts]
        logprobs: list[list[list[dict[str, Any]]]] = [[] for _ in self._choices]
        characters = 0
        try:
            async with aclosing(self._outcomes()) as responses:
                async for number, outcome in responses:
                    text, found = self._take(number, outcome)
                    texts[number].append(text)
                    logprobs[number] += found
                    characters += len(text)
                    if characters > self._most_characters:
                        raise InternalError(f"the model's text is longer than {self._most_characters} characters")
            if self._incoming.given_up:
                raise UnavailableError(NOT_READ)
            return self._document(texts, logprobs)
        except TriremeError as error:
            return self._refused(error)

    def _document(self, texts: Sequence[list[str]], logprobs: Sequence[list[list[dict[str, Any]]]]) -> Answer:
        choices = []
        for number, choice in enumerate(self._choices):
            texts[number].append(choice.end())
            parts = self._parts(number, "".join(texts[number]), final=True)
            text = "".join(part for part in parts if isinstance(part, str))
            calls = [call_document(name, self._call_id(), arguments) for name, arguments in whole_calls(parts)]
            found = self._logprobs(number, logprobs[number])
            choices.append(whole_choice(self._head, number, text, calls, self._reason(number), found))
        document = self._head.document(choices)
        document["usage"] = usage_of(self._choices, self._request.choices)
        return Answer(200, JSON, orjson.dumps(document))

    def _parts(self, number: int, text: str, *, final: bool = False) -> list[CallPart]:
        """What there is to hand on when a choice has more text, or, finally, no more: texts, and calls of tools."""
        finder = self._finders[number]
        if finder is None:
            return [text] if text else []
        return finder.take(text) + (finder.end() if final else [])

    def _reason(self, number: int) -> str | None:
        """Why a choice is over."""
        finder, reason = self._finders[number], self._choices[number].finish_reason
        return "tool_calls" if finder is not None and finder.count and reason == "stop" else reason

    def _call_id(self) -> str:
        short = self._call_format is CallFormat.MISTRAL  # whose templates take nine letters or digits
        return secrets.token_hex(5)[:9] if short else f"call_{secrets.token_hex(12)}"

    def _logprobs(self, number: int, positions: list[list[dict[str, Any]]]) -> dict[str, Any] | None:
        alternatives = self._request.sampling.logprobs
        if alternatives is None:
            return None
        if self._head.chat:
            return chat_logprobs(positions, alternatives)
        return completion_logprobs(positions, alternatives, self._characters[number])

    # As it comes.

    async def _send_events(self, exchange: Exchange) -> None:
        begun = False
        try:
            async with aclosing(self._outcomes()) as responses:
                async for number, outcome in responses:
                    pieces = self._pieces(number, *self._take(number, outcome))
                    if not begun:
                        await exchange.begin(Answer(200, EVENTS, headers=((b"Cache-Control", b"no-cache"),)))
                        begun = True
                        pieces = self._first_pieces() + pieces
                    if pieces:
                        await exchange.send(b"".join(pieces))
            if self._incoming.given_up:
                raise UnavailableError(NOT_READ)
            last = self._last_pieces()
        except TriremeError as error:
            answer = self._refused(error)
            if not begun:
                await exchange.respond(answer)
                return
            last = [event(answer.body)]
        if not begun:
            await exchange.begin(Answer(200, EVENTS, headers=((b"Cache-Control", b"no-cache"),)))
            last = self._first_pieces() + last
        await exchange.send(b"".join(last))
        await exchange.send(b"", last=True)

    def _first_pieces(self) -> list[bytes]:
        numbers = range(len(self._choices))
        if self._head.chat:
            return [_event(role_piece(self._head, number)) for number in numbers]
        if self._request.echo:
            return [_event(choice_piece(self._head, each, self._prompts[each], None, None)) for each in numbers]
        return []

    def _pieces(self, number: int, text: str, positions: list[list[dict[str, Any]]]) -> list[bytes]:
        """What a response of a choice becomes."""
        pieces = self._said(number, self._parts(number, text), self._logprobs(number, positions) if positions else None)
        self._characters[number] += len(text)
        if self._choices[number].finish_reason is not None:
            pieces += self._end(number)
        return pieces

    def _said(self, number: int, parts: Sequence[CallPart], logprobs: Any = None) -> list[bytes]:
        """Pieces with these parts; the first one has the log-probabilities."""
        finder = self._finders[number]
        index = 0 if finder is None else finder.count - sum(isinstance(part, CallBegin) for part in parts)
        pieces = []
        if logprobs is not None and not (parts and isinstance(parts[0], str)):
            parts = ["", *parts]
        for part in parts:
            if isinstance(part, str):
                pieces.append(choice_piece(self._head, number, part, None, logprobs))
                logprobs = None
            elif isinstance(part, CallBegin):
                pieces.append(call_piece(self._head, number, index, call_document(part.name, self._call_id())))
                index += 1
            else:
                pieces.append(call_piece(self._head, number, index - 1, {"function": {"arguments": part.text}}))
        return list(map(_event, pieces))

    def _end(self, number: int) -> list[bytes]:
        pieces = self._said(number, self._parts(number, self._choices[number].end(), final=True))
        return [*pieces, _event(choice_piece(self._head, number, None, self._reason(number), None))]

    def _last_pieces(self) -> list[bytes]:
        numbers = range(len(self._choices))
        pieces = [piece for each in numbers if self._choices[each].finish_reason is None for piece in self._end(each)]
        if self._request.usage:
            usage = usage_of(self._choices, self._request.choices)
            pieces.append(_event({**self._head.document([], piece=True), "usage": usage}))
        return [*pieces, _DONE]


def _event(document: dict[str, Any]) -> bytes:
    return event(orjson.dumps(document))
