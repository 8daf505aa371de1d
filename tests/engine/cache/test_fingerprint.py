"""What tells loads of models apart in a cache that servers share."""

from __future__ import annotations

from pathlib import Path

from trireme.engine.backends.interface import ModelFiles
from trireme.engine.cache.entry import fingerprint
from trireme.engine.config.model import ModelConfig


def test_names_of_files_count_whatever_they_are(tmp_path: Path) -> None:
    """Also names that are no text."""
    found: set[str] = set()
    for name in ("a", "b", "\udcff", "\udcfe"):
        directory = tmp_path / name / "1"
        directory.mkdir(parents=True)
        (directory / name).write_bytes(b"same")
        found.add(fingerprint(ModelConfig("m"), ModelFiles(tmp_path / name, 1), []))
    assert len(found) == 4
