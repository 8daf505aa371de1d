"""A response as bytes, and back.

An entry is ``TRC1``, the length of a head (uint32, little-endian), the head (JSON: name, datatype, shape and length in
bytes of each output), and the outputs one after the other. Making one copies the outputs, and what is made of one are
read-only views on bytes: an entry does not change, whatever is done with the response.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
from collections.abc import Sequence
from pathlib import Path

from ..backends.interface import ModelFiles
from ..config.model import ModelConfig
from ..datatypes import BY_NAME, BYTES
from ..errors import InternalError
from ..job import Job
from ..tensor import Tensor

_MAGIC = b"TRC1"
_PREFIX = struct.Struct("<4sI")


def pack_outputs(outputs: Sequence[Tensor]) -> bytes:
    """The entry of these outputs.

    Raises:
        ValueError, TypeError: an output is not what it says it is.
    """
    try:
        buffers = [tensor.buffer for tensor in outputs]
    except struct.error as error:
        raise ValueError(f"a string is too long: {error}") from error
    head = json.dumps(
        [
            (tensor.name, tensor.datatype.name, tensor.shape, len(buffer))
            for tensor, buffer in zip(outputs, buffers, strict=True)
        ]
    ).encode()
    return b"".join([_PREFIX.pack(_MAGIC, len(head)), head, *buffers])


def unpack_outputs(entry: bytes) -> list[Tensor]:
    """The outputs in an entry, as views on it.

    Raises:
        ValueError: it is no entry, or not all of one.
    """
    view = memoryview(entry)
    if len(view) < _PREFIX.size or view[:4] != _MAGIC:
        raise ValueError("it does not begin as an entry does")
    at = _PREFIX.size + _PREFIX.unpack_from(view)[1]
    tensors: list[Tensor] = []
    try:
        for name, datatype, shape, length in json.loads(bytes(view[_PREFIX.size : at])):
            tensors.append(Tensor(name, BY_NAME[datatype], tuple(shape), view[at : at + length]))
            _check_size(tensors[-1], length)
            at += length
    except (KeyError, TypeError) as error:
        raise ValueError(f"its head does not describe outputs: {error}") from error
    if at != len(view):
        raise ValueError(f"it has {len(view)} bytes, and its head speaks of {at}")
    return tensors


def _check_size(tensor: Tensor, length: int) -> None:
    """Whether so many bytes can have that shape. Strings are not counted."""
    fits = all(dim >= 0 for dim in tensor.shape) and length >= 0
    if not fits or (tensor.datatype is not BYTES and tensor.element_count * tensor.datatype.size != length):
        raise ValueError(f"{length} bytes are no {tensor!r}")


# What requests have in common that have the same answer.
#
# Triton's key is made of the model's name and version and, in order of their names, the names and bytes of the inputs.
# This one holds the datatypes and shapes of the inputs as well, and the outputs that are asked for: the same bytes in
# another shape are another question, and an entry that lacks an output is no answer to a request for it.


def request_key(identity: str, job: Job, outputs: frozenset[str]) -> str:
    """The key of a request: 64 hexadecimal digits, of which no two requests for different things have the same.

    Args:
        identity: tells models that may answer differently apart.
        outputs: all that the model has; asking for each of them is asking for none in particular.
    """
    wanted = set(job.requested_outputs)
    inputs = sorted(job.inputs.items())
    head = {
        "model": identity,
        "outputs": sorted(wanted) if wanted and wanted != outputs else [],
        "inputs": [(name, tensor.datatype.name, tensor.shape, tensor.nbytes) for name, tensor in inputs],
    }
    digest = hashlib.sha256(json.dumps(head).encode())
    for _, tensor in inputs:
        digest.update(tensor.buffer)
    return digest.hexdigest()


# -- What tells one load of a model from another in a cache that other servers share, or that was there before


def fingerprint(config: ModelConfig, files: ModelFiles, members: Sequence[str]) -> str:
    """A digest of a model version: its configuration, the files in its version's directory, and its members.

    Two servers with copies of one model get the same; a model that was changed under the same version does not.

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
