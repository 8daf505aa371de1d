"""What a client does to its memory while its request waits changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from repository_models import link_models
from segments import Segment, open_segments

from trireme.actors import InferenceServer
from trireme.engine.datatypes import BYTES
from trireme.engine.options import ServerOptions
from trireme.engine.request import InferenceRequest
from trireme.engine.shared_memory import RegionKind
from trireme.engine.tensor import Tensor, pack_bytes

TEXTS = [b"first", b"s" * (1 << 20)]


@pytest.fixture
def segment() -> Iterator[Segment]:
    with open_segments() as make:
        yield make(pack_bytes(TEXTS))


def request(server: InferenceServer, segment: Segment) -> InferenceRequest:
    """For two strings in the region ``r``."""
    view = server.shared_memory.slice("r", 0, len(segment.data)).view()
    return InferenceRequest("simple_identity", inputs=[Tensor("INPUT0", BYTES, (1, 2), view)])


@pytest.mark.parametrize(
    "spoil",
    [
        lambda segment: segment.put(b"\xff\xff\xff\xff"),
        lambda segment: segment.put(b"\x06\x00\x00\x00"),
        lambda segment: segment.cut(0),
    ],
    ids=["too long a string", "another string", "no memory"],
)
async def test_memory_that_changes_after_it_was_read(
    tmp_path: Path, segment: Segment, spoil: Callable[[Segment], None]
) -> None:
    """The request is answered with what was there: its lengths of strings have been checked."""
    options = ServerOptions(model_repository=(link_models(tmp_path, "simple_identity"),))
    async with InferenceServer(options) as server:
        server.shared_memory.register_system("r", segment.key, 0, len(segment.data))
        reply = await server.submit(request(server, segment))
        spoil(segment)
        answer = await reply.response()
        assert answer.output("OUTPUT0").array.tolist() == [TEXTS]
        server.shared_memory.unregister(RegionKind.SYSTEM)
