"""How an error of a member becomes the ensemble's (docs/reference/ensembles.md#errors)."""

from __future__ import annotations

from .. import errors
from ..errors import FailureReason, TriremeError

_CLASSES = {
    each.kind: each
    for each in (
        errors.InvalidArgumentError,
        errors.NotFoundError,
        errors.UnavailableError,
        errors.AlreadyExistsError,
        errors.UnsupportedError,
        errors.CancelledError,
        errors.DeadlineError,
        errors.InternalError,
    )
}


def in_ensemble(name: str, error: TriremeError) -> TriremeError:
    """The same kind of error, with the ensemble's name in front. Whatever it was, an ensemble counts it as OTHER."""
    make = _CLASSES.get(error.kind, TriremeError)
    return make(f"in ensemble '{name}', {error.message}", reason=FailureReason.OTHER)
