"""Fuzzes a server of its own over HTTP/1.1, HTTP/2 and gRPC, by new seeds each time, for as long as one likes.

python benchmarks/fuzz.py --minutes 10 [--only http2] [--seed 12345] [--by-front-end]

Ends with 1 at the first finding, and says by which seed it comes again.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from itertools import cycle
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "support"))

from fuzz_run import ATTACKS, fuzz
from fuzz_target import Finding, fuzz_target

_AT_ONCE = 1_000


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--only", choices=list(ATTACKS))
    parser.add_argument("--seed", type=int, default=time.time_ns() // 1_000_000_000 * 1_000)
    parser.add_argument("--by-front-end", action="store_true", help="a process is between the server and its clients")
    told = parser.parse_args()
    end_s = time.monotonic() + 60 * told.minutes
    counts = dict.fromkeys([told.only] if told.only else ATTACKS, 0)
    seed = told.seed
    print(f"from seed {seed}")
    try:
        with (
            tempfile.TemporaryDirectory() as repository,
            fuzz_target(Path(repository), told.by_front_end) as target,
        ):
            for name in cycle(counts):
                if time.monotonic() > end_s:
                    break
                counts[name] += fuzz(target, name, range(seed, seed + _AT_ONCE))
                seed += _AT_ONCE
                print(f"{name}: {counts[name]} attacks, {target.resident_mib:.0f} MiB, {target.report()}", flush=True)
    except Finding as finding:
        print(finding)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
