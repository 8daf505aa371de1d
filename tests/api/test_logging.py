"""Log lines are Triton's (docs/reference/logs.md), and writing them holds up no thread."""

from __future__ import annotations

import json
import logging
import os
import re
import threading
from pathlib import Path
from typing import Any

import pytest

from trireme.api import logging as api_logging
from trireme.api.logging import (
    LineHandler,
    LogSettings,
    LogStreams,
    escape_wanted,
    log_bare,
    log_table,
    logging_to,
    verbose,
    verbose_level,
)
from trireme.engine.logs.request_lines import about

_DEFAULT = r"([IWE])(\d{4}) (\d\d:\d\d:\d\d\.\d{6}) (\d+) ([\w.]+\.py):(\d+)\] (.*)"
_ISO = r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ) ([IWE]) (\d+) ([\w.]+\.py):(\d+)\] (.*)"

logger = logging.getLogger("trireme.test")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log"


def lines_of(path: Path) -> list[str]:
    return path.read_text().splitlines()


def test_a_line_tells_level_time_process_and_place(path: Path) -> None:
    with logging_to(LogSettings(file=str(path))):
        logger.info("loading: %s:%d", "m", 1)
        logger.warning("careful")
        logger.error("broken")
    found = [re.fullmatch(_DEFAULT, line) for line in lines_of(path)]
    assert all(found), lines_of(path)
    assert [match[1] for match in found if match] == ["I", "W", "E"]
    assert [match[7] for match in found if match] == ['"loading: m:1"', '"careful"', '"broken"']
    assert {match[4] for match in found if match} == {str(os.getpid())}
    assert {match[5] for match in found if match} == {"test_logging.py"}


def test_time_is_utc(path: Path) -> None:
    record = logging.LogRecord("trireme", logging.INFO, "/x/server.py", 674, "message", None, None)
    record.created = 1_000_000_000.25
    with logging_to(LogSettings(file=str(path))) as log:
        log.handler.emit(record)
    with logging_to(LogSettings(file=str(path), format="ISO8601")) as log:
        log.handler.emit(record)
    assert lines_of(path) == [
        f'I0909 01:46:40.250000 {os.getpid()} server.py:674] "message"',
        f'2001-09-09T01:46:40Z I {os.getpid()} server.py:674] "message"',
    ]


def test_iso_lines(path: Path) -> None:
    with logging_to(LogSettings(file=str(path), format="ISO8601")):
        logger.error("x")
    assert re.fullmatch(_ISO, path.read_text().rstrip("\n"))


def objects_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in lines_of(path)]


def test_json_lines_tell_the_same_and_what_they_are_about(path: Path) -> None:
    with logging_to(LogSettings(file=str(path), format="json", verbose=1)):
        logger.info("loading: %s", 'm"\n', extra=about("m", "r"))
        logger.debug("v")
        logger.warning("[request id: é 7] careful")
        logger.error("e")
    first, *rest = objects_of(path)
    assert list(first) == ["time", "level", "logger", "message", "model", "request_id", "file", "line", "pid"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", first["time"])
    assert (first["level"], first["logger"], first["message"]) == ("info", "trireme.test", 'loading: m"\n'.rstrip())
    assert (first["model"], first["request_id"]) == ("m", "r")
    assert (first["file"], type(first["line"]), first["pid"]) == ("test_logging.py", int, os.getpid())
    assert [line["level"] for line in rest] == ["verbose", "warning", "error"]
    assert [line.get("request_id") for line in rest] == [None, "é 7", None]
    assert [line.get("model") for line in rest] == [None] * 3


def test_whatever_is_logged_is_one_json_line(path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Tables, exceptions, lines that have no preamble elsewhere, text that is not Unicode."""
    with logging_to(LogSettings(file=str(path), format="json")):
        log_table("+--+\n|  |\n+--+\n")
        try:
            raise ValueError("odd")
        except ValueError:
            logger.exception("failed")
        logger.info("a\udcffb")
        log_bare("Signal (15) received.")
    table, failure, odd = objects_of(path)
    assert table["message"] == "+--+\n|  |\n+--+"
    assert failure["message"] == "failed"
    assert failure["exception"].startswith("Traceback")
    assert odd["message"] == "a\udcffb"
    assert json.loads(capfd.readouterr().out)["message"] == "Signal (15) received."


def test_the_format_changes_from_the_next_line_on(path: Path) -> None:
    with logging_to(LogSettings(file=str(path))) as log:
        logger.info("a")
        log.change(format="json")
        logger.info("b")
    first, second = lines_of(path)
    assert first.endswith('"a"')
    assert json.loads(second)["message"] == "b"


def test_the_library_that_exports_spans_logs_here_too(path: Path) -> None:
    library = logging.getLogger("opentelemetry.exporter")
    with logging_to(LogSettings(file=str(path))):
        library.error("not there")
    library.error("unheard")
    assert [line.rpartition("] ")[2] for line in lines_of(path)] == ['"not there"']


def test_messages_are_escaped_so_that_a_line_stays_a_line(path: Path) -> None:
    with logging_to(LogSettings(file=str(path))):
        logger.info('say "é"\n\tthen')
    (line,) = lines_of(path)
    assert line.endswith(r'] "say \"é\"\n\tthen"')


def test_escaping_can_be_switched_off(path: Path) -> None:
    assert escape_wanted({})
    assert escape_wanted({"TRITON_SERVER_ESCAPE_LOG_MESSAGES": "1"})
    assert not escape_wanted({"TRITON_SERVER_ESCAPE_LOG_MESSAGES": "0"})
    with logging_to(LogSettings(file=str(path), escape=False)):
        logger.info('say "é"')
    assert path.read_text().endswith('] say "é"\n')


def test_an_exception_is_told_with_its_traceback_in_the_same_line(path: Path) -> None:
    with logging_to(LogSettings(file=str(path))):
        try:
            raise ValueError("odd")
        except ValueError:
            logger.exception("failed")
    (line,) = lines_of(path)
    assert '"failed\\nTraceback (most recent call last):\\n' in line
    assert line.endswith('ValueError: odd"')


def test_text_that_is_not_unicode_does_not_stop_the_log(path: Path) -> None:
    with logging_to(LogSettings(file=str(path))):
        logger.info("a\udcffb")
        logger.info("next")
    assert [line.rpartition("] ")[2] for line in lines_of(path)] == ['"a\\udcffb"', '"next"']


@pytest.mark.parametrize(
    ("settings", "letters"),
    [
        ({}, "IWE"),
        ({"info": False}, "WE"),
        ({"warning": False}, "IE"),
        ({"error": False}, "IW"),
        ({"info": False, "warning": False, "error": False}, ""),
        ({"verbose": 1}, "IIWE"),
        ({"verbose": 2}, "IIIWE"),
        ({"verbose": 100, "info": False}, "IIIWE"),
    ],
)
def test_switches(path: Path, settings: dict[str, int], letters: str) -> None:
    with logging_to(LogSettings(**settings, file=str(path))):  # type: ignore[arg-type]
        logger.log(verbose(9), "level 9")
        logger.log(verbose(2), "level 2")
        logger.debug("level 1")
        logger.info("info")
        logger.warning("warning")
        logger.error("error")
    written = "".join(line[0] for line in lines_of(path))
    assert written == letters


def test_a_table_follows_its_preamble_unescaped_and_an_empty_line_follows_it(path: Path) -> None:
    with logging_to(LogSettings(file=str(path))):
        log_table('+---+\n| " |\n+---+\n')
    first, *rest = path.read_text().split("\n")
    assert re.fullmatch(r"I\d{4} [\d:.]+ \d+ test_logging\.py:\d+\] ", first)
    assert rest == ["+---+", '| " |', "+---+", "", ""]


def test_the_console_gets_information_on_stdout_and_trouble_on_stderr(capfd: pytest.CaptureFixture[str]) -> None:
    with logging_to(LogSettings(verbose=1)):
        logger.info("i")
        logger.debug("v")
        logger.warning("w")
        logger.error("e")
    out, err = capfd.readouterr()
    assert [line.rpartition("] ")[2] for line in out.splitlines()] == ['"i"', '"v"']
    assert [line.rpartition("] ")[2] for line in err.splitlines()] == ['"w"', '"e"']


def test_bare_lines_go_to_the_console_whatever_the_settings(path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with logging_to(LogSettings(info=False, error=False, file=str(path))):
        log_bare("Signal (15) received.")
        log_bare("error: x", logging.ERROR)
    assert capfd.readouterr() == ("Signal (15) received.\n", "error: x\n")
    assert path.read_text() == ""


def test_a_log_file_is_appended_to(path: Path) -> None:
    path.write_text("before\n")
    with logging_to(LogSettings(file=str(path))):
        logger.info("after")
    assert len(lines_of(path)) == 2


def test_a_log_file_that_cannot_be_opened_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"), logging_to(LogSettings(file=str(tmp_path / "no" / "log"))):
        pass


def test_everything_logged_is_written_before_the_block_ends_and_nothing_after_it(path: Path) -> None:
    with logging_to(LogSettings(file=str(path))):
        for number in range(1000):
            logger.info("%d", number)
    logger.info("late")
    assert [line.rpartition("] ")[2] for line in lines_of(path)] == [f'"{number}"' for number in range(1000)]


def test_a_reader_that_does_not_read_holds_up_no_thread_and_is_told_what_it_missed() -> None:
    writing, resume = threading.Event(), threading.Event()
    written: list[bytes] = []

    def write(line: bytes) -> None:
        writing.set()
        resume.wait(10)
        written.append(line)

    handler = LineHandler(LogStreams(write, write), LogStreams(write, write), max_waiting=5)
    handler.setFormatter(logging.Formatter("%(message)s"))

    def log(message: str) -> None:
        handler.handle(logging.LogRecord("trireme", logging.INFO, "x.py", 1, message, None, None))

    log("0")
    assert writing.wait(10)
    for number in range(1, 100):
        log(str(number))
    resume.set()
    while len(written) < 5:
        resume.wait(0)
    log("last")
    handler.close()
    numbers = [int(line) for line in written if line.strip().isdigit()]
    assert numbers == list(range(len(numbers)))
    assert len(numbers) == 6, "one that is being written, and the queue's"
    assert written[-2:] == [
        b"%d log lines were dropped: they were not read fast enough\n" % (100 - len(numbers)),
        b"last\n",
    ]


def test_a_reader_that_went_away_does_not_end_logging() -> None:
    written: list[bytes] = []

    def write(line: bytes) -> None:
        if not written:
            written.append(b"")
            raise BrokenPipeError
        written.append(line)

    handler = LineHandler(LogStreams(write, write), LogStreams(write, write))
    handler.setFormatter(logging.Formatter("%(message)s"))
    for message in ("lost", "found"):
        handler.handle(logging.LogRecord("trireme", logging.INFO, "x.py", 1, message, None, None))
    handler.close()
    assert written == [b"", b"found\n"]


# What is changed while it runs.


def test_a_change_shows_from_the_next_line_on(path: Path) -> None:
    with logging_to(LogSettings(file=str(path))) as log:
        logger.debug("v1")
        logger.info("i1")
        log.change(info=False, verbose=1)
        logger.debug("v2")
        logger.info("i2")
        logger.warning("w2")
        log.change(info=True, warning=False, error=False, verbose=0)
        logger.debug("v3")
        logger.info("i3")
        logger.warning("w3")
        logger.error("e3")
    assert re.findall(r'"(..)"$', path.read_text(), re.MULTILINE) == ["i1", "v2", "w2", "i3"]
    assert log.settings == LogSettings(warning=False, error=False, file=str(path))


def test_the_format_can_change(path: Path) -> None:
    with logging_to(LogSettings(file=str(path))) as log:
        logger.info("a")
        log.change(format="ISO8601")
        logger.info("b")
        log.change(format="default")
        logger.info("c")
    first, second, third = lines_of(path)
    assert re.fullmatch(_DEFAULT, first)
    assert re.fullmatch(_ISO, second)
    assert re.fullmatch(_DEFAULT, third)


def test_a_change_reaches_every_logger_of_the_house_and_ends_with_the_block(path: Path) -> None:
    below = logging.getLogger("trireme.some.part")
    before = logger.getEffectiveLevel()
    with logging_to(LogSettings(file=str(path))) as log:
        assert not below.isEnabledFor(logging.DEBUG)
        log.change(verbose=4)
        assert below.isEnabledFor(verbose(4))
        assert not below.isEnabledFor(verbose(5))
        below.log(verbose(4), "deep")
    assert lines_of(path)[0].endswith('"deep"')
    assert logger.getEffectiveLevel() == before


@pytest.mark.parametrize(
    ("number", "level"),
    [(0, 0), (9, 9), (2**31 - 1, 2**31 - 1), (2**31, 0), (2**32 - 1, 0), (2**32, 0), (2**32 + 2, 2)],
)
def test_a_verbose_level_is_read_as_triton_does(number: int, level: int) -> None:
    assert verbose_level(number) == level


PRINTED = {"bare": True, "model": "m_0"}


def test_what_a_model_prints_stands_on_the_console_as_it_is(path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Whatever the settings, wherever the log goes, and each stream to its own."""
    with logging_to(LogSettings(file=str(path), info=False)):
        logging.getLogger("trireme.python").info('one "line"\n\nand 100%% another', extra=PRINTED)
        logging.getLogger("trireme.python").warning("complained", extra=PRINTED)
    assert capfd.readouterr() == ('one "line"\n\nand 100%% another\n', "complained\n")
    assert path.read_text() == ""


def test_in_a_json_log_each_line_that_a_model_prints_is_an_object(capfd: pytest.CaptureFixture[str]) -> None:
    with logging_to(LogSettings(format="json")):
        logging.getLogger("trireme.python").info("one\ntwo", extra=PRINTED)
    lines = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert [(line["message"], line["model"]) for line in lines] == [("one", "m_0"), ("two", "m_0")]


def test_what_waits_to_be_written_is_bounded_in_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines that are not read, of which each is long."""
    monkeypatch.setattr(api_logging, "MAX_WAITING_CHARACTERS", 1000)
    reads, written = threading.Event(), []

    def write(line: bytes) -> None:
        reads.wait()
        written.append(line)

    handler = LineHandler(LogStreams(write, write), LogStreams(write, write))
    handler.setFormatter(logging.Formatter())
    record = logging.makeLogRecord({"msg": "x" * 400, "levelno": logging.INFO})
    for _ in range(10):
        handler.handle(record)
    reads.set()
    handler.close()
    assert 2 <= len(written) <= 3  # the thread may have taken one before the others came
