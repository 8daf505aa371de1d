"""The caller's span in the headers of a request (W3C Trace Context)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trireme.engine.tracing.record import SpanContext, read_context

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
GOOD = f"00-{TRACE}-{SPAN}-01"
CONTEXT = SpanContext(int(TRACE, 16), int(SPAN, 16), 1)


@pytest.mark.parametrize("text", [GOOD, f" {GOOD} ", f"cc-{TRACE}-{SPAN}-01-what-comes-later"])
def test_a_context_is_read(text: str) -> None:
    assert read_context(text) == CONTEXT


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        "xx",
        GOOD.upper(),
        f"ff-{TRACE}-{SPAN}-01",
        f"{GOOD}-more",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        GOOD[:-1],
    ],
)
def test_anything_else_is_none(text: str | None) -> None:
    assert read_context(text, "a=b") is None


@pytest.mark.parametrize(
    ("text", "pairs"),
    [
        ("a=b", (("a", "b"),)),
        (" a=b , c@d= e=f ,", ()),
        ("a=b,,c@d=1;2", (("a", "b"), ("c@d", "1;2"))),
        ("a=b,a=c", ()),
        ("A=b", ()),
        ("a", ()),
        (",".join(f"k{at}=v" for at in range(33)), ()),
        ("a=" + "b" * 9000, ()),
    ],
)
def test_a_state_that_cannot_be_read_is_dropped_and_the_context_holds(
    text: str, pairs: tuple[tuple[str, str], ...]
) -> None:
    context = read_context(GOOD, text)
    assert context is not None
    assert context.state == pairs


@given(st.text(), st.text())
def test_whatever_comes_is_read_without_an_error(parent: str, state: str) -> None:
    read_context(parent, state)
    read_context(GOOD, state)
