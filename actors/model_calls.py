"""What models ask of the server while they serve: other models (BLS), and which of them are loaded.

Rules:
 1. A request that a model makes does not wait for room in the server's budget. The request that the model is serving
    holds a share of that until it is answered, so if its own requests had to wait, they could wait for ever. They are
    counted, though, and clients wait for them.
 2. A request that could never be executed, since its model waits for the answer to it, is refused (`refuse_recursion`).
 3. While the server starts it answers nothing of this kind: models are not there yet, and waiting for them could mean
    to wait for oneself. When it has stopped it loads and unloads nothing, and no model is ready.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

import trio

from ..engine.backends.services import NOT_READY, Question
from ..engine.errors import InternalError, InvalidArgumentError, TriremeError, UnavailableError
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
        """The server has started (rule 3)."""
        self._open = admission, control

    def close(self) -> None:
        """The server has stopped (rule 3)."""
        self._closed = True

    def ask(self, request: InferenceRequest, many: bool, on_answer: Callable[[Question], None]) -> Reply:
        admission, control = self._opened()
        try:
            reply = self._admit(admission, control, request, many)
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
            description = control.repository.describe(name, version)
        except TriremeError as error:
            text = f"Failed for execute the inference request. Model '{name}' is not ready."
            raise UnavailableError(text, refusal=error.refusal_reason) from None
        if description.config.decoupled and not many:
            raise InvalidArgumentError(
                f"Model {name} is using the decoupled. The current BLS request call doesn't support models using the "
                "decoupled transaction policy. Please use 'decoupled=True' argument to the 'exec' or 'async_exec' "
                "calls for decoupled models.'"
            )
        return admission.admit_inner(request, description)

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
