"""Flags and words that say which models are loaded, and when."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...engine.options import ControlMode
from .flags import ParsedFlags, UsageError

if TYPE_CHECKING:
    from .app_serving import AppSettings


def check_control_mode(flags: ParsedFlags) -> None:
    """Check those that go with ``--model-control-mode`` against it. Raises UsageError if two contradict each other."""
    mode = ControlMode(flags["model-control-mode"])
    if "load-model" in flags and not mode.takes_orders:
        raise UsageError("Error: Use of '--load-model' requires setting '--model-control-mode=explicit' as well.")
    if "*" in flags["load-model"] and len(flags["load-model"]) > 1:
        raise UsageError("Error: Wildcard model name '*' must be the ONLY startup model if specified at all.")
    on_demand = mode is ControlMode.ON_DEMAND
    if on_demand and "model-memory-limit" not in flags:
        raise UsageError(
            "Error: '--model-control-mode=on-demand' requires setting '--model-memory-limit', the memory for all "
            "models together."
        )
    for name in ("model-memory-limit", "model-pin"):
        if name in flags and not on_demand:
            raise UsageError(f"Error: '--{name}' has no effect without '--model-control-mode=on-demand'.")
    if on_demand and flags["model-namespacing"]:
        raise UsageError("Error: '--model-namespacing' and '--model-control-mode=on-demand' cannot be combined.")


def served_apps(flags: ParsedFlags) -> AppSettings | None:
    """The Python files to serve; None if there are none. Raises UsageError: see `app_serving.app_settings`."""
    if not (flags.operands or flags["reload"]):
        return None
    from .app_serving import app_settings  # only here: most servers have none

    return app_settings(flags)
