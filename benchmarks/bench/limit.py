"""The runtime alone: ONNX Runtime in a closed loop, in a process of its own, without a server.

    python -m bench.limit MODEL --batch 1 4 8 --seconds 1 --threads 2 --shape 3 224 224

Prints a JSON object for each batch size: inferences a second, and the median time of a batch.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import onnxruntime
from servers import FailedError


def session(model: Path, threads: int) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    return onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])


def measure(runtime: onnxruntime.InferenceSession, batch: int, shape: list[int], seconds: float) -> dict[str, float]:
    """Run batches until the time is over; the first two do not count."""
    data = np.random.default_rng(0).standard_normal((batch, *shape), np.float32)
    name = runtime.get_inputs()[0].name
    for _ in range(2):
        runtime.run(None, {name: data})
    times_s: list[float] = []
    began_s = time.monotonic()
    while (before_s := time.monotonic()) < began_s + seconds:
        runtime.run(None, {name: data})
        times_s.append(time.monotonic() - before_s)
    throughput = batch * len(times_s) / (time.monotonic() - began_s)
    return {"batch": batch, "throughput": throughput, "p50_us": statistics.median(times_s) * 1e6}


def run_alone(
    model: Path, batches: list[int], shape: tuple[int, ...], threads: int, seconds: float
) -> list[dict[str, float]]:
    """Measure in a process of its own; a result for each batch size.

    Raises:
        FailedError: the process fails, or does not end.
    """
    words = [sys.executable, "-m", "bench.limit", str(model), "--seconds", str(seconds), "--threads", str(threads)]
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
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--shape", type=int, nargs="+", required=True)
    options = parser.parse_args()
    runtime = session(options.model, options.threads)
    for batch in options.batch:
        print(json.dumps(measure(runtime, batch, options.shape, options.seconds)), flush=True)


if __name__ == "__main__":
    main()
