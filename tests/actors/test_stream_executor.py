"""GPU instances on a strict stand-in for a GPU, with real threads: launched on one of their own, collected on the loop,
and nothing that goes wrong there is more than its batch's or its instance's affair."""

from __future__ import annotations

import gc
import re
import threading
import weakref
from dataclasses import replace

import pytest
import trio
from fake_device import FakeDevice
from google.protobuf import text_format
from streaming_models import Streaming, request
from valued_server import until

from trireme.actors import InferenceServer, Reply
from trireme.actors.actor import Turn
from trireme.actors.offload import WorkThread
from trireme.actors.stream_executor import StreamExecutor
from trireme.engine.config.model import ModelConfigMessage
from trireme.engine.errors import InternalError, TriremeError, UnavailableError
from trireme.engine.gpu import flights
from trireme.simulations.models import Profile, SimulatedModel, simple_model

OUT_OF_MEMORY = (
    "4398046511104 bytes of device memory were asked for, N are left; it was a batch of 1 on instance 'm_0': "
    "lower max_batch_size or the number of instances on this GPU, or raise the limits that "
    "--cuda-memory-pool-byte-size and --pinned-memory-pool-byte-size set"
)


@pytest.fixture
def streaming() -> Streaming:
    return Streaming()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is in flight is asked after at once."""
    monkeypatch.setattr(flights, "LOOK_S", 0.002)


def model(name: str = "m", instances: int = 1) -> SimulatedModel:
    """Takes one request a batch, so that it is known which are in flight."""
    return simple_model(name, Profile(0.0), instances=instances, max_batch_size=1)


async def value_of(reply: Reply) -> float:
    return float((await reply.response()).outputs[0].array[0, 0])


async def failure_of(reply: Reply) -> TriremeError:
    with pytest.raises(TriremeError) as raised:
        await reply.response()
    return raised.value


async def landing(streaming: Streaming, server: InferenceServer, value: float) -> float:
    """Ask, and let the device work until there is an answer."""
    reply = await server.admit(request(value))

    def answered() -> bool:
        streaming.device.run()
        return reply.final

    await until(answered)
    return await value_of(reply)


async def memory_is_back(device: FakeDevice) -> None:
    def back() -> bool:
        gc.collect()
        return (device.memory.used_bytes, device.pinned_memory.used_bytes) == (0, 0)

    await until(back)


# -- the way of a batch ----------------------------------------------------------------------------------------------


async def test_two_batches_are_in_flight_and_each_gets_its_own_answer(streaming: Streaming) -> None:
    async with streaming.serving(model()) as server:
        replies = [await server.admit(request(value)) for value in range(5)]
        await until(lambda: streaming.launched == 2)
        await trio.testing.wait_all_tasks_blocked()
        assert streaming.launched == 2, "it has two credits"
        assert not any(reply.final for reply in replies)
        streaming.device.run()
        await until(lambda: streaming.launched == 4)
        assert [reply.final for reply in replies] == [True, True, False, False, False]
        streaming.device.run()
        await until(lambda: streaming.launched == 5)
        streaming.device.run()
        assert [await value_of(reply) for reply in replies] == [1, 2, 3, 4, 5]
    del replies  # whose answers are views of pinned memory
    await memory_is_back(streaming.device)
    assert not streaming.device.misuses


async def test_everything_that_may_wait_is_on_the_instances_thread(streaming: Streaming) -> None:
    async with streaming.serving(model()) as server:
        await landing(streaming, server, 1)
    here = threading.current_thread().name
    streaming.threads.pop("healthy", None)  # on a slow machine it is asked after its batch
    assert streaming.threads == {"create": {"m_0"}, "launch": {"m_0"}, "collect": {here}, "close": {"m_0"}}


async def test_instances_go_on_side_by_side(streaming: Streaming) -> None:
    async with streaming.serving(model(instances=2)) as server:
        replies = [await server.admit(request(value)) for value in range(5)]
        await until(lambda: streaming.launched == 4)
        streaming.device.run()
        await until(lambda: streaming.launched == 5)
        streaming.device.run()
        assert [await value_of(reply) for reply in replies] == [1, 2, 3, 4, 5]


async def test_a_batch_may_land_before_its_launch_has_returned(streaming: Streaming) -> None:
    async with streaming.serving(model()) as server:
        reply = await server.admit(request(1, "early"))
        assert await value_of(reply) == 2
        assert await landing(streaming, server, 5) == 6


async def test_an_instance_that_needs_leave_to_execute_has_one_batch_at_a_time(
    streaming: Streaming,
) -> None:
    limited = text_format.Parse("instance_group { rate_limiter { } }", ModelConfigMessage())
    config = replace(model().config, message=limited)
    async with streaming.serving(SimulatedModel(config, Profile(0.0)), rate_limit=True) as server:
        replies = [await server.admit(request(value)) for value in range(2)]
        await until(lambda: streaming.launched == 1)
        await trio.testing.wait_all_tasks_blocked()
        assert streaming.launched == 1
        streaming.device.run()
        await until(lambda: streaming.launched == 2)
        streaming.device.run()
        assert [await value_of(reply) for reply in replies] == [1, 2]


async def test_a_hang_limit_that_is_not_reached_changes_nothing(streaming: Streaming) -> None:
    async with streaming.serving(model(), hang_limit_s=60) as server:
        replies = [await server.admit(request(value)) for value in range(2)]
        await until(lambda: streaming.launched == 2)
        streaming.device.run()
        assert [await value_of(reply) for reply in replies] == [1, 2]


async def test_the_times_are_the_devices(streaming: Streaming) -> None:
    """The stand-in takes 100 ns to compute, and 16 ns to copy the result, which is collected then."""
    async with streaming.serving(model()) as server:
        await landing(streaming, server, 1)
        (entry,) = server.statistics("m")
    assert entry.statistics.compute_infer.ns == 100
    assert entry.statistics.compute_output.ns >= 16
    assert entry.statistics.compute_input.ns > 1000


async def test_a_client_that_gives_up_disturbs_nobody(streaming: Streaming) -> None:
    async with streaming.serving(model()) as server:
        replies = [await server.admit(request(value)) for value in range(4)]
        await until(lambda: streaming.launched == 2)
        replies[0].cancel()
        replies[2].cancel()

        def answered() -> bool:
            streaming.device.run()
            return replies[1].final and replies[3].final

        await until(answered)
        assert [await value_of(replies[at]) for at in (1, 3)] == [2, 4]


# -- failure of a batch ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("act", "text"),
    [
        ("raise", "ValueError: it cannot be launched"),
        ("badly", "ValueError: it cannot be collected"),
        ("quit", "the backend called exit (4)"),
        ("oom", OUT_OF_MEMORY),
    ],
)
async def test_what_a_batch_raises_is_its_own_answer(streaming: Streaming, act: str, text: str) -> None:
    async with streaming.serving(model()) as server:
        before = await server.admit(request(1))
        await until(lambda: streaming.launched == 1)
        reply = await server.admit(request(1, act))
        after = await server.admit(request(2))
        failed: list[TriremeError] = []

        def answered() -> bool:
            streaming.device.run()
            return reply.final and after.final

        await until(answered)
        failed.append(await failure_of(reply))
        assert re.sub(r"\d+ are left", "N are left", failed[0].message) == text
        assert isinstance(failed[0], UnavailableError if act == "oom" else InternalError)
        assert [await value_of(each) for each in (before, after)] == [2, 3]
        (actor,) = server.model_statistics()
        assert actor.restarts == 0
        assert server.ready()
        failed.clear()
    assert not streaming.device.memory.used_bytes


async def test_memory_that_ran_out_for_a_batch_is_there_for_the_next(streaming: Streaming) -> None:
    """Each needs 16 bytes for its input and as many for its result: there is room for one, not for two."""
    streaming.device = FakeDevice(memory_bytes=32)
    async with streaming.serving(model()) as server:
        first = await server.admit(request(1))
        await until(lambda: streaming.launched == 1)
        second = await server.admit(request(2))
        await until(lambda: streaming.launched == 2)
        streaming.device.run()
        assert "16 bytes of device memory were asked for, 0 are left" in (await failure_of(second)).message
        assert await value_of(first) == 2
        assert await landing(streaming, server, 5) == 6


# -- loss of an instance ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("act", "text"),
    [
        ("sick", "it has a cold"),
        ("exit", "instance 'm_0' died: ExecutorDiedError: the backend ended its thread (exit status 3)"),
    ],
)
async def test_a_launch_may_cost_the_instance_and_what_is_in_flight(streaming: Streaming, act: str, text: str) -> None:
    async with streaming.serving(model()) as server:
        sick = streaming.device
        flying = await server.admit(request(1))
        await until(lambda: streaming.launched == 1)
        streaming.device = FakeDevice()
        reply = await server.admit(request(2, act))
        waiting = await server.admit(request(3))
        for each in (reply, flying):
            assert (await failure_of(each)).message == text
        await until(lambda: streaming.launched == 2)
        streaming.device.run()
        assert await value_of(waiting) == 4, "the next instance"
        (actor,) = server.model_statistics()
        assert (actor.restarts, actor.instances_alive) == (1, 1)
        sick.run()
        await memory_is_back(sick)
    assert server.drained


@pytest.mark.usefixtures("impatient")
async def test_a_device_that_falls_ill_never_calls_and_is_found_out(streaming: Streaming) -> None:
    async with streaming.serving(model()) as server:
        replies = [await server.admit(request(value)) for value in range(2)]
        await until(lambda: streaming.launched == 2 and streaming.asked > 2)
        sick, streaming.device = streaming.device, FakeDevice()
        lost = weakref.ref(streaming.instances.pop())
        sick.sicken("an illegal memory access was encountered")
        for reply in replies:
            assert (await failure_of(reply)).message == "an illegal memory access was encountered"
        assert not server.ready()
        await memory_is_back(sick)  # although it never says that it needs none any more
        assert lost() is None
        await until(server.ready)
        assert await landing(streaming, server, 5) == 6
        (actor,) = server.model_statistics()
        assert (actor.restarts, actor.abandoned) == (1, 0)
    assert streaming.threads["healthy"] == {threading.current_thread().name}


async def test_a_device_that_stays_ill_costs_its_model_and_no_other(streaming: Streaming) -> None:
    other = streaming.device
    sick = FakeDevice()
    async with streaming.serving(model(), model("other"), restart_limit=1) as server:
        first = streaming.instances[0]
        assert first.device is other
        for _ in range(2):
            assert (await failure_of(await server.admit(request(1, "sick")))).message == "it has a cold"
            streaming.device = sick
        await until(lambda: not server.model_ready("m"))
        await until(lambda: server.repository_index()[0].reason)
        died = "1 of 1 instances have died and are being restarted; last: it has a cold"
        assert server.repository_index()[0].reason == died
        streaming.device = other
        reply = await server.admit(request(4, model="other"))
        await until(lambda: streaming.launched == 1)
        other.run()
        assert await value_of(reply) == 5


async def test_a_batch_that_hangs_costs_the_instance_and_its_memory_comes_back_when_it_lands(
    streaming: Streaming, mock_clock: trio.testing.MockClock
) -> None:
    mock_clock.rate = 1
    async with streaming.serving(model(), hang_limit_s=60) as server:
        hanging, streaming.device = streaming.device, FakeDevice()
        reply = await server.admit(request(1))
        await until(lambda: streaming.launched == 1)
        mock_clock.jump(60)
        text = "instance 'm_0' gave no answer within 60 s and was given up"
        assert (await failure_of(reply)).message == text
        (actor,) = server.model_statistics()
        assert actor.abandoned == 1
        gc.collect()
        assert hanging.pinned_memory.used_bytes == 32, "the device may still write there"
        assert hanging.memory.used_bytes == 32
        hanging.run()
        await memory_is_back(hanging)
        await until(server.ready)


async def test_a_launch_that_hangs_is_given_up_and_may_return_when_it_likes(
    streaming: Streaming, mock_clock: trio.testing.MockClock
) -> None:
    mock_clock.rate = 1
    async with streaming.serving(model(), hang_limit_s=60) as server:
        hanging, streaming.device = streaming.device, FakeDevice()
        reply = await server.admit(request(1, "slow"))
        await until(lambda: "launch" in streaming.threads)
        mock_clock.jump(60)
        assert "was given up" in (await failure_of(reply)).message
        streaming.gate.set()
        await until(lambda: streaming.launched == 1)
        await trio.testing.wait_all_tasks_blocked()
        assert hanging.memory.used_bytes == 32
        hanging.run()
        await memory_is_back(hanging)


# -- the end ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("hang_limit_s", [0.0, 60.0])
async def test_a_model_that_is_unloaded_lets_land_what_is_in_flight(streaming: Streaming, hang_limit_s: float) -> None:
    async with streaming.serving(model(), hang_limit_s=hang_limit_s) as server:
        replies = [await server.admit(request(value)) for value in range(3)]
        await until(lambda: streaming.launched == 2)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(server.stop, 20.0)
            await until(lambda: server.exiting)
            assert "close" not in streaming.threads

            def answered() -> bool:
                streaming.device.run()
                return all(reply.final for reply in replies)

            await until(answered)
        assert [await value_of(reply) for reply in replies] == [1, 2, 3]
    assert server.drained
    assert streaming.threads["close"] == {"m_0"}


def test_what_lands_after_the_server_has_stopped_does_no_harm(streaming: Streaming) -> None:
    """Its time was up with work in flight; the loop goes on, or has ended."""
    texts: list[str] = []

    async def scenario() -> None:
        async with streaming.serving(model(), exit_timeout_s=0.05) as server:
            replies = [await server.admit(request(value)) for value in range(3)]
            await until(lambda: streaming.launched == 2)
        texts.extend([(await failure_of(reply)).message for reply in replies])
        device = streaming.device
        for stream in device.streams[:2]:
            while device.step(stream):
                pass
        device.step(device.streams[2])
        assert device.memory.used_bytes == 64

    trio.run(scenario)
    assert len(texts) == 3
    assert all("Server is stopping" in text for text in texts)
    streaming.device.run()
    for thread in threading.enumerate():
        if thread.name == "m_0":
            thread.join(20)  # what it is at holds memory
    gc.collect()
    assert (streaming.device.memory.used_bytes, streaming.device.pinned_memory.used_bytes) == (0, 0)
    assert not streaming.device.misuses


async def test_it_tells_what_it_is_at(streaming: Streaming) -> None:
    turn = Turn()
    executor = StreamExecutor("digits_0", WorkThread("digits_0", turn), turn)
    assert repr(executor) == "<StreamExecutor of digits_0: 0 launching, 0 in flight>"
    assert executor.statistics() == flights.FlightStatistics(0, 0, 0, 0)
    await executor.around(trio.lowlevel.checkpoint)
    executor.close()
