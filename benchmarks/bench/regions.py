"""A closed loop whose tensors stay in system shared memory: a request is a few hundred bytes, and so is its answer.

So client and server take next to nothing of the cores that a large network computes on.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.shared_memory import SharedMemory

import numpy as np
from servers import FailedError, Server

from .clients import ClosedLoop, Subject, random_data
from .peers.base import GIVEN_REGION, MADE_REGION, TIMEOUT_S, Form


@dataclass(frozen=True)
class RegionLoop(ClosedLoop):
    form: Form = Form.SHARED_MEMORY

    @contextmanager
    def prepared(self, subject: Subject) -> Iterator[None]:
        server, data = subject.running, random_data(subject.model)
        made = np.zeros(subject.model.made[1], np.float32)
        with _region(server, GIVEN_REGION, data), _region(server, MADE_REGION, made) as memory:
            yield
            if not any(bytes(_bytes(memory))):
                raise FailedError(f"{subject.peer.title} has written nothing to the region of the output")


@contextmanager
def _region(server: Server, name: str, content: np.ndarray) -> Iterator[SharedMemory]:
    """A region that the server knows until the end of the block, with this in it."""
    memory = SharedMemory(create=True, size=content.nbytes)
    try:
        _bytes(memory)[: content.nbytes] = content.tobytes()
        _post(server, name, "register", {"key": f"/{memory.name}", "offset": 0, "byte_size": content.nbytes})
        try:
            yield memory
        finally:
            _post(server, name, "unregister", {})
    finally:
        memory.close()
        memory.unlink()


def _bytes(memory: SharedMemory) -> memoryview:
    assert memory.buf is not None, "it is open"
    return memory.buf


def _post(server: Server, region: str, act: str, document: dict[str, object]) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=TIMEOUT_S)
    try:
        connection.request("POST", f"/v2/systemsharedmemory/region/{region}/{act}", json.dumps(document))
        response = connection.getresponse()
        body = response.read()
    finally:
        connection.close()
    if response.status != 200:
        raise FailedError(f"{act} {region} was answered with {response.status}: {body[:300].decode(errors='replace')}")
