"""What the server offers to backends: the way from a model back into the house."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..custom_metrics import CustomMetrics


@dataclass(frozen=True, slots=True)
class Services:
    """Callable from any thread.

    Attributes:
        custom_metrics: where a backend's, or a model's, own metrics are kept and printed from.
    """

    custom_metrics: CustomMetrics = field(default_factory=CustomMetrics)
