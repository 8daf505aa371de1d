"""A model that asks itself, at once or through others, and has no instance left that could answer.

Rule: a request that all instances of its model wait for (because they made it, or made the one that it was made for)
could never be executed. It is refused, whether a model makes it or an ensemble that a model asks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..engine.errors import UnavailableError
from ..engine.request import InferenceRequest

if TYPE_CHECKING:
    from .model import Model


def refuse_recursion(request: InferenceRequest, model: Model) -> None:
    """To be called for requests with `callers`.

    Args:
        model: which is to execute the request.

    Raises:
        UnavailableError: none of its instances could.
    """
    waiting = {instance for caller, instance in request.callers if caller == (model.name, model.version)}
    if waiting and len(waiting) >= model.actor_statistics().instances:
        raise UnavailableError(
            f"all {len(waiting)} instances of model '{model.name}' wait for the answer to this very request, so that "
            "it could never be executed"
        )
