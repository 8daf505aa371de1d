"""What a client does to its memory while its request waits costs at most that request."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from segments import Segment, open_segments

from trireme.actors import InferenceServer
from trireme.engine.datatypes import BYTES
from trireme.engine.errors import TriremeError
from trireme.engine.options import ServerOptions
from trireme.engine.request import InferenceRequest
from trireme.engine.shared_memory import COPIED_BYTES, RegionKind
from trireme.engine.tensor import Tensor, pack_bytes

TEXTS = [b"first", b"s" * COPIED_BYTES]
"""So long that they are not copied."""


@pytest.fixture
def segment() -> Iterator[Segment]:
    with open_segments() as make:
        yield make(pack_bytes(TEXTS))


def request(server: InferenceServer, segment: Segment) -> InferenceRequest:
    """For two strings in the region ``r``."""
    view = server.shared_memory.slice("r", 0, len(segment.data)).view()
    return InferenceRequest("simple_identity", inputs=[Tensor("INPUT0", BYTES, (1, 2), view)])


@pytest.mark.parametrize("length", [b"\xff\xff\xff\xff", b"\x00\x00\x00\x00", b"\x06\x00\x00\x00"])
async def test_lengths_of_strings_that_change_after_they_were_checked(
    repository_root: Path, segment: Segment, length: bytes
) -> None:
    """The strings are cut off, or too many: the request fails, and the next one is answered."""
    options = ServerOptions(model_repository=(repository_root / "model_repository",), exit_on_error=False)
    async with InferenceServer(options) as server:
        server.shared_memory.register_system("r", segment.key, 0, len(segment.data))
        reply = await server.submit(request(server, segment))
        good = segment.data
        segment.put(length)
        with pytest.raises(TriremeError):
            await reply.response()
        segment.put(good)
        answer = await server.infer(request(server, segment))
        assert answer.output("OUTPUT0").array.tolist() == [TEXTS]
        assert all(state.restarts == 0 for state in server.model_statistics())
        server.shared_memory.unregister(RegionKind.SYSTEM)
