"""The server's log, line by line as Triton writes it (docs/reference/logs.md).

Everything logs through the standard library, under the logger `trireme`. Lines are made where they are logged and
written by a thread of their own, so that a console that does not keep up (a full pipe, a stopped terminal) cannot hold
up the event loop. What waits to be written is bounded; when it is full, lines are dropped, and their number is written
once there is room again.

Verbose level N shows what is logged at `verbose(N)` and below; `logger.debug` is level 1.

`logging_to` turns the log on and gives the `Log`, whose settings may be changed while it runs.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import queue
import re
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, NamedTuple, Protocol

from ..engine.errors import UnsupportedError

logger = logging.getLogger("trireme")
_exporters = logging.getLogger("opentelemetry")  # the library that exports spans

MAX_WAITING_LINES = 10_000
MAX_WAITING_CHARACTERS = 32 << 20
CLOSE_LIMIT_S = 2.0

FORMATS = ("default", "ISO8601", "json")

_LETTERS = {logging.WARNING: "W", logging.ERROR: "E", logging.CRITICAL: "E"}
_STDOUT, _STDERR = 1, 2

Write = Callable[[bytes], object]


@dataclass(frozen=True, slots=True)
class LogSettings:
    """What is logged, how, and where to: the ``--log-…`` flags.

    Attributes:
        verbose: level of verbose lines; 0 or less for none.
        format: one of `FORMATS`.
        file: where everything goes; empty for the console.
        escape: messages are quoted and escaped as JSON strings.
    """

    info: bool = True
    warning: bool = True
    error: bool = True
    verbose: int = 0
    format: str = "default"
    file: str = ""
    escape: bool = True


def verbose(level: int) -> int:
    """The logging level of verbose lines of `level` 1 to 9."""
    return logging.DEBUG + 1 - level


class LineFormatter(logging.Formatter):
    """Makes a record into a line, or several: see `log_table` and `log_bare`. What stands in its attribute `detail`
    follows the message, on lines of its own, as it is.
    """

    def __init__(self, settings: LogSettings) -> None:
        super().__init__()
        self._iso = settings.format == "ISO8601"
        self._escape = settings.escape

    def format(self, record: logging.LogRecord) -> str:
        message = record.getMessage()
        if getattr(record, "bare", False):
            return message
        preamble = self._preamble(record)
        if getattr(record, "table", False):
            return f"{preamble} \n{message}"
        if record.exc_info:
            message = f"{message}\n{self.formatException(record.exc_info)}"
        if self._escape:
            message = json.dumps(message, ensure_ascii=False)
        if detail := getattr(record, "detail", ""):
            message = f"{message}\n{detail}"
        return f"{preamble} {message}"

    def _preamble(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created, UTC)
        letter = _LETTERS.get(record.levelno, "I")
        where = f"{record.process} {record.filename}:{record.lineno}]"
        if self._iso:
            return f"{time:%Y-%m-%dT%H:%M:%SZ} {letter} {where}"
        return f"{letter}{time:%m%d %H:%M:%S.%f} {where}"


def _switches(settings: LogSettings) -> Callable[[logging.LogRecord], bool]:
    """``--log-info``, ``--log-warning`` and ``--log-error``. Verbose lines depend on the verbose level alone."""
    on = {
        logging.INFO: settings.info,
        logging.WARNING: settings.warning,
        logging.ERROR: settings.error,
        logging.CRITICAL: settings.error,
    }
    return lambda record: getattr(record, "bare", False) or on.get(record.levelno, True)


class LogStreams(NamedTuple):
    """Where lines of level INFO and verbose lines go, and where warnings and errors go: two, as a console has them."""

    ordinary: Write
    troubled: Write


class LineHandler(logging.Handler):
    """Puts lines into a queue of bounded length and size, which a thread empties.

    Attributes:
        log: where log lines go; may be replaced at any time.
        console: where bare lines go.
    """

    def __init__(self, log: LogStreams, console: LogStreams, max_waiting: int = MAX_WAITING_LINES) -> None:
        super().__init__()
        self.log = log
        self.console = console
        self._lines: queue.Queue[tuple[bool, bool, str, logging.LogRecord | None] | None] = queue.Queue(max_waiting)
        self._dropped = 0
        self._put_characters = 0  # written by the threads that log, under the handler's lock,
        self._taken_characters = 0  # and by the thread: no two write the same
        self._thread = threading.Thread(target=self._write_all, name="trireme log", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        bare = getattr(record, "bare", False)
        try:
            # What a model prints comes in pieces of many lines, with each of which a format may have work.
            line = record.getMessage() if bare else self.format(record)
        except (TypeError, ValueError):  # arguments that do not fit the message
            self.handleError(record)
            return
        try:
            size = len(line)
            if self._put_characters - self._taken_characters + size > MAX_WAITING_CHARACTERS:
                raise queue.Full
            if self._dropped:
                report = f"{self._dropped} log lines were dropped: they were not read fast enough"
                self._lines.put_nowait((False, True, report, None))
                self._put_characters += len(report)
                self._dropped = 0
            self._lines.put_nowait((bare, record.levelno >= logging.WARNING, line, record if bare else None))
            self._put_characters += size
        except queue.Full:
            self._dropped += line.count("\n") + 1

    def close(self) -> None:
        """Write what is waiting, for a limited time (the console may not be read), and end the thread."""
        with contextlib.suppress(queue.Full):
            self._lines.put(None, timeout=CLOSE_LIMIT_S)
            self._thread.join(CLOSE_LIMIT_S)
        super().close()

    def _write_all(self) -> None:
        while (waiting := self._lines.get()) is not None:
            bare, troubled, text, record = waiting
            self._taken_characters += len(text)
            if record is not None:
                text = self.format(record)
            streams = self.console if bare else self.log
            # A reader that went away, or a full disk, must not end logging: it may come back.
            with contextlib.suppress(OSError):
                (streams.troubled if troubled else streams.ordinary)(f"{text}\n".encode(errors="backslashreplace"))


class LogFacade(Protocol):
    """The log, as clients may see and change it; it may be another process's."""

    async def change_and_show(self, **changes: Any) -> LogSettings:
        """The settings, after a change (`Log.change`)."""
        ...


class PeopleFormatter(logging.Formatter, ABC):
    """Lines for a person who watches, in place of those of the format "default"."""

    @abstractmethod
    def shows(self, record: logging.LogRecord) -> bool:
        """Whether there is to be a line at all."""


class Log:
    """The running log, and what is set about it; where the log goes cannot be changed."""

    def __init__(self, settings: LogSettings, handler: LineHandler, people: PeopleFormatter | None = None) -> None:
        self.handler = handler
        self._people = people
        self._followers: list[Callable[[LogSettings], object]] = []
        self._apply(settings)

    def change(self, **changes: Any) -> None:
        """Set fields of `LogSettings` (all but ``file``) to new values, from the next line on."""
        self._apply(replace(self.settings, **changes))

    async def change_and_show(self, **changes: Any) -> LogSettings:
        """See `LogFacade`."""
        if changes:
            self.change(**changes)
        return self.settings

    def follow(self, hear: Callable[[LogSettings], object]) -> None:
        """Call a function with the settings: now, and whenever they have changed."""
        self._followers.append(hear)
        hear(self.settings)

    def _apply(self, settings: LogSettings) -> None:
        self.settings = settings
        people = self._people if settings.format == "default" else None
        formatter = JsonFormatter() if settings.format == "json" else LineFormatter(settings)
        self.handler.setFormatter(people or formatter)
        self.handler.filters[:] = [_switches(settings)] if people is None else [_switches(settings), people.shows]
        logger.setLevel(verbose(min(settings.verbose, 9)) if settings.verbose > 0 else logging.INFO)
        for hear in self._followers:
            hear(settings)


def log_file_refused() -> UnsupportedError:
    """Why a client cannot say where the log goes (docs/reference/logs.md#settings, docs/reference/grpc.md#settings)."""
    return UnsupportedError("log file location can not be updated through network protocol")


def log_unreachable() -> UnsupportedError:
    """Why a client of a server inside another program cannot ask about the log."""
    return UnsupportedError("the log belongs to the program that this server runs in, which settles what is logged")


def verbose_level(number: int) -> int:
    """The verbose level that a client asks for: the lower 32 bits, which stand for none if the highest is set."""
    level = number & 0xFFFF_FFFF
    return level if level < 1 << 31 else 0


@contextlib.contextmanager
def logging_to(settings: LogSettings, people: PeopleFormatter | None = None) -> Iterator[Log]:
    """Send the log where the settings say, for the length of a `with` block.

    Args:
        people: makes the lines, as long as their format is "default".

    Raises:
        OSError: the log file cannot be opened.
    """
    console = LogStreams(writer_to(_STDOUT), writer_to(_STDERR))
    with contextlib.ExitStack() as stack:
        streams = console
        if settings.file:
            descriptor = os.open(settings.file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            stack.callback(os.close, descriptor)
            streams = LogStreams(writer_to(descriptor), writer_to(descriptor))
        handler = LineHandler(streams, console)
        stack.callback(handler.close)
        for each in (logger, _exporters):
            stack.callback(_restore, each, handler, each.level, each.propagate)
            each.propagate = False
            each.addHandler(handler)
        yield Log(settings, handler, people)


def _restore(logger: logging.Logger, handler: logging.Handler, level: int, propagate: bool) -> None:
    logger.removeHandler(handler)
    logger.setLevel(level)
    logger.propagate = propagate


def writer_to(descriptor: int) -> Write:
    """Writes bytes to a file descriptor, all of them.

    Not through `sys.stdout`: a thread that is stuck in there keeps the interpreter from exiting.
    """

    def write(line: bytes) -> None:
        while line:
            line = line[os.write(descriptor, line) :]

    return write


def log_table(table: str, level: int = logging.INFO) -> None:
    """Log a table of several lines, the last of which ends with a line break."""
    logger.log(level, "%s", table, extra={"table": True}, stacklevel=2)


def log_bare(line: str, level: int = logging.INFO) -> None:
    """Write a line without preamble on the console, whatever the switches are and wherever the log goes."""
    logger.log(level, "%s", line, extra={"bare": True})


def escape_wanted(environment: Mapping[str, str]) -> bool:
    """Whether the environment leaves messages to be escaped (``TRITON_SERVER_ESCAPE_LOG_MESSAGES``)."""
    return environment.get("TRITON_SERVER_ESCAPE_LOG_MESSAGES") != "0"


_REQUEST = re.compile(r"\[request id: ([^\]]*)\] ")
"""How messages about a request begin; an error that is logged brings it along."""

_LEVELS = {logging.INFO: "info", logging.WARNING: "warning", logging.ERROR: "error", logging.CRITICAL: "error"}


class JsonFormatter(logging.Formatter):
    """Makes a record into a JSON object."""

    def format(self, record: logging.LogRecord) -> str:
        message = record.getMessage()
        if getattr(record, "bare", False) and "\n" in message:  # lines that a model has printed
            return "\n".join([self._format(record, line) for line in message.split("\n")])
        return self._format(record, message)

    def _format(self, record: logging.LogRecord, message: str) -> str:
        found = _REQUEST.search(message)
        request_id = getattr(record, "request_id", "") or (found[1] if found else "")
        fields: dict[str, object] = {
            "time": f"{datetime.fromtimestamp(record.created, UTC):%Y-%m-%dT%H:%M:%S.%fZ}",
            "level": _LEVELS.get(record.levelno, "verbose"),
            "logger": record.name,
            "message": message.rstrip("\n"),
        }
        if detail := getattr(record, "detail", ""):
            fields["detail"] = detail
        if model := getattr(record, "model", ""):
            fields["model"] = model
        if request_id:
            fields["request_id"] = request_id
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        fields |= {"file": record.filename, "line": record.lineno, "pid": record.process}
        return json.dumps(fields, ensure_ascii=False, separators=(",", ":"))
