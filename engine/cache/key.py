"""What requests have in common that have the same answer.

Triton's key is made of the model's name and version and, in order of their names, the names and bytes of the inputs.
This one holds the datatypes and shapes of the inputs as well, and the outputs that are asked for: the same bytes in
another shape are another question, and an entry that lacks an output is no answer to a request for it.
"""

from __future__ import annotations

import hashlib
import json

from ..job import Job


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
