"""`trireme serve` from its command line to its exit code (docs/reference/command-line.md#start,
docs/reference/command-line.md#shutdown), in a process of its own."""

from __future__ import annotations

import http.client
import json
import os
import re
import select
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
import trustme
from prometheus_client.parser import text_string_to_metric_families
from python_models import CONFIG, IDENTITY, write_model

from trireme.engine.logs.request_log import read_request_log

HELD = IDENTITY.replace(
    "responses = []",
    """responses = []
            import os, time
            here = pb_utils.get_model_dir() + "/../"
            open(here + "began", "w").close()
            while not os.path.exists(here + "enough"):
                time.sleep(0.01)""",
)
"""Holds a request until a file says that it is enough."""
HELD_CONFIG = CONFIG + 'parameters { key: "EXECUTION" value { string_value: "in_process" } }'


def get(port: int, path: str, body: str | None = None) -> tuple[int, str]:
    """One request on a connection of its own; status and body."""
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=30)) as connection:
        connection.request("GET" if body is None else "POST", path, body)
        response = connection.getresponse()
        return response.status, response.read().decode()


def infer_body(name: str, datatype: str, rows: int = 1) -> dict[str, object]:
    return {"name": name, "shape": [rows, 16], "datatype": datatype, "data": [1] * 16 * rows}


def metric_values(port: int) -> dict[tuple[str, str, str], float]:
    """Values by name (without ``_total``), model and reason."""
    status, text = get(port, "/metrics")
    assert status == 200
    return {
        (
            sample.name.removesuffix("_total"),
            sample.labels.get("model", ""),
            sample.labels.get("reason", ""),
        ): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_a_whole_life(start_serve: Callable, repository: Path) -> None:
    """Start, ready, an inference, its numbers in the metrics, and a shutdown."""
    serve = start_serve(f"--model-repository={repository}", "--id=me", "--buffer-manager-thread-count=5")
    port, metrics_port = serve.ports()
    assert get(port, "/v2/health/ready") == (200, "")
    assert json.loads(get(port, "/v2")[1])["name"] == "me"
    body = json.dumps({"inputs": [infer_body("INPUT0", "INT32", 2), infer_body("INPUT1", "INT32", 2)]})
    assert get(port, "/v2/models/simple/infer", body)[0] == 200
    values = metric_values(metrics_port)
    assert values["nv_inference_request_success", "simple", ""] == 1
    assert values["nv_inference_count", "simple", ""] == 2
    assert values["nv_inference_exec_count", "simple", ""] == 1
    assert values["trireme_batch_sealed_count", "simple", "unbatched"] == 1
    assert values["nv_inference_request_duration_us", "simple", ""] > 0
    assert values["nv_model_load_duration_secs", "simple", ""] > 0
    assert get(metrics_port, "/metrics", "")[0] == 405

    serve.signal(signal.SIGTERM)
    assert serve.wait() == 0
    line = r"I\d{4} \d\d:\d\d:\d\d\.\d{6} \d+ \w+\.py:\d+\] "
    assert re.search(rf'^{line}"loading: simple:1"$', serve.stdout, re.MULTILINE)
    assert re.search(
        rf"^{line}\n\+-+\+-+\+-+\+\n\| Model  \| Version \| Status \|\n.*\n\| simple \| 1       \| READY  \|",
        serve.stdout,
        re.MULTILINE,
    )
    assert re.search(r"^\| server_id +\| me +\|$", serve.stdout, re.MULTILINE)
    assert re.search(r"^\| onnxruntime \| \S+ \| {.*} \|$", serve.stdout, re.MULTILINE)
    assert "\nSignal (15) received.\n" in serve.stdout
    assert re.search(rf'^{line}"Waiting for in-flight requests to complete\."$', serve.stdout, re.MULTILINE)
    assert re.search(rf"""^{line}"successfully unloaded 'simple' version 1"$""", serve.stdout, re.MULTILINE)
    assert re.fullmatch(
        r'W\d{4} [\d:.]+ \d+ serve\.py:\d+\] "--buffer-manager-thread-count has no effect in this version: '
        r'an instance copies its tensors itself"\n',
        serve.stderr,
    )


def test_no_port_is_open_before_the_models_are_loaded(start_serve: Callable, repository: Path) -> None:
    serve = start_serve(f"--model-repository={repository}")
    serve.ports()
    events = re.findall("successfully loaded|Started GRPC|Started HTTP|Started Metrics", serve.stdout)
    assert events == ["successfully loaded", "Started GRPC", "Started HTTP", "Started Metrics"]


def test_a_signal_during_the_start_ends_it(start_serve: Callable, repository: Path) -> None:
    serve = start_serve(f"--model-repository={repository}", "--exit-timeout-secs=1")
    serve.read_until("loading: simple:1")
    serve.signal(signal.SIGTERM)
    assert serve.wait() == 0
    assert "Signal (15) received." in serve.stdout
    assert serve.stderr == ""


def test_what_is_in_flight_is_answered_and_a_second_signal_changes_nothing(
    start_serve: Callable, tmp_path: Path
) -> None:
    directory = write_model(tmp_path / "models", "held", HELD, HELD_CONFIG)
    serve = start_serve(f"--model-repository={tmp_path / 'models'}")
    port, _ = serve.ports()
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=30)) as connection:
        body = json.dumps({"inputs": [infer_body("INPUT0", "FP32")]})
        connection.request("POST", "/v2/models/held/infer", body, {"Connection": "close"})
        assert connection.sock is not None
        while not (directory / "began").exists():
            assert not select.select([connection.sock], [], [], 0.01)[0], "it was answered"
        serve.signal(signal.SIGINT)
        serve.read_until(r"^Signal \(2\) received\.$")
        serve.signal(signal.SIGTERM)
        serve.read_until(r'"Timeout 30: Found 1 HTTP service connections"')
        (directory / "enough").touch()
        response = connection.getresponse()
        assert response.status == 200
        assert json.loads(response.read())["outputs"][0]["data"] == [1.0] * 16
    assert serve.wait() == 0
    assert "Signal (15) received." in serve.stdout


def test_what_is_not_over_in_time_is_left_behind_with_exit_code_1(
    start_serve: Callable, make_slow: Callable[[float], Path]
) -> None:
    serve = start_serve(f"--model-repository={make_slow(30.0)}", "--exit-timeout-secs=0")
    port, metrics_port = serve.ports()
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=30)) as connection:
        connection.request("POST", "/v2/models/slow/infer", json.dumps({"inputs": [infer_body("INPUT0", "FP32")]}))
        while metric_values(metrics_port)["nv_inference_pending_request_count", "slow", ""] == 0:
            pass
        serve.signal(signal.SIGTERM)
        assert serve.wait() == 1
        with pytest.raises((http.client.HTTPException, OSError)):
            connection.getresponse()
    assert serve.stderr.endswith('] "failed to stop server: Internal - Exit timeout expired. Exiting immediately."\n')


def test_idle_connections_and_models_are_not_what_time_runs_out_for(start_serve: Callable, repository: Path) -> None:
    serve = start_serve(f"--model-repository={repository}", "--exit-timeout-secs=0")
    port, _ = serve.ports()
    with closing(socket.create_connection(("127.0.0.1", port))) as idle:
        serve.signal(signal.SIGTERM)
        assert serve.wait() == 0
        assert idle.recv(1) == b""


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ((), "Invalid argument - --model-repository must be specified"),
        (("--model-repository=/no/such/place",), "Internal - failed to stat file /no/such/place"),
    ],
)
def test_a_server_that_cannot_be_made(start_serve: Callable, words: tuple[str, ...], error: str) -> None:
    serve = start_serve(*words)
    assert serve.wait() == 1
    assert serve.stderr == f"error: creating server: {error}\n"


def test_a_model_that_does_not_load_ends_the_start(start_serve: Callable, repository: Path) -> None:
    (repository / "broken" / "1").mkdir(parents=True)
    (repository / "broken" / "config.pbtxt").write_text('backend: "nosuch"')
    serve = start_serve(f"--model-repository={repository}")
    assert serve.wait() == 1
    assert serve.stderr.endswith("\nerror: creating server: Internal - failed to load all models\n")
    assert re.search(r"^\| broken +\| 1 +\| UNAVAILABLE: .*'nosuch'", serve.stdout, re.MULTILINE)
    assert "Started" not in serve.stdout


def test_the_other_models_are_served_if_told_so(start_serve: Callable, repository: Path) -> None:
    (repository / "broken").mkdir()
    (repository / "broken" / "config.pbtxt").write_text("{{{")
    serve = start_serve(f"--model-repository={repository}", "--exit-on-error=false", "--strict-readiness=false")
    port, _ = serve.ports()
    assert get(port, "/v2/models/simple/ready")[0] == 200
    assert get(port, "/v2/health/ready")[0] == 200
    assert re.search(r"^\| broken +\| - +\| UNAVAILABLE: ", serve.stdout, re.MULTILINE)
    assert '"failed to load all models"' in serve.stderr


@pytest.mark.parametrize("words", [("--model-repository=/no/such/place",), ()])
def test_without_a_repository_it_goes_on_if_told_so(start_serve: Callable, words: tuple[str, ...]) -> None:
    """Neither live nor ready, without a word about models, as Triton does; exit code 0 in the end."""
    serve = start_serve("--exit-on-error=false", *words)
    port, metrics_port = serve.ports()
    assert get(port, "/v2/health/live")[0] == 400
    assert get(port, "/v2/health/ready")[0] == 400
    assert get(port, "/v2")[0] == 200
    for path, body in (
        ("/v2/models/m", None),
        ("/v2/models/m/ready", None),
        ("/v2/models/m/config", None),
        ("/v2/models/stats", None),
        ("/v2/repository/index", "{}"),
        ("/v2/repository/models/m/load", "{}"),
        ("/v2/models/m/infer", '{"inputs": []}'),
        ("/v2/models/m/generate", "{}"),
        ("/v2/models/m/trace/setting", None),
    ):
        assert get(port, path, body) == (503, '{"error":"Server not ready"}'), path
    assert get(metrics_port, "/metrics")[0] == 200
    assert "Option" in serve.stdout
    assert "Backend" not in serve.stdout
    serve.signal(signal.SIGTERM)
    assert serve.wait() == 0


def test_arrivals_are_logged_for_the_simulator(start_serve: Callable, repository: Path, tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    log.write_text("of another day\n")
    serve = start_serve(f"--model-repository={repository}", f"--request-log={log}")
    port, _ = serve.ports()
    for rows in (1, 3):
        body = {"inputs": [infer_body("INPUT0", "INT32", rows), infer_body("INPUT1", "INT32", rows)]}
        assert get(port, "/v2/models/simple/infer", json.dumps(body))[0] == 200
    assert get(port, "/v2/models/simple/infer", json.dumps({"inputs": []}))[0] == 400
    serve.signal(signal.SIGTERM)
    assert serve.wait() == 0
    with log.open() as lines:
        first, second = read_request_log(lines)
    assert (first.model, first.rows, second.model, second.rows) == ("simple", 1, "simple", 3)
    assert 0 < first.offset_s < second.offset_s
    assert (first.nbytes, second.nbytes, first.protocol) == (128, 384, "http")
    assert (tmp_path / "log.jsonl.1").read_text() == "of another day\n"


def test_a_request_log_that_cannot_be_opened_ends_the_start(start_serve: Callable, repository: Path) -> None:
    path = repository / "nowhere" / "log"
    serve = start_serve(f"--model-repository={repository}", f"--request-log={path}")
    assert serve.wait() == 1
    assert serve.stderr == (
        f"error: creating server: Invalid argument - cannot open request log '{path}': No such file or directory\n"
    )


def test_a_request_log_that_cannot_be_written_fails_no_request(start_serve: Callable, repository: Path) -> None:
    serve = start_serve(f"--model-repository={repository}", "--request-log=/dev/full")
    port, _ = serve.ports()
    body = json.dumps({"inputs": [infer_body("INPUT0", "INT32"), infer_body("INPUT1", "INT32")]})
    assert get(port, "/v2/models/simple/infer", body)[0] == 200
    serve.signal(signal.SIGTERM)
    assert serve.wait() == 0
    assert "cannot write the request log '/dev/full': No space left on device" in serve.stderr


@pytest.mark.parametrize("name", ["GRPC", "HTTP", "Metrics"])
def test_a_port_that_is_taken(start_serve: Callable, repository: Path, name: str) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        flag = {"GRPC": "--grpc-port", "HTTP": "--http-port", "Metrics": "--metrics-port"}[name]
        serve = start_serve(f"--model-repository={repository}", f"{flag}={taken.getsockname()[1]}")
        assert serve.wait() == 1
    assert re.fullmatch(
        rf"E.* services\.py:\d+\] \"failed to start {name} service: "
        rf"Unavailable - Socket '{address}' already in use \"\n"
        rf'E.* "--{name.lower()}-address takes an address of this machine, and {flag} a free port"\n',
        serve.stderr,
    )


def test_an_address_of_no_machine(start_serve: Callable, repository: Path) -> None:
    serve = start_serve(f"--model-repository={repository}", "--http-address=nowhere.invalid")
    assert serve.wait() == 1
    assert "Socket 'nowhere.invalid:0' cannot be bound" in serve.stderr
    assert serve.stderr.endswith('"--http-address takes an address of this machine, and --http-port a free port"\n')


def test_switched_off_services_are_not_started(start_serve: Callable, repository: Path) -> None:
    serve = start_serve(f"--model-repository={repository}", "--allow-metrics=false", "--allow-grpc=false")
    serve.read_until("Started HTTPService")
    serve.signal(signal.SIGTERM)
    assert serve.wait() == 0
    assert "Metrics Service" not in serve.stdout
    assert "GRPCInferenceService" not in serve.stdout


def test_https(start_serve: Callable, repository: Path, tmp_path: Path) -> None:
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1")
    certificate.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    certificate.private_key_pem.write_to_path(tmp_path / "key.pem")
    serve = start_serve(
        f"--model-repository={repository}",
        "--http-use-ssl=true",
        f"--http-server-cert={tmp_path / 'cert.pem'}",
        f"--http-server-key={tmp_path / 'key.pem'}",
    )
    port, _ = serve.ports()
    context = ssl.create_default_context()
    authority.configure_trust(context)
    with closing(http.client.HTTPSConnection("127.0.0.1", port, timeout=30, context=context)) as connection:
        connection.request("GET", "/v2/health/live")
        assert connection.getresponse().status == 200


def test_the_log_goes_where_and_looks_how_the_flags_say(
    start_serve: Callable, repository: Path, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    serve = start_serve(
        f"--model-repository={tmp_path / 'nowhere'}",
        f"--log-file={log}",
        "--log-format=ISO8601",
        "--buffer-manager-thread-count=5",
        environment={**os.environ, "TRITON_SERVER_ESCAPE_LOG_MESSAGES": "0"},
    )
    assert serve.wait() == 1
    assert serve.stdout == ""
    assert serve.stderr == f"error: creating server: Internal - failed to stat file {tmp_path / 'nowhere'}\n"
    warning = (
        r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ W \d+ serve\.py:\d+\] --buffer-manager-thread-count has no effect in this .*"
    )
    assert re.fullmatch(warning, log.read_text().splitlines()[0])


@pytest.mark.parametrize(
    ("words", "first", "more"),
    [
        ("--bogus", "unrecognized option '--bogus'", []),
        (
            "stray",
            "Unexpected argument: stray",
            ["there is no directory 'stray'; words that are no flags are directories, or Python files (app.py, …)"],
        ),
        (
            "--model-control-mode=x",
            'Bad option: "--model-control-mode".',
            [
                "invalid argument for --model-control-mode. Got x",
                "--model-control-mode takes one of: none, poll, explicit, on-demand",
            ],
        ),
    ],
)
def test_a_command_line_that_cannot_be_read(start_serve: Callable, words: str, first: str, more: list[str]) -> None:
    serve = start_serve(*words.split(), on_loopback=False)
    assert serve.wait() == 1
    assert serve.stdout == ""
    assert serve.stderr.splitlines() == [f"trireme serve: {first}", *more, "see: trireme serve --help"]


def test_deprecated_flags_are_warned_about_on_stderr(start_serve: Callable) -> None:
    serve = start_serve("--strict-model-config=true")
    assert serve.wait() == 1
    assert serve.stderr.startswith(
        "Warning: '--strict-model-config' has been deprecated! Please use '--disable-auto-complete-config' instead.\n"
    )


def test_the_limit_of_open_files_is_raised_and_told_if_it_stays_low(tmp_path: Path) -> None:
    limited = 'ulimit -Sn 256 && ulimit -Hn 512 && exec "$@"'
    serve = (str(Path(sys.executable).with_name("trireme")), "serve", f"--model-repository={tmp_path / 'nowhere'}")
    process = subprocess.run(["sh", "-c", limited, "sh", *serve], capture_output=True, text=True, timeout=60)
    assert process.returncode == 1
    assert "connections are limited by the 512 files that the process may have open (ulimit -Hn)" in process.stdout
