"""A host for Python models that writes down what it is asked, and answers as it was told to."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from typing import Any

from trireme.python_backend.child.utils.errors import HostError
from trireme.python_backend.child.utils.request import InferenceRequest, incoming
from trireme.python_backend.child.utils.response import InferenceResponse
from trireme.python_backend.child.utils.runner import Answered, Runner
from trireme.python_backend.child.utils.tensor import Tensor


class ListedResponses:
    """Responses that are there already; a `HostError` among them is raised."""

    def __init__(self, listed: Iterable[InferenceResponse | HostError]) -> None:
        self.left = deque(listed, maxlen=100)
        self.cancelled = False

    def __next__(self) -> InferenceResponse:
        if not self.left:
            raise StopIteration
        response = self.left.popleft()
        if isinstance(response, HostError):
            raise response
        return response

    async def __anext__(self) -> InferenceResponse:
        try:
            return next(self)
        except StopIteration:
            raise StopAsyncIteration from None

    def cancel(self) -> None:
        self.cancelled = True


class RecordingHost:
    """Implements `utils.response.Host`.

    Attributes:
        sent: (key, response, flags) of each `send`.
        abandoned, cancelled: keys.
        calls: everything else that was called, (method, arguments...).
        refusals: by method, the text of the `HostError` to raise.
        answers: what `infer` answers, by model.
    """

    def __init__(self, instance_name: str = "m_0", decoupled: bool = False) -> None:
        self.instance_name = instance_name
        self.decoupled = decoupled
        self.sent: list[tuple[int, InferenceResponse | None, int]] = []
        self.abandoned: list[int] = []
        self.cancelled: set[int] = set()
        self.calls: list[tuple[Any, ...]] = []
        self.refusals: dict[str, str] = {}
        self.answers: dict[str, ListedResponses] = {}
        self.logged: list[tuple[str, str, int, str]] = []
        self._last_number = 0

    def request(self, key: int, *inputs: Tensor, outputs: Sequence[str] = (), **fields: Any) -> InferenceRequest:
        """A request as the host hands it to a model."""
        given = {"request_id": "", "correlation_id": 0, "flags": 0, "timeout": 0, "parameters_json": "{}"}
        given |= {"trace_context": None} | fields
        return incoming(key, self, list(inputs), requested_output_names=list(outputs), **given)

    def send(self, key: int, response: InferenceResponse | None, flags: int) -> None:
        self._refuse("send")
        self.sent.append((key, response, flags))

    async def room(self, key: int) -> None:
        """There always is."""

    def abandon(self, key: int) -> None:
        self.abandoned.append(key)

    def is_cancelled(self, key: int) -> bool:
        return key in self.cancelled

    def infer(self, request: InferenceRequest, decoupled: bool, waits: bool = False) -> ListedResponses:
        self.calls.append(("infer", request, decoupled))
        return self.answers[request._model_name]

    def ask(self, method: str, *arguments: Any) -> Any:
        self.calls.append((method, *arguments))
        self._refuse(method)
        if method.startswith("create_"):
            self._last_number += 1
            return self._last_number
        return {"metric_value": 2.5, "is_model_ready": arguments[0] == "ready"}.get(method)

    def log(self, level: str, filename: str, line: int, message: str) -> None:
        self.logged.append((level, filename, line, message))

    def free_memory(self) -> int:
        return 5

    def _refuse(self, method: str) -> None:
        if method in self.refusals:
            raise HostError(self.refusals[method])


def executed(runner: Runner, requests: list[InferenceRequest]) -> Answered:
    """Execute a batch, and wait for its answers."""
    answers: Future[Answered] = Future()
    runner.begin(requests, answers.set_result)
    return answers.result(30)
