"""Small requests over gRPC: Trireme and the real Triton side by side (`identity.py` says how).

    python benchmarks/identity_grpc.py --triton-command "tritonserver" --perf-analyzer "perf_analyzer" [--streaming]

Run it on a machine that has nothing else to do. Without --triton-command, Trireme is measured alone.
"""

from __future__ import annotations

from identity import compare, parser
from load import Protocol


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--streaming", action="store_true", help="ModelStreamInfer in place of ModelInfer")
    asked = options.parse_args()
    compare(asked, Protocol.GRPC_STREAM if asked.streaming else Protocol.GRPC)


if __name__ == "__main__":
    main()
