"""Runs a declared model as the ``TritonPythonModel`` of a ``model.py``, with nothing but
``triton_python_backend_utils`` and numpy.

What the function raises is the answer to the requests that it was called for, with the function's own file and line.
An error that has a kind, as `trireme.InvalidArgumentError` has, is answered with its text alone and its status.
"""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .arrays import ResultError, bf16_of_floats, checked_output, floats_of_bf16, named_outputs
from .context import context_of
from .declaration import Declaration, declaration_of
from .sources import CopiedModules
from .types import BF16

__trireme_hides_frames__ = True


@dataclass
class FunctionCall:
    """One call of the function.

    Attributes:
        places: of the requests in the batch that it answers.
        given: its arguments.
        rows: of each of these requests; empty if there are no batches.
    """

    places: Sequence[int]
    given: Mapping[str, Any]
    rows: Sequence[int]


class AppModel:
    """The base of the class in ``model.py``, for functions that are called.

    Attributes:
        name: of the variable in the app's file.
        file: the app's file, relative to `folder`; empty for a model of this process, in the module `folder`.
        origin: see `CopiedModules`.
    """

    folder = file = name = origin = ""

    def initialize(self, args: Mapping[str, str]) -> None:
        """Import the app, and make what is called. Raises whatever that raises."""
        import triton_python_backend_utils as pb_utils  # type: ignore[import-not-found]

        self._utils = pb_utils
        config = json.loads(args["model_config"])
        self._batches = config.get("max_batch_size", 0) > 0
        self._sequences = "sequence_batching" in config
        self._instance = args["model_instance_name"]
        self._modules = CopiedModules(self.folder, self.origin)
        module = self._modules.import_app(self.file, self._instance) if self.file else sys.modules[self.folder]
        declaration = declaration_of(getattr(module, self.name, None))
        if declaration is None:
            raise AttributeError(f"{self.file or 'the program'} has no model '{self.name}'")
        self._declaration: Declaration = declaration
        self._function = declaration.callable_of_instance()

    def finalize(self) -> None:
        """Let go of the app; its object may have a method ``close``."""
        close = getattr(self._function, "close", None)
        del self._function, self._declaration
        self._modules.close()
        if callable(close):
            close()

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """Call the function, and answer the requests."""
        responses = self._unanswered(requests)
        for call in self._calls(requests):
            self._make(call, responses)
        return responses

    def _unanswered(self, requests: Sequence[Any]) -> list[Any]:
        return [self._utils.InferenceResponse() if self._fills_a_slot(request) else None for request in requests]

    def _make(self, call: FunctionCall, responses: list[Any]) -> None:
        try:
            self._answer(call, responses, self._function(**call.given))
        except Exception as error:  # noqa: BLE001 - user code
            self._fail(call.places, responses, error)

    def _calls(self, requests: Sequence[Any]) -> Iterator[FunctionCall]:
        """The calls for a batch: requests with the same inputs, of the same shapes but for the rows, share one."""
        asked = {place: request for place, request in enumerate(requests) if not self._fills_a_slot(request)}
        given = {
            place: {each.name(): self._array(each) for each in request.inputs()} for place, request in asked.items()
        }
        if not self._batches:
            for place, arrays in given.items():
                yield FunctionCall([place], {**arrays, **self._context(requests, [place], [0])}, ())
            return
        alike: dict[Any, list[int]] = {}
        whole = self._declaration.options.batches == "array"
        for place, arrays in given.items():
            shape = sorted((name, array.shape[1:] if whole else ()) for name, array in arrays.items())
            alike.setdefault(tuple(shape), []).append(place)
        for places in alike.values():
            rows = [next(iter(given[place].values())).shape[0] for place in places]
            columns = {name: [given[place][name] for place in places] for name in given[places[0]]}
            if whole:
                joined = {name: each[0] if len(each) == 1 else np.concatenate(each) for name, each in columns.items()}
                yield FunctionCall(places, {**joined, **self._context(requests, places, rows)}, rows)
            else:
                yield FunctionCall(places, {**columns, **self._context(requests, places, rows)}, rows)

    def _fills_a_slot(self, request: Any) -> bool:
        """Whether it stands in a batch for a sequence that has no request now. Its answer goes nowhere."""
        return self._sequences and not request.correlation_id()

    def _context(self, requests: Sequence[Any], places: Sequence[int], rows: Sequence[int]) -> Mapping[str, Any]:
        """The argument that says what is known of the requests, if the function has one for it."""
        name = self._declaration.context
        if not name:
            return {}
        contexts = [context_of(requests[place], number) for place, number in zip(places, rows)]
        one = not self._batches or self._declaration.manner.streams
        return {name: contexts[0] if one else contexts}

    def _array(self, tensor: Any) -> np.ndarray:
        for each in self._declaration.inputs:
            if each.name == tensor.name() and each.type.element is BF16:
                return floats_of_bf16(tensor.to_dlpack())
        return tensor.as_numpy()

    def _answer(self, call: FunctionCall, responses: list[Any], result: Any) -> None:
        """Give each request of the call its part of the result."""
        if self._batches and self._declaration.options.batches == "list":
            answers = list(result) if isinstance(result, Sequence) else []
            if len(answers) != len(call.places):
                raise ValueError(
                    f"the function returned {len(answers)} answers for {len(call.places)} requests, expected a list "
                    "with one for each"
                )
            for place, rows, answer in zip(call.places, call.rows, answers):
                if isinstance(answer, Exception):
                    self._fail([place], responses, answer)
                    continue
                try:
                    responses[place] = self._response(answer, rows)
                except ValueError as error:
                    self._fail([place], responses, error)
            return
        if len(call.places) == 1:
            responses[call.places[0]] = self._response(result, call.rows[0] if call.rows else None)
            return
        arrays = self._checked(result, sum(call.rows))
        end = 0
        for place, rows in zip(call.places, call.rows):
            start, end = end, end + rows
            responses[place] = self._of_arrays({name: array[start:end] for name, array in arrays.items()})

    def _response(self, result: Any, rows: int | None) -> Any:
        return self._of_arrays(self._checked(result, rows))

    def _checked(self, result: Any, rows: int | None) -> dict[str, np.ndarray]:
        outputs = self._declaration.outputs
        found = named_outputs(result, outputs)
        return {each.name: checked_output(found[each.name], each, rows) for each in outputs}

    def _of_arrays(self, arrays: Mapping[str, np.ndarray]) -> Any:
        tensors = []
        for each in self._declaration.outputs:
            array = arrays[each.name]
            if each.type.element is BF16:
                tensors.append(self._utils.Tensor.from_dlpack(each.name, bf16_of_floats(array)))
            else:
                tensors.append(self._utils.Tensor(each.name, array))
        return self._utils.InferenceResponse(tensors)

    def _fail(self, places: Sequence[int], responses: list[Any], error: BaseException) -> None:
        for place in places:
            responses[place] = self._utils.InferenceResponse(error=self._error(error))

    def _error(self, error: BaseException) -> Any:
        kind, message = getattr(error, "kind", None), getattr(error, "message", None)
        name = getattr(kind, "name", "").replace("INVALID_ARGUMENT", "INVALID_ARG")
        code = getattr(self._utils.TritonError, name, None) if name else None
        if code is not None and isinstance(message, str):
            return self._utils.TritonError(message, code)
        said = described(error)
        if isinstance(error, ResultError):  # raised by none of the function's own lines
            said = f"{error}; correct what it returns, or the annotation of its result at {self._declaration.place}"
        text = f"Failed to process the request(s) for model '{self._instance}', message: {said}"
        self._utils.Logger.log_error(text)
        return self._utils.TritonError(text)


class AsyncAppModel(AppModel):
    """The same for an ``async def``."""

    async def execute(self, requests: Sequence[Any]) -> list[Any]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Await the function, and answer the requests."""
        responses = self._unanswered(requests)
        for call in self._calls(requests):
            await self._make_apart(call, responses)
        return responses

    async def _make_apart(self, call: FunctionCall, responses: list[Any]) -> None:
        try:
            self._answer(call, responses, await self._function(**call.given))
        except Exception as error:  # noqa: BLE001 - user code
            self._fail(call.places, responses, error)


class StreamingAppModel(AppModel):
    """The same for a generator: what it yields is sent as it comes, for each request by itself. One whose client has
    gone is closed, so that its ``finally`` runs."""

    def execute(self, requests: Sequence[Any]) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Stream the answers to each request, of which a batch has one."""
        for request in requests:
            if self._fills_a_slot(request):
                self._end(request.get_response_sender())
            else:
                self._stream(request)

    def _stream(self, request: Any) -> None:
        sender = request.get_response_sender()
        try:
            given, rows = self._given(request)
            answers = self._function(**given)
            try:
                for answer in answers:
                    if sender.is_cancelled():
                        break
                    sender.send(self._response(answer, rows))
            finally:
                answers.close()
        except Exception as error:  # noqa: BLE001 - user code
            self._end(sender, error)
        else:
            self._end(sender)

    def _given(self, request: Any) -> tuple[Mapping[str, Any], int | None]:
        (call,) = self._calls([request])
        return call.given, call.rows[0] if call.rows else None

    def _end(self, sender: Any, error: Exception | None = None) -> None:
        final = self._utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
        if error is None:
            sender.send(flags=final)
        else:
            sender.send(self._utils.InferenceResponse(error=self._error(error)), flags=final)


class AsyncStreamingAppModel(StreamingAppModel):
    """The same for an asynchronous generator. Streams of one instance go on side by side, and one whose client reads
    slowly waits by itself."""

    async def execute(self, requests: Sequence[Any]) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Stream the answers to each request."""
        for request in requests:
            if self._fills_a_slot(request):
                self._end(request.get_response_sender())
            else:
                await self._stream_apart(request)

    async def _stream_apart(self, request: Any) -> None:
        sender = request.get_response_sender()
        try:
            given, rows = self._given(request)
            answers = self._function(**given)
            try:
                async for answer in answers:
                    await _room_for_answer(sender)
                    if sender.is_cancelled():
                        break
                    sender.send(self._response(answer, rows))
            finally:
                await answers.aclose()
        except Exception as error:  # noqa: BLE001 - user code
            self._end(sender, error)
        else:
            self._end(sender)


async def _room_for_answer(sender: Any) -> None:
    """Wait while the client is slow. Only senders of Trireme's can: those of Triton take any number of answers."""
    room = getattr(sender, "room", None)
    if room is not None:
        await room()


def described(error: BaseException) -> str:
    """Type and text of what a function raised, and where in its own code, the innermost first."""
    frames = [
        (frame.f_code.co_filename, line, frame.f_code.co_name)
        for frame, line in traceback.walk_tb(error.__traceback__)
        if "__trireme_hides_frames__" not in frame.f_globals
    ]
    where = "".join(f"  {file}({line}): {function}\n" for file, line, function in reversed(frames))
    text = f"{type(error).__name__}: {error}"
    return f"{text}\n\nAt:\n{where}" if where else text
