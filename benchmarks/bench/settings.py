"""What a run was asked for."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


def cache_folder() -> Path:
    """Where peers' environments and written models are kept: $TRIREME_BENCH_CACHE, or a folder of the user's cache."""
    if chosen := os.environ.get("TRIREME_BENCH_CACHE"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "trireme-bench"


@dataclass(frozen=True)
class Settings:
    """What all parts need to know.

    Attributes:
        seconds: of a measurement window; a sample has three.
        triton_command, perf_analyzer, earlier: start the real Triton, perf_analyzer, and Trireme at another commit.
            None: what is installed for the first two, and nothing for the last.
    """

    cache: Path
    seconds: float = 0.5
    alternations: int = 5
    quick: bool = False
    triton_command: str | None = None
    perf_analyzer: str | None = None
    earlier: str | None = None

    @property
    def window_s(self) -> float:
        """Of a sample that is not divided."""
        return 3 * self.seconds
