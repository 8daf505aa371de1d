"""What must sometimes happen to models on GPUs."""

from __future__ import annotations

from collections.abc import Callable

from .events import DONE, BatchSealed, ExecutionEnded, ExecutionStarted, KernelEnded, KernelStarted, ReplyDelivered
from .gpu import DeviceEngine
from .history import Handlers

REACHABLE_GPUS = (
    "two batches in flight",
    "three batches in flight",
    "a copy beside a computation",
    "copies both ways beside a computation",
    "computations side by side",
    "several instances on one GPU",
    "a GPU's memory used up",
    "pinned memory used up",
    "a batch without output",
    "a batch lost to a sick GPU",
    "several batches lost with an instance",
    "landed after its instance was lost",
)

_COMPUTE, _IN, _OUT = DeviceEngine.COMPUTE.value, DeviceEngine.COPY_IN.value, DeviceEngine.COPY_OUT.value


class GpuCoverage:
    """Counts them.

    Args:
        count: called with each.
    """

    def __init__(self, count: Callable[[str], None]) -> None:
        self._count = count
        self._sealed: dict[int, BatchSealed] = {}
        self._flying: dict[tuple[str, str], list[int]] = {}  # by instance
        self._running: dict[str, list[KernelStarted]] = {}  # by GPU
        self._copied_in: dict[int, None] = {}  # batches of which nothing more has been seen
        self._lost: dict[int, None] = {}

    def handlers(self) -> Handlers:
        return {
            BatchSealed: self._batch_sealed,
            ExecutionStarted: self._execution_started,
            ExecutionEnded: self._execution_ended,
            KernelStarted: self._kernel_started,
            KernelEnded: self._kernel_ended,
            ReplyDelivered: self._delivered,
        }

    def _batch_sealed(self, event: BatchSealed) -> None:
        self._sealed[event.batch] = event

    def _of_instance(self, batch: int) -> list[int]:
        sealed = self._sealed[batch]
        return self._flying.setdefault((sealed.model, sealed.instance), [])

    def _execution_started(self, event: ExecutionStarted) -> None:
        flying = self._of_instance(event.batch)
        flying.append(event.batch)
        if len(flying) > 1:
            self._count("two batches in flight" if len(flying) == 2 else "three batches in flight")

    def _execution_ended(self, event: ExecutionEnded) -> None:
        flying = self._of_instance(event.batch)
        flying.remove(event.batch)
        if event.ending == DONE:
            if self._copied_in.pop(event.batch, self) is None:
                self._count("a batch without output")
            return
        self._lost[event.batch] = None
        if event.ending == "SickDeviceError":
            self._count("a batch lost to a sick GPU")
        if flying:
            self._count("several batches lost with an instance")

    def _kernel_started(self, event: KernelStarted) -> None:
        running = self._running.setdefault(event.gpu, [])
        running.append(event)
        engines = [each.engine for each in running]
        if event.engine == _IN:
            self._copied_in[event.batch] = None
        elif event.engine == _OUT:
            self._copied_in.pop(event.batch, None)
        if event.kernel.endswith("not pinned"):
            self._count("pinned memory used up")
        if _COMPUTE in engines and len(set(engines)) > 1:
            both = _IN in engines and _OUT in engines
            self._count("copies both ways beside a computation" if both else "a copy beside a computation")
        if engines.count(_COMPUTE) > 1:
            self._count("computations side by side")
        mine = self._sealed.get(event.batch)
        others = [self._sealed.get(each.batch) for each in running]
        if mine is not None and any(each is not None and each.instance != mine.instance for each in others):
            self._count("several instances on one GPU")

    def _kernel_ended(self, event: KernelEnded) -> None:
        running = self._running[event.gpu]
        self._running[event.gpu] = [each for each in running if each.stream != event.stream]
        if event.batch in self._lost and event.kernel.startswith("out"):
            self._count("landed after its instance was lost")

    def _delivered(self, event: ReplyDelivered) -> None:
        if "has no room for" in event.error:
            self._count("a GPU's memory used up")
