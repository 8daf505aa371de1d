"""`trireme sagemaker` (docs/reference/cloud-front-ends.md#started-by-sagemaker)."""

from __future__ import annotations

import stat
import subprocess
import sys
from pathlib import Path

import pytest

from trireme.api.cli.command import build_command
from trireme.api.cli.flag_table import FLAGS
from trireme.api.cli.flags import parse
from trireme.api.cli.sagemaker import launch


def launched(tmp_path: Path, **environment: str) -> tuple[list[str], dict[str, str]]:
    return launch(environment, tmp_path / "several", lambda: 2, tmp_path / "one")


@pytest.fixture
def one(tmp_path: Path) -> Path:
    (tmp_path / "one" / "resnet" / "1").mkdir(parents=True)
    return tmp_path / "one"


def test_the_only_model_is_served(tmp_path: Path, one: Path) -> None:
    words, settings = launched(tmp_path)
    assert words == [
        *("--allow-sagemaker=true", "--allow-http=false", "--model-control-mode=explicit"),
        *(f"--model-repository={one}", "--model-namespacing=true", "--allow-grpc=false", "--allow-metrics=false"),
        *("--log-verbose=true", "--backend-config=python,shm-default-byte-size=16777216"),
        *("--backend-config=python,shm-growth-byte-size=1048576", "--load-model=resnet"),
    ]
    assert settings == {
        "SAGEMAKER_TRITON_PING_MODE": "ready",
        "SAGEMAKER_TRITON_DEFAULT_MODEL_NAME": "resnet",
    }


def test_an_endpoint_of_several_models_begins_without_any(tmp_path: Path) -> None:
    words, settings = launched(tmp_path, SAGEMAKER_MULTI_MODEL="true", SAGEMAKER_TRITON_DEFAULT_MODEL_NAME="x")
    assert f"--model-repository={tmp_path / 'several'}" in words
    assert not any(word.startswith("--load-model") for word in words)
    assert list((tmp_path / "several").iterdir()) == []
    assert settings == {"SAGEMAKER_TRITON_PING_MODE": "live"}


def test_a_repository_that_others_may_change_is_not_used(tmp_path: Path) -> None:
    """It is where everyone may write, and there from an earlier start."""
    several = tmp_path / "several"
    launched(tmp_path, SAGEMAKER_MULTI_MODEL="true")
    assert stat.S_IMODE(several.stat().st_mode) == 0o700
    launched(tmp_path, SAGEMAKER_MULTI_MODEL="true")
    error = f"^ERROR: {several} is not a directory that only this user may write to$"
    several.chmod(0o770)
    with pytest.raises(ValueError, match=error):
        launched(tmp_path, SAGEMAKER_MULTI_MODEL="true")
    several.chmod(0o700)
    several.rename(tmp_path / "others")
    several.symlink_to(tmp_path / "others")
    with pytest.raises(ValueError, match=error):
        launched(tmp_path, SAGEMAKER_MULTI_MODEL="true")
    several.unlink()
    several.touch()
    with pytest.raises(ValueError, match=error):
        launched(tmp_path, SAGEMAKER_MULTI_MODEL="true")


def test_every_variable_is_a_flag_that_is_there(tmp_path: Path, one: Path) -> None:
    names = {
        "DISABLE_MODEL_NAMESPACING": "false",
        "ALLOW_GRPC": "true",
        "ALLOW_METRICS": "true",
        "GRPC_PORT": "8011",
        "METRICS_PORT": "8012",
        "THREAD_COUNT": "3",
        "BUFFER_MANAGER_THREAD_COUNT": "2",
        "LOG_VERBOSE": "0",
        "LOG_INFO": "false",
        "LOG_WARNING": "true",
        "LOG_ERROR": "true",
        "SHM_DEFAULT_BYTE_SIZE": "1",
        "SHM_GROWTH_BYTE_SIZE": "2",
        "MODEL_LOAD_GPU_LIMIT": "0.5",
        "OVERRIDE_PING_MODE": "live",
        "ADDITIONAL_ARGS": "--id 'my server' --exit-timeout-secs=5",
    }
    given = {f"SAGEMAKER_TRITON_{name}": value for name, value in names.items()}
    ports = {"SAGEMAKER_BIND_TO_PORT": "8010", "SAGEMAKER_SAFE_PORT_RANGE": "8000-8100"}
    words, settings = launched(tmp_path, **given, **ports)
    made = build_command(parse(words, FLAGS), settings)
    assert made.sagemaker is not None
    assert made.grpc is not None
    assert made.metrics is not None
    assert made.http is None
    assert made.sagemaker.service.bind == ("0.0.0.0:8010",)
    assert made.sagemaker.platform.ping == "live"
    assert made.sagemaker.platform.default_model == "resnet"
    assert (made.grpc.service.bind, made.metrics.service.bind) == (("0.0.0.0:8011",), ("0.0.0.0:8012",))
    assert (made.log.info, made.log.verbose) == (False, 0)
    server = made.server
    assert (server.server_id, server.exit_timeout_s, server.model_namespacing) == ("my server", 5, False)
    assert server.gpu_limits.load_fractions == {0: 0.5, 1: 0.5}
    assert server.startup_models == ("resnet",)
    assert server.backend_config["python"] == {"shm-default-byte-size": "1", "shm-growth-byte-size": "2"}


@pytest.mark.parametrize(
    ("made", "wanted", "error"),
    [
        ([], "", "No model found in model repository"),
        (["a/1", "b/1"], "", "More than 1 model directory found in model repository: a, b"),
        (["a/1"], "c", "Directory with provided SAGEMAKER_TRITON_DEFAULT_MODEL_NAME c does not exist"),
    ],
)
def test_which_model_is_meant_must_be_clear(tmp_path: Path, made: list[str], wanted: str, error: str) -> None:
    for each in ["", *made]:
        (tmp_path / "one" / each).mkdir(parents=True, exist_ok=True)
    with pytest.raises(ValueError, match=f"^ERROR: {error}"):
        launched(tmp_path, SAGEMAKER_TRITON_DEFAULT_MODEL_NAME=wanted)


def test_a_model_is_no_repository(tmp_path: Path, one: Path) -> None:
    (one / "config.pbtxt").write_text("")
    with pytest.raises(ValueError, match=r"^ERROR: Incorrect directory structure"):
        launched(tmp_path)


def test_the_command_says_what_is_missing() -> None:
    """There is no such directory on a machine that is none of the platform's."""
    code = "import sys; from trireme.api.cli.main import main; sys.exit(main(['sagemaker']))"
    environment = {"SAGEMAKER_TRITON_DEFAULT_MODEL_NAME": "no such model"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("ERROR: Directory with provided SAGEMAKER_TRITON_DEFAULT_MODEL_NAME")
