"""10,000 host callbacks from four streams: each comes once, those of a stream in order, and how soon."""

from __future__ import annotations

import statistics
import threading
import time
from typing import Any

from hardware import main, need_torch

CALLS, STREAMS, IN_FLIGHT, PATIENCE_S = 10_000, 4, 64, 30


def group(figures: dict[str, Any]) -> None:
    need_torch()
    from trireme.engine.gpu.torch_device import TorchDevices

    devices = TorchDevices()
    gpu = devices.get(0)
    streams = [gpu.stream() for _ in range(STREAMS)]
    assert len({stream.handle for stream in streams}) == STREAMS
    heard: list[list[int]] = [[] for _ in streams]
    all_heard = threading.Semaphore(0)

    def hear(stream: int, number: int) -> None:
        heard[stream].append(number)
        all_heard.release()

    began_s = time.perf_counter()
    for number in range(CALLS):
        at = number % STREAMS
        assert number < IN_FLIGHT or all_heard.acquire(timeout=PATIENCE_S), f"{sum(map(len, heard))} of {number} came"
        streams[at].call(lambda at=at, number=number: hear(at, number))
    for _ in range(IN_FLIGHT):
        assert all_heard.acquire(timeout=PATIENCE_S), f"only {sum(map(len, heard))} of {CALLS} came"
    figures["calls_per_s"] = CALLS / (time.perf_counter() - began_s)
    assert heard == [list(range(at, CALLS, STREAMS)) for at in range(STREAMS)]
    times_s = []
    for _ in range(200):
        called = threading.Event()
        began_s = time.perf_counter()
        streams[0].call(called.set)
        assert called.wait(PATIENCE_S)
        times_s.append(time.perf_counter() - began_s)
    figures["round_trip_p50_us"] = 1e6 * statistics.median(times_s)
    figures["round_trip_max_us"] = 1e6 * max(times_s)
    devices.close()


if __name__ == "__main__":
    main(group)
