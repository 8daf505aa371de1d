"""Instances that share resources, on real actors in virtual time (docs/reference/scheduling.md#rate-limiter)."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
import trio
from google.protobuf import text_format

from trireme.actors import InferenceServer, StartupError
from trireme.actors.actor import Mailbox, Recipient
from trireme.actors.messages import Attach, Gone
from trireme.actors.reply import Reply
from trireme.actors.scheduler import Scheduler
from trireme.engine.config.model import DynamicBatching, InstanceGroup, ModelConfigMessage, QueuePolicy
from trireme.engine.errors import InternalError, UnavailableError
from trireme.engine.options import ServerOptions
from trireme.engine.scheduling.rate_limiter import ExplicitResource
from trireme.simulations.clock import VirtualClock
from trireme.simulations.executors import VirtualExecutors
from trireme.simulations.models import Profile, SimulatedModel, SimulatedRepository, Work, simple_model, simple_request
from trireme.simulations.plan import ModelPlan, ResourcePlan, SequencesPlan

R = ResourcePlan("R", 1)


def limited(
    name: str,
    work: Work,
    resources: str = "",
    *,
    count: int = 1,
    priority: int = 0,
    batching: DynamicBatching | None = None,
) -> SimulatedModel:
    """A model whose instances need `resources`, as in ``R:2 S:1``."""
    config = simple_model(name, work, instances=count, batching=batching).config
    needs = [each.split(":") for each in resources.split()]
    demand = " ".join(f'resources {{ name: "{resource}" count: {units} }}' for resource, units in needs)
    text = f"instance_group {{ rate_limiter {{ {demand} priority: {priority} }} }}"
    return SimulatedModel(replace(config, message=text_format.Parse(text, ModelConfigMessage())), work)


@asynccontextmanager
async def serving(*models: SimulatedModel, **options: object):
    repository = SimulatedRepository(models)
    server = InferenceServer(
        ServerOptions(**{"rate_limit": True, **options}),  # type: ignore[arg-type]
        source=repository,
        executors=VirtualExecutors(),
        clock=VirtualClock(),
        backends=repository.backends(),
    )
    async with server:
        yield server


async def ask(server: InferenceServer, *names: str) -> float:
    """How long it takes to ask these models at once."""
    started_s = trio.current_time()
    async with trio.open_nursery() as nursery:
        for name in names:
            nursery.start_soon(server.infer, simple_request(name))
    return trio.current_time() - started_s


async def test_models_that_need_the_same_resource_take_turns(autojump_clock) -> None:
    async with serving(limited("a", Profile(1.0), "R:1"), limited("b", Profile(1.0), "R:1")) as server:
        assert await ask(server, "a", "b", "a", "b") == pytest.approx(4.0)


async def test_priorities_count_between_models_that_always_have_work(autojump_clock) -> None:
    """A model that has executed asks again before its resource is granted to the other one."""
    order = ""

    def executing(name: str) -> Work:
        async def work(_spec: object, _batch: object) -> None:
            nonlocal order
            order += name
            await trio.sleep(0.1)

        return work

    models = [limited(name, executing(name), "R:1", priority=at) for at, name in enumerate("ab", 1)]
    async with serving(*models) as server:
        await ask(server, *"ab" * 90)
    assert order.count("a") == order.count("b") == 90
    contended = order[:120]
    assert abs(contended.count("a") - 2 * contended.count("b")) <= 4, contended


async def test_requests_of_clients_that_have_gone_leave_while_they_wait_for_a_resource(autojump_clock) -> None:
    async def hang(_spec: object, _batch: object) -> None:
        await trio.sleep_forever()

    models = limited("hung", hang, "R:1"), limited("other", Profile(1.0), "R:1")
    async with serving(*models, exit_timeout_s=0) as server:
        async with trio.open_nursery() as clients:
            for name in ["hung", *["other"] * 50]:
                clients.start_soon(server.infer, simple_request(name))
            await trio.testing.wait_all_tasks_blocked()
            clients.cancel_scope.cancel()
        await trio.testing.wait_all_tasks_blocked()
        assert server.budget_statistics().requests == 1, "what is being executed"


async def test_models_that_share_nothing_run_side_by_side(autojump_clock) -> None:
    async with serving(limited("a", Profile(1.0), "R:1"), limited("b", Profile(1.0), "S:1")) as server:
        assert await ask(server, "a", "b") == pytest.approx(1.0)


async def test_more_of_a_resource_lets_more_instances_execute(autojump_clock) -> None:
    models = [limited("a", Profile(1.0), "R:2", count=3)]
    async with serving(*models, rate_limit_resources=(ExplicitResource("R", 4),)) as server:
        assert await ask(server, *["a"] * 4) == pytest.approx(2.0)


def on_gpus(name: str, resources: str, *gpus: int, count: int = 1, is_global: bool = False) -> SimulatedModel:
    """`count` instances on each of these GPUs."""
    config = limited(name, Profile(1.0), resources).config
    for resource in config.message.instance_group[0].rate_limiter.resources:
        setattr(resource, "global", is_global)
    group = InstanceGroup(name, "KIND_GPU", count, gpus=gpus)
    return SimulatedModel(replace(config, instance_group=(group,)), Profile(1.0))


@pytest.mark.parametrize(
    ("count", "is_global", "given", "takes_s"),
    [
        (1, False, (), 1.0),
        (1, True, (), 2.0),
        (2, False, (ExplicitResource("R", 2),), 1.0),
        (2, False, (ExplicitResource("R", 2, 0), ExplicitResource("R", 2, 1)), 1.0),
        (2, True, (ExplicitResource("R", 2),), 2.0),
    ],
)
async def test_each_gpu_has_its_own_resources_unless_they_are_global(
    autojump_clock, count: int, is_global: bool, given: tuple[ExplicitResource, ...], takes_s: float
) -> None:
    """A request for each instance on two GPUs: as many at once as both GPUs, or the one pool, have units."""
    model = on_gpus("a", "R:1", 0, 1, count=count, is_global=is_global)
    async with serving(model, rate_limit_resources=given) as server:
        assert await ask(server, *["a"] * 2 * count) == pytest.approx(takes_s)
        (entry,) = server.statistics("a")
        assert {gpu: part.execution_count for gpu, part in entry.statistics.devices.items()} == {0: count, 1: count}


async def test_the_instances_of_one_gpu_take_turns_there(autojump_clock) -> None:
    async with serving(on_gpus("a", "R:1", 1), on_gpus("b", "R:1", 1)) as server:
        assert await ask(server, "a", "b") == pytest.approx(2.0)


async def test_each_gpu_must_have_what_its_own_instances_need(autojump_clock) -> None:
    enough = (ExplicitResource("R", 1, 0), ExplicitResource("R", 2, 1))
    models = [on_gpus("a", "R:1", 0), on_gpus("b", "R:2", 1)]
    async with serving(*models, rate_limit_resources=enough) as server:
        assert await ask(server, "a", "b") == pytest.approx(1.0)
    elsewhere = (ExplicitResource("R", 2, 0), ExplicitResource("R", 1, 1))
    with pytest.raises(StartupError) as caught:
        async with serving(*models, rate_limit_resources=elsewhere):
            pass
    (refused,) = [entry for entry in caught.value.index if entry.reason]
    assert refused.name == "b"
    assert 'Resource count for "R" is limited to 1 which will prevent' in refused.reason


async def test_a_cpu_instance_draws_on_the_resources_of_device_0(autojump_clock) -> None:
    given = (ExplicitResource("R", 1, 0), ExplicitResource("R", 1, 1))
    models = [on_gpus("a", "R:1", 0, 1), limited("b", Profile(1.0), "R:1")]
    async with serving(*models, rate_limit_resources=given) as server:
        assert await ask(server, "a", "a") == pytest.approx(1.0)
        assert await ask(server, "a", "a", "b") == pytest.approx(2.0)


async def test_without_the_flag_resources_are_not_looked_at(autojump_clock) -> None:
    async with serving(
        limited("a", Profile(1.0), "R:1"), limited("b", Profile(1.0), "R:1"), rate_limit=False
    ) as server:
        assert await ask(server, "a", "b") == pytest.approx(1.0)


async def test_a_batch_is_formed_when_it_may_be_executed(autojump_clock) -> None:
    """What comes while an instance waits for its turn goes into the same batch."""
    batching = DynamicBatching(preferred_batch_sizes=(8,))
    models = [limited("a", Profile(1.0), "R:1"), limited("b", Profile(1.0), "R:1", batching=batching)]
    async with serving(*models) as server:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(server.infer, simple_request("a"))
            await trio.sleep(0.1)
            for _ in range(4):
                nursery.start_soon(server.infer, simple_request("b"))
                await trio.sleep(0.1)
        (entry,) = server.statistics("b")
        assert (entry.statistics.inference_count, entry.statistics.execution_count) == (4, 1)


async def test_a_queue_delay_holds_no_resource(autojump_clock) -> None:
    """While one model's queue waits for more, the other one executes."""
    batching = DynamicBatching(preferred_batch_sizes=(8,), max_queue_delay_us=2_000_000)
    models = [limited("slow", Profile(1.0), "R:1", batching=batching), limited("a", Profile(0.5), "R:1")]
    async with serving(*models) as server, trio.open_nursery() as nursery:
        nursery.start_soon(server.infer, simple_request("slow"))
        await trio.sleep(0.1)
        assert await ask(server, "a", "a") == pytest.approx(1.0)
        started_s = trio.current_time()
    assert trio.current_time() - started_s == pytest.approx(3.0 - 1.1)


async def test_an_instance_that_dies_gives_back_what_it_held(autojump_clock) -> None:
    async def die(spec: object, batch: object) -> None:
        await trio.sleep(0.5)
        raise RuntimeError("gone")

    async def fail(server: InferenceServer) -> None:
        with pytest.raises(InternalError, match="gone"):
            await server.infer(simple_request("bad"))

    models = [limited("bad", die, "R:1"), limited("a", Profile(1.0), "R:1")]
    async with serving(*models, restart_limit=0) as server, trio.open_nursery() as nursery:
        nursery.start_soon(fail, server)
        await trio.sleep(0.1)
        assert await ask(server, "a") == pytest.approx(1.4)


async def test_a_model_that_could_never_execute_is_not_loaded(autojump_clock) -> None:
    with pytest.raises(StartupError) as caught:
        async with serving(limited("a", Profile(1.0), "R:5"), rate_limit_resources=(ExplicitResource("R", 4),)):
            pass
    (entry,) = caught.value.index
    assert entry.reason == (
        'Invalid argument: Resource count for "R" is limited to 4 which will prevent scheduling of one or more model '
        "instances, the minimum required count is 5"
    )


async def test_who_was_granted_in_vain_does_not_ask_until_something_happens(autojump_clock) -> None:
    """With two instances and a delay, each would be granted in turn, for ever, at one instant."""
    batching = DynamicBatching(preferred_batch_sizes=(8,), max_queue_delay_us=500_000)
    models = [limited("a", Profile(0.0), "R:1", count=2, batching=batching)]
    async with serving(*models) as server:
        with trio.fail_after(10):
            assert await ask(server, "a") == pytest.approx(0.5)


async def test_a_burst_is_taken_into_idle_instances_before_a_queue_is_called_full(autojump_clock) -> None:
    policy = QueuePolicy(max_queue_size=1)
    models = [limited("a", Profile(1.0), "R:1", batching=DynamicBatching((1,), default_queue_policy=policy))]
    async with serving(*models) as server:
        await trio.testing.wait_all_tasks_blocked()
        assert await ask(server, "a", "a") == pytest.approx(2.0)


async def test_a_grant_behind_the_jobs_of_a_turn_counts_before_a_queue_is_called_full(autojump_clock) -> None:
    """The limiter is asked for the first request, then the second comes, and then the grant."""
    policy = QueuePolicy(max_queue_size=1)
    models = [limited("a", Profile(1.0), "R:1", batching=DynamicBatching((1,), default_queue_policy=policy))]
    async with serving(*models) as server:
        await trio.testing.wait_all_tasks_blocked()
        replies: list[Reply] = []

        class Client(Recipient):
            def take_turn(self) -> None:
                reply = server.admit_nowait(simple_request("a"))
                assert reply is not None
                replies.append(reply)

            def fail(self, error: Exception) -> None:
                raise error

        first, second = Client(), Client()
        with server.turn:
            first.take_turn()  # the scheduler is posted before the second client
            server.turn.post(second)
        for reply in replies:
            await reply.response()
        assert len(replies) == 2


async def test_the_instance_that_has_a_sequence_is_the_one_that_asks(autojump_clock) -> None:
    """A sequence waits for its own instance: another one that is granted can do nothing for it."""
    plan = ModelPlan("m", instances=3, max_batch_size=2, sequences=SequencesPlan(oldest=True), delay_us=4_000)
    async with serving(SimulatedModel(plan.config(), Profile(1.0))) as server:
        with trio.fail_after(10):
            await server.infer(replace(simple_request("m"), correlation_id=1, sequence_start=True))


async def test_each_instance_keeps_its_own_delay_while_they_take_turns(autojump_clock) -> None:
    """The first sequence's delay is over before the second's, on another instance, which was granted later."""
    plan = ModelPlan("m", instances=2, max_batch_size=2, sequences=SequencesPlan(oldest=True, candidates=1))
    plan = replace(plan, delay_us=1_000_000, demands=(R,))
    async with serving(SimulatedModel(plan.config(), Profile(0.0))) as server, trio.open_nursery() as nursery:
        answered_s: dict[int, float] = {}

        async def ask_in_sequence(number: int) -> None:
            await server.infer(replace(simple_request("m"), correlation_id=number, sequence_start=True))
            answered_s[number] = trio.current_time()

        nursery.start_soon(ask_in_sequence, 1)
        await trio.sleep(0.4)
        nursery.start_soon(ask_in_sequence, 2)
        await trio.sleep(5)
        assert answered_s == pytest.approx({1: 1.0, 2: 1.4})


async def test_who_has_no_work_any_more_holds_up_nobody(autojump_clock) -> None:
    """Model `big` waits for all of R until its only request expires; `small` would have had enough all the time."""
    policy = QueuePolicy(default_timeout_us=200_000)
    models = [
        limited("small", Profile(1.0), "R:1", count=2),
        limited("big", Profile(1.0), "R:2", batching=DynamicBatching(default_queue_policy=policy)),
    ]
    resources = (ExplicitResource("R", 2),)
    async with serving(*models, rate_limit_resources=resources) as server, trio.open_nursery() as nursery:
        nursery.start_soon(server.infer, simple_request("small"))
        await trio.sleep(0.1)
        with pytest.raises(UnavailableError, match="Request timeout expired"):
            await server.infer(simple_request("big"))
        assert await ask(server, "small") == pytest.approx(1.0)


async def test_who_lost_its_work_to_a_neighbours_batch_holds_up_nobody(autojump_clock) -> None:
    """Two instances of `pair` ask for a request each, and the first that is granted takes both; the second one would
    have to wait, and `small` would not."""
    models = [
        limited("long", Profile(5.0), "R:1"),
        limited("pair", Profile(1.0), "R:2", count=2, batching=DynamicBatching()),
        limited("small", Profile(0.5), "R:1"),
    ]
    resources = (ExplicitResource("R", 4),)
    async with serving(*models, rate_limit_resources=resources) as server, trio.open_nursery() as nursery:
        nursery.start_soon(ask, server, "long")
        await trio.sleep(0.1)
        nursery.start_soon(ask, server, "pair", "pair")
        await trio.sleep(0.1)
        assert await ask(server, "small") == pytest.approx(0.5)


async def test_an_instance_that_dies_while_it_is_registered_gets_no_batch(autojump_clock) -> None:
    """The limiter's answer comes when the scheduler has heard of the death already."""
    async with serving(limited("a", Profile(1.0), "R:1")) as server:
        scheduler = server._repository.find("a").scheduler
        assert isinstance(scheduler, Scheduler)
        nowhere: Mailbox = Mailbox("an instance", server.turn, scheduler, 1)
        with server.turn:
            scheduler.mailbox.send_nowait(Attach(99, 7, "a_99", nowhere))
            scheduler.mailbox.send_nowait(Gone(99, 7, ()))
        assert len(scheduler.instances) == 1
        assert len(nowhere) == 0, "it is not told that it is attached"
        assert await ask(server, "a", "a") == pytest.approx(2.0)
