"""The task that writes the audit log."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import trio
import trio.testing

from trireme.actors.audit_log import AuditLog
from trireme.engine.clock import SystemClock


def note(log: AuditLog, call: str) -> None:
    log.note(caller="a", protocol="HTTP", address="1.2.3.4", call=call, model="m", outcome="allowed")


async def test_all_that_is_noted_is_written(tmp_path: Path) -> None:
    path = tmp_path / "audit"
    log = AuditLog(path, SystemClock())
    log.check()
    assert path.read_bytes() == b""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(log.run)
        note(log, "one")
        with trio.fail_after(30):
            while not path.stat().st_size:
                await trio.lowlevel.checkpoint()
            note(log, "two")
            note(log, "three")
            await log.close(30)
    assert [json.loads(line)["call"] for line in path.read_text().splitlines()] == ["one", "two", "three"]


async def test_a_file_that_cannot_be_written_is_told_of_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    log = AuditLog(tmp_path / "none" / "audit", SystemClock())
    with pytest.raises(FileNotFoundError):
        log.check()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(log.run)
        note(log, "one")
        with trio.fail_after(30):
            while not log.lines.dropped:
                await trio.lowlevel.checkpoint()
            note(log, "two")
            await log.close(30)
    (record,) = caplog.records
    assert record.getMessage() == f"cannot write the audit log {tmp_path / 'none' / 'audit'}: No such file or directory"
    assert log.lines.dropped == 2
