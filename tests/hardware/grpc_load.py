"""A client that asks over gRPC, so many requests at a time: ``PORT MODEL SIZE CONCURRENCY SECONDS``; prints JSON."""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import time

import numpy as np
import tritonclient.grpc.aio as triton


async def load(port: int, model: str, size: int, concurrency: int, seconds: float) -> dict[str, float]:
    """Images a second, and how long they took, in ms."""
    times_s: list[float] = []
    async with triton.InferenceServerClient(f"127.0.0.1:{port}") as client:
        given = triton.InferInput("IMAGE__0", [1, 3, size, size], "FP16")
        given.set_data_from_numpy(np.random.default_rng(0).random((1, 3, size, size)).astype(np.float16))

        async def ask(until_s: float) -> None:
            while (began_s := time.perf_counter()) < until_s:
                await client.infer(model, [given])
                times_s.append(time.perf_counter() - began_s)

        await asyncio.gather(*[ask(time.perf_counter() + 2.0) for _ in range(concurrency)])
        times_s.clear()
        await asyncio.gather(*[ask(time.perf_counter() + seconds) for _ in range(concurrency)])
    return {
        "requests": len(times_s),
        "images_per_s": len(times_s) / seconds,
        "p50_ms": 1000 * statistics.median(times_s),
        "p99_ms": 1000 * sorted(times_s)[len(times_s) * 99 // 100],
    }


if __name__ == "__main__":
    _, port, model, size, concurrency, seconds = sys.argv
    print(json.dumps(asyncio.run(load(int(port), model, int(size), int(concurrency), float(seconds)))))
