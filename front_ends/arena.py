"""The arena of a front end: bodies are received straight into segments (`child.segments`) that the engine then views.

Rules:
 1. A body of `LEAST_BYTES` or more gets a segment of the link's lender, as long as bodies have no more than
    `MOST_BODIES`; others get memory of this process, and are copied when they are sent.
 2. A segment is written to again when the engine has given it back, if it had been lent, and nothing here refers to it
    any more. That may be found out by the garbage collector, anywhere; so it is only noted, and seen to with the next
    body, or when the engine gives something back.
 3. What is put together here, or comes in several pieces, is copied into a segment on a thread (`gather`).
 4. A body ends at a multiple of 64 bytes, as `engine.tensor.memory_for` has it, and so do the tensors at its end; what
    is gathered begins at one, so that no backend copies it again.
 5. Free segments that were not taken between two calls of `rest` are given back to the system.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Sequence

import numpy as np

from ..engine.admission.large_requests import LARGE_BYTES
from ..engine.datatypes import BYTES
from ..engine.memory.tensors import RegionTensor
from ..engine.request import InferenceRequest, InferenceResponse
from ..engine.tensor import END_BYTES, Buffer, Tensor
from ..python_backend.child.codec import ALIGNMENT, Payload
from ..python_backend.child.segments import Lender, Segment
from .borrower import LOST

LEAST_BYTES = LARGE_BYTES
MOST_BODIES = 512


class LentPayload(Payload):
    """A payload that lies in a segment already.

    Attributes:
        offsets: where each of its buffers begins.
    """

    def __init__(self, segment: Segment, nbytes: int, offsets: list[int]) -> None:
        super().__init__()
        self.segment = segment
        self.nbytes = nbytes
        self.offsets = offsets


class ArenaLender(Lender):
    """A lender whose segments may be viewed by this process as well (rule 2).

    Attributes:
        used: set when there may be something for `rest` to see to; who calls that unsets it.
    """

    def __init__(self, most: int) -> None:
        super().__init__(most)
        self._views: dict[int, weakref.ref[np.ndarray]] = {}  # by number
        self._numbers: dict[int, Segment] = {}  # by the identity of the array
        self._starts: dict[int, int] = {}  # where in its segment each view begins
        self._away: set[int] = set()  # lent to the other end
        self._dead: deque[tuple[int, int]] = deque(maxlen=2 * MOST_BODIES)  # each is in it once
        self._unusable: set[int] = set()  # by the other end; to be dropped when it is not viewed here
        self._resting: set[int] = set()  # free since the last `rest`, or before
        self._arena_lock = threading.Lock()
        self.used = False

    def view(self, nbytes: int, start: int = 0) -> memoryview | None:
        """Memory in a segment, from its byte `start` on; None if there is none to be had. From any thread."""
        self.sweep()
        with self._arena_lock:
            if len(self._views) >= MOST_BODIES or not self.has_room:
                return None
            try:
                segment = self.take(start + nbytes)
            except OSError:
                return None
            self.used = True
            array = np.frombuffer(segment.memory, np.uint8, nbytes, start)
            key, number, dead = id(array), segment.number, self._dead
            self._views[number] = weakref.ref(array, lambda _reference: dead.append((key, number)))
            self._numbers[key] = segment
            self._starts[number] = start
            return array.data

    def segment_of(self, buffers: Sequence[Buffer]) -> LentPayload | None:
        """The payload that buffers make which all lie in one segment, not lent yet; None if they do not."""
        segment: Segment | None = None
        offsets: list[int] = []
        end = 0
        for buffer in buffers:
            owner = buffer.obj if isinstance(buffer, memoryview) else None
            found = self._numbers.get(id(owner))
            if found is None or not isinstance(owner, np.ndarray) or (segment is not None and found is not segment):
                return None
            view = self._views.get(found.number)
            if view is None or view() is not owner or found.number in self._away:
                return None
            segment = found
            start = np.frombuffer(buffer, np.uint8).ctypes.data - owner.ctypes.data if len(buffer) else 0
            start += self._starts[found.number]
            offsets.append(start)
            end = max(end, start + len(buffer))
        return None if segment is None else LentPayload(segment, end, offsets)

    def lend(self, segment: Segment) -> None:
        """A segment has been lent to the other end."""
        self.used = True
        if segment.number in self._views:
            self._away.add(segment.number)

    def give_back(self, number: int) -> None:
        """The other end has done with a segment, or cannot use it (`borrower`, rule 2)."""
        if number >= LOST:
            number -= LOST
            if number in self._lent:
                self._unusable.add(number)
        self._away.discard(number)
        if number not in self._views:
            self._free_again(number)
        if self._dead:
            self.sweep()

    def _free_again(self, number: int) -> None:
        if number in self._unusable:
            self._unusable.discard(number)
            self.discard(number)
        else:
            super().give_back(number)

    def _find(self, nbytes: int) -> Segment | None:
        segment = super()._find(nbytes)
        if segment is not None:
            self._resting.discard(segment.number)
        return segment

    def rest(self) -> bool:
        """Rule 5. Whether there is any segment left, so that this is to be called again."""
        self.sweep()
        with self._lock:
            for segment in [each for each in self._free if each.number in self._resting]:
                self._free.remove(segment)
                self._drop(segment)
            self._resting = {each.number for each in self._free}
            return bool(self._free or self._lent)

    def sweep(self) -> None:
        """See to segments to which nothing refers here any more (rule 2)."""
        kept: list[tuple[int, int]] = []
        while self._dead:
            try:
                key, number = self._dead.popleft()
            except IndexError:  # another thread was faster
                break
            with self._arena_lock:
                found = self._numbers.get(key)
                if found is not None and found.number == number:  # else another array is where that one was
                    del self._numbers[key]
                away = number in self._away
                if not away:
                    self._views.pop(number, None)
                    self._starts.pop(number, None)
            if away:
                kept.append((key, number))
            else:
                self._free_again(number)
        self._dead.extend(kept)


def memory_for(lender: ArenaLender, nbytes: int) -> memoryview:
    """Memory for a body that arrives, not zeroed (rule 1)."""
    view = lender.view(nbytes, -nbytes % END_BYTES) if nbytes >= LEAST_BYTES else None
    return np.empty(nbytes, np.uint8).data if view is None else view


def is_to_gather(lender: ArenaLender, request: InferenceRequest) -> bool:
    """Whether much would have to be copied if the request was sent as it is."""
    raw = request.raw_input
    if raw is not None and len(raw) >= LEAST_BYTES:
        return lender.segment_of([raw]) is None
    for tensor in request.inputs:
        if tensor.nbytes >= LEAST_BYTES and not request.in_regions:
            return lender.segment_of([each.buffer for each in request.inputs]) is None
    return False


def gather(lender: ArenaLender, request: InferenceRequest) -> None:
    """Copy the inputs of a request into a segment, if there is one; on a thread (rule 3)."""
    if request.raw_input is not None:
        request.raw_input = _copied(lender, [request.raw_input], END_BYTES)[0]
    else:
        request.inputs = _gathered(lender, request.inputs, END_BYTES)


def is_to_stage(response: InferenceResponse) -> bool:
    """Whether much would have to be copied if an answer was sent as it is."""
    nbytes = 0
    for tensor in response.outputs:
        if tensor.__class__ is Tensor and (tensor.datatype is not BYTES or tensor.has_buffer):
            nbytes += tensor.nbytes
    return nbytes >= LEAST_BYTES


def stage(lender: ArenaLender, response: InferenceResponse) -> InferenceResponse:
    """An answer with its outputs in a segment, if there is one, texts packed; on a thread. The answer given may be
    another's, too, and stays as it is."""
    for tensor in response.outputs:
        if not isinstance(tensor, RegionTensor):
            tensor.buffer  # noqa: B018 - is made now, and kept
    outputs = _gathered(lender, response.outputs, ALIGNMENT) if is_to_stage(response) else response.outputs
    return InferenceResponse(response.model_name, response.model_version, response.id, outputs, response.parameters)


def _gathered(lender: ArenaLender, tensors: list[Tensor], alignment: int) -> list[Tensor]:
    """The tensors, but those in regions, in a segment."""
    plain = [tensor for tensor in tensors if tensor.__class__ is Tensor]
    buffers = iter(_copied(lender, [tensor.buffer for tensor in plain], alignment))
    return [
        Tensor(tensor.name, tensor.datatype, tensor.shape, next(buffers)) if tensor.__class__ is Tensor else tensor
        for tensor in tensors
    ]


def _copied(lender: ArenaLender, buffers: list[Buffer], alignment: int) -> list[Buffer]:
    """Copies of buffers in one segment, each at a multiple of `alignment`; with that of a `Payload`, as it has them."""
    view = lender.view(sum([len(buffer) + -len(buffer) % alignment for buffer in buffers]))
    if view is None:
        return buffers
    copies: list[Buffer] = []
    at = 0
    for buffer in buffers:
        end = at + len(buffer)
        # NumPy copies without the interpreter's lock.
        np.copyto(np.frombuffer(view[at:end], np.uint8), np.frombuffer(buffer, np.uint8))
        copies.append(view[at:end])
        at = end + -end % alignment
    return copies
