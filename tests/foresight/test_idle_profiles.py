"""Profiles that are measured on a server that serves."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from serve_process import ServeProcess, serve_process

from trireme.api.cli.main import main
from trireme.engine.profiles import read_profile
from trireme.foresight import idle_profiles

REPOSITORY = Path(__file__).parents[2] / "model_repository"
QUICKLY = ("--error", "90", "--most-secs", "20")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServeProcess]:
    repository = tmp_path_factory.mktemp("models")
    for name in ("digits", "simple_sequence"):
        shutil.copytree(REPOSITORY / name, repository / name)
    with serve_process(repository) as server:
        yield server


def profile(server: ServeProcess, name: str, *words: str) -> int:
    url = f"http://127.0.0.1:{server.http_port}"
    return main(["profile", name, "--repository", str(server.repository), "--url", url, *QUICKLY, *words])


@pytest.mark.slow
def test_an_idle_server_is_measured(server: ServeProcess) -> None:
    """Its own statistics tell how long each batch took."""
    assert profile(server, "digits", "--sizes", "1,8") == 0
    made = read_profile((server.repository / "digits.profile.json").read_text(), "it")
    assert [(point.rows, point.side_by_side) for point in made.service] == [(1, 1), (8, 1)]
    assert all(0 < point.time.mean_s < 1 for point in made.service)
    assert all(point.time.count >= idle_profiles.LEAST_SAMPLES for point in made.service)
    (record,) = server.ask("GET", "/v2/models/digits/stats")[1]["model_stats"]
    assert {each["batch_size"] for each in record["batch_stats"]} == {1, 8}


def test_a_server_that_is_never_idle_is_left_alone(
    server: ServeProcess, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is asked of it: whenever it is looked at, something else has been executed."""
    counts = iter(range(1_000_000))
    asked: list[int] = []

    def look(_self: idle_profiles.IdleMeasurement) -> idle_profiles._Look:
        return idle_profiles._Look(next(counts), (0, 0, 0))

    monkeypatch.setattr(idle_profiles.IdleMeasurement, "_look", look)
    monkeypatch.setattr(idle_profiles.IdleMeasurement, "_ask", lambda _self, rows: asked.append(rows))
    assert profile(server, "digits", "--sizes", "1", "--most-secs", "0.3") == 1
    assert asked == []
    assert "the server was busy" in capsys.readouterr().err


def test_what_cannot_be_measured_so_is_said(server: ServeProcess, capsys: pytest.CaptureFixture[str]) -> None:
    assert profile(server, "simple_sequence") == 1
    assert "'simple_sequence' is stateful or decoupled: profile it without --url" in capsys.readouterr().err
    assert main(["profile", "digits", "--repository", str(server.repository), "--url", "http://127.0.0.1:1"]) == 1
    assert "no server answers at http://127.0.0.1:1" in capsys.readouterr().err
