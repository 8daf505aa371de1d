"""`trireme replay`: from a log and profiles to what would come of it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from predicted_models import poisson
from some_profiles import ORIGIN, some_profile

from trireme.api.cli.main import main
from trireme.engine.logs.request_log import LoggedRequest, LoggedResult, RequestTraffic, write_request_log
from trireme.engine.profiles import HostPoint, ServicePoint, TimeDistribution, Way

TENSORS = "".join(f'{kind} {{ name: "{kind}" data_type: TYPE_FP32 dims: [ 4 ] }}\n' for kind in ("input", "output"))
LIMIT = "default_queue_policy { max_queue_size: 2 }"


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """One model whose batches take 10 ms, and its profile."""
    (tmp_path / "models" / "m" / "1").mkdir(parents=True)
    text = f'backend: "python"\nmax_batch_size: 4\n{TENSORS}instance_group {{ kind: KIND_CPU }}\n'
    (tmp_path / "models" / "m" / "config.pbtxt").write_text(f"{text}dynamic_batching {{ {LIMIT} }}\n")
    write_profile(tmp_path / "models")
    return tmp_path / "models"


def write_profile(repository: Path, files: str = "files", host: Sequence[HostPoint] = ()) -> None:
    config = {"name": "m", "backend": "python", "max_batch_size": 4}
    service = (ServicePoint(1, 1, 0.0, TimeDistribution.constant(0.01)),)
    profile = some_profile(service=service, config=config, origin=replace(ORIGIN, files=files), host=tuple(host))
    (repository / "m.profile.json").write_text(profile.to_json())


def write_log(path: Path, log: list[LoggedRequest]) -> str:
    path.write_text("".join(write_request_log(RequestTraffic(log))))
    return str(path)


def test_what_would_come_of_a_log_is_printed(
    repository: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = write_log(tmp_path / "log.jsonl", poisson(20.0, 200))
    assert main(["replay", log, "--repository", str(repository), "--plays", "2"]) == 0
    shown, error = capsys.readouterr()
    labels = [line.split()[0] for line in shown.splitlines()[1:7]]
    assert labels == ["p50", "p95", "p99", "mean", "throughput", "batch"]
    assert "200 requests, 198 answered well" in shown
    assert "instances of m busy: " in shown
    assert "the profile of 'm' is out of date: " in error
    assert "no profile knows what requests cost the server" in error


def test_refusals_are_counted_by_reason(repository: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All come at once: one is executed, two wait, and the others find the queue full."""
    log = write_log(tmp_path / "log.jsonl", [LoggedRequest(0.0, "m", rows=4) for _ in range(10)])
    assert main(["replay", log, "--repository", str(repository), "--plays", "1", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["refused"] == [{"queue_full": 7}]
    assert document["predicted"]["p50_s"]["value"] == pytest.approx(0.02)
    assert document["instances"][0]["m"] == pytest.approx(1.0)


def test_a_real_run_stands_beside(repository: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arrivals = poisson(20.0, 100)
    log = write_log(tmp_path / "log.jsonl", arrivals)
    result = LoggedResult(20_000.0, batch=1)
    real = write_log(tmp_path / "real.jsonl", [replace(each, result=result) for each in arrivals])
    words = ["replay", log, "--repository", str(repository), "--plays", "1", "--measured", real]
    assert main(words) == 0
    p50 = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("p50"))
    assert "20.000ms" in p50
    assert main([*words, "--json"]) == 0
    measured = json.loads(capsys.readouterr().out)["measured"]
    assert measured["p50_s"] == pytest.approx(0.02)
    assert measured["batch_rows"] == pytest.approx(1.0)
    assert measured["loop"] is None


OUTSIDE = TimeDistribution.constant(0.0)
ONE_PROCESS = HostPoint(Way.HTTP, 16, 0, 0.001, 0.0, OUTSIDE)
FRONT_END = replace(ONE_PROCESS, front_ends=1, front_request_s=0.004, front_turn_s=0.001)


def test_front_ends_are_played(repository: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Those that are asked for, or as many as the server has on so many cores."""
    write_profile(repository, host=(ONE_PROCESS, FRONT_END))
    log = write_log(tmp_path / "log.jsonl", poisson(1.0, 20))
    for words, p50_s, front_ends in (
        (("--cores", "3"), 0.011, None),
        (("--cores", "8"), 0.017, 20 * 0.006 / 2),
        (("--cores", "8", "--front-ends", "0"), 0.011, None),
        (("--cores", "3", "--front-ends", "1"), 0.017, 20 * 0.006),
    ):
        assert main(["replay", log, "--repository", str(repository), "--plays", "1", "--json", *words]) == 0
        found = json.loads(capsys.readouterr().out)["predicted"]
        assert found["p50_s"]["value"] == pytest.approx(p50_s)
        if front_ends is None:
            assert found["front_ends"] is None
        else:
            span_s = 20 / found["throughput"]["value"]
            assert found["front_ends"]["value"] * span_s == pytest.approx(front_ends)
    assert main(["replay", log, "--repository", str(repository), "--front-ends", "1"]) == 0
    assert any(line.startswith("front ends  ") for line in capsys.readouterr().out.splitlines())


def test_a_profile_from_before_tells_nothing_of_front_ends(
    repository: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Who asks for some is told so; who does not, gets a prediction without."""
    write_profile(repository, host=(ONE_PROCESS,))
    words = ["replay", write_log(tmp_path / "log.jsonl", poisson(1.0, 20)), "--repository", str(repository)]
    assert main([*words, "--front-ends", "1"]) == 1
    why = "the profile of 'm' does not tell what requests cost with front ends. Profile again"
    assert f"nothing can be predicted with --front-ends 1: {why}" in capsys.readouterr().err
    assert main([*words, "--cores", "8", "--json"]) == 0
    shown, error = capsys.readouterr()
    assert json.loads(shown)["predicted"]["p50_s"]["value"] == pytest.approx(0.011)
    assert f"predicted without front ends, of which a server with 8 cores has some: {why}" in error
    assert main([*words, "--cores", "8", "--front-ends", "0"]) == 0
    assert "front ends" not in capsys.readouterr().err


@pytest.mark.parametrize("wrong", ["-1", "257", "some"])
def test_a_number_of_front_ends_is_one_that_the_server_takes(wrong: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["replay", "log.jsonl", f"--front-ends={wrong}"])
    assert f"expected auto, or a number from 0 to 256, not '{wrong}'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("lines", "words", "text"),
    [
        ("", [], "no requests"),
        ("nonsense", [], "line 1"),
        ('{"offset_s":0,"model":"other"}', [], "there is no model 'other'"),
        ('{"offset_s":0,"model":"m"}', ["--plays", "0"], "--plays must be at least 1"),
        ('{"offset_s":0,"model":"m"}', ["--measured", "missing"], "'missing' cannot be read"),
    ],
)
def test_what_is_wrong_is_said(
    repository: Path, tmp_path: Path, lines: str, words: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "log.jsonl"
    log.write_text(lines)
    assert main(["replay", str(log), "--repository", str(repository), *words]) == 1
    assert text in capsys.readouterr().err


def test_a_run_without_results_is_no_measurement(
    repository: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = write_log(tmp_path / "log.jsonl", poisson(20.0, 10))
    assert main(["replay", log, "--repository", str(repository), "--measured", log]) == 1
    assert "has no results" in capsys.readouterr().err
