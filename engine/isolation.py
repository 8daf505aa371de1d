"""Whose requests are executed again when the process of an instance has ended.

When a process ends that executed a batch of several requests, any of them may have ended it. Each is executed once
more, alone, before the next instance takes anything else: who ends that one, too, is answered with an error that says
so, and the others get their answers. A request that was alone when a process ended is not executed again. So an input
that ends processes does so twice at most, and costs no other request its answer.

A request may have had effects before the process ended, which then happen twice. A model that must not be asked twice
says so (`PARAMETER` is ``false``). Requests of sequences, and those of decoupled models, which may have been answered
in part, are never executed again; nor are those of batches that a model of coroutines executed side by side, because
they may wait for each other; nor any under the rate limiter, because an instance that starts has no leave to execute.
"""

from __future__ import annotations

from .backends.parameters import parse_bool
from .config.model import ModelConfig
from .errors import InvalidArgumentError

PARAMETER = "RETRY_AFTER_CRASH"


def isolates_suspects(config: ModelConfig) -> bool:
    """Whether requests of this model may be executed again.

    Raises:
        InvalidArgumentError: the parameter is neither true nor false.
    """
    text = config.parameters.get(PARAMETER, "true")
    try:
        wanted = parse_bool(text)
    except InvalidArgumentError:
        raise InvalidArgumentError(f"parameter '{PARAMETER}' is '{text}'; expected 'true' or 'false'") from None
    return wanted and not config.has_sequence_batching and not config.decoupled
