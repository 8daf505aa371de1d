"""What a link makes of replicas that leave, refuse, vanish, or break the rules, and what was surely not executed."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio
from fake_replica import fake_replica
from grpclib.const import Status
from linked_replica import LinkedReplica, Told, linked, request_of

from trireme.api.grpc import blocks
from trireme.api.grpc.replica.limits import LinkLimits
from trireme.api.grpc.replica.link import split_address
from trireme.api.http2 import frames
from trireme.api.http2.frames import ErrorCode
from trireme.api.http2.limits import Http2Limits, Rate
from trireme.engine.errors import ErrorKind
from trireme.engine.fleet.types import ReplicaLostError

PROMPT = LinkLimits(first_retry_s=0.001, longest_retry_s=0.01)
ANSWER = b"\x0a\x05plain\x12\x011"
"""A response without outputs."""


async def asked(replica: LinkedReplica, count: int) -> list[Told]:
    return [replica.infer(request_of()) for _ in range(count)]


async def test_a_replica_that_leaves_finishes_what_it_has_and_gets_no_more() -> None:
    """Nothing is lost, and the link has the next connection without having been down."""
    async with fake_replica() as fake, linked(fake.address, limits=PROMPT) as replica:
        first = await fake.connection()
        one, two = await asked(replica, 2)
        streams = await first.requests(2)
        first.core.go_away(trio.current_time())
        await first.say()
        second = await fake.connection(1)
        three = replica.infer(request_of())
        (stream,) = await second.requests(1)
        await second.answer(stream, ANSWER)
        for stream in streams:
            await first.answer(stream, ANSWER)
        for told in (one, two, three):
            assert (await told.over()).error is None
        await first.until(lambda connection: connection.ended)
        assert replica.events.of_kind("lost") == []
        assert replica.events.told.count("connected") == 1


async def test_streams_above_a_goaway_were_not_executed() -> None:
    async with fake_replica() as fake, linked(fake.address, limits=PROMPT) as replica:
        first = await fake.connection()
        one, two = await asked(replica, 2)
        streams = await first.requests(2)
        await first.say(frames.goaway(streams[0], ErrorCode.NO_ERROR, "bye"))
        await two.over()
        assert two.error is not None
        assert (two.error.kind, two.executed) == (ErrorKind.UNAVAILABLE, False)
        await first.answer(streams[0], ANSWER)
        assert (await one.over()).error is None


async def test_a_refused_stream_was_not_executed_and_others_may_have_been() -> None:
    async with fake_replica() as fake, linked(fake.address, limits=PROMPT) as replica:
        first = await fake.connection()
        one, two = await asked(replica, 2)
        streams = await first.requests(2)
        first.core.reset(streams[0], ErrorCode.REFUSED_STREAM)
        first.core.reset(streams[1], ErrorCode.INTERNAL_ERROR)
        await first.say()
        await one.over()
        await two.over()
        assert (one.executed, two.executed) == (False, True)


async def test_a_replica_that_vanishes_fails_what_it_had() -> None:
    """What was sent may have been executed; then the link connects anew."""
    async with fake_replica() as fake, linked(fake.address, limits=PROMPT) as replica:
        first = await fake.connection()
        (told,) = await asked(replica, 1)
        await first.requests(1)
        await first.close()
        await told.over()
        assert told.error is not None
        assert (told.error.kind, told.executed) == (ErrorKind.UNAVAILABLE, True)
        assert told.error.message == "the replica has closed the connection"
        await replica.events.connects(2)
        assert replica.events.of_kind("lost") == ["the replica has closed the connection"]
        second = await fake.connection(1)
        (again,) = await asked(replica, 1)
        await second.answer((await second.requests(1))[0], ANSWER)
        assert (await again.over()).error is None


async def test_a_request_that_was_not_sent_in_full_was_not_executed() -> None:
    """The replica's window lets only a part of it through."""
    limits = Http2Limits(stream_window_bytes=65_535)
    async with fake_replica(limits) as fake, linked(fake.address, limits=PROMPT) as replica:
        first = await fake.connection()
        await first.until(lambda connection: connection.watches)
        first.reads = trio.Event()
        told = replica.infer(request_of(values=[0.0] * 200_000))
        await trio.testing.wait_all_tasks_blocked()
        await first.close()
        await told.over()
        assert told.executed is False


async def test_what_exceeds_the_replicas_streams_waits_in_line() -> None:
    limits = Http2Limits(max_concurrent_streams=3)  # one of them is taken by Watch
    lined = LinkLimits(first_retry_s=0.001, waiting_requests=2)
    async with fake_replica(limits) as fake, linked(fake.address, limits=lined) as replica:
        first = await fake.connection()
        told = await asked(replica, 4)
        assert not replica.link.has_room()
        assert replica.link.statistics().waiting == 2
        (one_too_many,) = await asked(replica, 1)
        await one_too_many.over()
        assert one_too_many.error is not None
        assert "too many requests wait" in one_too_many.error.message
        assert one_too_many.executed is False
        replica.cancel(told[3])
        for count in (1, 2, 3):
            streams = await first.requests(count)
            await first.answer(streams[-1], ANSWER)
        for each in told[:3]:
            assert (await each.over()).error is None
        await replica.events.until(lambda said: "room" in said)
        assert replica.link.has_room()


async def test_without_a_replica_requests_fail_at_once_and_the_reason_is_told() -> None:
    listening = trio.socket.socket()
    await listening.bind(("127.0.0.1", 0))  # and does not listen
    address = f"127.0.0.1:{listening.getsockname()[1]}"
    async with linked(address, connects=False, limits=PROMPT) as replica:
        (told,) = await asked(replica, 1)
        await told.over()
        assert told.executed is False
        await replica.events.until(lambda said: len(said) >= 3)
        assert replica.events.of_kind("lost")[0] == "cannot connect: Connection refused"
    listening.close()


@pytest.mark.parametrize("host", ["a..b", "a" * 64])
async def test_a_name_that_no_host_can_have_is_told_like_a_replica_that_is_away(host: str) -> None:
    async with linked(f"{host}:8001", connects=False, limits=PROMPT) as replica:
        await replica.events.until(lambda said: len(said) >= 2)
        assert replica.events.of_kind("lost")[0] == f"cannot connect: '{host}' is no name of a host"


async def test_one_that_speaks_no_http2_is_noticed() -> None:
    async def speak(stream: trio.SocketStream) -> None:
        await stream.receive_some()
        await stream.send_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(partial(trio.serve_tcp, speak, 0, host="127.0.0.1"))
        address = f"127.0.0.1:{listeners[0].socket.getsockname()[1]}"
        async with linked(address, connects=False, limits=PROMPT) as replica:
            await replica.events.until(lambda said: said)
            assert replica.events.of_kind("lost")[0].startswith("the replica broke the rules of HTTP/2: ")
        nursery.cancel_scope.cancel()


async def test_an_answer_that_is_no_message_fails_its_request_only() -> None:
    async with fake_replica() as fake, linked(fake.address, limits=PROMPT) as replica:
        first = await fake.connection()
        told = await asked(replica, 4)
        streams = await first.requests(4)
        await first.answer(streams[0], b"\x0a\xff")
        first.core.respond(streams[1], frames.AnswerBlocks(b"\x88", b""), [], 0)  # headers of HTTP, and no status
        await first.say()
        first.core.reset(streams[2], ErrorCode.CANCEL)
        await first.say()
        await first.answer(streams[3], ANSWER)
        for each in told:
            await each.over()
        assert [each.error and each.error.kind for each in told] == [
            ErrorKind.INTERNAL,
            ErrorKind.UNKNOWN,
            ErrorKind.CANCELLED,
            None,
        ]


async def test_ids_that_are_used_up_lead_to_the_next_connection() -> None:
    async with fake_replica() as fake, linked(fake.address, limits=PROMPT) as replica:
        first = await fake.connection()
        await first.until(lambda connection: connection.watches)
        connection = replica.link._connection
        assert connection is not None
        connection.core._next_id = frames.MAX_STREAM_ID
        last, next_one = await asked(replica, 2)
        (stream,) = await first.requests(1)
        assert stream == frames.MAX_STREAM_ID
        second = await fake.connection(1)
        await second.answer((await second.requests(1))[0], ANSWER)
        assert (await next_one.over()).error is None
        await first.answer(stream, ANSWER)
        assert (await last.over()).error is None
        await first.until(lambda connection: connection.ended)
        assert replica.events.of_kind("lost") == []


async def test_a_link_resets_no_more_than_one_client_may() -> None:
    """The answers to the others are dropped."""
    async with (
        fake_replica() as fake,
        linked(fake.address, limits=LinkLimits(resets=Rate(1, 0.0))) as replica,
    ):
        first = await fake.connection()
        told = await asked(replica, 3)
        streams = await first.requests(3)
        for each in told:
            replica.cancel(each)
        await first.until(lambda connection: connection.resets)
        await first.answer(streams[1], ANSWER)
        await first.answer(streams[2], b"\x0a\xff")
        (another,) = await asked(replica, 1)
        await first.answer((await first.requests(4))[3], ANSWER)
        await another.over()
        assert set(first.resets) == {streams[0]}
        assert [(each.answers, each.error) for each in told] == [([], None)] * 3


async def test_who_asks_while_the_next_connection_is_made_is_told_that_there_is_none() -> None:
    async with fake_replica() as fake, linked(fake.address, limits=PROMPT) as replica:
        first = await fake.connection()
        fake.stop()
        first.core.go_away(trio.current_time())
        await first.say()
        await first.until(lambda connection: connection.resets)  # the call of Watch
        with pytest.raises(ReplicaLostError, match="cannot be reached: cannot connect"):
            await replica.link.ask("inference.GRPCInferenceService/ServerLive", b"", 60.0)


async def test_the_trace_context_goes_with_the_request() -> None:
    """So do headers that are set for the link."""
    async with fake_replica() as fake, linked(fake.address, metadata=[("authorization", "Bearer x")]) as replica:
        first = await fake.connection()
        request = request_of()
        request.trace = cast("Any", SimpleNamespace(headers=lambda: {"traceparent": "00-1-2-01"}))
        told = replica.infer(request)
        (stream,) = await first.requests(1)
        head = first.heads[stream]
        assert head.path == "/inference.GRPCInferenceService/ModelInfer"
        assert dict(head.metadata) == {"traceparent": "00-1-2-01", "authorization": "Bearer x"}
        replica.cancel(told)
        await first.until(lambda connection: connection.resets == {stream: ErrorCode.CANCEL})


async def test_headers_that_are_passed_on_go_with_the_request() -> None:
    """The context of a trace here takes the place of the client's; what the link says itself stays."""
    given = (("x-user", "one"), ("traceparent", "00-3-4-00"), ("tracestate", "a=b"), ("authorization", "Bearer y"))
    async with fake_replica() as fake, linked(fake.address, metadata=[("x-user", "gate")]) as replica:
        first = await fake.connection()
        replica.infer(request_of(passed_on=(("x-key", "k"), *given)))
        replica.infer(request_of(passed_on=given), decoupled=True)
        replica.infer(traced := request_of(passed_on=given))
        assert traced.passed_on == given
        traced.trace = cast("Any", SimpleNamespace(headers=lambda: {"traceparent": "00-1-2-01"}))
        replica.infer(traced)
        heads = [dict(first.heads[stream].metadata) for stream in await first.requests(4)]
        client_s = {"x-user": "gate", "traceparent": "00-3-4-00", "tracestate": "a=b"}
        assert heads[0] == {**client_s, "x-key": "k"}
        assert client_s.items() <= heads[1].items()
        assert heads[2] == client_s
        assert heads[3] == {"x-user": "gate", "traceparent": "00-1-2-01"}


async def test_a_replica_that_does_not_report_is_told() -> None:
    async with fake_replica() as fake, linked(fake.address) as replica:
        first = await fake.connection()
        await first.until(lambda connection: connection.watches)
        stream, refused = first.watches[0], blocks.trailers_only(Status.UNIMPLEMENTED, "no such call")
        first.core.send_headers(stream, refused, True)
        await first.say()
        await replica.events.until(lambda told: replica.events.of_kind("unreported"))
        assert replica.events.of_kind("unreported") == ["it is no server for gateways: no such call"]


@pytest.mark.parametrize("address", ["", "host", "host:", ":80", "host:0", "host:65536", "host:x"])
def test_addresses_that_are_none_are_refused(address: str) -> None:
    with pytest.raises(ValueError, match="is no address of a replica, expected host:port"):
        split_address(address)


def test_addresses_are_of_hosts_and_of_ipv6() -> None:
    assert split_address("host:80") == ("host", 80)
    assert split_address("[::1]:8001") == ("::1", 8001)


async def test_a_silent_replica_is_given_up(mock_clock: trio.testing.MockClock) -> None:
    async with fake_replica() as fake, linked(fake.address, limits=PROMPT) as replica:
        first = await fake.connection()
        first.reads = trio.Event()
        (told,) = await asked(replica, 1)
        mock_clock.autojump_threshold = 0.02
        await told.over()
        assert told.error is not None
        assert told.error.message == "the server does not answer to PING"
