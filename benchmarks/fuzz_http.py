"""Fuzzes `trireme serve` with requests drawn from its OpenAPI document, by new seeds each time.

python benchmarks/fuzz_http.py --minutes 10 [--seed 12345] [--examples 100] [--front-ends 1]

Ends with 1 at the first finding, and says by which seed it comes again.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "support"))

from fuzz_documented import FLAGS, fuzz_documented
from serve_process import serve_process

ROOT = Path(__file__).parent.parent
MODELS = ("simple", "simple_string", "running_sum", "digits", "digits_pipeline")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=time.time_ns() // 1_000_000_000)
    parser.add_argument("--examples", type=int, default=100)
    parser.add_argument("--front-ends", default="0", help="as of `trireme serve`")
    told = parser.parse_args()
    end_s = time.monotonic() + 60 * told.minutes
    seed = told.seed
    with serve_process(ROOT / "model_repository", *FLAGS, "--front-ends", told.front_ends) as server:
        while time.monotonic() < end_s:
            try:
                statuses = fuzz_documented(server, MODELS, examples=told.examples, seed=seed)
            except AssertionError as finding:
                print(f"by seed {seed}: {finding}")
                return 1
            print(f"seed {seed}: {dict(sorted(statuses.items()))}", flush=True)
            seed += 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
