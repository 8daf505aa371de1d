"""When a dead child is started again: always, after a delay that grows while it goes on dying.

Rules:
 1. The delay before restart k in a row is ``first_delay_s * 2**(k - 1)``, at most `longest_delay_s`.
 2. A child that was up for `healthy_s` has recovered: its next death is the first in a row again.
 3. After more than `limit` deaths in a row the child is failing: requests should not wait for it any more. It is until
    it has been up for `healthy_s`.

States, and what leads from one to the other:

    WELL ─(more than `limit` deaths in a row)▶ FAILING ─(a death after `healthy_s` or more)▶ WELL
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from ..backends.parameters import parse_bool
from ..config.model import ModelConfig
from ..errors import InvalidArgumentError

_MOST_DOUBLINGS = 64


@dataclass(slots=True, eq=False)
class RestartPolicy:
    """Decides about one child. All times are seconds of one clock.

    Args:
        limit: deaths in a row after which it is not failing yet.
        healthy_s: how long it has to be up before deaths are forgotten.
    """

    limit: int
    healthy_s: float
    first_delay_s: float = 0.1
    longest_delay_s: float = 30.0
    deaths: int = field(default=0, init=False)
    _up_s: float = field(default=math.inf, init=False)

    def started(self, now: float) -> None:
        """The child is up since `now`."""
        self._up_s = now

    def died(self, now: float) -> float:
        """The child died at `now`, or could not be started: seconds to wait before it is started again."""
        if now - self._up_s >= self.healthy_s:
            self.deaths = 0
        self._up_s = math.inf
        self.deaths += 1
        return min(self.first_delay_s * 2 ** min(self.deaths - 1, _MOST_DOUBLINGS), self.longest_delay_s)

    @property
    def failing(self) -> bool:
        """Rule 3; as of the last death."""
        return self.deaths > self.limit


# Whose requests are executed again when the process of an instance has ended.
#
# When a process ends that executed a batch of several requests, any of them may have ended it. Each is executed once
# more, alone, before the next instance takes anything else: who ends that one, too, is answered with an error that says
# so, and the others get their answers. If there is no next instance because it was removed, another one of the model
# does the same (`engine.scheduling.dispatcher`). A request that was alone when a process ended is not executed again.
# So an input that ends processes does so twice at most, and costs no other request its answer.
#
# A request may have had effects before the process ended, which then happen twice. A model that must not be asked twice
# says so (`PARAMETER` is ``false``). Requests of sequences, and those of decoupled models, which may have been answered
# in part, are never executed again; nor are those of batches that a model of coroutines executed side by side, because
# they may wait for each other; nor any under the rate limiter, because an instance that starts has no leave to execute.


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
