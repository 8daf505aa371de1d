"""`trireme plan` and `trireme explain` for models that generate text."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from generating_profiles import steps_of, text, write_generating

from trireme.api.cli.main import main
from trireme.engine.config.model import ModelConfig
from trireme.engine.errors import InvalidArgumentError
from trireme.engine.logs.request_log import LoggedRequest, LoggedResult, RequestTraffic, write_request_log
from trireme.engine.options import ServerOptions
from trireme.foresight.models import ForeseenModels
from trireme.foresight.search.objective import Aim, Measure, read_objective
from trireme.foresight.search.settings import planned_config
from trireme.foresight.search.space import plan_space
from trireme.foresight.search.step_settings import StepSetting, present_steps, step_settings

SMALL = ("--settings", "40", "--plays", "1", "--processes", "1", "--cores", "4", "--instances", "2")


def write_log(path: Path, log: list[LoggedRequest]) -> str:
    path.write_text("".join(write_request_log(RequestTraffic(log))))
    return str(path)


def planned(tmp_path: Path, log: list[LoggedRequest], *words: str) -> int:
    return main(["plan", str(tmp_path / "models"), "--log", write_log(tmp_path / "log.jsonl", log), *SMALL, *words])


def test_long_prompts_are_cut_for_the_tokens_of_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A step of 800 tokens takes 0.81 s, for which another text would wait. Fewer tokens a step keep both bounds; one
    text at a time would keep one of them. What is chosen is written."""
    write_generating(tmp_path / "models", steps_of(0.01, token_s=0.001), max_running=4, max_tokens_per_step=800)
    log = [text(0.0, 10, 400), *(text(1.0 * at, 700, 2) for at in range(1, 9))]
    assert planned(tmp_path, log, "--objective", "itl_p99<450ms,ttft_p95<2.5s", "--write") == 0
    shown = capsys.readouterr().out
    assert shown.startswith("minimise instances with itl_p99<450ms, ttft_p95<2500ms, refused<1%: 40 of ")
    assert "ttft p95" in shown
    written = present_steps(present_config(tmp_path))
    assert written is not None
    assert written.max_running > 1
    assert written.max_tokens_per_step <= 400


def present_config(tmp_path: Path) -> ModelConfig:
    return ForeseenModels(ServerOptions(model_repository=(tmp_path / "models",))).foreseen("letters").config


def test_more_texts_at_a_time_bring_the_first_token_sooner(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_generating(tmp_path / "models", steps_of(0.01), max_running=2, max_tokens_per_step=64)
    log = [text(0.001 * at, 8, 20) for at in range(16)]
    assert planned(tmp_path, log, "--objective", "ttft_p95<350ms", "--instances", "1") == 0
    line = next(each for each in capsys.readouterr().out.splitlines() if each.startswith("chosen"))
    assert int(line.partition("instance, ")[2].split()[0]) >= 8


def test_texts_within_their_bounds_are_goodput(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_generating(tmp_path / "models", steps_of(0.01), max_running=2, max_tokens_per_step=64)
    log = [text(0.001 * at, 8, 20) for at in range(16)]
    words = ("--objective", "ttft_p95<350ms", "--maximise", "goodput", "--instances", "1")
    assert planned(tmp_path, log, *words) == 0
    chosen = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("chosen"))
    answered, good = [float(each.removesuffix("/s")) for each in chosen.split() if each.endswith("/s")][:2]
    assert good == answered > 0
    assert planned(tmp_path, log, "--objective", "tokens>1000000/s", "--maximise", "throughput") == 3
    assert "tokens>1e+06/s: " in capsys.readouterr().out


def test_settings_have_room_for_prompts_and_memory_for_texts(tmp_path: Path) -> None:
    models = write_generating(tmp_path / "models", steps_of(context=200), max_running=8, max_tokens_per_step=16)
    config = models.foreseen("letters").config
    present = StepSetting(8, 16)
    assert present_steps(config) == present
    found = list(step_settings(config, steps_of(context=200), present))
    assert found[0] == present
    assert len(set(found)) == len(found)
    assert {each.max_running for each in found} == {2, 4, 8, 16, 32}
    for each in found:
        assert each.max_tokens_per_step > each.max_running
        assert each.kv_tokens <= each.max_running * 200


def test_memory_in_bytes_is_replaced_by_tokens(tmp_path: Path) -> None:
    models = write_generating(tmp_path / "models", steps_of(), kv_bytes="160k", max_running=4)
    found = models.foreseen("letters")
    space = plan_space([found], read_objective("ttft_p50<1s", Aim.INSTANCES), 1.0, 1)
    setting = next(
        each for each in space.all() if (its := each.of("letters").steps) is not None and its.kv_tokens == 1_632 // 2
    )
    parameters = planned_config(found.config, setting).parameters
    assert parameters["kv_tokens"] == "816"
    assert "kv_bytes" not in parameters
    assert planned_config(found.config, space.present) is found.config


@pytest.mark.parametrize(
    ("text", "limit"),
    [("ttft_p50<2s", 2.0), ("letters:itl_p95<80ms", 0.08), ("tokens>100/s", 100.0), ("itl_p99<500us", 0.0005)],
)
def test_bounds_of_tokens(text: str, limit: float) -> None:
    bound = read_objective(text, Aim.INSTANCES).bounds[0]
    assert bound.limit == pytest.approx(limit)
    assert read_objective(str(bound), Aim.INSTANCES).bounds[0] == bound
    objective = read_objective(text, Aim.INSTANCES)
    assert objective.good_within_s("letters") == float("inf"), "whole texts have no bound"
    if bound.measure.of_tokens:
        assert objective.good_within_s("letters", bound.measure.of_tokens) == pytest.approx(limit)


@pytest.mark.parametrize("text", ["ttft<1s", "itl_p98<1s", "tokens<5/s", "ttft_p95>1s", "ttft_p95<1/s"])
def test_bounds_that_are_none(text: str) -> None:
    with pytest.raises(InvalidArgumentError):
        read_objective(text, Aim.INSTANCES)


def test_every_measure_has_a_name() -> None:
    assert {measure.of_tokens for measure in Measure} == {"", "ttft", "itl"}


def explained(tmp_path: Path, log: list[LoggedRequest], capsys: pytest.CaptureFixture[str]) -> dict[str, list[str]]:
    """The lines that `trireme explain` prints, by their first words."""
    path = write_log(tmp_path / "log.jsonl", log)
    assert main(["explain", str(tmp_path / "models"), "--log", path, "--plays", "1", "--cores", "4"]) == 0
    shown = capsys.readouterr().out.splitlines()
    return {line[:34].strip().partition("  ")[0]: line.split() for line in shown}


def test_where_the_time_of_texts_goes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two texts at a time, of which the third waits for one; and a prompt in three pieces."""
    write_generating(tmp_path / "models", steps_of(0.01), max_running=2, max_tokens_per_step=10)
    log = [text(0.0, 8, 11), text(0.001, 8, 11), text(0.002, 8, 11), text(5.0, 25, 11)]
    result = LoggedResult(200_000.0, queue_us=50_000.0, first_token_us=80_000.0, paused_us=20_000.0)
    lines = explained(tmp_path, [replace(each, result=result) for each in log], capsys)
    assert lines["letters, real: 4 requests"]
    real = {name: lines[name] for name in ("queue", "prefill", "decode", "paused")}
    assert [each[1] for each in real.values()] == ["50.000ms", "30.000ms", "100.000ms", "20.000ms"]
    assert lines["twice the texts a step of letters"]
    assert lines["half the tokens a step of letters"]
    assert lines["one more instance of letters"]


def test_planned_time_has_its_phases(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_generating(tmp_path / "models", steps_of(0.01), max_running=2, max_tokens_per_step=10)
    lines = explained(tmp_path, [text(0.0, 25, 11)], capsys)
    assert lines["queue"][1] == "0.000ms"
    assert lines["prefill"][1] == "30.000ms"
    assert lines["decode"][1] == "100.000ms"
    assert lines["paused"][1] == "0.000ms"


def test_what_limits_texts_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_generating(tmp_path / "models", steps_of(0.01), max_running=2, max_tokens_per_step=64, kv_tokens=32)
    lines = explained(tmp_path, [text(0.001 * at, 10, 18) for at in range(12)], capsys)
    assert any(name.startswith("the memory of letters:") for name in lines)
    as_it_is, roomier = lines["as it is"], lines["twice the memory of letters"]
    assert float(roomier[-2].removesuffix("ms")) < float(as_it_is[-2].removesuffix("ms"))
