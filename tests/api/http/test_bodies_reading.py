"""Bodies of every size and in any pieces: whole, counted, and with room taken before they are read."""

from __future__ import annotations

import orjson
import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from trireme.actors.budget import InflightBudget
from trireme.api.http.bodies import UNCOUNTED_BYTES, BodyReader, BodyRefusedError, BodyTerms
from trireme.engine.admission.shares import HURRY_S


class Client:
    """Sends pieces as they are asked for.

    Attributes:
        asked: how many were.
    """

    def __init__(self, *pieces: bytes) -> None:
        self._pieces = list(pieces)
        self.asked = 0

    async def read(self) -> tuple[bytes, bool]:
        await trio.lowlevel.checkpoint()
        self.asked += 1
        return self._pieces.pop(0), bool(self._pieces)


def reader_of(client: Client, length: int | None, budget: InflightBudget, limit_bytes: int = 1 << 30) -> BodyReader:
    return BodyReader(client.read, BodyTerms(length, limit_bytes, "some-flag"), budget.lease)


@given(
    st.lists(st.integers(0, 200_000), min_size=1, max_size=12),
    st.booleans(),
)
def test_a_body_is_the_sum_of_its_pieces(sizes: list[int], announced: bool) -> None:
    pieces = [bytes([number]) * size for number, size in enumerate(sizes)]
    budget = InflightBudget(10, 1 << 30)

    async def read() -> None:
        reader = reader_of(Client(*pieces), sum(sizes) if announced else None, budget)
        body = await reader.read()
        assert body is not None
        assert bytes(body) == b"".join(pieces)
        held = 0 if reader._lease is None else reader._lease.nbytes
        assert held >= sum(sizes) or sum(sizes) <= UNCOUNTED_BYTES
        assert held <= sum(sizes) + UNCOUNTED_BYTES

    trio.run(read)


async def test_a_small_body_needs_no_room() -> None:
    reader = reader_of(Client(b"x" * 100, b"y" * 100), 200, InflightBudget(1, 1))
    assert await reader.read() == b"x" * 100 + b"y" * 100
    assert reader._lease is None


async def test_room_for_a_body_of_known_length_is_taken_before_it_is_asked_for() -> None:
    budget = InflightBudget(10, 1 << 20)
    other = budget.lease()
    assert other.grow_nowait(600_000)
    client = Client(b"x" * 500_000)
    reader = reader_of(client, 500_000, budget)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(reader.read)
        await trio.testing.wait_all_tasks_blocked()
        assert client.asked == 0
        assert budget.statistics().bytes == 600_000
        other.close()
    assert client.asked == 1
    assert budget.statistics().bytes == 500_000


async def test_a_body_of_unknown_length_takes_room_for_each_read_before_it() -> None:
    budget = InflightBudget(10, 1 << 20)
    other, another = budget.lease(), budget.lease()
    assert other.grow_nowait(400_000)
    assert another.grow_nowait(400_000)
    assert another.grow_nowait(200_000), "it overdraws"
    client = Client(*[b"x" * 60_000] * 10)
    reader = reader_of(client, None, budget)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(reader.read)
        await trio.testing.wait_all_tasks_blocked()
        assert client.asked == 1
        another.close()
    assert reader._lease is not None
    assert 600_000 <= reader._lease.nbytes <= 665_536


@pytest.mark.parametrize(
    ("pieces", "text"),
    [
        ([b"x" * 101], "request size of 101 bytes exceeds the maximum allowed input size of 100 bytes. "),
        ([b"x" * 60, b"x" * 60, b"x"], "request size exceeds the maximum allowed input size of 100 bytes. "),
    ],
)
async def test_what_turns_out_to_be_too_large_is_refused_as_soon_as_it_does(pieces: list[bytes], text: str) -> None:
    client = Client(*pieces)
    with pytest.raises(BodyRefusedError) as caught:
        await reader_of(client, None, InflightBudget(10, 1 << 20), 100).read()
    assert client.asked <= 2
    assert caught.value.answer.status == 413
    assert orjson.loads(caught.value.answer.body)["error"] == f"{text}Use --some-flag to increase the limit."


async def test_a_large_body_is_put_together_in_steps() -> None:
    """The loop gets its turn at least after each mebibyte."""
    turns = 0
    pieces = [b"x" * 65_536] * 128
    budget = InflightBudget(10, 1 << 30)
    client = Client(*pieces)

    async def count() -> None:
        nonlocal turns
        while True:
            await trio.lowlevel.checkpoint()
            turns += client.asked == len(pieces)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(count)
        body = await reader_of(client, None, budget).read()
        nursery.cancel_scope.cancel()
    assert body is not None
    assert len(body) == 128 * 65_536
    assert turns >= 6


class Trickle:
    """A client that sends its body when the test is over."""

    async def read(self) -> tuple[bytes, bool]:
        await trio.sleep_forever()
        raise AssertionError


@pytest.mark.parametrize("wanted", [True, False])
async def test_a_body_that_holds_more_than_its_share_has_to_hurry_if_others_wait(
    autojump_clock: MockClock, wanted: bool
) -> None:
    """Otherwise it may be as slow as any."""
    budget = InflightBudget(10, 1 << 20, 0.5)
    terms = BodyTerms(800_000, 1 << 20, "some-flag")
    reader = BodyReader(Trickle().read, terms, lambda: budget.lease(client="a"))
    refusals: list[int] = []

    async def read() -> None:
        with pytest.raises(BodyRefusedError) as caught:
            await reader.read()
        refusals.append(caught.value.answer.status)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        await trio.testing.wait_all_tasks_blocked()
        if wanted:
            nursery.start_soon(budget.lease(client="b").grow, 200_000)
        await trio.sleep(HURRY_S - 1)
        assert not refusals
        await trio.sleep(2)
        assert refusals == ([408] if wanted else [])
        nursery.cancel_scope.cancel()
