"""``--access-config`` and ``--audit-log``: the access rules of a server, kept up to date."""

from __future__ import annotations

import secrets
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import trio

from ...actors.access_gate import LocalAccess
from ...actors.access_watch import AccessWatch, load_rules
from ...actors.audit_log import AuditLog
from ...actors.watched_file import fingerprint
from ...engine.access.control import AccessControl
from ...engine.clock import SystemClock
from ...engine.errors import InvalidArgumentError
from .flags import ParsedFlags, UsageError

_AUDIT_LIMIT_S = 1.0


@dataclass(frozen=True, slots=True)
class AccessSettings:
    """The access file, and where decisions are noted; None for nowhere."""

    config: Path
    audit_log: Path | None = None


def access_settings(flags: ParsedFlags) -> AccessSettings | None:
    """None for no rules. UsageError for an audit log without them."""
    config, audit_log = flags["access-config"], flags["audit-log"]
    if not config:
        if audit_log:
            raise UsageError("Error: --audit-log has no effect without --access-config.")
        return None
    return AccessSettings(Path(config), Path(audit_log) if audit_log else None)


class AccessService:
    """Rules that are read anew when their file changes, for the length of an `async with` block.

    Attributes:
        gate: what decides by them.
    """

    gate: LocalAccess

    def __init__(self, settings: AccessSettings) -> None:
        self._settings = settings
        self._audit: AuditLog | None = None

    async def __aenter__(self) -> Self:
        """Read the file.

        Raises:
            InvalidArgumentError: it is faulty, or the audit log cannot be written.
            UnavailableError: it asks for a library that is not installed.
        """
        path, audit_path = self._settings.config, self._settings.audit_log
        clock = SystemClock(trio.lowlevel.current_clock().current_time)
        seen = fingerprint(path)
        rules = await trio.to_thread.run_sync(load_rules, path)
        control = AccessControl(rules, secrets.token_bytes(32), clock.now_s())
        watch = AccessWatch(control, path, clock, seen)
        if audit_path is not None:
            self._audit = AuditLog(audit_path, clock)
            try:
                await trio.to_thread.run_sync(self._audit.check)
            except OSError as error:
                raise InvalidArgumentError(f"cannot write audit log '{audit_path}': {error.strerror}") from error
        self.gate = LocalAccess(control, clock, self._audit, watch.fetch_keys)
        self._tasks = AsyncExitStack()
        nursery = self._nursery = await self._tasks.enter_async_context(trio.open_nursery())
        nursery.start_soon(watch.run)
        if self._audit is not None:
            nursery.start_soon(self._audit.run)
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if self._audit is not None:
                with trio.CancelScope(shield=True):
                    await self._audit.close(_AUDIT_LIMIT_S)
        finally:
            self._nursery.cancel_scope.cancel()
            await self._tasks.aclose()
