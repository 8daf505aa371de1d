"""Where a profile comes from, and whether it still speaks of what is there now: the model's files and settings, the
versions of what executes it, and the machine."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from importlib import metadata
from pathlib import Path
from typing import Any

from ..config.json_text import write_json
from ..config.model import ModelConfig, copy_message
from ..config.platforms import GENERATION
from ..errors import InvalidArgumentError
from ..host_policies import usable_cores
from ..version import VERSION

_LIBRARIES = {
    GENERATION: ("torch", "transformers"),
    "onnxruntime": ("onnxruntime", "onnxruntime-gpu"),
    "openvino": ("openvino",),
    "pytorch": ("torch",),
    "tensorflow": ("tensorflow", "tensorflow-cpu"),
    "tensorrt": ("tensorrt-cu13", "tensorrt-cu12", "tensorrt"),
}
"""The packages that execute a backend's models."""

_SCHEDULING = (
    *("name", "instance_group", "dynamic_batching", "sequence_batching", "version_policy", "model_warmup"),
    *("max_batch_size", "response_cache", "metric_tags"),
)
"""Fields of a configuration on which the time of a batch of some size does not depend."""

_STEP_SCHEDULING = (
    *("max_running", "max_tokens_per_step", "kv_tokens", "kv_bytes", "swap_tokens", "spare_blocks"),
    *("prefix_sharing", "warm_up"),
)
"""The same of parameters of models that generate text."""

_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class ProfileOrigin:
    """Where a profile comes from.

    Attributes:
        date: when it was made, as ISO 8601 has it.
        machine: the processor's name, and the accelerators'.
        cores: that the server may use.
        versions: by package: `trireme`, `python`, and what executes the model.
        files: digest of the model's files, without its configuration.
        settings: digest of what its configuration says but for scheduling.
    """

    date: str
    machine: str
    cores: int
    versions: Mapping[str, str]
    files: str
    settings: str

    def changes(self, now: ProfileOrigin) -> tuple[str, ...]:
        """Why a profile of this origin does not speak of what is there `now`, in words; empty if it does."""
        return tuple(self._changes(now))

    def _changes(self, now: ProfileOrigin) -> Iterator[str]:
        if self.files != now.files:
            yield "the model's files have changed"
        if self.settings != now.settings:
            yield "the model's configuration has changed"
        for name in sorted({*self.versions, *now.versions}):
            before, after = self.versions.get(name, "none"), now.versions.get(name, "none")
            if before != after:
                yield f"{name} was {before} and is {after}"
        if self.machine != now.machine:
            yield f"the machine was '{self.machine}' and is '{now.machine}'"
        if self.cores != now.cores:
            yield f"there were {self.cores} cores and are {now.cores}"

    @classmethod
    def from_json(cls, value: Any, where: str) -> ProfileOrigin:
        """What `dataclasses.asdict` made of one.

        Raises:
            InvalidArgumentError: it is something else.
        """
        names = [field.name for field in fields(cls)]
        if not isinstance(value, dict) or set(value) != set(names):
            raise InvalidArgumentError(f"{where}: expected an object with {', '.join(names)}")
        for name in ("date", "machine", "files", "settings"):
            if not isinstance(value[name], str):
                raise InvalidArgumentError(f"{where}.{name}: expected a text, not {value[name]!r}")
        cores, versions = value["cores"], value["versions"]
        if isinstance(cores, bool) or not isinstance(cores, int) or cores < 1:
            raise InvalidArgumentError(f"{where}.cores: expected a whole number from 1 on, not {cores!r}")
        if not isinstance(versions, dict) or not all(isinstance(each, str) for each in versions.values()):
            raise InvalidArgumentError(f"{where}.versions: expected texts by name")
        return cls(**value)


def present_origin(directory: Path, config: ModelConfig, date: str, gpus: tuple[str, ...] = ()) -> ProfileOrigin:
    """That of a profile made now.

    Args:
        directory: the model's.
        config: as written and normalised (`ModelSource.open`), before a backend completes it.
        gpus: their names.

    Raises:
        OSError: a file cannot be read.
    """
    return ProfileOrigin(
        date=date,
        machine=", ".join([_processor(), *gpus]),
        cores=usable_cores(),
        versions=_versions(config.backend),
        files=_files_digest(directory),
        settings=_settings_digest(config),
    )


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _versions(backend: str) -> dict[str, str]:
    versions = {"trireme": VERSION, "python": platform.python_version()}
    for package in _LIBRARIES.get(backend, ()):
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return versions


def _files_digest(directory: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(directory.rglob("*")):
        inside = path.relative_to(directory)
        written = inside.name.endswith(".pbtxt") or inside.parts[0] == "configs" or "__pycache__" in inside.parts
        if written or not path.is_file():
            continue
        digest.update(f"{inside.as_posix()}\0{path.stat().st_size}\0".encode())
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK):
                digest.update(chunk)
    return digest.hexdigest()


def _settings_digest(config: ModelConfig) -> str:
    message = copy_message(config.message)
    kinds = sorted({group.kind for group in config.instance_group})
    for name in _SCHEDULING:
        message.ClearField(name)
    if config.backend == GENERATION:
        for name in _STEP_SCHEDULING:
            message.parameters.pop(name, None)
    return hashlib.sha256(write_json(message) + "".join(kinds).encode()).hexdigest()
