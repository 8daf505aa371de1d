"""Making a failing plan small: the fewest requests, faults and models that still break the same invariant.

Everything is tried in a fixed order and chance has no part, so a plan always shrinks to the same one. A change is kept
if the smaller plan, played, breaks the invariant that the first one broke; how it does so may change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from .front_ends_plan import NO_FRONT_ENDS
from .models import Ends
from .plan import MANY_REQUESTS, Fault, Manner, ModelPlan, Plan, RequestPlan
from .shapes import WIDTH, Shapes
from .workloads import WayIn

PLAYS = 2_000
"""Most plans that are tried."""

Fails = Callable[[Plan], bool]


class Shrinker:
    """Shrinks one plan.

    Args:
        fails: plays a plan and says whether it breaks the same invariant.

    Attributes:
        plan: the smallest so far that does.
        plays: how often `fails` was asked.
    """

    def __init__(self, plan: Plan, fails: Fails, plays: int = PLAYS) -> None:
        self.plan = plan
        self.plays = 0
        self._fails = fails
        self._limit = plays

    def shrink(self) -> Plan:
        """The smallest plan that was found."""
        before = None
        while before != self.plan and self.plays < self._limit:
            before = self.plan
            self._drop_requests()
            self._drop_changes()
            self._drop_models()
            self._try_all(_simpler_run)
            self._try_all(_simpler_times)
            for index in range(len(self.plan.models)):
                self._try_all(lambda plan, index=index: _with_simpler_model(plan, index))
                self._try_all(lambda plan, index=index: _with_smaller_batches(plan, index))
            for index in range(len(self.plan.requests)):
                self._try_all(lambda plan, index=index: _with_simpler_request(plan, index))
        return self.plan

    def _keep(self, plan: Plan) -> bool:
        """Try a plan, and go on from it if it fails."""
        if plan == self.plan or self.plays >= self._limit:
            return False
        self.plays += 1
        if not self._fails(plan):
            return False
        self.plan = plan
        return True

    def _drop_requests(self) -> None:
        """Leave out halves, then quarters, and so on to single requests."""
        size = len(self.plan.requests) // 2
        while size:
            start = 0
            while start < len(self.plan.requests):
                numbers = frozenset(each.number for each in self.plan.requests[start : start + size])
                if not self._keep(self.plan.without_requests(numbers)):
                    start += size
            size //= 2

    def _drop_changes(self) -> None:
        for change in self.plan.changes:
            self._keep(replace(self.plan, changes=tuple(each for each in self.plan.changes if each is not change)))
        self._keep(replace(self.plan, changes=tuple(replace(each, inside=False) for each in self.plan.changes)))
        for view in self.plan.views:
            self._keep(replace(self.plan, views=tuple(each for each in self.plan.views if each is not view)))
        for probe in self.plan.probes:
            self._keep(replace(self.plan, probes=tuple(each for each in self.plan.probes if each is not probe)))

    def _drop_models(self) -> None:
        failing = self.plan.fails_to_start
        for model in self.plan.models:
            gone = {model.name}
            for ensemble in self.plan.models:  # they come after what they are made of
                if any(step.model in gone for step in ensemble.steps):
                    gone.add(ensemble.name)
            others = tuple(each for each in self.plan.models if each.name not in gone)
            numbers = frozenset(each.number for each in self.plan.requests if each.model in gone)
            if others:
                changes = tuple(each for each in self.plan.changes if each.model not in gone)
                probes = tuple(each for each in self.plan.probes if each.model not in gone)
                smaller = replace(self.plan.without_requests(numbers), models=others, changes=changes, probes=probes)
                self._keep(replace(smaller, fails_to_start="") if failing in gone else smaller)

    def _try_all(self, candidates: Callable[[Plan], Iterator[Plan]]) -> None:
        """Try each of some changes, one after the other."""
        number = 0
        while True:
            ways = list(candidates(self.plan))
            if number >= len(ways):
                return
            self._keep(ways[number])
            number += 1


def _simpler_run(plan: Plan) -> Iterator[Plan]:
    yield replace(plan, max_inflight_requests=MANY_REQUESTS)
    yield replace(plan, max_inflight_bytes=0)
    yield replace(plan, hang_limit_s=0.0) if not _hangs(plan) else plan
    yield replace(plan, restart_limit=5, restart_window_s=60.0)
    yield replace(plan, exit_timeout_s=30.0)
    yield replace(plan, stop_ns=0) if not plan.held else plan
    yield replace(plan, calm_ns=0)
    yield replace(plan, attending=False)
    yield replace(plan, window=64)
    yield replace(plan, load_ns=0)
    yield replace(plan, fails_to_start="")
    yield replace(plan, trace_rate=0)
    yield replace(plan, load_retries=0)
    yield replace(plan, held=())
    yield replace(plan, cache_ns=0, cache_fails=False)
    yield replace(plan, offload_ns=0)
    yield replace(plan, named=False)
    yield replace(plan, poll_ns=0)
    yield replace(plan, patience_s=0.0)
    yield replace(plan, front_ends=NO_FRONT_ENDS)
    yield replace(plan, front_ends=replace(plan.front_ends, deaths_ns=plan.front_ends.deaths_ns[:-1], abandons=False))
    yield replace(plan, front_ends=replace(plan.front_ends, stuck_ns=0, stuck_for_ns=0, spurious=0, short=0))
    yield replace(plan, front_ends=replace(plan.front_ends, count=min(1, plan.front_ends.count), bell_ns=0))
    yield replace(plan, region_changes=())
    yield replace(plan, pinned_bytes=0)
    yield replace(plan, gpus=(), models=tuple(replace(model, gpus=()) for model in plan.models))
    yield replace(plan, gpus=tuple(replace(gpu, units=1, memory_bytes=0) for gpu in plan.gpus))
    yield replace(plan, gpus=tuple(replace(gpu, row_in_ns=1_000_000, row_out_ns=1_000_000) for gpu in plan.gpus))
    yield replace(plan, resources=(), models=tuple(replace(model, demands=()) for model in plan.models))


def _simpler_times(plan: Plan) -> Iterator[Plan]:
    """All at once, from the beginning on, or in half the time."""
    begin_ns = min((request.at_ns for request in plan.requests if not request.after), default=0)
    for divisor, shift_ns in ((0, 0), (1, begin_ns), (2, begin_ns)):
        requests = tuple(
            replace(request, at_ns=(request.at_ns - shift_ns) // divisor if divisor else 0)
            if not request.after
            else request
            for request in plan.requests
        )
        yield replace(plan, requests=requests)


def _hangs(plan: Plan) -> bool:
    """Without a hang limit a hanging instance would hang for ever."""
    return any(request.fault is Fault.HANG for request in plan.requests)


def _with_simpler_model(plan: Plan, index: int) -> Iterator[Plan]:
    model = plan.models[index]
    for simpler in _simpler_model(model):
        yield replace(plan, models=(*plan.models[:index], simpler, *plan.models[index + 1 :]))


def _simpler_model(model: ModelPlan) -> Iterator[ModelPlan]:
    yield replace(model, failing_starts=())
    yield replace(model, instances=1)
    yield replace(model, shapes=Shapes.FIXED)
    yield replace(model, in_place=0)
    yield replace(model, ends=Ends.ALONE)
    yield replace(model, checks_ns=0)
    yield replace(model, gpus=())
    yield replace(model, gpus=model.gpus[:1])
    yield replace(model, credits=1)
    yield replace(model, credits=2)
    yield replace(model, instances=max(1, model.instances - 1))
    yield replace(model, policies=())
    for index in range(len(model.policies)):
        yield replace(model, policies=(*model.policies[:index], *model.policies[index + 1 :]))
    yield replace(model, levels=0, default_level=0, policies=tuple(each for each in model.policies if not each.level))
    yield replace(model, preferred=())
    yield replace(model, delay_us=0)
    yield replace(model, preserve_ordering=False)
    yield replace(model, per_row_ns=0)
    yield replace(model, fixed_ns=10_000_000)
    yield replace(model, dynamic=False)
    yield replace(model, demands=model.demands[1:])
    yield replace(model, sequences=None)
    yield replace(model, decoupled=False, heeds=False)
    yield replace(model, heeds=False)
    if model.sequences is not None:
        yield replace(model, sequences=replace(model.sequences, iterative=False))
        yield replace(model, sequences=replace(model.sequences, sums=False, same_buffer=False))
        yield replace(model, sequences=replace(model.sequences, same_buffer=False))
    yield replace(model, steps=model.steps[:-1])
    for index, step in enumerate(model.steps):
        begun = replace(step, takes=(0,) * len(step.takes))
        yield replace(model, steps=(*model.steps[:index], begun, *model.steps[index + 1 :]))
    yield replace(model, max_inflight=0)
    yield replace(model, reads_regions=False)


def _with_smaller_batches(plan: Plan, index: int) -> Iterator[Plan]:
    model = plan.models[index]
    for most in (model.max_batch_size // 2, model.max_batch_size - 1):
        if most > 0:
            preferred = tuple(size for size in model.preferred if size <= most)
            smaller = replace(model, max_batch_size=most, preferred=preferred)
            requests = tuple(
                replace(request, rows=min(request.rows, most)) if request.model == model.name else request
                for request in plan.requests
            )
            models = (*plan.models[:index], smaller, *plan.models[index + 1 :])
            yield replace(plan, models=models, requests=requests)


def _with_simpler_request(plan: Plan, index: int) -> Iterator[Plan]:
    request = plan.requests[index]
    for simpler in _simpler_request(request):
        yield replace(plan, requests=(*plan.requests[:index], simpler, *plan.requests[index + 1 :]))


def _simpler_request(request: RequestPlan) -> Iterator[RequestPlan]:
    yield replace(request, fault=Fault.NONE)
    yield replace(request, give_up_ns=0)
    yield replace(request, manner=Manner.LISTENS)
    yield replace(request, entry=WayIn.WHOLE, arrival_ns=0)
    yield replace(request, extra_ns=0)
    yield replace(request, region=False)
    yield replace(request, width=WIDTH, extra=0)
    yield replace(request, timeout_us=0)
    yield replace(request, priority=0)
    yield replace(request, rows=1)
    yield replace(request, turns=1)
    yield replace(request, answers=1, answer_ns=0, apart=False)
    yield replace(request, answers=max(1, request.answers // 2))
    yield replace(request, answer_ns=0)
    yield replace(request, apart=False)
    yield replace(request, pause_ns=0)
    yield replace(request, fault_after=0)
    yield replace(request, after=0)
    yield replace(request, at_ns=0)
    yield replace(request, at_ns=round(request.at_ns, -6))
