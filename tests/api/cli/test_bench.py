"""`trireme bench`: figures of a real server, by clients and by rate, as table, chart and JSON."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from trireme.api.cli.bench import LevelResult, LoadLevel, chart_lines, result_lines
from trireme.api.cli.main import main
from trireme.clients.played import PlayedSummary

SHORT = ("--seconds", "0.05", "--warm-up", "0.01")


def summary(throughput: float, p50_s: float, answered: int = 10, reasons: tuple = ()) -> PlayedSummary:
    times: dict[str, Any] = {
        "mean_s": p50_s,
        "p50_s": p50_s,
        "p95_s": 2 * p50_s,
        "p99_s": 4 * p50_s,
        "most_s": 8 * p50_s,
    }
    counts: dict[str, Any] = {
        "requests": 10,
        "answered": answered,
        "refused": 10 - answered,
        "unanswered": 0,
        "late": 0,
    }
    rates: dict[str, Any] = {"seconds": 1.0, "offered": throughput, "throughput": throughput, "goodput": throughput}
    return PlayedSummary(**times, **counts, **rates, reasons=reasons)


@pytest.mark.parametrize("protocol", ["http", "grpc"])
@pytest.mark.parametrize("load", [("--clients", "1,3"), ("--rate", "400,800")])
def test_a_server_is_measured(live, protocol: str, load: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    url = f"{protocol}://127.0.0.1:{live.port if protocol == 'http' else live.grpc_port}"
    assert main(["bench", "simple", *load, *SHORT, "--json", "--url", url]) == 0
    first, second = json.loads(capsys.readouterr().out)
    assert (first["refused"], first["unanswered"]) == (0, 0)
    assert 0 < first["p50_s"] <= first["p95_s"] <= first["p99_s"]
    assert (second["clients"], second["rate_hz"]) == ((3, 0.0) if "--clients" in load else (0, 800.0))


def test_a_table_and_a_chart_that_fit_80_columns(live, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "simple", "--clients", "1,2", *SHORT, "--url", f"http://127.0.0.1:{live.port}"]) == 0
    said = capsys.readouterr()
    assert said.err == ""
    lines = said.out.splitlines()
    assert lines[0].split()[:2] == ["load", "answers/s"]
    assert lines[1].startswith("1 client ")
    assert lines[2].startswith("2 clients")
    assert max(map(len, lines)) <= 80


def test_sequences(live, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["bench", "running_sum", "--clients", "2", "--sequence-length", "3", *SHORT, "--json"]
    assert main([*words, "--url", f"http://127.0.0.1:{live.port}"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["refused"] == 0


def test_the_chart_shows_each_percentile_of_each_level() -> None:
    results = [LevelResult(LoadLevel(clients=n), summary(1000.0 * n, 0.001 * n)) for n in (1, 2)]
    drawn = list(chart_lines(results, 60))
    assert max(map(len, drawn)) <= 60
    assert [sum(line.count(mark) for line in drawn[1:]) for mark in "•+×"] == [2, 2, 2]
    assert drawn[-1].endswith("2000 answers/s")


def test_a_level_without_answers_says_why() -> None:
    failed = LevelResult(LoadLevel(rate_hz=5), summary(0.0, math.nan, answered=0, reasons=(("no room", 10),)))
    lines = list(result_lines([failed]))
    assert lines[1].split() == ["5/s", "0.0", "-", "-", "-", "-", "-", "10", "0"]
    assert lines[2] == "failed: no room (10 times)"
    assert list(chart_lines([failed], 80)) == []
    assert list(result_lines([failed, failed]))[3] == "failed: no room (20 times)"


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (["--clients", "1,x"], 2, "--clients is '1,x'"),
        (["--clients", "0"], 2, "--clients is '0'"),
        (["--rate", "inf"], 2, "--rate is 'inf'"),
        (["--seconds", "0"], 2, "--seconds is 0"),
        (["--seconds", "inf"], 2, "--seconds is inf"),
        (["--warm-up", "inf"], 2, "--warm-up is inf"),
        (["--warm-up", "nan"], 2, "--warm-up is nan"),
        (["--rate", "1e6"], 2, "1e+06/s for 3 s and the warm-up are more than 1000000 requests"),
        (["--api-key", "ключ"], 2, "the API key has characters that no header can have"),
        (["--url", "http://[::1"], 2, "expected http://HOST:PORT or grpc://HOST:PORT"),
        (["--url", "ftp://x"], 2, "expected http://HOST:PORT or grpc://HOST:PORT"),
        (["--url", "http://127.0.0.1:1"], 3, "trireme serve --model-repository models"),
    ],
)
def test_what_is_wrong(words: list[str], code: int, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "simple", *words]) == code
    assert text in capsys.readouterr().err


def test_a_model_that_there_is_not(live, capsys: pytest.CaptureFixture[str]) -> None:
    for url in (f"http://127.0.0.1:{live.port}", f"grpc://127.0.0.1:{live.grpc_port}"):
        assert main(["bench", "simpel", *SHORT, "--url", url]) == 1
        told, remedy = capsys.readouterr().err.splitlines()
        assert "'simpel'" in told
        assert remedy.startswith("  did you mean: simple")


@pytest.mark.parametrize("name", ["two words", "modèle"])
def test_a_model_whose_name_no_path_has(live, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", name, *SHORT, "--url", f"http://127.0.0.1:{live.port}"]) == 1
    assert "unknown model" in capsys.readouterr().err


def test_a_port_of_http_answers_no_grpc(live, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "simple", *SHORT, "--url", f"grpc://127.0.0.1:{live.port}"]) == 3
    assert "speaks no gRPC\n  correct --url\n" in capsys.readouterr().err
