"""What a person at a terminal sees of `trireme serve`, and what everyone is told of models that do not load."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from trireme.api.cli.flag_table import FLAGS
from trireme.api.cli.flags import parse
from trireme.api.cli.start_view import start_view

CODES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@pytest.fixture
def broken(repository: Path) -> Path:
    """A repository with ``simple``, and one more that does not load."""
    (repository / "broken" / "1").mkdir(parents=True)
    (repository / "broken" / "config.pbtxt").write_text('backend: "onnxruntime"\nmax_batchsize: 4\n')
    return repository


class Terminal:
    """What a server writes to a terminal of its own."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._bytes = b""

    def read_until(self, text: str) -> str:
        """The screen up to there, without the codes of colours and cursors; to the end, if it ends before."""
        while text not in self.plain:
            try:
                self._bytes += os.read(self._descriptor, 65536)
            except OSError:  # the other side is closed
                break
        return self.plain

    @property
    def raw(self) -> str:
        return self._bytes.decode()

    @property
    def plain(self) -> str:
        return CODES.sub("", self.raw).replace("\r", "")


@contextmanager
def watched(start_serve: Callable, *words: str, **environment: str) -> Iterator[tuple[Terminal, subprocess.Popen]]:
    ours, theirs = os.openpty()
    try:
        serve = start_serve(*words, console=theirs, environment={**os.environ, "TERM": "xterm", **environment})
        os.close(theirs)
        yield Terminal(ours), serve.process
    finally:
        os.close(ours)


def test_a_person_sees_one_block_with_a_request_that_works(start_serve: Callable, repository: Path) -> None:
    with watched(start_serve, f"--model-repository={repository}") as (terminal, process):
        screen = terminal.read_until("Ctrl-C ends it.")
        assert re.search(
            r"HTTP +http://127\.0\.0\.1:\d+\n +gRPC +127\.0\.0\.1:\d+\n +Metrics +http://\S+/metrics\n"
            r" +Console +http://\S+/console  in a browser\n",
            screen,
        )
        assert re.search(r"  simple  version 1 +ready +\d+\.\d\d s\n", screen)
        assert not re.search(r"[IWE]\d{4} ", screen)
        assert "+----" not in screen
        assert "\x1b[32mready" in terminal.raw
        (command,) = re.findall(r"  (curl .*)", screen)
        words = shlex.split(command)
        if shutil.which("curl"):
            done = subprocess.run([*words, "-s"], capture_output=True, text=True, check=True)
            assert {each["name"] for each in json.loads(done.stdout)["outputs"]} == {"OUTPUT0", "OUTPUT1"}
        process.send_signal(signal.SIGTERM)
        assert process.wait() == 0
        assert re.search(r"\d\d:\d\d:\d\d successfully unloaded 'simple' version 1", terminal.read_until("no more"))


def test_colours_can_be_off(start_serve: Callable, repository: Path) -> None:
    with watched(start_serve, f"--model-repository={repository}", NO_COLOR="1") as (terminal, _):
        terminal.read_until("Ctrl-C ends it.")
        assert not re.search(r"\x1b\[3[0-9]m", terminal.raw.partition("is serving")[2])


def test_a_start_that_fails_tells_place_and_remedy_in_the_block(start_serve: Callable, broken: Path) -> None:
    with watched(start_serve, f"--model-repository={broken}") as (terminal, process):
        screen = re.sub(r"\s+", " ", terminal.read_until("file and line"))
        assert process.wait() == 1
    assert "broken failed" in screen
    assert "broken/config.pbtxt:2:1: there is no field 'max_batchsize' in ModelConfig" in screen
    assert "did you mean: max_batch_size?" in screen
    assert "error: creating server: Internal - failed to load all models to do: mend what" in screen


def test_without_a_terminal_the_log_has_a_line_more_for_each_problem(start_serve: Callable, broken: Path) -> None:
    serve = start_serve(f"--model-repository={broken}")
    assert serve.wait() == 1
    told = [
        line for line in (serve.stdout + serve.stderr).splitlines() if "config.pbtxt:2:1" in line and "to do" in line
    ]
    assert len(told) == 1
    assert re.match(
        r"I\d{4} [\d:.]+ \d+ start_view\.py:\d+\] \".*broken/config\.pbtxt:2:1: there is no field ", told[0]
    )
    assert "error: creating server: Internal - failed to load all models\n" in serve.stderr


@pytest.mark.parametrize("words", [["--log-format=default"], ["--log-file=x"], ["--log-verbose=1"]])
def test_triton_lines_are_there_for_who_asks(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    assert start_view(parse([], FLAGS), {}) is not None
    assert start_view(parse(words, FLAGS), {}) is None


def test_triton_lines_are_there_without_a_terminal() -> None:
    assert start_view(parse([], FLAGS), {}) is None
