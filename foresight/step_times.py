"""Measures how long the steps of a generating model take, in a server of its own.

Rules:
 1. Loads are made so that steps of all kinds come: so many texts at a time, after so many tokens; prompts alone, short
    and in pieces; prompts beside texts. Lengths are drawn, as those of traffic are. Answers are not streamed: what
    that costs the server is measured elsewhere.
 2. A step's time is from its beginning to that of the next one, if a text is in both: drawing tokens, the way to the
    event loop and back, and the decision on the next step are in it. Other steps do not count.
 3. Loads are made by turns, in `_ROUNDS` rounds; in the first `_LEAST_ROUNDS` each takes part, unless it has had its
    time. Machines are faster at one time than at another.
 4. Steps that are about alike make a point (`_kind`), with the mean of what they compute.
 5. Prompts come some steps apart, as in traffic: one right after the other finds the caches as it left them, and takes
    up to a third less.
 6. What steps take more after a rest is measured at last (`rested_steps`); the other loads leave none.
"""

from __future__ import annotations

import itertools
import json
import math
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import trio

from ..actors import InferenceServer
from ..engine.backends.generation import asked
from ..engine.backends.generation.backend import GenerationBackend
from ..engine.backends.generation.network import Network
from ..engine.backends.generation.settings import GenerationSettings
from ..engine.backends.registry import BackendRegistry
from ..engine.clock import SystemClock
from ..engine.config.json_text import config_json
from ..engine.config.model import ModelConfig
from ..engine.datatypes import BYTES, INT64
from ..engine.errors import InvalidArgumentError
from ..engine.generation.iterations import IterationLimits, Step
from ..engine.logs.made_prompts import LEAST_TOKEN, MOST_TOKEN
from ..engine.options import ControlMode, ServerOptions
from ..engine.profiles import ExecutorKind, ServicePoint, StartTimes, TimeDistribution
from ..engine.profiles.generation import GenerationProfile, StepLoad, StepPoint, fit_of, load_of
from ..engine.request import InferenceRequest
from ..engine.tensor import Tensor
from .progress import Progress
from .rested_steps import STEPS, measure_rests
from .service_times import MeasuredModel, MeasuringPlan

_ROUNDS, _LEAST_ROUNDS = 6, 3
_NEW = 12
"""Tokens of each text of a load."""
_APART = 8
"""Tokens of a text of which the prompt is measured: so many steps lie between it and the next one's."""
_CONTEXTS = (24, 96, 384, 1_536)
_MOST_TOKENS = 8_192
"""Of all texts of a load."""
_LEAST_SAMPLES = 4
_SHORTEST = 0.55
"""Part of a load's prompt that one of its prompts has at least: just above the next shorter load's."""
_REPEATED = 4
"""How often such a text is asked for in a round: its prompt makes a single step."""
_RESTED_PROMPT = 48
"""Tokens of the prompt of a text that is asked for after a rest, at most."""
_WAITS_ONLY = 0.03
_SWITCH_INTERVAL_S = 0.0005
"""Of the interpreter, as `trireme serve` has it: the instance's thread waits for the event loop no longer."""


@dataclass(frozen=True, slots=True)
class MeasuredStep:
    """A step: what it computed, and how long that took."""

    load: StepLoad
    took_s: float


class StepSink:
    """Takes the steps of a network, on its thread, and has those that count (rule 2).

    Attributes:
        token_bytes: of the network's memory.
    """

    def __init__(self) -> None:
        self.steps: list[MeasuredStep] = []
        self.token_bytes = self.context = 0
        self._last: tuple[StepLoad, float, frozenset[object]] | None = None

    def begins(self, step: Step) -> None:
        """The network begins with a step."""
        now_s = time.perf_counter()
        its = frozenset(piece.generation for piece in step.pieces)
        if self._last is not None and not its.isdisjoint(self._last[2]):
            self.steps.append(MeasuredStep(self._last[0], now_s - self._last[1]))
        self._last = load_of(step), now_s, its

    def taken(self) -> list[MeasuredStep]:
        """What has come since."""
        steps, self.steps = self.steps, []
        return steps


def timed_network(base: type[Network], sink: StepSink) -> type[Network]:
    """A network that tells a sink of its steps."""

    class TimedNetwork(base):
        """See `timed_network`."""

        def run(self, step: Step) -> np.ndarray:
            sink.begins(step)
            logits = super().run(step)
            sink.token_bytes, sink.context = self.token_bytes, self.context
            return logits

    return TimedNetwork


@dataclass(slots=True)
class _Load:
    """Texts that begin together, and prompts that come beside them one after the other.

    Attributes:
        beside: tokens of each of these prompts; 0 for none.
        spent_s: so far.
        steps: that it has brought.
    """

    texts: int
    prompt: int
    new: int = _NEW
    beside: int = 0
    spent_s: float = 0.0
    steps: list[MeasuredStep] = field(default_factory=list)

    def __str__(self) -> str:
        beside = f", beside prompts of {self.beside}" if self.beside else ""
        return f"{self.texts} texts after {self.prompt} tokens{beside}"

    def exact(self, error: float) -> bool:
        """Whether the means of its points are known well enough."""
        points = points_of(self.steps)
        return bool(points) and all(point.time.relative_error <= error for point in points)


def loads_for(limits: IterationLimits, room: int) -> Iterator[_Load]:
    """Loads for a model (rule 1).

    Args:
        room: tokens that its memory has.
    """
    widths = sorted({1 << power for power in range(limits.most_running.bit_length())} | {limits.most_running})
    widths = [width for width in widths if width <= limits.most_running]
    longest = min(limits.context, room)
    contexts = [each for each in _CONTEXTS if each + _NEW <= longest] or [max(1, longest - _NEW)]
    for texts, prompt in itertools.product(widths, contexts):
        new = min(_NEW, longest - prompt)
        if texts * (prompt + new) <= min(room, _MOST_TOKENS) and new > 1:
            yield _Load(texts, prompt, new)
    size = 1
    while size + 2 <= longest and size <= 4 * limits.most_tokens:
        yield _Load(1, size, min(_APART, longest - size))
        size *= 2
    half, beside = max(1, limits.most_running // 2), max(1, limits.most_tokens // 2)
    if half * (contexts[0] + 4 * _NEW) + beside + _APART <= room and beside + _APART <= longest:
        yield _Load(half, contexts[0], min(4 * _NEW, longest - contexts[0]), beside)


async def measure_steps(
    name: str,
    options: ServerOptions,
    plan: MeasuringPlan,
    progress: Progress,
    network_class: type[Network] = Network,
) -> tuple[MeasuredModel, GenerationProfile]:
    """Measure a generating model.

    Args:
        options: of the server; the control mode is replaced.
        network_class: for the backend.

    Raises:
        TriremeError: the model cannot be loaded, or fails; or it has no room for a text of two tokens.
    """
    before_s = sys.getswitchinterval()
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    try:
        return await _measured_steps(name, options, plan, progress, network_class)
    finally:
        sys.setswitchinterval(before_s)


async def _measured_steps(
    name: str, options: ServerOptions, plan: MeasuringPlan, progress: Progress, network_class: type[Network]
) -> tuple[MeasuredModel, GenerationProfile]:
    sink = StepSink()

    class TimedBackend(GenerationBackend):
        """Whose networks tell of their steps."""

    TimedBackend.network_class = timed_network(network_class, sink)
    clock = SystemClock(trio.lowlevel.current_clock().current_time)
    backends = BackendRegistry(options.options_for_backend, {TimedBackend.name: TimedBackend})
    options = replace(options, model_control_mode=ControlMode.EXPLICIT, startup_models=())
    async with InferenceServer(options, clock=clock, backends=backends) as server:
        began_s = clock.now_s()
        await server.load_model(name, {"config": _one_instance(await _written(server, name))})
        loaded_s = clock.now_s() - began_s
        described = server.describe(name)
        config: ModelConfig = described.config
        measuring = _Measuring(server, name, sink, plan)
        await measuring.ask(_Load(1, 1, 2))  # which tells how large it is
        settings = GenerationSettings(config)
        limits = settings.limits(sink.context)
        token_bytes = sink.token_bytes
        blocks = settings.blocks_of_bytes(token_bytes) if settings.kv_bytes else settings.blocks(sink.context)
        loads = list(loads_for(limits, blocks * settings.block_tokens))
        await measuring.all_of(loads, progress)
        progress(f"{name}: steps after rests", 0.97)
        longest = min(limits.context, blocks * settings.block_tokens)
        rested = await measure_rests(partial(measuring.steps_of_one, longest), plan.most_s)
    generation = profile_of([step for load in loads for step in load.steps], sink, measuring.cores)
    generation = replace(generation, rested=rested)
    measured = MeasuredModel(config, described.version, ExecutorKind.THREAD)
    measured.starting = StartTimes(loaded_s, loaded_s)
    alone = [step.took_s for load in loads for step in load.steps if step.load.texts == 1 and not step.load.prompt]
    time_of_one = TimeDistribution.of(alone) if alone else generation.points[0].time
    measured.service = [ServicePoint(1, 1, measuring.cores, time_of_one)]
    return measured, generation


async def _written(server: InferenceServer, name: str) -> ModelConfig:
    await server.load_model(name, {})
    return server.describe(name).config


def _one_instance(config: ModelConfig) -> str:
    """The configuration with one instance, whose steps are those that are measured."""
    document: dict[str, Any] = json.loads(config_json(config))
    document["instance_group"] = [{**document["instance_group"][0], "count": 1}]
    document.pop("dynamic_batching", None)
    return json.dumps(document)


class _Measuring:
    """Asks a server for texts.

    Attributes:
        cores: processor seconds a second of a step, of all threads but the event loop's.
    """

    def __init__(self, server: InferenceServer, name: str, sink: StepSink, plan: MeasuringPlan) -> None:
        self._server, self._name, self._sink, self._plan = server, name, sink, plan
        self._chance = np.random.default_rng(1)
        self._used_s = self._stepped_s = 0.0

    @property
    def cores(self) -> float:
        found = self._used_s / self._stepped_s if self._stepped_s else 1.0
        return 0.0 if found < _WAITS_ONLY else round(found, 3)

    async def all_of(self, loads: Sequence[_Load], progress: Progress) -> None:
        """Rule 3."""
        turns = list(itertools.product(range(_ROUNDS), loads))
        for at, (number, load) in enumerate(turns):
            if load.spent_s >= self._plan.most_s or (number >= _LEAST_ROUNDS and load.exact(self._plan.error)):
                continue
            progress(f"{self._name}: {load}", at / len(turns))
            await self._measure(load)
        progress(self._name, 1.0)

    async def _measure(self, load: _Load) -> None:
        self._sink.taken()
        began_s, before_s = time.perf_counter(), time.process_time() - time.thread_time()
        for _ in range(_REPEATED if load.new <= _APART else 1):
            await self.ask(load)
        load.spent_s += time.perf_counter() - began_s
        steps = self._sink.taken()
        load.steps += steps
        self._used_s += time.process_time() - time.thread_time() - before_s
        self._stepped_s += sum(step.took_s for step in steps)

    async def steps_of_one(self, longest: int) -> list[float]:
        """What the first steps of a text take, if it has as many in a row."""
        prompt = min(_RESTED_PROMPT, longest - STEPS - 1)
        if prompt < 1:
            return []
        self._sink.taken()
        await self.ask(_Load(1, prompt, min(_APART, longest - prompt)))
        return [step.took_s for step in self._sink.taken()][:STEPS]

    async def ask(self, load: _Load) -> None:
        """Have the texts of a load generated."""
        over = trio.Event()
        async with trio.open_nursery() as nursery:
            async with trio.open_nursery() as texts:
                if load.beside:
                    nursery.start_soon(self._prompts_beside, load, over)
                for _ in range(load.texts):
                    texts.start_soon(self._text, load.prompt, load.new)
            over.set()

    async def _prompts_beside(self, load: _Load, over: trio.Event) -> None:
        while not over.is_set():
            await self._text(load.beside, _APART)

    async def _text(self, prompt: int, new: int) -> None:
        reply = await self._server.admit(self._request(prompt, new))
        async for _ in reply.responses():
            pass

    def _request(self, prompt: int, new: int) -> InferenceRequest:
        prompt = int(self._chance.integers(math.ceil(_SHORTEST * prompt), prompt + 1))
        tokens = self._chance.integers(LEAST_TOKEN, MOST_TOKEN + 1, prompt)
        given = json.dumps({"max_tokens": new, "ignore_eos": True}).encode()
        return InferenceRequest(
            self._name,
            inputs=[
                Tensor(asked.TOKENS, INT64, (prompt,), array=tokens.astype(np.int64)),
                Tensor(asked.PARAMETERS, BYTES, (1,), array=np.array([given], object)),
            ],
        )


def profile_of(steps: Sequence[MeasuredStep], sink: StepSink, cores: float) -> GenerationProfile:
    """What steps come to, in the order in which they were measured.

    Raises:
        InvalidArgumentError: there are none.
    """
    points = points_of(steps)
    if not points:
        raise InvalidArgumentError("no two steps of the model followed each other: its context or memory is too small")
    fit = fit_of(points)
    ratios = [step.took_s / fit.seconds(step.load) for step in steps]
    return GenerationProfile(sink.context, sink.token_bytes, tuple(points), fit, TimeDistribution.of(ratios), cores)


def points_of(steps: Sequence[MeasuredStep]) -> list[StepPoint]:
    """Rule 4; of few steps each kind is a point, of many those that came at least `_LEAST_SAMPLES` times."""
    kinds: dict[tuple[float, ...], list[MeasuredStep]] = {}
    for step in steps:
        kinds.setdefault(_kind(step.load), []).append(step)
    frequent = [its for its in kinds.values() if len(its) >= _LEAST_SAMPLES] or list(kinds.values())
    return [
        StepPoint(
            StepLoad(*np.mean([step.load for step in its], axis=0).tolist()),
            TimeDistribution.of([step.took_s for step in its]),
        )
        for its in sorted(frequent, key=lambda its: its[0].load)
    ]


def _kind(load: StepLoad) -> tuple[float, ...]:
    def about(value: float) -> float:
        return round(2 * math.log2(1 + value))

    before = about(load.context / load.texts) if load.texts else 0
    return about(load.prompt), about(load.pairs / load.prompt) if load.prompt else 0, load.texts, before
