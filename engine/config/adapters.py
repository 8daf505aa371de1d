"""Which adapters (LoRA) a model of language has: names, by which requests choose one.

``multi_lora.json`` is the file of Triton's vLLM backend: an object of folders by name.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import InvalidArgumentError

logger = logging.getLogger("trireme.config")

_FOLDER, _NAMES, _VLLM_SETTINGS = "adapters", "multi_lora.json", "model.json"


def find_adapters(directory: Path) -> dict[str, Path]:
    """The folder of each adapter, by name, in the order of names: those in the folder ``adapters``, and those that
    ``multi_lora.json`` names.

    Args:
        directory: of the version.

    Raises:
        InvalidArgumentError: ``multi_lora.json`` is not an object of texts, or names one that is in the folder, too.
    """
    found: dict[str, Path] = {}
    folder = directory / _FOLDER
    if folder.is_dir():
        found = {each.name: each for each in folder.iterdir() if each.is_dir() and not each.name.startswith(".")}
    path = directory / _NAMES
    if path.is_file():
        for name, where in read_object(path).items():
            if not name or not isinstance(where, str) or not where:
                raise InvalidArgumentError(f"'{path}': expected names of adapters, each with its folder")
            if name in found:
                raise InvalidArgumentError(f"'{path}' names the adapter '{name}', which is in '{folder}', too")
            found[name] = directory / where
    return dict(sorted(found.items()))


def vllm_adapters(directory: Path) -> tuple[str, ...]:
    """Those of a model for Triton's vLLM backend: what ``multi_lora.json`` names, if ``model.json`` says
    ``enable_lora``. Files that are not as they should be are for the model to complain of.

    Args:
        directory: of the version.
    """
    settings, names = directory / _VLLM_SETTINGS, directory / _NAMES
    if not settings.is_file() or not names.is_file():
        return ()
    try:
        enabled = str(read_object(settings).get("enable_lora", "")).lower() == "true"
        return tuple(sorted(read_object(names))) if enabled else ()
    except InvalidArgumentError as error:
        logger.warning("no adapters are known: %s", error)
        return ()


def read_object(path: Path) -> Mapping[str, Any]:
    """A file with a JSON object. InvalidArgumentError if it is none."""
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise InvalidArgumentError(f"unable to read '{path}': {error}") from None
    if not isinstance(found, dict):
        raise InvalidArgumentError(f"unable to read '{path}': expected a JSON object")
    return found
