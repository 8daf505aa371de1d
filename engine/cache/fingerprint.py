"""What tells one load of a model from another in a cache that other servers share, or that was there before."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

from ..backends.interface import ModelFiles
from ..config.model import ModelConfig
from ..errors import InternalError


def fingerprint(config: ModelConfig, files: ModelFiles, members: Sequence[str]) -> str:
    """A digest of a model version: its configuration, the files in its version's directory, and its members.

    Two servers with copies of one model get the same; a model that was changed under the same version does not.

    Args:
        members: the fingerprints of an ensemble's steps.

    Raises:
        InternalError: a file cannot be read.
    """
    message = b"" if config.message is None else config.message.SerializeToString(deterministic=True)
    digest = hashlib.sha256(message)
    for member in members:
        digest.update(member.encode())
    try:
        for path in _files(files.version_directory):
            name = os.fsencode(path.relative_to(files.version_directory))
            digest.update(b"%b:%d:" % (name, path.stat().st_size))
            with path.open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
    except OSError as error:
        raise InternalError(f"cannot read the files of model '{config.name}' for its cache keys: {error}") from error
    return f"{config.name}:{files.version}:{digest.hexdigest()}"


def _files(directory: Path) -> list[Path]:
    return sorted(path for path in directory.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
