"""What people read of swarm runs: plans in words, counts, holes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from .coverage import REACHABLE, holes
from .plan import Fault, GpuPlan, Manner, ModelPlan, Plan, PolicyPlan, RequestPlan, SequencesPlan

MS = 1e6


def describe(plan: Plan) -> Iterator[str]:
    """A plan, a line each for the run, its models and its requests. What is as usual is not mentioned."""
    yield _run(plan)
    for model in plan.models:
        yield f"  model {_model(model)}"
    for change in plan.changes:
        yield f"  {change.text} of {change.model} at {change.at_ns / MS:g} ms"
    for request in sorted(plan.requests, key=lambda each: (each.after, each.at_ns, each.number)):
        yield f"  request {_request(request)}"


def _run(plan: Plan) -> str:
    usual = Plan(0, (), (), 0)
    parts = [f"seed {plan.seed}: {len(plan.models)} models, {len(plan.requests)} requests"]
    parts.append(f"stopped at {plan.stop_ns / MS:g} ms" if plan.stop_ns else f"faults until {plan.calm_ns / MS:g} ms")
    named = ("max_inflight_requests", "hang_limit_s", "restart_limit", "restart_window_s", "exit_timeout_s")
    parts += [f"{name} {getattr(plan, name):g}" for name in named if getattr(plan, name) != getattr(usual, name)]
    parts += [f"{each.count} of {each.name}" for each in plan.resources]
    parts += [f"GPU {number}: {_gpu(each)}" for number, each in enumerate(plan.gpus)]
    if plan.pinned_bytes:
        parts.append(f"{plan.pinned_bytes} bytes of pinned memory")
    if plan.window != usual.window:
        parts.append(f"window {plan.window}")
    if plan.load_ns:
        parts.append(f"loads take {plan.load_ns / MS:g} ms a step")
    if plan.trace_rate:
        parts.append(f"one in {plan.trace_rate} traced")
    if plan.fails_to_start:
        parts.append(f"after a start at which instance {plan.first_failing} of {plan.fails_to_start} failed")
    if plan.attending:
        parts.append("attending")
    return ", ".join(parts)


def _gpu(gpu: GpuPlan) -> str:
    memory = f", {gpu.memory_bytes} bytes" if gpu.memory_bytes else ""
    copies = f"copies {gpu.row_in_ns / MS:g} and {gpu.row_out_ns / MS:g} ms a row"
    return f"{gpu.units} units, {copies}, ill for {gpu.ill_ns / MS:g} ms{memory}"


def _model(model: ModelPlan) -> str:
    if model.steps:
        return _ensemble(model)
    parts = [f"{model.name}: {model.instances} instances of {model.fixed_ns / MS:g} ms"]
    if model.gpus:
        parts.append(f"on GPU {' and '.join(map(str, model.gpus))}, {model.credits} in flight")
    if model.per_row_ns:
        parts.append(f"{model.per_row_ns / MS:g} ms a row")
    parts.append(f"max_batch_size {model.max_batch_size}")
    if model.sequences is not None:
        parts.append(_sequences(model.sequences))
    elif not model.dynamic:
        parts.append("no batching")
    if model.decoupled:
        parts.append("decoupled" + ", heeds who has gone" * model.heeds)
    if model.preferred:
        parts.append(f"preferred {', '.join(map(str, model.preferred))}")
    if model.delay_us:
        parts.append(f"delay {model.delay_us / 1e3:g} ms")
    if model.preserve_ordering:
        parts.append("answers in order")
    if model.levels:
        parts.append(f"{model.levels} levels, default {model.default_level}")
    parts += [f"level {each.level}: {_policy(each)}" for each in model.policies if each != PolicyPlan(each.level)]
    if model.demands:
        needs = ", ".join(f"{each.count} of {each.name}" for each in model.demands)
        parts.append(f"needs {needs}, priority {model.priority}")
    if model.failing_starts:
        parts.append(f"starts {', '.join(map(str, model.failing_starts))} fail")
    return "; ".join(parts)


def _ensemble(model: ModelPlan) -> str:
    def source(tensor: int) -> str:
        return f"step {tensor}" if tensor else "the input"

    steps = [
        f"step {number}: {step.model} of {' and '.join(map(source, step.takes))}"
        for number, step in enumerate(model.steps, start=1)
    ]
    limit = [f"at most {model.max_inflight} in a step"] if model.max_inflight else []
    return "; ".join([f"{model.name}: an ensemble", f"max_batch_size {model.max_batch_size}", *steps, *limit])


def _sequences(sequences: SequencesPlan) -> str:
    parts = ["sequences, oldest first" if sequences.oldest else "sequences in slots of their own"]
    if sequences.iterative:
        parts.append("iterative")
    if sequences.candidates and sequences.oldest:
        parts.append(f"{sequences.candidates} candidates")
    if sequences.utilization and not sequences.oldest:
        parts.append(f"utilization {sequences.utilization:g}")
    if sequences.sums:
        parts.append("summed" + " as text" * sequences.texts + " in one place" * sequences.same_buffer)
    return ", ".join([*parts, f"silent for {sequences.idle_us / 1e3:g} ms at most"])


def _policy(policy: PolicyPlan) -> str:
    parts = []
    if policy.timeout_us:
        parts.append(f"{'delayed' if policy.delay else 'rejected'} after {policy.timeout_us / 1e3:g} ms")
    if policy.override:
        parts.append("requests may ask for less")
    if policy.max_queue_size:
        parts.append(f"at most {policy.max_queue_size}")
    return ", ".join(parts) or "as usual"


def _request(request: RequestPlan) -> str:
    sent = f"{request.at_ns / MS:g} ms"
    when = f"{sent} after the answer to {request.after}" if request.after else f"at {sent}"
    parts = [f"{request.number} to {request.model} {when}"]
    if request.rows != 1:
        parts.append(f"{request.rows} rows")
    if request.sequence:
        parts.append(f"sequence {request.sequence}{' start' * request.start}{' end' * request.end}")
    if request.priority:
        parts.append(f"priority {request.priority}")
    if request.content:
        parts.append(f"content {request.content}")
    if request.timeout_us:
        parts.append(f"timeout {request.timeout_us / 1e3:g} ms")
    if request.give_up_ns:
        parts.append(f"given up after {request.give_up_ns / MS:g} ms")
    if request.manner is not Manner.LISTENS:
        parts.append(f"client {request.manner.value}")
    if request.turns != 1:
        parts.append(f"executed {request.turns} times")
    if request.answers != 1 or request.answer_ns:
        parts.append(f"{request.answers} answers, one every {request.answer_ns / MS:g} ms")
    if request.apart:
        parts.append("and an end of its own")
    if request.pause_ns:
        parts.append(f"client pauses for {request.pause_ns / MS:g} ms")
    if request.extra_ns:
        parts.append(f"adds {request.extra_ns / MS:g} ms")
    if request.fault is not Fault.NONE:
        place = f" (execution {request.fault_step + 1})" * bool(request.fault_step)
        parts.append(request.fault.value + place + f" after {request.fault_after}" * bool(request.fault_after))
    return ", ".join(parts)


def tally(counts: Counter[str]) -> Iterator[str]:
    """What happened how often, in the order of `REACHABLE`; a hole is called one."""
    width = max(len(what) for what in REACHABLE)
    for what in REACHABLE:
        yield f"    {what:{width}} {counts[what] or 'never'}"
    missing = holes(counts)
    if missing:
        yield f"holes, which the simulator should reach and did not: {'; '.join(missing)}"
