"""Whether a file that comes with a load request may hold code (``--allow-code-upload``).

Model files of most frameworks are programs: a `model.py`, a shared library, a pickle or an archive with one inside. So
what is known to hold data alone is let pass, by its name and its first bytes, and anything else is not.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath

from ..errors import InvalidArgumentError
from ..tensor import Buffer
from .load_parameters import FILE_PREFIX

DATA_SUFFIXES = (
    ".bin",
    ".csv",
    ".data",
    ".json",
    ".jsonl",
    ".labels",
    ".md",
    ".npy",
    ".onnx",
    ".pbtxt",
    ".safetensors",
    ".txt",
    ".xml",
    ".yaml",
    ".yml",
)
"""Endings of files that are read and not run: weights and graphs of ONNX and OpenVINO, tables, texts."""

_CODE_STARTS = (
    b"\x7fELF",  # programs and shared libraries
    b"MZ",
    b"\xfe\xed\xfa",
    b"\xca\xfe\xba\xbe",
    b"\xcf\xfa\xed\xfe",
    b"#!",
    b"PK\x03\x04",  # archives, among them those of torch
    b"PK\x05\x06",
    b"\x1f\x8b",
    b"BZh",
    b"\xfd7zXZ",
    b"\x28\xb5\x2f\xfd",
    b"!<arch>",
    *(bytes((0x80, protocol)) for protocol in range(2, 6)),  # pickles
)


def refuse_code(name: str, parameters: Mapping[str, str | Buffer]) -> None:
    """Check that no file of a load request may hold code.

    Args:
        name: the model's.
        parameters: of the request; files are named ``file:<path>``.

    Raises:
        InvalidArgumentError: one may.
    """
    for key, content in parameters.items():
        if key.startswith(FILE_PREFIX) and _may_be_code(key, content):
            raise InvalidArgumentError(
                f"load failed for model '{name}': '{key}' may hold code, and --allow-code-upload=false lets only files "
                f"of data be loaded ({', '.join(DATA_SUFFIXES)})"
            )


def _may_be_code(key: str, content: str | Buffer) -> bool:
    suffix = PurePosixPath(key.removeprefix(FILE_PREFIX)).suffix.lower()
    start = content[:8].encode() if isinstance(content, str) else bytes(content[:8])
    return suffix not in DATA_SUFFIXES or start.startswith(_CODE_STARTS)
