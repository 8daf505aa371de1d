"""`InferenceResponse`: outputs, or an error (docs/reference/python-backend.md#responses-and-errors); whom a model gives
it to, and how."""

from __future__ import annotations

import json
import threading
from collections.abc import Awaitable, Collection, Mapping, Sequence
from typing import Any, Protocol, Union

from .errors import ErrorCode, HostError, TritonError, TritonModelException
from .tensor import Tensor

Parameter = Union[bool, int, str]

MOST_PARAMETERS = 1024


class InferenceResponse:
    """An answer.

    Args:
        output_tensors: none of them None; of no meaning beside an error.
        error: what went wrong; the client gets its text and code.
        parameters: for the client; bool, int and str.

    Raises:
        TritonModelException: a None output, or parameters of other kinds.
    """

    __slots__ = ("_error", "_outputs", "_parameters")

    def __init__(
        self,
        output_tensors: Sequence[Tensor] = (),
        error: TritonError | None = None,
        parameters: Mapping[str, Parameter] | None = None,
    ) -> None:
        outputs = list(output_tensors)
        for output in outputs:
            if output is None:
                raise TritonModelException("Output tensor for inference response should not be empty.")
            if not isinstance(output, Tensor):
                raise TypeError(f"InferenceResponse: outputs must be Tensor objects, found {type(output)}")
        if error is not None and not isinstance(error, TritonError):
            raise TypeError(f"InferenceResponse: error must be a TritonError, found {type(error)}")
        self._outputs = outputs
        self._error = error
        self._parameters = {} if parameters is None else checked(parameters)

    def output_tensors(self) -> list[Tensor]:
        return self._outputs

    def has_error(self) -> bool:
        return self._error is not None

    def error(self) -> TritonError | None:
        return self._error

    def parameters(self) -> str:
        return json.dumps(self._parameters)

    def _only(self, names: Collection[str]) -> InferenceResponse:
        """This response without the outputs that were not requested; itself if that is all of it."""
        outputs = self._outputs
        if len(outputs) == 1 and outputs[0]._name in names:
            return self
        outputs = [output for output in outputs if output._name in names]
        if len(outputs) == len(self._outputs):
            return self
        pruned = InferenceResponse.__new__(InferenceResponse)
        pruned._outputs, pruned._error, pruned._parameters = outputs, self._error, self._parameters
        return pruned

    def __repr__(self) -> str:
        return f"<InferenceResponse {self._error or self._outputs}>"


def error_response(message: str, code: int = ErrorCode.INTERNAL) -> InferenceResponse:
    return InferenceResponse(error=TritonError(message, code))


def checked(parameters: Mapping[str, Parameter]) -> dict[str, Parameter]:
    """A copy of what user code gave as parameters. TritonModelException if it is no dictionary of str to bool, int or
    str."""
    if not isinstance(parameters, Mapping):
        raise TritonModelException(f"Expect parameters to be a dict, got {type(parameters)}")
    if len(parameters) > MOST_PARAMETERS:
        raise TritonModelException(f"Expect at most {MOST_PARAMETERS} parameters, found {len(parameters)}")
    for key, value in parameters.items():
        if not isinstance(key, str):
            raise TritonModelException(f"Expect parameters keys to have type str, found type {type(key)}")
        if not isinstance(value, (bool, int, str)):
            raise TritonModelException(f"Expect parameters values to have type bool/int/str, found type {type(value)}")
    return dict(parameters)


# What the utilities need from the host of a model: a process of its own, or a thread of the server.
#
# Every method may be called from any thread. What the server refuses is raised as `HostError` with the server's own
# text; the utilities add the prefixes that users know.


class Responses(Protocol):
    """What another model answers. Each step waits for the next response, until there are no more. An error that the
    model answered with is a response with an error; a request that the server did not accept raises `HostError` at the
    first step. To drop the object before its end cancels nothing: what still comes is discarded."""

    def __next__(self) -> InferenceResponse:
        """Blocks, without holding the interpreter's lock."""
        ...

    def __anext__(self) -> Awaitable[InferenceResponse]:
        """The same for a coroutine of whatever event loop the host runs coroutines on."""
        ...

    def cancel(self) -> None:
        """Give up the request if it is not over. Does not wait. May be called repeatedly."""


class Host(Protocol):
    """The server, as one model instance sees it: ``digits_0``, as error texts name it, whose transaction policy may be
    decoupled."""

    instance_name: str
    decoupled: bool

    def send(self, key: int, response: InferenceResponse | None, flags: int) -> None:
        """Answer the request `key`, which may be answered, as was checked before: with a response, and the flag 1
        if it is the last, or with that alone. May block while the client is slow. An answer to a request that is
        cancelled or gone is dropped. HostError if it cannot be delivered, because the server is gone or a tensor
        cannot be encoded."""

    async def room(self, key: int) -> None:
        """For a coroutine of whatever event loop the host runs coroutines on: return when `send` would not wait for the
        client of the request `key`, or when that has gone."""

    def abandon(self, key: int) -> None:
        """Answer the request `key`, whose senders are all gone, with the error `LOST`.

        Called by destructors: at any moment, in any thread, even within another method of the host. So it must neither
        block nor take a lock: it notes the key and leaves the answer to a later moment."""

    def is_cancelled(self, key: int) -> bool:
        """Whether the request `key` was cancelled; the last known state for one that is over."""
        ...

    def infer(self, request: Any, decoupled: bool, waits: bool = False) -> Responses:
        """Ask another model (BLS); the request is on its way when this returns. Only if `decoupled` any number of
        responses is allowed; otherwise there is exactly one, and a decoupled model is refused. The caller may say that
        it `waits` for the answer, and does nothing else."""
        ...

    def ask(self, method: str, *arguments: Any) -> Any:
        """Ask the server, and wait for its answer. What may be asked:

        ``load_model`` (name, configuration as JSON, contents by "file:<path>"), ``unload_model`` (name, whether its
        dependents, too), ``is_model_ready`` (name, version); ``create_family`` (name, description, ``counter``,
        ``gauge`` or ``histogram``) and ``create_metric`` (family, labels, for a histogram the upper bounds of its
        buckets, else None), which give numbers; with such a number ``delete_family``, ``delete_metric``,
        ``metric_increment``, ``metric_set`` and ``metric_observe`` (and a value), ``metric_value``.
        """

    def log(self, level: str, filename: str, line: int, message: str) -> None:
        """Write to the server's log; `level` is INFO, WARNING, ERROR or VERBOSE."""

    def free_memory(self) -> int:
        """Bytes of memory that is shared with the server and free."""
        ...


# `InferenceResponseSender`: answers one request, in pieces, from any thread
# (docs/reference/python-backend.md#senders-and-decoupled-models).
#
# Rule 1: A request is open until a response with the final flag, or the flag alone, was sent.
# Rule 2: Nothing is sent after that.
# Rule 3: The flags are 0 or FINAL; without FINAL there must be a response.
# Rule 4: A model that is not decoupled sends one response, and FINAL not before it. The response ends the request at
#     once; a FINAL behind it only closes the sender.
# Rule 5: Responses leave in the order of the calls, each without the outputs that the client did not ask for.
# Rule 6: A request whose sender is gone while it is open can never be answered: it gets an error. One that is to be
#     executed once more will have a sender again: the same one, if it is still referred to then.


FINAL = 1
"""TRITONSERVER_RESPONSE_COMPLETE_FINAL"""

LOST = "The model dropped the request without a final response."
"""What the client of an abandoned request is told."""

TWICE = "Unable to send response. Non-decoupled model cannot send more than one response."


class InferenceResponseSender:
    """Sends the responses of one request. Made by ``request.get_response_sender()``.

    Args:
        host: None for a request that no server has given to the model.
        requested: names of the outputs that the client asked for; empty for all.
    """

    __slots__ = ("__weakref__", "_closed", "_host", "_key", "_lock", "_over", "_put_off", "_requested", "_responded")

    def __init__(self, key: int, host: Host | None, requested: Collection[str]) -> None:
        self._key = key
        self._host = host
        self._requested = requested
        self._lock = threading.Lock()
        self._responded = False
        self._closed = False  # the model sent the final flag
        self._over = host is None  # the host was told of the last response
        self._put_off = False  # the request is to be executed once more

    def send(self, response: InferenceResponse | None = None, flags: int = 0) -> None:
        """Send a response.

        Args:
            response: None for the final flag alone.
            flags: TRITONSERVER_RESPONSE_COMPLETE_FINAL with the request's last.

        Raises:
            TritonModelException: a rule of docs/reference/python-backend.md#senders-and-decoupled-models is broken, or
                the answer cannot be delivered.
        """
        host = self._server()
        if flags not in (0, FINAL):
            raise TritonModelException("Unable to send response. Unsupported flag provided.")
        if response is None and flags == 0:
            raise TritonModelException(
                "Inference Response object must be provided when the response flags is set to zero."
            )
        if response is not None and not isinstance(response, InferenceResponse):
            raise TypeError(f"send() takes an InferenceResponse, found type {type(response)}")
        with self._lock:
            self._check(response, host.decoupled)
            last = flags if host.decoupled else FINAL
            if response is not None and self._requested and not response.has_error():
                response = response._only(self._requested)
            if not self._over:
                try:
                    host.send(self._key, response, last)
                except HostError as error:
                    raise TritonModelException(str(error)) from None
            self._responded = True
            self._over = last == FINAL
            self._closed = flags == FINAL

    def is_cancelled(self) -> bool:
        """Whether the client gave the request up."""
        return self._server().is_cancelled(self._key)

    async def room(self) -> None:
        """Wait until `send` would not block because the client is slow, and so hold up other coroutines. Triton, whose
        senders never block, has no such method."""
        if not self._over:
            await self._server().room(self._key)

    def _server(self) -> Host:
        if self._host is None:
            raise TritonModelException(
                "Unable to send response. Response sender has no reference to the decoupled state of the model."
            )
        return self._host

    def _check(self, response: InferenceResponse | None, decoupled: bool) -> None:
        if self._closed:
            raise TritonModelException("Unable to send response. Response sender has been closed.")
        if decoupled:
            return
        if response is not None and self._responded:
            raise TritonModelException(TWICE)
        if response is None and not self._responded:
            raise TritonModelException(
                "Unable to send response. Non-decoupled model cannot send complete final before sending a response."
            )

    def _finish(self) -> bool:
        """Refuse what is sent from now on; whether the caller may, and must, give the last response instead."""
        with self._lock:
            open_until_now = not self._over
            self._over = self._closed = True
            return open_until_now

    def __del__(self) -> None:
        if not self._over and not self._put_off and self._host is not None:
            self._over = True
            self._host.abandon(self._key)
