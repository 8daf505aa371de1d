"""What the server and a Python model say to each other: the first item of every message's head.

Requests are known by a key, which the server gives, and a batch by that of its first request; calls of the model to the
server by a number, which the model gives. All only ever grow; a request that is to be executed once more comes again
under its key.

Server to model:
    START            (settings: dict)
    EXECUTE          (requests: tuple of request): several batches may be out if STARTED has said so
    TAKEN            (key, count): the client took this many responses, so that as many more may be sent
    CANCEL           (key): the answer to this request is not needed any more
    RESULT           (call, value)
    REFUSAL          (call, text)
    CALL_RESPONSE    (call, final, response or None): of a request that the model made
    LOGGED           (cost): the server has taken log lines of this cost
    FINALIZE         (): the last one; the model's process ends

Model to server:
    HELLO            (version of Python): the process is up
    STARTED          (config JSON or None, overlaps, checks): whether it can execute several batches at once, and
                     whether it has a readiness check of its own
    FAILED           (text): it could not start, for this reason; the process ends
    DONE             (batch, answers, rescheduled keys, (infer_ns, output_ns)): execute has returned; answers are
                     (key, response) of the requests that are answered by that
    ANSWER           (key, final, response or None)
    CALL             (call, method, arguments, batch or None): made while that batch was executed
    CANCEL_CALL      (call): the model does not want the responses any more
    LONE_CALL        the same, made by a thread that waits for the answer: it says nothing more until that comes
    CALL_TAKEN       (call, count): as TAKEN, of a request that the model made
    READY            (ready, error text or None): the bell has been rung
    LOG              (level, file name, line, text): costs `log_cost`, of which `LOG_WINDOW` may be on its way
    FINALIZED        ()

The server has a bell, too: a pipe of its own, since no thread reads messages while the model computes. Each byte in it
asks whether the model is ready.

A request is (key, id, correlation ID, flags, timeout in µs, parameters as JSON, names of wanted outputs, trace context
or None, tensors). A response is (error or None, parameters, tensors), an error (text, code), and a tensor a
`codec.WireTensor`.
"""

from __future__ import annotations

START = 1
EXECUTE = 2
TAKEN = 3
CANCEL = 4
RESULT = 5
REFUSAL = 6
CALL_RESPONSE = 7
FINALIZE = 8
LOGGED = 9

HELLO = 32
STARTED = 33
FAILED = 34
DONE = 35
ANSWER = 36
CALL = 37
CANCEL_CALL = 38
CALL_TAKEN = 39
READY = 40
LOG = 41
FINALIZED = 42
LONE_CALL = 31
"""Less than `READY`: of what a model says while it executes, and is heard at once."""

FINAL = 1
"""The flag of a request's last response."""

WINDOW = 16
"""Responses to one request that may be sent before the client has taken any."""

LOG_WINDOW = 256 << 10
LOG_PIECE = 16 << 10
"""Characters of a message that is longer and therefore sent in pieces."""


def log_cost(text: str) -> int:
    """What a log line takes of `LOG_WINDOW`; one that is empty takes something, too."""
    return len(text) + 128
