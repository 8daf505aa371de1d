"""What the engine says to a front end is done in the order in which it was said."""

from __future__ import annotations

from typing import Any, cast

from trireme.front_ends import kinds
from trireme.front_ends.listener import EngineListener
from trireme.front_ends.remote_server import RemoteServer


class Server:
    """Takes note of what it hears."""

    def __init__(self, heard: list[object]) -> None:
        self._heard = heard

    def received(self, head: list[Any], payload: memoryview) -> None:
        self._heard.append(head[0])


def test_clients_connect_anew_before_they_hear_what_was_said_after_that() -> None:
    heard: list[object] = []
    listener = EngineListener(cast(RemoteServer, Server(heard)), lambda *_: True, lambda **_: None)
    listener.begin_drain = lambda: heard.append("begins")
    assert not listener.draining
    listener.received([kinds.BEGIN_DRAIN], memoryview(b""))
    listener.received([kinds.RESULT], memoryview(b""))
    assert heard == ["begins", kinds.RESULT]


def test_a_drain_that_begins_before_there_are_services_is_remembered() -> None:
    listener = EngineListener(cast(RemoteServer, Server([])), lambda *_: True, lambda **_: None)
    listener.received([kinds.BEGIN_DRAIN], memoryview(b""))
    assert listener.draining
