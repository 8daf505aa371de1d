"""A model that says much, clumsily or on purpose, costs itself: bounded memory, descriptors and turns of the loop."""

from __future__ import annotations

import json
import logging
import marshal
import os
import socket
import struct
import threading
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from calling_models import HEAD, TEXT, answer
from python_models import ask, open_repository, write_model
from scripted_process import CONFIG, scripted
from wired import flat

from trireme.engine.errors import InternalError, TriremeError
from trireme.python_backend.calls import LARGE_BYTES, MOST_METRICS
from trireme.python_backend.child import protocol
from trireme.python_backend.child.channel import Channel, Letter, socket_pair
from trireme.python_backend.child.codec import (
    MOST_HEAD_BYTES,
    PREFIX,
    MessageError,
    Payload,
    decode,
    encode,
)
from trireme.python_backend.child.segments import MOST_BORROWED, MOST_SEGMENTS
from trireme.python_backend.instance import PythonInstance
from trireme.python_backend.wire import MOST_DIMENSIONS, MOST_OUTPUTS, MOST_PARAMETERS

LINES, LINE = 200, 100_000


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


async def test_long_log_lines_leave_no_descriptors(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Each took a segment of shared memory, and none came back while the server had nothing to say."""
    code = (
        HEAD
        + f"""
        def execute(self, requests):
            for number in range({LINES}):
                pb_utils.Logger.log_info(str(number % 10) * {LINE})
            return [response(1)]
"""
    )
    write_model(tmp_path, "m", code)
    async with open_repository(tmp_path) as server:
        before = descriptors()
        with caplog.at_level(logging.INFO, "trireme.python"):
            await server.infer(ask("m", 1))
        assert descriptors() - before < 20
    said = [record.getMessage() for record in caplog.records if record.name == "trireme.python"]
    assert sum(map(len, said)) == LINES * LINE
    assert max(map(len, said)) <= protocol.LOG_PIECE


async def test_large_answers_of_a_model_that_hears_nothing_leave_no_descriptors(tmp_path: Path) -> None:
    """A decoupled model whose client takes them as they come."""
    code = (
        HEAD
        + """
        def execute(self, requests):
            sender = requests[0].get_response_sender()
            for number in range(300):
                sender.send(response(*([number] * 50_000)))
            sender.send(flags=FINAL)
"""
    )
    write_model(tmp_path, "m", code, LARGE_CONFIG)
    async with open_repository(tmp_path) as server:
        before = descriptors()
        reply = await server.admit(ask("m", 1))
        seen = []
        async for part in reply.responses():
            seen += [float(tensor.array[0, 0]) for tensor in part.outputs]
            assert descriptors() - before < 2 * MOST_BORROWED
    assert seen == list(range(300))


DECOUPLED = "model_transaction_policy { decoupled: true }"
LARGE_CONFIG = TEXT.replace("TYPE_STRING", "TYPE_FP32") + DECOUPLED


async def test_an_answer_with_too_much_to_say_is_an_error_of_its_request(tmp_path: Path) -> None:
    """And not of the other requests of the batch, or of the process."""
    code = (
        HEAD
        + """
        def execute(self, requests):
            answers = []
            for request in requests:
                value = value_of(request)
                if value == 1:
                    tensors = [pb_utils.Tensor("x" * 1_000_000, np.zeros((1, 1), np.float32))]
                    request._requested = ()
                    answers.append(pb_utils.InferenceResponse(tensors))
                elif value == 2:
                    answers.append(pb_utils.InferenceResponse(error=pb_utils.TritonError("y" * 3_000_000)))
                elif value == 3:
                    raise ValueError("z" * 3_000_000)
                else:
                    answers.append(response(7))
            return answers
"""
    )
    write_model(tmp_path, "m", code)
    async with open_repository(tmp_path) as server:
        with pytest.raises(InternalError, match="names, parameters and texts take 1000"):
            await server.infer(ask("m", 1))
        for value, letter in ((2, "y"), (3, "z")):
            with pytest.raises(TriremeError) as caught:
                await server.infer(ask("m", value))
            assert letter * 10_000 in caught.value.message
            assert len(caught.value.message) < 50_000
        assert (await server.infer(ask("m", 4))).outputs[0].array.tolist() == [[7]]
        assert server.model_statistics()[0].restarts == 0


async def test_a_model_has_so_many_metrics_and_no_more(tmp_path: Path) -> None:
    code = (
        HEAD
        + f"""
        def execute(self, requests):
            family = pb_utils.MetricFamily(name="many", description="d", kind=pb_utils.MetricFamily.COUNTER)
            kept, said = [], []
            for labels in ({{"n": "x" * 5000}}, *({{"n": str(number)}} for number in range({MOST_METRICS} + 1))):
                try:
                    kept.append(family.Metric(labels=labels))
                except pb_utils.TritonModelException as error:
                    said.append(str(error))
            return [text(json.dumps([len(kept), said]))]
"""
    ).replace("import os\n", "import os\n    import json\n", 1)
    write_model(tmp_path, "m", code, TEXT)
    async with open_repository(tmp_path) as server:
        kept, said = json.loads(await answer(server, "m", 1))
    assert kept == MOST_METRICS
    assert ["at most 4096 characters" in said[0], "may have 10000 metrics" in said[1]] == [True, True]


async def test_large_answers_of_other_models_are_copied_on_a_thread_and_stay_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[int] = []
    prepare = Channel.prepare

    def watched(channel: Channel, head: tuple[Any, ...], payload: Payload) -> Letter:
        if payload.nbytes > LARGE_BYTES and head[0] == protocol.CALL_RESPONSE:
            threads.append(threading.get_ident())
        return prepare(channel, head, payload)

    monkeypatch.setattr(Channel, "prepare", watched)
    large = (
        HEAD
        + f"""
        def execute(self, requests):
            sender = requests[0].get_response_sender()
            for number in range(6):
                sender.send(response(*([number] * (1 if number % 2 else {LARGE_BYTES}))))
            sender.send(flags=FINAL)
"""
    )
    code = (
        HEAD
        + """
        def execute(self, requests):
            parts = call("large", 1).exec(decoupled=True)
            return [text([value_of(part) for part in parts if part.output_tensors()])]
"""
    )
    write_model(tmp_path, "large", large, LARGE_CONFIG)
    write_model(tmp_path, "m", code, TEXT)
    async with open_repository(tmp_path) as server:
        assert await answer(server, "m", 1) == str([float(number) for number in range(6)])
    assert len(threads) == 3
    assert threading.get_ident() not in threads


def hears(instance: PythonInstance) -> bool:
    """Whether it listens on, after everything that was said."""
    going_on = True
    instance.busy = True
    while instance.busy and going_on:
        (_, receive), _ = sorted(instance.sources().items(), key=lambda item: item[0] != instance.fileno())
        going_on = receive()
    return going_on


def done(*tensors: Any, parameters: Any = None, spent_ns: Any = (1, 1)) -> tuple[Any, ...]:
    return protocol.DONE, 0, ((0, (None, parameters or {}, tensors)),), (), spent_ns


ZERO = Payload()
ZERO.add(b"\0" * 4)
FP32, BYTES = 11, 13

BROKEN = {
    "dimensions": done(("OUTPUT0", FP32, (1,) * (MOST_DIMENSIONS + 1), 0, 4)),
    "a dimension below 0": done(("OUTPUT0", FP32, (-1, -1), 0, 4)),
    "a dimension that is no number": done(("OUTPUT0", BYTES, (1.5,), 0, 4)),
    "a huge dimension": done(("OUTPUT0", BYTES, (1 << 1_000_000,), 0, 4)),
    "a shape of more": done(("OUTPUT0", FP32, (1, 2), 0, 4)),
    "a tensor outside": done(("OUTPUT0", FP32, (1, 1), 1 << 40, 4)),
    "a name that is none": done((("OUTPUT0",), FP32, (1, 1), 0, 4)),
    "outputs": done(*[("OUTPUT0", FP32, (1, 1), 0, 4)] * (MOST_OUTPUTS + 1)),
    "parameters": done(parameters={str(number): 1 for number in range(MOST_PARAMETERS + 1)}),
    "a parameter that is none": done(parameters={"a": [[[]]]}),
    "a time": done(spent_ns=(1 << 100_000, 1)),
    "a negative time": done(spent_ns=(-5, 1)),
    "a part of a nanosecond": done(spent_ns=(0.5, 1)),
    "a batch that there is not": (protocol.DONE, 5, (), (), (1, 1)),
    "a log line without a text": (protocol.LOG, "INFO", "f", 1, None),
    "a call without a number": (protocol.CALL, "x", "is_model_ready", ("a", "1"), None),
    "labels that are no texts": (protocol.CALL, 1, "create_metric", (0, {"a": 5}, None), None),
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_process_that_says_what_cannot_be_is_killed(what: str) -> None:
    with scripted() as (process, instance):
        process.model.send(BROKEN[what], ZERO)
        assert not hears(instance)
        assert process.killed


def test_what_is_right_is_heard() -> None:
    with scripted() as (process, instance):
        process.model.send(done(("OUTPUT0", FP32, (1, 1), 0, 4)), ZERO)
        assert hears(instance)
        assert not process.killed


def test_a_head_that_takes_long_to_read_is_not_read() -> None:
    with scripted() as (process, instance):
        server_side = Channel(process.model._socket.dup(), trusted=False)  # one that may send any head
        server_side.send((protocol.LOG, "INFO", "f", 1, "x" * MOST_HEAD_BYTES))
        assert not hears(instance)
        assert process.killed
    with pytest.raises(ValueError, match=f"no more than {MOST_HEAD_BYTES}"):
        process.model.prepare(("x" * MOST_HEAD_BYTES,))


def test_a_process_that_logs_beyond_its_window_is_killed() -> None:
    """The server takes no more of them than `Pace` allows, which it has reached here."""
    with scripted() as (process, instance):
        instance._pace.spend(1 << 40, 0, 0.0)
        sent = 0
        while sent < 4 * protocol.LOG_WINDOW and not process.killed:
            process.model.send((protocol.LOG, "VERBOSE", "f", 1, "x" * protocol.LOG_PIECE))
            sent += protocol.LOG_PIECE
            hears(instance)
        assert process.killed
        assert sent > protocol.LOG_WINDOW


def test_log_lines_are_acknowledged_at_once_or_when_it_is_time() -> None:
    with scripted() as (process, instance):
        told = [process.model.receive(), process.model.receive()]
        line = (protocol.LOG, "VERBOSE", "f", 1, "x" * protocol.LOG_PIECE)
        for _ in range(4):
            process.model.send(line)
        assert hears(instance)
        told.append(process.model.receive())
        assert [message.head[0] for message in told if message] == [protocol.START, protocol.EXECUTE, protocol.LOGGED]
        later: list[Any] = []
        instance.later = lambda seconds, act: later.append((seconds, act))
        instance._pace.spend(1 << 30, 0, 0.0)
        for _ in range(8):
            process.model.send(line)
        assert hears(instance)
        assert process.model.receive() is None
        ((seconds, act),) = later
        assert seconds > 10
        act()
        message = process.model.receive()
        assert message is not None
        assert message.head == (protocol.LOGGED, 8 * protocol.log_cost("x" * protocol.LOG_PIECE))


def test_responses_beyond_the_window_end_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the client does not take any, so that the process is not told to go on."""
    monkeypatch.setattr(PythonInstance, "_tell_taken", lambda _self, _key: None)
    with scripted(CONFIG + DECOUPLED) as (process, instance):
        answer = (protocol.ANSWER, 0, False, (None, {}, (("OUTPUT0", FP32, (1, 1), 0, 4),)))
        for _ in range(protocol.WINDOW):
            process.model.send(answer, ZERO)
        assert hears(instance)
        process.model.send(answer, ZERO)
        assert not hears(instance)
        assert process.killed


def test_one_turn_hears_a_bounded_number_of_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    with scripted() as (process, instance):
        heard: list[object] = []
        monkeypatch.setattr(instance, "_handle", heard.append)
        receive = instance.sources()[instance.fileno()]
        for kind, at_once in ((protocol.HELLO, 64), (protocol.LOG, 16)):
            for _ in range(at_once + 1):
                process.model.send((kind, "INFO", "f", 1, "text"))
            heard.clear()
            assert [receive(), len(heard), instance.busy] == [True, at_once, True]
            assert [receive(), len(heard), instance.busy] == [True, at_once + 1, False]


def test_segments_go_back_though_there_is_nothing_to_say() -> None:
    with scripted() as (process, instance):
        while process.model.receive() is not None:
            continue
        content = Payload()
        content.add(bytes(100_000))
        for _ in range(10):
            process.model.send((protocol.ANSWER, 99, True, None), content)  # to an unknown request
        assert len(process.model.lender._lent) == 10
        assert hears(instance)
        assert process.model.receive() is None
        assert not process.model.lender._lent


def test_segments_that_wait_for_the_socket_are_told_as_soon_as_it_takes_them() -> None:
    with scripted() as (process, instance):
        congested: list[int] = []
        instance.on_congestion = lambda: congested.append(1)
        content = Payload()
        content.add(bytes(100_000))
        for _ in range(10):
            process.model.send((protocol.ANSWER, 99, True, None), content)
        while process.channel._write(b"x" * 20_000, None):
            continue
        assert [hears(instance), congested] == [True, [1]]


def test_a_model_has_so_many_segments_and_waits_before_it_lends_more() -> None:
    server, model = socket_pair()
    ours, theirs = Channel(server, trusted=False), Channel(model)
    content = Payload()
    content.add(bytes(100_000))
    kept: list[Any] = []
    told: list[int] = []
    ours.borrower.on_returned = lambda: told.append(1)
    while theirs.lender.has_room:
        theirs.send(("x",), content)
        kept.append(ours.receive())  # of those beyond the first a copy, since they are small
        assert len(kept) <= MOST_SEGMENTS
    assert len(kept) == MOST_SEGMENTS
    assert len(told) == MOST_SEGMENTS - MOST_BORROWED, "each that was copied, since the other end may wait for it"
    ours.give_back()
    assert theirs.receive() is None
    assert theirs.lender.has_room
    told.clear()
    kept.clear()
    assert told == [1], "once so many have come back, and no more"
    ours.give_back(1)
    theirs.receive()
    for channel in (ours, theirs):
        channel.close()


def test_who_holds_many_large_messages_tells_when_one_comes_back() -> None:
    server, model = socket_pair()
    ours, theirs = Channel(server, trusted=False), Channel(model)
    content = Payload()
    content.add(np.zeros(5 << 20, np.uint8).data)  # too large to be copied
    told: list[int] = []
    ours.borrower.on_returned = lambda: told.append(1)
    kept = []
    for _ in range(MOST_BORROWED + 1):
        theirs.send(("x",), content)
        kept.append(ours.receive())
    kept.pop()
    assert told == [1]
    ours.give_back(1)
    assert theirs.receive() is None
    assert len(theirs.lender._lent) == MOST_BORROWED
    kept.clear()
    for channel in (ours, theirs):
        channel.close()


def test_a_segment_that_may_shrink_is_not_mapped() -> None:
    """Reading what has been cut off would be the end of the server."""
    with scripted() as (process, instance):
        descriptor = os.memfd_create("unsealed", os.MFD_ALLOW_SEALING)
        os.ftruncate(descriptor, 1 << 20)
        before = descriptors()
        sock = process.model._socket
        sock.send(struct.pack("<BxHHxxQQ", 3, 0, 0, 0, 1 << 20))
        socket.send_fds(sock, [b"\0"], [descriptor])
        assert not hears(instance)
        assert process.killed
        assert descriptors() == before
        os.close(descriptor)


PLAIN = [
    (),
    (None, True, False, 0, -1, 40, 1 << 31, -(1 << 63), 1 << 200, 1.5, "", "text", "(" * 300, "ä", b"bytes", [1, [2]]),
    done(("OUTPUT0", FP32, (1, 1), 0, 4), parameters={"a": 1, "b": {}}),
]


@pytest.mark.parametrize("value", PLAIN)
def test_a_head_of_plain_values_is_read_when_it_is_looked_at(value: Any) -> None:
    message = memoryview(flat(encode(value, Payload())))
    assert decode(message, checked=True).head == value


HARMFUL = {
    "a tuple of two thousand million": b"(\xff\xff\xff\x7f",
    "a list of as many": b"(\x01\x00\x00\x00[\xff\xff\xff\x7f",
    "a number of as many digits": b"l\xff\xff\xff\x7f",
    "a text beyond the end": b"u\x05\x00\x00\x00abc",
    "a number beyond the end": b"i\x01",
    "a length beyond the end": b"u\x01",
    "code": marshal.dumps(compile("1", "f", "eval"), 2),
    "a set": marshal.dumps({1}, 2),
    "references": marshal.dumps(("long text", "long text"), 4),
}


@pytest.mark.parametrize("what", HARMFUL)
def test_a_head_that_could_do_harm_is_not_read(what: str) -> None:
    packed = HARMFUL[what]
    message = memoryview(PREFIX.pack(len(packed), zlib.crc32(packed)) + packed)
    with pytest.raises(MessageError, match=r"(in|than) the head"):
        decode(message, checked=True)
