"""The commands of the image, run without it."""

from __future__ import annotations

import os
import re
import runpy
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from repository_models import link_models

COMMANDS = Path(__file__).parents[2] / "deploy" / "container"
PATIENCE_S = 60.0
LOOPBACK = ("--http-address=127.0.0.1", "--grpc-address=127.0.0.1", "--front-ends=0")


@pytest.fixture
def environment() -> dict[str, str]:
    """In which the image's commands are found, and this tree's `trireme`."""
    path = os.pathsep.join((str(COMMANDS), str(Path(sys.executable).parent), os.environ["PATH"]))
    return {**os.environ, "PATH": path}


def run(*words: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(COMMANDS / "trireme-run"), *words],
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


@pytest.mark.parametrize("words", [("tritonserver", "--help"), ("--help",)])
def test_tritonserver_is_the_servers_command_line(words: tuple[str, ...], environment: dict[str, str]) -> None:
    done = run(*words, environment=environment)
    assert (done.returncode, done.stdout) == (1, "")
    assert "--model-repository <string>" in done.stderr


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("tritonserver", "--no-such-flag"), "unrecognized option '--no-such-flag'"),
        (("tritonserver", "--model-repository=nowhere"), "failed to stat file nowhere"),
        (("serve",), "ERROR: Directory with provided SAGEMAKER_TRITON_DEFAULT_MODEL_NAME"),
    ],
)
def test_its_exit_codes_are_the_servers(words: tuple[str, ...], told: str, environment: dict[str, str]) -> None:
    done = run(*words, environment={**environment, "SAGEMAKER_TRITON_DEFAULT_MODEL_NAME": "no such model"})
    assert (done.returncode, told in done.stderr) == (1, True), done.stderr


@pytest.fixture
def served(tmp_path: Path, environment: dict[str, str]) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A server that the entry point has started, and its HTTP port."""
    models = link_models(tmp_path / "models", "identity_fp32")
    words = [str(COMMANDS / "trireme-run"), "tritonserver", f"--model-repository={models}", *LOOPBACK]
    words += ["--http-port=0", "--grpc-port=0", "--metrics-port=0"]
    process = subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert process.stdout is not None
        port = 0
        for line in process.stdout:
            if found := re.search(r"Started HTTPService at 127\.0\.0\.1:(\d+)", line):
                port = int(found[1])
            if "Started Metrics Service" in line:
                break
        yield process, port
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    ("flags", "variables", "url"),
    [
        ("tritonserver --model-repository=/models", {}, "http://127.0.0.1:8000/v2/health/live"),
        ("serve --http-port 80 --http-address ::1", {}, "http://[::1]:80/v2/health/live"),
        ("serve --http-port=80 --http-address=10.0.0.1", {}, "http://10.0.0.1:80/v2/health/live"),
        ("serve --http-use-ssl=1 --http-server-cert=c", {}, "https://127.0.0.1:8000/v2/health/live"),
        ("serve --allow-http=False --http-address=::", {}, "http://[::1]:8002/metrics"),
        ("serve --allow-http off --metrics-port=9 --metrics-address=1.2.3.4", {}, "http://1.2.3.4:9/metrics"),
        ("serve --allow-http=0 --allow-metrics=0 --http-address=1.2.3.4", {}, "tcp://127.0.0.1:8001"),
        ("serve --allow-http=false --allow-sagemaker=true --sagemaker-port=81", {}, "tcp://127.0.0.1:81"),
        ("sagemaker", {}, "tcp://127.0.0.1:8080"),
        ("sagemaker", {"SAGEMAKER_BIND_TO_PORT": "82"}, "tcp://127.0.0.1:82"),
        ("serve", {"AIP_MODE": "PREDICTION", "AIP_HTTP_PORT": "83"}, "tcp://127.0.0.1:83"),
        ("serve --allow-http=true", {"AIP_MODE": "PREDICTION"}, "http://127.0.0.1:8000/v2/health/live"),
    ],
)
def test_the_health_check_asks_where_the_server_is(flags: str, variables: dict[str, str], url: str) -> None:
    health = runpy.run_path(str(COMMANDS / "trireme-health"))
    assert health["place"](["/opt/trireme/bin/python", "/opt/trireme/bin/trireme", *flags.split()], variables) == url


def test_the_health_check_tells_whether_it_lives(
    served: tuple[subprocess.Popen[str], int], environment: dict[str, str]
) -> None:
    """And the signal that stops a container ends it: the entry point is the server by then."""
    process, port = served
    asked = {**environment, "HEALTH_URL": f"http://127.0.0.1:{port}/v2/health/live"}
    assert run("trireme-health", environment=asked).returncode == 0
    asked["HEALTH_URL"] = f"tcp://127.0.0.1:{port}"
    assert run("trireme-health", environment=asked).returncode == 0
    asked["HEALTH_URL"] = f"http://127.0.0.1:{port}/v2/models/none/ready"
    assert run("trireme-health", environment=asked).returncode == 1
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0
    done = run("trireme-health", environment=asked)
    assert (done.returncode, done.stderr.startswith(asked["HEALTH_URL"])) == (1, True)
    assert run("trireme-health", str(process.pid), environment=environment).returncode == 1
