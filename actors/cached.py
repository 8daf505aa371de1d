"""A door with the response cache behind it: what a model has in place of its scheduler's own door if it uses the cache
(docs/reference/response-cache.md).

Rules:
 1. A request whose answer is in the cache is answered at the door: it sees no queue, no limit of one and no instance.
    Any other goes on to the scheduler, and its answer, if it is a response and not an error, into the cache.
 2. Two requests for the same thing that are there at the same time are both executed; the second response to arrive is
    not kept.
 3. What takes long (hashing large inputs, asking a cache that may block) is done on a thread, while the request waits
    in front of the scheduler. It can be cancelled there like a request in a queue. When too many wait already, or the
    cache is not well, the request goes on at once, and its answer is not kept either.
 4. If the model preserves ordering, requests reach the scheduler in the order in which they came.
 5. A request that waits in front of the scheduler has been accepted: a door that is told to stop refuses new requests,
    and the scheduler is not told to stop before those have reached it.

A waiting request goes WAITING ─(looked up, or given up)▶ KNOWN ─(its turn, rule 4)▶ gone, or from either straight to
gone if it is cancelled or failed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

import trio

from ..engine.cache import pack_outputs, request_key, unpack_outputs
from ..engine.clock import Clock
from ..engine.config.model import ModelConfig
from ..engine.errors import TriremeError
from ..engine.job import Job, Outcome, ReplyTarget
from ..engine.metrics.statistics import ModelStatistics
from ..engine.request import InferenceResponse
from ..engine.scheduling.refusals import cancelled, stopping
from ..engine.tensor import Tensor
from .actor import Turn
from .cache_access import CacheAccess
from .door import Door
from .ensemble import Ensemble
from .messages import CacheHit, Cancel, DoorMessage, Stop
from .scheduler import Scheduler


@dataclass(slots=True, eq=False)
class LookedUp:
    """To a cached door: the cache has been asked about a job, or could not be."""

    waiting: _Waiting
    found: _Found | None


class CachedDoor(Door[DoorMessage | LookedUp]):
    """One model version's.

    Args:
        inner: what answers requests that the cache does not.
        identity: tells models that may answer differently apart.
    """

    def __init__(
        self,
        inner: Scheduler | Ensemble,
        access: CacheAccess,
        identity: str,
        config: ModelConfig,
        clock: Clock,
        turn: Turn,
        statistics: ModelStatistics,
    ) -> None:
        super().__init__(inner.name, "cached door", turn, statistics)
        batching = config.dynamic_batching
        self._inner = inner
        self._access = access
        self._identity = identity
        self._outputs = frozenset(output.name for output in config.output)
        self._clock = clock
        self._ordered = batching is not None and batching.preserve_ordering
        self._waiting: dict[Job, _Waiting] = {}
        self._stopping = False
        self._stop: Stop | None = None  # for the scheduler
        self._nursery: trio.Nursery | None = None

    @property
    def inflight(self) -> int:
        return self._inner.inflight + len(self._waiting)

    # What comes in.

    def receive(self, message: DoorMessage | LookedUp) -> None:
        if isinstance(message, Job):
            try:
                self.admit(message)
            except TriremeError as error:
                self.refuse(message, error)
        elif isinstance(message, Cancel):
            self.cancel(message)
        elif isinstance(message, LookedUp):
            message.waiting.found = message.found
            message.waiting.known = True
        else:
            self._stopping = True
            self._stop = message

    def admit(self, job: Job) -> None:
        if self._stopping:
            raise stopping(job)
        job.enqueued_ns = self._clock.now_ns()
        in_line = self._ordered and bool(self._waiting)
        if self._nursery is not None and not self._access.at_once(job.nbytes) and self._access.claim():
            self._wait(job)
            self._nursery.start_soon(self._look_up, self._waiting[job])
        elif in_line:
            self._wait(job).known = True
        else:
            self._pass_on(job, self._find(job))

    def cancel(self, message: Cancel) -> None:
        """The job's client gave up."""
        waiting = self._waiting.get(message.job)
        if waiting is None:
            self._inner.mailbox.send_nowait(message)
        else:
            message.job.cancelled = True
            self._drop(waiting, cancelled())

    def act(self) -> None:
        """Pass on what may leave, in order (rules 4 and 5)."""
        while (waiting := self._next_known()) is not None:
            self._leave(waiting)
            self._pass_on(waiting.job, waiting.found)
        if self._stop is not None and not self._waiting:
            self._inner.mailbox.send_nowait(self._stop)
            self._stop = None
        self._notify_watchers()

    def fail_held(self, error: TriremeError) -> None:
        for waiting in list(self._waiting.values()):
            self._drop(waiting, error)

    def receive_last(self, message: DoorMessage | LookedUp) -> None:
        """What waited has been answered."""

    def bury(self, error: TriremeError) -> None:
        super().bury(error)
        self._inner.bury(error)

    async def drained(self) -> None:
        while self.mailbox or self._waiting:
            await self.next_step()
        await self._inner.drained()

    async def run(self) -> None:
        """Work until cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            nursery.start_soon(self._inner.run)
            try:
                await super().run()
            finally:
                self._nursery = None  # answers that were held for their turn may come still, and are not kept

    # Looking up.

    def _find(self, job: Job) -> _Found | None:
        """Ask the cache on the spot; None if that is not to be done."""
        if not self._access.at_once(job.nbytes):
            return None
        began_ns = self._clock.now_ns()
        key = request_key(self._identity, job, self._outputs)
        entry = self._access.lookup(key)
        return _Found(key, entry, began_ns, self._clock.now_ns())

    async def _look_up(self, waiting: _Waiting) -> None:
        job = waiting.job
        began_ns = self._clock.now_ns()
        known = None
        with waiting.scope:
            make_key = partial(request_key, self._identity, job, self._outputs)
            found = await self._access.lookup_on_thread(make_key, job.nbytes)
            if found is not None:
                known = _Found(*found, began_ns, self._clock.now_ns())
        self.mailbox.send_nowait(LookedUp(waiting, known))

    def _wait(self, job: Job) -> _Waiting:
        waiting = self._waiting[job] = _Waiting(job)
        self._statistics.pending += 1
        job.accept()
        return waiting

    def _next_known(self) -> _Waiting | None:
        if self._ordered:
            first = next(iter(self._waiting.values()), None)
            return first if first is not None and first.known else None
        return next((waiting for waiting in self._waiting.values() if waiting.known), None)

    def _leave(self, waiting: _Waiting) -> None:
        del self._waiting[waiting.job]
        self._statistics.pending -= 1

    def _drop(self, waiting: _Waiting, error: TriremeError) -> None:
        self._leave(waiting)
        waiting.scope.cancel()
        self._statistics.record_failure(waiting.job.received_ns, self._clock.now_ns(), error.reason)
        self.refuse(waiting.job, error)

    def _pass_on(self, job: Job, found: _Found | None) -> None:
        """Answer the job, or hand it to the scheduler."""
        outputs = None if found is None else found.outputs()
        if found is not None and outputs is not None:
            self._hit(job, found, outputs)
            return
        if found is not None:
            job.reply = _Keeper(self, job.reply, found)
        self._inner.mailbox.send_nowait(job)

    def _hit(self, job: Job, found: _Found, outputs: list[Tensor]) -> None:
        job.answered = True
        now_ns = self._clock.now_ns()
        self._statistics.record_cache_hit(job.received_ns, job.enqueued_ns, found.began_ns, now_ns)
        if self._statistics.tap.watched:
            self._statistics.tap.note_request(job.received_ns, now_ns)
        response = job.response(outputs)
        if isinstance(self._inner, Scheduler):
            self._inner.mailbox.send_nowait(CacheHit(job, response))
        else:
            job.accept()
            job.reply.deliver(response, True)

    # Keeping.

    def keep(self, found: _Found, entry: bytes, began_ns: int) -> None:
        """Put a response, as packed since `began_ns`, into the cache."""
        if not self._access.cache.blocking:
            self._kept(found, self._access.insert(found.key, entry), began_ns)
        elif self._nursery is not None:
            self._nursery.start_soon(self._keep_on_thread, found, entry, began_ns)

    async def _keep_on_thread(self, found: _Found, entry: bytes, began_ns: int) -> None:
        self._kept(found, await self._access.insert_on_thread(found.key, entry), began_ns)

    def _kept(self, found: _Found, counts: bool, began_ns: int) -> None:
        if counts:
            now_ns = self._clock.now_ns()
            self._statistics.record_cache_miss(found.ended_ns - found.began_ns + now_ns - began_ns, now_ns)

    def pack(self, found: _Found, response: InferenceResponse) -> bytes | None:
        """The entry of a response; None if it is not to be kept."""
        try:
            if self._access.refuse(found.key, sum(tensor.nbytes for tensor in response.outputs)):
                now_ns = self._clock.now_ns()
                self._kept(found, True, now_ns)
                return None
            return pack_outputs(response.outputs)
        except (TypeError, ValueError):
            return None  # the model's outputs are not what they say they are: their encoder finds that out, too

    def now_ns(self) -> int:
        return self._clock.now_ns()


@dataclass(slots=True, eq=False)
class _Found:
    """What became of looking a job up, from `began_ns` to `ended_ns`; `entry` is None for a miss."""

    key: str
    entry: bytes | None
    began_ns: int
    ended_ns: int

    def outputs(self) -> list[Tensor] | None:
        """The outputs found; None for a miss, and for what another program may have put there."""
        if self.entry is None:
            return None
        try:
            return unpack_outputs(self.entry)
        except ValueError:
            return None


@dataclass(slots=True, eq=False)
class _Waiting:
    """A job in front of the scheduler (rule 3). `known`: its lookup is over, and has come to what was `found`."""

    job: Job
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    found: _Found | None = None
    known: bool = False


@dataclass(slots=True, eq=False)
class _Keeper:
    """The reply of a job that was not found: what goes out is kept, as it is when it goes out."""

    _door: CachedDoor
    _reply: ReplyTarget
    _found: _Found
    _several: bool = False

    def deliver(self, outcome: Outcome, final: bool) -> bool:
        """See `engine.job.ReplyTarget`."""
        entry = None
        began_ns = self._door.now_ns()
        if not final:
            self._several = True
        elif isinstance(outcome, InferenceResponse) and not self._several:
            entry = self._door.pack(self._found, outcome)
        delivered = self._reply.deliver(outcome, final)
        if entry is not None:
            self._door.keep(self._found, entry, began_ns)
        return delivered
