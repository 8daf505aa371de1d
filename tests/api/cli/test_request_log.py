"""`trireme request-log`: logs are made, converted and shown; `tests/wire/test_request_log.py` plays them."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from trireme.api.cli.main import main
from trireme.engine.logs.request_log import LoggedLoop, read_traffic

NAME = "trireme request-log"


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    """Exit code, and what was written."""
    try:
        code = main(["request-log", *words])
    except SystemExit as exit_:
        code = int(exit_.code or 0)
    said = capsys.readouterr()
    return code, said.out, said.err


@pytest.mark.parametrize(
    "arrivals",
    [
        "poisson,rate=100",
        "bursts,rate=300,on=1,off=2,quiet=5",
        "diurnal,least=5,most=100,period=10",
        "steps,rates=9/90,each=2",
    ],
)
def test_logs_are_made_and_shown(capsys: pytest.CaptureFixture[str], tmp_path: Path, arrivals: str) -> None:
    log = tmp_path / "log"
    kinds = (
        "--model",
        "a,rows=1/2,bytes=16,weight=3,tenant=t,protocol=grpc",
        "--model",
        "b,sequence=3,think=0.1,priority=1",
    )
    assert run(capsys, "generate", "--arrivals", arrivals, *kinds, "--seconds", "10", "-o", str(log)) == (0, "", "")
    with log.open() as lines:
        requests = read_traffic(lines).requests
    assert {(each.rows, each.nbytes, each.tenant) for each in requests if each.model == "a"} == {
        (1, 16, "t"),
        (2, 32, "t"),
    }
    assert {each.priority for each in requests if each.sequence} == {1}
    code, text, _ = run(capsys, "show", str(log))
    assert code == 0
    assert text.startswith(f"{len(requests)} requests in ")
    code, text, _ = run(capsys, "show", "--json", str(log))
    assert json.loads(text)["requests"] == len(requests)


def test_closed_loops(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    words = "--arrivals", "closed,clients=4,think=0.5", "--model", "m", "--count", "7"
    code, text, _ = run(capsys, "generate", *words)
    traffic = read_traffic(text.splitlines())
    assert (code, len(traffic.requests), traffic.loop) == (0, 7, LoggedLoop(4, 0.5))
    monkeypatch.setattr("sys.stdin", io.StringIO(text))
    assert "7 requests of 4 clients in a closed loop" in run(capsys, "show", "-")[1]


def test_logs_that_were_renamed_are_read_together(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for name, at_s in (("log.1", 0.0), ("log", 4.0)):
        (tmp_path / name).write_text(f'{{"offset_s":{at_s},"model":"m"}}\n')
    assert "2 requests in 4.000 s" in run(capsys, "show", str(tmp_path / "log.1"), str(tmp_path / "log"))[1]


def test_conversions(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    trace = tmp_path / "trace.json"
    trace.write_text(
        '[{"id":1,"timestamps":[{"name":"REQUEST_START","ns":5}]},{"id":1,"model_name":"m","model_version":1}]'
    )
    code, text, _ = run(capsys, "convert", "-o", "-", "triton-trace", str(trace))
    assert (code, [each.model for each in read_traffic(text.splitlines()).requests]) == (0, ["m"])
    words = "--seconds", "2", "perf-analyzer", "--", "-m", "m", "--request-rate-range", "10"
    code, text, _ = run(capsys, "convert", *words)
    assert (code, len(read_traffic(text.splitlines()).requests)) == (0, 19)


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("show", "none"), 1, "none: No such file or directory"),
        (("generate", "--arrivals", "x", "--model", "m"), 2, "--arrivals: found 'x', expected one of poisson, bursts,"),
        (("generate", "--arrivals", "poisson", "--model", "m"), 2, "--arrivals poisson: a value is missing, of rate"),
        (("generate", "--arrivals", "poisson,hz=3", "--model", "m"), 2, "found 'hz', expected one of rate"),
        (("generate", "--arrivals", "poisson,rate=x", "--model", "m"), 2, "rate: found 'x', expected numbers"),
        (("generate", "--arrivals", "poisson,rate=0", "--model", "m"), 2, "rate_hz must be more than 0 and finite"),
        (("generate", "--arrivals", "closed,clients=0", "--model", "m"), 2, "clients must be at least 1, not 0"),
        (
            ("generate", "--arrivals", "poisson,rate=1", "--model", "m,rows=a"),
            2,
            "rows: found 'a', expected whole numbers",
        ),
        (("generate", "--arrivals", "poisson,rate=1e9", "--model", "m"), 2, "more than 10000000 requests"),
        (("convert", "triton-trace", "trace.json", "-o", "log"), 2, "options go before triton-trace"),
        (("convert", "triton-trace"), 2, "expected the names of trace files, found none"),
        (("play", "none", "--url", "ftp://h"), 2, "expected http://HOST:PORT or grpc://HOST:PORT"),
    ],
)
def test_what_is_wrong_is_said(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], code: int, said: str
) -> None:
    found, out, error = run(capsys, *words)
    assert (found, out) == (code, "")
    assert said in error


def test_what_cannot_be_played(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text('{"offset_s":0,"model":"m"}\n')
    code, _, error = run(capsys, "play", str(log), "--url", "http://127.0.0.1:1")
    assert (code, error) == (
        3,
        "trireme request-log: no server answers at http://127.0.0.1:1: [Errno 111] Connection refused\n",
    )
    code, _, error = run(capsys, "play", str(log), "--url", "http://127.0.0.1:1", "-o", str(tmp_path / "no" / "file"))
    assert (code, error) == (1, f"{NAME}: {tmp_path / 'no' / 'file'}: No such file or directory\n")
    log.write_text("{}\n")
    code, _, error = run(capsys, "play", str(log))
    assert (code, error) == (2, f"{NAME}: line 1 of {log}: offset_s and model missing\n")
    log.write_bytes(b"\xff\n")
    assert "not UTF-8" in run(capsys, "show", str(log))[2]
