"""The agent that loads a model only if its files are what they should be
(docs/reference/model-control.md#repository-agents).

model_repository_agents { agents [ { name: "checksum"
  parameters { key: "MD5:1/model.onnx" value: "d41d8cd98f00b204e9800998ecf8427e" } } ] }
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from ..config.files import path_within
from ..errors import InternalError, InvalidArgumentError, NotFoundError
from .agents import AgentAction, AgentModel, RepositoryAgent

_BLOCK_BYTES = 1 << 20


class ChecksumAgent(RepositoryAgent):
    """Each parameter is ``<algorithm>:<file relative to the model's directory>`` and the digest in hexadecimal."""

    def act(self, action: AgentAction, model: AgentModel) -> Path | None:
        """Compare, at LOAD.

        Raises:
            InvalidArgumentError: a file differs, or a parameter is no such thing or leads out of the directory.
            InternalError: a file cannot be read.
        """
        if action is AgentAction.LOAD:
            for key, expected in self.parameters.items():
                _check(model.directory, key, expected)
        return None


def _check(directory: Path, key: str, expected: str) -> None:
    algorithm, colon, name = key.partition(":")
    if not colon:
        raise InvalidArgumentError(f"failed to parse key: {key}")
    if algorithm.upper() != "MD5":
        raise InvalidArgumentError(f"Unsupported checksum algorithm: {key}")
    path = path_within(directory, "", name)
    if path is None:
        raise InvalidArgumentError(f"checksum file '{name}' is outside the model's directory")
    digest = _md5(str(path))
    if digest != expected.lower():
        raise InvalidArgumentError(f"Mismatched MD5 hash for file {path}, expect: {expected}, got: {digest}")


def _md5(path: str) -> str:
    digest = hashlib.md5(usedforsecurity=False)
    try:
        with open(path, "rb") as file:
            while block := file.read(_BLOCK_BYTES):
                digest.update(block)
    except FileNotFoundError as error:
        raise NotFoundError(f"failed to open text file for read {path}: {error.strerror}") from error
    except OSError as error:
        raise InternalError(f"failed to open text file for read {path}: {error.strerror}") from error
    return digest.hexdigest()
