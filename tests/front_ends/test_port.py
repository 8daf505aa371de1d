"""The engine's end of a front end, whose other end is this test."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from port_world import VALUES, opened, request

from trireme.engine.errors import InvalidArgumentError, RefusalReason
from trireme.engine.request import InferenceResponse
from trireme.engine.tracing.settings import TraceConfig, TraceLevel
from trireme.front_ends import kinds, port, port_answers
from trireme.front_ends.arena import ArenaLender, stage
from trireme.front_ends.link import RING_CAPACITY, LinkError
from trireme.front_ends.refusals import MOST_AT_ONCE
from trireme.front_ends.trace_wishes import TraceWish


async def test_an_answer_has_the_number_of_its_request(tmp_path: Path) -> None:
    async with opened(tmp_path) as world:
        world.admit(7, request())
        head, payload = await world.next()
        assert head[:2] == [kinds.ANSWER, 7]
        assert np.array_equal(np.frombuffer(payload, np.float32), VALUES)
        world.admit(8, request("fail:why"))
        head, _ = await world.next()
        assert head[:4] == [kinds.OUTCOME, 8, True, True]
        assert head[4][2] == "why"
        assert world.budget == (0, 0, 0)


async def test_a_refusal_is_an_answer(tmp_path: Path) -> None:
    async with opened(tmp_path) as world:
        world.admit(1, request(model="none"))
        head, _ = await world.next()
        assert head[:4] == [kinds.OUTCOME, 1, True, False]
        assert "'none'" in head[4][2]


async def test_what_is_not_admitted_is_counted_once_and_says_so(tmp_path: Path) -> None:
    async with opened(tmp_path) as world:
        wrong = request()
        wrong.inputs = []
        world.admit(1, wrong)
        head, _ = await world.next()
        assert head[:4] == [kinds.OUTCOME, 1, True, False]
        assert head[4][4] is True, "the front end counts it no more"
        assert world.server.statistics("plain")[0].statistics.refused == {RefusalReason.INVALID: 1}


async def test_a_large_answer_lies_in_a_segment(tmp_path: Path) -> None:
    values = np.arange(1 << 20, dtype=np.float32)
    async with opened(tmp_path) as world:
        world.admit(1, request(values=values))
        _, payload = await world.next()
        assert np.array_equal(np.frombuffer(payload, np.float32, len(values)), values)


async def test_a_request_that_is_cancelled_gets_its_answer(tmp_path: Path) -> None:
    async with opened(tmp_path) as world:
        world.admit(1, request("until-cancelled say!", name="a"))
        await world.until(lambda: world.script.begun)
        world.send(kinds.CANCEL, 1)
        head, _ = await world.next()
        assert head[1] == 1
        assert world.script.cancelled == ["a"]


async def test_what_is_not_taken_holds_the_model_back(tmp_path: Path) -> None:
    async with opened(tmp_path) as world:
        world.admit(1, request("flood:200 end", model="many", name="a"))
        for _ in range(64):
            head, _ = await world.next()
            assert head[:4] == [kinds.OUTCOME, 1, False, True]
        await world.until(lambda: world.script.windows["a"].crowded)
        assert world.script.said["a"] <= 65  # one waits for room
        for _ in range(136):
            world.send(kinds.TAKEN, 1, 1)
            await world.next()
        world.send(kinds.TAKEN, 1, 64)
        head, _ = await world.next()
        assert head == [kinds.OUTCOME, 1, True, True, None]


async def test_answers_wait_for_room_in_the_ring(tmp_path: Path) -> None:
    values = np.zeros(3_072, np.float32)  # copied through the ring
    count = RING_CAPACITY // values.nbytes - 2  # as many as the ring takes, and so not all answers, which are longer
    async with opened(tmp_path) as world:
        for number in range(2 * count):
            if number == count:  # these have been read
                await world.until(lambda: len(world.script.begun) == count and not world.budget[0])
                world.link.hear()
            world.admit(number, request("say!", values=values))
        await world.until(lambda: len(world.script.begun) == 2 * count and not world.budget[0])
        got = [(await world.next())[0][1] for _ in range(2 * count)]
        assert sorted(got) == list(range(2 * count))


async def test_a_lease_is_the_servers(tmp_path: Path) -> None:
    async with opened(tmp_path, max_inflight_bytes=1 << 20, address_share=1.0) as world:
        world.send(kinds.GROW, 1, 1_000_000, "", -1, "127.0.0.1")
        assert await world.next() == ([kinds.GRANTED, 1, 1_000_000], b"")
        assert world.budget == (0, 1_000_000, 1)
        world.send(kinds.GROW, 2, 500_000, "", -1, "127.0.0.2")
        await world.until(lambda: world.server.budget_statistics().waiting == 1)
        world.send(kinds.CLOSE, 1)
        assert await world.next() == ([kinds.GRANTED, 2, 500_000], b"")
        world.send(kinds.ARRIVED, 2)
        world.admit(5, request("wait:go say!"), lease=2)
        await world.until(lambda: world.budget == (1, 500_000, 1))
        world.script.open("go")
        await world.next()
        assert world.budget == (0, 0, 0)


async def test_requests_wait_for_the_budget_at_the_engine(tmp_path: Path) -> None:
    async with opened(tmp_path, max_inflight_requests=1) as world:
        world.admit(1, request("wait:go say!"))
        world.admit(2, request(model="queued", values=VALUES.reshape(1, 4)))
        assert (await world.next())[0] == [kinds.HELD, 1]
        world.script.open("go")
        heads = [(await world.next())[0][:2] for _ in range(3)]
        assert sorted(map(str, heads)) == sorted(map(str, ([kinds.ANSWER, 1], [kinds.ANSWER, 2], [kinds.HELD, 0])))


async def test_who_follows_a_request_that_waits_for_room_hears_when_it_is_accepted(tmp_path: Path) -> None:
    """A stream sends its next request then, which may be what the model waits for before it answers this one."""
    async with opened(tmp_path, max_inflight_requests=1) as world:
        world.admit(1, request("wait:first say!"))
        world.admit(2, request("wait:second say!", model="queued", values=VALUES.reshape(1, 4)))
        assert (await world.next())[0] == [kinds.HELD, 1]
        world.send(kinds.FOLLOW, 2)
        world.script.open("first")
        heads = [(await world.next())[0][:2] for _ in range(3)]
        assert sorted(map(str, heads)) == sorted(map(str, ([kinds.ANSWER, 1], [kinds.HELD, 0], [kinds.ACCEPTED, 2])))
        world.script.open("second")
        assert (await world.next())[0][:2] == [kinds.ANSWER, 2]


async def test_the_end_of_a_front_end_gives_back_what_it_had(tmp_path: Path) -> None:
    async with opened(tmp_path, max_inflight_bytes=1 << 20, address_share=1.0) as world:
        world.admit(1, request("until-cancelled say!", name="a"))
        world.admit(2, request("until-cancelled flood:100 end", model="many", name="b"))
        world.send(kinds.GROW, 1, 900_000, "", -1, "127.0.0.1")
        world.send(kinds.GROW, 2, 900_000, "", -1, "127.0.0.1")  # waits
        await world.until(lambda: len(world.script.begun) == 2 and world.server.budget_statistics().waiting)
        world.link.close()
        await world.ended.wait()
        assert isinstance(world.error, LinkError)
        await world.until(lambda: world.budget == (0, 0, 0))
        assert set(world.script.cancelled) == {"a", "b"}


@pytest.mark.parametrize(
    "head",
    [
        [kinds.CANCEL],
        [kinds.CANCEL, "one"],
        [kinds.CANCEL, -1],
        [kinds.TAKEN, 1],
        [kinds.TAKEN, 1, -1],
        [kinds.TAKEN, 1, 1],
        [kinds.FOLLOW, None],
        [kinds.GROW, 0, 1, "", -1, ""],
        [kinds.GROW, 5, 1],
        [kinds.GROW, 5, -1, "", -1, ""],
        [kinds.GROW, 5, 1, 2, -1, ""],
        [kinds.ARRIVED],
        [kinds.CLOSE, 1.5],
        [kinds.CALL, 1, "none", []],
        [kinds.CALL, 1, "live", {}],
        [kinds.CALL, 1, "live", [1]],
        [kinds.GIVE_UP, [1]],
        [kinds.NOTES, 1, 1],
        [kinds.ADMIT, 1, 0, ""],
        [kinds.ADMIT, 3, 0, "", ["plain", -1, 0, [], [["IN", 11, [4], 16]]]],
        [kinds.ADMIT, 3, -1, "", ["plain", -1, 0, [], []], {"lease": 9}],
    ],
    ids=str,
)
async def test_a_front_end_that_breaks_the_protocol_is_given_up(tmp_path: Path, head: list[Any]) -> None:
    async with opened(tmp_path) as world:
        world.admit(1, request("until-cancelled end", model="many"))
        await world.until(lambda: world.script.begun)
        world.send(*head)
        await world.ended.wait()
        assert isinstance(world.error, LinkError)
        await world.until(lambda: world.budget == (0, 0, 0))


async def test_a_call_is_made_and_given_up(tmp_path: Path) -> None:
    async with opened(tmp_path) as world:
        world.send(kinds.CALL, 1, "live", [])
        head, payload = await world.next()
        assert (head, bytes(payload[:4])) == ([kinds.RESULT, 1, 4, None], b"true")
        world.send(kinds.CALL, 2, "model_statistics", ["none", -1])
        head, _ = await world.next()
        assert head[:3] == [kinds.RESULT, 2, 0]
        assert "none" in head[3][2]
        world.send(kinds.GIVE_UP, 77)  # over already
        assert world.error is None


async def test_what_a_front_end_says_of_itself_is_passed_on(tmp_path: Path) -> None:
    async with opened(tmp_path) as world:
        world.send(kinds.OPENED, [])
        await world.until(lambda: world.said)
        assert world.said == [[kinds.OPENED, []]]


async def test_traces_of_which_a_front_end_tells_nothing_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(port, "_MOST_HELD", 3)
    tracing = TraceConfig(level=TraceLevel.TIMESTAMPS, rate=1, file=str(tmp_path / "traces.json"))
    async with opened(tmp_path / "models", tracing=tracing) as world:
        setting = world.server.tracer.setting("plain")
        wish = TraceWish(None, "plain")
        for number in (1, 1, 1, 1, 2, 3):  # a number that comes again gives the trace before it up
            world.admit(number, request(), wish=wish)
            await world.next()
        assert setting.open == 3
        world.send(kinds.NOTES, 2, [])
        await world.until(lambda: setting.open == 2)
        world.admit(4, request(), wish=wish)
        await world.next()
        world.admit(5, request(), wish=wish)  # the first one is given up for it
        await world.next()
        assert setting.open == 3
        world.send(kinds.NOTES, 1, [])
        world.send(kinds.NOTES, 3, [])
        await world.until(lambda: setting.open == 2)
        assert world.error is None


async def test_refusals_are_counted_all_at_once(tmp_path: Path) -> None:
    async with opened(tmp_path) as world:
        counted = []
        world.server.note_refusal = lambda *given: counted.append(given)  # type: ignore[method-assign]
        world.send(kinds.REFUSED, RefusalReason.BUDGET.value, "plain", 1, MOST_AT_ONCE)
        await world.until(lambda: counted)
        assert counted == [(RefusalReason.BUDGET, "plain", 1, MOST_AT_ONCE)]


async def test_a_call_that_fails_by_a_defect_costs_that_call_only(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(tmp_path) as world:

        async def live() -> bool:
            raise KeyError("a defect")

        world.server.management.live = live  # type: ignore[method-assign]
        world.send(kinds.CALL, 1, "live", [])
        head, _ = await world.next()
        assert head[:3] == [kinds.RESULT, 1, 0]
        assert "a defect" in head[3][2]
        world.send(kinds.CALL, 2, "ready", [])
        assert (await world.next())[0][:2] == [kinds.RESULT, 2]
        assert "unexpected failure of a call" in caplog.text


@pytest.mark.parametrize("fails", [False, True])
async def test_many_texts_are_packed_on_a_thread_and_answers_stay_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    threads = []

    def staged(lender: ArenaLender, response: InferenceResponse) -> InferenceResponse:
        threads.append(threading.get_ident())
        if fails and len(threads) == 2:
            raise InvalidArgumentError("no text")
        return stage(lender, response)

    monkeypatch.setattr(port_answers, "stage", staged)
    monkeypatch.setattr(port_answers, "packing_takes_long", lambda _outputs: True)
    async with opened(tmp_path) as world:
        world.admit(1, request("flood:5 end", model="many"))
        answers = [await world.next() for _ in range(6)]
        assert all(head[1] == 1 for head, _ in answers)
        first = [float(np.frombuffer(payload, np.float32)[0]) for _, payload in answers if len(payload)]
        assert first == [0, 2, 3, 4] if fails else [0, 1, 2, 3, 4]
        assert [head[4][2] for head, _ in answers if "no text" in str(head)] == ["no text"] * fails
        assert answers[-1][0] == [kinds.OUTCOME, 1, True, True, None]
        assert len(threads) == 5
        assert threading.get_ident() not in threads
