"""The rules in `response.py`, for both kinds of models."""

from __future__ import annotations

import gc
import threading
from typing import Any

import numpy as np
import pytest
from recording_host import RecordingHost

from trireme.python_backend.child.utils.errors import TritonError, TritonModelException
from trireme.python_backend.child.utils.response import FINAL, InferenceResponse, InferenceResponseSender
from trireme.python_backend.child.utils.tensor import Tensor

R = InferenceResponse([Tensor("O", np.zeros(1))])

FLAG = "Unable to send response. Unsupported flag provided."
NOTHING = "Inference Response object must be provided when the response flags is set to zero."
CLOSED = "Unable to send response. Response sender has been closed."
TWICE = "Unable to send response. Non-decoupled model cannot send more than one response."
EARLY = "Unable to send response. Non-decoupled model cannot send complete final before sending a response."


def sender_of(host: RecordingHost, key: int = 7, outputs: tuple[str, ...] = ()) -> InferenceResponseSender:
    return host.request(key, outputs=outputs).get_response_sender()


@pytest.mark.parametrize(
    ("decoupled", "sends", "text"),
    [
        (True, [(R, 2)], FLAG),
        (True, [(None, 0)], NOTHING),
        (True, [(R, FINAL), (R, 0)], CLOSED),
        (True, [(None, FINAL), (None, FINAL)], CLOSED),
        (False, [(R, 2)], FLAG),
        (False, [(None, 0)], NOTHING),
        (False, [(R, 0), (R, 0)], TWICE),
        (False, [(R, 0), (R, FINAL)], TWICE),
        (False, [(R, FINAL), (R, FINAL)], CLOSED),
        (False, [(R, 0), (None, FINAL), (None, FINAL)], CLOSED),
        (False, [(None, FINAL)], EARLY),
    ],
)
def test_the_last_of_these_is_refused(decoupled: bool, sends: list[tuple[Any, int]], text: str) -> None:
    host = RecordingHost(decoupled=decoupled)
    sender = sender_of(host)
    for response, flags in sends[:-1]:
        sender.send(response, flags)
    before = list(host.sent)
    with pytest.raises(TritonModelException) as caught:
        sender.send(*sends[-1])
    assert str(caught.value) == text
    assert host.sent == before


def test_decoupled_model_sends_any_number_of_responses() -> None:
    host = RecordingHost(decoupled=True)
    sender = sender_of(host)
    for _ in range(3):
        sender.send(R)
    sender.send(flags=FINAL)
    assert host.sent == [(7, R, 0), (7, R, 0), (7, R, 0), (7, None, FINAL)]


def test_error_does_not_end_a_decoupled_request() -> None:
    host = RecordingHost(decoupled=True)
    error = InferenceResponse(error=TritonError("no"))
    sender = sender_of(host)
    sender.send(error)
    sender.send(R, FINAL)
    assert host.sent == [(7, error, 0), (7, R, FINAL)]


def test_response_ends_a_request_that_is_not_decoupled_even_without_the_flag() -> None:
    host = RecordingHost()
    sender = sender_of(host)
    sender.send(R)
    sender.send(flags=FINAL)
    assert host.sent == [(7, R, FINAL)]


def test_senders_of_a_request_share_its_state() -> None:
    host = RecordingHost(decoupled=True)
    request = host.request(7)
    request.get_response_sender().send(R, FINAL)
    with pytest.raises(TritonModelException, match="has been closed"):
        request.get_response_sender().send(R)


@pytest.mark.parametrize("decoupled", [True, False])
def test_outputs_that_were_not_requested_are_dropped(decoupled: bool) -> None:
    host = RecordingHost(decoupled=decoupled)
    wanted, other = Tensor("A", np.zeros(1)), Tensor("B", np.zeros(1))
    sender_of(host, outputs=("A",)).send(InferenceResponse([wanted, other]), FINAL)
    ((_, sent, _),) = host.sent
    assert sent is not None
    assert sent.output_tensors() == [wanted]


@pytest.mark.parametrize("sends", [[], [(R, 0)]])
def test_request_whose_sender_is_gone_is_abandoned(sends: list[tuple[Any, int]]) -> None:
    host = RecordingHost(decoupled=True)
    sender = sender_of(host)
    for response, flags in sends:
        sender.send(response, flags)
    assert host.abandoned == []
    del sender
    gc.collect()
    assert host.abandoned == [7]


def test_request_that_was_answered_is_not_abandoned() -> None:
    host = RecordingHost(decoupled=True)
    sender_of(host).send(R, FINAL)
    plain = RecordingHost()
    sender_of(plain).send(R)
    gc.collect()
    assert host.abandoned == plain.abandoned == []


def test_sender_may_be_used_from_a_thread_that_outlives_the_request() -> None:
    host = RecordingHost(decoupled=True)
    go = threading.Event()

    def answer(sender: InferenceResponseSender) -> None:
        go.wait(10)
        sender.send(R, FINAL)

    thread = threading.Thread(target=answer, args=(sender_of(host),))
    thread.start()
    go.set()
    thread.join(10)
    assert host.sent == [(7, R, FINAL)]


def test_response_that_cannot_be_delivered_is_told_and_leaves_the_request_open() -> None:
    host = RecordingHost(decoupled=True)
    host.refusals["send"] = "the server is gone"
    sender = sender_of(host)
    with pytest.raises(TritonModelException, match=r"^the server is gone$"):
        sender.send(R, FINAL)
    host.refusals.clear()
    sender.send(R, FINAL)
    assert host.sent == [(7, R, FINAL)]


def test_other_objects_are_a_type_error() -> None:
    with pytest.raises(TypeError, match="takes an InferenceResponse"):
        sender_of(RecordingHost()).send(5)  # type: ignore[arg-type]
