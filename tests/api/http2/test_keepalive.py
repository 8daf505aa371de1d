"""gRPC's keepalive, both ways, and the age of connections: rules of proposals A8 and A9, with time as an argument."""

from __future__ import annotations

import math

import pytest
from http2_peer import HEADERS, Frame, RawPeer, call, data, headers, respond

from trireme.api.http2 import frames
from trireme.api.http2.frames import ErrorCode, Http2Event, Terminated
from trireme.api.http2.keepalive import Due, Keepalive
from trireme.api.http2.limits import Http2Limits, KeepaliveOptions

PING = frames.ping(b"12345678")


def peer_with(**options: float) -> RawPeer:
    """A connection with 60 s of allowed silence, and 10 s to answer."""
    chosen = {"time_s": 60.0, "timeout_s": 10.0, **options}
    return RawPeer(Http2Limits(keepalive=KeepaliveOptions(**chosen)))  # type: ignore[arg-type]


def run_until(peer: RawPeer, until_s: float) -> tuple[list[tuple[float, Frame]], list[Http2Event]]:
    """Lets time pass, ticking when asked to; gives what was sent when, and the events."""
    sent: list[tuple[float, Frame]] = []
    events: list[Http2Event] = []
    while peer.server.next_timer_s <= until_s:
        assert peer.server.next_timer_s >= peer.now_s, "a timer lies in the past"
        peer.now_s = peer.server.next_timer_s
        events += peer.server.tick(peer.now_s)
        sent += [(peer.now_s, frame) for frame in peer.sent()]
    peer.now_s = until_s
    return sent, events


def pings(sent: list[tuple[float, Frame]]) -> list[float]:
    return [when for when, frame in sent if frame.kind == frames.PING and not frame.flags]


# ---- is the client there? ----


def test_silent_client_with_calls_is_asked_and_given_up() -> None:
    peer = peer_with()
    peer.say(headers(1))
    sent, events = run_until(peer, 1000.0)
    assert pings(sent) == [60.0]
    assert events == [Terminated(ErrorCode.NO_ERROR, "keepalive_timeout")]
    assert [(when, frame.kind) for when, frame in sent][-1] == (70.0, frames.GOAWAY)
    assert peer.server.terminated
    assert peer.server.next_timer_s == math.inf
    assert peer.server.tick(2000.0) == []


def test_anything_received_is_a_sign_of_life() -> None:
    """The acknowledgement, or whatever else; even at the very moment of the PING."""
    peer = peer_with(max_pings_without_data=0)
    peer.say(headers(1))
    assert pings(run_until(peer, 60.0)[0]) == [60.0]
    peer.say(frames.ping(b"Trireme?", ack=True))
    sent, _ = run_until(peer, 125.0)
    assert pings(sent) == [120.0]
    peer.say(data(1, b"x"))
    sent, _ = run_until(peer, 190.0)
    assert pings(sent) == [185.0]
    assert not peer.server.terminated


def test_busy_client_is_never_asked() -> None:
    peer = peer_with()
    peer.say(headers(1))
    sent = []
    for second in range(50, 1000, 50):
        sent += run_until(peer, float(second))[0]
        peer.say(data(1, b"x"))
    assert pings(sent) == []


def test_idle_connection_is_not_asked() -> None:
    """Unless that is permitted."""
    peer = peer_with()
    assert run_until(peer, 1000.0) == ([], [])
    peer.say(headers(1))
    assert pings(run_until(peer, 1065.0)[0]) == [1060.0]
    permitted = peer_with(permit_without_calls=True)
    assert pings(run_until(permitted, 65.0)[0]) == [60.0]


def test_only_so_many_pings_without_data() -> None:
    """After two, the server must have something to say before it asks again (A8)."""
    peer = peer_with()
    peer.say(headers(1))
    asked = []
    for _ in range(10):
        asked += pings(run_until(peer, peer.now_s + 62.0)[0])
        peer.say(frames.ping(b"Trireme?", ack=True))
    assert len(asked) == 2
    peer.server.send_headers(1, HEADERS)
    for _ in range(10):
        asked += pings(run_until(peer, peer.now_s + 62.0)[0])
        peer.say(frames.ping(b"Trireme?", ack=True))
    assert len(asked) == 4


def test_defaults_ask_after_two_hours() -> None:
    """docs/reference/grpc.md#keepalive."""
    peer = RawPeer()
    assert peer.server.next_timer_s == 7200.0
    peer.say(headers(1))
    sent, events = run_until(peer, 8000.0)
    assert pings(sent) == [7200.0]
    assert len(events) == 1
    assert sent[-1][0] == 7220.0


def test_no_keepalive() -> None:
    peer = peer_with(time_s=math.inf)
    peer.say(headers(1))
    assert peer.server.next_timer_s == math.inf


# ---- does the client ask too often? ----


def test_too_many_pings() -> None:
    """Two strikes are forgiven, the third is one too many; the first PING is none."""
    peer = peer_with()
    peer.say(headers(1))
    for _ in range(3):
        peer.now_s += 1.0
        peer.say(PING)
        assert [frame.payload for frame in peer.of_kind(frames.PING)] == [b"12345678"]
    assert [type(event) for event in peer.say(PING)] == [Terminated]
    goaway = peer.goaway()
    assert (goaway.code, goaway.debug) == (ErrorCode.ENHANCE_YOUR_CALM, "too_many_pings")


def test_patient_pings_are_no_strikes() -> None:
    peer = peer_with(min_recv_ping_interval_without_data_s=5.0)
    peer.say(headers(1))
    for _ in range(100):
        peer.now_s += 5.0
        peer.say(PING)
        peer.sent()
    assert not peer.server.terminated


def test_idle_connection_may_be_asked_every_two_hours() -> None:
    """Unless PINGs are permitted without calls (C-core's rule)."""
    for permitted, survives in ((False, False), (True, True)):
        peer = peer_with(min_recv_ping_interval_without_data_s=5.0, permit_without_calls=permitted)
        for _ in range(10):
            peer.now_s += 10.0
            peer.say(PING)
        assert peer.server.terminated is not survives


def test_answers_wipe_out_strikes() -> None:
    """Clients measure bandwidth by a PING for each message. After an answer the first PING is no strike again."""
    peer = peer_with()
    for stream_id in range(1, 201, 2):
        peer.say(call(stream_id), PING * 3)
        respond(peer.server, stream_id, b"answer")
        peer.sent()
    assert not peer.server.terminated


@pytest.mark.parametrize("what", ["headers", "data", "empty data", "nothing"])
def test_what_wipes_out_strikes(what: str) -> None:
    """Each frame of a streamed answer."""
    peer = peer_with()
    peer.say(headers(1), headers(3))
    peer.server.send_headers(1, HEADERS)
    for stream_id in range(5, 25, 2):
        peer.say(headers(stream_id), PING, PING)
        match what:
            case "headers":
                peer.server.send_headers(stream_id, HEADERS)
            case "data":
                peer.server.send_data(1, (b"x",))
            case "empty data":
                peer.server.send_data(stream_id, (), end_stream=True)
    assert peer.server.terminated is (what == "nothing")


def test_window_updates_wipe_out_strikes() -> None:
    """A client that uploads asks, too, and gets nothing but windows."""
    peer = RawPeer(Http2Limits(stream_window_bytes=65_535))
    peer.say(headers(1))
    for _ in range(100):
        peer.say(data(1, bytes(40_000)), PING)
        peer.server.consumed(1, 40_000)
        assert peer.of_kind(frames.WINDOW_UPDATE)
    assert not peer.server.terminated


def test_no_limit_of_strikes() -> None:
    peer = peer_with(max_ping_strikes=0)
    peer.say(PING * 100)
    assert not peer.server.terminated


# ---- how old may it get? ----


def test_old_connection_is_wound_up_and_then_cut() -> None:
    peer = peer_with(time_s=math.inf, max_connection_age_s=100.0, max_connection_age_grace_s=30.0)
    peer.say(headers(1))
    sent, events = run_until(peer, 129.0)
    assert [(when, frame.kind) for when, frame in sent] == [
        (100.0, frames.GOAWAY),
        (100.0, frames.PING),
        (105.0, frames.GOAWAY),
    ]
    assert [frame.debug for _, frame in sent if frame.kind == frames.GOAWAY] == ["max_age", "max_age"]
    assert events == []
    sent, events = run_until(peer, 1000.0)
    assert events == [Terminated(ErrorCode.NO_ERROR, "max_age")]
    assert [when for when, _ in sent] == [130.0]


def test_old_connection_without_grace_waits_for_ever() -> None:
    peer = peer_with(time_s=math.inf, max_connection_age_s=100.0)
    peer.say(headers(1))
    run_until(peer, 100_000.0)
    assert not peer.server.terminated
    respond(peer.server, 1)
    assert peer.server.idle_after_goaway


# ---- silence ----


@pytest.mark.parametrize(
    ("asked", "heard", "allowed", "due"),
    [
        (False, True, False, None),
        (False, False, False, Due.PING),
        (False, False, True, None),
        (True, True, False, None),
        (True, False, False, Due.DEAD),
        (True, False, True, Due.DEAD),
    ],
)
def test_what_silence_leads_to(*, asked: bool, heard: bool, allowed: bool, due: Due | None) -> None:
    """A client that was asked has no excuse; any other has one while no PING may be sent."""
    options = KeepaliveOptions(time_s=10.0, timeout_s=1.0, permit_without_calls=not allowed, max_pings_without_data=1)
    clock = Keepalive(options, 0.0)
    now_s = 10.0
    if asked:
        assert clock.due(10.0, 1) == [Due.PING]
        now_s = 11.0
    if heard:
        clock.heard_s = now_s
    assert clock.due(now_s, 0) == ([] if due is None else [due])
    assert clock.asked is (due is Due.PING or due is Due.DEAD)
    assert clock.next_timer_s == {Due.PING: now_s + 1, Due.DEAD: math.inf, None: now_s + 10}[due]
