"""Work on threads: what it raises does not keep its arguments in memory."""

from __future__ import annotations

import contextlib
import gc
import threading
import weakref
from collections.abc import Iterator

import pytest
import trio

from trireme.actors import offload
from trireme.actors.offload import LARGE_ARRIVAL_BYTES, ArrivingBytes, Offload
from trireme.engine.errors import InvalidArgumentError


class Body:
    """A client's."""


@pytest.fixture
def no_collector() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


def refuse(_body: Body) -> None:
    raise InvalidArgumentError("too large")


async def test_a_refused_body_is_freed_at_once(no_collector: None) -> None:
    """Refused bodies have left the budget: if they waited for the garbage collector, they could fill the memory."""
    body = Body()
    seen = weakref.ref(body)
    with contextlib.suppress(InvalidArgumentError):  # pytest.raises would keep the error, and with it this frame
        await Offload()(refuse, body)
        pytest.fail("was not refused")
    del body
    with trio.fail_after(30):
        while seen() is not None:  # until the thread lets go of it, too
            await trio.lowlevel.checkpoint()


async def test_other_errors_tell_where_they_came_from() -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        await Offload()(lambda: 1 // 0)
    assert caught.traceback[-1].name == "<lambda>"


async def test_memory_for_a_large_body_is_written_to_elsewhere_and_not_before_it_arrives(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop = threading.get_ident()
    written: list[int] = []
    genuine = offload._write_to

    def write_to(memory: memoryview) -> None:
        assert threading.get_ident() != loop
        written.append(len(memory))
        genuine(memory)

    monkeypatch.setattr(offload, "_write_to", write_to)
    body = ArrivingBytes(20 << 20)
    filled = await body.begin([])
    while filled < len(body.whole):
        assert sum(written) <= filled + (8 << 20)
        place = await body.place(filled)
        assert 0 < len(place) <= LARGE_ARRIVAL_BYTES
        assert filled + len(place) <= sum(written)
        place[:] = bytes([filled >> 20]) * len(place)
        filled += len(place)
    assert written == [8 << 20, 8 << 20, 4 << 20]
    assert bytes(body.whole[:: 1 << 20]) == bytes(range(20))


async def test_memory_for_a_body_of_one_read_needs_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offload, "_write_to", None)
    body = ArrivingBytes(1000)
    assert [len(await body.place(0)), len(await body.place(990))] == [1000, 10]


@pytest.mark.parametrize(("nbytes", "threads"), [(8 << 20, 0), (20 << 20, 1)])
async def test_what_has_arrived_is_put_at_the_beginning(
    monkeypatch: pytest.MonkeyPatch, nbytes: int, threads: int
) -> None:
    written: list[int] = []
    monkeypatch.setattr(offload, "_write_to", lambda memory: written.append(len(memory)))
    body = ArrivingBytes(nbytes)
    assert await body.begin([b"one", b"two"]) == 6
    assert bytes(body.whole[:6]) == b"onetwo"
    assert written == [8 << 20] * threads


async def test_what_has_arrived_before_memory_was_made_ready_stays() -> None:
    body = ArrivingBytes(20 << 20)
    arrived = 3 * LARGE_ARRIVAL_BYTES
    body.whole[:arrived] = b"x" * arrived
    place = await body.place(arrived)
    assert len(place) == LARGE_ARRIVAL_BYTES
    assert bytes(body.whole[:arrived]) == b"x" * arrived
