"""The runtime alone: ONNX Runtime in closed loops, in a process of its own, without a server.

    python -m bench.limit MODEL --batch 1 4 8 --seconds 1 --sessions 2 --threads 1 --shape 3 224 224

Prints a JSON object for each batch size: inferences a second of all sessions, and the median time of a batch.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnxruntime
from servers import FailedError


def session(model: Path, threads: int) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    return onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])


def measure(
    sessions: Sequence[onnxruntime.InferenceSession], batch: int, shape: list[int], seconds: float
) -> dict[str, float]:
    """Run batches on all sessions at once until the time is over; the first one of each does not count."""
    data = np.random.default_rng(0).standard_normal((batch, *shape), np.float32)
    ready = threading.Barrier(len(sessions))

    def run(runtime: onnxruntime.InferenceSession) -> list[float]:
        name = runtime.get_inputs()[0].name
        runtime.run(None, {name: data})
        ready.wait()
        times_s: list[float] = []
        began_s = time.monotonic()
        while (before_s := time.monotonic()) < began_s + seconds:
            runtime.run(None, {name: data})
            times_s.append(time.monotonic() - before_s)
        return times_s

    with ThreadPoolExecutor(len(sessions)) as threads:
        times_s = list(threads.map(run, sessions))
    throughput = sum(batch * len(each) / sum(each) for each in times_s)
    p50_us = statistics.median(one for each in times_s for one in each) * 1e6
    return {"sessions": len(sessions), "batch": batch, "throughput": throughput, "p50_us": p50_us}


def run_alone(
    model: Path, batches: list[int], shape: tuple[int, ...], sessions: int, threads: int, seconds: float
) -> list[dict[str, float]]:
    """Measure in a process of its own; a result for each batch size.

    Raises:
        FailedError: the process fails, or does not end.
    """
    words = [sys.executable, "-m", "bench.limit", str(model), "--seconds", str(seconds)]
    words += ["--sessions", str(sessions), "--threads", str(threads)]
    words += ["--batch", *map(str, batches), "--shape", *map(str, shape)]
    try:
        done = subprocess.run(
            words,
            capture_output=True,
            text=True,
            check=False,
            timeout=60 + 4 * seconds * len(batches),
            cwd=Path(__file__).parents[1],
        )
    except subprocess.TimeoutExpired as error:
        raise FailedError("the runtime alone did not end in time") from error
    if done.returncode:
        raise FailedError(f"the runtime alone failed: {done.stderr[-500:]}")
    return [json.loads(line) for line in done.stdout.splitlines()]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--batch", type=int, nargs="+", default=[1])
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--sessions", type=int, default=1)
    parser.add_argument("--threads", type=int, default=0, help="of each session")
    parser.add_argument("--shape", type=int, nargs="+", required=True)
    options = parser.parse_args()
    sessions = [session(options.model, options.threads) for _ in range(options.sessions)]
    for batch in options.batch:
        print(json.dumps(measure(sessions, batch, options.shape, options.seconds)), flush=True)


if __name__ == "__main__":
    main()
