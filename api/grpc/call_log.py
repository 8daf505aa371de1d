"""The lines of a call's life in verbose logs, worded as Triton words them: tools look for them.

Triton numbers its states only in debug builds; in all others every number is 0, as here. Level 1 tells the steps of
calls, level 2 when the state that belongs to one comes and goes as well.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from ..logging import verbose

log = logging.getLogger(__name__)

_STATES = verbose(2)
_HANDLERS = {
    "/inference.GRPCInferenceService/ModelInfer": "ModelInferHandler",
    "/inference.GRPCInferenceService/ModelStreamInfer": "ModelStreamInferHandler",
}

_OTHER_NAMES = {"TraceSetting": "Trace", "LogSettings": "Logging"}


def enabled() -> bool:
    return log.isEnabledFor(logging.DEBUG)


def tell_ready(paths: Iterable[str]) -> None:
    """Calls of these methods are served from now on. Those of inference are told of when they come."""
    for name in dict.fromkeys(_name(path) for path in paths if path not in _HANDLERS):
        log.debug("Ready for RPC '%s', 0", name)


def _name(path: str) -> str:
    """What Triton calls a method that is not for inference."""
    name = path.rpartition("/")[2]
    return _OTHER_NAMES.get(name, name)


class CallStory:
    def __init__(self, path: str) -> None:
        handler = _HANDLERS.get(path)
        self._handler = handler
        self._name = handler or _name(path)
        self._where = "context 0, 0" if handler == "ModelStreamInferHandler" else "0"
        self._cancelled = self._failed = False
        log.debug("GRPC request: %s", path)
        self._process("START")
        if handler is None:
            log.debug("Ready for RPC '%s', 0", self._name)
        else:
            log.log(_STATES, "StateNew, 0 Step START")
            log.debug("New request handler for %s, 0", handler)

    def _process(self, step: str) -> None:
        log.debug("Process for %s, rpc_ok=1, %s step %s", self._name, self._where, step)

    def fail(self, message: str) -> None:
        self._failed = True
        if self._handler is not None and not self._cancelled:
            log.debug("[request id: <id_unknown>] Infer failed: %s", message)

    def cancel(self) -> None:
        """The client has cancelled the call, or its deadline has passed."""
        self._cancelled = True
        if self._handler is not None:
            log.debug("Cancellation notification received for %s, rpc_ok=1, context 0, 0 step ISSUED", self._name)
            log.debug("Issuing cancellation for 0")

    def end(self) -> None:
        if self._handler is None:
            self._process("COMPLETE")
        elif self._cancelled:
            log.debug("Completing cancellation for %s, rpc_ok=1, context 0, 0 step CANCELLED", self._name)
        else:
            if self._handler == "ModelInferHandler" and not self._failed:
                log.debug("ModelInferHandler::InferResponseComplete, 0 step ISSUED")
                log.debug("ModelInferHandler::InferRequestComplete")
            self._process("COMPLETE")
            self._process("FINISH")
        log.debug("Done for %s, 0", self._name)
        if self._handler is not None:
            log.log(_STATES, "StateRelease, 0 Step %s", "CANCELLED" if self._cancelled else "FINISH")


def stream_request_begins() -> None:
    log.debug("Process for ModelStreamInferHandler, rpc_ok=1, context 0, 0 step READ")
    log.log(_STATES, "StateNew, 0 Step READ")


def stream_request_ends(cancelled: bool = False) -> None:
    """The last answer to a request on a stream has been sent; or the client is gone."""
    if cancelled:
        log.debug(
            "ModelStreamInferHandler::StreamInferResponseComplete, 0, skipping response generation as grpc "
            "transaction was cancelled... "
        )
    else:
        log.debug("Process for ModelStreamInferHandler, rpc_ok=1, context 0, 0 step WRITTEN")
    log.debug("Done for ModelStreamInferHandler, 0")
    log.log(_STATES, "StateRelease, 0 Step %s", "CANCELLED" if cancelled else "FINISH")
