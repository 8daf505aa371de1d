"""Small requests over HTTP: Trireme and the real Triton side by side (`identity.py` says how).

    python benchmarks/identity_http.py --triton-command "tritonserver" --perf-analyzer "perf_analyzer"

Run it on a machine that has nothing else to do. Without --triton-command, Trireme is measured alone.
"""

from __future__ import annotations

from identity import compare, parser
from load import Protocol

if __name__ == "__main__":
    compare(parser(__doc__).parse_args(), Protocol.HTTP)
