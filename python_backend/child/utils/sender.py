"""`InferenceResponseSender`: answers one request, in pieces, from any thread
(docs/reference/python-backend.md#senders-and-decoupled-models).

Rule 1: A request is open until a response with the final flag, or the flag alone, was sent.
Rule 2: Nothing is sent after that.
Rule 3: The flags are 0 or FINAL; without FINAL there must be a response.
Rule 4: A model that is not decoupled sends one response, and FINAL not before it. The response ends the request at
    once; a FINAL behind it only closes the sender.
Rule 5: Responses leave in the order of the calls, each without the outputs that the client did not ask for.
Rule 6: A request whose sender is gone while it is open can never be answered: it gets an error. One that is to be
    executed once more will have a sender again: the same one, if it is still referred to then.
"""

from __future__ import annotations

import threading
from collections.abc import Collection

from .errors import HostError, TritonModelException
from .host import Host
from .response import InferenceResponse

FINAL = 1
"""TRITONSERVER_RESPONSE_COMPLETE_FINAL"""

LOST = "The model dropped the request without a final response."
"""What the client of an abandoned request is told."""

TWICE = "Unable to send response. Non-decoupled model cannot send more than one response."


class Answers:
    """What one request was sent so far; shared by its senders.

    Args:
        requested: names of the outputs that the client asked for; empty for all.
    """

    __slots__ = ("__weakref__", "_closed", "_host", "_key", "_lock", "_over", "_put_off", "_requested", "responded")

    def __init__(self, key: int, host: Host, requested: Collection[str]) -> None:
        self._key = key
        self._host = host
        self._requested = requested
        self._lock = threading.Lock()
        self.responded = False
        self._closed = False  # the model sent the final flag
        self._over = False  # the host was told of the last response
        self._put_off = False  # the request is to be executed once more

    def send(self, response: InferenceResponse | None, flags: int) -> None:
        """Send, if the rules allow it.

        Raises:
            TritonModelException: they do not, or the answer cannot be delivered.
        """
        if flags not in (0, FINAL):
            raise TritonModelException("Unable to send response. Unsupported flag provided.")
        if response is None and flags == 0:
            raise TritonModelException(
                "Inference Response object must be provided when the response flags is set to zero."
            )
        if response is not None and not isinstance(response, InferenceResponse):
            raise TypeError(f"send() takes an InferenceResponse, found type {type(response)}")
        with self._lock:
            self._check(response)
            last = flags if self._host.decoupled else FINAL
            if response is not None and self._requested and not response.has_error():
                response = response._only(self._requested)
            if not self._over:
                try:
                    self._host.send(self._key, response, last)
                except HostError as error:
                    raise TritonModelException(str(error)) from None
            self.responded = True
            self._over = last == FINAL
            self._closed = flags == FINAL

    def _check(self, response: InferenceResponse | None) -> None:
        if self._closed:
            raise TritonModelException("Unable to send response. Response sender has been closed.")
        if self._host.decoupled:
            return
        if response is not None and self.responded:
            raise TritonModelException(TWICE)
        if response is None and not self.responded:
            raise TritonModelException(
                "Unable to send response. Non-decoupled model cannot send complete final before sending a response."
            )

    def finish(self) -> bool:
        """Refuse what is sent from now on; whether the caller may, and must, give the last response instead."""
        with self._lock:
            open_until_now = not self._over
            self._over = self._closed = True
            return open_until_now

    @property
    def over(self) -> bool:
        """The last response was sent."""
        return self._over

    def put_off(self, until_later: bool) -> None:
        """The request is to be executed once more, or (False) that has begun."""
        self._put_off = until_later

    def is_cancelled(self) -> bool:
        return self._host.is_cancelled(self._key)

    def __del__(self) -> None:
        if not self._over and not self._put_off:
            self._over = True
            self._host.abandon(self._key)


class InferenceResponseSender:
    """Sends the responses of one request. Made by ``request.get_response_sender()``."""

    __slots__ = ("_answers",)

    def __init__(self, answers: Answers | None) -> None:
        self._answers = answers

    def send(self, response: InferenceResponse | None = None, flags: int = 0) -> None:
        """Send a response.

        Args:
            response: None for the final flag alone.
            flags: TRITONSERVER_RESPONSE_COMPLETE_FINAL with the request's last.

        Raises:
            TritonModelException: a rule of docs/reference/python-backend.md#senders-and-decoupled-models is broken.
        """
        self._existing.send(response, flags)

    def is_cancelled(self) -> bool:
        """Whether the client gave the request up."""
        return self._existing.is_cancelled()

    @property
    def _existing(self) -> Answers:
        if self._answers is None:
            raise TritonModelException(
                "Unable to send response. Response sender has no reference to the decoupled state of the model."
            )
        return self._answers
