"""An instance whose ``execute`` is a coroutine holds several batches at once, each for itself."""

from __future__ import annotations

import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from calling_models import HEAD, answer
from python_models import CONFIG, ask, child_processes, open_repository, until, until_alive, write_model
from trio.testing import MockClock

from trireme.actors import InferenceServer
from trireme.actors.executors import COPIED_IN_PLACE_BYTES
from trireme.engine.errors import InternalError, TriremeError
from trireme.engine.job import Job
from trireme.python_backend import instance
from trireme.python_backend.wire import write_job

MEETING = (
    HEAD
    + """
        def initialize(self, args):
            self.running = self.most = 0
            self.doors = {}

        async def execute(self, requests):
            self.running += 1
            self.most = max(self.most, self.running)
            try:
                return [await self.answer(int(value_of(request))) for request in requests]
            finally:
                self.running -= 1

        def door(self, number):
            return self.doors.setdefault(number, asyncio.Event())

        async def answer(self, value):
            if value == 0:
                return response(self.running, self.most)
            if value == 13:
                raise ValueError("unlucky")
            if value == 14:
                raise asyncio.CancelledError
            if value == 15:
                raise SystemExit(3)
            if value == 66:
                os._exit(1)
            if value < 0:  # lets a waiting request go on
                self.door(-value).set()
            else:
                await self.door(value).wait()
            return response(value)
"""
)


def limited(count: int | str) -> str:
    return CONFIG + f'parameters {{ key: "MAX_OVERLAPPING_BATCHES" value {{ string_value: "{count}" }} }}'


async def seen(server: InferenceServer) -> tuple[int, int]:
    """Batches that the model has in its hands, this one included, and the most that it ever had."""
    running, most = (await server.infer(ask("m", 0))).outputs[0].array[0]
    return int(running), int(most)


async def begun(server: InferenceServer, count: int) -> None:
    """Wait until the model has so many batches in its hands."""
    with trio.fail_after(30):
        while (await seen(server))[0] != count + 1:  # noqa: ASYNC110
            await trio.sleep(0.01)


async def hold(server: InferenceServer, values: list[int], outcomes: dict[int, object]) -> None:
    """Ask for all of these at once; what came of each."""

    async def one(value: int) -> None:
        try:
            outcomes[value] = await answer(server, "m", value)
        except TriremeError as error:
            outcomes[value] = error.message

    async with trio.open_nursery() as nursery:
        for value in values:
            nursery.start_soon(one, value)


OPTIONS = [{}, {"hang_limit_s": 60.0}]
"""Batches are begun where they are formed, or, where their time is limited, by their instance."""


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("place", ["process", "in_process"])
async def test_requests_that_wait_for_later_ones_are_answered_when_these_have_come(
    tmp_path: Path, place: str, options: dict[str, float]
) -> None:
    code = MEETING.replace("asyncio.Event", "__import__('trio').Event") if place == "in_process" else MEETING
    write_model(tmp_path, "m", code, CONFIG + f'parameters {{ key: "EXECUTION" value {{ string_value: "{place}" }} }}')
    outcomes: dict[int, object] = {}
    async with open_repository(tmp_path, **options) as server, trio.open_nursery() as nursery:
        nursery.start_soon(hold, server, [1, 2, 3], outcomes)
        await begun(server, 3)
        for value in (2, 3, 1):
            assert await answer(server, "m", -value) == -value
            await until(lambda value=value: value in outcomes)
    assert list(outcomes.items()) == [(2, 2.0), (3, 3.0), (1, 1.0)], "each is answered when it is over itself"


async def test_large_requests_overlap_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are put together on threads, the first two here at the same time."""
    meeting = threading.Barrier(2)
    write_large = partial(_meet_and_write, meeting)
    monkeypatch.setattr(instance, "write_job", write_large)
    write_model(tmp_path, "m", MEETING)
    async with open_repository(tmp_path) as server, trio.open_nursery() as nursery:
        nursery.start_soon(server.infer, ask("m", 1, *[0.0] * 100_000))
        nursery.start_soon(server.infer, ask("m", 2, *[0.0] * 100_000))
        await begun(server, 2)
        for value in (-2, -1):
            await server.infer(ask("m", value, *[0.0] * 100_000))


def _meet_and_write(meeting: threading.Barrier, job: Job, *rest: Any) -> Any:
    if job.nbytes > COPIED_IN_PLACE_BYTES and job.inputs["INPUT0"].array[0, 0] > 0:
        meeting.wait(30)
    return write_job(job, *rest)


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("most", [1, 3])
async def test_no_more_batches_than_allowed_overlap(tmp_path: Path, most: int, options: dict[str, float]) -> None:
    code = (
        HEAD
        + """
        running = most = 0

        async def execute(self, requests):
            self.running += 1
            self.most = max(self.most, self.running)
            while self.most < MOST:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.01)  # so that others may come who should not
            self.running -= 1
            return [response(self.most) for _ in requests]
"""
    )
    write_model(tmp_path, "m", code.replace("MOST", str(most)), limited(most))
    found: list[float] = []

    async def one() -> None:
        found.append(await answer(server, "m", 0))

    async with open_repository(tmp_path, **options) as server:
        async with trio.open_nursery() as nursery:
            for _ in range(20):
                nursery.start_soon(one)
        assert max(found) == most
        assert len(found) == 20


@pytest.mark.parametrize("text", ["0", "-1", "many", ""])
async def test_a_limit_that_is_no_number_fails_the_load(tmp_path: Path, text: str) -> None:
    write_model(tmp_path, "m", MEETING, limited(text))
    async with open_repository(tmp_path, exit_on_error=False) as server:
        (entry,) = server.repository_index()
        assert "parameter 'MAX_OVERLAPPING_BATCHES' of model 'm' must be a whole number of at least 1" in entry.reason
        assert entry.reason.endswith(f"got '{text}'")


@pytest.mark.parametrize("options", OPTIONS)
async def test_all_that_a_dying_process_holds_is_answered_and_the_next_one_overlaps_again(
    tmp_path: Path, options: dict[str, float]
) -> None:
    write_model(tmp_path, "m", MEETING)
    outcomes: dict[int, object] = {}
    async with open_repository(tmp_path, **options) as server:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(hold, server, [1, 2, 3], outcomes)
            await begun(server, 3)
            with pytest.raises(InternalError, match="Stub process 'm_0' is not healthy"):
                await server.infer(ask("m", 66))
        assert outcomes == dict.fromkeys([1, 2, 3], "Stub process 'm_0' is not healthy.")
        await until_alive(server)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(hold, server, [1, 2], outcomes)
            await begun(server, 2)
            await hold(server, [-1, -2], outcomes)
        assert (outcomes[1], outcomes[2]) == (1, 2)
        assert server.budget_statistics().requests == 0


async def test_one_batch_that_hangs_is_the_end_of_all_that_its_process_holds(
    tmp_path: Path, leaping_clock: MockClock
) -> None:
    write_model(tmp_path, "m", MEETING)
    outcomes: dict[int, object] = {}
    async with open_repository(tmp_path, hang_limit_s=20) as server:
        before = child_processes()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(hold, server, [1, 2, 3], outcomes)
            await begun(server, 3)
            leaping_clock.jump(20)
        text = "instance 'm_0' gave no answer within 20 s and was given up"
        assert outcomes == dict.fromkeys([1, 2, 3], text)
        await until_alive(server)
        assert (await seen(server))[0] == 1
        assert child_processes() != before
        (actor,) = server.model_statistics()
        assert (actor.restarts, actor.abandoned) == (1, 1)


@pytest.mark.parametrize(
    ("value", "text"), [(13, "ValueError: unlucky"), (14, "CancelledError: "), (15, "SystemExit: 3")]
)
async def test_one_batch_that_fails_is_nothing_to_the_others(tmp_path: Path, value: int, text: str) -> None:
    write_model(tmp_path, "m", MEETING)
    outcomes: dict[int, object] = {}
    async with open_repository(tmp_path) as server, trio.open_nursery() as nursery:
        nursery.start_soon(hold, server, [1], outcomes)
        await begun(server, 1)
        with pytest.raises(InternalError, match=text):
            await server.infer(ask("m", value))
        await hold(server, [-1], outcomes)
    assert outcomes == {1: 1, -1: -1}


async def test_an_unload_waits_for_all_batches(tmp_path: Path) -> None:
    code = MEETING.replace(
        "await self.door(value).wait()",
        """
                while not os.path.exists(os.path.join(pb_utils.get_model_dir(), "go")):
                    await asyncio.sleep(0.01)""",
    )
    directory = write_model(tmp_path, "m", code) / "1"
    outcomes: dict[int, object] = {}

    async def let_go(server: InferenceServer) -> None:
        await until(lambda: not server.model_ready("m"))
        await trio.sleep(0.05)
        assert not outcomes
        (directory / "go").touch()

    async with trio.open_nursery() as nursery, open_repository(tmp_path) as server:
        nursery.start_soon(hold, server, [1, 2, 3], outcomes)
        await begun(server, 3)
        nursery.start_soon(let_go, server)
    assert outcomes == {1: 1, 2: 2, 3: 3}
    assert child_processes() == set()


async def test_each_batch_is_counted_with_its_own_time(tmp_path: Path) -> None:
    write_model(tmp_path, "m", MEETING)
    outcomes: dict[int, object] = {}
    async with open_repository(tmp_path) as server:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(hold, server, [1, 2], outcomes)
            await begun(server, 2)
            before = server.statistics()[0].statistics.execution_count
            await hold(server, [-2], outcomes)
            await until(lambda: 2 in outcomes)
            assert server.statistics()[0].statistics.execution_count == before + 2, "that of 1 is not over"
            await hold(server, [-1], outcomes)
        statistics = server.statistics()[0].statistics
        assert statistics.execution_count == statistics.inference_count == statistics.success.count == before + 4
        assert statistics.pending == 0


async def test_answers_go_out_in_the_order_of_arrival_if_that_is_wanted(tmp_path: Path) -> None:
    """The second is over long before the first, and waits for it."""
    ordered = CONFIG + "dynamic_batching { preserve_ordering: true preferred_batch_size: [ 1 ] }"
    code = (
        HEAD
        + """
        def initialize(self, args):
            self.second = asyncio.Event()

        async def execute(self, requests):
            for request in requests:
                if value_of(request) == 1:
                    await self.second.wait()
                    await asyncio.sleep(0.05)
                else:
                    self.second.set()
            return [response(value_of(request)) for request in requests]
"""
    )
    write_model(tmp_path, "m", code, ordered)
    order: list[int] = []
    async with open_repository(tmp_path) as server:
        for value in (1, 2):
            reply = await server.admit(ask("m", value))
            reply.notify_each(lambda _reply, value=value: order.append(value))
        await until(lambda: len(order) == 2)
    assert order == [1, 2]


ALONE = (
    HEAD
    + """
        running = 0

        def initialize(self, args):
            self.seen = []

        async def execute(self, requests):
            self.running += 1
            assert self.running == 1, "two batches at once"
            self.seen += [value_of(request) for request in requests]
            await asyncio.sleep(0.005 if len(self.seen) % 2 else 0)
            self.running -= 1
            return [response(*self.seen) for _ in requests]
"""
)


async def test_requests_of_a_sequence_come_one_after_the_other(tmp_path: Path) -> None:
    write_model(tmp_path, "m", ALONE, CONFIG + "sequence_batching { max_sequence_idle_microseconds: 60000000 }")
    found: list[list[float]] = []

    async def one(value: int) -> None:
        fields = {"correlation_id": 7, "sequence_start": value == 1, "sequence_end": value == 8}
        found.append((await server.infer(ask("m", value, **fields))).outputs[0].array[0].tolist())

    async with open_repository(tmp_path) as server, trio.open_nursery() as nursery:
        for value in range(1, 9):
            nursery.start_soon(one, value)
            await trio.testing.wait_all_tasks_blocked()
    assert sorted(found) == [list(range(1, value + 1)) for value in range(1, 9)]


async def test_what_executions_need_is_there_for_each(tmp_path: Path) -> None:
    """An instance is granted its resources for one batch, so it has one at a time."""
    group = 'instance_group [{ kind: KIND_CPU count: 1 rate_limiter { resources [{ name: "R" count: 1 }] } }]'
    write_model(tmp_path, "m", ALONE, CONFIG + group)
    outcomes: dict[int, object] = {}
    async with open_repository(tmp_path, rate_limit=True) as server:
        await hold(server, list(range(1, 9)), outcomes)
    assert len(outcomes) == 8
    assert not [outcome for outcome in outcomes.values() if isinstance(outcome, str)], outcomes


async def test_a_request_to_a_model_ends_with_the_batch_that_it_was_made_for(tmp_path: Path) -> None:
    """Of two batches that ask another model one is given up: only what that one has asked is cancelled."""
    target = (
        HEAD
        + """
        async def execute(self, requests):
            (request,) = requests
            value = value_of(request)
            open(os.path.join(pb_utils.get_model_dir(), f"asked_{value:g}"), "w").close()
            while not request.is_cancelled() and not os.path.exists(os.path.join(pb_utils.get_model_dir(), "go")):
                await asyncio.sleep(0.01)
            if request.is_cancelled():
                open(os.path.join(pb_utils.get_model_dir(), f"cancelled_{value:g}"), "w").close()
            return [response(value)]
"""
    )
    code = (
        HEAD
        + """
        async def execute(self, requests):
            (request,) = requests
            return [await call("t", value_of(request)).async_exec()]
"""
    )
    directory = write_model(tmp_path, "t", target) / "1"
    write_model(tmp_path, "m", code)
    outcomes: dict[int, object] = {}
    async with open_repository(tmp_path) as server, trio.open_nursery() as nursery:
        nursery.start_soon(hold, server, [1], outcomes)
        with trio.CancelScope() as given_up:
            async with trio.open_nursery() as second:
                second.start_soon(hold, server, [2], outcomes)
                await until(lambda: len(list(directory.glob("asked_*"))) == 2)
                given_up.cancel()
        await until((directory / "cancelled_2").exists)
        (directory / "go").touch()
    assert outcomes == {1: 1}
    assert not (directory / "cancelled_1").exists()


async def test_a_batch_whose_answer_cannot_be_sent_is_the_end_of_the_process(tmp_path: Path) -> None:
    """Whatever the reason; it is not waited for for ever."""
    code = (
        HEAD
        + """
        async def execute(self, requests):
            answers = [response(value_of(request)) for request in requests]
            if value_of(requests[0]) == 1:
                answers[0]._outputs = 5
            return answers
"""
    )
    write_model(tmp_path, "m", code)
    async with open_repository(tmp_path) as server:
        with trio.fail_after(30), pytest.raises(InternalError, match="Stub process 'm_0' is not healthy"):
            await server.infer(ask("m", 1))
        assert await answer(server, "m", 2) == 2
