"""What a model's process prints becomes lines of the log, whatever it prints and whoever goes on printing."""

from __future__ import annotations

import logging
import os
import subprocess

import pytest

from trireme.engine.backends.python.output import LONGEST_LINE_BYTES, OutputLog


def test_closing_ends_though_somebody_prints_for_ever(caplog: pytest.LogCaptureFixture) -> None:
    """A process that the model has started may outlive it."""
    reader, writer = os.pipe()
    with subprocess.Popen(["yes"], stdout=writer) as printer:
        os.close(writer)
        with caplog.at_level(logging.ERROR, "trireme.python"):
            log = OutputLog(reader, "m_0")
            log.read()
            log.close()
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(reader)
        printer.wait()  # nobody reads any more


def test_what_is_left_is_logged_in_pieces(caplog: pytest.LogCaptureFixture) -> None:
    reader, writer = os.pipe()
    os.write(writer, b"one\ntwo\n" + b"z" * (LONGEST_LINE_BYTES + 5))
    os.close(writer)
    with caplog.at_level(logging.INFO, "trireme.python"):
        OutputLog(reader, "m_0").close()
    said = [record.getMessage().removeprefix("[m_0] ") for record in caplog.records]
    assert said == ["one", "two", "z" * LONGEST_LINE_BYTES, "zzzzz"]
