"""What a person at a terminal sees while models load."""

from __future__ import annotations

import io
import os
import re
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console
from rich.progress import Progress, TextColumn

from trireme.api.cli.tables import LoadBoard, load_display
from trireme.api.logging import LogSettings, logging_to


def shown(progress: Progress) -> list[str]:
    return [task.description for task in progress.tasks]


def test_a_line_for_each_version_that_is_loading_under_one_that_counts() -> None:
    with Progress(TextColumn("{task.description}"), console=Console(file=io.StringIO())) as progress:
        board = LoadBoard(progress)
        assert shown(progress) == ["looking for models"]
        board.update("a", 1, "LOADING")
        board.update("b", 3, "LOADING")
        assert shown(progress) == ["loading models: 0 ready, 2 loading", "  a, version 1", "  b, version 3"]
        board.update("a", 1, "READY")
        assert shown(progress) == ["loading models: 1 ready, 1 loading", "  b, version 3"]
        board.update("b", 3, "UNAVAILABLE")
        assert shown(progress) == ["loading models: 1 ready, 0 loading, 1 failed"]


def test_unloading_again_is_not_counted() -> None:
    with Progress(TextColumn("{task.description}"), console=Console(file=io.StringIO())) as progress:
        board = LoadBoard(progress)
        for state in ("LOADING", "READY", "UNLOADING", "UNAVAILABLE"):
            board.update("a", 1, state)
        assert shown(progress) == ["loading models: 1 ready, 0 loading"]


def test_nothing_is_shown_where_there_is_no_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    with logging_to(LogSettings()) as log:
        handler = log.handler
        before = handler.log
        with load_display(handler) as on_load:
            on_load("a", 1, "LOADING")
            assert handler.log is before
    assert capfd.readouterr() == ("", "")


def test_without_rich_a_terminal_shows_the_log_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rich", None)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    with logging_to(LogSettings()) as log:
        before = log.handler.log
        with load_display(log.handler) as on_load:
            on_load("a", 1, "LOADING")
            assert log.handler.log is before


def test_at_a_terminal_the_display_comes_and_goes_and_the_log_stays_whole(
    start_serve: Callable, repository: Path
) -> None:
    """Both go to one terminal: every log line is there, whole, on a line of its own, and the cursor is back."""
    ours, theirs = os.openpty()
    try:
        serve = start_serve(f"--model-repository={repository}", "--log-format=default", console=theirs)
        os.close(theirs)
        screen = b""
        while b"Started Metrics Service" not in screen:
            screen += os.read(ours, 65536)
        serve.signal(signal.SIGTERM)
        assert serve.process.wait() == 0
    finally:
        os.close(ours)
    text = screen.decode()
    assert "loading models: 0 ready, 1 loading" in text
    assert re.search(r"(^|\r|\x1b\[2K)I\d{4} [\d:.]+ \d+ \w+\.py:\d+\] \"loading: simple:1\"\r\n", text)
    assert text.rindex("\x1b[?25h") < text.index("Started HTTPService")
    assert text.count("\x1b[?25h") == text.count("\x1b[?25l")


def test_at_a_terminal_a_failed_load_is_counted_and_its_reason_stays(start_serve: Callable, repository: Path) -> None:
    shutil.copytree(repository / "simple", repository / "broken")
    (repository / "broken" / "config.pbtxt").unlink()
    (repository / "broken" / "1" / "model.onnx").write_bytes(b"no model")
    words = ("--exit-on-error=false", "--log-format=default")
    ours, theirs = os.openpty()
    try:
        serve = start_serve(f"--model-repository={repository}", *words, console=theirs)
        os.close(theirs)
        screen = b""
        while b"Started Metrics Service" not in screen:
            screen += os.read(ours, 65536)
        serve.signal(signal.SIGTERM)
        assert serve.process.wait() == 0
    finally:
        os.close(ours)
    text = screen.decode()
    assert "loading models: 1 ready, 0 loading, 1 failed" in text
    assert re.search(r"\"failed to load 'broken' version 1: [^\"]+\"\r\n", text)
    assert text.count("\x1b[?25h") == text.count("\x1b[?25l")
