"""Where requests of a stream are taken in: small ones in the connection's turn, others by the stream's reader."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
import trio
from grpc_peer import GrpcPeer, frame
from grpc_stub import MESSAGES, PATIENCE_S, OpenStream, infer_request, stub_for
from scripted_server import ScriptedServer, scripted_server

from trireme.api.grpc.framing import INT32_MAX, MessageReader
from trireme.api.grpc.infer import GrpcInfer


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ScriptedServer]:
    with scripted_server(tmp_path_factory.mktemp("models")) as running:
        yield running


@pytest.fixture
def stub(server: ScriptedServer) -> Iterator[Any]:
    with stub_for(server.url) as made:
        yield made


def test_small_requests_are_issued_where_they_are_read(
    server: ScriptedServer, stub: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the task that reads the connection, or watches the sockets; a large one is for the stream's reader."""
    tasks: list[trio.lowlevel.Task] = []
    decode = GrpcInfer.decode

    def watched(adapter: GrpcInfer) -> bool:
        tasks.append(trio.lowlevel.current_task())
        return decode(adapter)

    monkeypatch.setattr(GrpcInfer, "decode", watched)
    stream = OpenStream(stub)
    stream.say()
    stream.hear()  # the reader waits from now on
    for size in (1, 1, 16, 3_000):
        stream.say(values=[0.0] * size)
        stream.hear()
    stream.say("many", "say say!")
    stream.hear()
    stream.hear()
    stream.say("nothing")
    assert stream.hear().error_message
    stream.say(values=[0.0] * 8_192)
    stream.hear()
    stream.rest()
    _, *small, large = ["InferStream._read" in task.name for task in tasks]
    assert (small, large) == ([False] * 6, True)


async def test_messages_in_pieces_packed_and_several_at_once_keep_their_order(server: ScriptedServer) -> None:
    """Some are heard as they come, the others are left to the reader."""
    host, _, port = server.url.partition(":")
    bodies = [infer_request(request_id=f"m{number}").SerializeToString() for number in range(12)]
    framed = [frame(body) for body in bodies]
    packed = frame(gzip.compress(bodies[7]), compressed=True)
    large = frame(infer_request(request_id="m8", values=[0.0] * 20_000).SerializeToString())
    cut = 10
    pieces = [framed[0], framed[1], framed[2] + framed[3], framed[4] + framed[5][:cut], framed[5][cut:] + framed[6]]
    pieces += [packed, *(large[at : at + 16_384] for at in range(0, len(large), 16_384)), framed[9], framed[10]]
    with trio.fail_after(PATIENCE_S):
        async with GrpcPeer(await trio.open_tcp_stream(host, int(port))) as peer:
            path = "/inference.GRPCInferenceService/ModelStreamInfer"
            stream_id = peer.start(path, None, ("grpc-encoding", "gzip"), end=False)
            for piece in pieces:
                while peer.h2.local_flow_control_window(stream_id) < len(piece):
                    await peer.receive()
                peer.h2.send_data(stream_id, piece)
                await peer.flush()
            peer.h2.send_data(stream_id, framed[11], end_stream=True)
            received = await peer.finish(stream_id)
    assert received.status == "0"
    reader = MessageReader(INT32_MAX)
    reader.feed(received.data)
    answers = [MESSAGES.ModelStreamInferResponse.FromString(answer.payload) for answer in iter(reader.next, None)]
    assert [answer.infer_response.id for answer in answers] == [f"m{number}" for number in range(12)]


def test_a_defect_while_a_request_is_heard_costs_its_stream_only(stub: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """It happens where the connection is read, which lives on."""
    stream, other = OpenStream(stub), OpenStream(stub)
    for each in (stream, other):
        each.say()
        each.hear()
    with monkeypatch.context() as patched:
        patched.setattr(GrpcInfer, "decode", lambda _adapter: 1 / 0)
        stream.say()
        with pytest.raises(grpc.RpcError):
            stream.rest()
        assert stream.status == (grpc.StatusCode.UNKNOWN, "Internal Server Error")
    other.say(request_id="next")
    assert [answer.infer_response.id for answer in other.rest()] == ["next"]
