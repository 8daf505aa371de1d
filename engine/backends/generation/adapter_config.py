"""What the ``adapter_config.json`` of an adapter says, as PEFT writes it (docs/generation.md#adapters).

What it says that would change what is computed, and is not computed here, is an error.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...config.adapters import read_object
from ...errors import InvalidArgumentError, UnavailableError

CONFIG_FILE, WEIGHTS_FILE = "adapter_config.json", "adapter_model.safetensors"

ALL_LINEAR = "all-linear"
"""PEFT's word for all linear layers but the last one."""

_OF_NO_WEIGHT = frozenset(
    {
        "auto_mapping",
        "base_model_name_or_path",
        "corda_config",
        "ensure_weight_tying",
        "eva_config",
        "fan_in_fan_out",  # how weights would be merged
        "inference_mode",
        "init_lora_weights",
        "loftq_config",
        "lora_dropout",
        "lora_ga_config",
        "megatron_config",
        "megatron_core",
        "peft_type",
        "peft_version",
        "qalora_group_size",
        "revision",
        "runtime_config",
        "task_type",
    }
)
"""What has been of use in training, or is looked at by itself."""

_READ = frozenset(
    {
        "alpha_pattern",
        "bias",
        "exclude_modules",
        "layers_pattern",
        "layers_to_transform",
        "lora_alpha",
        "r",
        "rank_pattern",
        "target_modules",
        "use_rslora",
    }
)

_CHANGING_THE_NETWORK = ("corda", "loftq", "lora_ga", "olora", "pissa")
"""Ways to begin training that change the network's own weights: the adapter alone is not enough then."""


@dataclass(frozen=True, slots=True)
class AdapterConfig:
    """What an adapter is.

    Args:
        directory: of its files.

    Raises:
        UnavailableError: a file is missing.
        InvalidArgumentError: it is none, or one that cannot be computed here.
    """

    directory: Path
    settings: Mapping[str, Any]

    @classmethod
    def read(cls, directory: Path) -> AdapterConfig:
        """That of a folder. See the class for what it raises."""
        for file in (CONFIG_FILE, WEIGHTS_FILE):
            if not (directory / file).is_file():
                raise UnavailableError(f"unable to find '{directory / file}'; expected an adapter as PEFT stores it")
        config = cls(directory, read_object(directory / CONFIG_FILE))
        config._check()
        return config

    def targets(self, path: str) -> bool:
        """Whether it adds to a layer, by the path of the layer in the network; of `ALL_LINEAR`, whether it may."""
        given, excluded = self.settings["target_modules"], self.settings.get("exclude_modules")
        if excluded and _named(excluded, path):
            return False
        if isinstance(given, str):
            return self.all_linear or re.fullmatch(given, path) is not None
        if path in given:
            return True
        return _named(given, path) and self._of_layer(path)

    @property
    def all_linear(self) -> bool:
        given = self.settings["target_modules"]
        return isinstance(given, str) and given.lower() == ALL_LINEAR

    def rank(self, path: str) -> int:
        """Of what it adds to a layer."""
        return self._by_pattern("rank_pattern", path, self.settings.get("r", 8))

    def scale(self, path: str) -> float:
        """By which that is multiplied."""
        alpha, rank = self._by_pattern("alpha_pattern", path, self.settings.get("lora_alpha", 8)), self.rank(path)
        return alpha / math.sqrt(rank) if self.settings.get("use_rslora") else alpha / rank

    def _by_pattern(self, name: str, path: str, default: Any) -> Any:
        for pattern, value in (self.settings.get(name) or {}).items():
            if re.match(rf"(.*\.)?({pattern})$", path):
                return value
        return default

    def _of_layer(self, path: str) -> bool:
        """Whether it is in one of the layers that the adapter is for."""
        numbers, patterns = self.settings.get("layers_to_transform"), self.settings.get("layers_pattern")
        if numbers is None or numbers == []:
            return True
        patterns = [patterns] if isinstance(patterns, str) else patterns
        for pattern in patterns or [r"[^.]*"]:
            found = re.match(rf"(?:^|.*?\.){pattern}\.(\d+)\.", path)
            if found is not None:
                return int(found[1]) in ([numbers] if isinstance(numbers, int) else numbers)
        return False

    # ---- what is read, and what is refused ----

    def _check(self) -> None:
        given = self.settings
        if given.get("peft_type") != "LORA":
            raise self._wrong("peft_type", "'LORA'")
        if given.get("task_type") not in (None, "CAUSAL_LM"):
            raise self._wrong("task_type", "'CAUSAL_LM'")
        if given.get("bias", "none") != "none":
            raise self._wrong("bias", "'none', as biases of its own are not supported")
        start = given.get("init_lora_weights")
        if isinstance(start, str) and start.lower().startswith(_CHANGING_THE_NETWORK):
            raise self._wrong("init_lora_weights", "one that leaves the network's own weights as they are")
        for name, value in given.items():
            if name not in _OF_NO_WEIGHT and name not in _READ and value:
                raise InvalidArgumentError(f"'{self._path}': '{name}' is not supported")
        self._check_numbers()
        self._check_names()

    def _check_numbers(self) -> None:
        for name, value in {"r": self.settings.get("r", 8), **self._pattern("rank_pattern")}.items():
            if type(value) is not int or value < 1:
                raise self._wrong(name, "an integer of 1 or more", value)
        for name, value in {"lora_alpha": self.settings.get("lora_alpha", 8), **self._pattern("alpha_pattern")}.items():
            if type(value) not in (int, float) or not math.isfinite(value):
                raise self._wrong(name, "a number", value)
        numbers = self.settings.get("layers_to_transform")
        if numbers is not None and not all(
            type(each) is int for each in (numbers if isinstance(numbers, list) else [numbers])
        ):
            raise self._wrong("layers_to_transform", "an integer, or an array of integers")

    def _check_names(self) -> None:
        if not self.settings.get("target_modules"):
            raise self._wrong("target_modules", "a regular expression, or an array of names")
        for name in ("target_modules", "exclude_modules", "layers_pattern"):
            value = self.settings.get(name)
            texts = value if isinstance(value, list) else [] if value is None else [value]
            if not all(isinstance(each, str) for each in texts):
                raise self._wrong(name, "a regular expression, or an array of names")
            patterns = texts if name == "layers_pattern" or isinstance(value, str) else []
            for pattern in patterns:
                self._check_pattern(name, pattern)

    def _pattern(self, name: str) -> Mapping[str, Any]:
        value = self.settings.get(name)
        if value is None:
            return {}
        if not isinstance(value, dict):
            raise self._wrong(name, "an object")
        for pattern in value:
            self._check_pattern(name, pattern)
        return {f"{name}.{pattern}": each for pattern, each in value.items()}

    def _check_pattern(self, name: str, pattern: str) -> None:
        try:
            re.compile(pattern)
        except re.error as error:
            raise InvalidArgumentError(
                f"'{self._path}': '{name}' has the regular expression '{pattern}': {error}"
            ) from None

    def _wrong(self, name: str, expected: str, value: object = ...) -> InvalidArgumentError:
        shown = json.dumps(self.settings.get(name) if value is ... else value)
        return InvalidArgumentError(f"'{self._path}': '{name}' is {shown}; expected {expected}")

    @property
    def _path(self) -> Path:
        return self.directory / CONFIG_FILE


def _named(names: Any, path: str) -> bool:
    """By a regular expression for all of it, or by one of several names that it ends with."""
    if isinstance(names, str):
        return re.fullmatch(names, path) is not None
    return any(path == name or path.endswith(f".{name}") for name in names)
