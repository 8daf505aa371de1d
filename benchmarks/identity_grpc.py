"""Small requests over gRPC: Trireme and the real Triton side by side; a short way to run `python -m bench`.

    python benchmarks/identity_grpc.py --triton-command "tritonserver" --perf-analyzer "perf_analyzer" [--streaming]

It takes the options of `python -m bench`, and --streaming for ModelStreamInfer in place of ModelInfer. Without
--triton-command, Trireme is measured alone.
"""

from __future__ import annotations

import sys

from identity_http import compare

if __name__ == "__main__":
    arguments = [word for word in sys.argv[1:] if word != "--streaming"]
    raise SystemExit(compare("identity-grpc" if arguments == sys.argv[1:] else "identity-streams", arguments))
