"""Batching strategies: classes of installed packages that say which requests of a queue share a batch, beside the
dynamic batcher's own rules (docs/batch_strategies.md).

A model names one by the parameter `PARAMETER`; a package offers it in the entry-point group `ENTRY_POINT_GROUP`.

Rules:
 1. What the dynamic batcher would not put into a batch (max_batch_size, preferred sizes, shapes that differ), the
    strategy is not asked about. Where it says no to a request, the batch is closed before that (`SealReason.STRATEGY`).
 2. The first request begins a batch, whatever the strategy says of it; if that is no, it is executed alone.
 3. A batch may be looked at anew, or never be executed: when the queue changes before its end, when instances are busy.
    So `include` changes nothing but the value that `begin` has given for this batch. `finish` is told of what is
    executed, once.
 4. A strategy that raises, or says neither yes nor no, fails the requests of the batch that it was asked about, with an
    error that names it. The next batch is begun as ever.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from copy import copy
from typing import Any

from ..config.model import DynamicBatching, ModelConfig
from ..config.objective import PARAMETER as OBJECTIVE
from ..errors import FailureReason, InternalError, InvalidArgumentError, TriremeError
from ..job import Job, SealReason
from ..plugins import Plugins
from .core import Action, Dispatch, Reject
from .formation import Compatibility, Formation
from .queueing import DynamicBatcher

PARAMETER = "BATCH_STRATEGY"
LIBRARY_PARAMETER = "TRITON_BATCH_STRATEGY_PATH"
LIBRARY = "batchstrategy.so"
"""Where tritonserver looks for a library, if the parameter names none."""
ENTRY_POINT_GROUP = "trireme.batch_strategies"


class BatchStrategy(ABC):
    """Decides about the batches of one model. All is called on the event loop, so none of it may take long.

    Args:
        config: the model's, complete and valid; `config.parameters` may have settings of the strategy's own.
    """

    def __init__(self, config: ModelConfig) -> None:
        self.config = config

    def begin(self) -> Any:
        """A batch is begun: what is to be known of it, for `include` and `finish`."""
        return None

    @abstractmethod
    def include(self, batch: Any, job: Job) -> bool:
        """Whether the batch may have this request, the next one of the queue, as well; True puts it in.

        Args:
            batch: what `begin` has given.
            job: `job.request` is the request, `job.inputs` its inputs by name, `job.rows` its rows, `job.nbytes` their
                bytes. It must not be changed.
        """

    def finish(self, batch: Any, jobs: Sequence[Job]) -> None:
        """The batch is executed, with these requests: the first ones of those that were included, perhaps all."""


_STRATEGIES: Plugins[BatchStrategy] = Plugins(ENTRY_POINT_GROUP, "batch strategy", BatchStrategy, {})


def batch_strategy(config: ModelConfig) -> BatchStrategy | None:
    """The strategy that a model asks for; None if it asks for none. Imports it: not for the event loop.

    Raises:
        InvalidArgumentError: there is none of that name, it cannot be made, or the configuration cannot be combined
            with it; or the model names a library of tritonserver's.
        UnavailableError: it cannot be imported.
    """
    parameters = config.parameters
    if LIBRARY_PARAMETER in parameters:
        raise InvalidArgumentError(
            f"parameter '{LIBRARY_PARAMETER}' of model '{config.name}' names a C++ library, which cannot be used here: "
            f"install a package with a class in the entry-point group '{ENTRY_POINT_GROUP}', and name that by the "
            f"parameter '{PARAMETER}'"
        )
    name = parameters.get(PARAMETER)
    if name is None:
        return None
    about = f"parameter '{PARAMETER}' of model '{config.name}'"
    if config.dynamic_batching is None or config.max_batch_size < 1:
        raise InvalidArgumentError(f"{about} needs 'dynamic_batching', and a 'max_batch_size' of at least 1")
    if OBJECTIVE in parameters:
        raise InvalidArgumentError(f"{about} cannot be combined with the parameter '{OBJECTIVE}'")
    missing = f"names '{name}', which no installed package offers in the entry-point group '{ENTRY_POINT_GROUP}'"
    strategy = _STRATEGIES.get(name, f"{about} {missing}")
    try:
        return strategy(config)
    except Exception as error:
        raise InvalidArgumentError(f"{about}: '{name}' cannot be made: {_told(error)}") from error


class StrategicFormation(Formation):
    """A formation that a strategy takes part in.

    Attributes:
        batch: the strategy's own value for it.
        failure: rule 4; then it is closed.
    """

    __slots__ = ("_strategy", "batch", "failure")

    def __init__(
        self,
        strategy: BatchStrategy,
        batching: DynamicBatching,
        max_rows: int,
        compatibility: Compatibility | None,
    ) -> None:
        self._strategy = strategy
        self.batch: Any = None
        self.failure: TriremeError | None = None
        delay_s = batching.max_queue_delay_us / 1_000_000
        super().__init__(batching.preferred_batch_sizes, max_rows, delay_s, compatibility)

    def clear(self) -> None:
        super().clear()
        self.batch = self.failure = None

    def add(self, job: Job) -> bool:
        before = self.count, self.rows, self._cut, self._cut_reason, self._oldest_s
        goes_on = super().add(job)
        if self.count == before[0]:
            return goes_on  # it is closed by a rule of the batcher's
        try:
            if self.count == 1:
                self.batch = self._strategy.begin()
            included = self._strategy.include(self.batch, job)
            if not isinstance(included, bool):
                raise TypeError(f"include has returned {included!r:.100}, expected True or False")
        except Exception as error:  # noqa: BLE001 - the boundary to foreign code: whatever it raises fails its batch
            self.failure = failure_of(self._strategy, error)
            self.closed = SealReason.STRATEGY
            return False
        if included:
            return goes_on
        if before[0]:
            self.count, self.rows, self._cut, self._cut_reason, self._oldest_s = before
        self.closed = SealReason.STRATEGY
        return False


class StrategicBatcher(DynamicBatcher):
    """A `SchedulerCore` that batches as a strategy lets it."""

    __slots__ = ("_strategic", "_strategy")

    def __init__(
        self,
        strategy: BatchStrategy,
        batching: DynamicBatching,
        max_batch_size: int,
        compatibility: Compatibility | None = None,
    ) -> None:
        super().__init__(batching, max_batch_size, compatibility)
        self._strategy = strategy
        self._formation = self._strategic = StrategicFormation(strategy, batching, max_batch_size, compatibility)

    def next_action(self, now: float) -> Action:
        formation = self._strategic
        if self._queue.deadlines:
            self._expire(now)
        instances = self._idle or self._spare
        if instances and len(self._queue):
            if not self._is_current:
                formation.walk(self._queue)
                self._is_current = True
            if formation.failure is not None:
                self._reject(self._queue.take(formation.count), formation.failure)
        batch = formation.batch
        action = super().next_action(now)
        if isinstance(action, Dispatch):
            try:
                self._strategy.finish(batch, action.jobs)
            except Exception as error:  # noqa: BLE001 - as in `StrategicFormation.add`
                instances.appendleft(action.instance)
                self.queued += len(action.jobs)
                self._reject(action.jobs, failure_of(self._strategy, error))
                return super().next_action(now)
        return action

    def _reject(self, jobs: Sequence[Job], failure: TriremeError) -> None:
        """Rule 4."""
        self._is_current = False
        self._left.extend(Reject(job, copy(failure)) for job in jobs)


def failure_of(strategy: BatchStrategy, error: Exception) -> InternalError:
    """The answer to the requests of a batch about which a strategy has failed."""
    name = strategy.config.parameters.get(PARAMETER, type(strategy).__name__)
    return InternalError(
        f"batch strategy '{name}' of model '{strategy.config.name}' failed: {_told(error)}",
        reason=FailureReason.BACKEND,
    )


def _told(error: Exception) -> str:
    return str(error) if isinstance(error, TriremeError) else f"{type(error).__name__}: {error}"
