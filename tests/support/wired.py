"""What a link does to a message, without a link."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import hypothesis.strategies as st
import orjson

from trireme.python_backend.child.codec import Buffer, Payload, Source

JSON: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=20,
)
"""What a head may be made of."""


def flat(parts: Iterable[Buffer | Source]) -> bytes:
    """The bytes of a message whose parts are all in memory."""
    found: list[Buffer] = []
    for part in parts:
        assert not isinstance(part, Source)
        found.append(part)
    return b"".join(found)


def wired(head: Sequence[Any], payload: Payload | None = None) -> tuple[list[Any], memoryview]:
    """A message as it arrives."""
    parts = [] if payload is None else payload.parts
    return orjson.loads(orjson.dumps(head)), memoryview(flat(parts))


@st.composite
def damaged(draw: st.DrawFn, head: Sequence[Any]) -> list[Any]:
    """A head of which one value, however deep, is another one, or missing, or there twice."""
    copy = orjson.loads(orjson.dumps(head))
    at: Any = copy
    while True:
        keys = list(at) if isinstance(at, dict) else list(range(len(at)))
        if not keys:
            return copy
        key = draw(st.sampled_from(keys))
        if isinstance(at[key], list | dict) and at[key] and draw(st.booleans()):
            at = at[key]
            continue
        kind = draw(st.sampled_from(("other", "missing", "twice")))
        if kind == "other" or isinstance(at, dict):
            at[key] = draw(JSON)
        elif kind == "missing":
            del at[key]
        else:
            at.insert(key, at[key])
        return copy
