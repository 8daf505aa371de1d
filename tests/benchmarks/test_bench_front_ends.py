"""`make bench` with front ends in processes of their own: whose CPU time is whose."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))  # last: names there are also those of other tests

from bench.front_ends import PROGRAM, FrontEnds, by_role, cpu_by_role
from bench.models import MODELS
from bench.peers import PEERS
from bench.peers.base import Form
from bench.settings import Settings

from trireme.api.cli import front_end


class Process:
    """What is asked of a process."""

    def __init__(self, seconds: float, *words: str) -> None:
        self._seconds = seconds
        self._words = list(words)

    def cpu_times(self) -> Any:
        return SimpleNamespace(user=self._seconds, system=1.0)

    def cmdline(self) -> list[str]:
        return self._words


def test_cpu_of_front_ends_is_told_from_the_engines() -> None:
    processes: Any = [Process(2.0, "trireme", "serve"), Process(4.0, "python", "-m", PROGRAM), Process(8.0, "model.py")]
    assert cpu_by_role(processes) == (12.0, 5.0)
    assert by_role((1.0, 2.0), (2.0, 5.0), 40.0) == {"engine_us": 10.0, "front_end_us": 30.0}


def test_a_front_end_is_known_by_its_module() -> None:
    assert front_end.__name__ == PROGRAM


def test_only_trireme_has_front_ends_apart(tmp_path: Path) -> None:
    client, asked = FrontEnds(Form.GRPC), Settings(tmp_path)
    reasons = [client.refuses(PEERS[name](asked), MODELS["identity_fp32"]) for name in ("triton", "trireme")]
    assert reasons == ["has no front ends in processes of their own", None]
