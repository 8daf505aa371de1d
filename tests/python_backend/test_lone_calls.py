"""A call whose maker waits for the answer: the server looks for nothing else before it has begun to answer."""

from __future__ import annotations

import logging

import pytest
from scripted_process import scripted

from trireme.python_backend.child import protocol
from trireme.python_backend.child.channel import Channel, socket_pair
from trireme.python_backend.child.process_host import ProcessHost
from trireme.python_backend.child.utils.event_loop import AsyncioLoop
from trireme.python_backend.child.utils.request import InferenceRequest

WIRE = ("other", -1, "", 0, 0, 0, {}, (), None, ())
LOG = (protocol.LOG, "WARNING", "f", 1, "said next")


@pytest.mark.parametrize(("kind", "at_once"), [(protocol.LONE_CALL, False), (protocol.CALL, True)])
def test_what_follows_a_lone_call_is_heard_the_next_time(
    kind: int, at_once: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with scripted() as (process, instance), caplog.at_level(logging.WARNING, "trireme.python"):
        hear = instance.sources()[instance.fileno()]
        process.model.send((kind, 7, "infer", (WIRE, False), 0))
        process.model.send(LOG)
        assert hear()
        assert ("said next" in caplog.text) is at_once
        said = []
        while (message := process.model.receive()) is not None:
            said.append(message.head[:2])
        assert (protocol.REFUSAL, 7) in said  # there are no other models
        assert hear()
        assert "said next" in caplog.text
        assert not process.killed


@pytest.mark.parametrize(("waits", "kind"), [(True, protocol.LONE_CALL), (False, protocol.CALL)])
def test_only_who_waits_makes_lone_calls(waits: bool, kind: int) -> None:
    ours, theirs = socket_pair()
    host = ProcessHost(Channel(ours), AsyncioLoop("coroutines"))
    server = Channel(theirs, trusted=False)
    request = InferenceRequest(model_name="other", inputs=[], requested_output_names=[])
    call = host.infer(request, False, waits)
    message = server.receive()
    assert message is not None
    assert message.head[0] == kind
    server.send((protocol.CALL_RESPONSE, message.head[1], True, (None, {}, ())))
    assert next(call).output_tensors() == []
    host.close()
    server.close()
