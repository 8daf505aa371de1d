"""The labels of a model version's series, and which of its numbers stand under which labels
(docs/reference/metrics.md#labels).

Rule 1. What instances of kind KIND_GPU have executed stands under the label ``gpu_uuid``, one set of labels a GPU.
        Everything else stands without it: what failed before it was executed, what the cache answered, and whatever
        belongs to the model as a whole. So the sets of a model add up to its statistics.
Rule 2. A GPU whose UUID is unknown has no labels of its own: what it has executed stands without the label, too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from .latencies import RecentLatencies
from .statistics import ModelStatistics, ModelStatisticsEntry

NO_GPUS: Mapping[int, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class LabelSet:
    """One set of labels, and what is counted under it.

    Attributes:
        counted: this, but for
        elsewhere: the parts of it that stand under labels of their own.
        recent: latencies of the last minute, where they are kept.
    """

    labels: dict[str, str]
    counted: ModelStatistics
    elsewhere: tuple[ModelStatistics, ...]
    recent: tuple[RecentLatencies, ...]

    def value(self, number: Callable[[ModelStatistics], int]) -> int:
        """One of the numbers that add up."""
        return number(self.counted) - sum(number(part) for part in self.elsewhere)


def label_sets(entry: ModelStatisticsEntry, gpu_uuids: Mapping[int, str]) -> list[LabelSet]:
    """All sets of a model version, the one without a GPU first.

    Args:
        gpu_uuids: by the devices' numbers in instance groups, as far as they are known.
    """
    labels = model_labels(entry)
    counted = entry.statistics
    known = {gpu: part for gpu, part in sorted(counted.devices.items()) if gpu in gpu_uuids}
    others = [counted, *(part for gpu, part in counted.devices.items() if gpu not in known)]
    sets = [LabelSet(labels, counted, tuple(known.values()), _recent(*others))]
    for gpu, part in known.items():
        sets.append(LabelSet({**labels, "gpu_uuid": gpu_uuids[gpu]}, part, (), _recent(part)))
    return sets


def model_labels(entry: ModelStatisticsEntry) -> dict[str, str]:
    """Name, version, the namespace where there is one, and the configuration's tags, which start with an underscore.

    A tag may be called anything, a label may not: characters that labels cannot have become underscores, and a label
    begins with one underscore only, for those with two are Prometheus's own.
    """
    tags = {"_" + re.sub(r"[^a-zA-Z0-9_]", "_", key).lstrip("_"): value for key, value in entry.metric_tags}
    namespace = {"namespace": entry.namespace} if entry.namespace else {}
    return {**tags, **namespace, "model": entry.name, "version": str(entry.version)}


def _recent(*parts: ModelStatistics) -> tuple[RecentLatencies, ...]:
    return tuple(part.recent for part in parts if part.recent is not None)
