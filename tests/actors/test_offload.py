"""Work on threads: what it raises does not keep its arguments in memory."""

from __future__ import annotations

import contextlib
import gc
import weakref
from collections.abc import Iterator

import pytest
import trio

from trireme.actors.offload import Offload
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
