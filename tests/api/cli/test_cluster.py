"""`trireme cluster`: what it says to people. What it does on a cluster: `tests/cluster/test_on_ray.py`."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from trireme.api.cli.main import main

FLEET = '[cluster]\nmodel-repository = ["models"]\n'


def test_a_faulty_file_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "fleet.toml"
    path.write_text(f"{FLEET}[replicas]\nleast = 3\nmost = 2\n")
    assert main(["cluster", "up", str(path)]) == 1
    assert f"{path}:4: replicas.least: found 3, expected no more than most, which is 2" in capsys.readouterr().err
    assert main(["cluster", "up", str(tmp_path)]) == 1
    assert f"cannot read {tmp_path}: Is a directory" in capsys.readouterr().err


def test_where_there_is_no_file_it_says_what_to_write(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "none.toml"
    assert main(["cluster", "up", str(path)]) == 1
    told, remedy = capsys.readouterr().err.splitlines()
    assert told == f"trireme cluster: there is no file {path}"
    assert 'model-repository = ["models"]' in remedy


@pytest.mark.skipif(importlib.util.find_spec("ray") is not None, reason="Ray is installed here")
@pytest.mark.parametrize("words", [["status"], ["down", "demo"]])
def test_without_ray_it_says_what_to_install(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cluster", *words]) == 1
    assert capsys.readouterr().err == ("trireme cluster: 'ray' is not installed; pip install 'trireme-server[ray]'\n")
