"""How many batches a model may execute at once whose ``execute`` is a coroutine."""

from __future__ import annotations

from ..engine.backends.parameters import parse_int
from ..engine.config.model import ModelConfig
from ..engine.errors import InvalidArgumentError

PARAMETER = "MAX_OVERLAPPING_BATCHES"
DEFAULT = 16


def most_batches(config: ModelConfig) -> int:
    """What the parameter says. Requests of a sequence come one after the other, so a model with sequence batching
    executes one batch at a time, whatever it says.

    Raises:
        InvalidArgumentError: the parameter is no positive number.
    """
    text = config.parameters.get(PARAMETER, str(DEFAULT))
    try:
        number = parse_int(text)
    except InvalidArgumentError:
        number = 0
    if number < 1:
        raise InvalidArgumentError(
            f"parameter '{PARAMETER}' of model '{config.name}' must be a whole number of at least 1, got '{text}'"
        )
    return 1 if config.has_sequence_batching else number
