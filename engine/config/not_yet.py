"""Settings that are read, checked and shown, but that this version does not carry out; each is said once a load."""

from __future__ import annotations

import logging
from typing import Any

logger = logging.getLogger("trireme.config")


def warn_of_unused(message: Any) -> None:
    """Log which settings of a model's configuration have no effect.

    Args:
        message: the configuration message, complete.
    """
    for setting in unused_settings(message):
        logger.warning("model '%s': '%s' has no effect in this version", message.name, setting)


def unused_settings(message: Any) -> list[str]:
    """Names of the settings that have no effect."""
    groups = message.instance_group
    asked = {
        "instance_group.passive": any(group.passive for group in groups),
        "instance_group.host_policy": any(group.host_policy for group in groups),
    }
    return [setting for setting, given in asked.items() if given]
