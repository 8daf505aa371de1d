"""`trireme sagemaker`: the server as SageMaker starts it, told by the environment alone
(docs/reference/cloud-front-ends.md#started-by-sagemaker)."""

from __future__ import annotations

import os
import shlex
import stat
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

ONE_MODEL = Path("/opt/ml/model")
"""Where the platform puts the only model of an endpoint, in a directory of its own."""

_PREFIX = "SAGEMAKER_TRITON_"
_DEFAULT_MODEL = f"{_PREFIX}DEFAULT_MODEL_NAME"
_PING = f"{_PREFIX}PING_MODE"

_FLAGS = (
    (f"{_PREFIX}DISABLE_MODEL_NAMESPACING", "--model-namespacing={}", "true"),
    ("SAGEMAKER_BIND_TO_PORT", "--sagemaker-port={}", ""),
    ("SAGEMAKER_SAFE_PORT_RANGE", "--sagemaker-safe-port-range={}", ""),
    (f"{_PREFIX}THREAD_COUNT", "--sagemaker-thread-count={}", ""),
    (f"{_PREFIX}BUFFER_MANAGER_THREAD_COUNT", "--buffer-manager-thread-count={}", ""),
    (f"{_PREFIX}ALLOW_GRPC", "--allow-grpc={}", "false"),
    (f"{_PREFIX}ALLOW_METRICS", "--allow-metrics={}", "false"),
    (f"{_PREFIX}GRPC_PORT", "--grpc-port={}", ""),
    (f"{_PREFIX}METRICS_PORT", "--metrics-port={}", ""),
    (f"{_PREFIX}LOG_VERBOSE", "--log-verbose={}", "true"),
    (f"{_PREFIX}LOG_INFO", "--log-info={}", ""),
    (f"{_PREFIX}LOG_WARNING", "--log-warning={}", ""),
    (f"{_PREFIX}LOG_ERROR", "--log-error={}", ""),
    (f"{_PREFIX}SHM_DEFAULT_BYTE_SIZE", "--backend-config=python,shm-default-byte-size={}", "16777216"),
    (f"{_PREFIX}SHM_GROWTH_BYTE_SIZE", "--backend-config=python,shm-growth-byte-size={}", "1048576"),
)
"""Variable, flag, and the value that it has if the variable is empty or not there; without one there is no flag."""


def launch(
    environment: Mapping[str, str], several: Path, count_gpus: Callable[[], int], one: Path = ONE_MODEL
) -> tuple[list[str], dict[str, str]]:
    """The command line of `trireme serve`, and the variables that are to be set for it.

    Args:
        several: the repository of an endpoint of several models, which is empty: the platform loads them.
        one: that of an endpoint of one.

    Raises:
        ValueError: the model that is to be served cannot be told; or `several` is a directory that others may change.
    """
    if environment.get("SAGEMAKER_MULTI_MODEL") == "true":
        _make_own(several)
        repository, settings, model = several, {_PING: "live"}, ""
    else:
        model = _only_model(environment.get(_DEFAULT_MODEL, ""), one)
        repository, settings = one, {_PING: "ready", _DEFAULT_MODEL: model}
    if ping := environment.get(f"{_PREFIX}OVERRIDE_PING_MODE"):
        settings[_PING] = ping
    words = ["--allow-sagemaker=true", "--allow-http=false", "--model-control-mode=explicit"]
    words += [f"--model-repository={repository}", *_words(environment)]
    if limit := environment.get(f"{_PREFIX}MODEL_LOAD_GPU_LIMIT"):
        words += [f"--model-load-gpu-limit={gpu}:{limit}" for gpu in range(count_gpus())]
    if model:
        words.append(f"--load-model={model}")
    return words + shlex.split(environment.get(f"{_PREFIX}ADDITIONAL_ARGS", "")), settings


def _make_own(directory: Path) -> None:
    """A directory that only the server's user may change: it may be there from an earlier start.

    Raises:
        ValueError: there is something else, or it cannot be made.
    """
    try:
        directory.mkdir(mode=0o700, parents=True)
    except FileExistsError:
        found = directory.lstat()
        mine = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
        if not mine or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise ValueError(f"ERROR: {directory} is not a directory that only this user may write to") from None
    except OSError as error:
        raise ValueError(f"ERROR: {directory} cannot be made: {error.strerror}") from error


def _words(environment: Mapping[str, str]) -> Iterator[str]:
    for variable, flag, default in _FLAGS:
        if value := environment.get(variable) or default:
            yield flag.format(value)


def _only_model(wanted: str, repository: Path) -> str:
    """The model of an endpoint of one.

    Args:
        wanted: its name; empty for the only one.

    Raises:
        ValueError: it is not there, or there is not exactly one; or the directory is a model's.
    """
    if (repository / "config.pbtxt").is_file():
        raise ValueError("ERROR: Incorrect directory structure. Model directory needs to contain the top level folder")
    if wanted:
        if not (repository / wanted).is_dir():
            raise ValueError(f"ERROR: Directory with provided {_DEFAULT_MODEL} {wanted} does not exist")
        return wanted
    try:
        found = sorted(each.name for each in repository.iterdir() if each.is_dir())
    except OSError as error:
        raise ValueError(f"ERROR: No model found in model repository: {repository}: {error.strerror}") from error
    if len(found) != 1:
        what = f"More than 1 model directory found in model repository: {', '.join(found)}" if found else ""
        raise ValueError(
            f"ERROR: {what or 'No model found in model repository'}. Provide a single directory, or set "
            f"{_DEFAULT_MODEL}"
        )
    return found[0]
