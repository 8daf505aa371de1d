"""A metric family: what Prometheus knows under one name, with its series (docs/reference/metrics.md#text).

The attributes are those of prometheus-client's `Metric` and `Sample`: a registry of that library can collect families.
The library itself is not needed: importing it takes 3 MiB, half of them an HTTP server and a client.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, NamedTuple


class Sample(NamedTuple):
    """A value of a series. The last three are what a registry asks for; there never are any."""

    name: str
    labels: Mapping[str, str]
    value: float
    timestamp: None = None
    exemplar: None = None
    native_histogram: None = None


class MetricFamily:
    """One family.

    Args:
        value: of its only series, if that has no labels.

    Attributes:
        samples: in the order in which they were added. Those of a counter are called ``<name>_total``.
    """

    unit: Final = ""

    def __init__(
        self,
        name: str,
        documentation: str,
        type: Literal["counter", "gauge", "histogram", "summary"],  # noqa: A002 - as a registry asks for it
        value: float | None = None,
    ) -> None:
        self.name = name
        self.documentation = documentation
        self.type = type
        self.samples: list[Sample] = []
        self._part = "_total" if type == "counter" and not name.endswith("_total") else ""
        if value is not None:
            self.add({}, value)

    def add(self, labels: Mapping[str, str], value: float, part: str = "") -> None:
        """Add a value.

        Args:
            part: what its name has behind the family's: ``_count``, ``_sum`` and ``_bucket`` of those that have any.
        """
        self.samples.append(Sample(self.name + (part or self._part), labels, value))
