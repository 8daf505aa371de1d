"""Which versions of a model are served (docs/reference/model-control.md#versions)."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from ..errors import InvalidArgumentError
from .model import VersionPolicy

_log = logging.getLogger(__name__)


def select_versions(policy: VersionPolicy, available: Sequence[int], model: str) -> tuple[int, ...]:
    """The versions to load, ascending, of those that have a directory.

    A version that the policy asks for by number but that has no directory is only logged.

    Raises:
        InvalidArgumentError: nothing is left.
    """
    existing = sorted(set(available))
    if policy.all_versions:
        chosen = existing
    elif policy.specific:
        chosen = [version for version in existing if version in policy.specific]
        for version in sorted(set(policy.specific) - set(existing)):
            _log.warning(
                "version %d is specified for model '%s', but the version directory is not present", version, model
            )
    else:
        chosen = existing[-policy.latest :] if policy.latest else []
    if not chosen:
        raise InvalidArgumentError(
            f"at least one version must be available under the version policy of model '{model}'"
        )
    return tuple(chosen)
