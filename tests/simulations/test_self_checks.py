"""Models that check themselves, in swarm runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio

from trireme.actors.instance import LIMIT_S, ReadinessCheck
from trireme.engine.errors import TriremeError
from trireme.simulations.clock import JumpingClock
from trireme.simulations.graphs import Graphs
from trireme.simulations.plan import Asker, ModelPlan, Plan, ProbePlan, RequestPlan, StepPlan
from trireme.simulations.play import play
from trireme.simulations.self_checks import AT_ONCE, INVARIANT, LATE, REFUSES, Probes, SelfChecks
from trireme.simulations.swarm import draw_plan

MS = 1_000_000
MODEL = ModelPlan("m", instances=2, checks_ns=2 * MS)


def plan(*probes: ProbePlan, model: ModelPlan = MODEL) -> Plan:
    return Plan(1, (model,), (RequestPlan(1, "m", 0),), calm_ns=1_000 * MS, probes=probes)


@pytest.mark.parametrize("asker", Asker)
def test_who_asks_is_told_what_the_instances_say(asker: Asker) -> None:
    probes = [ProbePlan(at * MS, "m", asker) for at in (0, 1, 20, 20, 300, 9_000)]
    assert play(plan(*probes)).violation is None


def test_members_are_asked_of_which_no_request_needs_the_answer() -> None:
    inner = ModelPlan("inner", steps=(StepPlan("other"), StepPlan("m")))  # as a member it gives the last one
    outer = ModelPlan("outer", steps=(StepPlan("inner"),))
    models = (replace(MODEL, checks_ns=0), ModelPlan("other", checks_ns=2 * MS), inner, outer)
    probe = ProbePlan(MS, "outer")
    assert play(Plan(1, models, (RequestPlan(1, "outer", 0),), 1_000 * MS, probes=(probe,))).violation is None


def test_a_server_that_does_not_wait_long_enough_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    make = ReadinessCheck.__init__
    monkeypatch.setattr(ReadinessCheck, "__init__", lambda self, name, instance: make(self, name, instance, 0.001))
    violation = play(plan(ProbePlan(MS, "m"))).violation
    assert violation is not None
    assert violation.invariant == INVARIANT


async def judged(says: Callable[[SelfChecks], Any], ready: bool = True) -> list[str]:
    """What is complained of when a server with one instance answers so."""
    texts: list[str] = []
    clock = cast(JumpingClock, SimpleNamespace(now_ns=lambda: round(trio.current_time() * 1e9), sleep=trio.sleep))
    the_plan = plan(model=ModelPlan("m", checks_ns=MS))
    async with trio.open_nursery() as nursery:
        checks = SelfChecks(nursery, clock, texts.append)
        answer = says(checks)
        server: Any = SimpleNamespace(model_ready=lambda _name: ready, check_model_ready=answer)
        probes = Probes(the_plan, Graphs(the_plan), server, checks, texts.append, lambda: None)
        await probes.ask(ProbePlan(0, "m"), clock)
    return texts


def asking(then: Callable[[list[TriremeError | None]], bool], questions: int = 1) -> Callable[[SelfChecks], Any]:
    """A server that asks the instance, and makes this of its answers."""

    def says(checks: SelfChecks) -> Any:
        ask = checks.made(MODEL, "m_0")

        async def check(_name: str) -> bool:
            answers: list[TriremeError | None] = []
            heard = trio.Event()

            def answered(error: TriremeError | None) -> None:
                answers.append(error)
                if len(answers) == questions:
                    heard.set()

            for _ in range(questions):
                ask(answered)
            with trio.move_on_after(LIMIT_S * bool(questions)):
                await heard.wait()
            return then(answers)

        return check

    return says


async def test_a_true_answer_is_no_matter(autojump_clock: trio.testing.MockClock) -> None:
    assert await judged(asking(lambda answers: answers == [None])) == []


async def test_a_false_answer_is_noticed(autojump_clock: trio.testing.MockClock) -> None:
    (text,) = await judged(asking(lambda answers: answers != [None]))
    assert text.endswith("heard False; right is True")


async def test_an_instance_that_was_not_asked_is_noticed(autojump_clock: trio.testing.MockClock) -> None:
    (text,) = await judged(asking(lambda _answers: True, questions=0))
    assert text.endswith("not all of its instances were asked")


async def test_an_instance_that_is_asked_twice_is_noticed(autojump_clock: trio.testing.MockClock) -> None:
    (text,) = await judged(asking(lambda _answers: True, questions=2))
    assert text == "'m_0' was asked whether it is ready while it was being asked"


async def test_what_is_not_ready_does_not_say_that_it_is(autojump_clock: trio.testing.MockClock) -> None:
    (text,) = await judged(asking(lambda _answers: True), ready=False)
    assert text.endswith("heard True; it was not")


def test_runs_draw_them() -> None:
    plans = [draw_plan(seed) for seed in range(1, 60)]
    assert {probe.asker for plan in plans for probe in plan.probes} == set(Asker)
    assert all(number > 1 for number in (REFUSES, LATE, AT_ONCE))
