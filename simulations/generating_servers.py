"""Swarm runs of a whole server with generating models: its actors, schedulers, queues and step executors, and the
generation backend's own instances, in virtual time.

Each run is drawn from its seed: models, their limits, memory and instances, how long steps take; prompts that begin
alike, several choices, stop strings, requests that are wrong; priorities, limits of queues and of time; clients that
read slowly, or leave amid a step. Meanwhile steps fail, before or after they have moved memory, logits are no numbers,
instances die or hang in a step, models are loaded again, resized, unloaded. A quarter of the runs stop the server amid
all that; in the others nothing strikes any more after a while, and then all must be answered.

What is promised: each text is what it is alone, in order, no token lost or told twice; a request fails only of a fault
in a step that it was in, or for a reason that holds; who has left is in no step that begins later; a step is within
its limits; no instance is idle while it has work; a client that reads slowly holds up no other, and has what there is
as soon as it takes it; an instance that hangs is given up in time; and when all is over the memory is free.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from typing import Any

import trio

from ..engine.backends.generation.asked import INPUTS, OUTPUTS
from ..engine.backends.interface import InstanceSpec
from ..engine.config.model import DynamicBatching, InstanceGroup, ModelConfig, ModelInput, ModelOutput, QueuePolicy
from ..engine.errors import InternalError, InvalidArgumentError, RefusalReason, TriremeError
from ..engine.generation.iterations import IterationLimits, Step
from ..engine.generation.requests import Generation
from ..engine.options import ControlMode
from ..engine.request import InferenceResponse
from .drawn_run import DrawnRun, play_drawn
from .generated_texts import LETTERS, SPELLING, ScriptedRequest
from .generating import PlayedMemory, wrong_in_step
from .invariants.leftovers import leftovers
from .models import BACKEND, SimulatedModel, StepWork
from .scripted_network import ScriptedModel, ScriptedNetwork, WatchedInstance, number_of
from .world import World

LONGEST_S = 100_000.0
"""Virtual seconds after which a run is stuck."""

CALM_S = 10_000.0
"""After faults have stopped: all is answered by then, also to who takes an answer each 100 s."""

HANG_LIMIT_S = 10.0
NOTICED = 2
"""Hang limits within which an instance that hangs is given up: one after the last look, at which it still lived."""

LATE_S = 0.003
"""Threads begin so late, and the event loop hears so late of their ends."""

ALLOWED_AMID_CHANGES = frozenset((RefusalReason.UNKNOWN_MODEL, RefusalReason.NOT_READY, RefusalReason.STOPPING))


def play_generating_servers(seed: int) -> DrawnRun:
    """Play one run to its end."""
    draw = Random(f"generating servers {seed}")
    run = GeneratingServer(draw)
    return play_drawn(run.run, run.play, seed, LONGEST_S, draw.choice((3, 3, 8, 64)))


class GeneratingServer:
    """A run in the making."""

    def __init__(self, draw: Random) -> None:
        self._draw = draw
        self.run = DrawnRun()
        self._has = {
            what: draw.random() < share
            for what, share in {
                "failing steps": 0.4,
                "broken logits": 0.3,
                "deaths": 0.25,
                "hangs": 0.25,
                "leavers": 0.5,
                "slow readers": 0.5,
                "wrong requests": 0.3,
                "changes": 0.4,
                "limits": 0.3,
                "late threads": 0.4,
                "bursts": 0.3,
            }.items()
        }
        self._stops = draw.random() < 0.25
        self._scripted: dict[str, ScriptedModel] = {}
        self._models = {name: self._model(name) for name in ("m", "n")[: draw.randint(1, 2)]}
        self._beginnings = [self._letters(draw.randint(1, 24)) for _ in range(draw.randint(1, 3))]
        self._requests = draw.randint(10, 60)
        self._gap_s = draw.choice((0.0, 0.02, 0.2))
        self._numbers = 0
        self._open: dict[int, ScriptedRequest] = {}
        self._asked: dict[int, ScriptedRequest] = {}
        self._instances: list[WatchedInstance] = []
        self._in_failed_steps: set[int] = set()
        self._broken: set[int] = set()
        self._calm = self._settled = self._stopping = False

    @property
    def _world(self) -> World:
        assert self._in is not None, "it has begun"
        return self._in

    _in: World | None = None

    # ---- models ----

    def _model(self, name: str) -> SimulatedModel:
        draw = self._draw
        most_running = draw.choice((1, 3, 8))
        limits = IterationLimits(
            context=draw.choice((24, 48)),
            most_tokens=most_running + draw.choice((1, 4, 30)),
            most_running=most_running,
            most_pending=2 * most_running * most_running,
            spare=draw.choice((0, 0, 1)),
            held=draw.choice((0, 0, 3, 20)),
            swaps_from=draw.choice((0, 4, 16)),
        )
        fixed_s, token_s = draw.choice((0.001, 0.02, 0.2)), draw.choice((0.0, 0.001))
        size = draw.choice((1, 2, 4, 8))
        self._scripted[name] = ScriptedModel(
            limits, draw.choice((2, 6, 12, 40)), size, draw.random() < 0.8, fixed_s, token_s
        )
        levels = draw.choice((0, 0, 3))
        policy = QueuePolicy(allow_timeout_override=True, max_queue_size=2 if self._has["limits"] else 0)
        batching = DynamicBatching(
            priority_levels=levels, default_priority_level=2 if levels else 0, default_queue_policy=policy
        )
        config = ModelConfig(
            name=name,
            backend=BACKEND,
            input=tuple(ModelInput(each, *about, optional=True) for each, about in INPUTS.items()),
            output=tuple(ModelOutput(each, *about) for each, about in OUTPUTS.items()),
            instance_group=(InstanceGroup(name, "KIND_CPU", draw.choice((1, 1, 2))),),
            dynamic_batching=batching if levels or draw.random() < 0.5 else None,
            decoupled=True,
        )
        return SimulatedModel(config, StepWork(partial(self._made, name)))

    def _made(self, name: str, spec: InstanceSpec) -> WatchedInstance:
        model = self._scripted[name]
        played = PlayedMemory(self.run, model.blocks, model.limits.held, model.block_size)

        def amid(step: Step, done: bool) -> None:
            self._strike(instance, step, done)

        def broken(generation: Generation) -> bool:
            return self._breaks(instance.number_of(generation))

        network = ScriptedNetwork(model, played, amid, broken)
        instance = WatchedInstance(spec.name, model, network, self._begins)
        self._instances.append(instance)
        return instance

    # ---- faults ----

    def _strike(self, instance: WatchedInstance, step: Step, done: bool) -> None:
        """A step is about to be computed, or has been."""
        draw, has, time = self._draw, self._has, self._world.thread_time
        if not done:
            time.spend(instance.model.seconds(step))
            self.run.counts["tokens computed"] += step.tokens
            self.run.counts["pieces of prompts"] += sum(not piece.draws for piece in step.pieces)
        if self._calm:
            return
        if has["failing steps"] and draw.random() < 0.01:
            self.run.counts["steps that failed, done" if done else "steps that failed, not begun"] += 1
            self._in_failed_steps.update(instance.number_of(piece.generation) for piece in step.pieces)
            raise InternalError("the step failed")
        if done or draw.random() > 0.01 or not (has["deaths"] or has["hangs"]):
            return
        instance.lost_s = now_s = self._world.clock.now_s()
        if has["deaths"] and (not has["hangs"] or draw.random() < 0.5):
            self.run.counts["deaths"] += 1
            instance.noticed_s = now_s + instance.model.seconds(step) + LATE_S
            raise SystemExit(3)
        self.run.counts["hangs"] += 1
        instance.noticed_s = now_s + NOTICED * HANG_LIMIT_S
        time.spend(draw.choice((math.inf, 5 * HANG_LIMIT_S)))

    def _breaks(self, number: int) -> bool:
        """Whether the logits of a request are no numbers."""
        if not self._calm and self._has["broken logits"] and self._draw.random() < 0.01:
            self.run.counts["broken logits"] += 1
            self._broken.add(number)
            return True
        return False

    # ---- what is looked at ----

    def _begins(self, instance: WatchedInstance, step: Step, now_s: float, answered: Sequence[int]) -> None:
        complain = self.run.complain
        for text in wrong_in_step(step, instance.running, instance.model.limits):
            complain(f"instance {instance.spec_name}: {text}")
        self.run.counts["moves"] += len(step.moves)
        for piece in step.pieces:
            asked = self._asked[instance.number_of(piece.generation)]
            if asked.left_s is not None and asked.left_s < now_s:
                complain(f"request {asked.number} is computed at {now_s:g} s, its client left at {asked.left_s:g} s")
        for number in answered:
            complain(f"request {number} is computed, and has its final answer")

    def _look(self) -> None:
        """All that was to happen at this instant has happened."""
        now_s, complain = self._world.clock.now_s(), self.run.complain
        for instance in self._instances:
            if instance.closed:
                continue
            if instance.lost_s is not None:
                held = [number_of(job) for job in instance.jobs if not job.answered]
                if held and now_s > instance.noticed_s:
                    complain(f"instance {instance.spec_name} was lost at {instance.lost_s:g} s, and holds {held}")
                continue
            if instance.has_work and not instance.stepping:
                complain(f"instance {instance.spec_name} has work, and no step is under way at {now_s:g} s")
            for number in instance.untold():
                complain(f"request {number} could be told of new text at {now_s:g} s")
            held = [number_of(job) for job in instance.jobs if job.answered]
            if held and not self._stopping:
                complain(f"requests {held} are answered, and not said to be over at {now_s:g} s")

    # ---- the run ----

    async def play(self, world: World) -> None:
        """The scenario."""
        self._in = world
        draw = self._draw
        world.load_s = draw.choice((0.0, 0.05))
        world.clock.on_quiet = self._look
        if self._has["late threads"]:
            world.thread_time.delay_s = lambda: draw.choice((0.0, 0.0, LATE_S))
            world.thread_time.unheard_s = lambda: draw.choice((0.0, 0.0, LATE_S))
        options: dict[str, Any] = {
            "model_control_mode": ControlMode.EXPLICIT,
            "startup_models": tuple(self._models),
            "exit_timeout_s": draw.choice((0.5, 100.0)),
            "hang_limit_s": HANG_LIMIT_S,
            "restart_limit": 1_000,
        }
        async with trio.open_nursery() as clients, world.serve(*self._models.values(), **options) as server:
            await self._send(clients)
            self._stopping = self._stops
            if not self._stops:
                await self._calm_down(clients)
        for text in leftovers(server, world.schedulers, {}):
            self.run.complain(f"left: {text}")
        if self._open:
            self.run.complain(f"requests {list(self._open)} are open")

    async def _send(self, clients: trio.Nursery) -> None:
        draw, has = self._draw, self._has
        for number in range(self._requests):
            await trio.sleep(self._gap_s * draw.random())
            if has["bursts"] and number % 20 == 10:
                for _ in range(20):
                    clients.start_soon(self._ask, self._drawn())
            if has["changes"] and draw.random() < 0.05:
                clients.start_soon(self._change, draw.choice(list(self._models)))
            clients.start_soon(self._ask, self._drawn())
        await trio.sleep(draw.choice((0.0, 0.1, 2.0)))

    async def _calm_down(self, clients: trio.Nursery) -> None:
        """Nothing strikes any more: then all is answered, and memory is free."""
        self._calm = True
        await trio.sleep(CALM_S)
        for name in self._models:
            await self._world.server.load_model(name, {})
        if self._open:
            self.run.complain(f"requests {list(self._open)} are not answered {CALM_S:g} s after the last one")
        self._settled = True
        for name in self._models:
            for _ in range(4):
                clients.start_soon(self._ask, self._drawn(name))
        await trio.sleep(CALM_S)
        for instance in self._instances:
            if not instance.closed and instance.lost_s is None and (left := instance.left()):
                self.run.complain(f"all is over, and instance {instance.spec_name} still has {left}")
            self.run.counts["preempted"] += instance.core.counts.swaps + instance.core.counts.recomputations
            self.run.counts["tokens found"] += instance.core.memory.found
            self.run.counts["steps that follow"] += instance.followed

    async def _change(self, name: str) -> None:
        """Load a model again, with other instances or not, or unload it for a while."""
        server, draw, model = self._world.server, self._draw, self._models[name]
        load: Callable[[], Any] = partial(server.load_model, name, {})
        kind = draw.choice(("load", "resize", "unload"))
        try:
            if kind == "unload":
                await server.unload_model(name)
                await trio.sleep(draw.random())
            elif kind == "resize":
                model.resize(draw.randint(1, 3))
            else:
                model.touch()
            if not self._stopping:
                await load()
            self.run.counts[f"changes: {kind}"] += 1
        except TriremeError:
            self.run.counts["changes in vain"] += 1

    # ---- requests ----

    def _letters(self, length: int) -> list[int]:
        return [self._draw.randrange(1, 60) for _ in range(length)]

    def _drawn(self, name: str = "") -> ScriptedRequest:
        draw, self._numbers = self._draw, self._numbers + 1
        name = name or draw.choice(list(self._models))
        model = self._scripted[name]
        begun = draw.choice(self._beginnings) if draw.random() < 0.6 else []
        prompt = begun[: draw.randint(0, len(begun))] + self._letters(draw.randint(0, 10))
        prompt = prompt[: max(1, model.room - 1)] or self._letters(1)
        sampling: dict[str, Any] = {"seed": draw.randint(1, 9), "temperature": draw.choice((0, 1))}
        if draw.random() < 0.9:
            sampling["max_tokens"] = max(1, min(draw.randint(1, 20), model.room - len(prompt)))
        if draw.random() < 0.2:
            sampling["stop"] = [SPELLING.decode(self._letters(1)) for _ in range(draw.randint(1, 3))]
        if draw.random() < 0.2:
            sampling |= {"ignore_eos": True, "top_k": draw.choice((0, 3)), "repetition_penalty": 1.5}
        widest = min(3, model.limits.most_running)
        asked = ScriptedRequest(
            self._numbers,
            name,
            prompt,
            as_text=draw.random() < 0.5,
            stream=draw.random() < 0.7,
            choices=draw.randint(1, widest) if draw.random() < 0.3 else 1,
            sampling=sampling,
        )
        self._asked[asked.number] = asked
        if not self._calm:
            self._vary(asked, model)
        batching = self._models[name].config.dynamic_batching
        if batching is not None and batching.priority_levels:
            asked.priority = draw.randint(0, batching.priority_levels)
        self.run.counts["several choices"] += asked.choices > 1
        return asked

    def _vary(self, asked: ScriptedRequest, model: ScriptedModel) -> None:
        """What only some clients do."""
        draw, has = self._draw, self._has
        if has["leavers"] and draw.random() < 0.3:
            asked.leaves_s = draw.random() * draw.choice((0.05, 1.0, 10.0))
        if has["slow readers"] and draw.random() < 0.4:
            asked.pause_s = draw.choice((0.01, 0.5, 100.0))
        if has["limits"] and draw.random() < 0.3:
            asked.timeout_us = draw.randint(1_000, 2_000_000)
        if has["wrong requests"] and draw.random() < 0.2:
            kind = draw.randrange(4)
            if kind == 0:
                asked.as_text, asked.prompt = False, [*asked.prompt, LETTERS + 5]
                asked.fault = f"token {LETTERS + 5} in the prompt"
            elif kind == 1:
                asked.sampling["max_tokens"] = model.room + 1
                longest = len(asked.prompt) + model.room + 1
                asked.fault = "the prompt has" if longest > model.limits.context else "tokens take"
            elif kind == 2:
                asked.sampling["colour"] = 3
                asked.fault = "which is not known here"
            else:
                asked.sampling["n"] = model.limits.most_running + 1
                asked.fault = "choices are asked for"

    async def _ask(self, asked: ScriptedRequest) -> None:
        if self._stopping:
            return
        world = self._world
        self._open[asked.number] = asked
        asked.sent_s = world.clock.now_s()
        with trio.move_on_after(math.inf if asked.leaves_s is None else asked.leaves_s) as limit:
            error = await world.hear(asked.made(), partial(self._hears, asked))
            self._judge(asked, error)
        if limit.cancelled_caught:
            asked.left_s = world.clock.now_s()
            self.run.counts["given up"] += 1
            self.run.counts["given up amid a text"] += any(asked.tokens)
            self._check_heard(asked, whole=False)
        del self._open[asked.number]

    async def _hears(self, asked: ScriptedRequest, response: InferenceResponse) -> None:
        if wrong := asked.hear(response):
            self.run.complain(wrong)
        self.run.counts["answers"] += 1
        if asked.pause_s:
            await trio.sleep(asked.pause_s)

    def _check_heard(self, asked: ScriptedRequest, *, whole: bool) -> None:
        if not asked.fault and (wrong := asked.judged(self._scripted[asked.model].room, whole=whole)):
            self.run.complain(wrong)

    def _judge(self, asked: ScriptedRequest, error: TriremeError | None) -> None:
        """A request has come to its end."""
        self._check_heard(asked, whole=error is None)
        counts, complain = self.run.counts, self.run.complain
        if error is None:
            counts["answered"] += 1
            for reason in asked.reasons:
                counts[f"ended: {reason}"] += 1
            if asked.fault:
                complain(f"request {asked.number} is wrong ({asked.fault}), and was answered")
            return
        why = self._excuse(asked, error)
        counts[f"failed: {why}"] += 1
        if not why:
            complain(f"request {asked.number} failed at {self._world.clock.now_s():g} s: {error.message}")

    def _excuse(self, asked: ScriptedRequest, error: TriremeError) -> str:
        """Why a request may have failed; nothing if it may not."""
        now_s, message, number = self._world.clock.now_s(), error.message, asked.number
        lost = [each.spec_name for each in self._instances if each.lost_s is not None]
        reasons = {
            "wrong": bool(asked.fault) and isinstance(error, InvalidArgumentError) and asked.fault in message,
            "failed step": number in self._in_failed_steps and "the step failed" in message,
            "broken logits": number in self._broken and "not numbers" in message,
            "lost instance": any(f"'{name}'" in message for name in lost) or "exit status 3" in message,
            "no instance": bool(lost) and error.refusal_reason is RefusalReason.NO_INSTANCE,
            "queue full": self._has["limits"] and error.refusal_reason is RefusalReason.QUEUE_FULL,
            "too late": 0 < asked.timeout_us <= (now_s - asked.sent_s) * 1e6 + 1,
            "changes": self._has["changes"] and not self._settled and error.refusal_reason in ALLOWED_AMID_CHANGES,
            "stopping": self._stopping,
        }
        return next((why for why, holds in reasons.items() if holds), "")
