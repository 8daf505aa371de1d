"""Both ends of a link, in this process."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from trireme.front_ends.link import FrontEndLink, LinkMessage, map_rings, ring_memory
from trireme.python_backend.child.codec import Payload


@contextmanager
def both_ends() -> Iterator[tuple[FrontEndLink, FrontEndLink]]:
    descriptor, nbytes = ring_memory()
    sockets = socket.socketpair()
    for each in sockets:
        each.setblocking(False)
    with ExitStack() as stack:
        ends = []
        for index, each in enumerate(sockets):
            end = FrontEndLink(each, map_rings(descriptor, nbytes, first=not index))
            stack.callback(end.close)
            ends.append(end)
        os.close(descriptor)
        yield ends[0], ends[1]


def payload_of(*buffers: bytes) -> tuple[Payload, list[int]]:
    payload = Payload()
    return payload, [payload.add(buffer) for buffer in buffers]


def all_of(link: FrontEndLink) -> list[LinkMessage]:
    link.hear()
    messages = []
    while (message := link.receive()) is not None:
        messages.append(message)
    link.release()
    return messages
