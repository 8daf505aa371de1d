"""GPUs do what is to be done for a batch in its order, on the streams of its instance (see `engine.gpu.pipeline`)."""

from __future__ import annotations

from ..events import (
    BatchSealed,
    ExecutionEnded,
    ExecutionStarted,
    FaultStruck,
    InstanceDetached,
    KernelEnded,
    KernelStarted,
)
from ..gpu import DeviceEngine
from ..history import Handlers
from ..plan import Fault
from .base import Complain, Invariant

STAGES = (DeviceEngine.COPY_IN.value, DeviceEngine.COMPUTE.value, DeviceEngine.COPY_OUT.value)

Life = tuple[str, str, int]
"""Of an instance: its model, its name, and which of its lives it is."""


class PipelineOrder(Invariant):
    """A batch is copied in, computed and copied out, one after the other and each once; all batches of an instance's
    life pass the same three streams, which no other instance uses, in the order in which they were begun."""

    name = "a GPU takes batches through their instance's streams in order"

    def __init__(self, complain: Complain) -> None:
        super().__init__(complain)
        self._lives: dict[tuple[str, str], int] = {}
        self._owners: dict[int, Life] = {}  # by batch
        self._begun: dict[int, int] = {}  # by batch, the number of its beginning
        self._done: dict[int, int] = {}  # by batch, how many stages are over
        self._at_work: dict[int, str] = {}  # by batch, the stage that goes on
        self._streams: dict[tuple[str, int], tuple[Life, str]] = {}  # who has it, and for what
        self._last: dict[tuple[Life, str], tuple[tuple[str, int], int]] = {}  # stream, and the last batch's beginning

    def handlers(self) -> Handlers:
        return {
            BatchSealed: self._sealed,
            ExecutionStarted: self._execution_started,
            InstanceDetached: self._detached,
            KernelStarted: self._started,
            KernelEnded: self._ended,
        }

    def _sealed(self, event: BatchSealed) -> None:
        where = (event.model, event.instance)
        self._owners[event.batch] = (*where, self._lives.get(where, 0))

    def _execution_started(self, event: ExecutionStarted) -> None:
        self._begun[event.batch] = len(self._begun)

    def _detached(self, event: InstanceDetached) -> None:
        where = (event.model, event.instance)
        self._lives[where] = self._lives.get(where, 0) + 1

    def _started(self, event: KernelStarted) -> None:
        batch, done = event.batch, self._done.get(event.batch, 0)
        if batch in self._at_work:
            self.broken(f"batch {batch}: {event.engine} begins during {self._at_work[batch]}")
        elif done == len(STAGES) or STAGES[done] != event.engine:
            self.broken(f"batch {batch}: {event.engine} begins after {', '.join(STAGES[:done]) or 'nothing'}")
        self._at_work[batch] = event.engine
        stream, role = (event.gpu, event.stream), (self._owners[batch], event.engine)
        if self._streams.setdefault(stream, role) != role:
            self.broken(f"batch {batch}: {event.engine} of {role[0]} is on a stream of {self._streams[stream]}")
        last, before = self._last.get(role, (stream, -1))
        if last != stream:
            self.broken(f"batch {batch}: {event.engine} of {role[0]} is on stream {stream}, and was on {last}")
        elif before >= self._begun[batch]:
            self.broken(f"batch {batch} is overtaken: {event.engine} of one that was begun later came before")
        self._last[role] = (stream, self._begun[batch])

    def _ended(self, event: KernelEnded) -> None:
        self._at_work.pop(event.batch, None)
        self._done[event.batch] = self._done.get(event.batch, 0) + 1


class SicknessIsAFault(Invariant):
    """No batch is lost to a sick GPU where none has fallen ill."""

    name = "no GPU is sick but of faults"

    def __init__(self, complain: Complain) -> None:
        super().__init__(complain)
        self._fell_ill = False

    def handlers(self) -> Handlers:
        return {FaultStruck: self._struck, ExecutionEnded: self._ended}

    def _struck(self, event: FaultStruck) -> None:
        self._fell_ill = self._fell_ill or event.fault in (Fault.SICK.value, Fault.CRASH.value)

    def _ended(self, event: ExecutionEnded) -> None:
        if event.ending == "SickDeviceError" and not self._fell_ill:
            self.broken(f"batch {event.batch} was lost to a sick GPU; all are well")
