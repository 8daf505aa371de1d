"""Models that say of themselves whether they are ready, and clients who ask
(docs/reference/python-backend.md#readiness).

What is drawn here is drawn from a source of its own, so other runs are what they were without.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from random import Random

import trio

from ..actors import InferenceServer
from ..actors.instance import LIMIT_S
from ..engine.errors import InternalError, TriremeError
from .clock import JumpingClock
from .graphs import Graphs
from .plan import Asker, ModelPlan, Plan, ProbePlan

SHARE = 0.25
"""Of the runs."""

TOLERANCE_NS = 1_000

REFUSES, LATE, AT_ONCE = 5, 9, 4
"""One answer in so many is that the model is not ready, comes after the limit, or is there when the question is."""

INVARIANT = "a model that checks itself is as ready as it says"

OnReady = Callable[[TriremeError | None], None]


def checking(plan: Plan) -> Plan:
    """The plan, with models that check themselves, and clients who ask; models on GPUs do not."""
    chance = Random(f"self checks {plan.seed}")
    able = [model.name for model in plan.models if not (model.steps or model.gpus)]
    if chance.random() >= SHARE or not able:
        return plan
    checking = {name for name in able if chance.random() < 0.7}
    models = tuple(
        replace(each, checks_ns=_answer_ns(chance, each)) if each.name in checking else each for each in plan.models
    )
    end_ns = max(request.at_ns for request in plan.requests)
    probes = [
        ProbePlan(chance.randint(0, end_ns), chance.choice(plan.models).name, chance.choice(tuple(Asker)))
        for _ in range(chance.randint(3, 20))
    ]
    twice = [
        replace(each, at_ns=each.at_ns + chance.choice((0, 1_000_000))) for each in probes if chance.random() < 0.4
    ]
    return replace(plan, models=models, probes=(*probes, *twice))


def _answer_ns(chance: Random, model: ModelPlan) -> int:
    return round(model.fixed_ns * math.exp(chance.uniform(math.log(0.01), math.log(3.0))))


@dataclass(slots=True, eq=False)
class _Question:
    """To one instance of a model, by its name."""

    model: str
    instance: str
    asked_ns: int
    answered_ns: int = -1
    refuses: bool = False


class SelfChecks:
    """What instances say of themselves.

    Args:
        misled: called with a text when one is asked twice at a time.
    """

    def __init__(self, nursery: trio.Nursery, clock: JumpingClock, misled: Callable[[str], None]) -> None:
        self._nursery = nursery
        self._clock = clock
        self._misled = misled
        self._questions: list[_Question] = []
        self._made: dict[tuple[str, str], list[_Question]] = {}  # of the latest instance of each name

    def made(self, model: ModelPlan, instance: str) -> Callable[[OnReady], None]:
        """An instance was made; what to call with where its answer goes, to ask it."""
        own: list[_Question] = []
        self._made[model.name, instance] = own
        return partial(self._ask, model, instance, own)

    def _ask(self, model: ModelPlan, instance: str, own: list[_Question], answer: OnReady) -> None:
        if own and own[-1].answered_ns < 0:
            self._misled(f"'{instance}' was asked whether it is ready while it was being asked")
        question = _Question(model.name, instance, self._clock.now_ns())
        self._questions.append(question)
        own.append(question)
        number = len(self._questions)
        question.refuses = number % REFUSES == 0
        if number % AT_ONCE == 0:
            self._answer(question, answer)
            return
        late_s = LIMIT_S + 2.0 if number % LATE == 0 else 0.0
        self._nursery.start_soon(
            self._answer_later, question, late_s + model.checks_ns * (1 + number % 3) / 1e9, answer
        )

    async def _answer_later(self, question: _Question, delay_s: float, answer: OnReady) -> None:
        await self._clock.sleep(delay_s)
        self._answer(question, answer)

    def _answer(self, question: _Question, answer: OnReady) -> None:
        question.answered_ns = self._clock.now_ns()
        answer(InternalError(f"'{question.instance}' is not ready") if question.refuses else None)

    def instances(self, models: Iterable[str]) -> list[list[_Question]]:
        """Those there are of these models, each by all that it was, and will be, asked."""
        return [own for (model, _), own in self._made.items() if model in models]


class Probes:
    """Asks whether models are ready, and looks whether what is said follows from what they say.

    Args:
        complain: called with a text if not.
        over: called when one has its answer.
    """

    def __init__(
        self,
        plan: Plan,
        graphs: Graphs,
        server: InferenceServer,
        checks: SelfChecks,
        complain: Callable[[str], None],
        over: Callable[[], None],
    ) -> None:
        self._checking = frozenset(model.name for model in plan.models if model.checks_ns)
        self._exact = not plan.changes  # which instances a model has is known
        self._graphs = graphs
        self._server = server
        self._checks = checks
        self._complain = complain
        self._over = over
        self._models = tuple(model.name for model in plan.models)

    async def ask(self, plan: ProbePlan, clock: JumpingClock) -> None:
        """Carry out one."""
        ready, began_ns = self._is_ready(plan), clock.now_ns()
        asked = self._checks.instances(self._asked(self._models if plan.asker is Asker.SERVER else [plan.model]))
        answers: list[tuple[bool, bool]] = []
        await self._carry_out(plan, lambda said: answers.append((said, self._is_ready(plan))))
        (said, still), now_ns = answers[0], clock.now_ns()
        self._judge(plan, (ready, said, still), (began_ns, now_ns), asked)
        self._over()

    async def _carry_out(self, plan: ProbePlan, heard: Callable[[bool], None]) -> None:
        server = self._server
        if plan.asker is Asker.SERVER:
            heard(await server.check_ready())
        elif plan.asker is Asker.CLIENT:
            heard(await server.check_model_ready(plan.model))
        else:
            done = trio.Event()

            def answered(said: bool) -> None:
                heard(said)
                done.set()

            server.services.models.model_ready(plan.model, "", answered)
            await done.wait()

    def _is_ready(self, plan: ProbePlan) -> bool:
        return self._server.ready() if plan.asker is Asker.SERVER else self._server.model_ready(plan.model)

    def _asked(self, names: Iterable[str]) -> frozenset[str]:
        """The models that check themselves, of those that are behind these names, whether a request needs them or
        not."""
        found: set[str] = set()
        behind = list(names)
        while behind:
            name = behind.pop()
            if name not in found:
                found.add(name)
                ensemble = self._graphs.ensembles.get(name)
                behind += [step.model for step in ensemble.steps] if ensemble is not None else []
        return frozenset(found) & self._checking

    def _judge(
        self,
        plan: ProbePlan,
        told: tuple[bool, bool, bool],
        times_ns: tuple[int, int],
        asked: Sequence[Sequence[_Question]],
    ) -> None:
        """`told`: whether it was ready when the question came, what the answer was, and whether it was ready then."""
        ready, said, still = told
        began_ns, now_ns = times_ns
        about = f"{plan.asker.value} asked at {began_ns} ns whether '{plan.model}' is ready, and heard {said}"
        limit_ns = began_ns + round(LIMIT_S * 1e9)
        if now_ns > limit_ns + TOLERANCE_NS:
            self._complain(f"{about} at {now_ns} ns, which is too late")
        if said and not (ready and still):
            self._complain(f"{about}; it was not")
        if not ready or not self._exact or (now_ns == began_ns and not still):
            return
        ends_ns, right = began_ns, still
        for own in asked:
            may_be = [each for each in own if _may_be_waited_for(each, began_ns)]
            if not may_be:
                self._complain(f"{about}; not all of its instances were asked")
                return
            if len(may_be) > 1:
                return  # of several at one instant, it is not known which
            (question,) = may_be
            in_time = 0 <= question.answered_ns <= limit_ns
            ends_ns = max(ends_ns, question.answered_ns if in_time else limit_ns)
            right = right and in_time and not question.refuses
        if said != right:
            self._complain(f"{about}; right is {right}")
        if abs(now_ns - ends_ns) > TOLERANCE_NS:
            self._complain(f"{about} at {now_ns} ns; right is {ends_ns} ns")


def _may_be_waited_for(question: _Question, now_ns: int) -> bool:
    """Whether who asks now may have to wait for the answer to this question."""
    return question.asked_ns <= now_ns and (question.answered_ns < 0 or question.answered_ns >= now_ns)
