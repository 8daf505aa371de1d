"""`trireme explain MODEL`: a running server's model in words."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from repository_models import link_models
from serve_process import infer, serve_process, tensor

from trireme.api.cli.main import main


def test_of_a_running_server(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with serve_process(link_models(tmp_path / "models", "identity_fp32", "simple")) as server:
        where = [f"--url=http://127.0.0.1:{server.http_port}", f"--metrics-url=http://127.0.0.1:{server.metrics_port}"]
        for _ in range(3):
            assert infer(server.http_port, "identity_fp32", tensor("INPUT0", "FP32", [1.0] * 16))[0] == 200
        assert main(["explain", "identity_fp32", "--seconds", "0", *where]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert lines[0] == "identity_fp32, version 1"
        assert lines[1] == "  3 batches ran since it was loaded, with 1 of at most 64 rows on average."
        assert lines[2].startswith(
            "  3 of 3 batches since it was loaded ran with 1 row because the queue delay is 0: an idle instance"
        )
        assert lines[3].startswith("  On average a request took ")
        assert main(["explain", "simple:1", "identity_fp32", "--seconds", "0.01", *where]) == 0
        shown = capsys.readouterr().out
        assert "simple, version 1\n  No batch was executed in the last 0.01 s.\n" in shown
        assert shown.count("No batch was executed") == 2, "what was before is not told"
        for model in ("nothing", "simple:7"):
            assert main(["explain", model, "--seconds", "0", *where]) == 1
            assert "unknown model" in capsys.readouterr().err
        assert main(["explain", "simpel", "--seconds", "0", *where]) == 1
        assert capsys.readouterr().err.endswith("\n  did you mean: simple?\n")


def test_what_is_in_between_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with serve_process(link_models(tmp_path / "models", "simple")) as server:
        where = [f"--url=http://127.0.0.1:{server.http_port}", f"--metrics-url=http://127.0.0.1:{server.metrics_port}"]
        rows = [tensor(name, "INT32", [1] * 16) for name in ("INPUT0", "INPUT1")]
        ended = threading.Event()

        def ask() -> None:
            while not ended.is_set():
                infer(server.http_port, "simple", *rows)

        asking = threading.Thread(target=ask)
        asking.start()
        try:
            assert main(["explain", "simple", "--seconds", "0.5", *where]) == 0
        finally:
            ended.set()
            asking.join()
        assert "because the model has no dynamic_batching" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (["m", "--url", "127.0.0.1:1"], 3, "no server answers at http://127.0.0.1:1: Connection refused\n  start one"),
        (["m", "--url", "ftp://x"], 1, "expected http://HOST:PORT"),
        ([str(Path(__file__).parent)], 1, "is a folder: name a request log as well (--log)"),
    ],
)
def test_what_cannot_be_explained(words: list[str], code: int, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", *words]) == code
    assert text in capsys.readouterr().err
