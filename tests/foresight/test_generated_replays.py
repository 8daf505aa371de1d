"""`trireme replay` of generated text: tokens, the times to the first and between two, steps and memory."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from generating_profiles import steps_of, text, write_generating

from trireme.api.cli.main import main
from trireme.engine.logs.request_log import LoggedRequest, LoggedResult, RequestTraffic, write_request_log
from trireme.engine.profiles import HostPoint, TimeDistribution, Way


def write_log(path: Path, log: list[LoggedRequest]) -> str:
    path.write_text("".join(write_request_log(RequestTraffic(log))))
    return str(path)


def replayed(
    tmp_path: Path, log: list[LoggedRequest], capsys: pytest.CaptureFixture[str], *more: str
) -> tuple[int, str, str]:
    path = write_log(tmp_path / "log.jsonl", log)
    code = main(["replay", path, "--repository", str(tmp_path / "models"), "--plays", "1", *more])
    shown, error = capsys.readouterr()
    return code, shown, error


def texts_a_step(shown: str) -> float:
    return next(float(line.split()[3]) for line in shown.splitlines() if line.startswith("texts a step"))


def test_times_of_tokens_are_predicted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_generating(tmp_path / "models", steps_of(0.01), max_running=4, max_tokens_per_step=32)
    code, shown, _ = replayed(tmp_path, [text(0.0, 10, 5), text(1.0, 70, 3)], capsys, "--json")
    assert code == 0
    predicted = {name: each and each["value"] for name, each in json.loads(shown)["predicted"].items()}
    assert predicted["ttft_p50_s"] == pytest.approx((0.01 + 0.03) / 2), "the second prompt goes in three pieces"
    assert predicted["itl_p99_s"] == pytest.approx(0.01, rel=0.02)
    assert predicted["tokens"] == pytest.approx(8 / 1.05)
    assert predicted["step_tokens"] == pytest.approx((80 + 4 + 2) / 10)
    assert predicted["preempted"] == 0


def test_the_present_configuration_is_played(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its limits are no reason to profile again."""
    models = write_generating(tmp_path / "models", steps_of(0.01), max_running=4)
    log = [text(0.0, 10, 1), *(text(0.005, 10, 9) for _ in range(4))]
    assert texts_a_step(replayed(tmp_path, log, capsys)[1]) == 3.7
    before = models.foreseen("letters").stale
    config = tmp_path / "models" / "letters" / "config.pbtxt"
    config.write_text(config.read_text().replace('"4"', '"1"'))
    assert texts_a_step(replayed(tmp_path, log, capsys)[1]) == 1.0
    assert models.foreseen("letters").stale == before


def test_a_real_run_stands_beside(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_generating(tmp_path / "models", steps_of(0.01), max_running=4)
    log = [text(0.0, 10, 5), text(1.0, 20, 5)]
    result = LoggedResult(
        50_000.0, first_token_us=20_000.0, between_us="10000x4", step_pieces=5, step_share=5.0, step_tokens=3.0, kv=0.25
    )
    real = write_log(tmp_path / "real.jsonl", [replace(each, result=result) for each in log])
    _, shown, _ = replayed(tmp_path, log, capsys, "--measured", real)
    lines = {line[:16].strip(): line[16:].split() for line in shown.splitlines()}
    assert lines["first token p50"][3:] == ["20.000ms", "-50.0%"]
    assert lines["next token p50"][3] == "10.000ms"
    assert lines["memory in use"][3] == "25.000%"
    assert lines["texts a step"][3] == "1.000"
    assert lines["tokens"][3] == "9.524/s"


def test_what_tokens_cost_the_event_loop_counts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    outside = TimeDistribution.constant(0.001)
    host = (HostPoint(Way.HTTP, 128, 0, 0.0005, 0.0, outside, answer_s=0.002, held_up=0.5),)
    write_generating(tmp_path / "models", steps_of(0.01), host)
    _, shown, error = replayed(tmp_path, [text(0.0, 10, 11)], capsys, "--json", "--cores", "4")
    predicted = {name: each and each["value"] for name, each in json.loads(shown)["predicted"].items()}
    assert predicted["itl_p50_s"] == pytest.approx(0.011, rel=0.03)
    assert predicted["p50_s"] == pytest.approx(0.0005 + 0.001 + 0.01 + 10 * 0.011, rel=0.03)
    assert "cost nothing" not in error


def test_a_log_without_tokens_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_generating(tmp_path / "models", steps_of())
    code, _, error = replayed(tmp_path, [LoggedRequest(0.0, "letters")], capsys)
    assert code == 1
    assert "the log has no numbers of tokens for 'letters', which generates text" in error


def test_a_model_without_steps_in_its_profile_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    models = write_generating(tmp_path / "models", steps_of())
    profile = models.foreseen("letters").profile
    assert profile is not None
    models.store.write(models.directory("letters"), replace(profile, generation=None))
    code, _, error = replayed(tmp_path, [text(0.0, 10, 5)], capsys)
    assert code == 1
    assert "profile again" in error.lower()
