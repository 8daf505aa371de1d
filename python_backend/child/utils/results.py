"""What a batch is answered with, for what user code has returned (docs/reference/python-backend.md#execute,
docs/reference/python-backend.md#senders-and-decoupled-models)."""

from __future__ import annotations

from typing import Any, Optional

from .failures import ModelError
from .host import Host
from .request import RELEASE_ALL, RELEASE_RESCHEDULE, InferenceRequest
from .response import InferenceResponse, error_response
from .sender import TWICE

Answered = list[Optional[InferenceResponse]]
"""An element a request: its last response, or None if there is nothing to be sent now."""


def checked(requests: list[InferenceRequest], returned: Any, host: Host) -> Answered:
    """The answers.

    Raises:
        ModelError: user code may not return this. Nothing was changed.
    """
    if host.decoupled and returned is not None:
        raise ModelError(
            f"Python model '{host.instance_name}' is using the decoupled mode and the execute function must return "
            "None."
        )
    if returned is None:
        return [_left_open(request) for request in requests]
    if not isinstance(returned, list):
        raise ModelError(f"Expected a list in the execute return, found type '{type(returned)}'.")
    if len(returned) != len(requests):
        raise ModelError(
            "Number of InferenceResponse objects do not match the number of InferenceRequest objects. "
            f"InferenceRequest(s) size is:{len(requests)}, and InferenceResponse(s) size is:{len(returned)}\n"
        )
    simple = True  # each has the one response that it should have, as nearly always
    for request, response in zip(requests, returned):
        usual = request._answers is None and request._release_flags == RELEASE_ALL
        if response.__class__ is not InferenceResponse or not usual:
            simple = False
            if response is not None:
                _check(request, response)
    if simple:
        return returned
    return [
        _left_open(request) if response is None else _ended(request, response)
        for request, response in zip(requests, returned)
    ]


def failed(requests: list[InferenceRequest], text: str) -> Answered:
    """The same error for every request that is still open."""
    response = error_response(text)
    for request in requests:
        request._release_flags = RELEASE_ALL
    return [_ended(request, response) for request in requests]


def _check(request: InferenceRequest, response: Any) -> None:
    if request._release_flags == RELEASE_RESCHEDULE:
        raise ModelError(
            "Expected a None object in the execute function return list for reschduled request, found type "
            f"'{type(response)}'."
        )
    if not isinstance(response, InferenceResponse):
        raise ModelError(
            "Expected an 'InferenceResponse' object in the execute function return list, found type "
            f"'{type(response)}'."
        )
    if request._answers is not None and request._answers.responded:
        raise ModelError(TWICE)


def _ended(request: InferenceRequest, response: InferenceResponse) -> InferenceResponse | None:
    """`response`, unless the request's sender has ended it."""
    return response if request._answers is None or request._answers.finish() else None


def _left_open(request: InferenceRequest) -> None:
    if request._release_flags == RELEASE_RESCHEDULE:
        if request._answers is not None:
            request._answers.put_off(True)
    else:
        request.get_response_sender()  # whose destruction tells the host that no answer can come any more
