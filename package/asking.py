"""What a program asks a model of a server in it: arrays in, arrays out."""

from __future__ import annotations

import itertools
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import trio

from trireme.apps.declared.arrays import bf16_bits, floats_of_bits
from trireme.engine.datatypes import BF16, BY_NAME, BYTES, DataType
from trireme.engine.errors import InvalidArgumentError
from trireme.engine.request import LATEST, InferenceRequest, InferenceResponse, ParameterValue
from trireme.engine.tensor import Tensor

if TYPE_CHECKING:
    from trireme.actors import InferenceServer

Arrays = dict[str, np.ndarray]
"""Outputs by name. Elements of BYTES are ``bytes``; BF16 is ``float32``."""


@dataclass(frozen=True)
class AskOptions:
    """How a model is asked.

    Attributes:
        timeout_s: after so many seconds the request is cancelled, and TimeoutError raised; None for never.
        outputs: which are wanted; empty for all.
        priority, parameters, request_id: of the request.
        correlation_id, start, end: of a sequence.
    """

    model: str
    version: int = LATEST
    timeout_s: float | None = None
    outputs: tuple[str, ...] = ()
    priority: int = 0
    parameters: Mapping[str, ParameterValue] = field(default_factory=dict)
    request_id: str = ""
    correlation_id: int | str = 0
    start: bool = False
    end: bool = False


async def ask_once(server: InferenceServer, options: AskOptions, inputs: Mapping[str, Any]) -> Arrays:
    """Ask a model that answers once. Cancelling this cancels the request.

    Raises:
        TriremeError: refused, or the model failed.
        TimeoutError: not within the time.
    """
    with _within(options):
        return _arrays(await server.infer(await _request(server, options, inputs)))
    raise _too_late(options)


async def ask_many(
    server: InferenceServer, options: AskOptions, inputs: Mapping[str, Any]
) -> AsyncGenerator[Arrays, None]:
    """The answers of a model that answers any number of times, each within the time. To close this cancels the
    request.

    Raises:
        TriremeError, TimeoutError: see `ask_once`.
    """
    answers: AsyncIterator[InferenceResponse] | None = None
    with _within(options):
        reply = await server.admit(await _request(server, options, inputs))
        answers = reply.responses()
    if answers is None:
        raise _too_late(options)
    async with aclosing(answers):
        while True:
            answer: InferenceResponse | None = None
            with _within(options) as scope:
                answer = await anext(answers, None)
            if scope.cancelled_caught:
                raise _too_late(options)
            if answer is None:
                return
            yield _arrays(answer)


def _within(options: AskOptions) -> trio.CancelScope:
    return trio.CancelScope() if options.timeout_s is None else trio.move_on_after(options.timeout_s)


def _too_late(options: AskOptions) -> TimeoutError:
    return TimeoutError(f"model '{options.model}' has not answered within {options.timeout_s:g} s")


async def _request(server: InferenceServer, options: AskOptions, inputs: Mapping[str, Any]) -> InferenceRequest:
    if server.residents is not None:
        await server.want(options.model)  # a model that is loaded on demand says then what it takes
    config = server.describe(options.model, options.version).config
    types = {each.name: each.datatype for each in config.input}
    return InferenceRequest(
        options.model,
        options.version,
        id=options.request_id,
        inputs=[_tensor(name, value, types.get(name)) for name, value in inputs.items()],
        requested_outputs=options.outputs,
        parameters=dict(options.parameters),
        priority=options.priority,
        correlation_id=options.correlation_id,
        sequence_start=options.start,
        sequence_end=options.end,
    )


def _tensor(name: str, value: Any, kind: DataType | None) -> Tensor:
    """An input. An array keeps its type, which must be the model's; lists and numbers become what the model takes."""
    if kind is BF16 and not (isinstance(value, np.ndarray) and value.dtype == np.uint16):
        bits = bf16_bits(np.asarray(value, np.float32))
        return Tensor(name, BF16, bits.shape, array=bits)
    given = isinstance(value, np.ndarray)
    try:
        array = value if given else np.asarray(value, object if kind is BYTES else kind and kind.storage)
    except (TypeError, ValueError) as error:
        raise InvalidArgumentError(f"input '{name}' cannot become an array of {kind}: {error}") from None
    if array.dtype.kind in "OSU":
        flat = np.empty(array.size, object)
        flat[:] = [each if isinstance(each, bytes) else str(each).encode() for each in array.ravel().tolist()]
        return Tensor(name, BYTES, array.shape, array=flat.reshape(array.shape))
    for each in BY_NAME.values():
        if each.storage == array.dtype and each not in (BF16, BYTES):
            return Tensor(name, each, array.shape, array=array)
    raise InvalidArgumentError(f"input '{name}' is an array of {array.dtype}, which no model takes")


def _arrays(response: InferenceResponse) -> Arrays:
    return {each.name: floats_of_bits(each.array) if each.datatype is BF16 else each.array for each in response.outputs}


# -- Sequences: the requests of one go to the same instance, in their order

_FIRST_ID = 1 << 32
"""Programs that choose ids of their own choose small ones."""


class CorrelationIds:
    """Ids for sequences that are given none."""

    def __init__(self) -> None:
        self._ids: Iterator[int] = itertools.count(_FIRST_ID)

    def next(self) -> int:
        """One that was not there before."""
        return next(self._ids)


class SequenceSteps:
    """The options of one request after the other."""

    def __init__(self, options: AskOptions) -> None:
        self._options, self._begun = options, False

    def next(self, *, end: bool) -> AskOptions:
        """Those of the next request."""
        options = replace(self._options, start=not self._begun, end=end)
        self._begun = not end
        return options


def options_of(
    model: str,
    version: int = LATEST,
    *,
    timeout: float | None = None,
    outputs: Sequence[str] = (),
    priority: int = 0,
    parameters: Mapping[str, ParameterValue] | None = None,
    request_id: str = "",
) -> AskOptions:
    """What `model` of a server is given."""
    return AskOptions(model, version, timeout, tuple(outputs), priority, parameters or {}, request_id)
