"""The audit log: its lines, its bounds, and its files."""

from __future__ import annotations

import json

from trireme.engine.access.audit import MAX_WAITING_BYTES, AuditLines

LOAD = {"caller": "ops", "call": "load", "model": "m", "outcome": "allowed", "reason": ""}
REFUSED = {"caller": "", "call": "load", "outcome": "refused", "reason": "x"}


def records(data: bytes) -> list[dict[str, object]]:
    return [json.loads(line) for line in data.splitlines()]


def test_a_line_says_what_there_is_to_say() -> None:
    lines = AuditLines(0.0)
    assert lines.note(LOAD, 0.0, 1_700_000_000_007)
    assert not lines.note({**LOAD, "model": "n\n\udc80" + "x" * 300}, 0.0, 0), "there is one already"
    first, second = records(lines.take())
    assert first == {
        "time": "2023-11-14T22:13:20.007Z",
        "caller": "ops",
        "call": "load",
        "model": "m",
        "outcome": "allowed",
    }
    assert second["model"] == "n\n\udc80" + "x" * 253 + "... (303 characters)"
    assert lines.take() == b""
    assert lines.note(LOAD, 0.0, 0)


def test_floods_of_refusals_are_counted() -> None:
    lines = AuditLines(0.0)
    for _ in range(1500):
        lines.note(REFUSED, 0.0, 0)
    lines.note(LOAD, 0.0, 0)
    lines.note(LOAD, 0.0, 0)
    found = records(lines.take())
    assert len(found) == 1002
    assert [record.get("dropped") for record in found[-3:]] == [None, 500, None]
    assert (lines.noted, lines.dropped) == (1002, 500)
    for _ in range(200):
        lines.note(REFUSED, 1.0, 0)
    assert len(records(lines.take())) == 100


def test_what_waits_is_bounded() -> None:
    lines = AuditLines(0.0)
    for _ in range(MAX_WAITING_BYTES // 80):
        lines.note(LOAD, 0.0, 0)
    assert lines.dropped
    assert MAX_WAITING_BYTES - 200 < len(lines.take()) <= MAX_WAITING_BYTES
