"""Delays for tests of clients: time-outs, cancellation, slow answers. The environment asks for them, as with Triton.

They are read once at start. Without them nothing is looked at, and nothing waits.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass

import trio

_log = logging.getLogger(__name__)

_NUMBER = re.compile(r"\s*([+-]?\d{1,9})")


@dataclass(frozen=True, slots=True)
class GrpcDelays:
    """How long what is held up; seconds each, 0 for not at all. The variables that ask for it are in milliseconds, but
    for the first.

    Attributes:
        answer_s: the answers of all calls other than inference (``TRITONSERVER_SERVER_DELAY_GRPC_RESPONSE_SEC``).
        notification_s: that a call of inference hears of its cancellation (``TRITONSERVER_DELAY_GRPC_NOTIFICATION``).
        response_s: each answer of a decoupled model on a stream (``TRITONSERVER_DELAY_GRPC_RESPONSE``).
        process_s: a call of ModelInfer that has come (``TRITONSERVER_DELAY_GRPC_PROCESS``).
        enqueue_s: the end of a call of ModelInfer that was cancelled (``TRITONSERVER_DELAY_GRPC_ENQUEUE``).
        complete_s: that a request on a stream counts as answered (``TRITONSERVER_DELAY_GRPC_COMPLETE``).
        response_completion_s: the answer to a call of ModelInfer (``TRITONSERVER_DELAY_RESPONSE_COMPLETION``).
    """

    answer_s: float = 0.0
    notification_s: float = 0.0
    response_s: float = 0.0
    process_s: float = 0.0
    enqueue_s: float = 0.0
    complete_s: float = 0.0
    response_completion_s: float = 0.0

    @property
    def of_model_infer(self) -> bool:
        """A call of ModelInfer is held up somewhere, and needs a task to wait in."""
        return any((self.notification_s, self.process_s, self.enqueue_s, self.response_completion_s))


NO_DELAYS = GrpcDelays()


def read_delays(environment: Mapping[str, str]) -> GrpcDelays:
    """What the environment asks for. What is no number counts as 0, as with Triton."""

    def seconds(name: str, unit_s: float = 1e-3) -> float:
        match = _NUMBER.match(environment.get(f"TRITONSERVER_{name}", ""))
        return 0.0 if match is None else max(0, int(match[1])) * unit_s

    return GrpcDelays(
        seconds("SERVER_DELAY_GRPC_RESPONSE_SEC", 1.0),
        seconds("DELAY_GRPC_NOTIFICATION"),
        seconds("DELAY_GRPC_RESPONSE"),
        seconds("DELAY_GRPC_PROCESS"),
        seconds("DELAY_GRPC_ENQUEUE"),
        seconds("DELAY_GRPC_COMPLETE"),
        seconds("DELAY_RESPONSE_COMPLETION"),
    )


async def delay(seconds: float, what: str) -> None:
    """Waits, and says so."""
    if seconds:
        _log.info("Delaying %s by %d ms...", what, round(seconds * 1000))
        await trio.sleep(seconds)
