"""A request log of a real server, whose front ends are apart, and played against it again."""

from __future__ import annotations

import json
import queue
import signal
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as tritonclient
from python_models import write_model
from serve_process import PATIENCE_S, infer, serve_process, tensor

from trireme.api.cli.main import main
from trireme.clients.player import play
from trireme.clients.target import LoadProtocol, LoadTarget
from trireme.engine.logs.request_log import LoggedLoop, LoggedRequest, RequestTraffic, read_traffic

MODELS = Path(__file__).parents[2] / "model_repository"
NAMES = ("identity_fp32", "simple_sequence", "digits_pipeline", "digits_decode", "digits", "digits_label", "digits_bls")
FLAGS = ("--model-control-mode=explicit", *(f"--load-model={name}" for name in NAMES), "--request-log-results=true")


def sequence(number: int, *, steps: int = 4) -> list[LoggedRequest]:
    return [
        LoggedRequest(
            0.01 * at, "simple_sequence", nbytes=4, sequence=number, start=at == 0, end=at == steps - 1, protocol=""
        )
        for at in range(steps)
    ]


ASKED = [
    *sequence(5),
    *sequence(6),
    *(LoggedRequest(0.001 * at, "identity_fp32", rows=1 + at % 2, nbytes=64 * (1 + at % 2)) for at in range(20)),
    LoggedRequest(0.03, "identity_fp32", rows=8, nbytes=512, timeout_us=10_000_000),
]
TRAFFIC = RequestTraffic(sorted(ASKED, key=lambda request: request.offset_s))


def test_what_is_played_is_logged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "log.jsonl"
    with serve_process(MODELS, *FLAGS, f"--request-log={path}", "--front-ends=1") as server:
        http = LoadTarget("127.0.0.1", server.http_port)
        grpc = LoadTarget("127.0.0.1", server.grpc_port, LoadProtocol.GRPC)
        text = LoadTarget("127.0.0.1", server.http_port, LoadProtocol.JSON)
        stream = LoadTarget("127.0.0.1", server.grpc_port, LoadProtocol.STREAM)
        for target in (http, grpc, text, stream):
            played = play(TRAFFIC, target, timeout_s=PATIENCE_S)
            assert not played.status.any(), played.summary().reasons
        assert not play(RequestTraffic(ASKED, LoggedLoop(4)), grpc).status.any()
        for name in ("digits_pipeline", "digits_bls"):  # both ask digits_decode, which reads no such file
            assert infer(server.http_port, name, tensor("FILE", "UINT8", [0] * 8))[0] != 200
        ask_on_a_stream(server.grpc_port)
        plays(tmp_path, str(http), str(grpc), capsys)
        server.process.send_signal(signal.SIGTERM)
        assert server.wait() == 0
    with path.open() as lines:
        traffic = read_traffic(lines)
    assert traffic.dropped == 0
    counts = Counter((each.model, each.protocol) for each in traffic.requests)
    assert counts["identity_fp32", "http"] == 42 + 21
    assert counts["identity_fp32", "grpc"] == 42 + 21
    assert counts["identity_fp32", "stream"] == 21 + 1
    assert counts["simple_sequence", "grpc"] == 16 + 8
    composed = [each for each in traffic.requests if each.model.startswith("digits")]
    assert [(each.model, each.ensemble, each.elements) for each in composed] == [
        ("digits_pipeline", True, (8,)),
        ("digits_bls", False, (8,)),
    ]
    assert [each.result.outcome for each in composed if each.result is not None] == ["failed", "failed"]
    last_stream_s = max(each.offset_s for each in traffic.requests if each.protocol == "stream")
    asked = Counter((each.model, each.rows, each.nbytes, each.start, each.end, each.timeout_us) for each in ASKED)
    alone = next(each for each in traffic.requests if each.protocol == "stream" and each.offset_s == last_stream_s)
    found = [each for each in traffic.requests if each is not alone and not each.model.startswith("digits")]
    logged = Counter((each.model, each.rows, each.nbytes, each.start, each.end, each.timeout_us) for each in found)
    assert logged == Counter({each: 7 * count for each, count in asked.items()})
    for each in found:
        assert each.result is not None
        assert (each.result.outcome, each.result.batch >= each.rows) == ("", True)
        assert each.result.total_us >= each.result.queue_us + each.result.infer_us - 1


def ask_on_a_stream(port: int) -> None:
    """Once, and hear the answer."""
    answers: queue.SimpleQueue[object] = queue.SimpleQueue()
    given = tritonclient.InferInput("INPUT0", [1, 16], "FP32")
    given.set_data_from_numpy(np.zeros((1, 16), np.float32))
    with tritonclient.InferenceServerClient(f"127.0.0.1:{port}") as client:
        client.start_stream(lambda result, error: answers.put(error))
        client.async_stream_infer("identity_fp32", [given])
        assert answers.get(timeout=PATIENCE_S) is None
        client.stop_stream()


def plays(folder: Path, http: str, grpc: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The same by the command."""
    log, results = folder / "asked.jsonl", folder / "results.jsonl"
    log.write_text("".join(request.to_line() for request in ASKED))
    assert main(["request-log", "play", str(log), "--url", http, "--json", "-o", str(results)]) == 0
    assert json.loads(capsys.readouterr().out)["answered"] == len(ASKED)
    lines = [json.loads(line) for line in results.read_text().splitlines()]
    assert [line["model"] for line in lines] == [request.model for request in TRAFFIC.requests]
    assert main(["request-log", "play", str(log), "--url", grpc, "--objective-ms", "60000"]) == 0
    assert f"answered {len(ASKED)} (" in capsys.readouterr().out


def test_large_requests_and_refusals(tmp_path: Path) -> None:
    """Messages that are larger than the windows of HTTP/2, and requests that the model does not take."""
    write_model(tmp_path / "models", "wide")
    path = tmp_path / "log.jsonl"
    with serve_process(tmp_path / "models", f"--request-log={path}") as server:
        requests = [LoggedRequest(0.0, "wide", nbytes=4 * count, elements=(count,)) for count in (3, 1_000_000)]
        ports = {True: server.http_port, False: server.grpc_port}
        for target in [LoadTarget("127.0.0.1", ports[each.is_http], each) for each in LoadProtocol]:
            assert not play(RequestTraffic(requests), target).status.any()
            expired = play(RequestTraffic([LoggedRequest(0.0, "wide", version=1, rows=99)]), target)
            assert expired.status[0] > 0
            assert "batch-size must be <= 8" in expired.reasons[expired.reason[0]]
        server.process.send_signal(signal.SIGTERM)
        assert server.wait() == 0
    with path.open() as lines:
        logged = read_traffic(lines).requests
    assert sorted((each.nbytes, each.elements) for each in logged) == [(12, (3,))] * 4 + [(4_000_000, (1_000_000,))] * 4
