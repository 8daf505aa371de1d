"""Files that lines are appended to."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from trireme.engine.logs.rotation import append_lines, rotate


def test_files_are_rotated_and_private(tmp_path: Path) -> None:
    path = tmp_path / "audit"
    for number in range(6):
        append_lines(str(path), b"%d\n" % number * 2, max_bytes=4, kept=2)
    assert {each.name: each.read_bytes() for each in tmp_path.iterdir()} == {
        "audit": b"5\n5\n",
        "audit.1": b"4\n4\n",
        "audit.2": b"3\n3\n",
    }
    append_lines(str(tmp_path / "large"), b"123456", max_bytes=4, kept=2)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert not (tmp_path / "large.1").exists()


def test_each_file_has_a_head(tmp_path: Path) -> None:
    path = tmp_path / "log"
    for number in range(3):
        append_lines(str(path), b"%d\n" % number, max_bytes=6, kept=1, head=b"h\n")
    assert path.read_bytes() == b"h\n2\n"
    assert (tmp_path / "log.1").read_bytes() == b"h\n0\n1\n"


def test_no_file_is_kept_if_none_is_wanted(tmp_path: Path) -> None:
    path = tmp_path / "log"
    for number in range(3):
        append_lines(str(path), b"%d\n" % number, max_bytes=2, kept=0)
    assert path.read_bytes() == b"2\n"
    assert os.listdir(tmp_path) == ["log"]


def test_only_files_are_renamed(tmp_path: Path) -> None:
    """Not a device, and nothing that is empty."""
    rotate(os.devnull, 2)
    (tmp_path / "log").touch()
    rotate(str(tmp_path / "log"), 2)
    rotate(str(tmp_path / "none"), 2)
    assert os.listdir(tmp_path) == ["log"]
    assert stat.S_ISCHR(os.stat(os.devnull).st_mode)


def test_what_is_written_in_part_is_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "log"
    append_lines(str(path), b"one\n", max_bytes=99, kept=1)
    write, writes = os.write, [0]

    def write_half(descriptor: int, data: bytes) -> int:
        writes[0] += 1
        if writes[0] > 1:
            raise OSError(28, "No space left on device")
        return write(descriptor, data[: len(data) // 2])

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", write_half)
        with pytest.raises(OSError, match="No space left"):
            append_lines(str(path), b"two and more\n", max_bytes=99, kept=1)
    append_lines(str(path), b"three\n", max_bytes=99, kept=1)
    assert path.read_bytes() == b"one\nthree\n"
