"""Requests from a model to other models (docs/reference/python-backend.md#requests-to-other-models).

A failure is a response with an error, never an exception: user code looks at ``has_error()``. Refusals by the server
get the text ``Model <target> - Error when running inference: ...``; errors that the target answered with stand as they
are.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from .context import ModelContext
from .errors import HostError, TritonModelException
from .host import ModelRequest, Responses
from .response import InferenceResponse, error_response


class ResponseIterator:
    """The responses to one request, for ``for`` (which blocks) and ``async for``.

    It remembers them: once all have been seen, the next loop starts over with the first. One that comes before goes on
    where the last was left.
    """

    def __init__(self, target: str, responses: Responses) -> None:
        self._target = target
        self._responses = responses
        self._seen: list[InferenceResponse] = []
        self._at = 0
        self._finished = False

    def __iter__(self) -> Iterator[InferenceResponse]:
        self._start_over()
        return self

    def __next__(self) -> InferenceResponse:
        if self._at < len(self._seen):
            return self._step()
        if self._finished:
            raise StopIteration
        try:
            self._seen.append(next(self._responses))
        except StopIteration:
            self._finished = True
            raise
        except HostError as error:
            self._refused(error)
        return self._step()

    def __aiter__(self) -> ResponseIterator:
        self._start_over()
        return self

    async def __anext__(self) -> InferenceResponse:
        if self._at < len(self._seen):
            return self._step()
        if self._finished:
            raise StopAsyncIteration
        try:
            self._seen.append(await self._responses.__anext__())
        except StopAsyncIteration:
            self._finished = True
            raise
        except HostError as error:
            self._refused(error)
        return self._step()

    async def first(self) -> None:
        """Wait for the first response, which stays the next one to be seen."""
        with contextlib.suppress(StopAsyncIteration):
            await self.__anext__()
            self._at = 0

    def cancel(self) -> None:
        """Give the request up; responses that are on their way may still come."""
        self._responses.cancel()

    def _start_over(self) -> None:
        if self._finished and self._at == len(self._seen):
            self._at = 0

    def _step(self) -> InferenceResponse:
        self._at += 1
        return self._seen[self._at - 1]

    def _refused(self, error: HostError) -> None:
        self._finished = True
        self._seen.append(refusal(self._target, error))


def execute(context: ModelContext, request: ModelRequest, decoupled: bool) -> Any:
    """The response, or a `ResponseIterator` if `decoupled`."""
    _check(context)
    responses = context.host.infer(request, decoupled)
    if decoupled:
        return ResponseIterator(request._model_name, responses)
    try:
        return next(responses)
    except HostError as error:
        return refusal(request._model_name, error)


def execute_async(context: ModelContext, request: ModelRequest, decoupled: bool) -> Any:
    """An awaitable with the same result, which is there with the first response. The request is made now, so that
    several can be awaited together; to cancel the awaitable is to give the request up."""
    _check(context)
    return _awaited(request._model_name, context.host.infer(request, decoupled), decoupled)


async def _awaited(target: str, responses: Responses, decoupled: bool) -> Any:
    finished = False
    try:
        if decoupled:
            result: Any = ResponseIterator(target, responses)
            await result.first()
        else:
            result = await responses.__anext__()
        finished = True
    except HostError as error:
        return refusal(target, error)
    finally:
        if not finished:
            responses.cancel()
    return result


def refusal(target: str, error: HostError) -> InferenceResponse:
    """What a model gets for a request that the server did not accept; the code is INTERNAL whatever the reason."""
    return error_response(f"Model {target} - Error when running inference: {error}")


def _check(context: ModelContext) -> None:
    if not context.serving:
        raise TritonModelException("BLS is only supported during the 'execute' function.")
