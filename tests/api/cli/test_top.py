"""`trireme top`: rates between two looks, as lines and as a screen."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from serve_process import infer, serve_process, tensor

from trireme.api.cli.load_picture import HEADER, LoadLook, picture, titles
from trireme.api.cli.main import main
from trireme.engine.metrics.page import read_metrics

PAGE = """\
# HELP nv_inference_pending_request_count Instantaneous number of pending requests awaiting execution per-model.
nv_inference_pending_request_count{model="a",version="1"} 3
trireme_instance_count{model="a",version="1"} 2
trireme_batch_sealed_count{model="a",reason="full",version="1"} %d
trireme_batch_sealed_count{model="a",reason="delay",version="1"} 1
trireme_refused_total{model="a",reason="queue_full",version="1"} %d
trireme_refused_total{model="a",reason="queue_timeout",version="1"} 1
trireme_refused_total{reason="invalid"} 99
"""


def look(at_s: float, requests: int, full: int = 0) -> LoadLook:
    def record(count: int, ns: int) -> dict[str, int]:
        return {"count": count, "ns": ns}

    stats = {
        "success": record(requests, requests * 1000),
        "fail": record(0, 0),
        "queue": record(requests, requests * 2_000_000),
        "compute_input": record(requests, requests * 100_000),
        "compute_infer": record(requests, requests * 800_000),
        "compute_output": record(requests, requests * 100_000),
    }
    records = {("a", "1"): {"inference_stats": stats, "execution_count": requests // 4, "inference_count": requests}}
    states = {("a", "1"): "READY", ("b", ""): "UNAVAILABLE: it is broken"}
    return LoadLook(at_s, records, states, read_metrics(PAGE % (full, full)))


def test_a_row_tells_what_happened_between_two_looks() -> None:
    first, second = picture(look(10.0, 100), look(12.0, 300, full=3))
    assert dict(zip(HEADER, first, strict=True)) == {
        "model": "a",
        "ver": "1",
        "state": "READY",
        "req/s": "100.0",
        "rows": "4.0",
        "queue": "3",
        "wait ms": "2.00",
        "run ms": "1.00",
        "fail/s": "0.0",
        "inst": "2",
        "sealed": "full 100%",
        "refused/s": "1.5 queue_full",
    }
    assert second == ("b", "", "UNAVAILABLE: it is broken", *"---------")


def test_models_that_generate_text_have_two_columns_more() -> None:
    page = """\
trireme_generation_tokens_total{model="a",version="1"} %d
trireme_generation_kv_blocks_used{model="a",version="1"} 30
trireme_generation_kv_blocks{model="a",version="1"} 40
"""
    looks = [replace(look(at_s, 0), metrics=read_metrics(page % tokens)) for at_s, tokens in ((1.0, 70), (3.0, 100))]
    assert titles(looks[0]) == (*HEADER, "tok/s", "kv")
    first, second = picture(*looks)
    assert (first[-2:], second[-2:]) == (("15.0", "75%"), ("-", "-"))
    assert titles(look(1.0, 0)) == HEADER


def test_a_model_that_was_loaded_anew_has_no_negative_rates() -> None:
    row = picture(look(10.0, 300), look(12.0, 100))[0]
    assert row[3] == "50.0"


def test_once_against_a_server(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with serve_process(repository) as server:
        assert infer(server.http_port, "simple", *(tensor(f"INPUT{i}", "INT32", [1] * 16) for i in (0, 1)))[0] == 200
        words = ["top", "--once", "--interval", "0.01", "--url", f"127.0.0.1:{server.http_port}"]
        assert main([*words, "--metrics-url", f"127.0.0.1:{server.metrics_port}"]) == 0
        header, row = (line.split() for line in capsys.readouterr().out.splitlines())
        assert header[:4] == ["model", "ver", "state", "req/s"]
        assert (row[:3], row[5], row[9]) == (["simple", "1", "READY"], "0", "2")
        assert main([*words, "--metrics-url", "none"]) == 0
        assert capsys.readouterr().out.splitlines()[1].split()[5] == "-"


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (["--interval", "0"], 2, "--interval is 0"),
        (["--interval", "inf"], 2, "--interval is inf"),
        (["--url", "grpc://localhost:1"], 2, "--url is for gRPC"),
        (["--url", "127.0.0.1:1", "--once"], 3, "no server answers"),
        (["--metrics-url", "localhost:x"], 2, "--metrics-url is localhost:x"),
    ],
)
def test_what_is_wrong(words: list[str], code: int, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", *words]) == code
    assert text in capsys.readouterr().err


def test_at_a_terminal_it_is_a_screen_that_an_interrupt_ends(repository: Path) -> None:
    with serve_process(repository) as server:
        ours, theirs = os.openpty()
        words = ["top", "--interval", "0.01", "--url", f"127.0.0.1:{server.http_port}", "--metrics-url", "none"]
        environment = {**os.environ, "COLUMNS": "80", "TERM": "xterm"}
        command = [sys.executable, "-m", "trireme", *words]
        with (
            subprocess.Popen(command, stdout=theirs, stderr=theirs, env=environment) as process,
            ExitStack() as ending,
        ):
            ending.callback(process.kill)
            os.close(theirs)
            screen = b""
            while b"Ctrl-C ends this" not in screen:
                screen += os.read(ours, 65536)
            process.send_signal(signal.SIGINT)
            while True:
                try:
                    screen += os.read(ours, 65536)
                except OSError:
                    break
            assert process.wait() == 0
        os.close(ours)
    assert b"wait ms" in screen
    assert b"simple" in screen
    assert screen.rindex(b"\x1b[?1049l") > screen.rindex(b"\x1b[?1049h")
    assert b"Traceback" not in screen
