"""What a model's process prints is passed on as it is, whatever it prints, and whichever process goes on printing."""

from __future__ import annotations

import logging
import os
import subprocess

import pytest

from trireme.python_backend.launching import BURST_S, BYTES_PER_S, LINES_PER_S, LONGEST_LINE, OutputLog, Pace


def messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records]


def test_closing_ends_though_a_process_prints_for_ever(caplog: pytest.LogCaptureFixture) -> None:
    """A process that the model has started may outlive it."""
    reader, writer = os.pipe()
    with subprocess.Popen(["yes"], stdout=writer) as printer:
        os.close(writer)
        with caplog.at_level(logging.ERROR, "trireme.python"):
            log = OutputLog(reader, "m_0", Pace())
            log.read(0.0)
            log.close()
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(reader)
        printer.wait()  # its output is not read any more


def test_what_is_left_is_passed_on_and_only_a_very_long_line_is_broken(caplog: pytest.LogCaptureFixture) -> None:
    reader, writer = os.pipe()
    os.write(writer, b"one\n\ntwo\n")
    with caplog.at_level(logging.INFO, "trireme.python"):
        log = OutputLog(reader, "m_0", Pace())
        log.read(0.0)
        os.write(writer, "ä".encode() * (LONGEST_LINE // 2))
        log.read(0.0)
        os.write(writer, b"y" * (LONGEST_LINE // 2) + b"zzz")
        os.close(writer)
        log.close()
    assert messages(caplog) == ["one\n\ntwo", "ä" * (LONGEST_LINE // 2) + "y" * (LONGEST_LINE // 2), "zzz"]


def test_no_character_is_cut_where_a_line_is_broken(caplog: pytest.LogCaptureFixture) -> None:
    reader, writer = os.pipe()
    with caplog.at_level(logging.INFO, "trireme.python"):
        log = OutputLog(reader, "m_0", Pace())
        os.write(writer, b"x" * (LONGEST_LINE - 1) + b"\xc3")
        log.read(0.0)
        os.write(writer, b"\xa4.")
        os.close(writer)
        log.close()
    assert messages(caplog) == ["x" * (LONGEST_LINE - 1) + "ä", "."]


def test_a_piece_of_many_lines_is_one_record(caplog: pytest.LogCaptureFixture) -> None:
    """So that a model that prints nothing but line breaks costs the loop no more than one that prints text."""
    reader, writer = os.pipe()
    os.write(writer, b"\n" * 60_000)
    with caplog.at_level(logging.INFO, "trireme.python"):
        log = OutputLog(reader, "m_0", Pace())
        assert log.read(0.0) == pytest.approx(12_000 / LINES_PER_S + 60_000 / BYTES_PER_S - BURST_S)
    assert len(caplog.records) == 1
    os.close(writer)
    log.close()


def test_a_pace_lets_a_burst_through_and_then_as_much_as_time_has_passed() -> None:
    pace = Pace()
    burst = int(BURST_S * BYTES_PER_S)
    assert pace.spend(burst, 0, 100.0) == 0
    assert pace.spend(BYTES_PER_S // 2, 0, 100.0) == pytest.approx(0.5)
    assert pace.spend(0, 0, 100.5) == pytest.approx(0)
    assert pace.spend(0, LINES_PER_S, 100.5) == pytest.approx(1)
    assert pace.spend(1, 0, 200.0) == 0
