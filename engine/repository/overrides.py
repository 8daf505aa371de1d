"""A model whose files came with the load request (docs/reference/model-control.md#load-parameters)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from ..errors import InternalError, InvalidArgumentError
from ..temporary import TemporaryFolder
from ..tensor import Buffer
from .load_parameters import FILE_PREFIX
from .local import LocalModel


class OverrideModel(LocalModel):
    """A model directory that consists of the given files only, in a temporary place of its own.

    Args:
        name: the model's.
        files: contents by load parameter, ``file:<path relative to the model directory>``.
        shared: other users than the server's read them, too.

    Raises:
        InvalidArgumentError: a path leaves the model directory, or is a directory and a file.
        InternalError: a file cannot be written.
    """

    def __init__(self, name: str, files: Mapping[str, Buffer], *, shared: bool = False) -> None:
        self._folder: TemporaryFolder | None = None
        written = False
        try:
            self._folder = TemporaryFolder("model")
            super().__init__(self._folder.path / name)
            os.mkdir(self.directory)
            for key, content in files.items():
                _write(self.directory, key, content)
            if shared:
                self._folder.share()
            written = True
        except (OSError, ValueError) as error:  # a ValueError: nothing can have such a name
            reason = error.strerror if isinstance(error, OSError) else error
            raise InternalError(f"failed to write the files of model '{name}': {reason}") from error
        finally:
            if not written:
                self.dispose()

    @property
    def temporary(self) -> bool:
        return True

    def dispose(self) -> None:
        """Remove the directory; a second call does nothing."""
        if self._folder is not None:
            self._folder.remove()


MAX_DEPTH = 100
"""Directories that a file may be in, one in the other."""


def _write(directory: Path, key: str, content: Buffer) -> None:
    relative = key.removeprefix(FILE_PREFIX).lstrip("/")
    path = os.path.normpath(os.path.join(directory, relative))
    if not path.startswith(f"{directory}{os.sep}") or "\0" in path:
        raise InvalidArgumentError(
            f"Invalid file parameter '{key}' with normalized path '{path}' must stay within model directory."
        )
    if path.count(os.sep) - str(directory).count(os.sep) > MAX_DEPTH:
        raise InvalidArgumentError(f"Invalid file parameter '{key}', it is more than {MAX_DEPTH} directories deep")
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb", buffering=0) as file:
            rest = memoryview(content)
            while rest:  # a call writes 2 GiB at most
                rest = rest[file.write(rest) :]
    except (IsADirectoryError, FileExistsError, NotADirectoryError) as error:
        raise InvalidArgumentError(f"Invalid file parameter '{key}', directory has been created as a file") from error
