"""What models ask of the server while they serve: other models (BLS), and which of them are loaded.

Rules:
 1. A request that a model makes does not wait for room in the server's budget. The request that the model is serving
    holds a share of that until it is answered, so if its own requests had to wait, they could wait for ever. They are
    counted, though, and clients wait for them.
 2. A request that could never be executed, since its model waits for the answer to it, is refused (`refuse_recursion`).
 3. If its model is loaded on demand, and not in memory, that is waited for; the model that asks stays (`residents`).
 4. While the server starts it answers nothing of this kind: models are not there yet, and waiting for them could mean
    to wait for oneself. When it has stopped it loads and unloads nothing, and no model is ready.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial

import trio

from ..engine.backends.services import NOT_READY, Answers, Question
from ..engine.config.model import ModelConfig
from ..engine.errors import (
    CancelledError,
    ColdModelError,
    InternalError,
    InvalidArgumentError,
    TriremeError,
    UnavailableError,
    unframed,
)
from ..engine.job import Outcome
from ..engine.request import LATEST, InferenceRequest
from ..engine.tensor import Buffer
from .admission import Admission
from .model_control import ModelControl
from .offload import Offload, copied_in_pieces
from .reply import Reply
from .repository import Repository
from .residents import Residents

OnDone = Callable[[TriremeError | None], object]


@dataclass(slots=True, eq=False)
class ModelCalls:
    """Implements `engine.backends.services.ModelAccess`. What takes time is for the nursery."""

    _offload: Offload
    _nursery: trio.Nursery
    _open: tuple[Admission, ModelControl | Residents] | None = None
    _closed: bool = False

    def open(self, admission: Admission, control: ModelControl | Residents) -> None:
        """The server has started (rule 4)."""
        self._open = admission, control

    def close(self) -> None:
        """The server has stopped (rule 4)."""
        self._closed = True

    def ask(self, request: InferenceRequest, many: bool, on_answer: Callable[[Question], None]) -> Question:
        admission, control = self._opened()
        try:
            reply = self._admit(admission, control, request, many)
        except ColdModelError:
            assert isinstance(control, Residents), "only there are cold models"
            waiting = _WaitingQuestion(on_answer)
            self._nursery.start_soon(self._wait_and_ask, waiting, admission, control, request, many)
            return waiting
        except TriremeError as error:
            admission.note_refusal(error, request.model_name, request.model_version)
            raise
        reply.notify_each(on_answer)
        return reply

    def _admit(
        self, admission: Admission, control: ModelControl | Residents, request: InferenceRequest, many: bool
    ) -> Reply:
        name, version = request.model_name, request.model_version
        try:
            description = admission.describe(name, version)
        except ColdModelError:
            raise
        except TriremeError as error:
            text = f"Failed for execute the inference request. Model '{name}' is not ready."
            raise UnavailableError(text, refusal=error.refusal_reason) from None
        _check_answers(name, description.config, many)
        return admission.admit_inner(request, description)

    async def _wait_and_ask(
        self,
        waiting: _WaitingQuestion,
        admission: Admission,
        residents: Residents,
        request: InferenceRequest,
        many: bool,
    ) -> None:
        """Rule 3."""
        find = partial(admission.find, request)
        error: TriremeError = CancelledError("the answer is not needed any more")
        with waiting.scope:
            try:
                with await residents.hold(find, request, has_room=False):
                    _check_answers(request.model_name, find().config, many)
                    waiting.go_on(admission.admit_inner(request, None))
                    return
            except TriremeError as failure:
                admission.note_refusal(failure, request.model_name, request.model_version)
                error = unframed(failure)
        waiting.fail(error)

    def load_model(self, name: str, parameters: Mapping[str, str | memoryview], on_done: OnDone) -> None:
        control = self._control()

        async def load() -> None:
            await control.load(name, await self._offload(_copied, parameters))

        self._nursery.start_soon(_carry_out, load, on_done)

    def unload_model(self, name: str, dependents: bool, on_done: OnDone) -> None:
        control = self._control()
        self._nursery.start_soon(_carry_out, lambda: control.unload(name, dependents), on_done)

    def model_ready(self, name: str, version: str, on_answer: Callable[[bool], object]) -> None:
        _, control = self._opened()
        number = _read_version(version)
        if not self._closed and control.repository.model_ready(name, number):
            self._nursery.start_soon(_ask_ready, control.repository, name, number, on_answer)
        else:
            on_answer(False)

    def _control(self) -> ModelControl | Residents:
        _, control = self._opened()
        if self._closed:
            raise UnavailableError(NOT_READY)
        return control

    def _opened(self) -> tuple[Admission, ModelControl | Residents]:
        if self._open is None:
            raise UnavailableError(NOT_READY)
        return self._open


class _WaitingQuestion:
    """A request whose model is being loaded (`Question`); when that is over, the request itself.

    Attributes:
        scope: of the task that waits.
    """

    def __init__(self, on_answer: Callable[[Question], None]) -> None:
        self.scope = trio.CancelScope()
        self._on_answer = on_answer
        self._reply: Reply | None = None
        self._answers: list[tuple[Outcome, bool]] = []

    def take(self) -> Answers:
        if self._reply is not None:
            return self._reply.take()
        answers, self._answers = self._answers, []
        return answers

    def cancel(self) -> None:
        if self._reply is not None:
            self._reply.cancel()
        else:
            self.scope.cancel()

    def go_on(self, reply: Reply) -> None:
        """It has been admitted."""
        self._reply = reply
        reply.notify_each(lambda _: self._on_answer(self))

    def fail(self, error: TriremeError) -> None:
        """It has not, and will not be."""
        self._answers.append((error, True))
        self._on_answer(self)


def _check_answers(name: str, config: ModelConfig, many: bool) -> None:
    """Raises InvalidArgumentError: a model may answer any number of times, and one answer is wanted."""
    if config.decoupled and not many:
        raise InvalidArgumentError(
            f"Model {name} is using the decoupled. The current BLS request call doesn't support models using the "
            "decoupled transaction policy. Please use 'decoupled=True' argument to the 'exec' or 'async_exec' "
            "calls for decoupled models.'"
        )


async def _ask_ready(repository: Repository, name: str, version: int, on_answer: Callable[[bool], object]) -> None:
    on_answer(await repository.check_model_ready(name, version))


async def _carry_out(work: Callable[[], Awaitable[None]], on_done: OnDone) -> None:
    try:
        await work()
    except TriremeError as error:
        on_done(error)
    else:
        on_done(None)


def _copied(parameters: Mapping[str, str | memoryview]) -> dict[str, str | Buffer]:
    """Files as they are now: the model may change what it has sent."""
    return {name: value if isinstance(value, str) else copied_in_pieces(value) for name, value in parameters.items()}


def _read_version(text: str) -> int:
    if not text:
        return LATEST
    try:
        version = int(text)
    except ValueError:
        raise InternalError(
            f"failed to get model version from specified version string '{text}' (details: stol), version should be an "
            "integral value > 0"
        ) from None
    return version
