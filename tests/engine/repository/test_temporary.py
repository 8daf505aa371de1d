"""Temporary folders: gone with their server, or, if that was killed, when the next one starts."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from trireme.engine.repository.temporary import LOCK, TemporaryFolder, remove_abandoned
from trireme.engine.repository.uploads import OverrideModel


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary files are, in this test."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


KILLED = """
import os, signal, sys, tempfile
from trireme.engine.repository.uploads import OverrideModel
tempfile.tempdir = sys.argv[1]
kept = OverrideModel("m", {"file:1/model.py": b"x"})
print(kept.directory, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_folders_of_a_killed_server_are_removed(place: Path) -> None:
    killed = subprocess.run([sys.executable, "-c", KILLED, str(place)], capture_output=True, text=True, check=False)
    (root,) = place.iterdir()
    assert Path(killed.stdout.strip()).is_relative_to(root)
    assert remove_abandoned() == [root]
    assert not root.exists()


def test_folders_of_a_server_that_runs_stay(place: Path) -> None:
    """This one's, or another one's: the lock is held either way."""
    model = OverrideModel("m", {"file:1/model.py": b"x"})
    assert remove_abandoned() == []
    assert (model.directory / "1" / "model.py").read_bytes() == b"x"
    model.dispose()
    assert list(place.iterdir()) == []
    model.dispose()


def test_a_folder_that_is_being_made_stays(place: Path) -> None:
    """It has no lock yet that anybody else could take."""
    (place / "trireme-model-abc").mkdir()
    (place / "trireme-model-abc" / f"{LOCK}.new").touch()
    assert remove_abandoned() == []


def test_what_only_looks_like_ours_stays(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = place / "precious"
    target.mkdir()
    (target / LOCK).touch()
    (place / "trireme-link").symlink_to(target)
    (place / "trireme-file").touch()
    (place / "trireme-of-link").mkdir()
    (place / "trireme-of-link" / LOCK).symlink_to(target / LOCK)
    (place / "other").mkdir()
    (place / "other" / LOCK).touch()
    assert remove_abandoned() == []
    foreign = place / "trireme-model-foreign"
    foreign.mkdir()
    (foreign / LOCK).touch()
    mine = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: mine + 1)
    assert remove_abandoned() == []
    monkeypatch.setattr(os, "geteuid", lambda: mine)
    assert remove_abandoned() == [foreign]


def test_a_folder_without_a_holder_goes(place: Path) -> None:
    folder = TemporaryFolder("environment")
    (folder.path / "bin").mkdir()
    del folder
    gc.collect()
    assert list(place.iterdir()) == []


def test_a_folder_that_cannot_be_made_leaves_nothing(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "rename", full)
    with pytest.raises(OSError, match="No space left"):
        TemporaryFolder("model")
    assert list(place.iterdir()) == []


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_only_a_folder_that_is_shared_can_be_entered_by_other_users(place: Path) -> None:
    """Models that run as another user read what came with their load request."""
    own = OverrideModel("own", {"file:1/model.py": b"x"})
    shared = OverrideModel("shared", {"file:1/model.py": b"x"}, shared=True)
    assert mode(own.directory.parents[1]) == 0o700
    root, contents = shared.directory.parents[1], shared.directory.parent
    assert root.parent == place
    assert (mode(root), mode(contents)) == (0o711, 0o755)
    own.dispose()
    shared.dispose()
