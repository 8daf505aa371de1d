"""One service on our connection and on grpclib's own server: clients get the same answers from both."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc
import pytest
from grpc_echo import SERVICE, Echo, ImmediateEcho, grpclib_serving, serving_in_thread

PATIENCE_S = 10.0


@dataclass
class Answer:
    """All that a client gets to see of a call."""

    code: grpc.StatusCode
    details: str
    messages: list[bytes]
    initial: list[tuple[str, str | bytes]] = field(default_factory=list)
    trailing: list[tuple[str, str | bytes]] = field(default_factory=list)


@dataclass
class Host:
    """A server of the service."""

    service: Echo
    port: int

    def call(self, method: str, messages: Sequence[bytes], metadata: Sequence[tuple[str, Any]] = ()) -> Answer:
        """Every kind of call, as one in which both sides stream: on the wire they are the same."""
        with grpc.insecure_channel(f"127.0.0.1:{self.port}") as channel:
            call = channel.stream_stream(SERVICE + method)(iter(messages), timeout=PATIENCE_S, metadata=tuple(metadata))
            received: list[bytes] = []
            with contextlib.suppress(grpc.RpcError):
                for message in call:
                    received.append(message)  # noqa: PERF402 - what came before an error counts
            initial, trailing = (
                [(key, value) for key, value in metadata if key.startswith("x-")]
                for metadata in (call.initial_metadata(), call.trailing_metadata())
            )
            return Answer(call.code(), call.details(), received, initial, trailing)


@pytest.fixture(scope="module")
def hosts() -> Iterator[tuple[Host, Host]]:
    """Ours, and grpclib's."""
    ours, theirs = ImmediateEcho(), Echo()
    with serving_in_thread([ours]) as our_port, grpclib_serving([theirs]) as their_port:
        yield Host(ours, our_port), Host(theirs, their_port)


CALLS: dict[str, tuple[str, list[bytes], list[tuple[str, Any]]]] = {
    "unary": ("Unary", [b"one"], []),
    "an empty message": ("Unary", [b""], []),
    "a large message": ("Unary", [bytes(range(256)) * 8192], []),
    "many answers": ("Split", [b"abc"], []),
    "no answers": ("Split", [b""], []),
    "many requests": ("Join", [b"a", b"", b"bc"], []),
    "no requests": ("Join", [], []),
    "many both ways": ("Each", [b"%d" % index for index in range(100)], []),
    "nothing either way": ("Each", [], []),
    "an error": ("Unary", [b"x"], [("do", "fail"), ("text", "not ready")]),
    "an error in a text that needs escapes": ("Unary", [b"x"], [("do", "fail"), ("text", "100% ~")]),
    "an error in a stream": ("Each", [b"x"], [("do", "fail"), ("text", "not ready")]),
    "an error after answers": ("Split", [b"abc"], [("do", "fail late"), ("text", "lost")]),
    "an error after the answer": ("Unary", [b"abc"], [("do", "fail late"), ("text", "lost")]),
    "a defect": ("Unary", [b"x"], [("do", "crash")]),
    "a defect in a stream": ("Join", [b"x"], [("do", "crash")]),
    "an unknown method": ("Nothing", [b"x"], []),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_same_answers(hosts: tuple[Host, Host], name: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    ours, theirs = (host.call(*CALLS[name]) for host in hosts)
    if name == "an unknown method":
        assert theirs.details == "Method not found"  # Triton's server says nothing
        theirs.details = ""
    assert ours == theirs


def test_the_fast_way_gives_the_same(hosts: tuple[Host, Host]) -> None:
    """Whether a unary call is answered with a task or without one cannot be seen."""
    ours, _ = hosts
    answers = [ours.call("Unary", [b"x"], metadata) for metadata in ([], [("do", "nothing")])]
    assert answers[0] == answers[1] == Answer(grpc.StatusCode.OK, "", [b"x"])
