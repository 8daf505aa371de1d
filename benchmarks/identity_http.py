"""Small requests over HTTP: Trireme and the real Triton side by side; a short way to run `python -m bench`.

    python benchmarks/identity_http.py --triton-command "tritonserver" --perf-analyzer "perf_analyzer"

It takes the options of `python -m bench`. Without --triton-command, Trireme is measured alone.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from bench.command import main


def compare(workload: str, arguments: Sequence[str]) -> int:
    """Run one workload at the concurrencies 16 and 1, with the real Triton if it is known how that is started."""
    given = {argument.partition("=")[0] for argument in arguments}
    peers = ["triton"] if "--triton-command" in given or os.environ.get("TRITON_COMMAND") else []
    words = ["--workloads", workload, "--peers", *peers]
    return main([*words, *([] if "--concurrency" in given else ["--concurrency", "16", "1"]), *arguments])


if __name__ == "__main__":
    raise SystemExit(compare("identity-http", sys.argv[1:]))
