"""``--request-log``: the log of what clients ask, for the length of a server (docs/request_logs.md)."""

from __future__ import annotations

import secrets
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType

import trio

from ...actors.request_log import RequestLog, RequestLogSettings
from ...engine.clock import SystemClock
from ...engine.errors import InvalidArgumentError
from ...engine.logs.request_recorder import RequestRecorder
from .flags import ParsedFlags, UsageError

_CLOSE_LIMIT_S = 5.0
_DEPENDENT = ("request-log-file-size", "request-log-files", "request-log-results")


def request_log_settings(flags: ParsedFlags) -> RequestLogSettings | None:
    """None for no log. UsageError for a flag that means nothing without one."""
    if not flags["request-log"]:
        for name in _DEPENDENT:
            if name in flags:
                raise UsageError(f"Error: --{name} has no effect without --request-log.")
        return None
    sizes = flags["request-log-file-size"], flags["request-log-files"]
    return RequestLogSettings(Path(flags["request-log"]), *sizes, flags["request-log-results"])


class RequestLogService:
    """A request log for the length of an `async with` block, which gives what records requests for it."""

    def __init__(self, settings: RequestLogSettings) -> None:
        self._settings = settings

    async def __aenter__(self) -> RequestRecorder:
        """Raises InvalidArgumentError: the file cannot be written."""
        clock = SystemClock(trio.lowlevel.current_clock().current_time)
        log = self._log = RequestLog(self._settings, clock, secrets.token_bytes(32))
        try:
            await trio.to_thread.run_sync(log.begin)
        except OSError as error:
            raise InvalidArgumentError(f"cannot open request log '{self._settings.path}': {error.strerror}") from error
        self._tasks = AsyncExitStack()
        nursery = self._nursery = await self._tasks.enter_async_context(trio.open_nursery())
        nursery.start_soon(log.run)
        return log.recorder

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            with trio.CancelScope(shield=True):
                await self._log.close(_CLOSE_LIMIT_S)
        finally:
            self._nursery.cancel_scope.cancel()
            await self._tasks.aclose()
