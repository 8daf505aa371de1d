"""What the server offers to backends: the way from a model back into the house."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from ..errors import TriremeError, UnavailableError
from ..gpu.cuda_device import Captures
from ..gpu.cupy_device import CupyDevices
from ..gpu.pinned_pool import GpuLimits, PinnedPool
from ..gpu.torch_device import TorchDevices
from ..job import Outcome
from ..metrics.custom import CustomMetrics
from ..request import InferenceRequest
from .confinement import Confinement
from .waiting_threads import WaitingThreads

Answers = Sequence[tuple[Outcome, bool]]
"""What a model has answered, each with whether it is the final one; None is a final answer without a response."""


class Question(Protocol):
    """A request that a model has made to another one. Used on the event loop."""

    def take(self) -> Answers:
        """The answers since the last call. While many are not taken, the model that gives them is held back."""
        ...

    def cancel(self) -> None:
        """The answers are not needed any more."""
        ...


NOT_READY = "Server not ready"


class ModelAccess(Protocol):
    """The server's models, as a model sees them. Used on the event loop; nothing blocks. Without a server all is
    refused."""

    def ask(self, request: InferenceRequest, many: bool, on_answer: Callable[[Question], None]) -> Question:
        """Make a request.

        Args:
            many: any number of responses is welcome.
            on_answer: called whenever there is something to take, after this has returned.

        Raises:
            TriremeError: it is refused.
        """
        raise UnavailableError(NOT_READY)

    def load_model(
        self, name: str, parameters: Mapping[str, str | memoryview], on_done: Callable[[TriremeError | None], object]
    ) -> None:
        """Load a model, and call back with why that failed, or None. See `InferenceServer.load_model`; files are copied
        before."""
        raise UnavailableError(NOT_READY)

    def unload_model(self, name: str, dependents: bool, on_done: Callable[[TriremeError | None], object]) -> None:
        """The same for unloading."""
        raise UnavailableError(NOT_READY)

    def model_ready(self, name: str, version: str, on_answer: Callable[[bool], object]) -> None:
        """Call back with whether a model answers, and says so itself if it has a check of its own: perhaps before this
        returns.

        Args:
            version: empty for any.

        Raises:
            TriremeError: the version is no number, or the server is still starting.
        """
        raise UnavailableError(NOT_READY)


class NoModels(ModelAccess):
    """No models to be seen: of a backend that no server runs."""


@dataclass(slots=True)
class Services:
    """What the server offers.

    Attributes:
        custom_metrics: where a backend's, or a model's, own metrics are kept and printed from; callable from any
            thread.
        pinned: the pinned memory of both, one pool once `limit_gpus` has been called; so are their captures of graphs.
        gpus: the machine's GPUs, for frameworks that have no streams and memory of their own to offer.
        torch_gpus: the same GPUs as torch has them.
        waiting_threads: which threads of a framework may wait for work in a loop.
        event_loop: makes, from a name, what coroutines of Python models in the server's process run on (an `EventLoop`
            of the Python backend); None where there is nothing but asyncio.
    """

    custom_metrics: CustomMetrics = field(default_factory=CustomMetrics)
    models: ModelAccess = field(default_factory=NoModels)
    pinned: PinnedPool = field(default_factory=PinnedPool)
    gpus: CupyDevices = field(default_factory=CupyDevices)
    torch_gpus: TorchDevices = field(default_factory=lambda: TorchDevices())
    gpu_limits: GpuLimits = field(default_factory=GpuLimits)
    confinement: Confinement = field(default_factory=Confinement)
    waiting_threads: WaitingThreads = field(default_factory=WaitingThreads)
    event_loop: Callable[[str], Any] | None = None

    def limit_gpus(self, limits: GpuLimits) -> None:
        """Say how much of the GPUs may be taken; before any of them is used."""
        self.gpu_limits = limits
        self.pinned = PinnedPool(limits.pinned_pool_bytes)
        captures = Captures()
        self.gpus = CupyDevices(self.pinned, limits.device_pool_bytes, captures=captures)
        self.torch_gpus = TorchDevices(self.pinned, limits.device_pool_bytes, captures=captures)

    def close(self) -> None:
        """The server has stopped."""
        self.gpus.close()
        self.torch_gpus.close()

    def pinned_used_bytes(self) -> int:
        return self.pinned.used_bytes
